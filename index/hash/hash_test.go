package hash

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"

	"github.com/zeebo/xxh3"
)

// span returns the tokens first..last.
func span(first, last uint32) []uint32 {
	var out []uint32
	for t := first; t <= last; t++ {
		out = append(out, t)
	}
	return out
}

func TestLocalVectors(t *testing.T) {
	f := func(seed uint64, tokens []uint32, blockSize int, want ...uint64) {
		t.Helper()
		if got := (Scheme{seed}).AppendLocals(nil, tokens, blockSize); !slices.Equal(got, want) {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	f(1337, span(1, 12), 4, 14643705804678351452, 16777012769546811212, 483935686894639516)
	f(0, span(1, 12), 4, 8052976908588476977, 13852901005659965728, 12087364272738490135)
	f(1337, []uint32{11, 22, 33, 44, 55, 66, 77, 88}, 4, 4117275816416024698, 6081346995852963768)
	f(1337, span(0, 3), 4, 9143094415614847814)
	f(1337, span(1, 16), 4, 14643705804678351452, 16777012769546811212, 483935686894639516, 135165725823939817)
	f(1337, span(1, 16), 16, 16863443419780771464)
	f(1337, span(0, 63), 64, 3480597578098033343)
	f(1337, span(1, 100), 100, 17290671210506760261)
	// A partial block and an impossible size give nothing.
	f(1337, span(0, 6), 4, 9143094415614847814)
	f(1337, span(0, 2), 4)
	f(1337, nil, 4)
	f(1337, span(0, 3), 0)
	f(1337, span(0, 3), -4)
}

func TestChainVectors(t *testing.T) {
	f := func(seed uint64, locals []uint64, want ...uint64) {
		t.Helper()
		s := Scheme{seed}
		if got := s.AppendChain(nil, locals); !slices.Equal(got, want) {
			t.Errorf("chain of %d = %d, want %d", locals, got, want)
		}
		in := slices.Clone(locals)
		if got := s.AppendChain(in[:0], in); !slices.Equal(got, want) {
			t.Errorf("chain of %d in place = %d, want %d", locals, got, want)
		}
	}
	f(1337, []uint64{11, 22, 33}, 11, 750553365844651409, 3257565445809651757)
	f(1337, []uint64{11, 12, 13, 14}, 11, 10497221074644697006, 8340346278797266542, 4128529435866013841)
	f(1337, nil)

	g := func(seed uint64, tokens []uint32, blockSize int, want ...uint64) {
		t.Helper()
		if got := (Scheme{seed}).AppendTokenChain(nil, tokens, blockSize); !slices.Equal(got, want) {
			t.Errorf("tokens %d: got %d, want %d", tokens, got, want)
		}
	}
	g(1337, span(1, 12), 4, 14643705804678351452, 4945711292740353085, 12583592247330656132)
	g(0, span(1, 12), 4, 8052976908588476977, 4185132130981121146, 9410009423372290283)
	g(1337, span(1, 16), 4, 14643705804678351452, 4945711292740353085, 12583592247330656132, 1921452330601040443)
	g(1337, []uint32{11, 22, 33, 44, 55, 66, 77, 88}, 4, 4117275816416024698, 5947898228081096063)
	g(1337, span(0, 2), 4)
	g(1337, span(0, 2), 0)
}

func TestSeededVectors(t *testing.T) {
	f := func(lora, salt string, want uint64) {
		t.Helper()
		if got := DeriveSeed(DefaultSeed, lora, salt); got != want {
			t.Errorf("Seeded(%q, %q) = %d, want %d", lora, salt, got, want)
		}
	}
	f("", "", 1337)
	f("adapter-a", "", 8842669519798868182)
	f("", "tenant-a", 1948188790972764086)
	f("tenant-a", "", 7159698576361520314)
	f("adapter-a", "tenant-a", 10790858310771630931)
	f("alpha-7b", "", 723495307357893745)

	g := func(lora, salt string, tokens []uint32, want ...uint64) {
		t.Helper()
		if got := (Scheme{DeriveSeed(DefaultSeed, lora, salt)}).AppendLocals(nil, tokens, 4); !slices.Equal(got, want) {
			t.Errorf("locals under (%q, %q) = %d, want %d", lora, salt, got, want)
		}
	}
	g("adapter-a", "", span(0, 3), 6665157333201000639)
	g("", "tenant-a", span(0, 3), 17009624042690211646)
	g("tenant-a", "", span(0, 3), 582854293518545300)
	g("adapter-a", "tenant-a", span(0, 3), 8269515957840517240)
	g("tenant-a", "tenant-a", span(0, 3), 9856520423655295597)
	g("alpha-7b", "", span(1, 16), 16548428770143335509, 14084073444636004547, 2836154142982134789, 595180223666716772)
}

func TestXXH3Vector(t *testing.T) {
	if got := xxh3.HashSeed([]byte("test data"), 1337); got != 13226331709069118873 {
		t.Errorf("got %d", got)
	}
}

// Both ways of reading tokens agree for every length the library treats apart.
func TestByteOrders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for n := range 2*stackTokens + 3 {
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = rng.Uint32()
		}
		s := Scheme{rng.Uint64() * uint64(n%2)}
		if got, want := s.Local(tokens), localCopied(tokens, s.Seed); got != want {
			t.Fatalf("%d tokens: got %d, want %d", n, got, want)
		}
	}
	if !littleEndian {
		t.Log("big-endian host: both ways are the copying one")
	}
}

