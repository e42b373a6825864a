package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"example.com/conductor/index/hash"
)

// tree is the blocks of chains by their keys, in pieces, with the owner set of each
// stretch, and the loose blocks, whose place in a chain is not known. It is all that a
// query reads, apart from names. It knows neither engine hashes nor what owners are.
type tree struct {
	scheme            hash.Scheme
	step              hash.Stepper
	keepsClientHashes bool // Options.KeepClientHashes
	wide              bool // Options.WideBase

	lines  arena
	firsts table // key of the first block of a prompt -> piece
	heads  table // key of another block that begins a piece -> piece
	loose  table // key -> loose block
	sets   sets
	ids    atomic.Pointer[ids]

	identities *identities

	looseBlocks atomic.Int64               // loose blocks, with those that have no owner any more
	turns       atomic.Uint32              // how often a held block moved, or an owner was retired
	checkpoint  atomic.Pointer[Checkpoint] // nil for none

	lanes laneSet

	// Written while all lanes are locked.
	made       uint64            // blocks of chains made so far while all lanes were locked
	looseSides int               // lines of names of loose pieces
	places     map[uint64]uint64 // key -> block, of findPlace
}

// keyOf returns the key of a block. Of a chained one it costs a hash for each block between
// it and the nearest known key before it, 63 at most, so callers that go on from block to
// block keep the key in a cursor instead.
func (t *tree) keyOf(p position) uint64 {
	r := t.lines.pieceAt(p.piece)
	if r.loose() {
		return r.localHashes()[p.at]
	}
	return t.keyWithin(r, 0, r.head, p.at)
}

// keyWithin returns the key of a block of a chained piece, from that of another one, which
// is not behind it.
func (t *tree) keyWithin(r *piece, from uint32, key uint64, at uint32) uint64 {
	if a := anchorAt(r.meta); r.anchor != 0 && from < a && a <= at {
		from, key = a, r.anchor
	}
	return t.followKeys(key, r.constant(), r.localHashes()[from+1:at+1])
}

// hasClientHashes reports whether pieces of an identity have client hashes of their own.
// For base prompts clients usually compute exactly the local hash, and a third word a block
// would be a copy of the first.
func (t *tree) hasClientHashes(id Identity) bool { return t.keepsClientHashes && (t.wide || id != 0) }

// followKey returns the key of a block behind another one of an identity with a constant.
func (t *tree) followKey(key, constant, local uint64) uint64 {
	return normal(t.step.Next(plain(key)^constant, local) ^ constant)
}

// followKeys returns the key of the last of some blocks with local hashes that follow one
// with a key. It is followKey in a loop, with the constant taken off once instead of at
// every block: this is the innermost loop of a query that leaves a piece, so it matters.
func (t *tree) followKeys(key, constant uint64, locals []uint64) uint64 {
	if len(locals) == 0 {
		return key
	}
	step, seq := t.step, plain(key)^constant
	for _, local := range locals {
		if seq^constant == zeroKey { // as plain has it
			seq = constant
		}
		seq = step.Next(seq, local)
	}
	return normal(seq ^ constant)
}

// seqOf returns the canonical sequence hash of a block, or the hash that a loose one waits
// under.
func (t *tree) seqOf(p position) uint64 {
	return plain(t.keyOf(p)) ^ t.lines.pieceAt(p.piece).constant()
}

// headsFor returns the table that has the first key of a chained piece.
func (t *tree) headsFor(r *piece) *table {
	return t.headsTable(r.meta&isFirst != 0)
}

// headsTable returns the table of keys that begin prompts, or that of keys which begin a
// later piece. There are two, because a publisher chooses tokens and could make a later
// block have the key of a first one. A query that looked for the beginning of a prompt in
// one common table would then start in the midst of somebody else's chain.
func (t *tree) headsTable(first bool) *table {
	if first {
		return &t.firsts
	}
	return &t.heads
}

// findFirst finds the block of a key that begins a prompt. Next to other lanes, the caller
// has to look at the piece again.
func (t *tree) findFirst(key uint64) position {
	return t.firsts.findEntry(mix(key), func(q position) bool { return load64(&t.lines.pieceAt(q.piece).head) == key })
}

