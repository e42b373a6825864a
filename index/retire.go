package index

import (
	"math"
	"math/bits"
)

// Clear and DropSource retire the internal id of an owner: from then on no answer names it,
// and every call that looks at a piece takes retired owners out of it first. A sweep
// over all pieces, a part of it at each event, takes them out of the rest, and then the
// ids are used again.

// sweep is the state of the way over all pieces.
type sweep struct {
	left    int      // retired ids that are in sets
	running []uint32 // of them those that this pass takes out
	waiting []uint32 // those retired since it began
	page    int      // next page of the arena
	mask    []uint64 // retired ids
}

// portion is how many pages of 64 lines an event sweeps, and names.
type portion struct{ sweep, naming int }

// trimStretches is how many stretches of pages an event gives back to the system: some 5 us each.
const trimStretches = 8

// identify gives an owner a fresh internal id.
func (x *Index) identify(o *owner) {
	d := x.ids.Load()
	id := uint32(0)
	if k := len(x.spareIDs); k > 0 {
		id = x.spareIDs[k-1]
		x.spareIDs = x.spareIDs[:k-1]
	} else {
		id = uint32(x.used)
		x.used++
	}
	if int(id) >= len(d.owner) {
		n := &ids{owner: make([]uint32, 2*len(d.owner)), retired: make([]uint64, 2*len(d.retired))}
		copy(n.owner, d.owner)
		copy(n.retired, d.retired)
		x.ids.Store(n)
		d = n
	}
	x.sets.widen(id)
	store32(&d.owner[id], uint32(o.name))
	store64(&d.retired[id>>6], d.retired[id>>6]&^(1<<(id&63)))
	o.id = id
}

// retire takes an owner's internal id out of all answers, at once, and all blocks from
// it.
func (x *Index) retire(o *owner) {
	d := x.ids.Load()
	o.held(-o.digest.Blocks, -o.digest.Loose, -o.digest.Sum)
	o.raw, o.copies = 0, copies{}
	o.last, o.gone = mark{}, [2]trail{}
	x.turns.Add(1) // first: an answer may hold the blocks of before and lack those stored instead
	store64(&d.retired[o.id>>6], d.retired[o.id>>6]|1<<(o.id&63))
	w := &x.sweep
	for len(w.mask) <= int(o.id>>6) {
		w.mask = append(w.mask, 0)
	}
	w.mask[o.id>>6] |= 1 << (o.id & 63)
	w.waiting = append(w.waiting, o.id)
	w.left++
}

// ClearOwner takes all blocks from an owner, which stays, and returns how many it held.
// Its cost does not depend on them: they leave the memory with later events.
func (x *Index) ClearOwner(name Owner) int {
	x.lock()
	defer x.unlock()
	o := x.owners[name]
	if o == nil || o.digest.Blocks == 0 {
		return 0
	}
	s, n := o.s, o.digest.Blocks
	x.retire(o)
	x.identify(o)
	if s.held > 0 && s.room.used > 0 {
		x.sweepRoom(s)
	}
	x.maintain(s)
	return n
}

// DropSource takes everything of a source: memberships, its own names and waiting
// blocks. Its id and its owners' are retired and never come back. Its cost does not
// depend on the blocks.
func (x *Index) DropSource(src Source) {
	x.lock()
	defer x.unlock()
	s := x.sources[src]
	if s == nil {
		return
	}
	for _, o := range s.owners {
		if o.digest.Blocks > 0 {
			x.retire(o)
		} else {
			x.spareIDs = append(x.spareIDs, o.id)
		}
		x.owners[o.name] = nil
	}
	for engine, ref := range s.private.all {
		x.forgetPrivate(*ref, private{s, engine})
	}
	x.sources[src] = nil
	x.maintain(nil)
}

// maintain does what an event owes at its end: a part of the sweep, and memory that nothing
// uses any more. It reports whether waiting blocks got their places.
func (x *Index) maintain(s *source) (placed bool) {
	if x.places != nil {
		x.places = nil
	}
	if s != nil {
		x.emptyRoom(s)
	}
	if x.sweep.left > 0 {
		x.sweepOn(x.perEvent.sweep)
	}
	x.evictAll()
	switch x.naming {
	case catchingUp:
		x.nameOn(x.perEvent.naming)
	case allNamed:
		x.nameLess()
	}
	placed = x.placeOthers()
	if x.wasteful() {
		x.giveBack(trimStretches)
	} else if x.lines.live.Load() == 0 && x.live() == 0 && x.names.size.Load()+x.firsts.size.Load()+x.heads.size.Load()+x.loose.size.Load() > 0 {
		x.giveBack(math.MaxInt)
	}
	return placed
}

