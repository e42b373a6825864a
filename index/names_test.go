package index

import "testing"

// A name that one source means alone leaves with the owner that was cleared, also before the
// sweep has come to its block: the hash means again what it means to others.
func TestPrivateNameLeavesBeforeTheSweep(t *testing.T) {
	x := New(Options{})
	x.perEvent.sweep = 0
	other, own := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: other, Engine: []uint64{1}, Local: []uint64{1}})
	x.Store(&Store{Owner: own, Engine: []uint64{1}, Local: []uint64{2}})
	x.Clear(own)
	// The hash 1 means the first block, until it turns out to mean the second one.
	if got := x.Store(&Store{Owner: own, Engine: []uint64{6, 1}, Local: []uint64{1, 1}}); got.Conflicts != 1 || got.Added != 2 {
		t.Errorf("%+v", got)
	}
	if n := x.Blocks(own); n != 1 {
		t.Errorf("%d blocks", n)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}
