package index

import (
	"errors"
	"fmt"
	"slices"
)

// maxFindings bounds what Check reports: the first ones explain the rest.
const maxFindings = 20

// Check walks everything and reports broken invariants by their number in the
// package comment, nil if there are none. Writers wait for it, readers do not; it
// costs the whole index in time.
func (x *Index) Check() error {
	x.lock()
	defer x.unlock()
	c := &check{x: x, held: make(map[uint32]Digest), refs: make(map[uint32]uint32), lines: make(map[uint32]string),
		ghosts: make(map[place]bool),
		meant:  make(map[uint64]bool), identities: make([][2]uint32, len(*x.tree.identities.list.Load()))}
	if !c.ids() || !c.pieces() { // nothing else can be read then
		return errors.Join(c.findings...)
	}
	c.counts()
	c.ghostQueue()
	c.tables()
	c.waiting()
	c.sets()
	for i, s := range x.holders.sources {
		if s != nil {
			c.room(Source(i), s)
		}
	}
	return errors.Join(c.findings...)
}

type check struct {
	x        *Index
	findings []error
	held     map[uint32]Digest // by internal id: memberships seen
	refs     map[uint32]uint32 // by set: intervals seen
	lines    map[uint32]string // what uses a line
	live     int
	named    int // names with entries
	names    int
	ghosts   map[place]bool
	loose    int
	heads    int
	sides    int // lines of names of loose pieces

	meant      map[uint64]bool // engine hashes that are names
	identities [][2]uint32     // by number: pieces, and blocks with an owner
}

func (c *check) broken(invariant int, format string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf("invariant %d: "+format, append([]any{invariant}, args...)...))
	}
}

// members calls f for each owner in a set.
func (c *check) members(id uint32, f func(owner uint32)) {
	for i, w := range c.x.tree.sets.body.Load().of(id) {
		for ; w != 0; w &= w - 1 {
			f(uint32(i)<<6 + trailing(w))
		}
	}
}

func (c *check) retired(id uint32) bool {
	return c.x.tree.ids.Load().retired[id>>6]>>(id&63)&1 != 0
}

// ids checks that living owners and internal ids name each other.
func (c *check) ids() bool {
	d := c.x.tree.ids.Load()
	for name, o := range c.x.holders.owners {
		if o != nil && (int(o.id) >= c.x.holders.used || d.owner[o.id] != uint32(name) || c.retired(o.id)) {
			c.broken(4, "owner %d has internal id %d", name, o.id)
		}
	}
	return len(c.findings) == 0
}

// use notes the user of some lines, and reports lines with two users.
func (c *check) use(line uint32, n int, by string) {
	for ; n > 0; n-- {
		if other := c.lines[line]; other != "" {
			c.broken(5, "line %d is used by %s and %s", line, other, by)
		}
		if int(line/pageLines) >= len(c.x.tree.lines.used) || c.x.tree.lines.used[line/pageLines]>>(line%pageLines)&1 == 0 {
			c.broken(5, "line %d of %s is free", line, by)
			return
		}
		c.lines[line] = by
		line++
	}
}

// pieces checks each piece on its own, and reports whether they can be read.
func (c *check) pieces() bool {
	x := c.x
	x.tree.lines.eachPiece(func(n uint32, r *piece) {
		if r.len() == 0 || r.len() > r.cap() || r.cap() > maxPiece || r.ver&(changing|held) != 0 || r.count() == 0 {
			c.broken(1, "piece %d has %d blocks of %d, %d intervals, version %d", n, r.len(), r.cap(), r.count(), r.ver)
			return
		}
		c.use(n, linesFor(r.meta), fmt.Sprint("piece ", n))
		if !c.identity(n, r) {
			return
		}
		if k := intervalLines(r.count()); k > 0 {
			if r.intervals[0] >= x.tree.lines.next.Load() {
				c.broken(5, "intervals of piece %d are in line %d", n, r.intervals[0])
				return
			}
			c.use(r.intervals[0], k, fmt.Sprint("intervals of piece ", n))
		}
		c.intervals(n, r)
		if r.loose() {
			c.looseBlocks(n, r)
		} else {
			c.chain(n, r)
		}
		dead := x.tree.lines.deadBlocks(r)
		for line := r.side; line != 0 && len(c.findings) == 0; {
			d := x.tree.lines.sideAt(line)
			k, _ := sideLines(d.cap())
			c.use(line, k, fmt.Sprint("names of piece ", n))
			if r.loose() {
				c.sides++
			}
			if d.meta&isSide == 0 || d.piece != n {
				c.broken(7, "names in line %d of piece %d: flags %x, piece %d", line, n, d.meta, d.piece)
			}
			for i, engine := range d.engine()[:d.cap()] {
				at := d.from() + uint32(i)
				if at < r.len() && dead>>at&1 == 0 && engine != 0 {
					c.name(engine, place{n, at}, place{line, uint32(i)}.ref(), d.named>>i&1 != 0, d.by)
				} else if d.named>>i&1 != 0 {
					c.broken(7, "line %d has an entry for block %d, which has no name", line, i)
				}
			}
			line = d.next
		}
	})
	if len(c.lines) != int(x.tree.lines.live.Load()) && len(c.findings) == 0 {
		c.broken(5, "%d lines are used, counted %d", len(c.lines), x.tree.lines.live.Load())
	}
	if c.sides != x.tree.looseSides && len(c.findings) == 0 {
		c.broken(7, "%d lines of names of loose pieces, counted %d", c.sides, x.tree.looseSides)
	}
	return len(c.findings) == 0
}

