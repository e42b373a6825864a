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
//
// The model tests call it after each event, and the bench after each run. Its findings are
// ordered as the invariants depend on each other: if owners and ids, or the pieces
// themselves, are broken, it reports those alone.
func (x *Index) Check() error {
	x.lock()
	defer x.unlock()
	c := &check{x: x, held: make(map[uint32]Digest), refs: make(map[uint32]uint32), lines: make(map[uint32]string),
		ghosts: make(map[position]bool),
		meant:  make(map[uint64]bool), identities: make([][2]uint32, len(*x.tree.identities.list.Load()))}
	if !c.checkIDs() || !c.checkPieces() { // nothing else can be read then
		return errors.Join(c.findings...)
	}
	c.checkCounts()
	c.checkGhostQueue()
	c.checkTables()
	c.checkWaiting()
	c.checkSets()
	for i, s := range x.holders.sources {
		if s != nil {
			c.checkRoom(Source(i), s)
		}
	}
	return errors.Join(c.findings...)
}

// check is a check in progress: what it has counted so far, to be compared with what the
// index has counted.
//
// The index keeps counts because it cannot afford to sum up; the check sums up and
// compares. Where it can, it comes to a number by another way than events do, so that one
// mistake does not hide in both.
type check struct {
	x        *Index
	findings []error
	held     map[uint32]Digest // by internal id: memberships seen
	refs     map[uint32]uint32 // by set: intervals seen
	lines    map[uint32]string // what uses a line
	live     int
	named    int // names with entries
	names    int
	ghosts   map[position]bool
	loose    int
	heads    int
	sides    int // lines of names of loose pieces

	meant      map[uint64]bool // engine hashes that are names
	identities [][2]uint32     // by number: pieces, and blocks with an owner
}

// report notes a broken invariant. The first findings explain the rest, so later ones are
// dropped.
func (c *check) report(invariant int, format string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf("invariant %d: "+format, append([]any{invariant}, args...)...))
	}
}

// eachMember calls f for each owner in a set, retired ones too, because sets keep those
// until the sweep has passed, and references and sums must still be right for them.
func (c *check) eachMember(id uint32, f func(owner uint32)) {
	for i, w := range c.x.tree.sets.body.Load().wordsOf(id) {
		for ; w != 0; w &= w - 1 {
			f(uint32(i)<<6 + lowestBit(w))
		}
	}
}

func (c *check) isRetired(id uint32) bool {
	return c.x.tree.ids.Load().retired[id>>6]>>(id&63)&1 != 0
}

// checkIDs checks that living owners and internal ids name each other. It comes first: the
// sets of pieces have internal ids, and all that is summed up by owner depends on them.
func (c *check) checkIDs() bool {
	d := c.x.tree.ids.Load()
	for name, o := range c.x.holders.owners {
		if o != nil && (int(o.id) >= c.x.holders.used || d.owner[o.id] != uint32(name) || c.isRetired(o.id)) {
			c.report(4, "owner %d has internal id %d", name, o.id)
		}
	}
	return len(c.findings) == 0
}

// useLines notes the user of some lines, and reports lines with two users. A line that is
// used twice is the worst that can happen: the next write to it changes blocks of somebody
// else's chain. At the end the number of lines with a user must be that of lines in use, or
// some were lost for good.
func (c *check) useLines(line uint32, n int, by string) {
	for ; n > 0; n-- {
		if other := c.lines[line]; other != "" {
			c.report(5, "line %d is used by %s and %s", line, other, by)
		}
		if int(line/pageLines) >= len(c.x.tree.lines.used) || c.x.tree.lines.used[line/pageLines]>>(line%pageLines)&1 == 0 {
			c.report(5, "line %d of %s is free", line, by)
			return
		}
		c.lines[line] = by
		line++
	}
}

