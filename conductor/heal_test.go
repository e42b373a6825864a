package conductor_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvconductor/conductor"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
)

// TestHealModel replaces sources that run by those of another replica, while events go on. The
// answers stay those of that replica, as do all blocks at the end.
func TestHealModel(t *testing.T) {
	const seed = 3
	total := 0
	for i := range times(10) {
		synctest.Test(t, func(t *testing.T) {
			s := story{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			a := openReplica(t, new(streamtest.Network))
			b := openReplica(t, a.network)
			s.do("register "+kept, a, b)
			for _, who := range fleetOf {
				s.do("register "+who, a, b)
			}
			replays := make(map[conductor.Key]bool)
			var keys []conductor.Key
			for _, row := range b.conductor.Services() {
				replays[row.Key()] = row.ReplayEndpoint != ""
				keys = append(keys, row.Key())
			}
			between := func() {
				if s.rng.IntN(3) == 0 {
					s.announce(a)
				}
			}
			healed := 0
			for range 1 + s.rng.IntN(3) {
				for range s.rng.IntN(60) {
					s.do(s.command(), a)
				}
				<-time.After(10 * time.Second)
				s.plain = true
				r := b.conductor.Heal(keys)
				loadImage(t, a.conductor, r, func() {
					between()
					for _, err := range b.conductor.Check() {
						t.Fatal(err)
					}
				})
				if s.rng.IntN(4) == 0 {
					r.Undo()
				} else {
					healed += len(r.Replace(func(key conductor.Key, _ stream.Mark) bool { return replays[key] && s.rng.IntN(3) > 0 }))
				}
				s.plain = false
			}
			s.plain = true
			for range s.rng.IntN(30) {
				between()
			}
			s.settle(a)
			total += healed
			if got, want := answers(b, "default"), answers(a, "default"); got != want {
				t.Fatalf("seed %d, %d: %d healed\n%s\nhistory:\n%s", seed, i, healed, difference(got, want), strings.Join(s.done, "\n"))
			}
			for _, row := range b.conductor.Services() {
				if replays[row.Key()] && row.State != "synced" {
					t.Errorf("seed %d, %d: %s is %s, %s", seed, i, row.Key(), row.State, row.Reason)
				}
			}
			for _, err := range b.conductor.Check() {
				t.Fatal(err)
			}
			compareDigests(t, a.conductor, b.conductor)
		})
	}
	if total == 0 {
		t.Error("no source was healed")
	}
}

// TestHealShowsOneSource asks before, during and after a source is replaced: no answer has blocks
// of both, and a source that was paused stays paused. The snapshot of another lifetime of the engine is found out, and a source that was
// unregistered meanwhile stays away.
func TestHealShowsOneSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := func(on *streamtest.Network) *bench {
			b := openReplica(t, on)
			b.run("register one")
			return b
		}
		shared := new(streamtest.Network)
		a, b := begin(shared), begin(shared)
		other := begin(new(streamtest.Network)) // an engine of the same name, with other blocks
		for _, path := range []string{"x", "y", "z"} {
			other.run("store one path=" + path)
		}
		a.run("store one path=c")
		expect := func(when string, want ...string) {
			t.Helper()
			for i, path := range []string{"a", "c", "x"} {
				if got := b.run("query path=" + path); !strings.Contains(got, `"longest_matched":`+want[i]+",") {
					t.Errorf("%s: %s is %s, want %s", when, path, got, want[i])
				}
			}
		}
		key := b.conductor.Services()[0].Key()
		heal := func(from *bench, loaded func(), replaced int) {
			t.Helper()
			r := b.conductor.Heal([]conductor.Key{key})
			loadImage(t, from.conductor, r, func() {})
			loaded()
			if got := r.Replace(func(conductor.Key, stream.Mark) bool { return true }); len(got) != replaced {
				t.Errorf("replaced %v", got)
			}
		}
		must.Succeed(t, b.conductor.Pause(key))
		a.run("remove one path=c")
		a.run("store one path=a")
		heal(a, func() { expect("loaded", "0", "16", "0") }, 1)
		expect("replaced", "16", "0", "0")
		a.run("remove one path=a")
		<-time.After(10 * time.Second)
		if row := b.conductor.Services()[0]; row.State != stream.Paused {
			t.Errorf("a paused source that was replaced is %s", row.State)
		}
		expect("still paused", "16", "0", "0")
		must.Succeed(t, b.conductor.Unpause(key))
		a.run("store one path=a")
		<-time.After(10 * time.Second)
		expect("followed again", "16", "0", "0")
		heal(other, func() {}, 1)
		<-time.After(10 * time.Second)
		expect("another lifetime", "16", "0", "0")
		if row := b.conductor.Services()[0]; row.State != stream.Synced || row.Restarts != 1 {
			t.Errorf("%s, %d restarts", row.State, row.Restarts)
		}
		heal(a, func() { b.run("unregister one") }, 0)
		if all := b.conductor.Services(); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	})
}
