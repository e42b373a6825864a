package index

import (
	"maps"
	"math/bits"
	"slices"
)

// resolver says what an engine hash means to a source. Where an event says so, it moves the
// blocks that waited for it.
type resolver struct {
	tree     *tree
	names    *nameMap
	finder   *finder
	bounds   *bounds
	holders  *holders
	contests contests
}

// meaningOf returns the block that an engine hash stands for in the source, none if it is
// not known. What the source means alone comes first. A contested hash means nothing to a
// source that has no tokens of its own to tell which of the meanings is right.
//
// A sweep may have to take retired owners out of the block's piece first. If nobody else
// held it, the private name goes with it, so the name is looked up again behind it.
func (rs *resolver) meaningOf(s *source, engine uint64) position {
	if s.private.len() > 0 {
		if ref := s.private.find(engine); ref != nil {
			p := decodePosition(*ref)
			if rs.names.sweep.left == 0 || !rs.names.cleanPiece(p.piece, rs.tree.lines.pieceAt(p.piece)) || s.private.find(engine) != nil {
				return p
			}
		}
	}
	if rs.isContested(s, engine) {
		return position{}
	}
	return rs.seekMeaning(s, engine)
}

// seekMeaning returns the block that an engine hash means to a source, nil for none, and to
// all. Of several blocks it is one that the source holds, if there is one.
//
// A hash that is nowhere found ends naming on demand: the source mentions what it has not
// announced itself, so some other source must have taught it, and no search near the
// source's own mentions will ever find that.
func (rs *resolver) seekMeaning(s *source, engine uint64) position {
	p, line := rs.names.findName(engine)
	if rs.names.naming == allNamed {
		rs.finder.noteMention(s, p)
		return p
	}
	if line != 0 && (s == nil || rs.tree.isHeldBy(s, p)) {
		return p
	}
	if s != nil {
		if q := rs.finder.searchHash(s, engine, nil, line != 0); !q.isNone() {
			return q
		}
	}
	if line == 0 && rs.names.naming == onDemand {
		rs.beginNamingAll()
		p, _ = rs.names.findName(engine)
	}
	return p
}

// isOrdinary reports that an engine hash has nothing to do with the private names, the raw
// blocks or the waiting room of the source. It is asked for each block of a source that has
// any of these, so the cheapest conditions come first.
func (rs *resolver) isOrdinary(s *source, engine uint64) bool {
	return (s.private.len() == 0 || s.private.find(engine) == nil) && !rs.isContested(s, engine) &&
		(!s.raw || rs.tree.findLoose(engine).isNone()) &&
		(s.room.used == 0 || s.room.linkOf(engine) == none && s.room.firstChild(engine) == none)
}

// learnMeaning notes what an engine hash means to the source, a block with an owner. What
// it meant before, no removal can name any more, so the source's owners lose it. It reports
// whether any did. A ghost gives the name up.
//
// If the hash means another block to all others, the source keeps its own meaning to
// itself, and both go on. Which of them is right cannot be told here, but removals by this
// source are about the block that this source has stored.
func (rs *resolver) learnMeaning(s *source, engine uint64, p position, want int) (conflict bool) {
	if ref := s.private.find(engine); ref != nil && rs.names.sweep.left > 0 {
		own := decodePosition(*ref)
		rs.names.cleanPiece(own.piece, rs.tree.lines.pieceAt(own.piece)) // the name leaves if only retired owners hold its block
	}
	// before is what the hash meant to this source, shared what it means to all. They
	// differ only if the source has a meaning of its own.
	before, line := rs.names.findName(engine)
	// Without an entry the table does not know the name, but the block itself may have it
	// already.
	if line == 0 && s.private.find(engine) == nil {
		before, line = rs.names.findKnown(engine, p)
	}
	shared := before
	if ref := s.private.find(engine); ref != nil {
		before = decodePosition(*ref)
	}
	if shared == p {
		rs.finder.joinTeacher(s, line)
	}
	if before != p && !before.isNone() {
		// It was the same block, held by its key because its place was not known. It moves
		// there with all its owners. Then the hash is looked at once more; the loose block
		// is gone, so this happens once.
		if rs.tree.lines.pieceAt(before.piece).loose() && rs.tree.keyOf(before) == rs.tree.keyOf(p) {
			rs.absorbLoose(before, p)
			return rs.learnMeaning(s, engine, p, want)
		}
		// The publisher has given the hash to another block, so it cannot name the old one
		// any more, not even to remove it. What it cannot remove must not stay in answers.
		for _, o := range s.owners {
			conflict = rs.holders.removeHolder(o, before) || conflict
		}
		shared, _ = rs.names.findName(engine)
	}
	// No source holds the block that all mean by the hash, so nobody is contradicted if the
	// name moves.
	if !shared.isNone() && shared != p && rs.names.isGhost(shared) {
		rs.dropName(shared, engine)
		shared = position{}
	}
	rs.names.privates.dropPrivate(s, engine)
	switch {
	case shared == p:
	// Holders of the other block go on meaning that one.
	case !shared.isNone():
		rs.names.privates.addPrivate(s, engine, p)
		rs.contestHash(s, engine, shared)
	// The block has more names than fit. What is one too many is kept by the source itself.
	case !rs.finder.addName(s, p, engine, want):
		rs.names.privates.addPrivate(s, engine, p)
	}
	if rs.contests.n.Load() > 0 {
		rs.decideContest(engine) // the source meant something else before
	}
	rs.names.noteMeaning(engine)
	return conflict
}

