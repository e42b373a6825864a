package index

import "math/bits"

// growChain stores blocks from i on behind a block of a chain or the root, as many as lie
// in one piece. It reports false if the first of them is not ordinary.
//
// It looks for the child of the cursor's block where it costs least: the next block of the
// same piece, then the piece that the hint names, then the table of heads. Only if the
// child is nowhere does it make it. The loop goes round again when another lane was faster:
// a piece found without its lock may have ended, or have been begun, until this lane holds
// it.
func (p *storing) growChain(i int, c cursor) (int, cursor, bool) {
	x, e, l := p.x, p.e, p.s.lane
	p.constant = c.constant
	for {
		var r *piece // that ends with the block before, nil if none does
		key, to := uint64(0), position{}
		switch {
		case c.kind == atRoot:
			key = c.firstKey(e.Local[i])
		case c.at.isNone():
			key = x.tree.followKey(c.key, c.constant, e.Local[i])
		default:
			// What the lane held before is what the event came from: findStart leaves the
			// parent's piece held. If it is the same piece, nothing can have happened to
			// the block since.
			was := l.piece
			r = x.tree.holdPiece(l, c.at.piece)
			if x.names.sweep.left > 0 {
				x.names.cleanPiece(c.at.piece, r)
			}
			// The first block's parent may be held by others alone, so another lane may have
			// ended its piece since findStart saw it, and built a new one in the line. The
			// parents of all further blocks were stored by this event, and only events of
			// this source take them away.
			if !x.tree.lanes.alone && i == 0 && was != c.at.piece && x.tree.refreshCursor(c).at.isNone() {
				return i, c, false
			}
			key = x.tree.followKey(c.key, c.constant, e.Local[i])
			if at := c.at.at + 1; at < r.len() {
				// The child is the next block of the same piece. This is where nearly all
				// blocks of a long event go.
				if r.localHashes()[at] == e.Local[i] {
					return p.storeAlong(i, c, position{c.at.piece, at}, key)
				}
				x.tree.noteFork(c.at, r, c.key)
				r = nil
				// The block is the last of its piece. The hint leads to the piece that went on
				// behind it most recently, and the key there says whether that one begins with
				// the child.
			} else if to.piece = r.next; !to.isNone() && load64(&x.tree.lines.pieceAt(to.piece).head) != key {
				to = position{}
			}
		}
		if to.isNone() {
			to = x.tree.findBeginning(key, c.kind == atRoot)
		}
		if to.isNone() {
			// Nobody has the child. Make it, unless another lane begins a piece with the
			// key at this moment; then go round again and find that one.
			if i, c, ok, again := p.growPiece(i, c, r, key); !again {
				return i, c, ok
			}
			continue
		}
		if r != nil {
			write32(&r.next, to.piece)
		}
		// Holding the child's piece lets go of the parent's. That is safe: the owner holds
		// the parent, and only events of its own source take it away.
		t := x.tree.holdPiece(l, to.piece)
		if x.names.sweep.left > 0 {
			x.names.cleanPiece(to.piece, t)
		}
		if t.head != key {
			continue // it has ended
		}
		// The way back is a hint as well. It is part of what a checkpoint copies, so the
		// piece is copied before it changes.
		if !c.at.isNone() && load32(&t.prev) != c.at.piece {
			x.tree.keepForCheckpoint(to.piece)
			write32(&t.prev, c.at.piece)
		}
		return p.storeAlong(i, c, to, key)
	}
}

// growPiece stores blocks from i on, none of them in a chain, behind the last block of a
// held piece or, if that is nil, at the beginning of one. again says that another lane was
// faster.
//
// Room is left for what is likely to come. An event of a few blocks that continues its own
// chain is an engine announcing a prompt while it computes it, so the next piece gets twice
// the length of this one; a long event knows its own length.
func (p *storing) growPiece(i int, c cursor, r *piece, key uint64) (next int, last cursor, ok, again bool) {
	x, e, l := p.x, p.e, p.s.lane
	// A hash that means something already, or memory that is full, is for storeAlone to
	// deal with.
	if !p.isFresh(i, key) || x.bounds.isOverBudget() {
		return i, c, false, false
	}
	// There is room behind the block before. Names in the body are all of one family, so
	// another family's source does not extend the piece next to others: its names would
	// need sides, which need all lanes here.
	if r != nil && r.len() < r.cap() {
		if r.by != 0 && !x.names.families.sameFamily(p.s.name, r.by) {
			return i, c, false, false
		}
		x.tree.lockPiece(c.at.piece, r)
		next, last, ok = p.fillPiece(i, c, c.at.piece, r, key)
		return next, last, ok, false
	}
	want := len(e.Engine) - i
	if r != nil && (len(e.Engine) <= 4 || i == 0 && p.o.last.at == c.at) {
		want = max(want, 2*int(r.len())) // a chain that grows event by event
	}
	if c.kind == atRoot {
		x.tree.releasePiece(l) // it may be the line of the new piece
	}
	n, fresh := x.tree.beginChainedPiece(want, key, e.Local[i], c, p.e.parentOf(i))
	// Another lane has claimed the key.
	if n == 0 {
		return i, c, false, true
	}
	if r != nil {
		write32(&r.next, n)
	}
	x.tree.holdNewPiece(l, n)
	next, last, ok = p.fillPiece(i, c, n, fresh, key)
	return next, last, ok, false
}

