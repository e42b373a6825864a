package index

import (
	"errors"
	"fmt"
	"slices"
)

// maxFindings bounds what Check reports: the first ones explain the rest.
const maxFindings = 20

// Check walks everything and reports broken invariants by their number in the
// package comment, nil if there are none. It holds the read lock throughout and
// costs the whole index in time and about as much again in memory.
func (x *Index) Check() error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := &check{x: x, refs: make([]uint32, len(x.sets.recs)), hashes: map[pair]uint32{}, held: make([]int, len(x.owners))}
	for i, s := range x.sources {
		if s != nil {
			c.source(Source(i), s)
		}
	}
	c.blocks()
	c.owners()
	c.sets()
	return errors.Join(c.findings...)
}

type check struct {
	x        *Index
	findings []error
	refs     []uint32        // by set id: references seen
	hashes   map[pair]uint32 // engine hashes an owner holds that map to a key
	held     []int           // by owner: engine hashes seen
	raw      int
}

type pair struct {
	owner uint32
	key   uint64
}

func (c *check) broken(invariant int, format string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf("invariant %d: "+format, append([]any{invariant}, args...)...))
	}
}

// source checks the entries and the waiting room of one source.
func (c *check) source(src Source, s *source) {
	probe(c, &s.engines, "engine hashes")
	s.engines.all(func(engine uint64, ent *entry) bool {
		if !c.count(ent.set) {
			c.broken(4, "engine hash %d of source %d has no owners", engine, src)
			return true
		}
		if ent.raw {
			c.raw++
			if ent.key != engine {
				c.broken(5, "raw engine hash %d has key %d", engine, ent.key)
			}
		}
		for _, id := range c.x.sets.members(ent.set) {
			if int(id) >= len(c.x.owners) || c.x.owners[id] == nil || c.x.owners[id].src != src {
				c.broken(4, "engine hash %d of source %d is held by owner %d", engine, src, id)
				continue
			}
			c.hashes[pair{id, ent.key}]++
			c.held[id]++
		}
		return true
	})
	c.room(src, s)
}

