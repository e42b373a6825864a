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
	retired uint64   // ids retired so far

	kept map[*keptSets]bool // sets that no piece has yet

	spareIDs []uint32 // internal ids to use again
}

// portion is how many pages of 64 lines an event sweeps, and names.
type portion struct{ sweep, naming int }

// trimStretches is how many stretches of pages an event gives back to the system: some 5 us
// each.
const trimStretches = 8

// assignID gives an owner a fresh internal id.
//
// The bitmap of retired ids is changed before any set can have the id.
//
// The table of ids is replaced when it is full, not changed, so a query that has loaded the
// old one goes on with it: ids beyond its end were given out later than the sets that the
// query has read.
func (h *holders) assignID(o *owner) {
	d := h.tree.ids.Load()
	id := uint32(0)
	if k := len(h.names.sweep.spareIDs); k > 0 {
		id = h.names.sweep.spareIDs[k-1]
		h.names.sweep.spareIDs = h.names.sweep.spareIDs[:k-1]
	} else {
		id = uint32(h.used)
		h.used++
	}
	if int(id) >= len(d.owner) {
		n := &ids{owner: make([]uint32, 2*len(d.owner)), retired: make([]uint64, 2*len(d.retired))}
		copy(n.owner, d.owner)
		copy(n.retired, d.retired)
		h.tree.ids.Store(n)
		d = n
	}
	h.tree.sets.widenFor(id)
	store32(&d.owner[id], uint32(o.name))
	store64(&d.retired[id>>6], d.retired[id>>6]&^(1<<(id&63)))
	o.id = id
}

// retireOwner takes an owner's internal id out of all answers, at once, and all blocks from
// it.
//
// turns is counted first: a query that has read the owner's blocks, but not yet the retired
// bit, must not pair them with blocks that the owner stores afterwards under its new id.
//
// From here on the id must not be given to anyone as long as a set has it. The sweep takes
// it out of all pieces and then puts it among the spare ones.
func (h *holders) retireOwner(o *owner) {
	d := h.tree.ids.Load()
	o.countHeld(-o.digest.Blocks, -o.digest.Loose, -o.digest.Sum)
	o.raw, o.copies = 0, copies{}
	o.last, o.gone = chainMark{}, [2]trail{}
	h.tree.turns.Add(1) // first: an answer may hold the blocks of before and lack those stored instead
	store64(&d.retired[o.id>>6], d.retired[o.id>>6]|1<<(o.id&63))
	w := &h.names.sweep
	for len(w.mask) <= int(o.id>>6) {
		w.mask = append(w.mask, 0)
	}
	w.mask[o.id>>6] |= 1 << (o.id & 63)
	w.waiting = append(w.waiting, o.id)
	w.left++
	w.retired++
}

