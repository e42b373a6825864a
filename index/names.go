package index

import (
	"maps"
	"math/bits"
	"slices"
)

// A name is an engine hash of a block. The names of a chained piece lie in its body, one
// a block, as far as sources of one family have taught them; all others lie in sides. All
// names of a block leave with its last owner.

// find returns the block that an engine hash means to all, and the line of the name. Next to
// other lanes it is to be looked at again.
func (x *Index) find(engine uint64) (at place, line uint32) {
	var room [4]uint64
	for _, ref := range x.names.refs(mix(engine), room[:0]) {
		if at, line = x.named(ref, engine); line == 0 {
			continue
		}
		if x.sweep.left > 0 && x.clean(at.piece, x.at(at.piece)) && !x.isNamed(ref, engine) {
			return place{}, 0 // only retired owners held it
		}
		return at, line
	}
	return place{}, 0
}

// named returns the block of a name, if the reference leads to it.
func (x *Index) named(ref, engine uint64) (place, uint32) {
	q := placeOf(ref)
	r := x.at(q.piece)
	switch m := load32(&r.meta); {
	case m&isSide != 0:
		d := x.sideAt(q.piece)
		if load64(&d.engine()[q.at]) == engine {
			return place{load32(&d.piece), m&255 + q.at}, q.piece
		}
	case m&isLoose == 0 && q.at < m>>8&255:
		if load64(&r.engineOf(m)[q.at]) == engine {
			return q, q.piece
		}
	}
	return place{}, 0
}

// isNamed reports whether the table has a name with a reference.
func (x *Index) isNamed(ref, engine uint64) bool {
	return x.names.has(mix(engine), ref)
}

// meaning returns the block an engine hash stands for in the source, none if it is not
// known.
func (x *Index) meaning(s *source, engine uint64) place {
	if s.private.len() > 0 {
		if ref := s.private.ref(engine); ref != nil {
			p := placeOf(*ref)
			if x.sweep.left == 0 || !x.clean(p.piece, x.at(p.piece)) || s.private.ref(engine) != nil {
				return p
			}
		}
	}
	if x.isContested(s, engine) {
		return place{}
	}
	return x.seek(s, engine)
}

// ordinary reports that an engine hash has nothing to do with the private names, the raw
// blocks or the waiting room of the source.
func (x *Index) ordinary(s *source, engine uint64) bool {
	return (s.private.len() == 0 || s.private.ref(engine) == nil) && !x.isContested(s, engine) &&
		(!s.raw || x.looseOf(engine).isNone()) &&
		(s.room.used == 0 || s.room.of(engine) == none && s.room.child(engine) == none)
}

// simple reports that all engine hashes are ordinary to a source.
func (s *source) simple() bool { return s.private.len() == 0 && !s.raw && s.room.used == 0 }

// heldRaw returns the loose block of an engine hash, if an owner of the source holds it.
func (x *Index) heldRaw(s *source, engine uint64) place {
	if s.raw {
		if p := x.looseOf(engine); !p.isNone() && x.heldBySource(s, p) {
			return p
		}
	}
	return place{}
}

// heldBySource reports whether an owner of the source holds a block.
func (x *Index) heldBySource(s *source, p place) bool { return x.inSet(s, x.setOf(p)) }

// inSet reports whether an owner of the source is in a set.
func (x *Index) inSet(s *source, set uint32) bool {
	for _, o := range s.owners {
		if x.sets.has(set, o.id) {
			return true
		}
	}
	return false
}

// taught notes that a source uses a name in a line. It reports false if that needs all lanes.
func (x *Index) taught(s *source, line uint32) bool {
	r := x.at(line)
	if r.meta&isSide != 0 {
		return x.joinFamily(s.name, x.sideAt(line).by)
	}
	return x.joinFamily(s.name, r.by)
}

// holdNamed returns the block that an engine hash means to a source, if it is found at once,
// or none. The lane holds its piece. event is the engine hashes of blocks behind it, or nil.
func (x *Index) holdNamed(s *source, engine uint64, event []uint64) place {
	q := x.holdEntry(s, engine)
	if x.naming == allNamed {
		x.mentioned(s, q)
	}
	if x.naming != onDemand || !q.isNone() && x.heldBySource(s, q) {
		return q
	}
	if own := x.search(s, engine, event, !q.isNone()); !own.isNone() {
		return own
	}
	return x.holdEntry(s, engine)
}

