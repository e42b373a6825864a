package index

import (
	"maps"
	"math/bits"
	"slices"
)

// A name is an engine hash of a block. The names of a chained piece lie in its body, one
// a block, as far as sources of one family have taught them; all others lie in sides. All
// names of a block leave with its last owner.

// findName returns the block that an engine hash means to all, and the line of the name. Next to
// other lanes it is to be looked at again.
func (m *nameMap) findName(engine uint64) (at place, line uint32) {
	var room [4]uint64
	for _, ref := range m.table.refs(mix(engine), room[:0]) {
		if at, line = m.blockAt(ref, engine); line == 0 {
			continue
		}
		if m.sweep.left > 0 && m.cleanPiece(at.piece, m.tree.lines.pieceAt(at.piece)) && !m.hasEntry(ref, engine) {
			return place{}, 0 // only retired owners held it
		}
		return at, line
	}
	return place{}, 0
}

// blockAt returns the block of a name, if the reference leads to it.
func (m *nameMap) blockAt(ref, engine uint64) (place, uint32) {
	q := placeOf(ref)
	r := m.tree.lines.pieceAt(q.piece)
	switch meta := load32(&r.meta); {
	case meta&isSide != 0:
		d := m.tree.lines.sideAt(q.piece)
		if load64(&d.engine()[q.at]) == engine {
			return place{load32(&d.piece), meta&255 + q.at}, q.piece
		}
	case meta&isLoose == 0 && q.at < meta>>8&255:
		if load64(&r.engineOf(meta)[q.at]) == engine {
			return q, q.piece
		}
	}
	return place{}, 0
}

// hasEntry reports whether the table has a name with a reference.
func (m *nameMap) hasEntry(ref, engine uint64) bool {
	return m.table.has(mix(engine), ref)
}

// meaningOf returns the block an engine hash stands for in the source, none if it is not
// known.
func (rs *resolver) meaningOf(s *source, engine uint64) place {
	if s.private.len() > 0 {
		if ref := s.private.ref(engine); ref != nil {
			p := placeOf(*ref)
			if rs.names.sweep.left == 0 || !rs.names.cleanPiece(p.piece, rs.tree.lines.pieceAt(p.piece)) || s.private.ref(engine) != nil {
				return p
			}
		}
	}
	if rs.isContested(s, engine) {
		return place{}
	}
	return rs.seekMeaning(s, engine)
}

// isOrdinary reports that an engine hash has nothing to do with the private names, the raw
// blocks or the waiting room of the source.
func (rs *resolver) isOrdinary(s *source, engine uint64) bool {
	return (s.private.len() == 0 || s.private.ref(engine) == nil) && !rs.isContested(s, engine) &&
		(!s.raw || rs.tree.findLoose(engine).isNone()) &&
		(s.room.used == 0 || s.room.of(engine) == none && s.room.child(engine) == none)
}

// simple reports that all engine hashes are ordinary to a source.
func (s *source) simple() bool { return s.private.len() == 0 && !s.raw && s.room.used == 0 }

// findHeldRaw returns the loose block of an engine hash, if an owner of the source holds it.
func (t *tree) findHeldRaw(s *source, engine uint64) place {
	if s.raw {
		if p := t.findLoose(engine); !p.isNone() && t.isHeldBy(s, p) {
			return p
		}
	}
	return place{}
}

// isHeldBy reports whether an owner of the source holds a block.
func (t *tree) isHeldBy(s *source, p place) bool { return t.isInSet(s, t.lines.setOf(p)) }

// isInSet reports whether an owner of the source is in a set.
func (t *tree) isInSet(s *source, set uint32) bool {
	for _, o := range s.owners {
		if t.sets.has(set, o.id) {
			return true
		}
	}
	return false
}