// checkPieces checks each piece on its own, and reports whether they can be read.
//
// If a piece is broken, nothing that follows can be trusted to end, so the caller stops
// there.
//
// Names are checked for blocks with an owner and for ghosts. Words of dead blocks are what
// removals leave behind, and may be anything; a bit that says such a word has an entry
// would be a broken promise, as nothing would take the entry out any more.
func (c *check) checkPieces() bool {
	x := c.x
	x.tree.lines.eachPiece(func(n uint32, r *piece) {
		if r.len() == 0 || r.len() > r.cap() || r.cap() > maxPiece || r.ver&(changing|held) != 0 || r.intervalCount() == 0 {
			c.report(1, "piece %d has %d blocks of %d, %d intervals, version %d", n, r.len(), r.cap(), r.intervalCount(), r.ver)
			return
		}
		c.useLines(n, linesFor(r.meta), fmt.Sprint("piece ", n))
		if !c.checkIdentity(n, r) {
			return
		}
		if k := intervalLines(r.intervalCount()); k > 0 {
			if r.intervals[0] >= x.tree.lines.next.Load() {
				c.report(5, "intervals of piece %d are in line %d", n, r.intervals[0])
				return
			}
			c.useLines(r.intervals[0], k, fmt.Sprint("intervals of piece ", n))
		}
		c.checkIntervals(n, r)
		if r.loose() {
			c.checkLooseBlocks(n, r)
		} else {
			c.checkChain(n, r)
		}
		dead := x.tree.lines.deadBlocks(r)
		for line := r.side; line != 0 && len(c.findings) == 0; {
			d := x.tree.lines.sideAt(line)
			k, _ := sideLines(d.cap())
			c.useLines(line, k, fmt.Sprint("names of piece ", n))
			if r.loose() {
				c.sides++
			}
			if d.meta&isSide == 0 || d.piece != n {
				c.report(7, "names in line %d of piece %d: flags %x, piece %d", line, n, d.meta, d.piece)
			}
			for i, engine := range d.engineHashes()[:d.cap()] {
				at := d.firstBlock() + uint32(i)
				if at < r.len() && dead>>at&1 == 0 && engine != 0 {
					c.checkName(engine, position{n, at}, position{line, uint32(i)}.encode(), d.named>>i&1 != 0, d.by)
				} else if d.named>>i&1 != 0 {
					c.report(7, "line %d has an entry for block %d, which has no name", line, i)
				}
			}
			line = d.next
		}
	})
	if len(c.lines) != int(x.tree.lines.live.Load()) && len(c.findings) == 0 {
		c.report(5, "%d lines are used, counted %d", len(c.lines), x.tree.lines.live.Load())
	}
	if c.sides != x.tree.looseSides && len(c.findings) == 0 {
		c.report(7, "%d lines of names of loose pieces, counted %d", c.sides, x.tree.looseSides)
	}
	return len(c.findings) == 0
}

// checkIdentity checks the identity of a piece: it must be one that is in use, with its
// constant. A piece with the constant of another identity would hold blocks whose keys no
// query of either could compute.
func (c *check) checkIdentity(n uint32, r *piece) bool {
	of, list := r.chainIdentity(), *c.x.tree.identities.list.Load()
	if r.meta&isOther != 0 && (of.id == 0 || int(of.id) >= len(list) || list[of.id].dropped || list[of.id].constant != of.constant) {
		c.report(10, "piece %d is of identity %d with constant %x", n, of.id, of.constant)
		return false
	}
	c.identities[of.id][0]++
	return true
}

// checkWaiting checks that blocks wait under engine hashes that mean nothing to their
// sources, or are contested: a source may wait since before it announced tokens. Anything
// else would wait for ever, as the hash gets its meaning once. While the index is
// catching up, a name without an entry cannot be found yet, so it gives no meaning
// (checkName).
func (c *check) checkWaiting() {
	x := c.x
	x.tree.lines.eachPiece(func(n uint32, r *piece) {
		for i := uint32(0); r.loose() && i < r.len(); i++ {
			engine, p := r.localHashes()[i], position{n, i}
			if engine == 0 || !c.meant[engine] || x.names.hasNames(p) {
				continue
			}
			x.holders.eachHolder(x.tree.lines.setOf(p), func(o *owner) {
				if o.s.raw && o.s.private.find(engine) == nil && !x.resolver.contests.of[engine] {
					c.report(11, "owner %d holds a block under the engine hash %d, which means another one", o.name, engine)
				}
			})
		}
	})
}

