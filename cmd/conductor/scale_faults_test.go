package main

import (
	"os"
	"testing"
	"time"

	"kvconductor/internal/redistest"
)

// outlasting is longer than a replica's lease.
const outlasting = 5500 * time.Millisecond

// TestScaleFaults kills, stops, cuts off and slows down replicas and their store while fleets work.
// After each fault every replica has what an undisturbed server has, and no settled answer was wrong.
// SCALE_FAULTS=1 plays all faults, else the first ones of each mode.
func TestScaleFaults(t *testing.T) {
	all := os.Getenv("SCALE_FAULTS") == "1"
	for _, mode := range []struct{ name, settings, store string }{
		{"engine", "", ""},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			shared := redistest.Start(t)
			a := newArena(t, mode.settings, shared.Addr, func(own string) string { return "url: 'redis://" + own + "'" + mode.store }, 4)
			a.whole("the start")
			for i, f := range faults {
				if i >= 3 && !all {
					break
				}
				a.work(time.Second)
				f.do(a, shared)
				a.work(time.Second)
				a.whole(f.name)
			}
			a.end()
		})
	}
}

// faults are in the order in which they are played.
var faults = []struct {
	name string
	do   func(a *arena, shared *redistest.Server)
}{
	{"the death of a replica", func(a *arena, _ *redistest.Server) {
		a.kill(a.replicas[0])
		a.work(outlasting)
		a.join()
	}},
	{"the stop of a replica", func(a *arena, _ *redistest.Server) { a.stopFor(a.replicas[0].process, outlasting) }},
	{"the store was emptied", func(a *arena, shared *redistest.Server) { shared.Empty() }},
	{"the death of the store", func(a *arena, shared *redistest.Server) {
		shared.Kill()
		a.work(outlasting)
		shared.Run()
	}},
	{"the stop of the store", func(a *arena, shared *redistest.Server) {
		shared.Pause()
		a.work(outlasting)
		shared.Continue()
	}},
	{"a replica without the store", func(a *arena, shared *redistest.Server) {
		r := a.replicas[0]
		r.store.Turn(nowhere)
		a.work(outlasting)
		r.store.Turn(shared.Addr)
	}},
	{"a replica without the others", func(a *arena, _ *redistest.Server) {
		r := a.replicas[0]
		r.peers.Turn(nowhere)
		a.work(outlasting)
		r.peers.Turn(r.url[len("http://"):])
	}},
	{"slow ways", func(a *arena, _ *redistest.Server) {
		for range 50 {
			for _, r := range a.replicas {
				r.store.Hold(90 * time.Millisecond)
				r.peers.Hold(60 * time.Millisecond)
			}
			a.work(100 * time.Millisecond)
		}
	}},
}