// joinTeacher notes that a source uses a name in a line. It reports false if that needs all lanes.
func (f *finder) joinTeacher(s *source, line uint32) bool {
	r := f.tree.lines.pieceAt(line)
	if r.meta&isSide != 0 {
		return f.names.joinFamily(s.name, f.tree.lines.sideAt(line).by)
	}
	return f.names.joinFamily(s.name, r.by)
}

// holdNamed returns the block that an engine hash means to a source, if it is found at once,
// or none. The lane holds its piece. event is the engine hashes of blocks behind it, or nil.
func (f *finder) holdNamed(s *source, engine uint64, event []uint64) place {
	q := f.holdEntered(s, engine)
	if f.names.naming == allNamed {
		f.noteMention(s, q)
	}
	if f.names.naming != onDemand || !q.isNone() && f.tree.isHeldBy(s, q) {
		return q
	}
	if own := f.searchHash(s, engine, event, !q.isNone()); !own.isNone() {
		return own
	}
	return f.holdEntered(s, engine)
}

// holdEntered returns the block of a name with an entry, or none. The lane holds its piece.
func (f *finder) holdEntered(s *source, engine uint64) place {
	q, _ := f.names.findName(engine)
	if !q.isNone() {
		if f.tree.holdPiece(s.lane, q.piece); f.names.lineOf(q, engine) == 0 {
			return place{}
		}
	}
	return q
}

// enterName makes the entry of an engine hash of a block, unless it means another block.
func (m *nameMap) enterName(engine uint64, at place) bool {
	h := mix(engine)
	if m.table.add(h, at.ref()) {
		return true
	}
	if q, _ := m.findName(engine); !q.isNone() {
		return false
	}
	m.table.insert(h, at.ref())
	return true
}

// addName makes an engine hash the name of a block for all. It reports false if the piece
// has too many names, or the hash means another block. Names of want blocks may follow.
func (f *finder) addName(s *source, p place, engine uint64, want int) bool {
	f.tree.keepForCheckpoint(p.piece)
	line, i, named := f.spareWord(s, p, want)
	if line == 0 {
		return false
	}
	word := &f.tree.lines.namesAt(line)[i]
	r := f.tree.lines.pieceAt(p.piece)
	vague := f.names.naming == onDemand && !r.loose()
	if vague && p.at > 0 {
		write64(word, engine)
	} else {
		r.lock() // no reader sees a hash that means another block
		write64(word, engine)
		entered := f.names.enterName(engine, place{line, i})
		if !entered {
			write64(word, 0)
		}
		if r.unlock(); !entered {
			return false
		}
		*named |= 1 << i
	}
	if vague {
		f.noteVague(s, p.piece)
	}
	f.names.ghosts.unlose(engine)
	s.lane.names++
	return true
}

// namesAt returns the engine hashes of a piece or a side.
func (a *arena) namesAt(line uint32) *words {
	if r := a.pieceAt(line); r.meta&isSide == 0 {
		return r.engine()
	}
	return a.sideAt(line).engine()
}

// spareWord returns where an engine hash of a source's family can lie for a block that has none
// there: the line, the position in it, and which others have entries.
func (f *finder) spareWord(s *source, p place, want int) (line, i uint32, named *uint64) {
	r := f.tree.lines.pieceAt(p.piece)
	if !r.loose() && r.engine()[p.at] == 0 && (r.by == 0 || f.names.families.sameFamily(s.name, r.by)) {
		if r.by == 0 {
			r.by = uint32(s.name) + 1
		}
		return p.piece, p.at, &r.named
	}
	n := 0
	for line = r.side; line != 0; n++ {
		d := f.tree.lines.sideAt(line)
		if d.covers(p.at) && d.engine()[p.at-d.from()] == 0 && f.names.families.sameFamily(s.name, d.by) {
			return line, p.at - d.from(), &d.named
		}
		line = d.next
	}
	if n >= maxSides {
		return 0, 0, nil
	}
	lines, names := sideLines(min(uint32(max(want, 1)), r.cap()-p.at))
	line = f.tree.lines.alloc(forNames, lines)
	d := f.tree.lines.sideAt(line)
	d.begin(p, names, r.side, uint32(s.name)+1)
	store32(&r.side, line)
	if r.loose() {
		f.tree.looseSides++
	}
	return line, 0, &d.named
}