// room checks the links of one source and the orders they are kept in.
func (c *check) room(src Source, s *source) {
	r := &s.room
	probe(c, &r.byEngine, "waiting engine hashes")
	probe(c, &r.byParent, "awaited parents")
	if r.used != r.byEngine.len() || r.used > max(c.x.maxOrphans, 0) || r.used > 0 && s.engines.len() == 0 {
		c.broken(8, "source %d: %d links, %d engine hashes of links, %d blocks", src, r.used, r.byEngine.len(), s.engines.len())
	}
	seen, before := 0, none
	if r.used > 0 {
		for i := r.oldest; i != none && seen <= r.used; i = r.links[i].newer {
			l := r.links[i]
			if r.of(l.engine) != i || l.older != before {
				c.broken(8, "source %d: link of %d is out of order", src, l.engine)
			}
			seen, before = seen+1, i
			c.link(src, s, l)
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

func (c *check) link(src Source, s *source, l link) {
	own, parent := s.engines.ref(l.engine), s.engines.ref(l.parent)
	if own != nil && !own.raw || parent != nil && !parent.raw {
		c.broken(8, "source %d: the link from %d to %d has a known end", src, l.engine, l.parent)
	}
	if own == nil && s.room.child(l.engine) == none {
		c.broken(8, "source %d: the link of %d is of no use", src, l.engine)
	}
	if l.engine == l.parent {
		c.broken(8, "source %d: %d waits on itself", src, l.engine)
	}
}

// blocks checks the shared table against what the sources hold.
func (c *check) blocks() {
	probe(c, &c.x.blocks, "keys")
	members := 0
	c.x.blocks.all(func(key uint64, id *uint32) bool {
		if !c.count(*id) {
			c.broken(1, "key %d has no owners", key)
			return true
		}
		for _, o := range c.x.sets.members(*id) {
			members++
			if c.hashes[pair{o, key}] == 0 {
				c.broken(3, "owner %d is listed under key %d and holds no engine hash of it", o, key)
			}
		}
		return true
	})
	if members != len(c.hashes) || members != c.x.memberships {
		c.broken(3, "%d memberships listed, %d counted, %d held", members, c.x.memberships, len(c.hashes))
	}
	if c.raw != c.x.raw {
		c.broken(5, "%d raw entries, counted %d", c.raw, c.x.raw)
	}
}

// owners checks counts of copies and of shared keys.
func (c *check) owners() {
	extra := 0
	for p, n := range c.hashes {
		own := c.x.owners[p.owner]
		more := own.shared.ref(p.key)
		if n > 1 {
			extra++
		}
		if more == nil && n != 1 || more != nil && (*more == 0 || *more != n-1) {
			c.broken(3, "owner %d holds key %d by %d engine hashes, counted otherwise", p.owner, p.key, n)
		}
	}
	for i, own := range c.x.owners {
		if own == nil {
			continue
		}
		probe(c, &own.copies, "copies")
		probe(c, &own.shared, "shared keys")
		extra -= own.shared.len()
		if own.blocks != c.held[i] {
			c.broken(7, "owner %d holds %d engine hashes, counted %d", i, c.held[i], own.blocks)
		}
		own.copies.all(func(engine uint64, n *uint32) bool {
			ent := c.x.sources[own.src].engines.ref(engine)
			if *n == 0 || ent == nil || !c.x.sets.has(ent.set, uint32(i)) {
				c.broken(6, "owner %d has %d extra copies of engine hash %d", i, *n, engine)
			}
			return true
		})
	}
	if extra != 0 {
		c.broken(6, "counts of shared keys differ from what is shared by %d", extra)
	}
}

// sets checks the interned sets themselves.
func (c *check) sets() {
	s := &c.x.sets
	probe(c, &s.byHash, "set hashes")
	free, bytes, distinct := map[uint32]bool{}, 0, map[string]bool{}
	for _, id := range s.free {
		free[id] = true
	}
	for i := range s.recs {
		id, r := uint32(i), &s.recs[i]
		if r.refs != c.refs[id] {
			c.broken(1, "set %d has %d references, counted %d", id, c.refs[id], r.refs)
		}
		if id == 0 {
			continue
		}
		if (r.refs == 0) != free[id] || (len(r.members) == 0) != free[id] {
			c.broken(1, "set %d with %d members and %d references: free is %t", id, len(r.members), r.refs, free[id])
		}
		if free[id] {
			continue
		}
		bytes += 4 * len(r.members)
		h := uint64(0)
		for j, o := range r.members {
			h ^= mix(uint64(o))
			if j > 0 && r.members[j-1] >= o {
				c.broken(2, "set %d does not ascend: %v", id, r.members)
			}
		}
		if key := fmt.Sprint(r.members); distinct[key] {
			c.broken(2, "set %v exists twice", r.members)
		} else {
			distinct[key] = true
		}
		if h != r.hash || !slices.Contains(c.x.sets.withHash(h), id) {
			c.broken(2, "set %d cannot be found by its members", id)
		}
	}
	if bytes != s.listBytes {
		c.broken(1, "lists of sets take %d bytes, counted %d", bytes, s.listBytes)
	}
}

// withHash returns the ids of the sets with a hash.
func (s *sets) withHash(h uint64) []uint32 {
	var ids []uint32
	if first := s.byHash.ref(h); first != nil {
		for id := *first; id != 0 && len(ids) < len(s.recs); id = s.recs[id].next {
			ids = append(ids, id)
		}
	}
	return ids
}

// count notes a reference to a set, and reports whether the set is one with members.
func (c *check) count(id uint32) bool {
	if int(id) >= len(c.refs) {
		return false
	}
	c.refs[id]++
	return len(c.x.sets.members(id)) > 0
}

// probe checks that a table finds its keys.
func probe[V any](c *check, t *table[V], what string) {
	n := 0
	t.all(func(k uint64, v *V) bool {
		n++
		if t.ref(k) != v {
			c.broken(9, "%s: %d cannot be found", what, k)
		}
		return true
	})
	if n != t.len() {
		c.broken(9, "%s: %d keys, counted %d", what, n, t.len())
	}
}
