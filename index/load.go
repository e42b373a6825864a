package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Loader fills an index from the chunks of an image. One goroutine loads; events wait for a
// chunk at most.
//
// Pieces of chains are made as they were, without looking whether their blocks are in other
// pieces already: keys within pieces are in no table. So the index must be empty before, and
// no source but those of the image may store blocks meanwhile: see IsAlone. Those may be
// dropped and their owners cleared at any time. Chunks may come from a peer or from a
// damaged disk. No chunk may make the Loader panic, loop, take memory out of proportion to
// its bytes, or leave an index that breaks an invariant, whatever it says.
type Loader struct {
	x       *Index
	numbers func(number uint32) (Source, bool)
	owners  func(number uint32) (Owner, bool)
	ids     func(number uint32) (Identity, bool)

	families map[uint64]uint32 // family -> the source that stands for it here, plus one
	leftOut  map[uint64]uint64 // source of the image that is not here -> its family
	standIns map[uint64]uint32 // source of the image that is not here -> the source that stands for it, plus one
	kept     *keptSets
	alone    int           // sources of the index, dropped ones too, if no other may come; 0: others may
	places   []place       // pieces by ordinal; those without blocks here have the line 0
	records  uint64        // pieces read
	behind   []pendingPrev // pieces that name one before them
	learned  []learnedHash // of the chunk

	// Learn gets each client hash that differs from the local hash of its block, whose it
	// is, and whether the block begins prompts. Nil learns none.
	Learn func(clientHash, local uint64, id Identity, root bool)

	Blocks  int // blocks loaded that have an owner here
	Refused int // blocks that the budget had no room for
}

// place is where a piece was loaded. Its line is another piece's once its blocks have left.
type place struct {
	head uint64
	line uint32
}

// pendingPrev says that a piece is behind another one.
type pendingPrev struct {
	line    uint32
	ordinal uint64
}

// errChunk is what a chunk has that no index writes.
var errChunk = errors.New("the chunk is not one of an image")

// maxGap bounds the ordinals without a piece, apart from 64 for each piece, whose places
// are remembered. A writer may claim any gap, and the table of places must not grow with
// the claim. Pieces behind the bound are loaded without hints, which cost a query a probe
// each.
const maxGap = 1 << 20

// NewLoader begins to fill an empty index. The functions say which source, owner and
// identity of the index has a number, false for one that is to be left out. The constant of
// an identity is that of the index that wrote the image.
func NewLoader(x *Index, source func(number uint32) (Source, bool), owner func(number uint32) (Owner, bool),
	identity func(number uint32) (Identity, bool)) *Loader {
	return &Loader{
		x: x, numbers: source, owners: owner, ids: identity,
		families: make(map[uint64]uint32), leftOut: make(map[uint64]uint64), standIns: make(map[uint64]uint32),
		kept: x.keepSets(),
	}
}

// IsAlone reports whether the index has no block, those without an owner included, and no source
// but some. own is nil for any sources, which may then store nothing until Done. Else Load fails
// with ErrOthers once another source has come.
func (l *Loader) IsAlone(own map[Source]bool) bool {
	x := l.x
	x.lock()
	defer x.unlock()
	for _, s := range x.holders.sources {
		if s != nil && (s.held > 0 || s.room.used > 0 || own != nil && !own[s.name]) {
			return false
		}
	}
	x.bounds.compactAll()
	if own != nil {
		l.alone = len(x.holders.sources)
	}
	return x.tree.lines.live.Load() == 0
}

// ErrOthers is the error of Load when blocks of other sources may be among those of the image.
var ErrOthers = errors.New("other sources have begun to store blocks beside the image")

// Load loads a chunk. After an error the index has a part of the image. A chunk of an
// unknown kind is an error.
//
// Learn is called when the lock is released, as it is a callback of the application, which
// may take locks of its own under which others call the index.
func (l *Loader) Load(kind ChunkKind, chunk []byte) error {
	c := &chunkReader{b: chunk}
	var read func(*chunkReader)
	switch kind {
	case ChunkFamilies:
		read = l.readFamily
	case ChunkSets:
		read = l.readSet
	case ChunkPieces:
		ordinal := c.readNumber()
		read = func(c *chunkReader) { l.readPiece(c, &ordinal) }
	case ChunkClientHashes:
		read = l.readClientHashes
	case ChunkSingles:
		read = l.readSingle
	case ChunkLinks:
		read = l.readLink
	default:
		return fmt.Errorf("a chunk of kind %d is not known", kind)
	}
	l.readChunk(c, read)
	for _, p := range l.learned {
		l.Learn(p.clientHash, p.local, p.of, p.root)
	}
	l.learned = l.learned[:0]
	return c.err
}

