package ingest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// placedEvent is an event of 64 blocks that an engine has announced on its device.
type placedEvent struct {
	name   string
	medium string
	pool   bool // the event is a pool's, else the engine's
	tokens bool
	salts  []string // the device has blocks of each; the event is about the last one
}

var placements = []placedEvent{
	{name: "device", medium: "GPU", tokens: true},
	{name: "device, 4 salts", medium: "GPU", tokens: true, salts: []string{"a", "b", "c", "d"}},
	{name: "host", medium: "CPU", tokens: true},
	{name: "host, 4 salts", medium: "CPU", tokens: true, salts: []string{"a", "b", "c", "d"}},
	{name: "host, no tokens", medium: "CPU"},
	{name: "host, no tokens, 4 salts", medium: "CPU", salts: []string{"a", "b", "c", "d"}},
	{name: "host, 100 salts", medium: "CPU", tokens: true, salts: manySalts()},
	{name: "pool, no tokens", medium: "CPU", pool: true},
}

const placedBlocks = 64

// changeOf returns the change of one event of a rank.
func changeOf(s *Source, e *events.Event, rank int32) (c normalize.Change) {
	s.applier.normal.Batch(&events.Batch{Rank: -1}) // takes the buffers back
	s.applier.normal.Event(e, rank, &c)
	return c
}

// change applies one event of a rank.
func change(s *Source, e *events.Event, rank int32) {
	c := changeOf(s, e, rank)
	s.applier.applyBlocks(&c)
}

func manySalts() (all []string) {
	for i := range 100 {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// prepare returns the source of the event, the event, and its removal.
func (p placedEvent) prepare(c *server) (s *Source, stored, removed *events.Event) {
	const size = 16
	reg := registration.Registration{Type: registration.TypeVLLM, Instance: "A", Model: "m", Tenant: scope.DefaultTenant, BlockSize: size}
	s = newUnjoined(c.sources, reg)
	e := events.Event{Medium: "GPU", BlockSize: size, Group: -1}
	for i := range placedBlocks * size {
		e.Tokens = append(e.Tokens, uint32(i*7919)%150_000)
	}
	for i := range placedBlocks {
		e.Hashes = append(e.Hashes, 0x9e3779b97f4a7c15*uint64(i+1))
	}
	announced := e
	for i := range max(1, len(p.salts)) {
		if p.salts != nil {
			announced.Salt = &p.salts[i]
		}
		if announced.Hashes = e.Hashes; i < len(p.salts)-1 {
			announced.Hashes = nil
			for j := range placedBlocks {
				announced.Hashes = append(announced.Hashes, uint64(1+i*placedBlocks+j))
			}
		}
		change(s, &announced, 0)
	}
	if p.pool {
		reg.Type, reg.Instance = registration.TypeMooncake, "P"
		s = newUnjoined(c.sources, reg)
	}
	if e.Medium = p.medium; !p.tokens {
		e.Tokens = nil
	}
	return s, &e, &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: p.medium}
}

// placedRank is that of a holder which the device is not.
const placedRank = 1

// heldOf returns how many blocks the source holds as a rank.
func heldOf(s *Source, rank int32) (held int) {
	for _, ns := range s.holdings.namespaces {
		for key, h := range ns.owners {
			if key.Rank == rank {
				held += ns.Deployment.Index.BlocksOf(h.owners[0])
			}
		}
	}
	return held
}

// TestPlaceAllocates stores events whose blocks have places of their own.
func TestPlaceAllocates(t *testing.T) {
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			c := newServer(serverOptions{GhostBytes: 1 << 20})
			defer c.Close()
			s, stored, removed := p.prepare(c)
			change(s, stored, placedRank)
			if held := heldOf(s, placedRank); held != placedBlocks {
				t.Errorf("%d blocks are held, want %d", held, placedBlocks)
			}
			// An owner set and what remembers its transitions may be new.
			if n := alloctest.PerRun(100, func() {
				change(s, removed, placedRank)
				change(s, stored, placedRank)
			}); n > 4 {
				t.Errorf("%v allocations an event of %d blocks", n, placedBlocks)
			}
		})
	}
}