func TestLazyChain(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var c Chain
	if c.Len() != 0 {
		t.Errorf("a zero chain has %d blocks", c.Len())
	}
	for range 300 {
		tokens := make([]uint32, rng.IntN(200))
		for i := range tokens {
			tokens[i] = rng.Uint32N(1000)
		}
		size, ahead := rng.IntN(20), max(rng.IntN(24)-12, 0)
		want := DefaultScheme().AppendChain(nil, DefaultScheme().AppendWindows(nil, tokens, size, ahead, nil))
		if ahead == 0 && !slices.Equal(want, DefaultScheme().AppendTokenChain(nil, tokens, size)) {
			t.Fatalf("%d tokens, size %d: windows without a look-ahead differ from blocks", len(tokens), size)
		}
		c.Reset(DefaultScheme(), tokens, size, ahead)
		if c.Len() != len(want) {
			t.Fatalf("%d tokens, size %d: %d blocks, want %d", len(tokens), size, c.Len(), len(want))
		}
		top := 0
		for range 2 * c.Len() {
			i := rng.IntN(c.Len())
			top = max(top, i+1)
			if got := c.At(i); got != want[i] {
				t.Fatalf("block %d = %d, want %d", i, got, want[i])
			}
			if c.Computed() != top {
				t.Fatalf("%d hashes computed, want %d", c.Computed(), top)
			}
		}
	}
}

func TestChainAllocations(t *testing.T) {
	tokens := make([]uint32, 4096)
	locals, seq := make([]uint64, 0, 4096), make([]uint64, 0, 4096)
	var c Chain
	f := func(size int) {
		t.Helper()
		s := DefaultScheme()
		if n := alloctest.PerRun(10, func() {
			locals = s.AppendLocals(locals[:0], tokens, size)
			seq = s.AppendChain(seq[:0], locals)
			seq = s.AppendTokenChain(seq[:0], tokens, size)
			c.Reset(s, tokens, size, 0)
			for i := range c.Len() {
				c.At(i)
			}
			localCopied(tokens[:min(size, stackTokens)], s.Seed)
		}); n != 0 {
			t.Errorf("block size %d: %v allocations", size, n)
		}
	}
	f(1)
	f(4)
	f(16)
	f(64)
	f(128)
	f(512)
}

func BenchmarkTokens(b *testing.B) {
	f := func(name string, size int) {
		b.Run(name, func(b *testing.B) {
			tokens := span(1, 8192)
			dst := make([]uint64, 0, 8192)
			b.SetBytes(int64(4 * len(tokens)))
			b.ReportAllocs()
			for b.Loop() {
				dst = DefaultScheme().AppendTokenChain(dst[:0], tokens, size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(dst)), "ns/block")
		})
	}
	f("block=16", 16)
	f("block=64", 64)
	f("block=128", 128)
	f("block=512", 512)
}

func BenchmarkNext(b *testing.B) {
	var seq uint64
	for b.Loop() {
		seq = DefaultScheme().Next(seq, 1)
	}
}