// readChunk reads a chunk under one lock, since no event may come between a piece and its
// names. What was cleared since the chunk before is out of the kept sets when it begins.
func (l *Loader) readChunk(c *chunkReader, read func(*chunkReader)) {
	l.x.lock()
	defer l.x.unlock()
	if l.alone > 0 && len(l.x.holders.sources) != l.alone {
		c.err = ErrOthers
		return
	}
	l.x.names.cleanSets(l.kept)
	for len(c.b) > 0 && c.err == nil {
		read(c)
	}
	if l.alone > 0 {
		l.alone = len(l.x.holders.sources) // with the numbers that were made up
	}
	if c.err == nil && l.x.bounds.share != nil && int64(l.memoryNeeded()) > l.x.bounds.share.of.most {
		c.err = errNumbers
	}
}

// errNumbers is the error of an image whose numbers alone take more memory than the index
// may.
var errNumbers = errors.New("the image numbers more pieces and sets than there is memory for")

// memoryNeeded returns roughly the memory that the loader needs until Done. The index is locked.
func (l *Loader) memoryNeeded() int {
	return 48*(len(l.families)+len(l.leftOut)+len(l.standIns)+len(l.kept.of)) + 16*len(l.places) + 16*len(l.behind)
}

// Done ends the loading, also one that has failed or was given up. It may be called twice.
//
// The hints between pieces are set only here, since a piece may come before the one that it
// is behind. Of several pieces behind one, the first gets the hint forwards; a wrong hint
// costs a query a probe, so any will do. The references that kept sets alive between chunks
// go here as well.
func (l *Loader) Done() {
	x := l.x
	if x == nil {
		return
	}
	x.lock()
	defer x.unlock()
	for _, b := range l.behind {
		if b.ordinal >= uint64(len(l.places)) || l.places[b.ordinal].line == 0 {
			continue
		}
		n := l.places[b.ordinal].line
		write32(&x.tree.lines.pieceAt(b.line).prev, n)
		if r := x.tree.lines.pieceAt(n); r.next == 0 {
			write32(&r.next, b.line)
		}
	}
	x.releaseSets(l.kept)
	*l = Loader{Blocks: l.Blocks, Refused: l.Refused}
}

// readFamily reads that a source is of a family. The first source of a family that is here
// stands for it. The family of a source that is left out is remembered, because names in the
// pieces may be those that it taught.
func (l *Loader) readFamily(c *chunkReader) {
	number, family := c.readNumber(), c.readNumber()
	if c.err != nil {
		return
	}
	s, ok := l.sourceOf(number)
	if !ok {
		l.leftOut[number] = family
		return
	}
	if first := l.families[family]; first != 0 {
		l.x.names.joinFamily(s, first)
	} else {
		l.families[family] = uint32(s) + 1
	}
}

// sourceOf returns the source that a number of the image stands for here.
func (l *Loader) sourceOf(number uint64) (Source, bool) {
	if number > 1<<32-1 {
		return 0, false
	}
	s, ok := l.numbers(uint32(number))
	return s, ok && int(s) < len(l.x.holders.sources) && l.x.holders.sources[s] != nil
}

// teacherOf returns, plus one, the source here that stands for a source of the image which
// taught a name: whose event first said which block the name means. If that source was
// left out of the image or is left out here, a relative stands for it. Without one a number
// is made up, with no source behind it, so that its names still count as those of one family
// and are not mixed up with another's.
func (l *Loader) teacherOf(number uint64) uint32 {
	if s, ok := l.sourceOf(number); ok {
		return uint32(s) + 1
	}
	if by := l.standIns[number]; by != 0 {
		return by
	}
	family, known := l.leftOut[number]
	by := uint32(0)
	if known {
		by = l.families[family]
	}
	if by == 0 {
		x := l.x
		x.holders.sources, x.names.families.of = append(x.holders.sources, nil),
			append(x.names.families.of, Source(len(x.names.families.of)))
		by = uint32(len(x.holders.sources))
	}
	if known {
		l.families[family] = by
	}
	l.standIns[number] = by
	return by
}