// TestPlaceForgottenBlocks holds that tokens place blocks below the device after some have left it,
// whether or not the names of those are kept.
func TestPlaceForgottenBlocks(t *testing.T) {
	for _, ghosts := range []int64{0, 1 << 20} {
		c := newServer(serverOptions{GhostBytes: ghosts})
		defer c.Close()
		other, stored, removed := placedEvent{medium: "CPU", tokens: true}.prepare(c)
		s := newUnjoined(c.sources, registration.Registration{
			Type: registration.TypeVLLM, Instance: "B", Model: "m", Tenant: scope.DefaultTenant,
			BlockSize: 16})
		for n := 0; n < placedBlocks; n += 4 {
			change(other, &events.Event{Kind: events.Removed, Hashes: removed.Hashes[n:][:2], Medium: "GPU"}, 0)
		}
		change(s, stored, 0)
		var chain hash.Chain
		chain.Reset(c.catalog.IndexOptions().Scheme, stored.Tokens, 16, 0)
		var m index.Match
		s.holdings.namespaces[0].Deployment.Index.Match(index.Lookup{Chain: &chain}, nil, &m)
		if held := heldOf(s, 0); m.Blocks != placedBlocks || held != placedBlocks {
			t.Errorf("with %d bytes for ghosts %d blocks are found and %d held, want %d", ghosts, m.Blocks, held, placedBlocks)
		}
	}
}

// TestPlaceBlocksThatWaitElsewhere holds that tokens place blocks that another medium of the source has
// by their hashes alone.
func TestPlaceBlocksThatWaitElsewhere(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	_, stored, _ := placedEvent{medium: "CPU", tokens: true}.prepare(newServer(serverOptions{}))
	s := newUnjoined(c.sources, registration.Registration{
		Type: registration.TypeVLLM, Instance: "B", Model: "m", Tenant: scope.DefaultTenant,
		BlockSize: 16})
	change(s, &events.Event{Kind: events.Stored, Hashes: stored.Hashes, Medium: "STORAGE", BlockSize: 16}, 1)
	change(s, stored, 2)
	var chain hash.Chain
	chain.Reset(c.catalog.IndexOptions().Scheme, stored.Tokens, 16, 0)
	var m index.Match
	s.holdings.namespaces[0].Deployment.Index.Match(index.Lookup{Chain: &chain}, nil, &m)
	for rank := range int32(3) {
		if held := heldOf(s, rank); rank > 0 && held != placedBlocks {
			t.Errorf("%d blocks as rank %d, want %d", held, rank, placedBlocks)
		}
	}
	if m.Blocks != placedBlocks || len(m.Prefixes) != 2 || m.Prefixes[0].Blocks != placedBlocks || m.Prefixes[1].Blocks != placedBlocks {
		t.Errorf("%d blocks are found, %+v; want %d on two tiers", m.Blocks, m.Prefixes, placedBlocks)
	}
}

// BenchmarkPlace stores and removes an event of blocks that an engine has announced.
func BenchmarkPlace(b *testing.B) {
	for _, p := range placements {
		b.Run(p.name, func(b *testing.B) {
			c := newServer(serverOptions{GhostBytes: 1 << 20})
			defer c.Close()
			s, stored, removed := p.prepare(c)
			b.ReportAllocs()
			for b.Loop() {
				change(s, stored, placedRank)
				change(s, removed, placedRank)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/placedBlocks, "ns/block")
		})
	}
}

// saltedSource returns an engine that has some prompts of 4 blocks, in turns under each of some salts.
func saltedSource(c *server, prompts, salts int) *Source {
	s := newUnjoined(c.sources, registration.Registration{
		Type: registration.TypeVLLM, Instance: "A", Model: "m", Tenant: scope.DefaultTenant,
		BlockSize: 16})
	for i := range prompts {
		salt := fmt.Sprint("user-", i%salts)
		e := blocksOf(uint64(1e12)+uint64(i)*4, 7+uint64(i/salts))
		e.Salt = &salt
		change(s, e, 0)
	}
	return s
}

