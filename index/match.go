package index

import (
	"math/bits"
	"slices"
	"unsafe"
)

// Prefix is an owner of the first block, and the number of leading blocks that it holds
// without a gap. The type has no name of its own, so that other rooms share lists of it.
type Prefix = struct{ Owner, Blocks uint32 }

// Span is blocks [From, To) that one owner holds, the block before it not.
type Span = struct{ Owner, From, To uint32 }

// Match is what an index holds of a chain. Reusing one saves its buffers. The lists
// belong to the Match and are overwritten by the next use of it.
type Match struct {
	// Prefixes has each owner of the first block once, in no order.
	Prefixes []Prefix
	// Later is what owners hold behind a block that they lack, by ascending From.
	Later []Span
	// Blocks is how many leading blocks have an owner each.
	Blocks int
	// Gaps lets queries go on behind blocks without an owner, to the end of the prompt. It is the caller's to set, and
	// stays as it is. An engine whose layers all have a sliding window keeps the end of a prompt without its beginning.
	Gaps bool
	// Truncated says that the chain may be held further than Blocks: its next block was
	// refused for want of memory, or looks like a ghost that had to go while blocks are
	// held that were stored by names of such ghosts. A look-up by names does not tell.
	Truncated bool

	walked int            // of joinWalks: the block at hand
	held   []uint64       // who holds the blocks at hand, by internal id
	late   []uint64       // those that are in Later
	opened []uint32       // by internal id: last place in Later, valid for those of late
	joined [2][]openOwner // of joinWalks: who holds the blocks before, and the ones at hand
	owners []uint32       // of joinWalks: who holds the blocks at hand
	walks  []chainWalk    // one a place
}

// Chain is a prompt given by its keys, possibly computed when asked for.
type Chain interface {
	// Len returns the number of blocks.
	Len() int
	// At returns the key of block i, 0 <= i < Len().
	At(i int) uint64
}

// LocalChain is a prompt given by its local hashes as well. *hash.Chain is one.
type LocalChain interface {
	Chain
	// Locals returns the local hashes of the first n blocks or more, n <= Len().
	Locals(n int) []uint64
}

// ahead is how many local hashes a query asks for at a time, of those behind the first.
const ahead = 16

// dense is how many owners in a word of a set make it faster to look at each bit than to
// search for those that are set.
const dense = 24

// fewSets is how many sets a processor loads at once without being told: it runs ahead of
// the loop as far as its buffers allow. Beyond that the loads are begun by hand, or each
// set would be waited for.
const fewSets = 3

// patience is how often a query looks again before it locks the index. A try fails if a
// piece that the query has read lost blocks meanwhile, or if a held block moved or an owner
// was retired anywhere in the index. Eight failures in a row mean that such events come
// faster than the query reads.
const patience = 8

// Lookup is a place where a prompt's blocks are looked up.
type Lookup struct {
	Constant uint64 // of the identity, 0 of the base one
	// Chain has the canonical sequence hashes of the blocks or, with Loose, hashes of any
	// kind.
	Chain Chain
	// Loose says that only blocks are looked for that wait under a hash itself, XORed with
	// Constant. Chains of blocks are not looked at.
	Loose bool
	// Names are used where Chain is nil: the engine hashes of the blocks, as sources have
	// taught them. Each stands for the block that it means to all sources, if that is one
	// of the identity; the first one is that of the first block of a prompt. The look-up
	// ends at the first block that no name leads to, and finds none whose place in a chain
	// is not known.
	Names []uint64
}