// isFresh reports whether an engine hash is new, as far as the table of names tells, and
// concerns nothing else. key is that of the block. While names get entries on demand the
// table does not tell all: a hash without an entry may be the name of another block.
// Entering it later finds that out (nameBlocks), and ends naming on demand.
func (p *storing) isFresh(i int, key uint64) bool {
	engine := normal(p.e.Engine[i])
	if p.isAwaited(engine) {
		return false
	}
	if p.x.names.naming != onDemand {
		if q, _ := p.x.names.findName(engine); !q.isNone() {
			return false
		}
	}
	return p.isOrdinary(engine, key)
}

// isOrdinary reports that the source holds nothing under an engine hash, or under the key
// as if it were one, and means by it what others do. No loose block of the key has names.
//
// A loose block of the key with names would have to be joined with the new one, and what
// the source holds under the key as if it were a hash would have to move. Both need all
// lanes.
func (p *storing) isOrdinary(engine, key uint64) bool {
	if !p.x.resolver.isOrdinary(p.s, engine) || p.mayAlsoWait() && p.isAwaited(engine) {
		return false
	}
	if !p.s.raw && p.x.tree.looseSides == 0 {
		return true
	}
	q := p.x.tree.findLoose(key)
	return q.isNone() || !p.s.raw && p.x.tree.lines.pieceAt(q.piece).side == 0
}

// isSimple reports that all engine hashes and keys are ordinary.
func (p *storing) isSimple() bool {
	return p.s.isSimple() && p.x.tree.looseSides == 0 && (!p.mayAlsoWait() || p.x.tree.looseBlocks.Load() == 0)
}

// storeAlong stores blocks from i on which are in a held piece from a place on, the first
// one for sure: its key is next. It reports false if the first one is not ordinary.
//
// It is the way of a block that others hold already, and most blocks of a large fleet are
// such blocks. With simple sources it compares two words a block, local hash and name, and
// then changes one interval.
//
// names, from position first on, are those that the event's hashes are compared with: the
// ones in the body or those of a side. An event nearly always stays with the family that
// taught them, so the line is looked for again only where a comparison fails.
func (p *storing) storeAlong(i int, c cursor, q position, next uint64) (int, cursor, bool) {
	x, e, n, at := p.x, p.e, q.piece, q.at
	r := x.tree.lines.pieceAt(n)
	l, lo, from := r.localHashes(), at, i
	key, last := uint64(0), uint64(0) // kept up where a loose block may have it
	// Blocks without an owner in the midst of the piece have local hashes that count and
	// engine hashes that do not.
	dead := x.tree.lines.deadBlocks(r)
	names, first, ok := x.finder.namesFor(p.s, r, at, normal(e.Engine[i]))
	if !ok {
		return i, c, false
	}
	simple := p.isSimple()
	// First the loop that needs no decision: the same tokens under the same names.
	if simple && names != nil && dead == 0 { // mostly all of them
		for at < r.len() && i < len(e.Engine) && l[at] == e.Local[i] && at-first < maxPiece && names[at-first] == normal(e.Engine[i]) {
			at++
			i++
		}
	}
	byName := i - from
	for at < r.len() && i < len(e.Engine) && l[at] == e.Local[i] {
		engine := normal(e.Engine[i])
		// From here on block by block. A dead block gets an owner with this event, so its
		// old words must go before it is compared.
		if dead>>at&1 != 0 {
			x.tree.clearStaleNames(n, r, at)
		}
		// The key of the block is needed only if a loose block may have it, so it is kept
		// up only then.
		if !simple {
			if key = next; i > from {
				key = x.tree.followKey(last, c.constant, e.Local[i])
			}
			last = key
		}
		// Known means that the event's hash is the block's name already, and means nothing
		// else to the source.
		known := dead>>at&1 == 0 && names != nil && at-first < maxPiece && names[at-first] == engine &&
			(simple || p.isOrdinary(engine, key))
		if !known && dead>>at&1 == 0 && (simple || p.isOrdinary(engine, key)) {
			others, from, ok := x.finder.namesFor(p.s, r, at, engine)
			if !ok {
				break
			}
			if others != nil { // its names lie in another line from here on
				names, first, known = others, from, true
			}
		}
		// A new name for a block that others hold: publishers that hash differently, or a
		// block whose names are all those of ghosts.
		if !known && !(p.isFresh(i, key) && x.finder.addName(p.s, position{n, at}, engine, len(e.Engine)-i)) {
			break
		}
		if !known && dead>>at&1 == 0 && x.names.ghosts.hasGhosts() && x.tree.lines.setOf(position{n, at}) == 0 {
			p.s.lane.names-- // counts with the others of the ghost
		}
		if known {
			byName++
		}
		at++
		i++
	}
	if at == lo {
		return i, c, false
	}
	// The source now holds blocks that only a search finds by their names, so its list must
	// have the piece (invariant 9). This comes before the owners change: afterwards
	// surelyLists would say that the piece is listed.
	if x.names.naming != allNamed && x.tree.lines.hasUnindexedNames(r, lo, at) && !x.finder.surelyLists(p.s, r) {
		x.finder.noteUnindexed(p.s, n)
	}
	if e.ByName {
		p.res.ByName += byName
	}
	p.res.notePlacing(r)
	x.tree.lockPiece(n, r)
	// Readers wait for this one call. Everything before was either invisible to them or a
	// single word.
	changed := x.holders.addHolders(p.o, n, r, lo, at, dead)
	r.unlockReaders()
	p.res.Added += bits.OnesCount64(changed)
	if held := spanOf(lo, at) &^ changed; held != 0 {
		p.countCopies(n, held)
	}
	if r.meta&isWide != 0 && e.Local != nil {
		for j := range i - from {
			write64(&r.clientHashes()[lo+uint32(j)], p.clientHash(from+j, c.id))
		}
	}
	return i, cursor{kind: atBlock, at: position{n, at - 1}, key: x.tree.keyWithin(r, lo, next, at-1), chainIdentity: c.chainIdentity}, true
}