// findHead finds the block of a key that begins a piece but no prompt. Next to other lanes,
// the caller has to look at the piece again.
func (t *tree) findHead(key uint64) position {
	return t.heads.findEntry(mix(key), func(q position) bool { return load64(&t.lines.pieceAt(q.piece).head) == key })
}

// findBeginning finds the block of a key that begins a piece, in the table of first blocks
// or in the other one.
func (t *tree) findBeginning(key uint64, first bool) position {
	if first {
		return t.findFirst(key)
	}
	return t.findHead(key)
}

// findLoose finds the loose block of a key. Next to other lanes, the caller has to look at
// the piece again.
//
// It takes no lock. The table proves nothing more than that an entry was there a moment
// ago; the piece has the last word on whether the block is still that one.
func (t *tree) findLoose(key uint64) position {
	return t.loose.findEntry(mix(key), func(q position) bool {
		r := t.lines.pieceAt(q.piece)
		m := load32(&r.meta)
		return m&isLoose != 0 && q.at < m&255 && load64(&r.localHashes()[q.at]) == key
	})
}

// beginPiece makes an empty piece of an identity with room for want blocks and returns it
// held and changing, so that no reader looks at it and no lane takes it before its blocks
// have owners.
//
// The line may be that of a former piece, and readers with old hints may be looking at it
// right now. So ver is set first (claimLine), each word that a reader may load is written
// atomically, and lost goes on from where it was: a query that came by the former piece
// compares lost at its end and must not find the number that it remembers.
func (t *tree) beginPiece(want int, flags uint32, of chainIdentity) (uint32, *piece) {
	if of.id != 0 {
		flags |= isOther
	}
	meta := capFor(want, flags)<<8 | flags
	n := t.lines.allocLines(forPieces, linesFor(meta))
	r := t.lines.pieceAt(n)
	// From here on the piece is changing, and a reader with an old number waits or looks
	// elsewhere.
	lost := r.claimLine(&t.lines, t.lanes.alone)
	write32(&r.meta, meta)
	write32(&r.lost, lost+1)
	write32(&r.next, 0)
	write32(&r.side, 0)
	write32(&r.prev, 0)
	// These are read under the hold alone.
	r.by, r.up, r.named = 0, 0, 0
	write64(&r.head, 0)
	write64(&r.anchor, 0)
	if of.id != 0 {
		w := r.identityWords()
		write64(&w[0], of.constant)
		write64(&w[1], uint64(of.id))
		t.identities.countPiece(r, 1)
	}
	return n, r
}

// beginChainedPiece makes a piece that begins with a block of a key and a local hash,
// behind another one or none, whose identity it has, and returns it changing. up is the
// engine hash of that other one, 0 for none. It returns 0 if another lane has begun a piece
// with the key meanwhile.
//
// The entry is what makes the piece known, and it is claimed, not inserted, if other lanes
// are at work: two sources that announce the same new prompt at one moment both get here,
// one of them wins the entry, and the other one starts over and finds the winner's piece.
func (t *tree) beginChainedPiece(want int, key, local uint64, behind cursor, up uint64) (uint32, *piece) {
	flags := uint32(0)
	if t.hasClientHashes(behind.id) {
		flags |= isWide
	}
	if key == behind.firstKey(local) {
		flags |= isFirst
	}
	n, r := t.beginPiece(want, flags, behind.chainIdentity)
	write32(&r.prev, behind.at.piece)
	r.up = up
	write64(&r.head, key)
	write64(&r.anchor, key)
	if table := t.headsFor(r); t.lanes.alone {
		table.insertEntry(mix(key), position{piece: n})
	} else if !table.claimEntry(mix(key), position{piece: n},
		func(q position) bool { return load64(&t.lines.pieceAt(q.piece).head) == key }) {
		t.discardPiece(n, r)
		return 0, nil
	}
	return n, r
}

// abandonPiece ends a new piece without blocks: its first block turned out not to be
// ordinary after the piece had been entered. The head is cleared before the entry goes, so
// that a reader which has found the entry does not believe it.
func (t *tree) abandonPiece(l *lane, n uint32, r *piece) {
	head := r.head
	write64(&r.head, 0)
	t.headsFor(r).removeEntry(mix(head), position{piece: n})
	if l.piece == n {
		l.piece = 0
	}
	t.discardPiece(n, r)
}

