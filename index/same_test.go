package index

import (
	"math/rand/v2"
	"testing"
)

// TestSameWords compares lists that differ in one place or in none.
func TestSameWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		a := make([]uint64, 1+rng.IntN(maxPiece))
		for i := range a {
			a[i] = rng.Uint64()
		}
		b := append([]uint64(nil), a...)
		want := rng.IntN(len(a) + 1)
		if want < len(a) {
			b[want] ^= 1 << rng.IntN(64)
		}
		from := rng.IntN(want + 1)
		if from == len(a) {
			continue
		}
		if got := from + sameWords(&a[from], &b[from], len(a)-from); got != want {
			t.Fatalf("%d words from %d on are the same up to %d, want %d", len(a), from, got, want)
		}
	}
}
