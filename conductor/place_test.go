package conductor

import (
	"fmt"
	"testing"

	"kvconductor/conductor/normalize"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
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
func (s *source) changeOf(e *events.Event, rank int32) (c normalize.Change) {
	s.normal.Batch(&events.Batch{Rank: -1}) // takes the buffers back
	s.normal.Event(e, rank, &c)
	return c
}

// change applies one event of a rank.
func (s *source) change(e *events.Event, rank int32) {
	c := s.changeOf(e, rank)
	s.applyBlocks(&c)
}

func manySalts() (all []string) {
	for i := range 100 {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// prepare returns the source of the event, the event, and its removal.
func (p placedEvent) prepare(c *Conductor) (s *source, stored, removed *events.Event) {
	const size = 16
	reg := Registration{Type: TypeVLLM, Instance: "A", Model: "m", Tenant: DefaultTenant, BlockSize: size}
	s = c.unjoined(reg)
	e := events.Event{Medium: "GPU", BlockSize: size}
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
		s.change(&announced, 0)
	}
	if p.pool {
		reg.Type, reg.Instance = TypeMooncake, "P"
		s = c.unjoined(reg)
	}
	if e.Medium = p.medium; !p.tokens {
		e.Tokens = nil
	}
	return s, &e, &events.Event{Kind: events.Removed, Hashes: e.Hashes, Medium: p.medium}
}

// placedRank is that of a holder which the device is not.
const placedRank = 1

// TestPlaceAsksOnce stores events whose blocks have places of their own.
func TestPlaceAsksOnce(t *testing.T) {
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			c := New(Options{RecallBytes: 1 << 20})
			defer c.Close()
			s, stored, removed := p.prepare(c)
			s.change(stored, placedRank)
			asked := 0
			for _, a := range s.asked.answers {
				asked += a.n
			}
			// The context of the event for all blocks, others for the first one.
			if most := placedBlocks + len(p.salts); asked > most {
				t.Errorf("%d questions, want %d at most", asked, most)
			}
			held := 0
			for _, ns := range s.namespaces {
				for key, h := range ns.owners {
					if key.Rank == placedRank {
						held += ns.context.index.Blocks(h.current)
					}
				}
			}
			if held != placedBlocks {
				t.Errorf("%d blocks are held, want %d", held, placedBlocks)
			}
			// An owner set and what remembers its transitions may be new.
			if n := testing.AllocsPerRun(100, func() {
				s.change(removed, placedRank)
				s.change(stored, placedRank)
			}); n > 4 {
				t.Errorf("%v allocations an event of %d blocks", n, placedBlocks)
			}
		})
	}
}

// TestPlaceForgottenBlocks holds that tokens place blocks whose hashes another source
// forgets while the event is at hand.
func TestPlaceForgottenBlocks(t *testing.T) {
	for _, recalled := range []int64{0, 1 << 20} {
		c := New(Options{RecallBytes: recalled})
		defer c.Close()
		other, stored, removed := placedEvent{medium: "CPU", tokens: true}.prepare(c)
		s := c.unjoined(Registration{Type: TypeVLLM, Instance: "B", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
		medium, at := tiers.Parse(stored.Medium), s.homeContext()
		s.namespaceIn(at)
		s.asked.begin(stored, true)
		s.meantIn(at, stored, 0) // asks for all blocks
		for n := 0; n < placedBlocks; n += 4 {
			other.change(&events.Event{Kind: events.Removed, Hashes: removed.Hashes[n:][:2], Medium: "GPU"}, 0)
		}
		key := normalize.Owner{Medium: medium.Name}
		placed := s.changeOf(stored, 0)
		s.place(&placed)
		x := s.byContext[at].context.index
		var chain hash.Chain
		chain.Reset(c.scheme, stored.Tokens, 16, 0)
		var m index.Match
		x.MatchLazy(0, &chain, &m)
		if held := x.Blocks(s.byContext[at].owners[key].current); m.Blocks != placedBlocks || held != placedBlocks {
			t.Errorf("%d blocks are found and %d held, want %d", m.Blocks, held, placedBlocks)
		}
	}
}

// TestPlaceBlocksThatWaitElsewhere holds that tokens place blocks whose hashes are forgotten by the
// index, while another medium of the source has them under these hashes.
func TestPlaceBlocksThatWaitElsewhere(t *testing.T) {
	c := New(Options{RecallBytes: 1 << 20})
	defer c.Close()
	other, stored, removed := placedEvent{medium: "CPU", tokens: true}.prepare(c)
	s := c.unjoined(Registration{Type: TypeVLLM, Instance: "B", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	host, disk, at := tiers.Parse(stored.Medium), tiers.Parse("STORAGE"), s.homeContext()
	ns := s.namespaceIn(at)
	s.change(&events.Event{Kind: events.Stored, Hashes: []uint64{1}, Medium: "STORAGE", BlockSize: 16}, 0) // names are kept from now on
	other.change(&events.Event{Kind: events.Removed, Hashes: removed.Hashes, Medium: "GPU"}, 0)
	below, key := normalize.Owner{Medium: disk.Name}, normalize.Owner{Medium: host.Name}
	waiting := s.changeOf(&events.Event{Hashes: stored.Hashes, Medium: "STORAGE"}, 0)
	if res := s.put(ns, &waiting, stored.Hashes, nil, nil); res.HashOnly != placedBlocks {
		t.Fatalf("%+v", res)
	}
	s.asked.begin(stored, true)
	placed := s.changeOf(stored, 0)
	s.place(&placed)
	var chain hash.Chain
	chain.Reset(c.scheme, stored.Tokens, 16, 0)
	var m index.Match
	ns.context.index.MatchLazy(0, &chain, &m)
	for _, k := range []normalize.Owner{key, below} {
		if held := ns.context.index.Blocks(ns.owners[k].current); held < placedBlocks {
			t.Errorf("%d blocks in %s, want %d", held, k.Medium, placedBlocks)
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
			c := New(Options{RecallBytes: 1 << 20})
			defer c.Close()
			s, stored, removed := p.prepare(c)
			b.ReportAllocs()
			for b.Loop() {
				s.change(stored, placedRank)
				s.change(removed, placedRank)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/placedBlocks, "ns/block")
		})
	}
}
