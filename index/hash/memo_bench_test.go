package hash

import (
	"math/rand/v2"
	"testing"
)

// promptTokens are tokens as large models have them, of a vocabulary of 150,000.
func promptTokens(n int) []uint32 {
	rng := rand.New(rand.NewPCG(1, 1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(150_000)
	}
	return tokens
}

// A prompt of 8,192 tokens in 16-token blocks: without a memo, with one that has
// never seen it, and with one that has.
func BenchmarkMemo(b *testing.B) {
	tokens := promptTokens(8192)
	f := func(name string, s Settings) {
		b.Run(name+"/memo=none", func(b *testing.B) { digestPrompts(b, s, nil, func() []uint32 { return tokens }) })
		b.Run(name+"/memo=cold", func(b *testing.B) {
			fresh := append([]uint32(nil), tokens...)
			digestPrompts(b, s, newMemo(b, 64<<20), func() []uint32 {
				fresh[0]++ // every digest is another
				return fresh
			})
		})
		b.Run(name+"/memo=warm", func(b *testing.B) {
			m := newMemo(b, 64<<20)
			c := chainOf(b, s, "", "", 16, nil)
			c.SetMemo(m)
			twice(c, tokens)
			digestPrompts(b, s, m, func() []uint32 { return tokens })
		})
	}
	f("algorithm=sha256_cbor", vllm(AlgorithmSHA256CBOR, "0", ""))
	f("algorithm=sha256", vllm(AlgorithmSHA256, "0", ""))
	f("algorithm=xxhash_cbor", vllm(AlgorithmXXHashCBOR, "0", ""))
	f("algorithm=xxhash", vllm(AlgorithmXXHash, "0", ""))
	f("strategy=sglang", sglang(StrategySGLang))
	f("strategy=sglang_bigram", sglang(StrategySGLangBigram))
}

// twice makes a prompt known to the chain's memo.
func twice(c *DigestChain, tokens []uint32) {
	for range 2 {
		c.Reset(tokens, 16)
		c.At(c.Len() - 1)
	}
	c.memo.Wait()
}

// digestPrompts computes all digests of prompts of 16-token blocks.
func digestPrompts(b *testing.B, s Settings, m *Memo, prompt func() []uint32) {
	c := chainOf(b, s, "", "", 16, nil)
	c.SetMemo(m)
	b.ReportAllocs()
	blocks := 0
	for b.Loop() {
		c.Reset(prompt(), 16)
		c.At(c.Len() - 1)
		blocks += c.Len()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}

// Prompts that are known to a memo too large for the processor's caches, in turn.
func BenchmarkMemoSpread(b *testing.B) {
	m := newMemo(b, 64<<20)
	s := vllm(AlgorithmSHA256CBOR, "0", "")
	prompts := make([][]uint32, 256)
	c := chainOf(b, s, "", "", 16, nil)
	c.SetMemo(m)
	for i := range prompts {
		prompts[i] = promptTokens(8192)
		prompts[i][0] += uint32(i)
		twice(c, prompts[i])
	}
	at := 0
	before := m.Stats()
	digestPrompts(b, s, m, func() []uint32 {
		at++
		return prompts[at%len(prompts)]
	})
	st := m.Stats()
	b.ReportMetric(100*float64(st.Hits-before.Hits)/float64(st.Hits-before.Hits+st.Misses-before.Misses), "%hits")
}

// A prompt that starts as none before it; one block is asked for.
func BenchmarkMemoMiss(b *testing.B) {
	tokens := promptTokens(8192)
	f := func(name string, m *Memo) {
		b.Run(name, func(b *testing.B) {
			c := chainOf(b, vllm(AlgorithmSHA256CBOR, "0", ""), "", "", 16, nil)
			c.SetMemo(m)
			b.ReportAllocs()
			for b.Loop() {
				tokens[0]++
				c.Reset(tokens, 16)
				c.At(0)
			}
		})
	}
	f("memo=none", nil)
	f("memo=cold", newMemo(b, 64<<20))
}