// Match looks a prompt up. A block is held by each owner that holds it in one of the
// places; a place whose chain is shorter than the first ends before. Chains are asked for a
// block in turn, and for none behind the first block without an owner anywhere, unless m.Gaps is
// set. Of a single
// chain Match asks for the first local hash alone, then for those of a group at a time, and
// for none behind the group of the first block without an owner. It does not allocate once
// the buffers of m are long enough, unless a name is 0.
//
// How it can do without a lock: a query reads piece by piece, each between two looks at its
// version, and remembers how often each had lost blocks. At its end it looks at those
// counts again. If none has risen, every block that it saw held was still held then, so the
// answer is true of that moment. Blocks that came meanwhile may be missing, which no router
// can tell from a query that came a moment earlier. If a count has risen, the query starts
// over; after eight tries it locks the index, so that it ends however busy the writers are.
func (x *Index) Match(first Lookup, others []Lookup, m *Match) {
	ways := m.growWalks(len(others) + 1)
	ways[0].startAt(x, &first)
	for i := range others {
		ways[i+1].startAt(x, &others[i])
	}
	if len(others) == 0 && !m.Gaps && !first.Loose && (first.Chain == nil || x.tree.looseBlocks.Load() == 0) {
		ways[0].joined = false
		m.matchOne(&ways[0])
	} else {
		m.matchJoined(ways)
	}
	if x.bounds.refused.Load() != nil || x.names.ghosts.lost.Load() != 0 {
		for i := range ways {
			m.Truncated = m.Truncated || ways[i].endsUnknown(m.Blocks)
		}
	}
	releaseWalks(ways)
}

// chainWalk is the way of a query through one place.
type chainWalk struct {
	x      *Index
	c      Chain
	locals LocalChain // of c, nil if it has none
	engine []uint64   // normal engine hashes of a chain without keys, instead of c
	length int        // of the chain
	local  []uint64   // local hashes known so far
	apart  bool       // only loose blocks are looked at, by the hashes of c themselves
	seen   []visitedPiece
	runs   []ownerRun
	words  []uint64 // bitmaps of the runs, of internal ids

	constant uint64 // of the identity
	turns    uint32 // of the index when the way began

	n     int    // blocks looked at
	key   uint64 // of a block at or before the next one; of a chain of engine hashes, the one before
	keyed int    // which block that is
	next  uint32 // a hint: the piece that begins with the next block, 0 for none

	// Of a query of several places, or with loose blocks. Blocks without an owner are in
	// runs then, as they do not end the answer.
	joined bool
	lost   bool        // no name led to a block of a chain of engine hashes
	run    int         // of the block at hand
	start  int         // its first block
	each   uint64      // key of the block at hand
	keys   int         // blocks whose key was computed
	loose  position    // the last loose block
	was    [2]ownerRun // what held the block before: of the chain, and loose
}

// visitedPiece is a piece that an answer is made of, and how often its owners had lost
// blocks. If none has since, all that was true of the piece still is.
type visitedPiece struct{ piece, lost uint32 }

// ownerRun is a stretch of blocks with one set.
type ownerRun struct {
	set    uint32 // without a loose block at the same key
	width  uint32 // words of its bitmap
	words  int    // where its bitmap begins
	blocks int
}

// startAt makes the way through a place.
func (w *chainWalk) startAt(x *Index, look *Lookup) {
	w.x, w.c, w.apart, w.constant = x, look.Chain, look.Loose, look.Constant
	w.locals, w.engine = nil, nil
	if w.c == nil {
		if w.engine = look.Names; slices.Contains(w.engine, 0) {
			w.engine = slices.Clone(w.engine)
			for i := range w.engine {
				w.engine[i] = normal(w.engine[i])
			}
		}
		w.length = len(w.engine)
		return
	}
	w.length = w.c.Len()
	if !w.apart {
		w.locals, _ = w.c.(LocalChain)
	}
}

// endsUnknown reports whether a chain may go on behind some blocks: the next one was
// refused for want of memory, or looks like a ghost that had to go while blocks are held
// that were stored by such names. Both are answered by filters, which may say yes by
// mistake, and never no.
func (w *chainWalk) endsUnknown(blocks int) bool {
	if w.c == nil || blocks >= w.length {
		return false
	}
	key := w.c.At(blocks) ^ w.constant
	return w.x.bounds.wasRefused(key) || !w.apart && w.x.names.ghosts.lost.Load() != 0 && w.x.names.ghosts.mayHaveLost(key)
}

