package conductor

import (
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

const foreignSize = 16

// foreignSalt is a Conductor with one engine that has cached the first prompt under the salt "theirs",
// and another prompt under "mine".
func foreignSalt(t testing.TB) (c *Conductor, prompts [2][]uint32) {
	c = New(Options{HashSeed: 1337, Log: zerolog.Nop()})
	feeds := handedTo(c)
	must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://i:1", Type: registration.TypeVLLM, Model: "m", Instance: "i",
		BlockSize: foreignSize}, ingest.RegisterOptions{}))
	prompt := func(first uint32) (tokens []uint32) {
		for i := range uint32(2048) {
			tokens = append(tokens, first+i)
		}
		return tokens
	}
	prompts = [2][]uint32{prompt(1), prompt(1_000_000)}
	for salt, tokens := range map[string][]uint32{"theirs": prompts[0], "mine": prompt(5_000_000)} {
		store := events.Event{Kind: events.Stored, Tokens: tokens, BlockSize: foreignSize, BaseBlock: -1, Group: -1, Salt: &salt}
		for i := range len(tokens) / foreignSize {
			store.Hashes = append(store.Hashes, uint64(len(salt))<<32+uint64(i))
		}
		feeds.apply("i", store)
	}
	return c, prompts
}

// askSalted returns how many blocks of a prompt the engine has under a salt.
func askSalted(t testing.TB, v View, salt string, prompt []uint32) (blocks int) {
	must.Succeed(t, v.Answer(&match.Query{Model: "m", BlockSize: foreignSize, Salt: salt, Tokens: prompt}, func(a *match.Answer) {
		blocks = a.Rows[0].Longest
	}))
	return blocks
}

// countingChain notes how much of a prompt a query hashes.
type countingChain struct {
	hash.Chain
	locals, keys int
}

func (c *countingChain) Locals(n int) []uint64 {
	c.locals = max(c.locals, n)
	return c.Chain.Locals(n)
}

func (c *countingChain) At(i int) uint64 {
	c.keys++
	return c.Chain.At(i)
}

// TestForeignSaltIsNotRead asks under one salt for a prompt that is cached under another, and for one
// that is not cached at all. Either query ends at the first block, and hashes nothing behind it: so the
// time of a query does not tell whether the prompt is cached. BenchmarkForeignSalt has the times.
func TestForeignSaltIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no other goroutine runs meanwhile
		c, prompts := foreignSalt(t)
		defer c.Close()
		view := c.For(Reader{Tenants: scope.Tenants{"default"}})
		if theirs, mine := askSalted(t, view, "theirs", prompts[0]), askSalted(t, view, "mine", prompts[0]); theirs != 2048/foreignSize ||
			mine != 0 {
			t.Fatalf("%d blocks under their salt, %d under mine", theirs, mine)
		}
		d := c.catalog.Deployment(scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: foreignSize})
		asked := func(salt string, prompt []uint32) (locals, keys int) {
			chain := &countingChain{}
			chain.Reset(d.Scheme, prompt, foreignSize, 0)
			var m index.Match
			d.Index.Match(index.Lookup{Constant: d.Names.Constant(scope.Variant{Salt: salt}), Chain: chain}, nil, &m)
			return chain.locals, chain.keys
		}
		for i, prompt := range prompts {
			if locals, keys := asked("mine", prompt); locals != 1 || keys != 0 {
				t.Errorf("prompt %d: %d local hashes and %d keys are asked for", i, locals, keys)
			}
		}
		if locals, _ := asked("theirs", prompts[0]); locals != 2048/foreignSize {
			t.Errorf("under their salt %d local hashes are asked for", locals)
		}
	})
}

// BenchmarkForeignSalt asks under one salt for a prompt that is cached under another, and for one that
// is not cached at all. Both take the same time.
func BenchmarkForeignSalt(b *testing.B) {
	c, prompts := foreignSalt(b)
	defer c.Close()
	view := c.For(Reader{Tenants: scope.Tenants{"default"}})
	for i, name := range []string{"cached", "not-cached"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				askSalted(b, view, "mine", prompts[i])
			}
		})
	}
}
