package index

import (
	"math/rand/v2"
	"testing"
)

// TestAlone compares Alone with a count over the walk of a snapshot, while nothing changes.
func TestAlone(t *testing.T) {
	for i := range 60 {
		w := newWorld(t, rand.New(rand.NewPCG(7, uint64(i))), true, false, ghostly(i/2%3))
		w.exchange(w.keeping())
		w.addIdentities(w.x)
		for range w.sources {
			w.x.NewSource()
		}
		for i, o := range w.owners {
			w.x.NewCountedOwner(w.o.owners[o], w.tallies[i])
		}
		for range 80 {
			w.step()
		}
		s := w.x.Checkpoint().Snapshot()
		for rest := range Owner(3) {
			mine := func(o Owner) bool { return o%3 == rest }
			held, alone := make([]int, len(w.o.constants)), make([]int, len(w.o.constants))
			for _, p := range s.pieces {
				for b := range p.eachBlock {
					ours, others := false, false
					for o := range s.eachHolder(b) {
						ours, others = ours || mine(o.name), others || !mine(o.name)
					}
					if ours {
						if held[p.identity.id]++; !others {
							alone[p.identity.id]++
						}
					}
				}
			}
			for id, got := range w.x.Checkpoint().Shares(mine) {
				if got.Held != held[id] || got.Alone != alone[id] {
					t.Errorf("world %d, identity %d: %+v, want %d, %d of them alone", i, id, got, held[id], alone[id])
				}
			}
		}
	}
}
