package index

import (
	"math"
	"math/bits"
)

// RemoveResult counts blocks.
type RemoveResult struct {
	Removed int // the owner no longer holds them
	Copies  int // a copy went or was corrected, the block stays
	Unknown int // the owner did not hold them
}

// Remove applies a removed event. remaining[i], where given and not negative, is the number
// of copies left of engine[i] and overrides the policy. A retired owner holds nothing.
//
// Between the lane's lock and the lock of all lanes other calls may come. They may have
// dropped the owner, so it is looked up again; blocks that it no longer holds are unknown
// then.
func (x *Index) Remove(name Owner, engine []uint64, remaining []int, policy CopyPolicy) RemoveResult {
	r := removing{x: x, policy: policy}
	i, more := r.removeBesideOthers(name, engine, remaining)
	if !more {
		return r.res
	}
	x.lockRest()
	defer x.unlock()
	x.resolver.resumeAlone(x.tree.lanes.laneOfOwner(name), i, len(engine))
	if r.o = x.holders.owners[name]; r.o == nil {
		r.res.Unknown += len(engine) - i
		return r.res
	}
	r.s = r.o.s
	for i < len(engine) {
		if i < len(remaining) {
			r.removeOne(normal(engine[i]), remaining[i])
			i++
			continue
		}
		i, _ = r.removeRun(engine, i)
	}
	x.maintain(r.s)
	return r.res
}

// removeBesideOthers removes the first blocks next to events of other sources, as far as
// they are ordinary. It returns the next one, and whether all lanes have to be locked for
// the rest. Counts of copies that an event gives itself are rare, and take all lanes.
func (r *removing) removeBesideOthers(name Owner, engine []uint64, remaining []int) (i int, more bool) {
	x := r.x
	l := x.tree.lanes.laneOfOwner(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.o = x.holders.owners[name]; r.o == nil {
		r.res.Unknown = len(engine)
		return 0, false
	}
	r.s = r.o.s
	if !x.resolver.isCalmFor(r.s) || len(remaining) > 0 {
		return 0, true
	}
	for ok := true; ok && i < len(engine); {
		i, ok = r.removeRun(engine, i)
	}
	return i, x.resolver.leaveLane(r.s, i, len(engine))
}

// DropCopies changes what an owner holds to what it would hold if each of its stores of a
// block that it held had been a touch (CopySet). The copies beyond the first go, and the
// blocks whose last event took one of several copies. It returns how many blocks went.
//
// It is for the moment when the caller finds out that an engine announces a block again
// without having a second copy. Removals have counted down copies that never were, so the
// index claims blocks which the engine has evicted. Counted copies alone do not tell which:
// copies.doubted does.
func (x *Index) DropCopies(name Owner) (gone int) {
	x.lock()
	defer x.unlock()
	o := x.holders.owners[name]
	if o == nil {
		return 0
	}
	doubted := o.copies.doubted
	o.copies = copies{}
	before := o.digest.Blocks
	for piece, blocks := range doubted.each {
		x.holders.removeEach(o, uint32(piece), *blocks)
	}
	if gone = before - o.digest.Blocks; gone > 0 && o.s.held > 0 && o.s.room.used > 0 {
		x.holders.sweepRoom(o.s)
	}
	x.maintain(o.s)
	return gone
}

// removing is a removal in progress.
type removing struct {
	x      *Index
	s      *source
	o      *owner
	policy CopyPolicy
	res    RemoveResult
}

// resolveHash returns the block that an engine hash of the owner means. With all lanes
// locked it also looks at what the owner holds raw: it may have stored the hash before
// others taught what that means, and if the budget had no room for the move, the block is
// still there.
func (r *removing) resolveHash(engine uint64) position {
	x := r.x
	if !x.tree.lanes.alone {
		return x.finder.holdNamed(r.s, engine, nil)
	}
	p := x.resolver.meaningOf(r.s, engine)
	if p.isNone() || r.s.raw && !x.tree.sets.hasOwner(x.tree.lines.setOf(p), r.o.id) {
		// Stored before others taught what it means.
		if q := x.tree.findLoose(engine); !q.isNone() && x.tree.sets.hasOwner(x.tree.lines.setOf(q), r.o.id) {
			return q
		}
	}
	return p
}

// removeOne removes a block. left is the number of copies that stay, below zero unknown.
// All lanes are locked.
//
// The block that lies next to the last removal is right nearly always, but a guess: if the
// owner does not hold it, the hash is resolved in full before the block counts as unknown.
func (r *removing) removeOne(engine uint64, left int) {
	x, o := r.x, r.o
	p := r.findNear(engine)
	if p.isNone() || !x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
		p = r.resolveHash(engine)
	}
	if p.isNone() || !x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
		r.res.Unknown++
		return
	}
	// Whatever was doubtful about the block, this event decides it.
	o.copies.trustBlocks(p.piece, 1<<p.at)
	if left < 0 && r.policy == CopyCount {
		if more := o.copies.extraOf(p); more > 0 {
			left = int(more)
			o.copies.doubtBlocks(p.piece, 1<<p.at)
		}
	}
	if left > 0 {
		o.copies.setExtra(p, uint32(min(left-1, math.MaxInt32)))
		r.res.Copies++
		return
	}
	// Look before the removal: the piece may end with this block, and its line may be
	// another piece's at once. removeHolders bounds raw by what is left, so it is counted
	// from before, too.
	loose, raw := x.tree.lines.pieceAt(p.piece).loose() && x.tree.keyOf(p) == engine, o.raw
	o.gone[0] = trail{at: p}
	x.holders.removeHolders(o, p.piece, p.at, p.at+1)
	if loose {
		o.raw = max(raw-1, 0)
	}
	if r.s.room.used > 0 {
		x.holders.forgetIdleLinks(r.s, engine)
	}
	r.res.Removed++
}