// placeLoose moves what the source holds under a key, as if it were an engine hash, to the
// block of the key. A loose block with names is one of that key, so it moves whole. Without
// names it is a hash that waits, and concerns this source alone: another source may mean
// something else by the same number.
func (rs *resolver) placeLoose(s *source, key uint64, to position) {
	from := rs.tree.findLoose(key)
	if from.isNone() || from == to || !rs.names.isAlive(from) {
		return
	}
	if rs.names.hasNames(from) {
		rs.absorbLoose(from, to)
	} else {
		rs.holders.moveRaw(s, key, to)
	}
}

// absorbLoose moves a loose block into the block of a chain with the same key: owners,
// copies and names. For a source that uses none of the names the key becomes one.
//
// Names are added before the owners' private ones, since a source whose family has taught a
// name needs none of its own.
//
// There are three steps between which queries may look: the owners are at both places for a
// moment, then at the new one, then the names come. At no moment is an owner at neither.
func (rs *resolver) absorbLoose(from, to position) {
	type taught struct {
		engine uint64
		by     uint32
	}
	var names []taught
	rs.tree.lines.eachNameOf(from, func(engine uint64, by uint32) { names = append(names, taught{engine, by}) })
	// Collect everything first. The loose block may end with its last owner, and its names
	// and private names with it.
	own := slices.Collect(maps.Keys(rs.names.privates.of[from.encode()]))
	var owners []*owner
	rs.holders.eachHolder(rs.tree.lines.setOf(from), func(o *owner) { owners = append(owners, o) })
	for _, o := range owners {
		rs.holders.moveBlock(o, from, to)
	}
	if rs.names.isGhost(from) {
		rs.bounds.dismissGhost(from) // before its names come to the other block
	}
	for _, n := range names {
		// A name stays its teacher's, even if that source is gone by now, because families
		// go by teachers.
		rs.finder.addName(&source{name: Source(n.by - 1), lane: rs.tree.lanes.laneOf(0)}, to, n.engine, 1)
	}
	for _, p := range own {
		rs.names.privates.addPrivate(p.s, p.engine, to)
	}
	for _, o := range owners {
		rs.finder.noteUnindexed(o.s, to.piece)
		named := slices.ContainsFunc(names, func(n taught) bool { return rs.names.families.sameFamily(o.s.name, n.by) }) ||
			slices.ContainsFunc(own, func(p private) bool { return p.s == o.s })
		// The source stored the block by its key, as if that were an engine hash, and will
		// remove it by that.
		if key := rs.tree.keyOf(to); o.s.raw && !named && rs.meaningOf(o.s, key).isNone() {
			rs.names.privates.addPrivate(o.s, key, to)
		}
	}
}

// joinGhost gives the names of a loose ghost to the block of a chain with the same key,
// which has an owner. The ghost was a block whose place was not known when it lost its last
// owner. Left alone, it would keep its names until its turn in the queue, and a removal by
// one of them would find a block without an owner instead of this one.
func (rs *resolver) joinGhost(key uint64, to position) {
	if rs.tree.looseBlocks.Load() == 0 || !rs.names.ghosts.hasGhosts() {
		return
	}
	if from := rs.tree.findLoose(key); !from.isNone() && from != to && rs.names.isGhost(from) {
		rs.absorbLoose(from, to)
	}
}

// dropName takes an engine hash off a block. A ghost without another one ends, as nothing
// is left by which an event could mention it. The entry leaves before the word does, while
// readers wait: an entry that leads to a block without the name costs a probe, but would
// never be taken out.
func (rs *resolver) dropName(p position, engine uint64) {
	line := rs.names.lineOfName(p, engine)
	if line == 0 {
		return
	}
	r := rs.tree.lines.pieceAt(p.piece)
	words, named, i := r.engineHashes(), &r.named, p.at
	if line != p.piece {
		d := rs.tree.lines.sideAt(line)
		words, named, i = d.engineHashes(), &d.named, p.at-d.firstBlock()
	}
	rs.tree.lockPiece(p.piece, r)
	if *named>>i&1 != 0 {
		rs.names.table.removeEntry(mix(engine), position{line, i}.encode())
		*named &^= 1 << i
	}
	write64(&words[i], 0)
	r.unlockReaders()
	switch {
	case rs.tree.lines.setOf(p) != 0:
		rs.tree.lanes.each[0].lane.names--
	case !rs.names.isGhost(p):
		rs.bounds.dismissGhost(p)
	}
}