// emptyRoom ends what waits of a source that holds nothing.
func (x *Index) emptyRoom(s *source) {
	if s.held == 0 && (s.raw || s.room.used > 0) {
		s.raw = false
		s.room = waitingRoom{}
	}
}

// wasteful reports whether lines are to be given back.
func (x *Index) wasteful() bool {
	free := x.lines.unused()
	return x.lines.trimmed > 0 || free > 4096 && free > int(x.lines.live.Load()) && free > 2*x.lines.kept
}

// giveBack returns memory to the system: pages without a used line, in some stretches, and
// all tables of an empty index.
func (x *Index) giveBack(stretches int) {
	done := x.lines.trim(stretches)
	if x.lines.live.Load() == 0 {
		x.firsts.clear()
		x.heads.clear()
		x.names.clear()
		x.loose.clear()
		if x.sets.trim() {
			for i := range x.lanes {
				x.lanes[i].memo = nil
			}
		}
	}
	if !done {
		return
	}
	x.lines.kept = x.lines.unused()
}

// sweepOn sweeps some pages.
func (x *Index) sweepOn(pages int) {
	w := &x.sweep
	if len(w.running) == 0 {
		w.running, w.waiting = w.waiting, nil
		w.page = 0
	}
	for ; pages > 0 && w.page < len(x.lines.heads); pages-- {
		for m := x.lines.heads[w.page]; m != 0; m &= m - 1 {
			n := uint32(w.page*pageLines + bits.TrailingZeros64(m))
			x.clean(n, x.at(n))
		}
		w.page++
	}
	if w.page < len(x.lines.heads) {
		return
	}
	for _, id := range w.running {
		w.mask[id>>6] &^= 1 << (id & 63)
		x.spareIDs = append(x.spareIDs, id)
	}
	w.left -= len(w.running)
	w.running = nil
}

// compact takes retired owners out of all pieces and gives memory back. Each event does
// a part of it anyway.
func (x *Index) compact() {
	for x.sweep.left > 0 {
		x.sweepOn(1 << 30)
	}
	x.lines.trimmed = 0
	x.giveBack(math.MaxInt)
}

// clean takes retired owners out of a piece, and reports whether a block lost its last
// owner. Then the piece may have ended.
func (x *Index) clean(n uint32, r *piece) (ended bool) {
	var was, room [maxPiece + 2]interval
	l, old := &x.lanes[0].lane, x.intervalsOf(r, &was)
	dirty := false
	b := x.sets.body.Load()
	for _, v := range old {
		for i, w := range x.sweep.mask {
			if i < b.width && b.of(v.set)[i]&w != 0 {
				dirty = true
			}
		}
	}
	if !dirty {
		return false
	}
	x.lockPiece(n, r)
	write32(&r.lost, r.lost+1)
	var taken [maxPiece + 2]uint32
	out, start, dead := room[:0], uint32(0), uint64(0)
	for k, v := range old {
		to := x.without(v.set)
		taken[k] = to
		if out = merged(out, to, v.end); to == 0 && v.set != 0 {
			dead |= spanOf(start, v.end)
		}
		start = v.end
	}
	x.put(r, old, out)
	for _, id := range taken[:len(old)] {
		x.sets.drop(id)
	}
	if dead != 0 {
		x.countBlocks(l, r, -bits.OnesCount64(dead))
		x.unname(l, n, r, dead)
	}
	x.trim(l, n, r)
	return dead != 0
}

// without returns a set without retired ids, with a reference for the caller.
func (x *Index) without(set uint32) uint32 {
	s := &x.sets
	s.hold(set)
	for i := 0; i < len(x.sweep.mask) && set != 0; i++ {
		b := s.body.Load()
		if i >= b.width {
			break
		}
		for w := b.of(set)[i] & x.sweep.mask[i]; w != 0; w &= w - 1 {
			to := s.toggle(&x.lanes[0].lane, set, uint32(i)<<6+trailing(w))
			s.drop(set)
			set = to
		}
	}
	return set
}
