package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Loader fills an index from the chunks of an image. Pieces of chains are made as they were,
// so the index must be empty before. One goroutine loads; events wait for a chunk at most.
type Loader struct {
	x       *Index
	numbers func(number uint32) (Source, bool)
	owners  func(number uint32) (Owner, bool)
	ids     func(number uint32) (Identity, bool)

	families map[uint64]uint32 // family -> its first source here, plus one
	relative map[uint64]uint32 // source of the image -> the same
	sets     map[uint64]uint32 // by number in the image; each is held
	lines    []uint32          // pieces by ordinal, 0 for none
	records  uint64            // pieces read
	behind   []behind          // pieces that name one before them
	learned  []learned         // of the chunk

	// Learn gets each client hash that differs from the local hash of its block, whose it is, and whether the
	// block begins prompts. Nil learns none.
	Learn func(clientHash, local uint64, id Identity, root bool)

	Blocks  int // blocks loaded that have an owner here
	Refused int // blocks that the budget had no room for
}

// behind says that a piece is behind another one.
type behind struct {
	line    uint32
	ordinal uint64
}

// errChunk is what a chunk has that no index writes.
var errChunk = errors.New("the chunk is not one of an image")

// maxGap bounds the ordinals without a piece, apart from 64 for each piece, whose places are
// remembered. Behind it pieces do without hints.
const maxGap = 1 << 20

// NewLoader begins to fill an empty index. The functions say which source, owner and identity of the
// index has a number, false for one that is to be left out. The constant of an identity is that of the
// index that wrote the image.
func NewLoader(x *Index, source func(number uint32) (Source, bool), owner func(number uint32) (Owner, bool),
	identity func(number uint32) (Identity, bool)) *Loader {
	return &Loader{
		x: x, numbers: source, owners: owner, ids: identity,
		families: make(map[uint64]uint32), relative: make(map[uint64]uint32), sets: make(map[uint64]uint32),
	}
}

// Load loads a chunk. After an error the index has a part of the image. A chunk of an unknown
// kind is an error.
func (l *Loader) Load(kind ChunkKind, chunk []byte) error {
	c := &chunkReader{b: chunk}
	var read func(*chunkReader)
	switch kind {
	case ChunkFamilies:
		read = l.family
	case ChunkSets:
		read = l.set
	case ChunkPieces:
		ordinal := c.number()
		read = func(c *chunkReader) { l.piece(c, &ordinal) }
	case ChunkClientHashes:
		read = l.clientHashes
	case ChunkSingles:
		read = l.single
	case ChunkLinks:
		read = l.link
	default:
		return fmt.Errorf("a chunk of kind %d is not known", kind)
	}
	l.x.lock()
	for len(c.b) > 0 && c.err == nil {
		read(c)
	}
	l.x.unlock()
	for _, p := range l.learned {
		l.Learn(p.clientHash, p.local, p.of, p.root)
	}
	l.learned = l.learned[:0]
	if c.err == nil && l.x.bounds.share != nil && int64(l.bytes()) > l.x.bounds.share.of.most {
		return errNumbers
	}
	return c.err
}

// errNumbers is the error of an image whose numbers alone take more memory than the index may.
var errNumbers = errors.New("the image numbers more pieces and sets than there is memory for")

// bytes returns roughly the memory that the loader needs until Done.
func (l *Loader) bytes() int {
	return 48*(len(l.families)+len(l.relative)+len(l.sets)) + 4*len(l.lines) + 16*len(l.behind)
}

// Done ends the loading.
func (l *Loader) Done() {
	x := l.x
	x.lock()
	defer x.unlock()
	for _, b := range l.behind {
		if b.ordinal >= uint64(len(l.lines)) || l.lines[b.ordinal] == 0 {
			continue
		}
		n := l.lines[b.ordinal]
		write32(&x.tree.lines.pieceAt(b.line).prev, n)
		if r := x.tree.lines.pieceAt(n); r.next == 0 {
			write32(&r.next, b.line)
		}
	}
	for _, set := range l.sets {
		x.tree.sets.drop(set)
	}
	*l = Loader{Blocks: l.Blocks, Refused: l.Refused}
}

// family reads that a source is of a family.
func (l *Loader) family(c *chunkReader) {
	number, family := c.number(), c.number()
	s, ok := l.source(number)
	if c.err != nil || !ok {
		return
	}
	if first := l.families[family]; first != 0 {
		l.x.names.joinFamily(s, first)
	} else {
		l.families[family] = uint32(s) + 1
	}
	l.relative[number] = l.families[family]
}