// identity checks the identity of a piece.
func (c *check) identity(n uint32, r *piece) bool {
	of, list := r.root(), *c.x.tree.identities.list.Load()
	if r.meta&isOther != 0 && (of.id == 0 || int(of.id) >= len(list) || list[of.id].dropped || list[of.id].constant != of.constant) {
		c.broken(10, "piece %d is of identity %d with constant %x", n, of.id, of.constant)
		return false
	}
	c.identities[of.id][0]++
	return true
}

// waiting checks that blocks wait under engine hashes that mean nothing to their sources, or are
// contested: a source may wait since before it announced tokens.
func (c *check) waiting() {
	x := c.x
	x.tree.lines.eachPiece(func(n uint32, r *piece) {
		for i := uint32(0); r.loose() && i < r.len(); i++ {
			engine, p := r.local()[i], place{n, i}
			if engine == 0 || !c.meant[engine] || x.names.hasNames(p) {
				continue
			}
			x.holders.eachHolder(x.tree.lines.setOf(p), func(o *owner) {
				if o.s.raw && o.s.private.ref(engine) == nil && !x.resolver.contests.of[engine] {
					c.broken(11, "owner %d holds a block under the engine hash %d, which means another one", o.name, engine)
				}
			})
		}
	})
}

// intervals checks the owners of a piece.
func (c *check) intervals(n uint32, r *piece) {
	x := c.x
	var room [maxPiece + 2]interval
	start, last := uint32(0), ^uint32(0)
	for _, v := range x.tree.lines.intervalsOf(r, &room) {
		if v.end <= start || v.end > r.len() || v.set == last || v.set >= x.tree.sets.n {
			c.broken(2, "piece %d has blocks %d to %d with set %d behind set %d", n, start, v.end, v.set, last)
			return
		}
		if v.set != 0 {
			c.refs[v.set]++
			c.live += int(v.end - start)
			c.identities[r.identity()][1] += v.end - start
		}
		sum, loose := uint64(0), 0
		for at := start; at < v.end; at++ { // one by one, not as events sum them
			if !r.loose() {
				sum += r.local()[at]
				continue
			}
			sum += r.looseWord(at)
			loose++
		}
		c.members(v.set, func(o uint32) {
			d := c.held[o]
			d.add(int(v.end-start), loose, x.tree.identities.weighWords(r, sum))
			c.held[o] = d
			if int(o) >= x.holders.used {
				c.broken(4, "piece %d has the internal id %d of %d", n, o, x.holders.used)
			}
		})
		start, last = v.end, v.set
	}
	if start != r.len() || last == 0 && !x.names.isGhost(place{n, start - 1}) {
		c.broken(1, "piece %d has %d blocks, intervals up to %d, the last with set %d", n, r.len(), start, last)
	}
}

// chain checks the keys and names of a chained piece.
func (c *check) chain(n uint32, r *piece) {
	x := c.x
	c.heads++
	first := r.head == r.root().first(r.local()[0])
	if first != (r.meta&isFirst != 0) {
		c.broken(1, "piece %d begins a prompt: %v, and %v by its flag", n, first, !first)
	}
	if got := x.tree.findBeginning(r.head, first); got != (place{piece: n}) || r.head == 0 {
		c.broken(1, "piece %d begins with key %d, found at %v", n, r.head, got)
	}
	key, dead, anchor := r.head, x.tree.lines.deadBlocks(r), anchorAt(r.meta)
	for i := range r.len() {
		if i > 0 {
			key = x.tree.followKey(key, r.constant(), r.local()[i])
			if m := x.tree.findHead(key); !m.isNone() {
				c.broken(1, "key %d is in piece %d and begins a chain at %v", key, n, m)
			}
		}
		if i == anchor && r.anchor != 0 && r.anchor != key {
			c.broken(1, "piece %d has key %d for block %d, want %d", n, r.anchor, i, key)
		}
		if engine := r.engine()[i]; engine != 0 && dead>>i&1 == 0 {
			c.name(engine, place{n, i}, place{n, i}.ref(), r.named>>i&1 != 0, r.by)
		} else if r.named>>i&1 != 0 {
			c.broken(7, "piece %d has an entry for block %d, which has no name", n, i)
		}
	}
	if anchor >= r.len() {
		c.broken(1, "piece %d of %d blocks knows the key of block %d", n, r.len(), anchor)
	}
}