// ownerOf returns the owner of a number, nil if it is left out.
func (l *Loader) ownerOf(number uint64) *owner {
	if number > 1<<32-1 {
		return nil
	}
	if o, ok := l.owners(uint32(number)); ok && int(o) < len(l.x.holders.owners) {
		return l.x.holders.owners[o]
	}
	return nil
}

// readSet reads an owner set. Owners come in rising order by their distances, so a set that
// is no set (an owner twice) shows as a distance of 0. The loader keeps a reference until
// Done, so that a set survives until the pieces that name it have come.
//
// Owners that are left out make sets of the image equal here, or empty: kept.of then has the
// number 0, and blocks with such a set have no owner.
func (l *Loader) readSet(c *chunkReader) {
	id, n := c.readNumber(), c.readNumber()
	set, last := uint32(0), uint64(0)
	for i := range n {
		d := c.readNumber()
		if c.err != nil || i > 0 && d == 0 || d > 1<<32-1 {
			c.failChunk()
			break
		}
		last += d
		if o := l.ownerOf(last); o != nil && !l.x.tree.sets.hasOwner(set, o.id) {
			to := l.x.tree.sets.toggleOwner(&l.x.tree.lanes.each[0].lane, set, o.id)
			l.x.tree.sets.releaseSet(set)
			set = to
		}
	}
	if _, twice := l.kept.of[id]; twice || id == 0 {
		c.failChunk()
		l.x.tree.sets.releaseSet(set)
		return
	}
	l.kept.of[id] = set
}

// readIdentity reads the number of an identity. It reports false if that is left out.
func (l *Loader) readIdentity(c *chunkReader) (of chainIdentity, ok bool) {
	number := c.readNumber()
	if number == 0 || number > 1<<32-1 {
		c.failChunk()
		return of, false
	}
	id, ok := l.ids(uint32(number))
	if !ok || int(id) >= len(*l.x.tree.identities.list.Load()) {
		return of, false
	}
	return l.x.tree.identities.rootOf(id), true
}

// readPiece reads a piece and makes it.
//
// The bytes may come from a peer or a damaged disk, so every number is checked before it is
// used, and a piece is made only once all of it has been read. What belongs to blocks that
// are left out is read all the same, to get to the next piece.
func (l *Loader) readPiece(c *chunkReader, ordinal *uint64) {
	flags, n := c.readNumber(), uint32(c.readByte())
	gap := c.readNumber()
	of, wanted := chainIdentity{}, true
	// A flag that this version does not know stands for words that it could not skip.
	if flags >= pieceHasIdentity<<1 {
		c.failChunk()
	}
	if flags&pieceHasIdentity != 0 {
		of, wanted = l.readIdentity(c)
	}
	// The fields that are there follow in this order, each with its flag.
	var up, head, by uint64
	prev := ^uint64(0)
	if flags&pieceHasUp != 0 {
		up = c.readWord()
	}
	if flags&pieceHasPrev != 0 {
		prev = c.readNumber()
	}
	if flags&(pieceHasHead|pieceHasIdentity) != 0 {
		head = c.readWord()
	}
	teacher := uint32(0)
	if flags&pieceHasBy != 0 {
		by = c.readNumber()
		teacher = l.teacherOf(by)
	}
	count := 1
	if flags&pieceIsMixed != 0 {
		count = int(c.readByte())
	}
	var buf [maxPiece + 2]interval
	intervals, start := buf[:0], uint32(0)
	for i := range count {
		set, known := l.kept.of[c.readNumber()]
		end := n
		if flags&pieceIsMixed != 0 {
			end = uint32(c.readByte())
		}
		// An interval without an owner has the number 0, which no set has. The last one
		// must have owners here or elsewhere, because the writer ends the piece behind
		// them.
		if c.err != nil || end <= start || end > n || i == count-1 && end != n || !known && i == count-1 {
			c.failChunk()
			return
		}
		intervals = appendInterval(intervals, set, end)
		start = end
	}
	if n == 0 || n > maxPiece || count == 0 {
		c.failChunk()
		return
	}
	local, engine := c.readWords(n), c.readWords(n)
	if c.err != nil {
		return
	}
	// The key of a first block need not be written: it follows from the local hash. With an
	// identity it is written all the same, and tells whether the reader's constant is the
	// writer's.
	if first := of.firstKey(binary.LittleEndian.Uint64(local)); flags&(pieceHasHead|pieceHasIdentity) == 0 {
		head = first
	} else if flags&pieceHasHead == 0 && wanted && head != first {
		c.failChunk() // the constant of the identity is another one
		return
	}
	at := position{}
	// Owners that are left out may have been the only ones at the end.
	if k := len(intervals); intervals[k-1].set == 0 {
		intervals = intervals[:k-1]
	}
	if len(intervals) > 0 && head != 0 && wanted {
		// Two pieces with one key are no image of an index, and would break invariant 1.
		if !l.x.tree.findBeginning(head, head == of.firstKey(binary.LittleEndian.Uint64(local))).isNone() {
			c.failChunk()
			return
		}
		at.piece = l.makePiece(of, head, up, teacher, intervals, local, engine, flags&pieceHasClientHashes != 0)
	}
	if flags&pieceHasSides != 0 {
		l.readSides(c, at)
	}
	if flags&pieceHasOwn != 0 {
		l.readOwnWords(c, at)
	}
	*ordinal += gap
	l.records++
	// A gap is as large as the writer says, so the table of pieces grows no faster than the
	// bytes that were read allow.
	if uint64(len(l.places)) <= *ordinal && *ordinal < 64*l.records+maxGap {
		l.places = append(l.places, make([]place, *ordinal+1-uint64(len(l.places)))...)
	}
	if *ordinal < uint64(len(l.places)) && at.piece != 0 {
		l.places[*ordinal] = place{head, at.piece}
		if flags&pieceHasPrev != 0 {
			l.behind = append(l.behind, pendingPrev{at.piece, prev})
		}
	}
	*ordinal++
}

