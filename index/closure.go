package index

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// An owner is closed while it holds the parent of every block it holds that is
// not a root. Along a chain its membership then only ends, never begins again, so
// one probe answers for all blocks before it; gallop.go lives on this.
//
// The rule is kept from the safe side. An owner becomes open, before the change
// can be seen, when it stores a block whose parent it does not hold or that cannot
// be told, and when it gives up a block and still holds a child. It becomes
// closed again when it holds nothing, and when a new generation finds it so.
//
// Children are found by links: slot.child leads to one, kids the further ones. A link
// is made once, when a block is stored behind a parent that has a slot, and marked
// in the child by a tag, seven bits of the parent's key: a publisher that names
// two parents for one key is noticed and its owner is open.
const (
	rootTag  = 1       // the block has no parent
	manyBit  = 1 << 31 // in slot.child: kids has more
	mostKids = 4096    // children looked at before an owner is taken for open
)

// place is where a block hangs: the slot of its parent, 0 where it has none.
type place struct {
	slot uint32
	tag  uint32 // 0: nobody knows
	held bool   // the owner holds the parent
}

var root = place{tag: rootTag, held: true}

func tagOf(parent uint64) uint32 { return 2 + uint32(parent*spread>>24)%(tagMask-1) }

// A link is a part of the child's key, plus one, and not a position: so links stay
// good when a table is replaced, and one to a child that has gone finds nothing.
// Where tag and link fit by chance it finds a stranger, one in ten thousand times
// with ten million keys. Then an owner may be taken for open; nowhere is one taken
// for closed.
func linkTo(child uint64) uint32 { return uint32(child*spread>>linkShift) + 1 }

const linkShift = 34

// link hangs a key below a slot.
func (g *generation) link(parent *slot, child uint64) {
	l := linkTo(child)
	for {
		c := atomic.LoadUint32(&parent.child)
		switch {
		case c == 0:
			if atomic.CompareAndSwapUint32(&parent.child, 0, l) {
				return
			}
		case c&^manyBit == l:
			return
		default:
			// The list is written before the bit says that there is one.
			g.kids.add(parent.key, l)
			if c&manyBit == 0 {
				atomic.OrUint32(&parent.child, manyBit)
			}
			return
		}
	}
}

// children calls f for what may be the children of a slot, until it returns false.
// It stops and returns false if there are too many to look at.
func (g *generation) children(s *slot, most int, f func(child *slot) bool) bool {
	c := atomic.LoadUint32(&s.child)
	if c == 0 {
		return true
	}
	more := g.table.linked(c&^manyBit, f)
	if c&manyBit == 0 || !more {
		return true
	}
	g.kids.mu.Lock()
	list := g.kids.lists[s.key]
	g.kids.mu.Unlock() // lists only grow: what was read stays as it is
	if len(list) > most {
		return false
	}
	for _, c := range list {
		if !g.table.linked(c, f) {
			break
		}
	}
	return true
}

// linked calls f for each slot a link may mean, until it returns false.
func (t *table) linked(link uint32, f func(*slot) bool) (more bool) {
	v := uint64(link - 1)
	lo, _ := bits.Mul64(v<<linkShift, uint64(len(t.buckets)))
	hi, _ := bits.Mul64(v<<linkShift|(1<<linkShift-1), uint64(len(t.buckets)))
	for i, past := int(lo), int(lo) == int(hi); ; {
		b := &t.buckets[i]
		for j := range b {
			k := atomic.LoadUint64(&b[j].key)
			if k == 0 {
				if past {
					return true
				}
				break
			}
			if k*spread>>linkShift == v && !f(&b[j]) {
				return false
			}
		}
		if i++; i == len(t.buckets) {
			i = 0
		}
		past = past || i == int(hi)
	}
}

// holdsChild reports whether an owner holds a block that hangs below a slot, or
// might.
func (g *generation) holdsChild(s *slot, owner uint32) (held bool) {
	tag := tagOf(s.key)
	all := g.children(s, mostKids, func(c *slot) bool {
		w := atomic.LoadUint32(&c.word)
		held = w&tagMask == tag && g.sets.has(w>>setShift, owner)
		return !held
	})
	return held || !all
}

// rehang carries the lists of an old generation over, without what has gone, and
// unmarks the children of slots that have, so that they are hung again when their
// parent comes back. sets says which old sets have nobody left. Where all owners are closed there are no such children.
func (g *generation) rehang(old *generation, sets []uint32) {
	alive := func(link uint32) (yes bool) {
		g.table.linked(link, func(*slot) bool { yes = true; return false })
		return yes
	}
	for key, list := range old.kids.lists {
		p := g.table.find(key)
		if p == nil {
			continue
		}
		p.child &^= manyBit
		if !alive(p.child) {
			p.child = 0
		}
		var kept []uint32
		for _, l := range list {
			switch {
			case !alive(l):
			case p.child == 0:
				p.child = l
			default:
				kept = append(kept, l)
			}
		}
		if len(kept) > 0 {
			p.child |= manyBit
			if g.kids.lists == nil {
				g.kids.lists = make(map[uint64][]uint32)
			}
			g.kids.lists[key] = kept
			g.kids.n += len(kept)
		}
	}
	if g.ids.opened.Load() == 0 {
		return
	}
	for i := range old.table.buckets {
		b := &old.table.buckets[i]
		for j := range b {
			s := &b[j]
			if s.child == 0 || sets[s.word>>setShift] != 0 {
				continue
			}
			tag := tagOf(s.key)
			unmark := func(c *slot) bool {
				// A closed owner has the parent: then it is a stranger.
				if c.word&tagMask == tag && g.allOpen(c.word>>setShift) {
					c.word &^= tagMask
				}
				return true
			}
			g.table.linked(s.child&^manyBit, unmark)
			if s.child&manyBit != 0 {
				for _, l := range old.kids.lists[s.key] {
					g.table.linked(l, unmark)
				}
			}
		}
	}
}

func (g *generation) allOpen(id uint32) bool {
	words, first := g.sets.of(id)
	for i, w := range words {
		if w&^g.ids.open[first+i] != 0 {
			return false
		}
	}
	return true
}

// reopen finds out anew which of the open owners are. Nobody else sees the
// generation.
func (g *generation) reopen() {
	was := slices.Clone(g.ids.open)
	clear(g.ids.open)
	g.ids.opened.Store(0)
	for i := range g.table.buckets {
		b := &g.table.buckets[i]
		for j := range b {
			s := &b[j]
			id, tag := s.word>>setShift, tagOf(s.key)
			if id != 0 && s.word&tagMask == 0 {
				g.openAll(id, 0, was)
			}
			g.children(s, 1<<30, func(c *slot) bool {
				if other := c.word >> setShift; other != id && c.word&tagMask == tag {
					g.openAll(other, id, was)
				}
				return true
			})
		}
	}
}

// openAll marks those of some owners that are in one set and not in another.
func (g *generation) openAll(id, but uint32, some []uint64) {
	words, first := g.sets.of(id)
	other, f := g.sets.of(but)
	for i, w := range words {
		w &= some[first+i] &^ wordAt(other, f, first+i)
		w &^= g.ids.open[first+i]
		for ; w != 0; w &= w - 1 {
			g.ids.setOpen(uint32(first+i)<<6 + trailing(w))
		}
	}
}