// source returns the source of a number.
func (l *Loader) source(number uint64) (Source, bool) {
	if number > 1<<32-1 {
		return 0, false
	}
	s, ok := l.numbers(uint32(number))
	return s, ok && int(s) < len(l.x.holders.sources) && l.x.holders.sources[s] != nil
}

// by returns the teacher of a number or a relative of it, plus one. Names of a source that is left
// out get a teacher that is gone.
func (l *Loader) by(number uint64) uint32 {
	if s, ok := l.source(number); ok {
		return uint32(s) + 1
	}
	by := l.relative[number]
	if by == 0 {
		x := l.x
		x.holders.sources, x.names.families.of = append(x.holders.sources, nil),
			append(x.names.families.of, Source(len(x.names.families.of)))
		by = uint32(len(x.holders.sources))
		l.relative[number] = by
	}
	return by
}

// owner returns the owner of a number, nil if it is left out.
func (l *Loader) owner(number uint64) *owner {
	if number > 1<<32-1 {
		return nil
	}
	if o, ok := l.owners(uint32(number)); ok && int(o) < len(l.x.holders.owners) {
		return l.x.holders.owners[o]
	}
	return nil
}

// set reads an owner set.
func (l *Loader) set(c *chunkReader) {
	id, n := c.number(), c.number()
	set, last := uint32(0), uint64(0)
	for i := range n {
		d := c.number()
		if c.err != nil || i > 0 && d == 0 || d > 1<<32-1 {
			c.fail()
			break
		}
		last += d
		if o := l.owner(last); o != nil && !l.x.tree.sets.has(set, o.id) {
			to := l.x.tree.sets.toggle(&l.x.tree.lanes.each[0].lane, set, o.id)
			l.x.tree.sets.drop(set)
			set = to
		}
	}
	if _, twice := l.sets[id]; twice || id == 0 {
		c.fail()
		l.x.tree.sets.drop(set)
		return
	}
	l.sets[id] = set
}

// identity reads the number of an identity. It reports false if that is left out.
func (l *Loader) identity(c *chunkReader) (of root, ok bool) {
	number := c.number()
	if number == 0 || number > 1<<32-1 {
		c.fail()
		return of, false
	}
	id, ok := l.ids(uint32(number))
	if !ok || int(id) >= len(*l.x.tree.identities.list.Load()) {
		return of, false
	}
	return l.x.tree.identities.rootOf(id), true
}

// piece reads a piece and makes it.
func (l *Loader) piece(c *chunkReader, ordinal *uint64) {
	flags, n := c.number(), uint32(c.byte())
	gap := c.number()
	of, wanted := root{}, true
	if flags >= pieceHasIdentity<<1 {
		c.fail()
	}
	if flags&pieceHasIdentity != 0 {
		of, wanted = l.identity(c)
	}
	var up, head, by uint64
	prev := ^uint64(0)
	if flags&pieceHasUp != 0 {
		up = c.word()
	}
	if flags&pieceHasPrev != 0 {
		prev = c.number()
	}
	if flags&(pieceHasHead|pieceHasIdentity) != 0 {
		head = c.word()
	}
	teacher := uint32(0)
	if flags&pieceHasBy != 0 {
		by = c.number()
		teacher = l.by(by)
	}
	count := 1
	if flags&pieceIsMixed != 0 {
		count = int(c.byte())
	}
	var room [maxPiece + 2]interval
	intervals, start := room[:0], uint32(0)
	for i := range count {
		set, known := l.sets[c.number()]
		end := n
		if flags&pieceIsMixed != 0 {
			end = uint32(c.byte())
		}
		// An interval without an owner has the number 0.
		if c.err != nil || end <= start || end > n || i == count-1 && end != n || !known && i == count-1 {
			c.fail()
			return
		}
		intervals = merged(intervals, set, end)
		start = end
	}
	if n == 0 || n > maxPiece || count == 0 {
		c.fail()
		return
	}
	local, engine := c.words(n), c.words(n)
	if c.err != nil {
		return
	}
	if first := of.first(binary.LittleEndian.Uint64(local)); flags&(pieceHasHead|pieceHasIdentity) == 0 {
		head = first
	} else if flags&pieceHasHead == 0 && wanted && head != first {
		c.fail() // the constant of the identity is another one
		return
	}
	at := place{}
	if k := len(intervals); intervals[k-1].set == 0 {
		intervals = intervals[:k-1]
	}
	if len(intervals) > 0 && head != 0 && wanted {
		if !l.x.tree.findBeginning(head, head == of.first(binary.LittleEndian.Uint64(local))).isNone() {
			c.fail()
			return
		}
		at.piece = l.make(of, head, up, teacher, intervals, local, engine, flags&pieceHasClientHashes != 0)
	}
	if flags&pieceHasSides != 0 {
		l.sides(c, at)
	}
	if flags&pieceHasOwn != 0 {
		l.own(c, at)
	}
	*ordinal += gap
	l.records++
	if uint64(len(l.lines)) <= *ordinal && *ordinal < 64*l.records+maxGap {
		l.lines = append(l.lines, make([]uint32, *ordinal+1-uint64(len(l.lines)))...)
	}
	if *ordinal < uint64(len(l.lines)) && at.piece != 0 {
		l.lines[*ordinal] = at.piece
		if flags&pieceHasPrev != 0 {
			l.behind = append(l.behind, behind{at.piece, prev})
		}
	}
	*ordinal++
}

