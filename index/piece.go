package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// A piece is a run of up to 64 consecutive blocks of one chain. Its head is one cache line,
// and its body follows directly behind it, so that a query which knows the number of a
// piece needs no further pointer:
//
//	chained  head | local hashes | engine hashes | client hashes, if wide | constant, number
//	loose    head | keys | client hashes, if wide | constant, number
//
// The local hashes come first because they are all that a query compares: 64 blocks are
// eight cache lines in a row, which the prefetcher of the processor follows by itself.
// Engine hashes are touched by events alone.
//
// The constant and the number are those of the identity, and are there only if it is not
// the base one (isOther). Such a piece has room for a block less, so that it takes as many
// lines as another one.
//
// The blocks of a chained piece follow each other in a chain, and the first one is found by
// its key in tree.firsts or tree.heads; all others are found by walking from there. A loose
// block stands alone: its place in a chain is not known, and it is found by its own key in
// tree.loose.
//
// Who writes: a lane that holds the piece (the bit held of ver), or anyone while all lanes
// are locked. Blocks, keys and owners change only while ver is odd, and a reader looks at
// ver before and after, as with any seqlock: what it read between two equal even versions
// was true together. A reader may therefore see any mixture of old and new words meanwhile,
// so it must check every number that it is about to use as an index or a length before it
// uses it.
//
// Some words also change while ver is even, because a reader can check them on their own.
// The hints (next, prev) are followed by a look at a key or a name in the piece there, so a
// wrong hint costs a probe and nothing else. A name is one word: 0, or an engine hash of
// its block, so it cannot be half written.
type piece struct {
	meta uint32 // blocks, capacity, intervals: a byte each; flags, and which block the anchor is
	ver  uint32 // version, and whether the piece is held and changes
	lost uint32 // how often an owner lost a block; no two lives of a line begin alike
	next uint32 // a hint: the piece that went on behind the last block
	prev uint32 // a hint: the piece of the block before the first one
	side uint32 // first line of further names, see side
	by   uint32 // source that taught the names in the body, plus one
	// Blocks with the same owners: set << 7 | end. With more than one interval, the line
	// where they are.
	intervals [inlineIntervals]uint32
	head      uint64 // keys of the first block and of one more (anchorAt), of a chained piece
	anchor    uint64 // 0 if it is not known
	up        uint64 // engine hash of the block before the first one, 0 for none
	// Blocks whose engine hash in the body has an entry in nameMap.table.
	named uint64
}

// side holds further names of the blocks of a piece, from one block on.
//
//	meta, piece, next, by, named | 4, 12, 28 or 64 engine hashes
type side struct {
	meta  uint32 // first block, capacity, 0, flags: a byte each
	piece uint32
	next  uint32 // further names
	by    uint32 // source that taught the names, plus one
	named uint64 // those with an entry in nameMap.table, by position here
	_     uint64
}

const (
	maxPiece        = 64
	inlineIntervals = 1
	endBits         = 7
	endMask         = 1<<endBits - 1

	// Bits of a version.
	changing    = 1 // readers wait
	held        = 2 // a lane has the piece for itself
	versionStep = 4

	isLoose = 1 << 24
	isWide  = 1 << 25 // has client hashes
	isSide  = 1 << 26
	isOther = 1 << 27 // of another identity than the base one
	isFirst = 1 << 28 // begins a prompt, as its first key says

	// Bits 29 to 31 of meta say which block the anchor is: 0 is the last block of the
	// piece, n is block 8n-1. Prompts part behind that one, or at most seven blocks later.
	anchorShift = 29
	anchorStep  = 8

	// longTrim is how many blocks at once are worth computing the key of the last one left.
	longTrim = 8

	// maxSides bounds the lines of further names of a piece: what a source says
	// beyond it is private to the source.
	maxSides = 256
)

// interval is blocks with the same owners, up to end.
type interval struct{ set, end uint32 }

func (v interval) encode() uint32     { return v.set<<endBits | v.end }
func intervalOf(word uint32) interval { return interval{word >> endBits, word & endMask} }

// position is a block: a piece and a position in it. The zero value is none.
type position struct{ piece, at uint32 }

// encode packs a position into the 36 bits that the tables of keys and names have for it.
func (p position) encode() uint64 { return uint64(p.piece)<<6 | uint64(p.at) }

// decodePosition is the reverse of encode.
func decodePosition(ref uint64) position { return position{uint32(ref >> 6), uint32(ref & 63)} }

// isNone reports whether the position is that of no block. Line 0 is never used.
func (p position) isNone() bool { return p.piece == 0 }

