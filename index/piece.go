package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// piece is the head of up to 64 consecutive blocks, one line; its body follows it.
//
//	chained  head | local hashes | engine hashes | client hashes, if wide | constant, number
//	loose    head | keys | client hashes, if wide | constant, number
//
// Constant and number are those of the identity, and only there if it is not the base one (isOther).
// Such a piece has room for a block less, so that its lines are as many.
//
// The blocks of a chained piece follow each other in a chain, and the first one is found
// by its key in tree.firsts or tree.heads. A loose block stands alone: its place in a chain is not
// known, and it is found by its key in tree.loose.
//
// All words are written while a lane holds the piece, or all lanes are locked. Blocks, keys and
// owners change while ver is odd. A reader looks at ver before and after. The hints (next, prev)
// and the names (side, engine hashes) also change while ver is even. A hint is followed by a
// look at a key or a name in the piece there. A name is one word: 0, or an engine hash of its
// block.
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

	// Bits 29 to 31 of meta say which block the anchor is: 0 is the last block of the piece, n is block 8n-1.
	// Prompts part behind that one, or at most seven blocks later.
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

func (v interval) word() uint32       { return v.set<<endBits | v.end }
func intervalOf(word uint32) interval { return interval{word >> endBits, word & endMask} }

// place is a block: a piece and a position in it. The zero value is none.
type place struct{ piece, at uint32 }

func (p place) ref() uint64              { return uint64(p.piece)<<6 | uint64(p.at) }
func placeOf(ref uint64) place           { return place{uint32(ref >> 6), uint32(ref & 63)} }
func (p place) isNone() bool             { return p.piece == 0 }
func (a *arena) pieceAt(n uint32) *piece { return (*piece)(a.at(n)) }
func (a *arena) sideAt(n uint32) *side {
	return (*side)(a.at(n))
}

func (r *piece) len() uint32 { return r.meta & 255 }
func (r *piece) cap() uint32 { return r.meta >> 8 & 255 }
func (r *piece) count() int  { return int(r.meta >> 16 & 255) }
func (r *piece) loose() bool { return r.meta&isLoose != 0 }
func (r *piece) set(n uint32, k int) {
	write32(&r.meta, r.meta&^0xff00ff|n|uint32(k)<<16)
}

type words = [maxPiece]uint64

func (r *piece) words(k uint32) *words {
	return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(k*r.cap())))
}

// engineOf returns the engine hashes of a chained piece whose meta was read before.
func (r *piece) engineOf(meta uint32) *words {
	return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(meta>>8&255)))
}

// local returns the local hashes, of a loose piece the keys.
func (r *piece) local() *words { return (*words)(unsafe.Add(unsafe.Pointer(r), lineBytes)) }

// engine returns the engine hashes of a chained piece; 0 is none.
func (r *piece) engine() *words { return r.words(1) }

// clientHashes returns the client hashes of a wide piece.
func (r *piece) clientHashes() *words {
	if r.loose() {
		return r.words(1)
	}
	return r.words(2)
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

// capFor returns the capacity of a piece for at least want blocks, as far as those fit.
func capFor(want int, flags uint32) uint32 {
	less := 0 // blocks that make room for the words of the identity
	if flags&isOther != 0 {
		if less = 1; wordsOfBlock(flags) == 1 {
			less = 2
		}
	}
	return uint32(min((max(want, 1)+less+3)&^3, maxPiece) - less)
}

// identityWords returns the constant and the number of the identity, of a piece that has them.
func (r *piece) identityWords() *[2]uint64 {
	return (*[2]uint64)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*uintptr(int(r.cap())*wordsOfBlock(r.meta))))
}

// root returns the identity with its constant, for lanes that hold the piece.
func (r *piece) root() root {
	if r.meta&isOther == 0 {
		return root{}
	}
	w := r.identityWords()
	return root{Identity(w[1]), w[0]}
}

func (r *piece) constant() uint64   { return r.root().constant }
func (r *piece) identity() Identity { return r.root().id }