// checkIntervals checks the owners of a piece: that its intervals cover all blocks in
// rising order, that neighbours differ (invariant 2), and that the last block has an owner
// or is a ghost (invariant 1).
//
// Digests are summed up block by block here, and not by runs as events do, so that the
// check shares no shortcut with what it checks.
func (c *check) checkIntervals(n uint32, r *piece) {
	x := c.x
	var buf [maxPiece + 2]interval
	start, last := uint32(0), ^uint32(0)
	for _, v := range x.tree.lines.intervalsOf(r, &buf) {
		if v.end <= start || v.end > r.len() || v.set == last || v.set >= x.tree.sets.n {
			c.report(2, "piece %d has blocks %d to %d with set %d behind set %d", n, start, v.end, v.set, last)
			return
		}
		if v.set != 0 {
			c.refs[v.set]++
			c.live += int(v.end - start)
			c.identities[r.identityID()][1] += v.end - start
		}
		sum, loose := uint64(0), 0
		for at := start; at < v.end; at++ { // one by one, not as events sum them
			if !r.loose() {
				sum += r.localHashes()[at]
				continue
			}
			sum += r.looseWord(at)
			loose++
		}
		c.eachMember(v.set, func(o uint32) {
			d := c.held[o]
			d.addBlocks(int(v.end-start), loose, x.tree.identities.weighWords(r, sum))
			c.held[o] = d
			if int(o) >= x.holders.used {
				c.report(4, "piece %d has the internal id %d of %d", n, o, x.holders.used)
			}
		})
		start, last = v.end, v.set
	}
	if start != r.len() || last == 0 && !x.names.isGhost(position{n, start - 1}) {
		c.report(1, "piece %d has %d blocks, intervals up to %d, the last with set %d", n, r.len(), start, last)
	}
}

// checkChain checks the keys and names of a chained piece. It computes the key of each
// block from the head, which no event does, and looks whether it also begins a piece: a
// chain with two blocks of one key would give queries one of them, and removals the other.
func (c *check) checkChain(n uint32, r *piece) {
	x := c.x
	c.heads++
	first := r.head == r.chainIdentity().firstKey(r.localHashes()[0])
	if first != (r.meta&isFirst != 0) {
		c.report(1, "piece %d begins a prompt: %v, and %v by its flag", n, first, !first)
	}
	if got := x.tree.findBeginning(r.head, first); got != (position{piece: n}) || r.head == 0 {
		c.report(1, "piece %d begins with key %d, found at %v", n, r.head, got)
	}
	key, dead, anchor := r.head, x.tree.lines.deadBlocks(r), anchorAt(r.meta)
	for i := range r.len() {
		if i > 0 {
			key = x.tree.followKey(key, r.constant(), r.localHashes()[i])
			if m := x.tree.findHead(key); !m.isNone() {
				c.report(1, "key %d is in piece %d and begins a chain at %v", key, n, m)
			}
		}
		// A wrong anchor makes all keys behind it wrong, for every query that leaves the
		// piece.
		if i == anchor && r.anchor != 0 && r.anchor != key {
			c.report(1, "piece %d has key %d for block %d, want %d", n, r.anchor, i, key)
		}
		if engine := r.engineHashes()[i]; engine != 0 && dead>>i&1 == 0 {
			c.checkName(engine, position{n, i}, position{n, i}.encode(), r.named>>i&1 != 0, r.by)
		} else if r.named>>i&1 != 0 {
			c.report(7, "piece %d has an entry for block %d, which has no name", n, i)
		}
	}
	if anchor >= r.len() {
		c.report(1, "piece %d of %d blocks knows the key of block %d", n, r.len(), anchor)
	}
}

