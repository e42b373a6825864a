package index

import "math/bits"

// holders are the sources and owners of an index. Its methods give blocks to owners and
// take them away.
type holders struct {
	tree    *tree
	names   *nameMap
	finder  *finder
	bounds  *bounds
	sources []*source // by Source; nil is dropped
	owners  []*owner  // by Owner; nil is dropped
	used    int       // internal ids in use, with retired ones
}

// eachHolder calls f for the living owners of a set. All lanes are locked.
//
// Retired ids are left out. They stay in sets until the sweep has passed. f may change who
// holds blocks, but then the set may end, and its words be another one's: callers that take
// blocks away collect the owners first.
func (h *holders) eachHolder(set uint32, f func(*owner)) {
	d := h.tree.ids.Load()
	for i, w := range h.tree.sets.body.Load().wordsOf(set) {
		if i >= len(d.retired) {
			return
		}
		for w = d.maskRetired(w, i); w != 0; w &= w - 1 {
			if o := h.owners[d.owner[i<<6+bits.TrailingZeros64(w)]]; o != nil {
				f(o)
			}
		}
	}
}

// addHolder gives a block to an owner and reports whether it did not hold it. A block that
// had no owner and is no ghost still has the engine hashes of its former life. They are
// cleared first.
func (h *holders) addHolder(o *owner, p position) bool {
	r, dead := h.tree.lines.pieceAt(p.piece), uint64(0)
	// Nobody holds the block. Either it is a ghost and has its names, or its words are
	// those of a former life.
	if h.tree.lines.setOf(p) == 0 {
		if !h.names.isGhost(p) {
			h.tree.clearStaleNames(p.piece, r, p.at)
			dead = 1 << p.at
		}
	} else if h.names.naming != allNamed && h.tree.lines.hasUnindexedNames(r, p.at, p.at+1) {
		h.finder.noteUnindexed(o.s, p.piece)
	}
	h.tree.lockPiece(p.piece, r)
	changed := h.addHolders(o, p.piece, r, p.at, p.at+1, dead)
	r.unlockReaders()
	return changed != 0
}

// addHolders gives blocks of a locked piece to an owner, and returns those that it did not
// hold. dead are blocks that were no ghosts and had no owner before the event: of all
// others that get their first owner here, it is known that they were ghosts.
func (h *holders) addHolders(o *owner, n uint32, r *piece, lo, hi uint32, dead uint64) (changed uint64) {
	changed, edge := h.tree.changeHolder(o.s.lane, r, lo, hi, o.id, true)
	if changed != 0 {
		sum, loose := r.sumWords(changed)
		o.countHeld(bits.OnesCount64(changed), loose, h.tree.identities.weighWords(r, sum))
		h.tree.countBlocks(o.s.lane, r, bits.OnesCount64(edge))
		// edge has the blocks that had no owner. Those that were not dead were ghosts.
		if ghosts := edge &^ dead; ghosts != 0 {
			h.bounds.reviveGhosts(o.s.lane, n, r, ghosts)
		}
	}
	return changed
}

// removeHolder takes a block from an owner and reports whether it held it.
func (h *holders) removeHolder(o *owner, p position) bool {
	if !h.tree.sets.hasOwner(h.tree.lines.setOf(p), o.id) {
		return false
	}
	return h.removeHolders(o, p.piece, p.at, p.at+1) != 0
}

// removeHolders takes blocks of a piece from an owner, and returns those that it held.
//
// lost is counted up before readers may look again: a query that has passed the piece
// compares it at its end, and so never claims a block that left while it ran. Blocks
// without an owner become ghosts or lose their names, and the end of the piece goes with
// them. The piece may have ended when this returns.
//
// Losses and digests need the local hashes of the blocks, so they come before trimPiece,
// with which the piece may end.
func (h *holders) removeHolders(o *owner, n, lo, hi uint32) (changed uint64) {
	r := h.tree.lines.pieceAt(n)
	h.tree.lockPiece(n, r)
	changed, edge := h.tree.changeHolder(o.s.lane, r, lo, hi, o.id, false)
	if changed == 0 {
		r.unlockReaders()
		return 0
	}
	// Before readers go on: a query that came by with the old owners sees at its end that the
	// piece has lost some.
	write32(&r.lost, r.lost+1)
	sum, loose := r.sumWords(changed)
	o.countHeld(-bits.OnesCount64(changed), -loose, -h.tree.identities.weighWords(r, sum))
	if o.losses != nil {
		o.losses.noteBlocks(r, changed, sum, o.label)
	}
	// raw is an estimate, and must not be more than there is.
	o.raw = min(o.raw, o.digest.Blocks)
	if !o.copies.isEmpty() {
		o.copies.dropBlocks(n, changed)
	}
	// Others hold the blocks still.
	if edge == 0 {
		r.unlockReaders()
		return changed
	}
	h.tree.countBlocks(o.s.lane, r, -bits.OnesCount64(edge))
	h.names.dropNames(o.s.lane, n, r, edge)
	h.tree.trimPiece(o.s.lane, n, r)
	return changed
}