// linesFor returns the lines of a piece.
func linesFor(meta uint32) int {
	n := int(meta>>8&255) * wordsOfBlock(meta)
	if meta&isOther != 0 {
		n += 2
	}
	return 1 + (n*8+lineBytes-1)/lineBytes
}

// anchorAt returns which block of a piece the anchor is.
func anchorAt(meta uint32) uint32 {
	if n := meta >> anchorShift; n != 0 {
		return n*anchorStep - 1
	}
	return meta&255 - 1
}

// setLastKey makes the last block of a changing piece the anchor, unless prompts part before it.
func (r *piece) setLastKey(key uint64) {
	if r.meta>>anchorShift == 0 {
		write64(&r.anchor, key)
	}
}

// noteFork notes that another piece follows a block in the midst of this one, and gets the key of that block. A query
// that leaves the piece there begins at a key close by. Later forks of the piece change nothing. The lane holds it.
func (t *tree) noteFork(p place, r *piece, key uint64) {
	n := (p.at + 1) / anchorStep
	if n == 0 || r.meta>>anchorShift != 0 {
		return
	}
	if at := n*anchorStep - 1; at < p.at {
		key = t.keyOf(place{p.piece, at})
	}
	t.lockPiece(p.piece, r) // a checkpoint reads meta
	write32(&r.meta, r.meta|n<<anchorShift)
	write64(&r.anchor, key)
	r.unlock()
}

// lock makes readers wait, unlock lets them go on. The lane holds the piece.
func (r *piece) lock()   { store32(&r.ver, load32(&r.ver)|changing) }
func (r *piece) unlock() { write32(&r.ver, load32(&r.ver)&^changing+versionStep) }

// version returns the version of a piece for a reader, and whether it is changing.
func (r *piece) version() (ver uint32, busy bool) {
	v := load32(&r.ver) &^ held
	return v, v&changing != 0
}

// same reports whether a piece still has a version.
func (r *piece) same(ver uint32) bool { return load32(&r.ver)&^held == ver }

// clientHash returns the client hash of a block; 0 is none.
func (r *piece) clientHash(at uint32) uint64 {
	switch {
	case r.meta&isWide != 0:
		return r.clientHashes()[at]
	case r.loose():
		return 0
	}
	return r.local()[at]
}

// names of a side.
func (d *side) from() uint32 { return d.meta & 255 }
func (d *side) cap() uint32  { return d.meta >> 8 & 255 }
func (d *side) engine() *words {
	return (*words)(unsafe.Add(unsafe.Pointer(d), unsafe.Sizeof(side{})))
}

// begin makes names of blocks from one on. Another lane may look at them with an old number.
func (d *side) begin(p place, names, next, by uint32) {
	write32(&d.meta, p.at|names<<8|isSide)
	write32(&d.piece, p.piece)
	write32(&d.next, next)
	d.by, d.named = by, 0
	for i := range d.engine()[:names] {
		write64(&d.engine()[i], 0)
	}
}

// covers reports whether a side has room for a name of a block.
func (d *side) covers(at uint32) bool { return at-d.from() < d.cap() }

// sideLines returns the lines for at least n names, and how many fit.
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

// keyOf returns the key of a block.
func (t *tree) keyOf(p place) uint64 {
	r := t.lines.pieceAt(p.piece)
	if r.loose() {
		return r.local()[p.at]
	}
	return t.keyWithin(r, 0, r.head, p.at)
}

// keyWithin returns the key of a block of a chained piece, from that of another one, which is not behind it.
func (t *tree) keyWithin(r *piece, from uint32, key uint64, at uint32) uint64 {
	if a := anchorAt(r.meta); r.anchor != 0 && from < a && a <= at {
		from, key = a, r.anchor
	}
	return t.followKeys(key, r.constant(), r.local()[from+1:at+1])
}

// intervalWords returns the intervals of a piece where they are.
func (a *arena) intervalWords(r *piece) []uint32 {
	n := r.count()
	if n > inlineIntervals {
		return unsafe.Slice((*uint32)(a.at(r.intervals[0])), n)
	}
	return r.intervals[:n]
}

