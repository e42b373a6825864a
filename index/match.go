package index

import (
	"math/bits"
	"slices"
)

// Run is a stretch of consecutive blocks held by exactly the same owners.
type Run struct {
	// Owners ascend and are not empty. They are plain numbers so that the list can
	// be handed on; it belongs to the Match and is overwritten by the next use of it.
	Owners []uint32
	Blocks int
}

// Match is what an index holds of a chain. Reusing one saves its buffers.
type Match struct {
	// Runs begin at block 0, follow each other without a gap and end before the
	// first block nobody holds. Neighbours have different owners.
	Runs []Run
	// Blocks is the sum over Runs.
	Blocks int
	// Truncated says that the chain may be held further than Blocks: its next
	// block was refused for want of memory.
	Truncated bool

	ids    []uint32      // set ids of the runs
	owners []uint32      // lists of the runs
	places []*generation // of MatchBeside
}

// Chain is a prompt's keys, possibly computed when asked for. *hash.Chain is one.
type Chain interface {
	Len() int
	// At returns the key of block i, 0 <= i < Len().
	At(i int) uint64
}

// Match looks a chain of keys up. It does not allocate once the buffers of m are
// long enough. The keys must be a chain, each block behind the one before: while
// all owners are closed, blocks between two that fit are not looked at. For keys
// that somebody only says are one, there is MatchLazy.
func (x *Index) Match(chain []uint64, m *Match) {
	g := x.gen.Load()
	m.reset()
	if !g.gallopRuns(chain, m) {
		m.reset()
		g.scanRuns(chain, m)
	}
	m.finish(g)
	m.Truncated = m.Blocks < len(chain) && x.wasRefused(chain[m.Blocks])
}

// MatchLazy looks up every block of a chain, in order: the first alone, those behind it
// a group at a time, so that they are fetched together. It asks for no key behind the
// group of the first block nobody holds; where that is the first, for no other.
func (x *Index) MatchLazy(c Chain, m *Match) {
	g := x.gen.Load()
	m.reset()
	g.scanLazy(c, m)
	m.finish(g)
	m.Truncated = m.Blocks < c.Len() && x.wasRefused(c.At(m.Blocks))
}

// scanLazy probes every block.
func (g *generation) scanLazy(c Chain, m *Match) {
	var room [ahead]uint64
	for i, n := 0, c.Len(); i < n; {
		keys := room[:1]
		if i > 0 {
			keys = room[:min(ahead, n-i)]
		}
		for j := range keys {
			keys[j] = c.At(i + j)
		}
		if i > 0 {
			g.table.prefetch(keys)
		}
		for _, key := range keys {
			id := g.table.lookup(normal(key))
			if id == 0 {
				return
			}
			m.extend(id, 1)
		}
		i += len(keys)
	}
}

func (m *Match) reset() {
	m.Runs, m.Blocks, m.ids, m.owners, m.Truncated = m.Runs[:0], 0, m.ids[:0], m.owners[:0], false
}

// extend adds blocks with a set.
func (m *Match) extend(id uint32, blocks int) {
	if n := len(m.ids); n > 0 && m.ids[n-1] == id {
		m.Runs[n-1].Blocks += blocks
		return
	}
	m.ids = append(m.ids, id)
	m.Runs = append(m.Runs, Run{Blocks: blocks})
}

// scanRuns probes every block.
func (g *generation) scanRuns(chain []uint64, m *Match) {
	for i, key := range chain {
		if i%ahead == 0 {
			g.table.advance(chain, i)
		}
		id := g.table.lookup(normal(key))
		if id == 0 {
			return
		}
		m.extend(id, 1)
	}
}

// finish turns set ids into owners. Who is retired is asked only now: an owner
// that was cleared and came back under another id while the chain was probed
// would else be listed twice.
func (m *Match) finish(g *generation) {
	n := 0
	for i, r := range m.Runs {
		begin := len(m.owners)
		words, first := g.sets.of(m.ids[i])
		for j, w := range words {
			for w = g.ids.living(w, first+j); w != 0; w &= w - 1 {
				m.owners = append(m.owners, g.ids.ext[(first+j)<<6+bits.TrailingZeros64(w)])
			}
		}
		list := m.owners[begin:len(m.owners):len(m.owners)]
		if len(list) == 0 { // all retired: the chain ends here
			break
		}
		if g.ids.unsorted.Load() {
			slices.Sort(list)
		}
		m.Blocks += r.Blocks
		if n > 0 && slices.Equal(m.Runs[n-1].Owners, list) {
			m.Runs[n-1].Blocks += r.Blocks
			m.owners = m.owners[:begin]
			continue
		}
		m.Runs[n] = Run{Owners: list, Blocks: r.Blocks}
		n++
	}
	m.Runs = m.Runs[:n]
}