// findByKey returns the block of a key, if it is found by its name, as the first of a
// piece, or as a loose one.
//
// It may miss a block in the midst of a piece. The block is then held as a loose one for
// now, and joins its chain when the parent is known.
func (rs *resolver) findByKey(s *source, engine, key uint64) position {
	if p := rs.meaningOf(s, engine); !p.isNone() && rs.tree.keyOf(p) == key {
		return p
	}
	for _, first := range []bool{false, true} {
		if c := rs.names.cleanCursor(cursor{kind: atBlock, at: rs.tree.findBeginning(key, first), key: key}); !c.at.isNone() {
			return c.at
		}
	}
	return rs.names.cleanCursor(cursor{kind: atKey, at: rs.tree.findLoose(key), key: key}).at
}

// findPlace finds a block of a chain by its key. Nothing else in the index does, since keys
// within pieces are in no table. It makes a map of all blocks, which serves until the next
// event. Only snapshots from other indexes need it, and they come in many events one after
// the other, so the map is kept up to date by those (notePlace) and thrown away by any
// other.
func (rs *resolver) findPlace(key uint64) position {
	if rs.tree.places == nil {
		rs.tree.places = make(map[uint64]uint64, rs.tree.lanes.liveBlocks())
		rs.tree.lines.eachPiece(func(n uint32, r *piece) {
			if r.loose() {
				return
			}
			k, c := r.head, r.constant()
			for i := range r.len() {
				if i > 0 {
					k = rs.tree.followKey(k, c, r.localHashes()[i])
				}
				rs.tree.places[k] = position{n, i}.encode()
			}
		})
	}
	return rs.names.cleanCursor(rs.tree.refreshCursor(cursor{kind: atBlock, at: decodePosition(rs.tree.places[key]), key: key})).at
}

// seekBlock looks for the block of a cursor by its engine hash as well, where only the key
// is known, and takes retired owners out of its piece. behind is the cursor of the block
// before.
//
// Each of the three ways may find what the others miss. A block in the midst of a piece is
// in no table of keys, but may have the name. The piece may end with its retired owners.
// And a block behind a loose parent may be there as a loose one itself.
func (rs *resolver) seekBlock(s *source, engine uint64, c, behind cursor) cursor {
	if c.kind == atKey {
		if q := rs.meaningOf(s, engine); !q.isNone() && rs.tree.keyOf(q) == c.key {
			return rs.tree.cursorAt(q)
		}
	}
	if c = rs.names.cleanCursor(c); c.at.isNone() && behind.kind == atKey {
		c = rs.names.cleanCursor(cursor{kind: atKey, at: rs.tree.findLoose(c.key), key: c.key, chainIdentity: c.chainIdentity})
	}
	return c
}

// parentOf returns the block before one of a chain, none if it is not known, and whether
// there is none because the block begins a prompt. All lanes are locked.
//
// A piece knows its parent only by a hint and by the parent's engine hash, and either may
// be wrong by now. The keys decide: the parent is the block from whose key the key of this
// one follows. So it may return none for a block whose parent is there, never a wrong
// parent.
func (rs *resolver) parentOf(s *source, p position) (parent position, root bool) {
	r := rs.tree.lines.pieceAt(p.piece)
	first := r.localHashes()[0]
	switch {
	case p.at > 0:
		return position{p.piece, p.at - 1}, false
	case r.up == 0:
		return position{}, r.head == r.chainIdentity().firstKey(first)
	}
	// The hint may be right: then some block of that piece is the parent, and the keys say
	// which.
	if h := rs.tree.lines.pieceAt(r.prev); r.prev != 0 && rs.tree.findBeginning(h.head, h.meta&isFirst != 0) == (position{piece: r.prev}) {
		for k, i := h.head, uint32(0); ; k = rs.tree.followKey(k, r.constant(), h.localHashes()[i]) {
			if rs.tree.followKey(k, r.constant(), first) == r.head {
				return position{r.prev, i}, false
			}
			if i++; i == h.len() {
				break
			}
		}
	}
	if q := rs.meaningOf(s, r.up); !q.isNone() && !rs.tree.lines.pieceAt(q.piece).loose() &&
		rs.tree.followKey(rs.tree.keyOf(q), r.constant(), first) == r.head {
		return q, false
	}
	return position{}, false
}