// pieceAt returns the piece of a line. The line need not be one of a piece by now: who has
// the number from a table or a hint looks at the key or the flags first.
func (a *arena) pieceAt(n uint32) *piece { return (*piece)(a.addressOf(n)) }

// sideAt returns the side of a line.
func (a *arena) sideAt(n uint32) *side {
	return (*side)(a.addressOf(n))
}

// len returns the number of blocks, and cap the number that there is room for. Callers hold
// the piece; readers take both from one load of meta.
func (r *piece) len() uint32 { return r.meta & 255 }
func (r *piece) cap() uint32 { return r.meta >> 8 & 255 }

// intervalCount returns the number of intervals, 0 of a piece in the making.
func (r *piece) intervalCount() int { return int(r.meta >> 16 & 255) }

// loose reports whether the blocks of the piece are in no chain.
func (r *piece) loose() bool { return r.meta&isLoose != 0 }

// setCounts writes how many blocks and intervals a piece has. Both are in one word together
// with the flags, so a reader that loads meta once sees a pair that belonged together.
func (r *piece) setCounts(n uint32, k int) {
	write32(&r.meta, r.meta&^0xff00ff|n|uint32(k)<<16)
}

// words is an array of a body. Only its first cap words are the piece's, see wordsAt.
type words = [maxPiece]uint64

// wordsAt returns the k-th array of the body. Its type says 64 words even if the capacity
// is less: a constant length lets the compiler drop the bounds checks, and what lies behind
// is memory of the arena in any case.
func (r *piece) wordsAt(k uint32) *words {
	return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(k*r.cap())))
}

// engineHashesAt returns the engine hashes of a chained piece whose meta was read before. A
// reader without a lock uses it instead of engineHashes, which would load meta again and
// might find another capacity than the one it checked.
func (r *piece) engineHashesAt(meta uint32) *words {
	return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(meta>>8&255)))
}

// localHashes returns the local hashes, of a loose piece the keys.
func (r *piece) localHashes() *words { return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes)) }

// engineHashes returns the engine hashes of a chained piece; 0 is none.
func (r *piece) engineHashes() *words { return r.wordsAt(1) }

// clientHashes returns the client hashes of a wide piece.
func (r *piece) clientHashes() *words {
	if r.loose() {
		return r.wordsAt(1)
	}
	return r.wordsAt(2)
}

// wordsOfBlock returns how many words of the body a block of a piece takes.
func wordsOfBlock(meta uint32) (n int) {
	if n = 1; meta&isLoose == 0 {
		n++
	}
	if meta&isWide != 0 {
		n++
	}
	return n
}

// capFor returns the capacity of a piece for at least want blocks, as far as those fit. It
// rounds up to whole cache lines of the body (a chained piece has two words a block, so
// four blocks fill one), because a line that is half empty costs as much memory as a full
// one. The two words of an identity then take the place of a block or two.
func capFor(want int, flags uint32) uint32 {
	less := 0 // blocks that make room for the words of the identity
	if flags&isOther != 0 {
		if less = 1; wordsOfBlock(flags) == 1 {
			less = 2
		}
	}
	return uint32(min((max(want, 1)+less+3)&^3, maxPiece) - less)
}

// identityWords returns the constant and the number of the identity, of a piece that has
// them.
func (r *piece) identityWords() *[2]uint64 {
	return (*[2]uint64)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(int(r.cap())*wordsOfBlock(r.meta))))
}

// chainIdentity returns the identity with its constant, for lanes that hold the piece.
func (r *piece) chainIdentity() chainIdentity {
	if r.meta&isOther == 0 {
		return chainIdentity{}
	}
	w := r.identityWords()
	return chainIdentity{Identity(w[1]), w[0]}
}

// constant returns what the identity XORs into the keys of its blocks, 0 for the base one.
func (r *piece) constant() uint64     { return r.chainIdentity().constant }
func (r *piece) identityID() Identity { return r.chainIdentity().id }

// linesFor returns the lines of a piece.
func linesFor(meta uint32) int {
	n := int(meta>>8&255) * wordsOfBlock(meta)
	if meta&isOther != 0 {
		n += 2
	}
	return 1 + (n*8+lineBytes-1)/lineBytes
}

// anchorAt returns which block of a piece the anchor is. A query that leaves a piece in its
// midst needs the key of the block where it left, and has only that of the first one. It
// would have to hash every block between. The anchor is one more known key: at the last
// block as long as all prompts run through the whole piece, and close to the fork once some
// prompt has left the piece earlier.
func anchorAt(meta uint32) uint32 {
	if n := meta >> anchorShift; n != 0 {
		return n*anchorStep - 1
	}
	return meta&255 - 1
}