// makePiece makes a piece with blocks of an identity, and returns its line, 0 if there is
// no room for it.
//
// It makes the piece as it was, without going through Store: one copy of words a block
// instead of a comparison, a name and a count.
//
// From beginPiece to unlockReaders the piece is marked as changing. Queries that find its
// entry in the table meanwhile wait, so the entry can be made before all counts are right.
// All lanes are locked, and the budget is asked before the lines are taken.
func (l *Loader) makePiece(of chainIdentity, head, up uint64, by uint32, intervals []interval, local, engine []byte,
	clientHashes bool) uint32 {
	x, k := l.x, intervals[len(intervals)-1].end
	// There is no room. The keys are remembered as refused, so that answers which end
	// before them say that they may be too short.
	if x.bounds.isOverBudget() && !x.bounds.evictForRoom() {
		l.Refused += int(k)
		key := head
		for i := range k {
			if i > 0 {
				key = x.tree.followKey(key, of.constant, binary.LittleEndian.Uint64(local[8*i:]))
			}
			x.bounds.refuseKey(key)
		}
		return 0
	}
	flags := uint32(0)
	if x.tree.hasClientHashes(of.id) {
		flags |= isWide
	}
	if head == of.firstKey(binary.LittleEndian.Uint64(local)) {
		flags |= isFirst
	}
	n, r := x.tree.beginPiece(int(k), flags, of)
	r.by, r.up = by, up
	write64(&r.head, head)
	for i := range k {
		write64(&r.localHashes()[i], binary.LittleEndian.Uint64(local[8*i:]))
		write64(&r.engineHashes()[i], binary.LittleEndian.Uint64(engine[8*i:]))
		if flags&isWide != 0 {
			// A chunk of client hashes follows, or none: then they were equal to the local
			// ones.
			write64(&r.clientHashes()[i], 0)
			if !clientHashes {
				write64(&r.clientHashes()[i], r.localHashes()[i])
			}
		}
	}
	r.setCounts(k, 0)
	r.setLastKey(x.tree.keyWithin(r, 0, head, k-1))
	x.tree.replaceIntervals(r, nil, intervals)
	x.tree.headsFor(r).insertEntry(mix(head), position{piece: n})
	// Count what Store would have counted, for each stretch of blocks with the same owners.
	start, lane := uint32(0), &x.tree.lanes.each[0].lane
	for _, v := range intervals {
		if v.set != 0 {
			blocks := spanOf(start, v.end)
			held, named := int(v.end-start), countHashes(r.engineHashes(), blocks)
			sum, loose := r.sumWords(blocks)
			sum = x.tree.identities.weighWords(r, sum)
			x.holders.eachHolder(v.set, func(o *owner) { o.countHeld(held, loose, sum) })
			x.tree.countBlocks(lane, r, held)
			lane.names += named
			l.Blocks += held
		}
		start = v.end
	}
	r.unlockReaders()
	x.holders.enterLoaded(n, r)
	return n
}

