package hash

import (
	"math/rand/v2"
	"testing"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

func TestChainTexts(t *testing.T) {
	f := func(lora, salt string, want bool) {
		t.Helper()
		for _, s := range everyProfile() {
			p, err := NewProfile(s)
			must.Succeed(t, err)
			c, err := p.NewDigestChain(lora, salt)
			if (err == nil) != want || (c != nil) != want {
				t.Errorf("lora %q, salt %q: %v", lora, salt, err)
			}
		}
	}
	f("", "", true)
	f("模型", "🚀", true)
	f("\xff", "", false)
	f("", "\xff", false)
	f("\xc0\xaf", "", false)     // overlong
	f("", "\xed\xa0\x80", false) // a surrogate

	if c, err := (Profile{}).NewDigestChain("", ""); err == nil || c != nil {
		t.Error("a chain of no profile")
	}
	var none DigestChain
	none.Reset(span(1, 8), 4)
	if none.Len() != 0 {
		t.Error("a chain under no profile has blocks")
	}

	c := chainOf(t, vllm(AlgorithmSHA256, "0", ""), "", "", 4, span(1, 8))
	want := c.At(1)
	if c.SetProfile(c.profile, "\xff", "") == nil || c.Len() != 2 || c.At(1) != want {
		t.Error("an error changed the chain")
	}
}

// Only the requested blocks are hashed.
func TestDigestsAreLazy(t *testing.T) {
	c := chainOf(t, vllm(AlgorithmSHA256, "0", ""), "", "", 4, span(1, 403))
	f := func(i, computed int) {
		t.Helper()
		c.At(i)
		if c.Computed() != computed {
			t.Errorf("%d computed, want %d", c.Computed(), computed)
		}
	}
	if c.Len() != 100 || c.Computed() != 0 {
		t.Errorf("%d blocks, %d computed", c.Len(), c.Computed())
	}
	f(0, 1)
	f(2, 3)
	f(0, 3)
	defer func() {
		if recover() == nil {
			t.Error("block 100 of 100 has a digest")
		}
	}()
	c.At(100)
}

func TestDigestsAllocate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	tokens := randomTokens(rng, 4096)
	for _, s := range everyProfile() {
		c := chainOf(t, s, "adapter-A", "tenant-salt", 16, tokens)
		p := c.profile
		all := func() {
			must.Succeed(t, c.SetProfile(p, "adapter-A", "tenant-salt"))
			for _, size := range []int{1, 16, 128} {
				c.Reset(tokens, size)
				for i := range c.Len() {
					c.At(i)
				}
			}
			parent := *c.Digest(0)
			c.ResetBehind(parent, tokens[128:], 128)
			c.At(c.Len() - 1)
		}
		all()
		if n := alloctest.PerRun(5, all); n != 0 {
			t.Errorf("%+v: %v allocations", s, n)
		}
	}
}

// Tokens as large models have them, of a vocabulary of 150,000.
func BenchmarkDigests(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	tokens := make([]uint32, 8192)
	for i := range tokens {
		tokens[i] = rng.Uint32N(150_000)
	}
	f := func(name string, s Settings) {
		b.Run(name, func(b *testing.B) {
			c := chainOf(b, s, "", "", 16, tokens)
			c.At(c.Len() - 1)
			b.ReportAllocs()
			blocks := 0
			for b.Loop() {
				c.Reset(tokens, 16)
				c.At(c.Len() - 1)
				blocks += c.Len()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
		})
	}
	f("algorithm=sha256_cbor", vllm(AlgorithmSHA256CBOR, "0", ""))
	f("algorithm=sha256", vllm(AlgorithmSHA256, "0", ""))
	f("algorithm=xxhash_cbor", vllm(AlgorithmXXHashCBOR, "0", ""))
	f("algorithm=xxhash", vllm(AlgorithmXXHash, "0", ""))
	f("strategy=sglang", sglang(StrategySGLang))
	f("strategy=sglang_bigram", sglang(StrategySGLangBigram))
}

// What the hash alone costs of a block as BenchmarkDigests has them: the rest is ours.
func BenchmarkSums(b *testing.B) {
	f := func(name string, a algorithm, size int) {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, size)
			var d Digest
			for b.Loop() {
				d = a.sum(buf)
				copy(buf, d[:])
			}
		})
	}
	f("sha256/bytes=96", sha256Pickle, 96)
	f("sha256/bytes=108", sha256Pickle, 108)
	f("sha256/bytes=123", sha256Pickle, 123)
	f("xxh3-128/bytes=92", xxhashPickle, 92)
	f("xxh3-128/bytes=107", xxhashPickle, 107)
}

// TestGiantPromptsAreNotKept holds that a chain keeps the memory of usual prompts alone.
func TestGiantPromptsAreNotKept(t *testing.T) {
	p, err := NewProfile(vllm("xxhash_cbor", "0", ""))
	must.Succeed(t, err)
	var digests DigestChain
	must.Succeed(t, digests.SetProfile(p, "", ""))
	var chain Chain
	for _, n := range []int{keepHashes + 1, 1000} {
		tokens := make([]uint32, n)
		chain.Reset(DefaultScheme(), tokens, 1, 0)
		digests.Reset(tokens, 1)
		chain.At(n - 1)
		digests.At(n - 1)
		chain.Reset(DefaultScheme(), nil, 1, 0)
		digests.Reset(nil, 1)
		if giant := n > keepHashes; giant != (cap(chain.seq) == 0) || giant != (cap(digests.digests) == 0) {
			t.Errorf("of %d blocks, room for %d hashes and %d digests is kept", n, cap(chain.seq), cap(digests.digests))
		}
	}
}