// removeEach takes blocks of a piece from an owner, and returns those that it held. The
// last ones go first: the piece ends with its first one.
//
// While other lanes are at work, the lane must still hold the piece, since an ended piece
// may be somebody else's already.
func (h *holders) removeEach(o *owner, n uint32, blocks uint64) (changed uint64) {
	for blocks != 0 {
		// The last run of bits that are set: [lo, hi).
		hi := uint32(bits.Len64(blocks))
		lo := hi - uint32(bits.LeadingZeros64(^(blocks << (64 - hi))))
		if !h.tree.lanes.alone && o.s.lane.piece != n {
			break // the piece has ended: the others had no owner
		}
		if hi <= h.tree.lines.pieceAt(n).len() {
			changed |= h.removeHolders(o, n, lo, hi)
		}
		blocks &^= spanOf(lo, hi)
	}
	return changed
}

// moveBlock takes a block from an owner and gives it another one instead, with its copies.
// An owner of both was told of the block twice, by two names, so it has one copy more.
//
// Both moments are seen by queries. The owner gets the new block first, and turns tells
// queries that a block has moved from a place that they may already have passed to one that
// they may not have reached.
//
// The owner loses nothing by it, so Losses is not told.
func (h *holders) moveBlock(o *owner, from, to position) {
	more, doubted := o.copies.extraOf(from), o.copies.isDoubted(from)
	if held := !h.addHolder(o, to); held { // first, so that the owner is not seen without the block
		more += o.copies.extraOf(to) + 1
		doubted = doubted && o.copies.isDoubted(to)
	}
	if more > 0 {
		o.copies.setExtra(to, more)
	}
	if o.copies.trustBlocks(to.piece, 1<<to.at); doubted {
		o.copies.doubtBlocks(to.piece, 1<<to.at)
	}
	h.tree.turns.Add(1)
	losses := o.losses
	o.losses = nil // the owner keeps the block
	h.removeHolder(o, from)
	o.losses = losses
}

// moveRaw moves the source's memberships under an engine hash to a block, and reports
// whether there were any. The set is kept by a reference of its own: with the last owner
// the loose block ends, and with its interval the set would.
func (h *holders) moveRaw(s *source, engine uint64, to position) (moved bool) {
	if !s.raw {
		return false
	}
	from := h.tree.findLoose(engine)
	if from.isNone() || from == to {
		return false
	}
	// Owners leave the set while the loop goes on, so it asks the set of before.
	set := h.tree.lines.setOf(from)
	h.tree.sets.retainSet(set) // the block may end before the list does
	for _, o := range s.owners {
		if h.tree.sets.hasOwner(set, o.id) {
			h.moveBlock(o, from, to)
			o.raw = max(o.raw-1, 0)
			moved = true
		}
	}
	h.tree.sets.releaseSet(set)
	return moved
}

// createBlock makes the block behind a cursor, which is in no piece yet, and has no owner.
// It returns none if the budget is spent. up is the engine hash of the block before it,
// want the number of blocks that may follow.
//
// Between this and the moment when an owner holds the block, the piece ends in a block
// without an owner, which invariant 1 forbids. So all lanes are locked, and the caller
// gives the block an owner before it unlocks them.
func (h *holders) createBlock(s *source, c cursor, key, up, local, clientHash uint64, want int) position {
	if c.kind == atKey {
		return h.createLoose(s, c.chainIdentity, key, clientHash, want)
	}
	// The caller finds the block absent and counts it as refused.
	if h.bounds.isOverBudget() {
		if !h.bounds.evictForRoom() {
			return position{}
		}
		c = h.tree.refreshCursor(c) // it may have been a ghost
	}
	if !c.at.isNone() {
		r := h.tree.lines.pieceAt(c.at.piece)
		// Behind the last block of a piece with room. The block has no owner yet, and
		// addHolder gives it one; between the two all lanes are locked, so nobody sees the
		// piece end in such a block.
		if n := r.len(); c.at.at+1 == n && n < r.cap() {
			h.tree.lockPiece(c.at.piece, r)
			h.tree.writeBlock(r, n, local, clientHash)
			r.setLastKey(key)
			h.tree.extendPiece(r, 1, 0)
			r.unlockReaders()
			h.tree.notePlace(key, position{c.at.piece, n})
			return position{c.at.piece, n}
		}
	}
	n, r := h.tree.beginChainedPiece(want, key, local, c, up)
	h.tree.writeBlock(r, 0, local, clientHash)
	h.tree.extendPiece(r, 1, 0)
	r.unlockReaders()
	h.tree.notePlace(key, position{n, 0})
	return position{n, 0}
}

