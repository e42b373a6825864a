package index

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A table does what a map does, whatever the order, the size and the keys.
func TestFlatModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 40 {
		var tab flat[uint32]
		want := map[uint64]uint32{}
		span := uint64(1) << rng.IntN(12) // few keys collide often, many grow
		growing := true
		for range 3000 {
			if rng.IntN(400) == 0 {
				growing = !growing
			}
			k := 1 + rng.Uint64N(span)
			switch n := rng.IntN(10); {
			case n < 7 == growing:
				v := rng.Uint32()
				*tab.insertKey(k) += v
				want[k] += v
			default:
				tab.deleteKey(k)
				delete(want, k)
			}
			if tab.len() != len(want) {
				t.Fatalf("seed %d round %d: %d keys, want %d", seed, round, tab.len(), len(want))
			}
			if 4*tab.n > 3*len(tab.keys) {
				t.Fatalf("seed %d: %d keys in %d slots", seed, tab.n, len(tab.keys))
			}
		}
		for k := range 1 + span {
			v, held := want[k]
			if got := tab.find(k); (got != nil) != held || held && *got != v {
				t.Fatalf("seed %d: ref(%d) = %v, want %d, %t", seed, k, got, v, held)
			}
		}
		n := 0
		tab.each(func(k uint64, v *uint32) bool {
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

func TestFlatGivesMemoryBack(t *testing.T) {
	var tab flat[uint32]
	for k := range uint64(100_000) {
		*tab.insertKey(k + 1) = 1
	}
	full := tab.bytes()
	for k := range uint64(99_990) {
		tab.deleteKey(k + 1)
	}
	if tab.bytes() > full/1000 {
		t.Errorf("%d bytes for %d keys, %d when full", tab.bytes(), tab.len(), full)
	}
	for k := range uint64(100_000) {
		if got := tab.find(k+1) != nil; got != (k >= 99_990) {
			t.Fatalf("key %d: %t", k, got)
		}
	}
}

func TestFlatWalkStops(t *testing.T) {
	var tab flat[uint32]
	for k := range uint64(5) {
		tab.insertKey(k + 1)
	}
	for want := 1; want < 5; want++ {
		n := 0
		tab.each(func(uint64, *uint32) bool { n++; return n < want })
		if n != want {
			t.Errorf("walked %d keys, want %d", n, want)
		}
	}
}
