package hash

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestWindowVectors(t *testing.T) {
	f := func(tokens []uint32, size, ahead int, items [][]uint64, want ...uint64) {
		t.Helper()
		if got := DefaultScheme().AppendWindows(nil, tokens, size, ahead, items); !slices.Equal(got, want) {
			t.Errorf("windows of %d, size %d, %d ahead, items %d: got %d, want %d", tokens, size, ahead, items, got, want)
		}
	}
	f(span(0, 3), 4, 0, [][]uint64{{42}}, 18280081842874931122)
	f(span(0, 3), 4, 0, [][]uint64{{7, 3}}, 12534961123884847936)
	f(span(0, 3), 4, 0, [][]uint64{{3, 7}}, 12534961123884847936)
	f(span(0, 3), 2, 0, [][]uint64{{42}, nil}, 6100948656312251355, 10731123482949079648)
	f(span(0, 3), 2, 0, [][]uint64{{42}}, 6100948656312251355, 10731123482949079648)
	f(span(0, 3), 4, 0, [][]uint64{{}}, 9143094415614847814)
	f(span(0, 3), 4, 0, nil, 9143094415614847814)
	f(make([]uint32, 4), 4, 0, [][]uint64{{15598240240360918167}}, 4731370360480141969) // as in HASH-4

	f(span(10, 14), 2, 1, nil, 5959138341449004422, 13917772031453556700)
	f(span(10, 13), 2, 1, nil, 5959138341449004422)
	f(span(10, 15), 2, 1, nil, 5959138341449004422, 13917772031453556700)
	f(span(10, 11), 2, 1, nil)
	f(span(10, 14), 0, 1, nil)
	f(span(10, 14), -1, 1, nil)

	// Numbers are unsigned: the largest comes last.
	a := DefaultScheme().LocalWithItems(span(0, 3), []uint64{1 << 63, 1})
	if b := hashWithItems(span(0, 3), []uint64{1, 1 << 63}, DefaultSeed); a != b {
		t.Errorf("got %d, want %d", a, b)
	}
}

// A frontend that knows the placeholders may put a token of its own there for each
// image; engines get a plain prompt then.
func TestPlaceholderVectors(t *testing.T) {
	pad := func(item uint64) uint32 { return uint32(1_000_000 + item&(1<<30-1)) }
	if got := pad(1<<30 | 0xcafe); got != 1051966 {
		t.Errorf("got %d", got)
	}
	p := pad(9533257059414191570)
	got := DefaultScheme().AppendLocals(nil, []uint32{10, 20, p, p}, 4)
	if p != 49115154 || !slices.Equal(got, []uint64{71881790567603244}) {
		t.Errorf("placeholder %d: got %d", p, got)
	}
}

// Windows says what Locals does where nothing is special, and leaves what it is
// given alone.
func TestWindowsOfPlainBlocks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		tokens := make([]uint32, rng.IntN(3*stackTokens))
		for i := range tokens {
			tokens[i] = rng.Uint32()
		}
		size, s := rng.IntN(2*stackTokens), Scheme{rng.Uint64()}
		if got, want := s.AppendWindows(nil, tokens, size, 0, nil), s.AppendLocals(nil, tokens, size); !slices.Equal(got, want) {
			t.Fatalf("size %d of %d: got %d, want %d", size, len(tokens), got, want)
		}
		items := []uint64{rng.Uint64(), rng.Uint64(), rng.Uint64()}
		given := slices.Clone(items)
		one := s.LocalWithItems(tokens, items)
		if !slices.Equal(items, given) {
			t.Fatalf("items are %d now, were %d", items, given)
		}
		rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		if other := s.LocalWithItems(tokens, items); other != one || one == s.Local(tokens) {
			t.Fatalf("%d in another order: %d and %d", items, one, other)
		}
	}
}
