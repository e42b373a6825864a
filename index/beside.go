package index

import (
	"math/bits"
	"slices"
)

// Beside is a second place to look a prompt's blocks up: another index, or the same
// one, where they are held under other names.
type Beside struct {
	Index *Index
	Chain Chain
	// First is added to the owners found there, so that they can be told apart; 0 for
	// the same index.
	First uint32
}

// MatchBeside is MatchLazy over several places at once: a block is held by everybody
// who holds it in one of them. Chains are asked for a block in turn, and for none
// behind the first block nobody holds anywhere; one that is shorter than c ends before.
// It costs a probe per block and place.
func (x *Index) MatchBeside(c Chain, others []Beside, m *Match) {
	m.reset()
	if cap(m.places) < len(others)+1 {
		m.places = make([]*generation, 0, len(others)+1)
	}
	m.places = append(m.places[:0], x.gen.Load())
	for i := range others {
		g := m.places[0]
		if others[i].Index != x {
			g = others[i].Index.gen.Load()
		}
		m.places = append(m.places, g)
	}
	n := len(m.places)
	for i := range c.Len() {
		at := len(m.ids)
		if !m.look(c, others, i) {
			m.ids = m.ids[:at]
			break
		}
		if at > 0 && slices.Equal(m.ids[at-n:at], m.ids[at:]) {
			m.ids = m.ids[:at]
			m.Runs[len(m.Runs)-1].Blocks++
			continue
		}
		m.Runs = append(m.Runs, Run{Blocks: 1})
	}
	m.finishBeside(others)
	if x.refused.Load() != nil {
		m.Truncated = m.Blocks < c.Len() && x.wasRefused(c.At(m.Blocks))
		for i := range others {
			o := &others[i]
			m.Truncated = m.Truncated || o.Index == x && m.Blocks < o.Chain.Len() && x.wasRefused(o.Chain.At(m.Blocks))
		}
	}
	clear(m.places)
}

// look appends the set of block i in each place, and reports whether there is any.
func (m *Match) look(c Chain, others []Beside, i int) bool {
	some := uint32(0)
	for j, g := range m.places {
		if j > 0 {
			c = others[j-1].Chain
		}
		id := uint32(0)
		if i < c.Len() {
			id = g.table.lookup(normal(c.At(i)))
		}
		m.ids = append(m.ids, id)
		some |= id
	}
	return some != 0
}

// finishBeside is finish for runs of as many sets as there are places.
func (m *Match) finishBeside(others []Beside) {
	k, n := 0, len(m.places)
	for i, r := range m.Runs {
		begin := len(m.owners)
		for j, g := range m.places {
			first := uint32(0)
			if j > 0 {
				first = others[j-1].First
			}
			m.owners = g.appendLiving(m.owners, m.ids[i*n+j], first)
		}
		slices.Sort(m.owners[begin:])
		m.owners = m.owners[:begin+len(slices.Compact(m.owners[begin:]))]
		list := m.owners[begin:len(m.owners):len(m.owners)]
		if len(list) == 0 { // all retired: the chain ends here
			break
		}
		m.Blocks += r.Blocks
		if k > 0 && slices.Equal(m.Runs[k-1].Owners, list) {
			m.Runs[k-1].Blocks += r.Blocks
			m.owners = m.owners[:begin]
			continue
		}
		m.Runs[k] = Run{Owners: list, Blocks: r.Blocks}
		k++
	}
	m.Runs = m.Runs[:k]
}

// appendLiving appends the owners of a set, each plus first.
func (g *generation) appendLiving(dst []uint32, id, first uint32) []uint32 {
	words, at := g.sets.of(id)
	for i, w := range words {
		for w = g.ids.living(w, at+i); w != 0; w &= w - 1 {
			dst = append(dst, first+g.ids.ext[(at+i)<<6+bits.TrailingZeros64(w)])
		}
	}
	return dst
}