// eachNameOf calls f for each name of a block that all mean, with its teacher plus one.
func (a *arena) eachNameOf(p place, f func(engine uint64, by uint32)) {
	r := a.pieceAt(p.piece)
	if !r.loose() && r.engine()[p.at] != 0 {
		f(r.engine()[p.at], r.by)
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		if d.covers(p.at) && d.engine()[p.at-d.from()] != 0 {
			f(d.engine()[p.at-d.from()], d.by)
		}
		line = d.next
	}
}

// dropNames makes ghosts of blocks that have no owner any more, or strips them. The piece is changing.
func (m *nameMap) dropNames(l *lane, n uint32, r *piece, blocks uint64) {
	if m.ghosts.on.Load() {
		if blocks = m.fadeBlocks(l, n, r, blocks); blocks == 0 {
			return
		}
	}
	m.stripNames(l, n, r, blocks)
}

// stripNames drops all names of blocks without an owner, and the entries of loose ones.
func (m *nameMap) stripNames(l *lane, n uint32, r *piece, blocks uint64) {
	local := r.local()
	if !r.loose() {
		l.names -= hashesOf(r.engine(), blocks)
		m.leaveNames(r.engine(), n, blocks&r.named)
		r.named &^= blocks
	}
	for line := r.side; line != 0; {
		d := m.tree.lines.sideAt(line)
		here := d.part(blocks)
		l.names -= hashesOf(d.engine(), here)
		m.leaveNames(d.engine(), line, here&d.named)
		d.named &^= here
		line = d.next
	}
	m.losePrivates(l, n, blocks)
	if r.loose() {
		m.tree.looseBlocks.Add(-int64(bits.OnesCount64(blocks)))
		for w := blocks; w != 0; w &= w - 1 {
			i := trailing(w)
			m.tree.loose.remove(mix(local[i]), place{n, i})
			m.ghosts.unlose(local[i])
			write64(&local[i], 0)
		}
	}
}

// hashesOf returns how many of some blocks have an engine hash.
func hashesOf(engine *words, which uint64) (n int) {
	for ; which != 0; which &= which - 1 {
		if engine[trailing(which)] != 0 {
			n++
		}
	}
	return n
}

// leaveNames takes the entries of some engine hashes of a line out.
func (m *nameMap) leaveNames(engine *words, line uint32, which uint64) {
	for w := which; w != 0; w &= w - 1 {
		m.table.prefetch(mix(engine[trailing(w)]))
	}
	for w := which; w != 0; w &= w - 1 {
		i := trailing(w)
		m.table.remove(mix(engine[i]), place{line, i}.ref())
	}
}

// learnMeaning notes what an engine hash means to the source, a block with an owner. What it
// meant before, no removal can name any more, so the source's owners lose it. It reports
// whether any did. A ghost gives the name up.
func (rs *resolver) learnMeaning(s *source, engine uint64, p place, want int) (conflict bool) {
	if ref := s.private.ref(engine); ref != nil && rs.names.sweep.left > 0 {
		own := placeOf(*ref)
		rs.names.cleanPiece(own.piece, rs.tree.lines.pieceAt(own.piece)) // the name leaves if only retired owners hold its block
	}
	before, line := rs.names.findName(engine)
	if line == 0 && s.private.ref(engine) == nil {
		before, line = rs.names.findKnown(engine, p)
	}
	shared := before
	if ref := s.private.ref(engine); ref != nil {
		before = placeOf(*ref)
	}
	if shared == p {
		rs.finder.joinTeacher(s, line)
	}
	if before != p && !before.isNone() {
		if rs.tree.lines.pieceAt(before.piece).loose() && rs.tree.keyOf(before) == rs.tree.keyOf(p) {
			rs.absorbLoose(before, p)
			return rs.learnMeaning(s, engine, p, want)
		}
		for _, o := range s.owners {
			conflict = rs.holders.removeHolder(o, before) || conflict
		}
		shared, _ = rs.names.findName(engine)
	}
	if !shared.isNone() && shared != p && rs.names.isGhost(shared) {
		rs.dropName(shared, engine)
		shared = place{}
	}
	rs.names.privates.dropPrivate(s, engine)
	switch {
	case shared == p:
	case !shared.isNone():
		rs.names.privates.addPrivate(s, engine, p)
		rs.contestHash(s, engine, shared)
	case !rs.finder.addName(s, p, engine, want):
		rs.names.privates.addPrivate(s, engine, p)
	}
	if rs.contests.n.Load() > 0 {
		rs.decideContest(engine) // the source meant something else before
	}
	rs.names.noteMeaning(engine)
	return conflict
}