// restart returns the way to its beginning. turns is read here, before anything else: a
// move that happens later than this load is noticed at the end.
func (w *chainWalk) restart() {
	w.local, w.seen, w.runs, w.words = nil, w.seen[:0], w.runs[:0], w.words[:0]
	w.turns, w.n, w.key, w.keyed, w.next, w.lost = w.x.tree.turns.Load(), 0, 0, 0, 0, false
	w.run, w.start, w.each, w.keys, w.loose, w.was = 0, 0, 0, 0, position{}, [2]ownerRun{}
}

// isStillTrue reports whether no owner has lost a block that the way came by, and no block
// moved from where the way was still to come to where it had been. The second cannot be
// seen from the pieces, because each of them was right when it was read, so the whole index
// counts such moves.
//
//	way:    reads piece A (without the block) ------------> reads piece B (without the block)
//	event:             moves the block from B to A, counts a turn
//
// Nothing is said about blocks that came. An answer that lacks them was true when the way
// began.
func (w *chainWalk) isStillTrue() bool {
	if w.x.tree.turns.Load() != w.turns {
		return false
	}
	for _, s := range w.seen {
		if load32(&w.x.tree.lines.pieceAt(s.piece).lost) != s.lost {
			return false
		}
	}
	return true
}

// localHash returns the local hash of block i, and asks for its group if it is not known
// yet. The first block alone is a group, as most prompts of a fleet with many tenants have
// no block here at all, and hashing tokens costs more than the lookup.
func (w *chainWalk) localHash(i int) uint64 {
	if i >= len(w.local) {
		n := 1
		if i > 0 {
			n = min(((i-1)/ahead+1)*ahead+1, w.length)
		}
		w.local = w.locals.Locals(n)
	}
	return w.local[i]
}

// nextKey returns the key of block n, the next one. The way knows a key at or before it,
// the last one that a piece gave it (keyed says of which block), and computes the rest. So
// a query hashes only where it leaves a piece, and from an anchor close by.
func (w *chainWalk) nextKey() uint64 {
	switch {
	case w.locals == nil:
		return normal(w.c.At(w.n) ^ w.constant)
	case w.n == 0:
		w.key = normal(w.localHash(0) ^ w.constant)
	}
	if w.keyed < w.n {
		w.localHash(w.n)
		w.key, w.keyed = w.x.tree.followKeys(w.key, w.constant, w.local[w.keyed+1:w.n+1]), w.n
	}
	return w.key
}

// stepPiece goes on as far as blocks lie in one piece, and reports whether there was one.
//
// The hint of the piece before saves the probe of the table, and the piece's own key says
// whether the hint is right. Where there is no hint, the load of the entry is begun before
// the sieve is asked: a later block that is looked for is usually there.
//
// A look at a piece that comes to nothing is repeated: at the same piece while it is
// changing, and by the table if the piece turned out not to be the one. The table is asked
// without a hint then, so a wrong hint cannot keep the loop going round.
func (w *chainWalk) stepPiece() bool {
	x := w.x
	if w.n >= w.length {
		return false
	}
	if w.lost {
		return w.skipBlock()
	}
	key, n := uint64(0), w.next
	if w.engine == nil {
		if key = w.nextKey(); n != 0 && load64(&x.tree.lines.pieceAt(n).head) != key {
			n = 0
		}
	} else if n != 0 {
		if key = w.keyIfNext(n); key == 0 {
			n = 0
		}
	}
	for looks := spins(0); ; {
		if n == 0 {
			if w.engine != nil {
				n, key = w.findNamedPiece()
			} else {
				if w.n > 0 { // a first block is often absent, and the sieve says so
					x.tree.heads.prefetchEntry(mix(key))
				}
				n = x.tree.findBeginning(key, w.n == 0).piece
			}
			if n == 0 {
				return w.skipBlock()
			}
		}
		switch w.readPiece(n, key) {
		case stepped:
			return true
		// Nobody holds the block. By keys this happens to a single way only, and ends it:
		// in a joined one, blocks without an owner are runs. By names it is the same as a
		// hash that leads nowhere.
		case nothing:
			return w.engine != nil && w.skipBlock()
		case moved:
			n = 0
		case busy:
			looks.pause()
		}
	}
}