// removeRun removes blocks from i on, as many as lie next to each other, and returns the
// next one. Of blocks with copies it takes a copy. It reports false if the first one is not
// ordinary.
//
// Engines evict either from the end of a chain towards its beginning, block by block, or a
// stretch from its first block on. Both are runs of names in the body of one piece, in
// falling or rising order, and a run costs one change of the owner sets. Where a removal
// ended is kept in o.gone, so that the next event finds the neighbour without a lookup.
//
// Next to other lanes it may find a block, but never conclude that there is none: the hash
// may be held raw, or have no entry. Then it changes nothing and leaves the block to
// Remove, with all lanes locked.
func (r *removing) removeRun(engine []uint64, i int) (int, bool) {
	x, o := r.x, r.o
	p := r.findNear(normal(engine[i]))
	if p.isNone() || !x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
		if p = r.resolveHash(normal(engine[i])); p.isNone() {
			if !x.tree.lanes.alone {
				return i, false
			}
			r.res.Unknown++
			return i + 1, true
		}
	}
	// The lane holds the block's piece. Which of the piece's names does the event go on
	// with?
	h := x.tree.lines.pieceAt(p.piece)
	names, from := h.localHashes(), i
	if !h.loose() {
		if names = h.engineHashes(); names[p.at] != normal(engine[i]) {
			var first uint32
			var ok bool
			if names, first, ok = x.finder.namesFor(r.s, h, p.at, normal(engine[i])); !ok {
				return i, false
			}
			// The name lies in a side that does not begin with the first block: compare no
			// further ones, as positions differ.
			if first != 0 {
				names = nil
			}
		}
	}
	lo, hi := p.at, p.at+1
	i++
	if names != nil && i < len(engine) {
		dead := x.tree.lines.deadBlocks(h)
		// Forwards: SGLang evicts a stretch from its first block on.
		for i < len(engine) && hi < h.len() && names[hi] == normal(engine[i]) && dead>>hi&1 == 0 && r.isSameMeaning(h, engine[i]) {
			hi++
			i++
		}
		// Or backwards, if the first step was not forwards: most engines evict a chain from
		// its end.
		for one := hi == lo+1; one && i < len(engine) && lo > 0 && names[lo-1] == normal(engine[i]) && dead>>(lo-1)&1 == 0 &&
			r.isSameMeaning(h, engine[i]); {
			lo--
			i++
		}
	}
	loose, raw := h.loose(), o.raw
	// The next removal is looked for beside the end of this one.
	if o.gone[0] = (trail{at: position{p.piece, lo}}); hi > p.at+1 {
		o.gone[0] = trail{position{p.piece, hi - 1}, true}
	}
	// Blocks of which the owner has several copies lose one and stay.
	leaving := r.dropCopies(p.piece, spanOf(lo, hi))
	changed := x.holders.removeEach(o, p.piece, leaving)
	n := bits.OnesCount64(changed)
	r.res.Removed += n
	r.res.Unknown += bits.OnesCount64(leaving) - n
	if loose {
		o.raw = max(raw-n, 0)
	}
	// Links that were kept only because the source held these blocks have become useless.
	if n > 0 && r.s.room.used > 0 {
		for k, e := range engine[from:i] {
			at := p.at + uint32(k)
			if lo < p.at {
				at = p.at - uint32(k)
			}
			if changed>>at&1 != 0 {
				x.holders.forgetIdleLinks(r.s, normal(e))
			}
		}
	}
	return i, true
}

