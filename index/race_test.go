package index

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"kvconductor/index/hash"
)

// Readers run while a writer stores and removes whole chains in one call each. A
// reader sees a chain entirely or not at all, and lists it keeps never change.
func TestReadersSeeWholeEvents(t *testing.T) {
	const length, rounds = 32, 200
	x := New(Options{Scheme: hash.Default()})
	src := x.NewSource()
	still, moving := x.NewOwner(src), x.NewOwner(x.NewSource())
	chain := seqs(length)
	engine, local := blocks(100, 1, length)
	x.Store(&Store{Owner: still, Engine: engine[:length/2], Local: local[:length/2]})

	var done atomic.Bool
	var looks atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var m Match
			var kept [][]uint32
			for !done.Load() {
				x.Match(chain, &m)
				switch {
				case m.Blocks == length/2 && len(m.Runs) == 1 && len(m.Runs[0].Owners) == 1:
				case m.Blocks == length && len(m.Runs) == 2 && len(m.Runs[0].Owners) == 2 && m.Runs[1].Owners[0] == uint32(moving):
				default:
					t.Errorf("half an event: %+v", m)
					return
				}
				if len(kept) < 100 {
					kept = append(kept, m.Runs[0].Owners)
				}
				if looks.Add(1)%64 == 0 {
					x.Stats()
					x.Knows(src, 101)
					x.Blocks(moving)
				}
				runtime.Gosched() // or the writer waits for a time slice each time
			}
			for _, owners := range kept {
				if owners[0] != uint32(still) {
					t.Errorf("a kept list changed: %v", owners)
				}
			}
		})
	}
	for range rounds {
		x.Store(&Store{Owner: moving, Engine: engine, Local: local})
		runtime.Gosched()
		x.Remove(moving, engine, nil, CopyCount)
	}
	for before := looks.Load(); looks.Load() < before+10 && !t.Failed(); { // readers did run
		runtime.Gosched()
	}
	done.Store(true)
	wg.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// Writers of different sources, readers, checkers and owners that come and go.
func TestConcurrentWriters(t *testing.T) {
	x := New(Options{Scheme: hash.Default(), MaxOrphans: 8})
	var wg sync.WaitGroup
	for w := range uint64(3) {
		wg.Go(func() {
			src := x.NewSource()
			for i := range uint64(60) {
				o := x.NewOwner(src)
				first := 1 + i%5
				engine, local := blocks(w<<32, first, first+10)
				x.Store(&Store{Owner: o, Engine: engine, Local: local, Parent: w<<32 + first - 1, HasParent: first > 1})
				x.Remove(o, engine[3:7], nil, CopyCount)
				switch i % 3 {
				case 0:
					x.Clear(o)
				case 1:
					x.Aliases(func(Source, uint64, uint64) bool { return true })
				}
				if i%20 == 19 {
					x.DropSource(src)
					src = x.NewSource()
				}
				if err := x.Check(); err != nil {
					t.Error(err)
					return
				}
			}
			x.DropSource(src)
		})
	}
	wg.Wait()
	if st := x.Stats(); st.Blocks+st.Aliases+st.Raw+st.Orphans+st.Sets != 0 {
		t.Errorf("something is left: %+v", st)
	}
}