// checkLooseBlocks checks the keys of a loose piece. A position has a key if its block has
// an owner or is a ghost. A key that stayed behind would still be found as a block.
func (c *check) checkLooseBlocks(n uint32, r *piece) {
	for i := range r.len() {
		p := position{n, i}
		key := r.localHashes()[i]
		if (key != 0) != (c.x.tree.lines.setOf(p) != 0 || c.x.names.isGhost(p)) {
			c.report(1, "loose block %v has key %d and set %d", p, key, c.x.tree.lines.setOf(p))
		}
		if key == 0 {
			continue
		}
		c.loose++
		if got := c.x.tree.findLoose(key); got != p {
			c.report(1, "loose key %d is found at %v, want %v", key, got, p)
		}
	}
}

// checkName checks a name of a block, with or without an entry, and who uses it.
//
// Names without an entry are allowed only while names get entries on demand, and then each
// source that would mention them must list the piece.
func (c *check) checkName(engine uint64, p position, ref uint64, entry bool, by uint32) {
	x := c.x
	// While names get entries one after the other, one without an entry cannot be found, so
	// it means nothing yet.
	if entry || x.names.naming != catchingUp {
		c.meant[engine] = true
	}
	switch {
	case x.tree.lines.setOf(p) != 0:
		c.names++
	case !x.names.isGhost(p) || !entry:
		c.report(7, "engine hash %d names %v, which has no owner; entry %t", engine, p, entry)
	default:
		c.ghosts[p] = true
	}
	if entry {
		c.named++
		if !x.names.hasEntry(ref, engine) {
			c.report(7, "engine hash %d of %v is not found", engine, p)
		}
		return
	}
	if x.names.naming == allNamed {
		c.report(9, "engine hash %d of %v has no entry", engine, p)
		return
	}
	if p.at == 0 {
		c.report(9, "engine hash %d of %v, a first block, has no entry", engine, p)
	}
	x.holders.eachHolder(x.tree.lines.setOf(p), func(o *owner) {
		// A source may have held a block before a second name of it came.
		if x.tree.lines.pieceAt(p.piece).side == 0 && x.names.families.sameFamily(o.s.name, by) &&
			!slices.ContainsFunc(o.s.unindexed.pieces, func(v unindexedPiece) bool {
				return v.piece == p.piece &&
					!x.tree.lines.hasEnded(v)
			}) {
			c.report(9, "source %d does not know that %v has names without entries", o.s.name, p)
		}
	})
}