// looseBlocks checks the keys of a loose piece.
func (c *check) looseBlocks(n uint32, r *piece) {
	for i := range r.len() {
		p := place{n, i}
		key := r.local()[i]
		if (key != 0) != (c.x.tree.lines.setOf(p) != 0 || c.x.names.isGhost(p)) {
			c.broken(1, "loose block %v has key %d and set %d", p, key, c.x.tree.lines.setOf(p))
		}
		if key == 0 {
			continue
		}
		c.loose++
		if got := c.x.tree.findLoose(key); got != p {
			c.broken(1, "loose key %d is found at %v, want %v", key, got, p)
		}
	}
}

// name checks a name of a block, with or without an entry, and who uses it.
func (c *check) name(engine uint64, p place, ref uint64, entry bool, by uint32) {
	x := c.x
	if entry || x.names.naming != catchingUp {
		c.meant[engine] = true
	}
	switch {
	case x.tree.lines.setOf(p) != 0:
		c.names++
	case !x.names.isGhost(p) || !entry:
		c.broken(7, "engine hash %d names %v, which has no owner; entry %t", engine, p, entry)
	default:
		c.ghosts[p] = true
	}
	if entry {
		c.named++
		if !x.names.hasEntry(ref, engine) {
			c.broken(7, "engine hash %d of %v is not found", engine, p)
		}
		return
	}
	if x.names.naming == allNamed {
		c.broken(9, "engine hash %d of %v has no entry", engine, p)
		return
	}
	if p.at == 0 {
		c.broken(9, "engine hash %d of %v, a first block, has no entry", engine, p)
	}
	x.holders.eachHolder(x.tree.lines.setOf(p), func(o *owner) {
		// A source may have held a block before a second name of it came.
		if x.tree.lines.pieceAt(p.piece).side == 0 && x.names.families.sameFamily(o.s.name, by) &&
			!slices.ContainsFunc(o.s.vague.pieces, func(v vaguePiece) bool { return v.piece == p.piece && !x.tree.lines.hasEnded(v) }) {
			c.broken(9, "source %d does not know that %v has names without entries", o.s.name, p)
		}
	})
}

// counts checks the counters.
func (c *check) counts() {
	x := c.x
	if c.live != x.tree.lanes.liveBlocks() || int64(c.loose) != x.tree.looseBlocks.Load() {
		c.broken(1, "%d blocks, %d of them loose, counted %d and %d", c.live, c.loose, x.tree.lanes.liveBlocks(), x.tree.looseBlocks.Load())
	}
	for id, n := range c.identities[1:] {
		if one := x.tree.identities.of(Identity(id + 1)); one.pieces != n[0] || one.blocks != n[1] {
			c.broken(10, "identity %d has %d pieces with %d blocks, counted %d and %d", id+1, n[0], n[1], one.pieces, one.blocks)
		}
	}
	sums := map[*source]int{}
	for name, o := range x.holders.owners {
		if o == nil {
			continue
		}
		d := c.held[o.id]
		sums[o.s] += d.Blocks
		if o.digest != d || o.raw < 0 || o.raw > d.Blocks || o.copies.len() > d.Blocks {
			c.broken(3, "owner %d holds %+v, counted %+v, %d raw, %d with copies", name, d, o.digest, o.raw, o.copies.len())
		}
		copied := 0
		o.copies.all(func(p place, n uint32) {
			copied++
			if n == 0 || int(p.piece) >= int(x.tree.lines.next.Load()) || p.at >= x.tree.lines.pieceAt(p.piece).len() ||
				!x.tree.sets.has(x.tree.lines.setOf(p), o.id) {
				c.broken(6, "owner %d has %d extra copies of %v", name, n, p)
			}
		})
		for piece, blocks := range o.copies.doubted.all {
			for left := *blocks; left != 0; left &= left - 1 {
				if p := (place{uint32(piece), trailing(left)}); p.piece >= x.tree.lines.next.Load() ||
					p.at >= x.tree.lines.pieceAt(p.piece).len() || !x.tree.sets.has(x.tree.lines.setOf(p), o.id) {
					c.broken(6, "owner %d lost a copy of %v last", name, p)
				}
			}
		}
		if copied != o.copies.len() {
			c.broken(6, "owner %d has copies of %d blocks, counted %d", name, copied, o.copies.len())
		}
	}
	for i, s := range x.holders.sources {
		if s != nil && s.held != sums[s] {
			c.broken(3, "source %d holds %d blocks, counted %d", i, sums[s], s.held)
		}
	}
	for id := range c.held {
		if o := x.holders.owners[x.tree.ids.Load().owner[id]]; !c.retired(id) && (o == nil || o.id != id) {
			c.broken(4, "internal id %d is in sets and no owner's", id)
		}
	}
}