// readSides reads further names of blocks from one on. The block may have been left out (n
// is 0): its names are read all the same, to get to what follows.
//
// addName wants a source and uses its number and its lane alone. The teacher may be gone,
// so a stand-in with its number takes its place.
func (l *Loader) readSides(c *chunkReader, from position) {
	x, n := l.x, from.piece
	for range c.readNumber() {
		at, by, engine := from.at+uint32(c.readByte()), c.readNumber(), c.readWord()
		if c.err != nil {
			return
		}
		teacher := uint32(0)
		if by != 0 {
			teacher = l.teacherOf(by - 1)
		}
		if n == 0 || teacher == 0 || engine == 0 || at >= x.tree.lines.pieceAt(n).len() || x.tree.lines.setOf(position{n, at}) == 0 {
			continue
		}
		if !x.finder.addName(&source{name: Source(teacher - 1), lane: &x.tree.lanes.each[0].lane}, position{n, at}, engine, 1) {
			continue
		}
		// The stand-in has a list of unindexed pieces that nobody reads. The sources that
		// hold blocks of the piece need it in theirs (invariant 9).
		if r := x.tree.lines.pieceAt(n); x.names.naming == onDemand && !r.loose() {
			x.holders.noteUnindexedToAll(n, r)
		}
	}
}

// readOwnWords reads copies of blocks from one on, and names that single sources use.
//
// A name that one source means alone differs from what others mean by the hash. Whether the
// hash was contested is not written. It is taken for contested, which is safe: blocks of
// sources without tokens wait under it until DecideContests finds that nobody disagrees any
// more. The other mistake would count their blocks for a prompt that may not be theirs.
func (l *Loader) readOwnWords(c *chunkReader, from position) {
	x, n := l.x, from.piece
	for range c.readNumber() {
		at, number, copies := from.at+uint32(c.readByte()), c.readNumber(), c.readNumber()
		engine := uint64(0)
		if copies == 0 {
			engine = c.readWord()
		}
		if c.err != nil {
			return
		}
		if n == 0 || at >= x.tree.lines.pieceAt(n).len() {
			continue
		}
		p := position{n, at}
		if copies != 0 {
			if o := l.ownerOf(number); o != nil && x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) {
				o.copies.setExtra(p, uint32(min(copies, 1<<31-1)))
			}
		} else if s, ok := l.sourceOf(number); ok && engine != 0 && x.tree.lines.setOf(p) != 0 {
			x.names.privates.addPrivate(x.holders.sources[s], engine, p)
			if x.resolver.contests.contradicts != nil && len(x.resolver.contests.of) < maxContested {
				x.resolver.markContested(engine)
			}
		}
	}
}

// readClientHashes reads the client hashes of a piece, which came in a chunk before. A
// piece that was left out has no line here, and its words are skipped. The piece may also
// have fewer blocks here than in the image, where the owners of the last ones were left
// out.
func (l *Loader) readClientHashes(c *chunkReader) {
	ordinal, n := c.readNumber(), uint32(c.readByte())
	words := c.readWords(min(n, maxPiece))
	if c.err != nil || n > maxPiece {
		c.failChunk()
		return
	}
	r := l.pieceOf(ordinal)
	if r == nil {
		return
	}
	for i := range min(n, r.len()) {
		clientHash, local := binary.LittleEndian.Uint64(words[8*i:]), r.localHashes()[i]
		if r.meta&isWide != 0 {
			write64(&r.clientHashes()[i], clientHash)
		}
		l.noteClientHash(clientHash, local, r.identityID(), i == 0 && r.up == 0 && r.head == r.chainIdentity().firstKey(local))
	}
}

// pieceOf returns the piece of an ordinal, nil if it was left out or its blocks have left since.
func (l *Loader) pieceOf(ordinal uint64) *piece {
	if ordinal >= uint64(len(l.places)) || l.places[ordinal].line == 0 {
		return nil
	}
	at, lines := l.places[ordinal], &l.x.tree.lines
	if r := lines.pieceAt(at.line); lines.heads[at.line/pageLines]>>(at.line%pageLines)&1 != 0 && !r.loose() && r.head == at.head {
		return r
	}
	return nil
}

// learnedHash is what Learn gets.
type learnedHash struct {
	clientHash, local uint64
	of                Identity
	root              bool
}

