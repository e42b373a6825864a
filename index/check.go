package index

import (
	"errors"
	"fmt"
	"math/bits"
)

// maxFindings bounds what Check reports: the first ones explain the rest.
const maxFindings = 20

// Check walks everything and reports broken invariants by their number in the
// package comment, nil if there are none. Writers wait for it, readers do not; it
// costs the whole index in time.
func (x *Index) Check() error {
	x.gate.Lock()
	defer x.gate.Unlock()
	g := x.gen.Load()
	c := &check{x: x, g: g, held: make([]int, g.ids.n), linked: map[uint32]bool{}}
	if !c.words() { // nothing else can be read then
		return errors.Join(c.findings...)
	}
	c.sets()
	c.ids()
	c.links()
	c.blocks()
	c.names()
	for i, s := range x.sources {
		if s != nil {
			c.room(Source(i), s)
		}
	}
	return errors.Join(c.findings...)
}

type check struct {
	x        *Index
	g        *generation
	findings []error
	held     []int           // by internal id: memberships seen
	linked   map[uint32]bool // slots that hang below another
}

func (c *check) broken(invariant int, format string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf("invariant %d: "+format, append([]any{invariant}, args...)...))
	}
}

// members calls f for each owner in a set.
func (c *check) members(id uint32, f func(owner uint32)) {
	words, first := c.g.sets.of(id)
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			f(uint32(first+i)<<6 + trailing(w))
		}
	}
}

func (c *check) retired(o uint32) bool { return c.g.ids.retired[o>>6]>>(o&63)&1 != 0 }

// words checks that all keys have sets that exist.
func (c *check) words() bool {
	t := c.g.table
	for i := range t.buckets {
		for j := range t.buckets[i] {
			if s := &t.buckets[i][j]; s.word>>setShift >= c.g.sets.n {
				c.broken(1, "key %d has set %d of %d", s.key, s.word>>setShift, c.g.sets.n)
			}
		}
	}
	return len(c.findings) == 0
}

// sets checks that each set can be found by what it holds, and only once.
func (c *check) sets() {
	s := c.g.sets
	for id := uint32(1); id < s.n; id++ {
		words, first := s.of(id)
		if len(words) == 0 || words[0] == 0 || words[len(words)-1] == 0 || (first+len(words))*64 > len(c.g.ids.ext) {
			c.broken(2, "set %d has words %x from %d", id, words, first)
			continue
		}
		var h uint64
		c.members(id, func(o uint32) { h ^= mix(uint64(o)) })
		if h != s.rec(id).hash {
			c.broken(2, "set %d has another hash", id)
		} else if got := s.search(h, words, first, first, 0); got != id {
			c.broken(2, "set %d is found as %d", id, got)
		}
	}
}

// ids checks that living owners and internal ids name each other.
func (c *check) ids() {
	d := c.g.ids
	opened := 0
	for _, w := range d.open {
		opened += bits.OnesCount64(w)
	}
	if opened != int(d.opened.Load()) {
		c.broken(4, "%d owners are open, counted %d", opened, d.opened.Load())
	}
	for name, o := range c.x.owners {
		if o != nil && (int(o.id) >= d.n || d.ext[o.id] != uint32(name) || c.retired(o.id)) {
			c.broken(4, "owner %d has internal id %d", name, o.id)
		}
	}
}

// links checks that whoever lacks the parent of a block is open.
func (c *check) links() {
	t := c.g.table
	parents := map[uint32]*slot{}
	for i := range t.buckets {
		for j := range t.buckets[i] {
			s := &t.buckets[i][j]
			tag := tagOf(s.key)
			c.g.children(s, 1<<30, func(child *slot) bool {
				if child.word&tagMask == tag {
					n := t.number(child)
					if p, found := parents[n]; found && p != s {
						s = nil // one of them is a stranger
					}
					parents[n] = s
					s = &t.buckets[i][j]
				}
				return true
			})
		}
	}
	for n, s := range parents {
		c.linked[n] = true
		child := t.at(n)
		c.members(child.word>>setShift, func(o uint32) {
			if s != nil && !c.g.sets.has(s.word>>setShift, o) && !c.retired(o) && !c.g.ids.isOpen(o) {
				c.broken(5, "owner %d holds key %d without its parent %d and is closed", c.g.ids.ext[o], child.key, s.key)
			}
		})
	}
}