// discardPiece frees a new piece without blocks that is in no table. The version goes on,
// and held and changing are cleared in the same store: nobody can have seen the piece, but
// the next user of the line spins until held is clear.
func (t *tree) discardPiece(n uint32, r *piece) {
	lines := linesFor(r.meta)
	t.identities.countPiece(r, -1)
	write64(&r.head, 0)
	write32(&r.ver, load32(&r.ver)&^(changing|held)+versionStep)
	t.lines.freeLines(forPieces, n, lines)
}

// extendPiece appends n blocks to a locked piece, with a set. Their words are written
// already. Nearly always the last interval has the same set and just grows, which touches
// nothing but the head. Until the count changes, a word behind the end is no block to
// anybody.
func (t *tree) extendPiece(r *piece, n, set uint32) {
	end, k := r.len()+n, r.intervalCount()
	var buf [maxPiece + 2]interval
	switch {
	// A new piece: its first interval is all that it has.
	case k == 0:
		t.sets.retainSet(set)
		write32(&r.intervals[0], interval{set, end}.encode())
		r.setCounts(end, 1)
		return
	// The chain goes on with the same owners.
	case k <= inlineIntervals && intervalOf(r.intervals[k-1]).set == set:
		write32(&r.intervals[k-1], interval{set, end}.encode())
		r.setCounts(end, k)
		return
	}
	old := t.lines.intervalsOf(r, &buf)
	r.setCounts(end, k)
	var more [maxPiece + 2]interval
	t.replaceIntervals(r, old, appendInterval(append(more[:0], old...), set, end))
}

// changeHolder gives blocks [lo, hi) of a changing piece to an owner, or takes them. It
// returns those that changed, and of them those that had no owner before or have none now.
//
// Sets are interned, so a piece of which one owner gets all blocks changes one number: the
// set in its only interval. That is the usual case, and has a way of its own at the top
// that allocates nothing and copies no list. Everything else splits and joins intervals in
// buffers on the stack.
//
// References are counted in an order that never lets a set die between: toggleOwner returns
// the new set with a reference for this call, replaceIntervals takes those of the intervals
// and drops the old ones, and only then the call lets go of its own.
func (t *tree) changeHolder(l *lane, r *piece, lo, hi, owner uint32, give bool) (changed, edge uint64) {
	s := &t.sets
	if r.intervalCount() == 1 && lo == 0 && hi == r.len() {
		v := intervalOf(r.intervals[0])
		// A source that stores what it holds, or removes what it does not hold, changes
		// nothing, and disturbs no reader.
		if s.hasOwner(v.set, owner) == give {
			return 0, 0
		}
		to := s.toggleOwner(l, v.set, owner)
		write32(&r.intervals[0], interval{to, v.end}.encode())
		s.releaseSet(v.set)
		if changed = spanOf(lo, hi); to == 0 || v.set == 0 {
			edge = changed
		}
		return changed, edge
	}
	var was, buf [maxPiece + 2]interval
	var taken [maxPiece + 2]uint32
	old, out, start, k := t.lines.intervalsOf(r, &was), buf[:0], uint32(0), 0
	for _, v := range old {
		// [a, b) is the part of the interval that the change is about. What lies before and
		// behind keeps its set.
		a, b := max(start, lo), min(v.end, hi)
		if a >= b || s.hasOwner(v.set, owner) == give {
			out = appendInterval(out, v.set, v.end)
		} else {
			to := s.toggleOwner(l, v.set, owner)
			taken[k] = to
			k++
			changed |= spanOf(a, b)
			if to == 0 || v.set == 0 {
				edge |= spanOf(a, b)
			}
			if start < a {
				out = appendInterval(out, v.set, a)
			}
			if out = appendInterval(out, to, b); b < v.end {
				out = appendInterval(out, v.set, v.end)
			}
		}
		start = v.end
	}
	if changed == 0 {
		return 0, 0
	}
	t.replaceIntervals(r, old, out)
	for _, id := range taken[:k] {
		s.releaseSet(id)
	}
	return changed, edge
}