// fillPiece writes blocks from i on into the room of a changing piece, until one of them
// begins a piece or has a hash that is not new. It reports false if that is the first one.
// Readers go on then.
//
// Nothing of what it writes is seen before extendPiece changes the count of blocks, so it
// can write names and hashes as it goes and stop at any block. The entries of names are the
// exception: a lane may find one at once. It gets to the piece, which is held, and waits.
//
// A new block whose key begins a piece already stops the loop, because a chain must not
// have two blocks of one key. The sieve of the table of heads answers that for nearly every
// block with one load.
func (p *storing) fillPiece(i int, c cursor, n uint32, r *piece, key uint64) (int, cursor, bool) {
	x, e, l := p.x, p.e, p.s.lane
	if r.by == 0 {
		r.by = uint32(p.s.name) + 1
	}
	// Cursors that say a block is nowhere are void from now on.
	if x.tree.lanes.alone {
		x.tree.made++
	}
	lo := r.len()
	most := min(len(e.Engine)-i, int(r.cap()-lo))
	engine, local := e.Engine[i:i+most], e.Local[i:i+most]
	all, simple, waiters := x.names.naming != onDemand, p.isSimple(), x.tree.looseBlocks.Load() > 0
	begins := i == 0 && len(e.Engine) > 1
	// Begin the loads of all slots in the table of names that the loop below will write.
	// Without them each new name would wait for memory by itself.
	for j := range engine {
		if all || lo+uint32(j) == 0 || begins && j == 0 {
			x.names.table.prefetchBucket(mix(normal(engine[j])))
		} else {
			break
		}
	}
	locals, names, at := r.localHashes(), r.engineHashes(), lo
	k, last, sum := 0, key, uint64(0)
	for ; k < most; k++ {
		hash := normal(engine[k])
		if k > 0 {
			// No other lane gives the block a piece: this one holds that of its parent.
			if key = x.tree.followKey(last, c.constant, local[k]); !x.tree.heads.isAbsent(mix(key)) && !x.tree.findHead(key).isNone() {
				break
			}
			// A block that somebody waits for, or that the source means something else by,
			// needs all lanes.
			if !simple && !p.isOrdinary(hash, key) || waiters && p.isAwaited(hash) {
				break
			}
		}
		write64(&names[at], hash)
		if all || at == 0 || begins && k == 0 {
			// The hash means another block. The word that was just written is behind the
			// end of the piece and is overwritten by the next block, so it need not be
			// cleared.
			if !x.names.enterName(hash, position{n, at}) {
				break
			}
			r.named |= 1 << at
		}
		write64(&locals[at], local[k])
		sum += local[k]
		x.tree.notePlace(key, position{n, at})
		if r.meta&isWide != 0 {
			write64(&r.clientHashes()[at], p.clientHash(i+k, c.id))
		}
		last = key
		at++
	}
	// Not even the first block was ordinary. A piece of others is as it was; a new one must
	// not stay without blocks.
	if k == 0 {
		if lo > 0 {
			r.unlockReaders()
		} else {
			x.tree.abandonPiece(l, n, r)
		}
		return i, c, false
	}
	r.setLastKey(last)
	// The new blocks have one owner. Its set is one that the lane remembers, in nearly
	// every event after the first.
	one := x.tree.sets.setOfOne(l, p.o.id)
	x.tree.extendPiece(r, at-lo, one)
	x.tree.sets.releaseSet(one)
	r.unlockReaders()
	if x.names.naming == onDemand {
		x.finder.noteUnindexed(p.s, n)
	}
	p.res.notePlacing(r)
	p.o.countHeld(k, 0, x.tree.identities.weighWords(r, sum))
	x.tree.countBlocks(l, r, k)
	l.names += k
	p.res.Added += k
	return i + k, cursor{kind: atBlock, at: position{n, at - 1}, key: last, chainIdentity: c.chainIdentity}, true
}