// checkCounts checks the counters: blocks, identities, and what each owner and source
// holds. held is by internal id, since sets know nothing else; an id in a set that is
// nobody's and not retired would hand its blocks to the next owner with the id.
func (c *check) checkCounts() {
	x := c.x
	if c.live != x.tree.lanes.liveBlocks() || int64(c.loose) != x.tree.looseBlocks.Load() {
		c.report(1, "%d blocks, %d of them loose, counted %d and %d", c.live, c.loose, x.tree.lanes.liveBlocks(), x.tree.looseBlocks.Load())
	}
	for id, n := range c.identities[1:] {
		if one := x.tree.identities.byID(Identity(id + 1)); one.pieces != n[0] || one.blocks != n[1] {
			c.report(10, "identity %d has %d pieces with %d blocks, counted %d and %d", id+1, n[0], n[1], one.pieces, one.blocks)
		}
	}
	// raw is an estimate and only bounded. All else that an owner counts must be exact, as
	// answers and digests are made of it.
	sums := map[*source]int{}
	for name, o := range x.holders.owners {
		if o == nil {
			continue
		}
		d := c.held[o.id]
		sums[o.s] += d.Blocks
		if o.digest != d || o.raw < 0 || o.raw > d.Blocks || o.copies.len() > d.Blocks {
			c.report(3, "owner %d holds %+v, counted %+v, %d raw, %d with copies", name, d, o.digest, o.raw, o.copies.len())
		}
		copied := 0
		o.copies.eachBlock(func(p position, n uint32) {
			copied++
			if n == 0 || int(p.piece) >= int(x.tree.lines.next.Load()) || p.at >= x.tree.lines.pieceAt(p.piece).len() ||
				!x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
				c.report(6, "owner %d has %d extra copies of %v", name, n, p)
			}
		})
		// What is in doubt must be held, or DropCopies would take a later block at the same
		// position.
		for piece, blocks := range o.copies.doubted.each {
			for left := *blocks; left != 0; left &= left - 1 {
				if p := (position{uint32(piece), lowestBit(left)}); p.piece >= x.tree.lines.next.Load() ||
					p.at >= x.tree.lines.pieceAt(p.piece).len() || !x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
					c.report(6, "owner %d lost a copy of %v last", name, p)
				}
			}
		}
		if copied != o.copies.len() {
			c.report(6, "owner %d has copies of %d blocks, counted %d", name, copied, o.copies.len())
		}
	}
	for i, s := range x.holders.sources {
		if s != nil && s.held != sums[s] {
			c.report(3, "source %d holds %d blocks, counted %d", i, sums[s], s.held)
		}
	}
	for id := range c.held {
		if o := x.holders.owners[x.tree.ids.Load().owner[id]]; !c.isRetired(id) && (o == nil || o.id != id) {
			c.report(4, "internal id %d is in sets and no owner's", id)
		}
	}
}

// checkGhostQueue checks that the queue has each ghost once, and what else it has is
// counted as stale.
//
// It counts the entries of each position. A ghost has one more than stale says, anything
// else exactly as many: the queue says nothing about which of several entries is the one
// that counts, as entries of former lives come first (ghosts.go).
func (c *check) checkGhostQueue() {
	g := &c.x.names.ghosts
	if len(c.ghosts) != c.x.names.countGhosts() {
		c.report(12, "%d ghosts, counted %d", len(c.ghosts), c.x.names.countGhosts())
	}
	if g.on.Load() && c.x.names.naming == onDemand {
		c.report(12, "ghosts are kept, and names get entries on demand")
	}
	// What has no entry left here and is no ghost was all that stale says; the rest is
	// compared below.
	entries := map[position]uint32{}
	for _, e := range g.queue[g.first:] {
		for w := e.blocks; w != 0; w &= w - 1 {
			entries[position{e.piece, lowestBit(w)}]++
		}
	}
	for p := range c.ghosts {
		if entries[p] == 0 {
			c.report(12, "ghost %v is not in the queue", p)
		} else if entries[p]--; entries[p] == 0 {
			delete(entries, p)
		}
	}
	stale := 0
	g.stale.eachBlock(func(p position, n uint32) {
		if stale++; entries[p] != n {
			c.report(12, "block %v is in %d entries of before, counted %d", p, entries[p], n)
		}
	})
	if stale != len(entries) {
		c.report(12, "%d blocks are in entries of before, counted %d", len(entries), stale)
	}
	for engine := range g.held {
		if c.x.tree.findLoose(engine).isNone() {
			c.report(13, "no block is held by the lost name %d", engine)
		}
	}
	if int64(len(g.held)) != g.lost.Load() {
		c.report(13, "%d lost names, counted %d", len(g.held), g.lost.Load())
	}
}