// dropCopies takes a copy of those of some blocks that have copies, and returns the others.
// A word of bits goes in and one comes out, so a run of blocks without copies, the usual
// one, costs a single look at the owner's table.
func (r *removing) dropCopies(n uint32, blocks uint64) uint64 {
	if r.policy != CopyCount || r.o.copies.len() == 0 {
		return blocks
	}
	taken := r.o.copies.takeCopies(n, blocks)
	r.res.Copies += bits.OnesCount64(taken)
	return blocks &^ taken
}

// isPlain reports whether the name of a block tells all that its engine hash means: the
// source means nothing else by it, holds nothing raw under it, and nothing waits for it.
func (r *removing) isPlain(engine uint64) bool {
	return r.s.private.len() == 0 && !r.s.raw || r.x.resolver.isOrdinary(r.s, normal(engine))
}

// isSameMeaning reports whether the block of a piece that has an engine hash is the one
// that the hash means. In a loose piece the words are keys: an equal one is this block only
// if the hash means nothing else to the source.
func (r *removing) isSameMeaning(h *piece, engine uint64) bool {
	if !h.loose() {
		return r.isPlain(engine)
	}
	return r.x.resolver.meaningOf(r.s, normal(engine)).isNone()
}

// findNear returns the block that an engine hash names if it is close to where one of the
// last removals ended, which becomes the newest. Else the newest becomes the older one, and
// the block where the older one would have gone on gets its entry. The lane holds the
// block's piece.
//
// Two trails are kept because engines with two tiers, or with two prompts being evicted at
// once, go back and forth between two chains.
func (r *removing) findNear(engine uint64) position {
	x, l, gone := r.x, r.s.lane, &r.o.gone
	if x.names.sweep.left > 0 || !r.isPlain(engine) {
		return position{}
	}
	for i := range gone {
		if q := x.finder.findNeighbour(l, gone[i].at, engine); !q.isNone() {
			gone[0], gone[1] = gone[i], gone[1-i]
			return q
		}
	}
	if x.names.naming == onDemand {
		for i := range gone {
			if q := x.finder.searchAround(l, gone[i].at.piece, 2, engine); !q.isNone() {
				gone[0], gone[1] = gone[i], gone[1-i]
				return q
			}
		}
		x.finder.nameExpected(l, gone[1])
	}
	gone[1] = gone[0]
	return position{}
}