// findNamedPiece returns the piece that begins with the next block of a chain of engine
// hashes, and the key of that block. It returns 0 if the entry of the hash leads to no
// block that can be next.
//
// An entry that leads to a block and is gone right afterwards may have moved with its
// block, so the table is asked again. Without that, a query could miss a chain which was
// there all the time.
func (w *chainWalk) findNamedPiece() (n uint32, key uint64) {
	x, engine := w.x, w.engine[w.n]
	for h := mix(engine); ; {
		var buf [4]uint64
		left := false
		for _, ref := range x.names.table.appendRefs(h, buf[:0]) {
			if p, line := x.names.blockAt(ref, engine); line != 0 && p.at == 0 {
				if key := w.keyIfNext(p.piece); key != 0 {
					return p.piece, key
				}
			}
			left = left || !x.names.table.hasEntry(h, ref)
		}
		if !left { // else the block may have moved meanwhile, and its entry with it
			return 0, 0
		}
	}
}

// keyIfNext returns the key of the block that begins a piece if it follows the block before
// the next one. Else it returns 0.
func (w *chainWalk) keyIfNext(n uint32) uint64 {
	r := w.x.tree.lines.pieceAt(n)
	if load32(&r.meta)&(isLoose|isSide) != 0 {
		return 0
	}
	// The key is computed from the block's own hash and compared with the head: that proves
	// that the block follows, whatever the hint was.
	key := load64(&r.localHashes()[0])
	if w.n == 0 {
		key = normal(key ^ w.constant)
	} else {
		key = w.x.tree.followKey(w.key, w.constant, key)
	}
	if load64(&r.head) != key {
		return 0
	}
	return key
}

// skipBlock goes on behind a block that lies in no piece, if that does not end the way. A
// way by names cannot go on: the next block is found only from the key of the one before.
// So all further blocks are skipped as well (lost).
func (w *chainWalk) skipBlock() bool {
	if w.joined {
		w.runs = append(w.runs, ownerRun{blocks: 1})
		w.next = 0
		w.n++
		w.lost = w.engine != nil
	}
	return w.joined
}

// outcome is what a look at a piece has come to.
type outcome uint8

const (
	stepped outcome = iota
	nothing         // no owner has the first block
	moved           // the block is in another place
	busy            // the piece was changing
)

