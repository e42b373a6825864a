package conductor

import (
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/journal"
	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/internal/must"
)

// TestForeignSaltTakesNoTime compares the times of queries for prompts that are cached under
// another salt with those of prompts that are not cached at all. The chance that one of either kind
// is slower is a half, as far as can be measured.
func TestForeignSaltTakesNoTime(t *testing.T) {
	if payload.Spoils {
		t.Skip("a race build measures the detector")
	}
	const size = 16
	c := New(Options{HashSeed: 1337, Log: zerolog.Nop()})
	defer c.Close()
	c.open = func(Registration, bool, *journal.Source, func(stream.State)) feed { return idle{make(chan struct{})} }
	must.Succeed(t, c.Register(Registration{Endpoint: "tcp://i:1", Type: TypeVLLM, Model: "m", Instance: "i", BlockSize: size}, RegisterOptions{}))
	engine := c.sources[Key{Instance: "i", Tenant: DefaultTenant}]
	prompt := func(first uint32) (tokens []uint32) {
		for i := range uint32(2048) {
			tokens = append(tokens, first+i)
		}
		return tokens
	}
	prompts := [2][]uint32{prompt(1), prompt(1_000_000)}
	for _, salt := range []string{"theirs", "mine"} {
		store := events.Event{Kind: events.Stored, Tokens: prompts[0], BlockSize: size, BaseBlock: -1, Group: -1, Salt: &salt}
		if salt == "mine" {
			store.Tokens = prompt(5_000_000) // the context is there
		}
		for i := range len(store.Tokens) / size {
			store.Hashes = append(store.Hashes, uint64(len(salt))<<32+uint64(i))
		}
		c.notify(engine.take(stream.Step{Kind: stream.Apply, Batch: events.Batch{Events: []events.Event{store}, Rank: -1}}))
	}
	held := func(salt string) (blocks int) {
		c.Answer(&Query{Model: "m", BlockSize: size, Salt: salt, Tokens: prompts[0]}, func(a *Answer) { blocks = a.Rows[0].Longest })
		return blocks
	}
	if held("theirs") != 2048/size || held("mine") != 0 {
		t.Fatalf("%d blocks under their salt, %d under mine", held("theirs"), held("mine"))
	}
	const rounds = 4000
	var took [2][]time.Duration
	view := c.For(Reader{Tenants: scope.Tenants{"default"}})
	for i := range 2 * rounds {
		kind := i % 2 // cached under another salt, not cached
		q := Query{Model: "m", BlockSize: size, Salt: "mine", Tokens: prompts[kind]}
		begun := time.Now()
		if err := view.Answer(&q, func(a *Answer) {
			if a.Rows[0].Longest > 0 {
				t.Error("a foreign salt matched")
			}
		}); err != nil {
			t.Fatal(err)
		}
		took[kind] = append(took[kind], time.Since(begun))
	}
	// The rank test of Mann and Whitney, by the share of pairs in which the first is slower.
	slices.Sort(took[1])
	slower := 0.0
	for _, d := range took[0] {
		below, _ := slices.BinarySearch(took[1], d)
		above, _ := slices.BinarySearch(took[1], d+1)
		slower += float64(below) + float64(above-below)/2
	}
	if share := slower / rounds / rounds; share < 0.4 || share > 0.6 {
		t.Errorf("a prompt of another salt is slower than one that is not cached in %.0f %% of pairs", 100*share)
	}
}