// ClearOwner takes all blocks from an owner, which stays, and returns how many it held.
// Its cost does not depend on them: they leave the memory with later events.
//
// Its new internal id is in no set, so the owner is empty at once.
func (x *Index) ClearOwner(name Owner) int {
	x.lock()
	defer x.unlock()
	o := x.holders.owners[name]
	if o == nil || o.digest.Blocks == 0 {
		return 0
	}
	s, n := o.s, o.digest.Blocks
	x.holders.retireOwner(o)
	x.holders.assignID(o)
	if s.held > 0 && s.room.used > 0 {
		x.holders.sweepRoom(s)
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
	s := x.holders.sources[src]
	if s == nil {
		return
	}
	for _, o := range s.owners {
		if o.digest.Blocks > 0 || len(x.names.sweep.kept) > 0 {
			x.holders.retireOwner(o)
		} else {
			x.names.sweep.spareIDs = append(x.names.sweep.spareIDs, o.id)
		}
		x.holders.owners[o.name] = nil
	}
	for engine, ref := range s.private.each {
		x.names.privates.forgetPrivate(*ref, private{s, engine})
	}
	x.holders.sources[src] = nil
	x.maintain(nil)
}

// maintain does what an event owes at its end: a part of the sweep, and memory that nothing
// uses any more. It reports whether waiting blocks got their places.
//
// An index has no goroutine of its own, so what is put off is done by later events. All of
// it is bounded a call, so that no event pays for what a thousand others have left behind.
func (x *Index) maintain(s *source) (placed bool) {
	// The map of findPlace serves one restore after the other; storeAlone puts it back
	// then.
	if x.tree.places != nil {
		x.tree.places = nil
	}
	if s != nil {
		x.holders.emptyIdleRoom(s)
	}
	if x.names.sweep.left > 0 {
		x.names.sweepPages(x.names.perEvent.sweep)
	}
	x.bounds.evictInAllLanes()
	switch x.names.naming {
	case catchingUp:
		x.resolver.namePages(x.names.perEvent.naming)
	case allNamed:
		x.finder.reconsiderNaming()
	}
	placed = placeOthers(x)
	if x.bounds.isWasteful() {
		x.bounds.giveMemoryBack(trimStretches)
	} else if x.tree.lines.live.Load() == 0 && x.tree.lanes.liveBlocks() == 0 &&
		x.names.table.size.Load()+x.tree.firsts.size.Load()+x.tree.heads.size.Load()+x.tree.loose.size.Load() > 0 {
		x.bounds.giveMemoryBack(math.MaxInt)
	}
	return placed
}

// isWasteful reports whether lines are to be given back: more than 256 KiB and more than
// are in use, or a trim is under way. kept is how many were free behind the last trim,
// which are on pages with other lines. Unless there are twice as many by now, another trim
// would find nothing either.
func (b *bounds) isWasteful() bool {
	free := b.tree.lines.unusedLines()
	return b.tree.lines.trimmed > 0 || free > 4096 && free > int(b.tree.lines.live.Load()) && free > 2*b.tree.lines.kept
}

// giveMemoryBack returns memory to the system: pages without a used line, in some
// stretches, and all tables of an empty index.
//
// Tables of an empty index go as a whole; they only ever grow while there is something in
// them.
//
// Sets begin again as well, and with them their generations, so lanes have to forget which
// steps from set to set they remember.
func (b *bounds) giveMemoryBack(stretches int) {
	done := b.tree.lines.trimPages(stretches)
	if b.tree.lines.live.Load() == 0 {
		b.tree.firsts.clearAll()
		b.tree.heads.clearAll()
		b.names.table.clearAll()
		b.tree.loose.clearAll()
		if b.tree.sets.trimMemory() {
			for i := range b.tree.lanes.each {
				b.tree.lanes.each[i].lane.memo = nil
			}
		}
	}
	if !done {
		return
	}
	b.tree.lines.kept = b.tree.lines.unusedLines()
}

// sweepPages sweeps some pages.
//
// Owners that retire while a pass is under way wait for the next one, because this one has
// been to some pages already. An id is used again only after a whole pass has found it in
// no set.
//
// cleanPiece may end the piece at hand, but no other, so the word of the bitmap that the
// loop goes over stays right.
func (m *nameMap) sweepPages(pages int) {
	w := &m.sweep
	if len(w.running) == 0 {
		w.running, w.waiting = w.waiting, nil
		w.page = 0
	}
	for ; pages > 0 && w.page < len(m.tree.lines.heads); pages-- {
		for heads := m.tree.lines.heads[w.page]; heads != 0; heads &= heads - 1 {
			n := uint32(w.page*pageLines + bits.TrailingZeros64(heads))
			m.cleanPiece(n, m.tree.lines.pieceAt(n))
		}
		w.page++
	}
	if w.page < len(m.tree.lines.heads) {
		return
	}
	for k := range w.kept {
		m.cleanSets(k)
	}
	for _, id := range w.running {
		w.mask[id>>6] &^= 1 << (id & 63)
		m.sweep.spareIDs = append(m.sweep.spareIDs, id)
	}
	w.left -= len(w.running)
	w.running = nil
}

// keptSets are sets of an image that a Loader holds for pieces that have not come yet. The sweep goes over them as over
// pieces: an id that they name is not used again.
type keptSets struct {
	of    map[uint64]uint32 // by number in the image; each is held
	clean uint64            // sweep.retired when they were cleaned last
}

// keepSets begins to keep sets, until releaseSets.
func (x *Index) keepSets() *keptSets {
	x.lock()
	defer x.unlock()
	w := &x.names.sweep
	if w.kept == nil {
		w.kept = make(map[*keptSets]bool)
	}
	k := &keptSets{of: make(map[uint64]uint32), clean: w.retired}
	w.kept[k] = true
	return k
}

// releaseSets ends what keepSets began. The index is locked.
func (x *Index) releaseSets(k *keptSets) {
	for _, set := range k.of {
		x.tree.sets.releaseSet(set)
	}
	delete(x.names.sweep.kept, k)
}

// cleanSets takes the ids that were retired since the last call out of kept sets. The index is locked.
func (m *nameMap) cleanSets(k *keptSets) {
	if k.clean == m.sweep.retired {
		return
	}
	for number, set := range k.of {
		k.of[number] = m.setWithoutRetired(set)
		m.tree.sets.releaseSet(set)
	}
	k.clean = m.sweep.retired
}

// compactAll takes retired owners out of all pieces and gives memory back. Each event does
// a part of it anyway.
func (b *bounds) compactAll() {
	for b.names.sweep.left > 0 {
		b.names.sweepPages(1 << 30)
	}
	b.tree.lines.trimmed = 0
	b.giveMemoryBack(math.MaxInt)
}

// cleanPiece takes retired owners out of a piece, and reports whether a block lost its last
// owner. Then the piece may have ended.
//
// It is called for every piece that an event looks at while a sweep is under way, so that
// no event sees blocks of retired owners. The first loop is therefore only a test whether
// there is anything to do.
//
// It changes the piece as a removal does: readers wait, lost is counted, and blocks without
// an owner lose their names or become ghosts. No owner counts anything, as retireOwner has
// done so for all blocks at once.
func (m *nameMap) cleanPiece(n uint32, r *piece) (ended bool) {
	var was, buf [maxPiece + 2]interval
	l, old := &m.tree.lanes.each[0].lane, m.tree.lines.intervalsOf(r, &was)
	dirty := false
	b := m.tree.sets.body.Load()
	for _, v := range old {
		for i, w := range m.sweep.mask {
			if i < b.width && b.wordsOf(v.set)[i]&w != 0 {
				dirty = true
			}
		}
	}
	if !dirty {
		return false
	}
	m.tree.lockPiece(n, r)
	write32(&r.lost, r.lost+1)
	var taken [maxPiece + 2]uint32
	out, start, dead := buf[:0], uint32(0), uint64(0)
	for k, v := range old {
		to := m.setWithoutRetired(v.set)
		taken[k] = to
		if out = appendInterval(out, to, v.end); to == 0 && v.set != 0 {
			dead |= spanOf(start, v.end)
		}
		start = v.end
	}
	m.tree.replaceIntervals(r, old, out)
	for _, id := range taken[:len(old)] {
		m.tree.sets.releaseSet(id)
	}
	if dead != 0 {
		m.tree.countBlocks(l, r, -bits.OnesCount64(dead))
		m.dropNames(l, n, r, dead)
	}
	m.tree.trimPiece(l, n, r)
	return dead != 0
}

// setWithoutRetired returns a set without retired ids, with a reference for the caller.
//
// It goes by single owners, through the lane's memo: a fleet's sets lose the same owner
// again and again.
func (m *nameMap) setWithoutRetired(set uint32) uint32 {
	s := &m.tree.sets
	s.retainSet(set)
	for i := 0; i < len(m.sweep.mask) && set != 0; i++ {
		b := s.body.Load()
		if i >= b.width {
			break
		}
		for w := b.wordsOf(set)[i] & m.sweep.mask[i]; w != 0; w &= w - 1 {
			to := s.toggleOwner(&m.tree.lanes.each[0].lane, set, uint32(i)<<6+lowestBit(w))
			s.releaseSet(set)
			set = to
		}
	}
	return set
}