// readPiece reads a piece that begins with the next block, whose key it gets.
//
// It reads everything first and believes it last. Each number that serves as a length or an
// index is checked before (length against maxPiece, sets against the body), as it may be
// half of one piece and half of another. What was added to the walk's lists is taken back
// if the version has changed.
//
// A set's words are copied, not referred to: the set may end while the walk goes on, and
// its number be another one's. Equal stretches of neighbouring pieces share one copy.
func (w *chainWalk) readPiece(n uint32, key uint64) outcome {
	x := w.x
	r := x.tree.lines.pieceAt(n)
	ver, changing := r.readVersion()
	if changing {
		return busy
	}
	lost, meta := load32(&r.lost), load32(&r.meta)
	length, count := int(meta&255), int(meta>>16&255)
	list := r.intervals[:]
	// Wrong key, or a piece that has ended. If the version is still the same, this is not
	// the piece, and the table has to be asked.
	if load64(&r.head) != key || length == 0 || length > maxPiece {
		if !r.hasVersion(ver) {
			return busy
		}
		return moved
	}
	// While this piece is compared, the next one is on its way. Only the lines that the
	// prompt can reach are fetched.
	next := load32(&r.next)
	if left := w.length - w.n - length; next != 0 && left > 0 {
		prefetchLines(unsafe.Pointer(x.tree.lines.pieceAt(next)), 1+(min(left, maxPiece)+7)/8)
	}
	// How many blocks are those of the chain?
	most := min(length, w.length-w.n)
	if x.names.ghosts.on.Load() && !w.joined && w.engine == nil {
		// Ghosts are in the piece and in no answer. A prompt need not be hashed further
		// than blocks have owners.
		if most = min(most, x.tree.lines.leadingHeld(r, ver, count)); most == 0 {
			if !r.hasVersion(ver) {
				return busy
			}
			w.seen = append(w.seen, visitedPiece{n, lost})
			return nothing
		}
	}
	m := 0
	if w.engine == nil {
		m = w.countEqual(r, key, most)
	} else if m = w.countEqualNames(r, ver, meta, most); m == 0 {
		return moved
	}
	anchor, anchored := load64(&r.anchor), int(anchorAt(meta))
	// Who holds them?
	if count > inlineIntervals {
		line := load32(&r.intervals[0]) // a line of intervals only if the version is the same
		if !r.hasVersion(ver) {
			return busy
		}
		list = unsafe.Slice((*uint32)(x.tree.lines.addressOf(line)), count)
	}
	// Remember how long the lists are, to take back what follows if the piece has changed
	// meanwhile.
	runs, words := len(w.runs), len(w.words)
	start, held := 0, 0
	tail := ownerRun{}
	if runs > 0 {
		tail = w.runs[runs-1]
	}
	b := x.tree.sets.body.Load()
	if list = list[:min(count, len(list))]; len(list) > fewSets {
		b.prefetchSets(list, m)
	}
	for i := 0; i < len(list) && start < m; i++ {
		v := intervalOf(load32(&list[i]))
		// The set is newer than the body that was loaded, or the word is half of something.
		// A second look at the body tells which.
		if v.set >= b.cap {
			if b = x.tree.sets.body.Load(); v.set >= b.cap {
				break
			}
		}
		if v.set == 0 && (!w.joined || w.engine != nil) {
			break
		}
		// m bounds the end, so a word that is not an interval cannot make the answer longer
		// than the prompt.
		if end := min(int(v.end), m); end > start {
			w.addRun(b, v.set, end-start)
			start, held = end, end
		}
	}
	known, at := key, 0 // the last key that is known of the blocks held
	if anchor != 0 && anchored < held {
		known, at = anchor, anchored
	}
	if w.engine != nil {
		for ; at < held-1; at++ {
			known = x.tree.followKey(known, w.constant, load64(&r.localHashes()[at+1]))
		}
	}
	if !r.hasVersion(ver) {
		w.runs, w.words = w.runs[:runs], w.words[:words]
		if runs > 0 {
			w.runs[runs-1] = tail
		}
		return busy
	}
	w.seen = append(w.seen, visitedPiece{n, lost})
	if held == 0 {
		return nothing
	}
	if w.next = 0; held == length {
		w.next = next
	}
	w.key, w.keyed = known, w.n+at
	w.n += held
	return stepped
}

// countEqual returns how many blocks of a piece are those of the chain from the next one
// on, up to most. Those have the key of the first one in common. Equal local hashes behind
// an equal key mean equal keys, so no key is computed here: the whole comparison is a loop
// over two arrays, eight blocks to a cache line.
//
// A chain without local hashes has only keys. Then the key of each block of the piece is
// computed, which is why LocalChain exists. Words behind the end of what a piece had at the
// version may be anything; a comparison that they win is undone by the look at the version.
func (w *chainWalk) countEqual(r *piece, key uint64, most int) (m int) {
	l := r.localHashes()
	if w.locals == nil {
		for m, seq := 1, plain(key)^w.constant; ; m++ {
			if m == most {
				return m
			}
			if seq = w.x.tree.step.Next(seq, load64(&l[m])); seq != w.c.At(w.n+m) {
				return m
			}
		}
	}
	for m = 1; m < most; {
		if w.n+m >= len(w.local) {
			w.localHash(w.n + m)
		}
		known := w.local[w.n:min(w.n+most, len(w.local))]
		if m = sameUpTo(l, known, m); m < len(known) {
			break
		}
	}
	return m
}