// setLastKey makes the last block of a changing piece the anchor, unless prompts part
// before it.
func (r *piece) setLastKey(key uint64) {
	if r.meta>>anchorShift == 0 {
		write64(&r.anchor, key)
	}
}

// lockReaders makes readers wait, and unlockReaders lets them go on with a new version. The
// caller holds the piece, so no other writer is there. The first store must be atomic: it
// may not move behind the changes that follow, or a reader could take a half-written piece
// for an unchanged one.
func (r *piece) lockReaders()   { store32(&r.ver, load32(&r.ver)|changing) }
func (r *piece) unlockReaders() { write32(&r.ver, load32(&r.ver)&^changing+versionStep) }

// readVersion returns the version of a piece for a reader, and whether it is changing. The
// bit held is no part of a version: a lane that holds a piece without changing it disturbs
// no reader.
func (r *piece) readVersion() (ver uint32, busy bool) {
	v := load32(&r.ver) &^ held
	return v, v&changing != 0
}

// hasVersion reports whether a piece still has a version.
func (r *piece) hasVersion(ver uint32) bool { return load32(&r.ver)&^held == ver }

// clientHashOf returns the client hash of a block; 0 is none.
func (r *piece) clientHashOf(at uint32) uint64 {
	switch {
	case r.meta&isWide != 0:
		return r.clientHashes()[at]
	case r.loose():
		return 0
	}
	return r.localHashes()[at]
}

// A side has names of blocks of its piece from firstBlock on, at most cap.
func (d *side) firstBlock() uint32 { return d.meta & 255 }
func (d *side) cap() uint32        { return d.meta >> 8 & 255 }

// engineHashes returns the names of a side; 0 is none.
func (d *side) engineHashes() *words {
	return (*words)(unsafe.Add(unsafe.Pointer(d), unsafe.Sizeof(side{})))
}

// initialize makes names of blocks from one on. Another lane may look at them with an old
// number.
func (d *side) initialize(p position, names, next, by uint32) {
	write32(&d.meta, p.at|names<<8|isSide)
	write32(&d.piece, p.piece)
	write32(&d.next, next)
	d.by, d.named = by, 0
	for i := range d.engineHashes()[:names] {
		write64(&d.engineHashes()[i], 0)
	}
}

// covers reports whether a side has room for a name of a block.
func (d *side) covers(at uint32) bool { return at-d.firstBlock() < d.cap() }

// sideLines returns the lines for at least n names, and how many fit. There are four sizes,
// so that lines of sides that have ended fit new ones: a free list of each of 64 sizes
// would keep memory that nobody asks for.
func sideLines(n uint32) (lines int, names uint32) {
	switch {
	case n <= 4:
		return 1, 4
	case n <= 12:
		return 2, 12
	case n <= 28:
		return 4, 28
	}
	return 9, maxPiece
}

// intervalWords returns the intervals of a piece where they are: in its head if there is
// one, as for a piece whose blocks all have the same owners, else in a list of lines. The
// caller holds the piece.
func (a *arena) intervalWords(r *piece) []uint32 {
	n := r.intervalCount()
	if n > inlineIntervals {
		return unsafe.Slice((*uint32)(a.addressOf(r.intervals[0])), n)
	}
	return r.intervals[:n]
}

// intervalsOf copies the intervals of a piece into a buffer of the caller's stack, for
// changes that read the old list while they write the new one. There may be two more than
// blocks while a change is under way.
func (a *arena) intervalsOf(r *piece, to *[maxPiece + 2]interval) []interval {
	w := a.intervalWords(r)
	for i, v := range w {
		to[i] = intervalOf(v)
	}
	return to[:len(w)]
}

// setOf returns the owner set of a block, 0 if it has none. It is a search from the first
// interval on. The lists are so short that anything cleverer would be slower.
func (a *arena) setOf(p position) uint32 {
	for _, v := range a.intervalWords(a.pieceAt(p.piece)) {
		if p.at < v&endMask {
			return v >> endBits
		}
	}
	return 0
}

// intervalLines returns how many lines a list of n intervals takes: none for one, and steps
// of a few sizes for the reason that sideLines has.
func intervalLines(n int) int {
	switch {
	case n <= inlineIntervals:
		return 0
	case n <= 16:
		return 1
	case n <= 32:
		return 2
	}
	return 5
}

