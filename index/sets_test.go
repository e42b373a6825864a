package index

import "testing"

// Sets with one hash have numbers of their own, and may leave in any order.
func TestSetsWithOneHash(t *testing.T) {
	for first := range 2 {
		x := New(Options{})
		s := &x.tree.sets
		var ids [2]uint32
		for i := range ids {
			words := make([]uint64, s.body.Load().width)
			words[0] = 1 << i
			ids[i] = s.internSet(7, words)
		}
		if ids[0] == ids[1] {
			t.Fatal("two sets are one")
		}
		s.releaseSet(ids[first])
		s.releaseSet(ids[1-first])
		if n := s.countSets(); n != 0 {
			t.Errorf("%d sets are left", n)
		}
	}
}