// hasNames reports whether a block has names, of all or of single sources.
func (m *nameMap) hasNames(p place) bool {
	some := len(m.privates.of[p.ref()]) > 0
	m.tree.lines.eachNameOf(p, func(uint64, uint32) { some = true })
	return some
}

// placeLoose moves what the source holds under a key, as if it were an engine hash, to the
// block of the key. A loose block with names is one of that key, so it moves whole.
func (rs *resolver) placeLoose(s *source, key uint64, to place) {
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

// absorbLoose moves a loose block into the block of a chain with the same key: owners, copies
// and names. For a source that uses none of the names the key becomes one.
func (rs *resolver) absorbLoose(from, to place) {
	type taught struct {
		engine uint64
		by     uint32
	}
	var names []taught
	rs.tree.lines.eachNameOf(from, func(engine uint64, by uint32) { names = append(names, taught{engine, by}) })
	own := slices.Collect(maps.Keys(rs.names.privates.of[from.ref()]))
	var owners []*owner
	rs.holders.eachHolder(rs.tree.lines.setOf(from), func(o *owner) { owners = append(owners, o) })
	for _, o := range owners {
		rs.holders.moveBlock(o, from, to)
	}
	if rs.names.isGhost(from) {
		rs.bounds.dismissGhost(from) // before its names come to the other block
	}
	for _, n := range names {
		rs.finder.addName(&source{name: Source(n.by - 1), lane: rs.tree.lanes.laneOf(0)}, to, n.engine, 1)
	}
	for _, p := range own {
		rs.names.privates.addPrivate(p.s, p.engine, to)
	}
	for _, o := range owners {
		rs.finder.noteVague(o.s, to.piece)
		named := slices.ContainsFunc(names, func(n taught) bool { return rs.names.families.sameFamily(o.s.name, n.by) }) ||
			slices.ContainsFunc(own, func(p private) bool { return p.s == o.s })
		if key := rs.tree.keyOf(to); o.s.raw && !named && rs.meaningOf(o.s, key).isNone() {
			rs.names.privates.addPrivate(o.s, key, to)
		}
	}
}

// moveBlock takes a block from an owner and gives it another one instead, with its copies. An owner of
// both was told of the block twice, by two names, so it has one copy more.
func (h *holders) moveBlock(o *owner, from, to place) {
	more, doubted := o.copies.of(from), o.copies.doubts(from)
	if held := !h.addHolder(o, to); held { // first, so that the owner is not seen without the block
		more += o.copies.of(to) + 1
		doubted = doubted && o.copies.doubts(to)
	}
	if more > 0 {
		o.copies.set(to, more)
	}
	if o.copies.trust(to.piece, 1<<to.at); doubted {
		o.copies.doubt(to.piece, 1<<to.at)
	}
	h.tree.turns.Add(1)
	losses := o.losses
	o.losses = nil // the owner keeps the block
	h.removeHolder(o, from)
	o.losses = losses
}

// moveRaw moves the source's memberships under an engine hash to a block, and reports
// whether there were any.
func (h *holders) moveRaw(s *source, engine uint64, to place) (moved bool) {
	if !s.raw {
		return false
	}
	from := h.tree.findLoose(engine)
	if from.isNone() || from == to {
		return false
	}
	set := h.tree.lines.setOf(from)
	h.tree.sets.hold(set) // the block may end before the list does
	for _, o := range s.owners {
		if h.tree.sets.has(set, o.id) {
			h.moveBlock(o, from, to)
			o.raw = max(o.raw-1, 0)
			moved = true
		}
	}
	h.tree.sets.drop(set)
	return moved
}

// rerootLoose returns the loose block of a cursor, in a piece of the cursor's identity. What waits under
// the key as if that were an engine hash moves there.
func (h *holders) rerootLoose(s *source, c cursor) place {
	from := c.at
	r := h.tree.lines.pieceAt(from.piece)
	if !r.loose() || r.identity() == c.id || h.names.hasNames(from) {
		return from
	}
	to := h.createLoose(s, c.root, c.key, r.clientHash(from.at), 1)
	if to.isNone() {
		return from
	}
	var owners []*owner
	h.eachHolder(h.tree.lines.setOf(from), func(o *owner) { owners = append(owners, o) })
	for _, o := range owners {
		h.moveBlock(o, from, to)
	}
	return to
}

// isAlive reports whether an owner holds a block.
func (m *nameMap) isAlive(p place) bool {
	if m.sweep.left > 0 && m.cleanPiece(p.piece, m.tree.lines.pieceAt(p.piece)) && p.at >= m.tree.lines.pieceAt(p.piece).len() {
		return false
	}
	return m.tree.lines.setOf(p) != 0
}

// findPlace finds a block of a chain by its key. It makes a map of all blocks, which serves
// until the next event.
func (rs *resolver) findPlace(key uint64) place {
	if rs.tree.places == nil {
		rs.tree.places = make(map[uint64]uint64, rs.tree.lanes.liveBlocks())
		rs.tree.lines.eachPiece(func(n uint32, r *piece) {
			if r.loose() {
				return
			}
			k, c := r.head, r.constant()
			for i := range r.len() {
				if i > 0 {
					k = rs.tree.followKey(k, c, r.local()[i])
				}
				rs.tree.places[k] = place{n, i}.ref()
			}
		})
	}
	return rs.names.cleanCursor(rs.tree.refreshCursor(cursor{kind: atBlock, at: placeOf(rs.tree.places[key]), key: key})).at
}

// findByKey returns the block of a key, if it is found by its name, as the first of a piece,
// or as a loose one.
func (rs *resolver) findByKey(s *source, engine, key uint64) place {
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

// eachName calls f for each name that all mean, until f returns false.
func (a *arena) eachName(f func(engine uint64, p place) bool) {
	more := true
	a.eachPiece(func(n uint32, r *piece) {
		for i := uint32(0); more && i < r.len(); i++ {
			p := place{n, i}
			if a.setOf(p) == 0 {
				continue
			}
			a.eachNameOf(p, func(engine uint64, _ uint32) {
				more = more && f(engine, p)
			})
		}
	})
}

// nameMap is the engine hashes of blocks as all sources mean them. It also takes retired owners out of
// pieces (the sweep), because a name may lead to a block that only they held, and keeps ghosts.
type nameMap struct {
	tree     *tree
	table    *nameTable
	families familyTable
	privates privateNames

	// Written while all lanes are locked.
	sweep      sweep
	naming     naming  // which blocks have entries in the table
	namedPages int     // of catchingUp: pages whose blocks have
	perEvent   portion // what an event does of a sweep, and of naming
	full       fullNaming
	met        []uint64 // engine hashes with a new meaning, under which blocks may wait

	ghosts ghosts // last: its queue changes with events, and what stands above is read by each of them
}