// checkTables checks that the tables have no other entries.
//
// Everything that pieces have was looked up before. If the tables have as many entries,
// they have no others. An entry that leads nowhere would not be noticed otherwise: the
// piece at its line says no each time it is asked, and the memory is lost.
func (c *check) checkTables() {
	x := c.x
	if c.named != int(x.names.table.n.Load()) {
		c.report(7, "%d names with entries, %d entries", c.named, x.names.table.n.Load())
	}
	if c.names != x.tree.lanes.sharedNames() {
		c.report(7, "%d names, counted %d", c.names, x.tree.lanes.sharedNames())
	}
	if c.heads != x.tree.heads.countEntries()+x.tree.firsts.countEntries() || c.loose != x.tree.loose.countEntries() {
		c.report(1, "%d pieces of chains and %d loose blocks, %d and %d entries", c.heads, c.loose,
			x.tree.heads.countEntries()+x.tree.firsts.countEntries(), x.tree.loose.countEntries())
	}
	privates := 0
	for ref, list := range x.names.privates.of {
		for p := range list {
			privates++
			if have := p.s.private.find(p.engine); have == nil || *have != ref {
				c.report(7, "source %d does not mean block %v by %d", p.s.name, decodePosition(ref), p.engine)
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
		c.report(7, "%d private names are counted", n)
	}
	if privates != 0 {
		c.report(7, "%d private names more by block than by source", privates)
	}
}

// checkSets checks that each set is counted, and can be found by what it holds. A set that
// is not found would be made a second time, and two pieces with the same owners would no
// longer have the same number (invariant 2).
//
// internSet takes a reference for its caller, which is given back.
func (c *check) checkSets() {
	s := &c.x.tree.sets
	for k := range c.x.names.sweep.kept {
		for _, set := range k.of {
			c.refs[set]++
		}
	}
	b := s.body.Load()
	free := map[uint32]bool{}
	for _, id := range s.spare {
		free[id] = true
	}
	for id := uint32(1); id < s.n; id++ {
		if free[id] {
			continue
		}
		if n := uint32(*s.stateOf(id)); n != c.refs[id] {
			c.report(2, "set %d has %d references, counted %d", id, c.refs[id], n)
		}
		// The hash is made of the owners again: one that was wrong would make the set
		// unfindable.
		var h uint64
		some := 0
		c.eachMember(id, func(o uint32) { h ^= setWord(o); some++ })
		if some == 0 || h != s.hash[id] {
			c.report(2, "set %d has %d owners or another hash", id, some)
			continue
		}
		if got := s.internSet(h, b.wordsOf(id)); got != id {
			c.report(2, "set %d is found as %d", id, got)
		}
		s.releaseSet(id)
	}
}

// checkRoom checks the links of one source and the orders they are kept in.
//
// The links are in three orders: by engine hash, by parent and by age. Each must have all
// of them. The loops stop after as many steps as there can be links, because a broken chain
// may be a circle.
func (c *check) checkRoom(src Source, s *source) {
	r := &s.room
	if r.used != r.byEngine.len() || r.used > max(c.x.maxOrphans, 0) || r.used > 0 && s.held == 0 {
		c.report(8, "source %d: %d links, %d engine hashes of links, %d blocks", src, r.used, r.byEngine.len(), s.held)
	}
	seen, decided, before := 0, 0, none
	if r.used > 0 {
		for i := r.oldest; i != none && seen <= r.used; i = r.links[i].newer {
			l := r.links[i]
			if r.linkOf(l.engine) != i || l.older != before {
				c.report(8, "source %d: link of %d is out of order", src, l.engine)
			}
			if l.engine == l.parent {
				c.report(8, "source %d: %d waits on itself", src, l.engine)
			}
			if !l.undecided {
				decided++
			}
			seen, before = seen+1, i
		}
		if before != r.newest {
			c.report(8, "source %d: the newest link is not the last", src)
		}
	}
	if seen != r.used || decided != r.decided {
		c.report(8, "source %d: %d links by age, %d decided, want %d and %d", src, seen, decided, r.used, r.decided)
	}
	siblings := 0
	for parent, first := range r.byParent.each {
		before := none
		for i := *first; i != none && siblings <= r.used; i = r.links[i].next {
			if l := r.links[i]; l.parent != parent || l.prev != before {
				c.report(8, "source %d: link of %d is not a child of %d", src, l.engine, parent)
			}
			siblings, before = siblings+1, i
		}
	}
	if siblings != r.used {
		c.report(8, "source %d: %d links by parent, want %d", src, siblings, r.used)
	}
}