// noteClientHash keeps a client hash for Learn.
func (l *Loader) noteClientHash(clientHash, local uint64, of Identity, root bool) {
	if l.Learn != nil && clientHash != 0 && clientHash != local {
		l.learned = append(l.learned, learnedHash{clientHash, local, of, root})
	}
}

// readSingle reads a block that stands alone.
func (l *Loader) readSingle(c *chunkReader) {
	flags, of, wanted := c.readByte(), chainIdentity{}, true
	if flags&singleHasIdentity != 0 {
		of, wanted = l.readIdentity(c)
	}
	key, clientHash := c.readWord(), c.readWord()
	set := l.kept.of[c.readNumber()]
	if flags&^(singleHasSide|singleHasOwn|singleHasIdentity) != 0 {
		c.failChunk()
	}
	p := position{}
	if c.err == nil && set != 0 && key != 0 && wanted {
		p = l.makeSingle(of, key, clientHash, set)
	}
	if flags&singleHasSide != 0 {
		l.readSides(c, p)
	}
	if flags&singleHasOwn != 0 {
		l.readOwnWords(c, p)
	}
}

// makeSingle makes a block with owners, and returns its place, none if there is no room for
// it or its key is there. The first owner's source decides nothing but which piece of loose
// blocks it is put into.
//
// Each membership is counted as raw, and each source as one that may hold raw blocks. An
// image does not tell a block that waits under its engine hash from one whose key is known;
// a source that wrongly counts as raw takes a slower way, while one that wrongly does not
// would overlook its blocks.
func (l *Loader) makeSingle(of chainIdentity, key, clientHash uint64, set uint32) (p position) {
	x := l.x
	var owners []*owner
	x.holders.eachHolder(set, func(o *owner) { owners = append(owners, o) })
	if len(owners) == 0 || !x.tree.findLoose(key).isNone() {
		return p
	}
	if p = x.holders.createLoose(owners[0].s, of, key, clientHash, 1); p.isNone() {
		l.Refused++
		x.bounds.refuseKey(key)
		return p
	}
	for _, o := range owners {
		x.holders.addHolder(o, p)
		o.raw++
		o.s.raw = true
	}
	l.Blocks++
	return p
}

// readLink reads a block that waits for its parent. A link that waits on itself would never
// leave, and an engine hash has one link at most (invariant 8), so either is skipped. So is
// what the room has no place for: the newest links, as they come last.
func (l *Loader) readLink(c *chunkReader) {
	number, engine, parent, local, clientHash := c.readNumber(), c.readWord(), c.readWord(), c.readWord(), c.readWord()
	n, ok := l.sourceOf(number)
	if c.err != nil || !ok || engine == 0 || parent == 0 || engine == parent {
		return
	}
	s := l.x.holders.sources[n]
	l.noteClientHash(clientHash, local, 0, false)
	if s.room.linkOf(engine) == none && s.room.used < l.x.maxOrphans {
		s.room.pushLink(link{engine: engine, parent: parent, local: local, clientHash: clientHash})
	}
}

// chunkReader reads the fields of a chunk. After an error it reads zeros.
type chunkReader struct {
	b   []byte
	err error
}

// failChunk ends the reading. What follows reads zeros, so a reader need not look for an
// error after each field.
func (c *chunkReader) failChunk() {
	if c.err == nil {
		c.err = errChunk
	}
	c.b = nil
}

// takeBytes returns the next n bytes, zeros if there are fewer. Callers ask for eight bytes
// a block, of 255 blocks at most, so a short chunk cannot claim a large allocation.
func (c *chunkReader) takeBytes(n int) []byte {
	if n > len(c.b) {
		c.failChunk()
		return make([]byte, n)
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *chunkReader) readByte() byte            { return c.takeBytes(1)[0] }
func (c *chunkReader) readWord() uint64          { return binary.LittleEndian.Uint64(c.takeBytes(8)) }
func (c *chunkReader) readWords(n uint32) []byte { return c.takeBytes(8 * int(n)) }

// readNumber reads a uvarint. One that is longer than it need be is refused: no writer
// makes it, so it is damage, and with one form for each number a chunk has one meaning.
func (c *chunkReader) readNumber() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 || n > (bits.Len64(v|1)+6)/7 {
		c.failChunk()
		return 0
	}
	c.b = c.b[n:]
	return v
}