// replaceIntervals replaces the intervals of a piece. old is what it has, with the
// references; those of new are taken. Equal intervals at both ends keep their references as
// they are: each one costs an atomic operation on a word that other lanes use too.
//
// A list that changes its size moves to other lines. The old lines are freed at the end,
// after the head names the new ones, and free lines of lists never become anything else, so
// a reader with the old number reads numbers of sets at worst, and then sees that the
// version has changed.
func (t *tree) replaceIntervals(r *piece, old, new []interval) {
	// Skip what is equal at both ends. Those intervals keep their references.
	a, b := old, new
	for len(a) > 0 && len(b) > 0 && a[0].set == b[0].set {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1].set == b[len(b)-1].set {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	// New references first. A set that is in both lists, at different places, must not lose
	// its last one between.
	for _, v := range b {
		t.sets.retainSet(v.set)
	}
	for _, v := range a {
		t.sets.releaseSet(v.set)
	}
	have, want := intervalLines(len(old)), intervalLines(len(new))
	line := r.intervals[0]
	if want == 0 {
		for i, v := range new {
			write32(&r.intervals[i], v.encode())
		}
	} else {
		// The new list is complete before the head names it.
		if have != want {
			n := t.lines.allocLines(forIntervals, want)
			write32(&r.intervals[0], n)
			t.lines.writeIntervals(n, new)
		} else {
			t.lines.writeIntervals(line, new)
		}
	}
	if have != 0 && have != want {
		t.lines.freeLines(forIntervals, line, have)
	}
	r.setCounts(r.len(), len(new))
}

// writeIntervals writes a list of intervals. Readers may look at it meanwhile, so each word
// is written at once.
func (a *arena) writeIntervals(line uint32, v []interval) {
	w := unsafe.Slice((*uint32)(a.addressOf(line)), len(v))
	for i := range v {
		write32(&w[i], v[i].encode())
	}
}

// trimPiece takes blocks without an owner off the end of a changing piece, up to a ghost,
// and frees it if none is left. Readers go on then.
//
// Only the end can go: the keys of later blocks depend on the local hashes of all before
// them. Engines evict chains from their end, so that is where nearly all blocks leave. If
// the anchor was among those that leave, the piece forgets it, unless many blocks went at
// once. A chain that leaves block by block would compute a key for each of them.
func (t *tree) trimPiece(l *lane, n uint32, r *piece) {
	var was [maxPiece + 2]interval
	old := t.lines.intervalsOf(r, &was)
	k := len(old)
	if k > 0 && old[k-1].set != 0 {
		r.unlockReaders()
		return
	}
	// The last interval has no owner, and leaves. Intervals next to each other differ, so
	// the one before it has one.
	from, kept := uint32(0), old[:max(k-1, 0)]
	if k > 1 {
		from = old[k-2].end
	}
	if k > 0 {
		// But ghosts stay: blocks without an owner that have a name with an entry. The
		// piece ends behind the last of them.
		if ghosts := t.lines.enteredBlocks(r) >> from << from; ghosts != 0 {
			if from = uint32(bits.Len64(ghosts)); from == r.len() {
				r.unlockReaders()
				return
			}
			var buf [maxPiece + 2]interval
			kept = append(append(buf[:0], kept...), interval{0, from})
		}
	}
	if from > 0 {
		if !r.loose() && anchorAt(r.meta) >= from {
			anchor := uint64(0)
			if r.len()-from >= longTrim { // what leaves block by block needs none
				anchor = t.keyOf(position{n, from - 1})
			}
			write32(&r.meta, r.meta&(1<<anchorShift-1))
			write64(&r.anchor, anchor)
		}
		t.replaceIntervals(r, old, kept)
		// Names of the blocks that leave must not become names of blocks that come later at
		// their positions. The words in the body are overwritten when that happens, those
		// in sides are not.
		for line := r.side; line != 0; {
			d := t.lines.sideAt(line)
			for i := max(from, d.firstBlock()); i < r.len() && d.covers(i); i++ {
				write64(&d.engineHashes()[i-d.firstBlock()], 0)
			}
			line = d.next
		}
		r.setCounts(from, len(kept))
		r.unlockReaders()
		return
	}
	t.replaceIntervals(r, old, nil)
	r.setCounts(0, 0)
	// The piece is empty. Clear the key first: from then on no reader that has found the
	// entry believes it.
	if !r.loose() {
		head := r.head
		write64(&r.head, 0)
		t.headsFor(r).removeEntry(mix(head), position{piece: n})
	}
	t.endPiece(l, n, r)
}

// endPiece unlocks a piece that has no block and frees its lines. The order matters: the
// piece has left the tables before, then its names are freed, then the version changes,
// then the lane lets go, and the lines of the piece are freed last, because from that
// moment on another lane may build a new piece there.
func (t *tree) endPiece(l *lane, n uint32, r *piece) {
	lines := linesFor(r.meta)
	t.identities.countPiece(r, -1)
	for d := r.side; d != 0; {
		s := t.lines.sideAt(d)
		next := s.next
		k, _ := sideLines(s.cap())
		t.lines.freeLines(forNames, d, k)
		if r.loose() {
			t.looseSides--
		}
		d = next
	}
	write32(&r.side, 0)
	r.unlockReaders()
	if l.piece == n {
		t.releasePiece(l)
	}
	t.lines.freeLines(forPieces, n, lines)
}

// noteFork notes that another piece follows a block in the midst of this one, and gets the
// key of that block. A query that leaves the piece there begins at a key close by. Later
// forks of the piece change nothing: one bit field says where the anchor is, and the first
// fork is usually the one that most prompts share (the end of a system prompt). The lane
// holds the piece.
func (t *tree) noteFork(p position, r *piece, key uint64) {
	n := (p.at + 1) / anchorStep
	if n == 0 || r.meta>>anchorShift != 0 {
		return
	}
	// The anchor has a position of few bits, so it is the last block of a group of eight at
	// or before the fork. That costs the query up to seven hashes.
	if at := n*anchorStep - 1; at < p.at {
		key = t.keyOf(position{p.piece, at})
	}
	t.lockPiece(p.piece, r) // a checkpoint reads meta
	write32(&r.meta, r.meta|n<<anchorShift)
	write64(&r.anchor, key)
	r.unlockReaders()
}

// countBlocks counts blocks of a piece that got an owner, or lost the last one if negative.
// Blocks of the base identity are counted by the lane alone, which costs no shared word;
// those of others share a word with other lanes.
func (t *tree) countBlocks(l *lane, r *piece, n int) {
	l.live += n
	if r.meta&isOther != 0 {
		atomic.AddUint32(&t.identities.byID(r.identityID()).blocks, uint32(n))
	}
}

// isHeldBy reports whether an owner of the source holds a block.
func (t *tree) isHeldBy(s *source, p position) bool { return t.isInSet(s, t.lines.setOf(p)) }

// isInSet reports whether an owner of the source is in a set. A source has a handful of
// owners (a rank's media and attention groups), so a loop over them is faster than a set of
// the source's own.
func (t *tree) isInSet(s *source, set uint32) bool {
	for _, o := range s.owners {
		if t.sets.hasOwner(set, o.id) {
			return true
		}
	}
	return false
}

// findHeldRaw returns the loose block of an engine hash, if an owner of the source holds
// it.
func (t *tree) findHeldRaw(s *source, engine uint64) position {
	if s.raw {
		if p := t.findLoose(engine); !p.isNone() && t.isHeldBy(s, p) {
			return p
		}
	}
	return position{}
}

// clearStaleNames drops the engine hashes that a block had when it lost its last owner.
// They were left where they were, as nobody takes the words of a dead block for names. Now
// it gets an owner again, and they would become names that nobody has announced: a removal
// by one of them, meant for another block, would take this one.
func (t *tree) clearStaleNames(n uint32, r *piece, at uint32) {
	if r.loose() {
		return
	}
	t.keepForCheckpoint(n)
	write64(&r.engineHashes()[at], 0)
	for line := r.side; line != 0; {
		d := t.lines.sideAt(line)
		if d.covers(at) {
			write64(&d.engineHashes()[at-d.firstBlock()], 0)
		}
		line = d.next
	}
}