// make makes a piece with blocks of an identity, and returns its line, 0 if there is no room for it.
func (l *Loader) make(of root, head, up uint64, by uint32, intervals []interval, local, engine []byte, clientHashes bool) uint32 {
	x, k := l.x, intervals[len(intervals)-1].end
	if x.bounds.isOverBudget() && !x.bounds.makeRoom() {
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
	if head == of.first(binary.LittleEndian.Uint64(local)) {
		flags |= isFirst
	}
	n, r := x.tree.beginPiece(int(k), flags, of)
	r.by, r.up = by, up
	write64(&r.head, head)
	for i := range k {
		write64(&r.local()[i], binary.LittleEndian.Uint64(local[8*i:]))
		write64(&r.engine()[i], binary.LittleEndian.Uint64(engine[8*i:]))
		if flags&isWide != 0 {
			write64(&r.clientHashes()[i], 0)
			if !clientHashes {
				write64(&r.clientHashes()[i], r.local()[i])
			}
		}
	}
	r.set(k, 0)
	r.setLastKey(x.tree.keyWithin(r, 0, head, k-1))
	x.tree.replaceIntervals(r, nil, intervals)
	x.tree.headsFor(r).insert(mix(head), place{piece: n})
	start, lane := uint32(0), &x.tree.lanes.each[0].lane
	for _, v := range intervals {
		if v.set != 0 {
			blocks := spanOf(start, v.end)
			held, named := int(v.end-start), hashesOf(r.engine(), blocks)
			sum, loose := r.wordsOf(blocks)
			sum = x.tree.identities.weighWords(r, sum)
			x.holders.eachHolder(v.set, func(o *owner) { o.held(held, loose, sum) })
			x.tree.countBlocks(lane, r, held)
			lane.names += named
			l.Blocks += held
		}
		start = v.end
	}
	r.unlock()
	x.holders.enterLoaded(n, r)
	return n
}

// enterLoaded enters the names that need an entry, and lists the piece with the sources that use
// others. A name that means another block already is dropped.
func (h *holders) enterLoaded(n uint32, r *piece) {
	dead := h.tree.lines.deadBlocks(r)
	for i := range r.len() {
		if engine := r.engine()[i]; engine != 0 && dead>>i&1 == 0 && (i == 0 || h.names.naming != onDemand) {
			if h.names.enterName(engine, place{n, i}) {
				r.named |= 1 << i
			} else {
				write64(&r.engine()[i], 0)
				h.tree.lanes.each[0].lane.names--
			}
		}
	}
	if h.names.naming == onDemand {
		h.noteVagueToAll(n, r)
	}
}

// noteVagueToAll lists a piece with all sources that hold a block of it.
func (h *holders) noteVagueToAll(n uint32, r *piece) {
	var room [maxPiece + 2]interval
	for _, v := range h.tree.lines.intervalsOf(r, &room) {
		h.eachHolder(v.set, func(o *owner) { h.finder.noteVague(o.s, n) })
	}
}

// sides reads further names of blocks from one on.
func (l *Loader) sides(c *chunkReader, from place) {
	x, n := l.x, from.piece
	for range c.number() {
		at, by, engine := from.at+uint32(c.byte()), c.number(), c.word()
		if c.err != nil {
			return
		}
		teacher := uint32(0)
		if by != 0 {
			teacher = l.by(by - 1)
		}
		if n == 0 || teacher == 0 || engine == 0 || at >= x.tree.lines.pieceAt(n).len() || x.tree.lines.setOf(place{n, at}) == 0 {
			continue
		}
		if !x.finder.addName(&source{name: Source(teacher - 1), lane: &x.tree.lanes.each[0].lane}, place{n, at}, engine, 1) {
			continue
		}
		if r := x.tree.lines.pieceAt(n); x.names.naming == onDemand && !r.loose() {
			x.holders.noteVagueToAll(n, r)
		}
	}
}

// own reads copies of blocks from one on, and names that single sources use.
func (l *Loader) own(c *chunkReader, from place) {
	x, n := l.x, from.piece
	for range c.number() {
		at, number, copies := from.at+uint32(c.byte()), c.number(), c.number()
		engine := uint64(0)
		if copies == 0 {
			engine = c.word()
		}
		if c.err != nil {
			return
		}
		if n == 0 || at >= x.tree.lines.pieceAt(n).len() {
			continue
		}
		p := place{n, at}
		if copies != 0 {
			if o := l.owner(number); o != nil && x.tree.sets.has(x.tree.lines.setOf(p), o.id) {
				o.copies.set(p, uint32(min(copies, 1<<31-1)))
			}
		} else if s, ok := l.source(number); ok && engine != 0 && x.tree.lines.setOf(p) != 0 {
			x.names.privates.addPrivate(x.holders.sources[s], engine, p)
			if x.resolver.contests.contradicts != nil && len(x.resolver.contests.of) < maxContested {
				x.resolver.markContested(engine)
			}
		}
	}
}

// clientHashes reads the client hashes of a piece.
func (l *Loader) clientHashes(c *chunkReader) {
	ordinal, n := c.number(), uint32(c.byte())
	words := c.words(min(n, maxPiece))
	if c.err != nil || n > maxPiece {
		c.fail()
		return
	}
	if ordinal >= uint64(len(l.lines)) || l.lines[ordinal] == 0 {
		return
	}
	r := l.x.tree.lines.pieceAt(l.lines[ordinal])
	for i := range min(n, r.len()) {
		clientHash, local := binary.LittleEndian.Uint64(words[8*i:]), r.local()[i]
		if r.meta&isWide != 0 {
			write64(&r.clientHashes()[i], clientHash)
		}
		l.learn(clientHash, local, r.identity(), i == 0 && r.up == 0 && r.head == r.root().first(local))
	}
}

// learned is what Learn gets.
type learned struct {
	clientHash, local uint64
	of                Identity
	root              bool
}

// learn keeps a client hash for Learn.
func (l *Loader) learn(clientHash, local uint64, of Identity, root bool) {
	if l.Learn != nil && clientHash != 0 && clientHash != local {
		l.learned = append(l.learned, learned{clientHash, local, of, root})
	}
}

// single reads a block that stands alone.
func (l *Loader) single(c *chunkReader) {
	flags, of, wanted := c.byte(), root{}, true
	if flags&singleHasIdentity != 0 {
		of, wanted = l.identity(c)
	}
	key, clientHash := c.word(), c.word()
	set := l.sets[c.number()]
	if flags&^(singleHasSide|singleHasOwn|singleHasIdentity) != 0 {
		c.fail()
	}
	p := place{}
	if c.err == nil && set != 0 && key != 0 && wanted {
		p = l.makeSingle(of, key, clientHash, set)
	}
	if flags&singleHasSide != 0 {
		l.sides(c, p)
	}
	if flags&singleHasOwn != 0 {
		l.own(c, p)
	}
}

// makeSingle makes a block with owners, and returns its place, none if there is no room for it or
// its key is there.
func (l *Loader) makeSingle(of root, key, clientHash uint64, set uint32) (p place) {
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

// link reads a block that waits for its parent.
func (l *Loader) link(c *chunkReader) {
	number, engine, parent, local, clientHash := c.number(), c.word(), c.word(), c.word(), c.word()
	n, ok := l.source(number)
	if c.err != nil || !ok || engine == 0 || parent == 0 || engine == parent {
		return
	}
	s := l.x.holders.sources[n]
	l.learn(clientHash, local, 0, false)
	if s.room.of(engine) == none && s.room.used < l.x.maxOrphans {
		s.room.push(link{engine: engine, parent: parent, local: local, clientHash: clientHash})
	}
}

// chunkReader reads the fields of a chunk. After an error it reads zeros.
type chunkReader struct {
	b   []byte
	err error
}

func (c *chunkReader) fail() {
	if c.err == nil {
		c.err = errChunk
	}
	c.b = nil
}

// take returns the next n bytes, zeros if there are fewer.
func (c *chunkReader) take(n int) []byte {
	if n > len(c.b) {
		c.fail()
		return make([]byte, n)
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *chunkReader) byte() byte            { return c.take(1)[0] }
func (c *chunkReader) word() uint64          { return binary.LittleEndian.Uint64(c.take(8)) }
func (c *chunkReader) words(n uint32) []byte { return c.take(8 * int(n)) }

// number reads a uvarint.
func (c *chunkReader) number() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 || n > (bits.Len64(v|1)+6)/7 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}