// appendInterval appends blocks with a set to intervals. It extends the last interval if
// that has the same set, so the lists that it builds keep invariant 2 without a pass of
// their own.
func appendInterval(out []interval, set, end uint32) []interval {
	if n := len(out); n > 0 && out[n-1].set == set {
		out[n-1].end = end
		return out
	}
	return append(out, interval{set, end})
}

// spanOf returns the bits lo to hi-1, lo < hi <= 64. An empty span has no answer here: a
// shift by 64 is a shift by 0 in this formula, and would return all bits.
func spanOf(lo, hi uint32) uint64 { return ^uint64(0) >> (64 - (hi - lo)) << lo }

// deadBlocks returns the blocks of a piece that have no owner and are no ghosts. Their
// engine hashes stay, for Snapshot, and are no names.
//
// A dead block lies between two blocks with owners, or before one. Its local hash must
// stay, as the keys behind it depend on it. Its engine hashes stay only because clearing
// them would cost the removal a cache line each; the next store of the block clears them
// first (clearStaleNames).
func (a *arena) deadBlocks(r *piece) (dead uint64) {
	if r.intervalCount() < 2 && (r.intervalCount() == 0 || intervalOf(r.intervals[0]).set != 0) {
		return 0
	}
	var buf [maxPiece + 2]interval
	start := uint32(0)
	for _, v := range a.intervalsOf(r, &buf) {
		if v.set == 0 {
			dead |= spanOf(start, v.end)
		}
		start = v.end
	}
	if dead != 0 {
		dead &^= a.enteredBlocks(r)
	}
	return dead
}

// claimLine makes a free line the head of a piece, held and changing, and returns the count
// of lost blocks of the piece before. A lane with an old number may hold the line for a
// moment, so it is claimed by a compare-and-swap, as any piece is held.
//
// A line of zeros is new, or its page was given back to the system and the numbers of its
// former pieces with it. A query may have read one of those and compare version and lost
// now. So the line does not begin at 0 again, but at numbers that no life of any line has
// begun with lately: multiples of two odd constants by a counter.
func (r *piece) claimLine(a *arena, alone bool) (lost uint32) {
	for n := spins(0); ; n.pause() {
		v := load32(&r.ver)
		ver, lost := v, load32(&r.lost)
		if v == 0 { // a new line, or its page was given back
			k := a.begun.Add(1)
			ver, lost = k*0x9e3779b1&^(changing|held), k*0x85ebca6b
		}
		if ver |= changing; !alone {
			ver |= held
		}
		if v&held == 0 && atomic.CompareAndSwapUint32(&r.ver, v, ver) {
			return lost
		}
	}
}

// eachPiece calls f for each piece in the order of lines. f may end the piece that it gets,
// and others: the loop reads a page's bitmap before it calls f, so all lanes must be
// locked, and f must bear a piece that has just ended.
func (a *arena) eachPiece(f func(n uint32, r *piece)) {
	for page, w := range a.heads {
		for ; w != 0; w &= w - 1 {
			n := uint32(page*pageLines + bits.TrailingZeros64(w))
			f(n, a.pieceAt(n))
		}
	}
}

// eachNameOf calls f for each name of a block that all mean, with its teacher plus one.
func (a *arena) eachNameOf(p position, f func(engine uint64, by uint32)) {
	r := a.pieceAt(p.piece)
	if !r.loose() && r.engineHashes()[p.at] != 0 {
		f(r.engineHashes()[p.at], r.by)
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		if d.covers(p.at) && d.engineHashes()[p.at-d.firstBlock()] != 0 {
			f(d.engineHashes()[p.at-d.firstBlock()], d.by)
		}
		line = d.next
	}
}

// eachName calls f for each name that all mean, until f returns false.
func (a *arena) eachName(f func(engine uint64, p position) bool) {
	more := true
	a.eachPiece(func(n uint32, r *piece) {
		for i := uint32(0); more && i < r.len(); i++ {
			p := position{n, i}
			if a.setOf(p) == 0 {
				continue
			}
			a.eachNameOf(p, func(engine uint64, _ uint32) {
				more = more && f(engine, p)
			})
		}
	})
}

// namesAt returns the engine hashes of a piece or a side.
func (a *arena) namesAt(line uint32) *words {
	if r := a.pieceAt(line); r.meta&isSide == 0 {
		return r.engineHashes()
	}
	return a.sideAt(line).engineHashes()
}

// enteredBlocks returns the blocks of a piece that have a name with an entry.
func (a *arena) enteredBlocks(r *piece) (blocks uint64) {
	blocks = r.named
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		blocks |= d.named << d.firstBlock()
		line = d.next
	}
	return blocks
}