// holdEntry returns the block of a name with an entry, or none. The lane holds its piece.
func (x *Index) holdEntry(s *source, engine uint64) place {
	q, _ := x.find(engine)
	if !q.isNone() {
		if x.hold(s.lane, q.piece); x.lineOf(q, engine) == 0 {
			return place{}
		}
	}
	return q
}

// enter makes the entry of an engine hash of a block, unless it means another block.
func (x *Index) enter(engine uint64, at place) bool {
	h := mix(engine)
	if x.names.add(h, at.ref()) {
		return true
	}
	if q, _ := x.find(engine); !q.isNone() {
		return false
	}
	x.names.insert(h, at.ref())
	return true
}

// name makes an engine hash the name of a block for all. It reports false if the piece
// has too many names, or the hash means another block. Names of want blocks may follow.
func (x *Index) name(s *source, p place, engine uint64, want int) bool {
	x.keep(p.piece)
	line, i, named := x.spare(s, p, want)
	if line == 0 {
		return false
	}
	word := &x.words(line)[i]
	r := x.at(p.piece)
	vague := x.naming == onDemand && !r.loose()
	if vague && p.at > 0 {
		write64(word, engine)
	} else {
		r.lock() // no reader sees a hash that means another block
		write64(word, engine)
		entered := x.enter(engine, place{line, i})
		if !entered {
			write64(word, 0)
		}
		if r.unlock(); !entered {
			return false
		}
		*named |= 1 << i
	}
	if vague {
		x.noteVague(s, p.piece)
	}
	x.ghosts.unlose(engine)
	s.lane.names++
	return true
}

// words returns the engine hashes of a piece or a side.
func (x *Index) words(line uint32) *words {
	if r := x.at(line); r.meta&isSide == 0 {
		return r.engine()
	}
	return x.sideAt(line).engine()
}

// spare returns where an engine hash of a source's family can lie for a block that has none
// there: the line, the position in it, and which others have entries.
func (x *Index) spare(s *source, p place, want int) (line, i uint32, named *uint64) {
	r := x.at(p.piece)
	if !r.loose() && r.engine()[p.at] == 0 && (r.by == 0 || x.sameFamily(s.name, r.by)) {
		if r.by == 0 {
			r.by = uint32(s.name) + 1
		}
		return p.piece, p.at, &r.named
	}
	n := 0
	for line = r.side; line != 0; n++ {
		d := x.sideAt(line)
		if d.covers(p.at) && d.engine()[p.at-d.from()] == 0 && x.sameFamily(s.name, d.by) {
			return line, p.at - d.from(), &d.named
		}
		line = d.next
	}
	if n >= maxSides {
		return 0, 0, nil
	}
	lines, names := sideLines(min(uint32(max(want, 1)), r.cap()-p.at))
	line = x.lines.alloc(forNames, lines)
	d := x.sideAt(line)
	d.begin(p, names, r.side, uint32(s.name)+1)
	store32(&r.side, line)
	if r.loose() {
		x.looseSides++
	}
	return line, 0, &d.named
}

// allNamesOf calls f for each name of a block that all mean, with its teacher plus one.
func (x *Index) allNamesOf(p place, f func(engine uint64, by uint32)) {
	r := x.at(p.piece)
	if !r.loose() && r.engine()[p.at] != 0 {
		f(r.engine()[p.at], r.by)
	}
	for line := r.side; line != 0; {
		d := x.sideAt(line)
		if d.covers(p.at) && d.engine()[p.at-d.from()] != 0 {
			f(d.engine()[p.at-d.from()], d.by)
		}
		line = d.next
	}
}

// unname makes ghosts of blocks that have no owner any more, or strips them. The piece is changing.
func (x *Index) unname(l *lane, n uint32, r *piece, blocks uint64) {
	if x.ghosts.on.Load() {
		if blocks = x.fade(l, n, r, blocks); blocks == 0 {
			return
		}
	}
	x.strip(l, n, r, blocks)
}