// TestSaltsAreNotSearched counts the identities that a store below the device is looked for under, and what it
// allocates: both are the same next to 4,000 salts as next to 40.
func TestSaltsAreNotSearched(t *testing.T) {
	work := func(salts int) (probes int, allocations float64) {
		c := newServer(serverOptions{})
		defer c.Close()
		s := saltedSource(c, salts, salts)
		e := blocksOf(1, 1)
		e.Medium = "CPU"
		at, err := s.holdings.namespaces[0].Names.Resolve(&normalize.Change{Cut: e, Medium: tiers.ParseMedium("CPU"),
			Local: make([]uint64, 4)}, 0)
		must.Succeed(t, err)
		removed := &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: "CPU"}
		return len(at.Begins), alloctest.PerRun(100, func() {
			change(s, e, 0)
			change(s, removed, 0)
		})
	}
	few, little := work(40)
	many, much := work(4000)
	if few == 0 || many != few || much > little+4 {
		t.Errorf("%d identities and %v allocations next to 40 salts, %d and %v next to 4,000", few, little, many, much)
	}
}

// TestAdaptersLeave stores blocks under ever new adapters. The source lists those that the deployment
// still has, and a bounded number of others.
func TestAdaptersLeave(t *testing.T) {
	c := newServer(serverOptions{MaxContexts: 8})
	defer c.Close()
	s := saltedSource(c, 0, 1)
	for i := range uint64(2*catalog.MaxAdapters + 10) {
		e, lora := blocksOf(1+i*4, 7), fmt.Sprint("adapter-", i)
		e.LoraName = &lora
		change(s, e, 0)
		if i > 3 {
			change(s, &events.Event{Kind: events.Removed, Hashes: blocksOf(1+(i-3)*4, 7).Hashes, Medium: "GPU"}, 0)
		}
	}
	announced := s.shared.catalog.AnnouncedBy(s.Member)
	if n := len(announced); n > catalog.MaxAdapters {
		t.Errorf("%d adapters are listed", n)
	}
	blocks := s.holdings.namespaces[0].Deployment.Index.IdentityBlocks(nil)
	for _, id := range s.holdings.namespaces[0].Names.Table.All() {
		if n := blocks[id.Number]; id.Lora != "" && n > 0 && !slices.Contains(announced, id.Lora) {
			t.Errorf("adapter %s has %d blocks and is not listed", id.Lora, n)
		}
	}
}

// blocksOf returns the store of 4 blocks that begin a prompt, with hashes from one on.
func blocksOf(first, seed uint64) *events.Event {
	e := &events.Event{Kind: events.Stored, Medium: "GPU", BlockSize: 16, Group: -1}
	for i := range uint64(4) {
		e.Hashes = append(e.Hashes, first+i)
	}
	for i := range uint64(64) {
		e.Tokens = append(e.Tokens, uint32((seed*1000003+i*7919)%100_000)+5)
	}
	return e
}

// BenchmarkSalts applies events of the base model, and below the device, next to prompts of one salt and
// of many.
func BenchmarkSalts(b *testing.B) {
	for _, n := range []struct{ prompts, salts int }{{1, 1}, {1000, 1}, {1000, 1000}, {12_000, 1}, {12_000, 12_000}} {
		prompts, salts := n.prompts, n.salts
		run := func(name string, event func(i uint64) *events.Event) {
			b.Run(fmt.Sprintf("%s/%d prompts of %d salts", name, prompts, salts), func(b *testing.B) {
				c := newServer(serverOptions{GhostBytes: 128 << 20})
				defer c.Close()
				s := saltedSource(c, prompts, salts)
				b.ReportAllocs()
				for i := uint64(0); b.Loop(); i++ {
					change(s, event(i), 0)
				}
			})
		}
		run("store and remove base", func(i uint64) *events.Event {
			e := blocksOf(1+i/2*4, i/2)
			if i%2 == 1 {
				e = &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: "GPU"}
			}
			return e
		})
		run("below, hash known", func(i uint64) *events.Event {
			e := blocksOf(uint64(1e12)+i%uint64(prompts)*4, 7)
			if e.Medium = "CPU"; i/uint64(prompts)%2 == 1 {
				e = &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: "CPU"}
			}
			return e
		})
		run("below, hash unknown", func(i uint64) *events.Event {
			e := blocksOf(1+i/2*4, i/2)
			if e.Medium = "CPU"; i%2 == 1 {
				e = &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: "CPU"}
			}
			return e
		})
	}
}