// intervalsOf copies the intervals of a piece.
func (a *arena) intervalsOf(r *piece, to *[maxPiece + 2]interval) []interval {
	w := a.intervalWords(r)
	for i, v := range w {
		to[i] = intervalOf(v)
	}
	return to[:len(w)]
}

// setOf returns the owners of a block.
func (a *arena) setOf(p place) uint32 {
	for _, v := range a.intervalWords(a.pieceAt(p.piece)) {
		if p.at < v&endMask {
			return v >> endBits
		}
	}
	return 0
}

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

// replaceIntervals replaces the intervals of a piece. old is what it has, with the references; those
// of new are taken.
func (t *tree) replaceIntervals(r *piece, old, new []interval) {
	a, b := old, new
	for len(a) > 0 && len(b) > 0 && a[0].set == b[0].set {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1].set == b[len(b)-1].set {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	for _, v := range b {
		t.sets.hold(v.set)
	}
	for _, v := range a {
		t.sets.drop(v.set)
	}
	have, want := intervalLines(len(old)), intervalLines(len(new))
	line := r.intervals[0]
	if want == 0 {
		for i, v := range new {
			write32(&r.intervals[i], v.word())
		}
	} else {
		if have != want {
			n := t.lines.alloc(forIntervals, want)
			write32(&r.intervals[0], n)
			t.lines.writeIntervals(n, new)
		} else {
			t.lines.writeIntervals(line, new)
		}
	}
	if have != 0 && have != want {
		t.lines.free(forIntervals, line, have)
	}
	r.set(r.len(), len(new))
}

func (a *arena) writeIntervals(line uint32, v []interval) {
	w := unsafe.Slice((*uint32)(a.at(line)), len(v))
	for i := range v {
		write32(&w[i], v[i].word())
	}
}

// merged appends blocks with a set to intervals.
func merged(out []interval, set, end uint32) []interval {
	if n := len(out); n > 0 && out[n-1].set == set {
		out[n-1].end = end
		return out
	}
	return append(out, interval{set, end})
}

// changeHolder gives blocks [lo, hi) of a changing piece to an owner, or takes them. It returns
// those that changed, and of them those that had no owner before or have none now.
func (t *tree) changeHolder(l *lane, r *piece, lo, hi, owner uint32, give bool) (changed, edge uint64) {
	s := &t.sets
	if r.count() == 1 && lo == 0 && hi == r.len() {
		v := intervalOf(r.intervals[0])
		if s.has(v.set, owner) == give {
			return 0, 0
		}
		to := s.toggle(l, v.set, owner)
		write32(&r.intervals[0], interval{to, v.end}.word())
		s.drop(v.set)
		if changed = spanOf(lo, hi); to == 0 || v.set == 0 {
			edge = changed
		}
		return changed, edge
	}
	var was, room [maxPiece + 2]interval
	var taken [maxPiece + 2]uint32
	old, out, start, k := t.lines.intervalsOf(r, &was), room[:0], uint32(0), 0
	for _, v := range old {
		a, b := max(start, lo), min(v.end, hi)
		if a >= b || s.has(v.set, owner) == give {
			out = merged(out, v.set, v.end)
		} else {
			to := s.toggle(l, v.set, owner)
			taken[k] = to
			k++
			changed |= spanOf(a, b)
			if to == 0 || v.set == 0 {
				edge |= spanOf(a, b)
			}
			if start < a {
				out = merged(out, v.set, a)
			}
			if out = merged(out, to, b); b < v.end {
				out = merged(out, v.set, v.end)
			}
		}
		start = v.end
	}
	if changed == 0 {
		return 0, 0
	}
	t.replaceIntervals(r, old, out)
	for _, id := range taken[:k] {
		s.drop(id)
	}
	return changed, edge
}

// spanOf returns the bits lo to hi-1, lo < hi <= 64.
func spanOf(lo, hi uint32) uint64 { return ^uint64(0) >> (64 - (hi - lo)) << lo }

// deadBlocks returns the blocks of a piece that have no owner and are no ghosts. Their engine hashes
// stay, for Snapshot, and are no names.
func (a *arena) deadBlocks(r *piece) (dead uint64) {
	if r.count() < 2 && (r.count() == 0 || intervalOf(r.intervals[0]).set != 0) {
		return 0
	}
	var room [maxPiece + 2]interval
	start := uint32(0)
	for _, v := range a.intervalsOf(r, &room) {
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

// extendPiece appends n blocks to a locked piece, with a set. Their words are written.
func (t *tree) extendPiece(r *piece, n, set uint32) {
	end, k := r.len()+n, r.count()
	var room [maxPiece + 2]interval
	switch {
	case k == 0:
		t.sets.hold(set)
		write32(&r.intervals[0], interval{set, end}.word())
		r.set(end, 1)
		return
	case k <= inlineIntervals && intervalOf(r.intervals[k-1]).set == set:
		write32(&r.intervals[k-1], interval{set, end}.word())
		r.set(end, k)
		return
	}
	old := t.lines.intervalsOf(r, &room)
	r.set(end, k)
	var more [maxPiece + 2]interval
	t.replaceIntervals(r, old, merged(append(more[:0], old...), set, end))
}

// beginPiece makes an empty piece of an identity with room for want blocks and returns it locked.
func (t *tree) beginPiece(want int, flags uint32, of root) (uint32, *piece) {
	if of.id != 0 {
		flags |= isOther
	}
	meta := capFor(want, flags)<<8 | flags
	n := t.lines.alloc(forPieces, linesFor(meta))
	r := t.lines.pieceAt(n)
	lost := r.take(&t.lines, t.lanes.alone)
	write32(&r.meta, meta)
	write32(&r.lost, lost+1)
	write32(&r.next, 0)
	write32(&r.side, 0)
	write32(&r.prev, 0)
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

// take makes a free line the head of a piece, held and changing, and returns the count of
// lost blocks of the piece before. A lane with an old number may hold the line for a moment.
func (r *piece) take(a *arena, alone bool) (lost uint32) {
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

// beginChainedPiece makes a piece that begins with a block of a key and a local hash, behind another one or
// none, whose identity it has, and returns it changing. up is the engine hash of that other one, 0 for none. It
// returns 0 if another lane has begun a piece with the key meanwhile.
func (t *tree) beginChainedPiece(want int, key, local uint64, behind cursor, up uint64) (uint32, *piece) {
	flags := uint32(0)
	if t.hasClientHashes(behind.id) {
		flags |= isWide
	}
	if key == behind.first(local) {
		flags |= isFirst
	}
	n, r := t.beginPiece(want, flags, behind.root)
	write32(&r.prev, behind.at.piece)
	r.up = up
	write64(&r.head, key)
	write64(&r.anchor, key)
	if table := t.headsFor(r); t.lanes.alone {
		table.insert(mix(key), place{piece: n})
	} else if !table.claim(mix(key), place{piece: n}, func(q place) bool { return load64(&t.lines.pieceAt(q.piece).head) == key }) {
		t.discardPiece(n, r)
		return 0, nil
	}
	return n, r
}

// abandonPiece ends a new piece without blocks.
func (t *tree) abandonPiece(l *lane, n uint32, r *piece) {
	head := r.head
	write64(&r.head, 0)
	t.headsFor(r).remove(mix(head), place{piece: n})
	if l.piece == n {
		l.piece = 0
	}
	t.discardPiece(n, r)
}

// discardPiece frees a new piece without blocks that is in no table.
func (t *tree) discardPiece(n uint32, r *piece) {
	lines := linesFor(r.meta)
	t.identities.countPiece(r, -1)
	write64(&r.head, 0)
	write32(&r.ver, load32(&r.ver)&^(changing|held)+versionStep)
	t.lines.free(forPieces, n, lines)
}

// trimPiece takes blocks without an owner off the end of a changing piece, up to a ghost, and frees it
// if none is left. Readers go on then.
func (t *tree) trimPiece(l *lane, n uint32, r *piece) {
	var was [maxPiece + 2]interval
	old := t.lines.intervalsOf(r, &was)
	k := len(old)
	if k > 0 && old[k-1].set != 0 {
		r.unlock()
		return
	}
	from, kept := uint32(0), old[:max(k-1, 0)]
	if k > 1 {
		from = old[k-2].end
	}
	if k > 0 {
		if ghosts := t.lines.enteredBlocks(r) >> from << from; ghosts != 0 {
			if from = uint32(bits.Len64(ghosts)); from == r.len() {
				r.unlock()
				return
			}
			var room [maxPiece + 2]interval
			kept = append(append(room[:0], kept...), interval{0, from})
		}
	}
	if from > 0 {
		if !r.loose() && anchorAt(r.meta) >= from {
			anchor := uint64(0)
			if r.len()-from >= longTrim { // what leaves block by block needs none
				anchor = t.keyOf(place{n, from - 1})
			}
			write32(&r.meta, r.meta&(1<<anchorShift-1))
			write64(&r.anchor, anchor)
		}
		t.replaceIntervals(r, old, kept)
		for line := r.side; line != 0; {
			d := t.lines.sideAt(line)
			for i := max(from, d.from()); i < r.len() && d.covers(i); i++ {
				write64(&d.engine()[i-d.from()], 0)
			}
			line = d.next
		}
		r.set(from, len(kept))
		r.unlock()
		return
	}
	t.replaceIntervals(r, old, nil)
	r.set(0, 0)
	if !r.loose() {
		head := r.head
		write64(&r.head, 0)
		t.headsFor(r).remove(mix(head), place{piece: n})
	}
	t.endPiece(l, n, r)
}

// endPiece unlocks a piece that has no block and frees its lines.
func (t *tree) endPiece(l *lane, n uint32, r *piece) {
	lines := linesFor(r.meta)
	t.identities.countPiece(r, -1)
	for d := r.side; d != 0; {
		s := t.lines.sideAt(d)
		next := s.next
		k, _ := sideLines(s.cap())
		t.lines.free(forNames, d, k)
		if r.loose() {
			t.looseSides--
		}
		d = next
	}
	write32(&r.side, 0)
	r.unlock()
	if l.piece == n {
		t.releasePiece(l)
	}
	t.lines.free(forPieces, n, lines)
}

// headsFor returns the table that has the first key of a chained piece.
func (t *tree) headsFor(r *piece) *table {
	return t.headsTable(r.meta&isFirst != 0)
}

func (t *tree) headsTable(first bool) *table {
	if first {
		return &t.firsts
	}
	return &t.heads
}

// findFirst finds the block of a key that begins a prompt. Next to other lanes, the caller has to
// look at the piece again.
func (t *tree) findFirst(key uint64) place {
	return t.firsts.find(mix(key), func(q place) bool { return load64(&t.lines.pieceAt(q.piece).head) == key })
}

// findHead finds the block of a key that begins a piece but no prompt. Next to other lanes, the
// caller has to look at the piece again.
func (t *tree) findHead(key uint64) place {
	return t.heads.find(mix(key), func(q place) bool { return load64(&t.lines.pieceAt(q.piece).head) == key })
}

// findBeginning finds the block of a key that begins a piece, either a prompt as well or not.
func (t *tree) findBeginning(key uint64, first bool) place {
	if first {
		return t.findFirst(key)
	}
	return t.findHead(key)
}

// findLoose finds the loose block of a key. Next to other lanes, the caller has to look at
// the piece again.
func (t *tree) findLoose(key uint64) place {
	return t.loose.find(mix(key), func(q place) bool {
		r := t.lines.pieceAt(q.piece)
		m := load32(&r.meta)
		return m&isLoose != 0 && q.at < m&255 && load64(&r.local()[q.at]) == key
	})
}

// eachPiece calls f for each piece.
func (a *arena) eachPiece(f func(n uint32, r *piece)) {
	for page, w := range a.heads {
		for ; w != 0; w &= w - 1 {
			n := uint32(page*pageLines + bits.TrailingZeros64(w))
			f(n, a.pieceAt(n))
		}
	}
}