// countNames returns how many names some blocks of a piece have.
func (a *arena) countNames(r *piece, blocks uint64) (n int) {
	if !r.loose() {
		n = countHashes(r.engineHashes(), blocks)
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		n += countHashes(d.engineHashes(), d.partOf(blocks))
		line = d.next
	}
	return n
}

// leadingHeld returns how many leading blocks of a piece have an owner each: a query need
// not hash a prompt as far as ghosts go. The answer is right if the piece has the version
// afterwards.
//
// It is called between two looks at the version, so the list may be gone: the number of its
// line is believed only after the version was seen to be the same, because the line of a
// dead list may be that of a piece by now.
func (a *arena) leadingHeld(r *piece, ver uint32, count int) int {
	list := r.intervals[:]
	if count > inlineIntervals {
		line := load32(&r.intervals[0]) // a line of intervals only if the version is the same
		if !r.hasVersion(ver) {
			return maxPiece
		}
		list = unsafe.Slice((*uint32)(a.addressOf(line)), count)
	}
	held := 0
	for i := range min(count, len(list)) {
		v := intervalOf(load32(&list[i]))
		if v.set == 0 {
			break
		}
		held = int(v.end)
	}
	return held
}

// mayHaveName reports whether a block of a piece may have an engine hash. The piece need
// not be held: the names of a block stay while the source that asks holds it.
//
// It answers true where it would have to look further than the body, and the caller looks
// again with the piece held. A search goes through up to 32,768 pieces, and taking each of
// them would make all other lanes wait in turn.
func (a *arena) mayHaveName(n uint32, engine uint64) bool {
	r := a.pieceAt(n)
	meta := load32(&r.meta)
	if meta&isLoose != 0 || load32(&r.side) != 0 {
		return true
	}
	names := r.engineHashesAt(meta)
	for i := range names[:min(meta&255, maxPiece)] {
		if load64(&names[i]) == engine {
			return true
		}
	}
	return false
}

// prefetchNames begins the loads of a piece's engine hashes.
func (r *piece) prefetchNames() {
	meta := load32(&r.meta)
	if meta&(isLoose|isSide) != 0 {
		return
	}
	if n := min(meta&255, maxPiece); n > 0 {
		prefetchLines(unsafe.Pointer(r.engineHashesAt(meta)), int(n+7)/8)
	}
}

// findNameIn returns the block of a piece that has an engine hash, and the line of the
// name.
//
// A word counts as a name only if the block has an owner, or an entry, which only ghosts
// and held blocks have: words of dead blocks are what removals have left behind.
func (a *arena) findNameIn(n uint32, engine uint64) (position, uint32) {
	r := a.pieceAt(n)
	if r.loose() {
		return position{}, 0
	}
	for i, have := range r.engineHashes()[:r.len()] {
		if p := (position{n, uint32(i)}); have == engine && (a.setOf(p) != 0 || r.named>>i&1 != 0) {
			return p, n
		}
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		for i, have := range d.engineHashes()[:d.cap()] {
			if p := (position{n, d.firstBlock() + uint32(i)}); have == engine && p.at < r.len() && (a.setOf(p) != 0 || d.named>>i&1 != 0) {
				return p, line
			}
		}
		line = d.next
	}
	return position{}, 0
}

// hasUnindexedNames reports whether some blocks of a piece have engine hashes without an
// entry. In the body it does not look whether a block has a hash at all: nearly each has
// one, and a piece that is listed without need costs a search one look.
func (a *arena) hasUnindexedNames(r *piece, lo, hi uint32) bool {
	if r.loose() {
		return false
	}
	blocks := spanOf(lo, hi)
	if blocks&^r.named != 0 {
		return true
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		for w := blocks >> d.firstBlock() &^ d.named; w != 0; w &= w - 1 {
			if i := lowestBit(w); i < d.cap() && d.engineHashes()[i] != 0 {
				return true
			}
		}
		line = d.next
	}
	return false
}

// partOf returns which names of a side are of some blocks of its piece.
//
// Bit i of the result is block firstBlock+i of the piece.
func (d *side) partOf(blocks uint64) uint64 {
	here := blocks >> d.firstBlock()
	if d.cap() < maxPiece {
		here &= 1<<d.cap() - 1
	}
	return here
}

// countHashes returns how many of some blocks have an engine hash.
func countHashes(engine *words, which uint64) (n int) {
	for ; which != 0; which &= which - 1 {
		if engine[lowestBit(which)] != 0 {
			n++
		}
	}
	return n
}