// countEqualNames is countEqual for a chain of engine hashes. The names of the blocks may
// lie in the body and in several sides, in any mixture: an engine of one family may have
// taught the first ten, an engine of another one the rest. So it goes over all lines until
// a round finds nothing more.
//
// The lines of sides are those of other sides once the piece has ended. Each number that is
// read from one is believed only behind a look at the version of the piece.
func (w *chainWalk) countEqualNames(r *piece, ver, meta uint32, most int) (m int) {
	want := w.engine[w.n : w.n+most]
	for more := true; more; {
		before := m
		m = sameNames(r.engineHashesAt(meta), 0, int(meta>>8&255), want, m)
		for line := load32(&r.side); line != 0 && m < most && r.hasVersion(ver); {
			d := w.x.tree.lines.sideAt(line)
			dim, next := load32(&d.meta), load32(&d.next)
			if !r.hasVersion(ver) { // the side is of another piece by now
				return m
			}
			m = sameNames(d.engineHashes(), int(dim&255), int(dim>>8&255), want, m)
			line = next
		}
		more = m > before && m < most
	}
	return m
}

// sameNames returns the first block from m on whose engine hash in a line is not the one in
// want. The line has size hashes, from a position of the piece on, that of want[0] being 0.
func sameNames(names *words, from, size int, want []uint64, m int) int {
	if from == 0 {
		m = sameUpTo(names, want[:min(len(want), size)], m)
	}
	for k := m - from; k >= 0 && k < min(size, maxPiece) && m < len(want) && load64(&names[k]) == want[m]; k++ {
		m++
	}
	return m
}

// sameUpTo returns the first place from m on where two lists differ, at most len(b).
func sameUpTo(a *words, b []uint64, m int) int {
	if n := min(len(b), maxPiece) - m; n > 0 {
		m += sameWords(&a[m], &b[m], n)
	}
	return m
}

// addRun appends blocks with a set. The words of the set stay as they are for as long as
// the piece does.
func (w *chainWalk) addRun(b *setBody, set uint32, blocks int) {
	last := ownerRun{}
	if k := len(w.runs); k > 0 {
		last = w.runs[k-1]
	}
	now := w.runOf(b, set, last)
	if now.blocks = blocks; now.set == last.set && now.words == last.words && len(w.runs) > 0 {
		w.runs[len(w.runs)-1].blocks += blocks
		return
	}
	w.runs = append(w.runs, now)
}

// runOf returns a run with a set, whose words are those of another run if that has the same
// owners. The number of a set alone does not tell: it may have been given to another one
// meanwhile. A run without owners has the place of the words before it, so that two such
// runs in a row become one (addRun).
func (w *chainWalk) runOf(b *setBody, set uint32, like ownerRun) ownerRun {
	if set == 0 {
		return ownerRun{words: like.words}
	}
	if like.set == set && equalWords(w.wordsOfRun(like), b.wordsOf(set)) {
		return like
	}
	at := len(w.words)
	w.words = appendWords(w.words, b, set)
	return ownerRun{set: set, width: uint32(b.width), words: at}
}

// equalWords reports whether a copy of the words of a set is what the set is now.
func equalWords(was, now []uint64) bool {
	if len(was) != len(now) {
		return false
	}
	for i := range now {
		if was[i] != load64(&now[i]) {
			return false
		}
	}
	return true
}

// wordsOfRun returns the bitmap of a run, of internal ids.
func (w *chainWalk) wordsOfRun(r ownerRun) []uint64 { return w.words[r.words : r.words+int(r.width)] }

// holdersOf appends the living owners of a run, plus first.
func (w *chainWalk) holdersOf(dst []uint32, r ownerRun) []uint32 {
	d := w.x.tree.ids.Load()
	for i, word := range w.wordsOfRun(r) {
		if i >= len(d.retired) {
			break
		}
		for word = d.maskRetired(word, i); word != 0; word &= word - 1 {
			dst = append(dst, load32(&d.owner[i<<6+bits.TrailingZeros64(word)]))
		}
	}
	return dst
}

