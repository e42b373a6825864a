//go:build race

package index

import (
	"testing"

	"example.com/conductor/index/hash"
)

// underRace says that the race detector is on. It makes a test ten times slower, and finds
// nothing in one of a single goroutine.
const underRace = true

// skipUnderRace skips a test of one goroutine: make test runs all without the detector.
func skipUnderRace(t *testing.T) {
	t.Helper()
	t.Skip("one goroutine")
}

// TestStoreLooksAtParentAgain holds that a store looks at its parent again once its lane holds
// the parent's piece. Another source ends that piece and stores the parent in a new one: before
// the first hold of the store's lane, then before the second one, and so on.
func TestStoreLooksAtParentAgain(t *testing.T) {
	defer onChance.Store(nil)
	moved := 0
	for nth := 1; ; nth++ {
		x := New(Options{Scheme: hash.DefaultScheme(), NameAll: true})
		srcA, srcB := x.NewSource(), x.NewSource()
		a, b := x.NewOwner(srcA), x.NewOwner(srcB)
		for _, o := range []Owner{a, b} { // the two sources become one family
			x.Store(&Store{Owner: o, Engine: []uint64{900, 901}, Local: []uint64{900, 901}})
		}
		x.Store(&Store{Owner: a, Engine: []uint64{100, 101}, Local: []uint64{10, 11}})
		x.Store(&Store{Owner: a, Parent: 100, HasParent: true, Engine: []uint64{102}, Local: []uint64{12}})
		again := &Store{Owner: a, Engine: []uint64{100}, Local: []uint64{10}}
		for i := range uint64(20) {
			again.Engine, again.Local = append(again.Engine, 200+i), append(again.Local, 300+i)
		}
		chances := 0
		move := func(l *lane) {
			if l != x.tree.lanes.laneOf(srcB) {
				return
			}
			if chances++; chances != nth {
				return
			}
			moved++
			if got := x.Remove(a, []uint64{102, 101, 100}, nil, CopySet); got != (RemoveResult{Removed: 3}) {
				t.Errorf("chance %d: removal of the parent: %+v", nth, got)
			}
			if got := x.Store(again).counts(); got != (StoreResult{Added: 21}) {
				t.Errorf("chance %d: store of the parent: %+v", nth, got)
			}
		}
		onChance.Store(&move)
		got := x.Store(&Store{Owner: b, Parent: 100, HasParent: true, Engine: []uint64{102, 103}, Local: []uint64{12, 13}})
		onChance.Store(nil)
		if got.counts() != (StoreResult{Added: 2}) {
			t.Errorf("chance %d: store of the children: %+v", nth, got)
		}
		if err := x.Check(); err != nil {
			t.Errorf("chance %d: %v", nth, err)
		}
		if got := x.Remove(b, []uint64{103, 102}, nil, CopySet); got != (RemoveResult{Removed: 2}) || x.BlocksOf(b) != 2 {
			t.Errorf("chance %d: removal of the children: %+v, %d blocks are left", nth, got, x.BlocksOf(b))
		}
		if chances < nth {
			break
		}
	}
	if moved < 3 {
		t.Errorf("the store held %d pieces, want those of its owner's last block, its parent and its first block", moved)
	}
}
