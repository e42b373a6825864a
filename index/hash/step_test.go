package hash

import (
	"math/rand/v2"
	"testing"
)

func TestStepperIsNext(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		s := Scheme{Seed: rng.Uint64()}
		if rng.IntN(2) == 0 {
			s = DefaultScheme()
		}
		parent, local := rng.Uint64(), rng.Uint64()
		if got, want := s.Stepper().Next(parent, local), s.Next(parent, local); got != want {
			t.Fatalf("seed %d: next of %d and %d is %d, want %d", s.Seed, parent, local, got, want)
		}
	}
}
