package index

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A table does what a map does, whatever the order, the size and the keys.
func TestTableModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 40 {
		var tab table[uint32]
		want := map[uint64]uint32{}
		span := uint64(1) << rng.IntN(12) // few keys collide often, many grow
		growing := true
		for range 3000 {
			if rng.IntN(400) == 0 {
				growing = !growing
			}
			k := rng.Uint64N(span)
			switch n := rng.IntN(10); {
			case n == 0 && rng.IntN(60) == 0:
				keep := func(k uint64) bool { return k%3 == 0 }
				tab.retain(func(k uint64, v *uint32) bool {
					if *v != want[k] {
						t.Fatalf("seed %d: retain sees %d -> %d, want %d", seed, k, *v, want[k])
					}
					return keep(k)
				})
				for k := range want {
					if !keep(k) {
						delete(want, k)
					}
				}
			case n < 7 == growing:
				v := rng.Uint32()
				*tab.insert(k) += v
				want[k] += v
			default:
				tab.remove(k)
				delete(want, k)
			}
			if tab.len() != len(want) {
				t.Fatalf("seed %d round %d: %d keys, want %d", seed, round, tab.len(), len(want))
			}
			if 4*tab.n > 3*len(tab.keys) {
				t.Fatalf("seed %d: %d keys in %d slots", seed, tab.n, len(tab.keys))
			}
		}
		for k := range span {
			v, held := want[k]
			if got := tab.ref(k); (got != nil) != held || held && *got != v {
				t.Fatalf("seed %d: ref(%d) = %v, want %d, %t", seed, k, got, v, held)
			}
		}
		n := 0
		tab.all(func(k uint64, v *uint32) bool {
			n++
			if *v != want[k] {
				t.Fatalf("seed %d: %d -> %d, want %d", seed, k, *v, want[k])
			}
			return true
		})
		if n != len(want) {
			t.Fatalf("seed %d: walked %d keys, want %d", seed, n, len(want))
		}
	}
}

func TestTableGivesMemoryBack(t *testing.T) {
	var tab table[uint32]
	for k := range uint64(100_000) {
		*tab.insert(k) = 1
	}
	full := tab.bytes()
	for k := range uint64(99_990) {
		tab.remove(k)
	}
	if tab.bytes() > full/1000 {
		t.Errorf("%d bytes for %d keys, %d when full", tab.bytes(), tab.len(), full)
	}
	for k := range uint64(100_000) {
		if got := tab.ref(k) != nil; got != (k >= 99_990) {
			t.Fatalf("key %d: %t", k, got)
		}
	}
}

func TestTableWalkStops(t *testing.T) {
	f := func(first uint64) {
		t.Helper()
		var tab table[uint32]
		for k := first; k < first+5; k++ {
			tab.insert(k)
		}
		n := 0
		tab.all(func(uint64, *uint32) bool { n++; return n < 3 })
		if n != 3 {
			t.Errorf("walked %d keys, want 3", n)
		}
		n = 0
		tab.all(func(uint64, *uint32) bool { n++; return false })
		if n != 1 {
			t.Errorf("walked %d keys, want 1", n)
		}
	}
	f(0)
	f(1)
}

func TestDiffer(t *testing.T) {
	f := func(m, base []uint32, owner uint32, add, want bool) {
		t.Helper()
		if got := differ(m, base, search(base, owner), owner, add); got != want {
			t.Errorf("differ(%v, %v, %d, %t) = %t", m, base, owner, add, got)
		}
	}
	f([]uint32{1, 5, 9}, []uint32{1, 9}, 5, true, true)
	f([]uint32{1, 6, 9}, []uint32{1, 9}, 5, true, false)
	f([]uint32{2, 5, 9}, []uint32{1, 9}, 5, true, false)
	f([]uint32{1, 5, 8}, []uint32{1, 9}, 5, true, false)
	f([]uint32{0, 1, 9}, []uint32{1, 9}, 0, true, true)
	f([]uint32{1, 9, 10}, []uint32{1, 9}, 10, true, true)
	f([]uint32{7}, nil, 7, true, true)
	f([]uint32{1, 9}, []uint32{1, 5, 9}, 5, false, true)
	f([]uint32{1, 8}, []uint32{1, 5, 9}, 5, false, false)
	f([]uint32{2, 9}, []uint32{1, 5, 9}, 5, false, false)
	f([]uint32{5, 9}, []uint32{1, 5, 9}, 1, false, true)
}

// Sets whose hashes collide are kept apart and leave in any order.
func TestSetsWithOneHash(t *testing.T) {
	f := func(order ...uint32) {
		t.Helper()
		var s sets
		s.init()
		for i := range uint32(3) {
			s.hold(s.create([]uint32{i}, 42))
		}
		for i, id := range order {
			s.release(id)
			if left := s.withHash(42); len(left) != len(order)-i-1 || s.len() != len(left) {
				t.Fatalf("after %d of %v: %v are left", i+1, order, left)
			}
		}
		if s.byHash.len() != 0 || s.listBytes != 0 {
			t.Errorf("%d hashes and %d bytes are left", s.byHash.len(), s.listBytes)
		}
	}
	f(1, 2, 3)
	f(3, 2, 1)
	f(2, 1, 3)
	f(2, 3, 1)
}

// An id that names another set now must not answer from the memory of the old one.
func TestMemoOfReusedIds(t *testing.T) {
	var s sets
	s.init()
	a := s.add(0, 1)   // {1}
	b := s.add(0, 2)   // {2}
	ab := s.drop(b, 2) // {}, frees {2}
	if ab != 0 {
		t.Fatalf("empty set has id %d", ab)
	}
	c := s.add(0, 3) // {3}, in the place of {2}
	if c != b {
		t.Fatalf("id %d is not reused, got %d", b, c)
	}
	d := s.add(0, 2)
	if m := s.members(d); len(m) != 1 || m[0] != 2 {
		t.Errorf("0+2 = %v", m)
	}
	if m := s.members(c); len(m) != 1 || m[0] != 3 {
		t.Errorf("%d = %v", c, m)
	}
	s.release(a)
}
