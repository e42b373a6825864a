package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	kv "example.com/conductor/client"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// TestWayBackReplicas lets replicas of two builds share a store, while clients register engines, register them again with
// other aliases, and unregister them, in turn at both, and while each of them is started again and the store is emptied.
// Once both have heard of a change, all answers of both are right.
func TestWayBackReplicas(t *testing.T) {
	t.Parallel()
	programs := []string{programBefore(t), ""}
	shared := redistest.Start(t)
	store := redis.NewClient(&redis.Options{Addr: shared.Addr})
	t.Cleanup(func() { store.Close() })
	// Without the shelf, from which older builds bring back what was unregistered shortly before.
	settings := "store: {url: '" + shared.URL() + "'}\nsnapshot: {interval: 0s}\nshutdown: {drain: 0s}\n"
	both := []*process{serveWith(t, programs[0], settings), serveWith(t, programs[1], settings)}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	f := newTwoWayFleet(t)
	var all []*twoWayEngine
	for i := range 6 {
		all = append(all, newTwoWayEngine(t, i, func(r *kv.Registration) {
			r.Reports, r.Copies = []string{"", "full", "incremental"}[i%3], []string{"", "", "set"}[i%3]
		}))
		all[i].work()
	}
	field := func(e *twoWayEngine) string { return fmt.Sprintf(`[%q,"default",0]`, e.told.Instance) }
	const sources = "kvconductor:{default}:sources"
	entry := func(e *twoWayEngine) (text string) { // once the store has it
		t.Helper()
		eventually(t, "the store has no entry of "+e.told.Instance, func() (string, bool) {
			text = store.HGet(t.Context(), sources, field(e)).Val()
			return text, text != ""
		})
		return text
	}
	restart := func(i int) {
		t.Helper()
		if rng.IntN(2) == 0 {
			stop(t, both[i])
		} else {
			must.Succeed(t, both[i].cmd.Process.Kill())
			both[i].cmd.Wait()
		}
		both[i] = serveWith(t, programs[i], settings)
		eventually(t, "a server that was started again never gets ready", func() (string, bool) {
			status, text := get(both[i].url + "/ready")
			return text, status == 200
		})
	}
	for round := range 24 {
		for i, n := range rng.Perm(len(all))[:2] { // an engine is changed at one of them until both have heard of it
			e, p := all[n], both[(i+round)%2]
			if f.engines[e.told.Instance] != nil && rng.IntN(3) == 0 {
				f.unregister(p, e)
				continue
			}
			e.told.Aliases = [][]string{nil, {"n"}, {"n", "o"}, {"p"}}[(len(e.told.Aliases)+1+rng.IntN(2))%4]
			f.register(p, e)
		}
		all[rng.IntN(len(all))].work()
		switch round % 6 {
		case 2:
			f.settle(fmt.Sprintf("round %d", round), both...)
			restart(0)
		case 4:
			f.settle(fmt.Sprintf("round %d", round), both...)
			restart(1)
		case 5:
			f.settle(fmt.Sprintf("round %d", round), both...)
			must.Succeed(t, store.FlushAll(t.Context()).Err())
			for _, e := range f.engines {
				entry(e)
			}
		}
		f.settle(fmt.Sprintf("round %d", round), both...)
	}

	// What only a newer build knows stays in the entry of a source, whatever else happens at an older one.
	e := all[0]
	exchange := func() { // each has written all that it had to, and read all, once it follows what was registered at the other
		t.Helper()
		for i, p := range both {
			if other := all[i+1]; f.engines[other.told.Instance] != nil {
				f.unregister(p, other)
			}
		}
		f.settle("unregistered", both...)
		f.register(both[0], all[1])
		f.register(both[1], all[2])
		f.settle("registered", both...)
	}
	if f.engines[e.told.Instance] != nil {
		f.unregister(both[1], e)
		f.settle("unregistered", both...)
	}
	f.register(both[1], e)
	exchange()
	const more = `"newer":"a field that neither build knows"`
	text := strings.Replace(entry(e), `"source":{`, `"source":{`+more+`,`, 1)
	must.Succeed(t, store.HSet(t.Context(), sources, field(e), text).Err())
	must.Succeed(t, store.Incr(t.Context(), "kvconductor:{default}:revision").Err())
	stays := func(when string, server int) {
		t.Helper()
		exchange()
		if text := entry(e); !strings.Contains(text, more) {
			t.Errorf("%s at server %d leaves %s", when, server, text)
		}
	}
	exchange()
	for i, p := range both {
		f.register(p, e)
		stays("registered again", i)
	}
	for _, i := range []int{0, 1, 0} {
		restart(i)
		stays("a start", i)
	}
}