// strip drops all names of blocks without an owner, and the entries of loose ones.
func (x *Index) strip(l *lane, n uint32, r *piece, blocks uint64) {
	local := r.local()
	if !r.loose() {
		l.names -= hashesOf(r.engine(), blocks)
		x.leaveAll(r.engine(), n, blocks&r.named)
		r.named &^= blocks
	}
	for line := r.side; line != 0; {
		d := x.sideAt(line)
		here := d.part(blocks)
		l.names -= hashesOf(d.engine(), here)
		x.leaveAll(d.engine(), line, here&d.named)
		d.named &^= here
		line = d.next
	}
	x.losePrivates(l, n, blocks)
	if r.loose() {
		x.looseBlocks.Add(-int64(bits.OnesCount64(blocks)))
		for w := blocks; w != 0; w &= w - 1 {
			i := trailing(w)
			x.loose.remove(mix(local[i]), place{n, i})
			x.ghosts.unlose(local[i])
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

// leaveAll takes the entries of some engine hashes of a line out.
func (x *Index) leaveAll(engine *words, line uint32, which uint64) {
	for w := which; w != 0; w &= w - 1 {
		x.names.prefetch(mix(engine[trailing(w)]))
	}
	for w := which; w != 0; w &= w - 1 {
		i := trailing(w)
		x.names.remove(mix(engine[i]), place{line, i}.ref())
	}
}

// learn notes what an engine hash means to the source, a block with an owner. What it
// meant before, no removal can name any more, so the source's owners lose it. It reports
// whether any did. A ghost gives the name up.
func (x *Index) learn(s *source, engine uint64, p place, want int) (conflict bool) {
	if ref := s.private.ref(engine); ref != nil && x.sweep.left > 0 {
		own := placeOf(*ref)
		x.clean(own.piece, x.at(own.piece)) // the name leaves if only retired owners hold its block
	}
	before, line := x.find(engine)
	if line == 0 && s.private.ref(engine) == nil {
		before, line = x.known(engine, p)
	}
	shared := before
	if ref := s.private.ref(engine); ref != nil {
		before = placeOf(*ref)
	}
	if shared == p {
		x.taught(s, line)
	}
	if before != p && !before.isNone() {
		if x.at(before.piece).loose() && x.key(before) == x.key(p) {
			x.absorb(before, p)
			return x.learn(s, engine, p, want)
		}
		for _, o := range s.owners {
			conflict = x.removeHolder(o, before) || conflict
		}
		shared, _ = x.find(engine)
	}
	if !shared.isNone() && shared != p && x.isGhost(shared) {
		x.unnameOne(shared, engine)
		shared = place{}
	}
	x.dropPrivate(s, engine)
	switch {
	case shared == p:
	case !shared.isNone():
		x.keepPrivate(s, engine, p)
		x.contest(s, engine, shared)
	case !x.name(s, p, engine, want):
		x.keepPrivate(s, engine, p)
	}
	if x.ContestedHashes() > 0 {
		x.decide(engine) // the source meant something else before
	}
	x.meets(engine)
	return conflict
}

// hasNames reports whether a block has names, of all or of single sources.
func (x *Index) hasNames(p place) bool {
	some := len(x.privates[p.ref()]) > 0
	x.allNamesOf(p, func(uint64, uint32) { some = true })
	return some
}

// placeLoose moves what the source holds under a key, as if it were an engine hash, to the
// block of the key. A loose block with names is one of that key, so it moves whole.
func (x *Index) placeLoose(s *source, key uint64, to place) {
	from := x.looseOf(key)
	if from.isNone() || from == to || !x.alive(from) {
		return
	}
	if x.hasNames(from) {
		x.absorb(from, to)
	} else {
		x.unraw(s, key, to)
	}
}

// absorb moves a loose block into the block of a chain with the same key: owners, copies
// and names. For a source that uses none of the names the key becomes one.
func (x *Index) absorb(from, to place) {
	type taught struct {
		engine uint64
		by     uint32
	}
	var names []taught
	x.allNamesOf(from, func(engine uint64, by uint32) { names = append(names, taught{engine, by}) })
	own := slices.Collect(maps.Keys(x.privates[from.ref()]))
	var owners []*owner
	x.holders(x.setOf(from), func(o *owner) { owners = append(owners, o) })
	for _, o := range owners {
		x.move(o, from, to)
	}
	if x.isGhost(from) {
		x.dismissOne(from) // before its names come to the other block
	}
	for _, n := range names {
		x.name(&source{name: Source(n.by - 1), lane: x.laneOf(0)}, to, n.engine, 1)
	}
	for _, p := range own {
		x.keepPrivate(p.s, p.engine, to)
	}
	for _, o := range owners {
		x.noteVague(o.s, to.piece)
		named := slices.ContainsFunc(names, func(n taught) bool { return x.sameFamily(o.s.name, n.by) }) ||
			slices.ContainsFunc(own, func(p private) bool { return p.s == o.s })
		if key := x.key(to); o.s.raw && !named && x.meaning(o.s, key).isNone() {
			x.keepPrivate(o.s, key, to)
		}
	}
}

// move takes a block from an owner and gives it another one instead, with its copies. An owner of
// both was told of the block twice, by two names, so it has one copy more.
func (x *Index) move(o *owner, from, to place) {
	more, doubted := o.copies.of(from), o.copies.doubts(from)
	if held := !x.addHolder(o, to); held { // first, so that the owner is not seen without the block
		more += o.copies.of(to) + 1
		doubted = doubted && o.copies.doubts(to)
	}
	if more > 0 {
		o.copies.set(to, more)
	}
	if o.copies.trust(to.piece, 1<<to.at); doubted {
		o.copies.doubt(to.piece, 1<<to.at)
	}
	x.turns.Add(1)
	losses := o.losses
	o.losses = nil // the owner keeps the block
	x.removeHolder(o, from)
	o.losses = losses
}

// unraw moves the source's memberships under an engine hash to a block, and reports
// whether there were any.
func (x *Index) unraw(s *source, engine uint64, to place) (moved bool) {
	if !s.raw {
		return false
	}
	from := x.looseOf(engine)
	if from.isNone() || from == to {
		return false
	}
	set := x.setOf(from)
	x.sets.hold(set) // the block may end before the list does
	for _, o := range s.owners {
		if x.sets.has(set, o.id) {
			x.move(o, from, to)
			o.raw = max(o.raw-1, 0)
			moved = true
		}
	}
	x.sets.drop(set)
	return moved
}

// reroot returns the loose block of a cursor, in a piece of the cursor's identity. What waits under
// the key as if that were an engine hash moves there.
func (x *Index) reroot(s *source, c cursor) place {
	from := c.at
	r := x.at(from.piece)
	if !r.loose() || r.identity() == c.id || x.hasNames(from) {
		return from
	}
	to := x.createLoose(s, c.root, c.key, r.clientHash(from.at), 1)
	if to.isNone() {
		return from
	}
	var owners []*owner
	x.holders(x.setOf(from), func(o *owner) { owners = append(owners, o) })
	for _, o := range owners {
		x.move(o, from, to)
	}
	return to
}

// alive reports whether an owner holds a block.
func (x *Index) alive(p place) bool {
	if x.sweep.left > 0 && x.clean(p.piece, x.at(p.piece)) && p.at >= x.at(p.piece).len() {
		return false
	}
	return x.setOf(p) != 0
}

// placeOf finds a block of a chain by its key. It makes a map of all blocks, which serves
// until the next event.
func (x *Index) placeOf(key uint64) place {
	if x.places == nil {
		x.places = make(map[uint64]uint64, x.live())
		x.allPieces(func(n uint32, r *piece) {
			if r.loose() {
				return
			}
			k, c := r.head, r.constant()
			for i := range r.len() {
				if i > 0 {
					k = x.follow(k, c, r.local()[i])
				}
				x.places[k] = place{n, i}.ref()
			}
		})
	}
	return x.cleaned(x.again(cursor{kind: atBlock, at: placeOf(x.places[key]), key: key})).at
}

// byKey returns the block of a key, if it is found by its name, as the first of a piece,
// or as a loose one.
func (x *Index) byKey(s *source, engine, key uint64) place {
	if p := x.meaning(s, engine); !p.isNone() && x.key(p) == key {
		return p
	}
	for _, first := range []bool{false, true} {
		if c := x.cleaned(cursor{kind: atBlock, at: x.beginOf(key, first), key: key}); !c.at.isNone() {
			return c.at
		}
	}
	return x.cleaned(cursor{kind: atKey, at: x.looseOf(key), key: key}).at
}

// allNames calls f for each name that all mean, until f returns false.
func (x *Index) allNames(f func(engine uint64, p place) bool) {
	more := true
	x.allPieces(func(n uint32, r *piece) {
		for i := uint32(0); more && i < r.len(); i++ {
			p := place{n, i}
			if x.setOf(p) == 0 {
				continue
			}
			x.allNamesOf(p, func(engine uint64, _ uint32) {
				more = more && f(engine, p)
			})
		}
	})
}
