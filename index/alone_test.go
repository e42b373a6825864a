package index

import (
	"math/rand/v2"
	"testing"
)

// TestAlone compares Alone with a count over the walk of a snapshot, while nothing changes.
func TestAlone(t *testing.T) {
	for i := range 60 {
		w := newWorld(t, rand.New(rand.NewPCG(7, uint64(i))), true, false)
		w.x = New(Options{Scheme: w.o.scheme, MaxOrphans: w.x.maxOrphans, KeepClientHashes: true})
		for range w.sources {
			w.x.NewSource()
		}
		for i, o := range w.owners {
			w.x.NewCountedOwner(w.o.owners[o], w.tallies[i])
		}
		for range 80 {
			w.step()
		}
		s := w.x.Snapshot()
		s.plant()
		for rest := range Owner(3) {
			mine := func(o Owner) bool { return o%3 == rest }
			held, alone := 0, 0
			for b := range s.local {
				ours, others := false, false
				for o := range s.holders(b) {
					ours, others = ours || mine(o.name), others || !mine(o.name)
				}
				if ours {
					if held++; !others {
						alone++
					}
				}
			}
			if all := w.x.Alone(mine); all[0].Held != held || all[0].Alone != alone {
				t.Errorf("world %d: %d held, %d of them alone, want %d, %d", i, all[0].Held, all[0].Alone, held, alone)
			}
		}
	}
}
