package conductor

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// BenchmarkQueryProfile asks for prompts of 8,192 tokens in blocks of 16 whose first
// half 8 of 128 instances hold. Of the second half a pool holds all: announced, so that
// it has its keys, or not, so that it is found by the digests of the engines alone.
func BenchmarkQueryProfile(b *testing.B) {
	const tokens, size, prompts, instances, holders = 8192, 16, 32, 128, 8
	run := func(b *testing.B, algorithm string, announced bool, memo *hash.Memo) {
		c := New(Options{HashSeed: 1337, Log: zerolog.Nop(), Memo: memo})
		defer c.Close()
		feeds := handedTo(c)
		settings := hash.Settings{Strategy: hash.StrategyVLLM, Algorithm: algorithm, PythonHashSeed: "0",
			IndexProjection: hash.ProjectionLow64}
		register := func(typ, instance string) string {
			must.Succeed(b, c.Register(registration.Registration{Endpoint: "tcp://" + instance + ":1", Type: typ, Model: "m",
				Instance: instance, BlockSize: size, Profile: settings}, ingest.RegisterOptions{}))
			return instance
		}
		pool := register(registration.TypeMooncake, "pool")
		var engines []string
		for i := range instances {
			engines = append(engines, register(registration.TypeVLLM, fmt.Sprintf("i%d", i)))
		}
		profile, err := hash.NewProfile(settings)
		must.Succeed(b, err)
		chain, err := profile.NewDigestChain("", "")
		must.Succeed(b, err)
		asked := make([][]uint32, prompts)
		for p := range asked {
			for i := range tokens {
				asked[p] = append(asked[p], uint32(p*7919+i*31)%150_000)
			}
			chain.Reset(asked[p], size)
			store := events.Event{Kind: events.Stored, Tokens: asked[p], BlockSize: size, BaseBlock: -1, Group: -1}
			for i := range chain.Len() {
				store.Hashes = append(store.Hashes, chain.At(i))
			}
			if announced {
				feeds.apply(engines[instances-1], store)
			}
			half := store
			half.Hashes, half.Tokens = store.Hashes[:len(store.Hashes)/2], store.Tokens[:tokens/2]
			for _, s := range engines[:holders] {
				feeds.apply(s, half)
			}
			for _, h := range store.Hashes[len(store.Hashes)/2:] {
				feeds.apply(pool, events.Event{Kind: events.Stored, Envelope: true, Medium: "cpu",
					ObjectKey: fmt.Sprintf("m@tp_rank:0@%064x", h),
					BaseBlock: 0, Group: -1})
			}
			if announced { // the one that told of all goes on
				feeds.apply(engines[instances-1], events.Event{Kind: events.Removed, Hashes: store.Hashes, Group: -1})
			}
		}
		ask := func(p int) {
			c.Answer(&match.Query{Model: "m", BlockSize: size, Tokens: asked[p]}, func(ans *match.Answer) {
				if got := ans.Rows[0].Longest; len(ans.Rows) != instances || got != tokens/size {
					b.Fatalf("%d rows, the first has %d blocks", len(ans.Rows), got)
				}
			})
		}
		for range 3 {
			for p := range asked {
				ask(p)
			}
			if memo != nil {
				memo.Wait()
			}
		}
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			ask(i % prompts)
		}
	}
	b.Run("announced", func(b *testing.B) { run(b, hash.AlgorithmSHA256CBOR, true, nil) })
	for _, algorithm := range []string{hash.AlgorithmSHA256CBOR, hash.AlgorithmSHA256, hash.AlgorithmXXHashCBOR, hash.AlgorithmXXHash} {
		b.Run("waiting/"+algorithm+"/memo=off", func(b *testing.B) { run(b, algorithm, false, nil) })
		b.Run("waiting/"+algorithm+"/memo=warm", func(b *testing.B) {
			m, err := hash.NewMemo(64 << 20)
			must.Succeed(b, err)
			defer m.Close()
			run(b, algorithm, false, m)
		})
	}
}