// createLoose makes a block of a key whose place is not known. It has no owner. of is the
// identity of the key, that of the base if the key is an engine hash without a constant.
//
// Loose blocks of a source are put into one piece after another, each twice as large as the
// last one if it was filled, so a source that announces no tokens at all still gets full
// pieces, and one stray hash takes no more than two lines.
func (h *holders) createLoose(s *source, of chainIdentity, key, clientHash uint64, want int) position {
	if h.bounds.isOverBudget() && !h.bounds.evictForRoom() {
		return position{}
	}
	n, at := s.tail.piece, s.tail.at+1
	r := h.tree.lines.pieceAt(n)
	// The source's last loose block was in this piece once. Go on behind it only if it
	// still is the last one of a loose piece of the same kind: the line may have begun
	// another life.
	if n == 0 || r.meta&(isLoose|isSide) != isLoose || r.len() != at || at >= r.cap() || clientHash != 0 && r.meta&isWide == 0 ||
		r.identityID() != of.id {
		flags := uint32(isLoose)
		if clientHash != 0 && h.tree.keepsClientHashes {
			flags |= isWide
		}
		if n != 0 && r.meta&(isLoose|isSide) == isLoose && r.len() == at && r.identityID() == of.id {
			want = max(want, 2*int(r.cap()))
		}
		n, r = h.tree.beginPiece(want, flags, of)
		at = 0
	} else {
		h.tree.lockPiece(n, r)
	}
	write64(&r.localHashes()[at], key)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
	h.tree.extendPiece(r, 1, 0)
	r.unlockReaders()
	h.tree.loose.insertEntry(mix(key), position{n, at})
	h.tree.looseBlocks.Add(1)
	s.tail = position{n, at}
	return s.tail
}

// rerootLoose returns the loose block of a cursor, in a piece of the cursor's identity.
// What waits under the key as if that were an engine hash moves there: it was made before
// anyone knew whose the key is.
//
// A block with names is none of those: it got them when its key was known.
func (h *holders) rerootLoose(s *source, c cursor) position {
	from := c.at
	r := h.tree.lines.pieceAt(from.piece)
	if !r.loose() || r.identityID() == c.id || h.names.hasNames(from) {
		return from
	}
	to := h.createLoose(s, c.chainIdentity, c.key, r.clientHashOf(from.at), 1)
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

// enterLoaded enters the names that need an entry, and lists the piece with the sources
// that use others. A name that means another block already is dropped: no index writes such
// an image, but a damaged one must not break invariant 7.
func (h *holders) enterLoaded(n uint32, r *piece) {
	dead := h.tree.lines.deadBlocks(r)
	for i := range r.len() {
		if engine := r.engineHashes()[i]; engine != 0 && dead>>i&1 == 0 && (i == 0 || h.names.naming != onDemand) {
			if h.names.enterName(engine, position{n, i}) {
				r.named |= 1 << i
			} else {
				write64(&r.engineHashes()[i], 0)
				h.tree.lanes.each[0].lane.names--
			}
		}
	}
	if h.names.naming == onDemand {
		h.noteUnindexedToAll(n, r)
	}
}

// noteUnindexedToAll lists a piece with all sources that hold a block of it.
func (h *holders) noteUnindexedToAll(n uint32, r *piece) {
	var buf [maxPiece + 2]interval
	for _, v := range h.tree.lines.intervalsOf(r, &buf) {
		h.eachHolder(v.set, func(o *owner) { h.finder.noteUnindexed(o.s, n) })
	}
}

// countMemberships returns the number of pairs of an owner and a block that it holds.
func (h *holders) countMemberships() (n int) {
	for _, s := range h.sources {
		if s != nil {
			n += s.held
		}
	}
	return n
}
