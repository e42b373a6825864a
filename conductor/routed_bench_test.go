package conductor

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// BenchmarkRouted compares reports and queries of the same prompts, in one run:
//
//	go test ./conductor -run xxx -bench Routed -benchtime 2s
//
// Prompts have 8,192 tokens. Eight of 128 instances have the first half of each prompt, one has all of it. Of the
// reports for an instance that has nothing, each makes 512 blocks expected.
func BenchmarkRouted(b *testing.B) {
	const tokens, size, prompts, instances, holders = 8192, 16, 32, 128, 8
	c := New(Options{HashSeed: 1337, Log: zerolog.Nop(), ExpectedBytes: 64 << 20})
	defer c.Close()
	feeds := handedTo(c)
	var engines []string
	for i := range instances {
		r := registration.Registration{Endpoint: fmt.Sprintf("tcp://i%d:1", i), Type: registration.TypeVLLM, Model: "m",
			Instance: fmt.Sprintf("i%d", i), BlockSize: size}
		must.Succeed(b, c.Register(r, ingest.RegisterOptions{}))
		engines = append(engines, r.Instance)
	}
	asked := make([][]uint32, prompts)
	for p := range asked {
		for i := range tokens {
			asked[p] = append(asked[p], uint32(p*7919+i*31)%150_000)
		}
		store := events.Event{Kind: events.Stored, Tokens: asked[p], BlockSize: size, BaseBlock: -1, Group: -1}
		for i := range tokens / size {
			store.Hashes = append(store.Hashes, uint64(p)<<32|uint64(i))
		}
		feeds.apply(engines[instances-1], store)
		half := store
		half.Hashes, half.Tokens = store.Hashes[:len(store.Hashes)/2], store.Tokens[:tokens/2]
		for _, s := range engines[:holders] {
			feeds.apply(s, half)
		}
	}
	v := c.For(Reader{})
	query := func(name string, expected bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			q := match.Query{Model: "m", BlockSize: size, Expected: expected}
			for i := 0; b.Loop(); i++ {
				q.Tokens = asked[i%prompts]
				must.Succeed(b, v.Answer(&q, func(*match.Answer) {}))
			}
		})
	}
	routed := func(name, target string, vary bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := match.Routed{Query: match.Query{Model: "m", BlockSize: size}, Target: target, Rank: match.AnyRank}
			own := make([]uint32, tokens)
			for i := 0; b.Loop(); i++ {
				r.Tokens = asked[i%prompts]
				if vary { // a quarter of the prompt is new
					copy(own, r.Tokens)
					own[tokens*3/4] = uint32(i)
					r.Tokens = own
				}
				_, err := v.Routed(&r)
				must.Succeed(b, err)
			}
		})
	}
	candidates := func(name string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q := match.Query{Model: "m", Tokens: asked[i%prompts], Keep: true}
				must.Succeed(b, Candidates(v, &q, func(*match.Answer, registration.Meaning) {}))
			}
		})
	}
	byID := func(name, target string) {
		var ids [prompts]string
		for p := range ids {
			q := match.Query{Model: "m", Tokens: asked[p], Keep: true}
			must.Succeed(b, Candidates(v, &q, func(a *match.Answer, _ registration.Meaning) { ids[p] = match.FormatAnswerID(a.ID) }))
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, err := v.Routed(&match.Routed{AnswerID: ids[i%prompts], Target: target, Rank: match.AnyRank})
				must.Succeed(b, err)
			}
		})
	}
	query("query", false)
	query("query/expected/none", true)
	candidates("candidates")
	byID("by id/has all", fmt.Sprint("i", instances-1))
	byID("by id/has half", "i0")
	byID("by id/has nothing", "i50")
	routed("routed/has all", fmt.Sprint("i", instances-1), false)
	routed("routed/has half", "i0", false)
	routed("routed/has nothing", "i50", false)
	routed("routed/new blocks", "i50", true)
	for i := range 10_000 {
		own := append([]uint32(nil), asked[i%prompts]...)
		own[tokens*3/4] = uint32(i)
		_, err := v.Routed(&match.Routed{Query: match.Query{Model: "m", BlockSize: size, Tokens: own}, Target: fmt.Sprint("i", i%12),
			Rank: match.AnyRank})
		must.Succeed(b, err)
	}
	query("query/while expected", false)
	query("query/expected/many", true)
}
