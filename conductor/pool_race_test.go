package conductor_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// TestPoolsConcurrently lets engines announce, evict and clear, pools take and drop
// objects, both come and go, and routers ask, all at once. Then everybody says once more
// what it holds, and answers are those of a Conductor that heard nothing else.
func TestPoolsConcurrently(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) { racePools(t, seed) })
	}
}

func racePools(t *testing.T, seed uint64) {
	const steps = 120
	profile := ""
	by := "hashes=A"
	if seed%2 == 1 {
		profile, by = " profile=sha256/7", "hashed=sha256/7"
	}
	paths := []string{"a", "a/b", "a/b/c", "a/x", "a/x/y", "q", "q/r"}
	salts := []string{"", " salt=s"}
	register := map[string]string{
		"A": "register A" + profile, "B": "register B" + profile, "pool": "register pool type=Mooncake replay=no",
		"node": "register node type=Mooncake replay=no serves=B",
	}
	b := newBench()
	defer b.conductor.Close()
	for _, line := range register {
		b.run(line)
	}
	var numbers atomic.Int64 // of objects, ascending in each pool
	// send has one source say a line, and does not wait.
	send := func(line string) {
		words := strings.Fields(line)
		a := args{word: words[1], keys: map[string]string{}}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			a.keys[key] = value
		}
		switch words[0] {
		case "store":
			b.publish(a, b.storeEvent(a))
		case "remove":
			b.publish(a, b.removeEvent(a))
		case "put", "drop":
			what := map[string]string{"put": "stored", "drop": "removed"}[words[0]]
			keyed := bench{network: b.network, objects: int(numbers.Add(2))}
			keyed.publishAll(a, keyed.objectEvents(a, what))
		case "clear":
			b.publish(a, clearEvent(a))
		}
	}
	var lines sync.Map // of each source, in the order sent, since its last clear
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, who := range []string{"A", "B", "pool", "node"} {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			var said []string
			say := func(line string) {
				said = append(said, line)
				send(line)
			}
			for range steps {
				where := fmt.Sprintf("%s path=%s %s%s", who, paths[rng.IntN(len(paths))], by, salts[rng.IntN(2)])
				object := fmt.Sprintf("%s tp=%d medium=%s", where, rng.IntN(2), []string{"cpu", "disk"}[rng.IntN(2)])
				engine := i < 2
				switch n := rng.IntN(20); {
				case n < 11 && engine:
					say("store " + where)
				case n < 17 && engine:
					say("remove " + where)
				case n < 13:
					say("put " + object)
				case n < 18:
					say("drop " + object)
				case n < 19 && engine:
					said = nil
					say("clear " + who)
				case n < 19:
					said = nil
					say("clear " + who + " backend=b")
				}
			}
			lines.Store(who, said)
		})
	}
	for i := range 2 {
		wg.Go(func() { // registers and unregisters: what they had said before is lost
			rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for range 30 {
				who := []string{"B", "node"}[i]
				if _, err := b.conductor.Unregister(registration.Key{Instance: who}); err != nil && !errors.Is(err, ingest.ErrNotFound) {
					t.Error(err)
				}
				for range rng.IntN(50) {
					b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("a/b/c", 16)})
				}
				r := registration.Registration{Endpoint: "ipc://" + who + "/0", Type: "vLLM", Model: "m", Instance: who, BlockSize: 16}
				if who == "node" {
					r.Type, r.Serves = "Mooncake", []string{"B"}
				} else if profile != "" {
					r.Profile = profileOf("sha256/7")
				}
				must.Report(t, b.conductor.Register(r, ingest.RegisterOptions{}))
			}
		})
	}
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				q := match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(paths[n%len(paths)], 16), Salt: []string{"", "s"}[n%2]}
				for _, row := range b.conductor.Query(q).Rows {
					if row.Longest > strings.Count(paths[n%len(paths)], "/")+1 {
						t.Errorf("%s: %d blocks", row.Instance, row.Longest)
					}
				}
				b.conductor.Services()
				b.conductor.For(conductor.Reader{}).Inspect().GlobalView(3)
			}
		})
	}
	wg.Wait()
	b.objects = int(numbers.Add(2))
	close(stop)
	asking.Wait()
	synctest.Wait()
	for _, err := range b.conductor.Check() {
		t.Fatalf("seed %d: %v", seed, err)
	}

	// From here on both hear the same, sources in another order.
	fresh := newBench()
	defer fresh.conductor.Close()
	for _, who := range []string{"A", "B", "pool", "node"} {
		fresh.run(register[who])
	}
	for _, each := range []*bench{b, fresh} {
		runAll(each, "clear A", "clear B", "clear pool backend=b", "clear node backend=b")
		for _, path := range paths { // what hashes mean is remembered
			for _, salt := range salts {
				each.run("store A path=" + path + " " + by + salt)
			}
		}
		each.run("clear A")
	}
	for each, order := range map[*bench][]string{b: {"pool", "B", "node", "A"}, fresh: {"A", "node", "B", "pool"}} {
		for _, who := range order {
			said, _ := lines.Load(who)
			runAll(each, said.([]string)...)
		}
	}
	for _, path := range paths {
		for _, salt := range salts {
			query := "query path=" + path + salt
			if got, want := b.run(query), fresh.run(query); got != want {
				t.Errorf("seed %d: %s\ngot  %swant %s", seed, query, got, want)
			}
		}
	}
	for _, err := range b.conductor.Check() {
		t.Fatalf("seed %d: %v", seed, err)
	}
}