// ghostQueue checks that the queue has each ghost once, and what else it has is counted as stale.
func (c *check) ghostQueue() {
	g := &c.x.names.ghosts
	if len(c.ghosts) != c.x.names.countGhosts() {
		c.broken(12, "%d ghosts, counted %d", len(c.ghosts), c.x.names.countGhosts())
	}
	if g.on.Load() && c.x.names.naming == onDemand {
		c.broken(12, "ghosts are kept, and names get entries on demand")
	}
	entries := map[place]uint32{}
	for _, e := range g.queue[g.first:] {
		for w := e.blocks; w != 0; w &= w - 1 {
			entries[place{e.piece, trailing(w)}]++
		}
	}
	for p := range c.ghosts {
		if entries[p] == 0 {
			c.broken(12, "ghost %v is not in the queue", p)
		} else if entries[p]--; entries[p] == 0 {
			delete(entries, p)
		}
	}
	stale := 0
	g.stale.all(func(p place, n uint32) {
		if stale++; entries[p] != n {
			c.broken(12, "block %v is in %d entries of before, counted %d", p, entries[p], n)
		}
	})
	if stale != len(entries) {
		c.broken(12, "%d blocks are in entries of before, counted %d", len(entries), stale)
	}
	for engine := range g.held {
		if c.x.tree.findLoose(engine).isNone() {
			c.broken(13, "no block is held by the lost name %d", engine)
		}
	}
	if int64(len(g.held)) != g.lost.Load() {
		c.broken(13, "%d lost names, counted %d", len(g.held), g.lost.Load())
	}
}

// tables checks that the tables have no other entries.
func (c *check) tables() {
	x := c.x
	if c.named != int(x.names.table.n.Load()) {
		c.broken(7, "%d names with entries, %d entries", c.named, x.names.table.n.Load())
	}
	if c.names != x.tree.lanes.sharedNames() {
		c.broken(7, "%d names, counted %d", c.names, x.tree.lanes.sharedNames())
	}
	if c.heads != x.tree.heads.len()+x.tree.firsts.len() || c.loose != x.tree.loose.len() {
		c.broken(1, "%d pieces of chains and %d loose blocks, %d and %d entries", c.heads, c.loose,
			x.tree.heads.len()+x.tree.firsts.len(), x.tree.loose.len())
	}
	privates := 0
	for ref, list := range x.names.privates.of {
		for p := range list {
			privates++
			if have := p.s.private.ref(p.engine); have == nil || *have != ref {
				c.broken(7, "source %d does not mean block %v by %d", p.s.name, placeOf(ref), p.engine)
			}
		}
	}
	counted := privates
	for _, s := range x.holders.sources {
		if s != nil {
			privates -= s.private.len()
		}
	}
	if n := int(x.names.privates.n.Load()); n != counted {
		c.broken(7, "%d private names are counted", n)
	}
	if privates != 0 {
		c.broken(7, "%d private names more by block than by source", privates)
	}
}

// sets checks that each set is counted, and can be found by what it holds.
func (c *check) sets() {
	s := &c.x.tree.sets
	b := s.body.Load()
	free := map[uint32]bool{}
	for _, id := range s.spare {
		free[id] = true
	}
	for id := uint32(1); id < s.n; id++ {
		if free[id] {
			continue
		}
		if n := uint32(*s.state(id)); n != c.refs[id] {
			c.broken(2, "set %d has %d references, counted %d", id, c.refs[id], n)
		}
		var h uint64
		some := 0
		c.members(id, func(o uint32) { h ^= setWord(o); some++ })
		if some == 0 || h != s.hash[id] {
			c.broken(2, "set %d has %d owners or another hash", id, some)
			continue
		}
		if got := s.number(h, b.of(id)); got != id {
			c.broken(2, "set %d is found as %d", id, got)
		}
		s.drop(id)
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
	for parent, first := range r.byParent.all {
		before := none
		for i := *first; i != none && siblings <= r.used; i = r.links[i].next {
			if l := r.links[i]; l.parent != parent || l.prev != before {
				c.broken(8, "source %d: link of %d is not a child of %d", src, l.engine, parent)
			}
			siblings, before = siblings+1, i
		}
	}
	if siblings != r.used {
		c.broken(8, "source %d: %d links by parent, want %d", src, siblings, r.used)
	}
}