// BenchmarkHostile applies events of a publisher that names adapters and salts as it likes.
func BenchmarkHostile(b *testing.B) {
	for name, event := range map[string]func(i uint64) *events.Event{
		"an adapter for each event": func(i uint64) *events.Event {
			e, lora := blocksOf(1+i*4, i), fmt.Sprint("adapter-", i)
			e.LoraName = &lora
			return e
		},
		"a salt for each event on a lower tier": func(i uint64) *events.Event {
			e, salt := blocksOf(1+i*4, i), fmt.Sprint("salt-", i)
			e.Salt, e.Medium = &salt, "CPU"
			return e
		},
		"salts on the device, none below it": func(i uint64) *events.Event {
			e, salt := blocksOf(1+i*4, i/2), fmt.Sprint("salt-", i)
			if e.Salt = &salt; i%2 == 1 {
				e.Salt, e.Medium = nil, "CPU"
			}
			return e
		},
	} {
		b.Run(name, func(b *testing.B) {
			c := newServer(serverOptions{GhostBytes: 128 << 20, MaxContexts: 16_384})
			defer c.Close()
			s := saltedSource(c, 0, 1)
			for i := uint64(0); b.Loop(); i++ {
				change(s, event(i), 0)
				if i >= 1000 {
					change(s, &events.Event{Kind: events.Removed, Hashes: event(i - 1000).Hashes, Medium: event(i - 1000).Medium}, 0)
				}
			}
		})
	}
}

// BenchmarkSaltMemory reports what blocks under salts of their own take: one block each, and 100 of a
// prompt each.
func BenchmarkSaltMemory(b *testing.B) {
	for _, p := range []struct{ salts, blocks int }{{100_000, 1}, {10_000, 100}} {
		b.Run(fmt.Sprintf("%d salts, %d blocks each", p.salts, p.blocks), func(b *testing.B) {
			for b.Loop() {
				c := newServer(serverOptions{GhostBytes: 128 << 20, MaxContexts: p.salts})
				s := newUnjoined(c.sources, registration.Registration{Type: registration.TypeVLLM, Instance: "A", Model: "m",
					Tenant: scope.DefaultTenant, BlockSize: 16})
				before := heapBytes()
				for i := range p.salts {
					salt := fmt.Sprint("user-", i)
					e := &events.Event{Kind: events.Stored, Medium: "GPU", BlockSize: 16, Salt: &salt, Tokens: make([]uint32, 16*p.blocks)}
					for j := range p.blocks {
						e.Hashes = append(e.Hashes, 0x9e3779b97f4a7c15*uint64(1+i*p.blocks+j))
						e.Tokens[16*j], e.Tokens[16*j+1] = uint32(j), uint32(i)
					}
					change(s, e, 0)
				}
				m := s.holdings.namespaces[0].Deployment.Index.Memory()
				taken := float64(heapBytes() - before + int64(m.PiecesOffHeap+m.NamesOffHeap))
				if held := heldOf(s, 0); held != p.salts*p.blocks {
					b.Fatalf("%d blocks are held", held)
				}
				b.ReportMetric(taken/float64(p.salts), "B/salt")
				b.ReportMetric(taken/float64(p.salts*p.blocks), "B/block")
				c.Close()
			}
		})
	}
}

// heapBytes returns the bytes of the Go heap that are in use.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