// collect turns the sets of one way into owners. It asks only now who is retired: an owner
// that was cleared and came back under another id would else be listed twice.
//
// It works on 64 owners at a time: what changes from one stretch to the next is the
// exclusive or of two words, and most stretches change nothing. An owner is written where
// its stretch ends, since only then is its length known. A stretch without any owner ends
// the answer; it closed all that was open.
func (m *Match) collect(w *chainWalk) {
	m.Reset()
	d := w.x.tree.ids.Load()
	for k := range w.runs {
		r := &w.runs[k]
		words := w.wordsOfRun(*r)
		// Sets are widened in other steps than the table of ids, so they may have words for
		// ids that nobody has yet. Those are empty.
		words = words[:min(len(words), len(d.retired))]
		for len(m.held) < len(words) {
			m.held, m.late = append(m.held, 0), append(m.late, 0)
		}
		some := uint64(0)
		for i := range m.held {
			now := uint64(0)
			if i < len(words) {
				now = d.maskRetired(words[i], i)
			}
			before := m.held[i]
			some |= now
			if now == before {
				continue
			}
			if gone := before &^ now; gone != 0 {
				m.endHolding(d, i, gone)
			}
			if came := now &^ before; came != 0 && m.Blocks > 0 {
				m.beginSpans(d, i, came)
			}
			m.held[i] = now
		}
		if some == 0 {
			return
		}
		m.Blocks += r.blocks
	}
	for i, held := range m.held {
		m.endHolding(d, i, held)
	}
}

// endHolding ends what owners hold at m.Blocks. They are a word of internal ids. Those in
// late began behind block 0 and have a Span already, whose end is set. All others get their
// Prefix.
//
// With many owners in one word it writes a row for each of the 64 bits and moves on only
// where the bit is set. That has no branch that the processor could guess wrong. The rows
// that were not wanted are overwritten by the next one, and the last is cut off.
func (m *Match) endHolding(d *ids, i int, word uint64) {
	if late := m.late[i] & word; late != 0 {
		word &^= late
		for ; late != 0; late &= late - 1 {
			m.Later[m.opened[i<<6+bits.TrailingZeros64(late)]].To = uint32(m.Blocks)
		}
		if word == 0 {
			return
		}
	}
	m.Prefixes = slices.Grow(m.Prefixes, 64)
	owners, blocks := (*[64]uint32)(d.owner[i<<6:]), uint32(m.Blocks)
	n := len(m.Prefixes)
	if to := (*[64]Prefix)(m.Prefixes[n : n+64]); bits.OnesCount64(word) < dense {
		k := 0
		for ; word != 0; word &= word - 1 {
			to[k&63] = Prefix{load32(&owners[bits.TrailingZeros64(word)&63]), blocks}
			k++
		}
		m.Prefixes = m.Prefixes[:n+k]
	} else {
		k := uint64(0)
		for j := range owners {
			to[k&63] = Prefix{load32(&owners[j]), blocks}
			k += word >> j & 1
		}
		m.Prefixes = m.Prefixes[:n+int(k)]
	}
}

// beginSpans notes owners that hold blocks from m.Blocks on, and not the one before.
func (m *Match) beginSpans(d *ids, i int, word uint64) {
	m.late[i] |= word
	for len(m.opened) < (i+1)<<6 {
		m.opened = append(m.opened, 0)
	}
	for ; word != 0; word &= word - 1 {
		id := i<<6 + bits.TrailingZeros64(word)
		m.opened[id] = uint32(len(m.Later))
		m.Later = append(m.Later, Span{Owner: load32(&d.owner[id]), From: uint32(m.Blocks)})
	}
}

// Reset makes m the answer about an unknown chain: no owner holds a block.
func (m *Match) Reset() {
	m.Prefixes, m.Later, m.Blocks, m.Truncated = m.Prefixes[:0], m.Later[:0], 0, false
	m.held, m.late, m.joined[0] = m.held[:0], m.late[:0], m.joined[0][:0]
}

// matchOne looks a chain up in one index without loose blocks. The first block that nobody
// holds ends the way, so it needs none of the lists that matchJoined merges.
//
// If a try has failed, nothing of it is kept. The pieces read so far may have been right,
// but nothing says at which moment all of them were.
func (m *Match) matchOne(w *chainWalk) {
	for try := 0; ; try++ {
		w.restart()
		if try == patience {
			w.x.lock()
		}
		for w.stepPiece() {
		}
		m.collect(w)
		if try == patience {
			w.x.unlock()
			return
		}
		if w.isStillTrue() {
			return
		}
	}
}