// blocks checks the table against what is counted.
func (c *check) blocks() {
	t := c.g.table
	live, used := 0, 0
	for i := range t.buckets {
		for j := range t.buckets[i] {
			s := &t.buckets[i][j]
			id, tag := s.word>>setShift, s.word&tagMask
			if s.key == 0 {
				if s.word|s.child != 0 {
					c.broken(1, "a free slot holds %x, %x", s.word, s.child)
				}
				continue
			}
			used++
			if t.find(s.key) != s {
				c.broken(1, "key %d cannot be found", s.key)
			}
			if id != 0 {
				live++
			}
			if tag >= 2 && !c.linked[t.number(s)] {
				c.broken(5, "key %d is marked and hangs nowhere", s.key)
			}
			c.members(id, func(o uint32) {
				c.held[o]++
				if tag == 0 && !c.retired(o) && !c.g.ids.isOpen(o) {
					c.broken(5, "owner %d holds key %d of unknown parent and is closed", c.g.ids.ext[o], s.key)
				}
			})
		}
	}
	if live != int(c.g.live.Load()) || used != int(t.used.Load()) || int64(used) > t.limit {
		c.broken(1, "%d keys of %d slots, counted %d of %d, at most %d", live, used, c.g.live.Load(), t.used.Load(), t.limit)
	}
	sums := map[*source]int{}
	for name, o := range c.x.owners {
		if o == nil {
			continue
		}
		sums[o.s] += c.held[o.id]
		if o.blocks != c.held[o.id] || o.raw < 0 || o.raw > o.blocks || o.copies.len() > o.blocks {
			c.broken(3, "owner %d holds %d keys, counted %d, %d raw, %d with copies", name, c.held[o.id], o.blocks, o.raw, o.copies.len())
		}
		o.copies.all(func(key uint64, n *uint32) bool {
			if *n == 0 || !c.g.sets.has(t.lookup(key), o.id) {
				c.broken(6, "owner %d has %d extra copies of key %d", name, *n, key)
			}
			return true
		})
	}
	for i, s := range c.x.sources {
		if s != nil && s.held != sums[s] {
			c.broken(3, "source %d holds %d keys, counted %d", i, sums[s], s.held)
		}
	}
}

// names checks the aliases.
func (c *check) names() {
	a := c.x.aliases.Load()
	n := 0
	for i := range a.buckets {
		for j := range a.buckets[i] {
			e := &a.buckets[i][j]
			if e.engine == 0 {
				continue
			}
			n++
			if got := a.get(e.engine); got != e.key || e.key == 0 {
				c.broken(7, "engine hash %d means %d, found %d", e.engine, e.key, got)
			}
		}
	}
	if n != int(a.used.Load()) || int64(n) > a.limit {
		c.broken(7, "%d aliases, counted %d, at most %d", n, a.used.Load(), a.limit)
	}
}

// room checks the links of one source and the orders they are kept in.
func (c *check) room(src Source, s *source) {
	r := &s.room
	if r.used != r.byEngine.len() || r.used > max(c.x.maxOrphans, 0) || r.used > 0 && s.held == 0 {
		c.broken(8, "source %d: %d links, %d engine hashes of links, %d blocks", src, r.used, r.byEngine.len(), s.held)
	}
	seen, before := 0, none
	if r.used > 0 {
		for i := r.oldest; i != none && seen <= r.used; i = r.links[i].newer {
			l := r.links[i]
			if r.of(l.engine) != i || l.older != before {
				c.broken(8, "source %d: link of %d is out of order", src, l.engine)
			}
			if l.engine == l.parent {
				c.broken(8, "source %d: %d waits on itself", src, l.engine)
			}
			seen, before = seen+1, i
		}
		if before != r.newest {
			c.broken(8, "source %d: the newest link is not the last", src)
		}
	}
	if seen != r.used {
		c.broken(8, "source %d: %d links by age, want %d", src, seen, r.used)
	}
	siblings := 0
	r.byParent.all(func(parent uint64, first *int32) bool {
		before := none
		for i := *first; i != none && siblings <= r.used; i = r.links[i].next {
			if l := r.links[i]; l.parent != parent || l.prev != before {
				c.broken(8, "source %d: link of %d is not a child of %d", src, l.engine, parent)
			}
			siblings, before = siblings+1, i
		}
		return true
	})
	if siblings != r.used {
		c.broken(8, "source %d: %d links by parent, want %d", src, siblings, r.used)
	}
}