// beginNamingAll begins to give all blocks their entries, and does a first part at once, in
// the hope that this is the part that the caller is looking for.
//
// The rest follows with later events. Until it is done the index may say that a hash is
// unknown which is not (catchingUp), and blocks that come by such a hash wait under it
// until its name gets an entry.
func (rs *resolver) beginNamingAll() {
	if rs.names.naming == onDemand {
		rs.names.beginNaming()
		rs.namePages(8 * rs.names.perEvent.naming)
	}
}

// namePages gives the blocks of some pages their entries.
//
// A piece may end while names of another one on its page are entered, since a clash takes
// blocks from owners. So its bit is looked at again before each.
func (rs *resolver) namePages(pages int) {
	for ; pages > 0 && rs.names.namedPages < len(rs.tree.lines.heads); pages-- {
		for m := rs.tree.lines.heads[rs.names.namedPages]; m != 0; m &= m - 1 {
			if rs.tree.lines.heads[rs.names.namedPages]&m&-m == 0 {
				continue // it has ended meanwhile
			}
			if n := uint32(rs.names.namedPages*pageLines + bits.TrailingZeros64(m)); !rs.tree.lines.pieceAt(n).loose() {
				rs.names.namePiece(&rs.tree.lanes.each[0].lane, n)
				rs.yieldNames(n)
			}
		}
		rs.names.namedPages++
	}
	if rs.names.namedPages < len(rs.tree.lines.heads) {
		return
	}
	rs.names.naming = allNamed
	for _, s := range rs.holders.sources {
		if s != nil {
			s.unindexed = unindexedList{}
		}
	}
}

// yieldNames handles the names of a piece that mean another block to others. A source that
// uses such a name keeps it to itself. A source that holds both blocks loses the block of
// the piece, since its removals would find the other one.
//
// Two blocks may share a name because names got entries on demand: nobody looked whether
// another block had the name. This is where it comes out. If nothing but a ghost has the
// name, the ghost gives it up.
//
// The names leave the piece first, all of them, as they must not be found while their
// holders change. What follows may end the piece with any name, so each is looked at again.
// A checkpoint has the names of its moment, so it gets the piece before the first one leaves:
// a restored block without its name would outlive the removal by that name.
func (rs *resolver) yieldNames(n uint32) {
	type lie struct {
		p      position
		engine uint64
		by     uint32
	}
	var lies []lie
	r := rs.tree.lines.pieceAt(n)
	blocks := spanOf(0, r.len()) &^ rs.tree.lines.deadBlocks(r)
	// The names that got no entry mean another block to all. Take them off the piece, line
	// by line, the body first.
	for line, engine, named, by := n, r.engineHashes(), r.named, r.by; ; {
		from, here := uint32(0), blocks
		next := r.side
		if line != n {
			d := rs.tree.lines.sideAt(line)
			engine, named, by, from, next = d.engineHashes(), d.named, d.by, d.firstBlock(), d.next
			here = d.partOf(blocks)
		}
		for w := here &^ named; w != 0; w &= w - 1 {
			if i := lowestBit(w); engine[i] != 0 {
				lies = append(lies, lie{position{n, from + i}, engine[i], by})
				rs.tree.keepForCheckpoint(n)
				write64(&engine[i], 0)
				rs.tree.lanes.each[0].lane.names--
			}
		}
		if line = next; line == 0 {
			break
		}
	}
	head := r.head
	for _, l := range lies {
		// What follows takes blocks from owners, so the piece may have ended, and its line
		// may be anything.
		if r.meta&isSide != 0 || r.head != head || l.p.at >= r.len() || rs.tree.lines.setOf(l.p) == 0 {
			continue // the owners lost the block by a name before
		}
		shared, _ := rs.names.findName(l.engine)
		if !shared.isNone() && rs.names.isGhost(shared) {
			rs.dropName(shared, l.engine)
			if rs.finder.addName(&source{name: Source(l.by - 1), lane: rs.tree.lanes.laneOf(0)}, l.p, l.engine, 1) {
				continue
			}
		}
		// Sources of the teacher's family use the name. Each of them either keeps it for
		// itself or has lied twice.
		var users []*source
		rs.holders.eachHolder(rs.tree.lines.setOf(l.p), func(o *owner) {
			if rs.names.families.sameFamily(o.s.name, l.by) && !slices.Contains(users, o.s) {
				users = append(users, o.s)
			}
		})
		for _, s := range users {
			if s.private.find(l.engine) == nil && !rs.tree.isHeldBy(s, shared) {
				rs.names.privates.addPrivate(s, l.engine, l.p)
				if shared, _ = rs.names.findName(l.engine); !shared.isNone() {
					rs.contestHash(s, l.engine, shared)
					rs.decideContest(l.engine)
				}
				continue
			}
			for _, o := range s.owners {
				rs.holders.removeHolder(o, l.p)
			}
		}
	}
}
