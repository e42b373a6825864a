package index

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

// An image is the blocks of an index as bytes, in chunks. docs/formats.md has its format.
// Pieces of chains are written nearly as they are, all other blocks one by one.

// ChunkKind says what a chunk of an image has.
type ChunkKind uint8

// The kinds, in the order of their chunks. Chunks of pieces, client hashes and singles come
// in turns.
const (
	ChunkFamilies     ChunkKind = iota + 1 // sources that hash alike
	ChunkSets                              // owner sets
	ChunkPieces                            // pieces of chains
	ChunkClientHashes                      // client hashes of the pieces; a reader may skip them
	ChunkSingles                           // blocks in no chain
	ChunkLinks                             // blocks that wait for their parents
)

// Numbers are the numbers that an image gives sources and owners. Those without a number
// are left out.
type Numbers struct {
	Source func(Source) (number uint32, ok bool)
	Owner  func(Owner) (number uint32, ok bool)
	// Identity reports whether blocks of an identity are written, under its own number.
	Identity func(Identity) bool
}

// goneFamily marks the number of a family of which no source is written. Names that it has
// taught are written all the same, as other sources may hold their blocks by them. They
// need some teacher, or the reader could not tell them from names of another family. Its
// names live as long as their blocks.
const goneFamily = 1 << 31

// chunkBytes is about how large a chunk becomes. The Loader locks the index for one chunk
// at a time, so a larger one holds events up for longer, and a smaller one costs more
// framing for each block.
const chunkBytes = 256 << 10

// Flags of a piece in an image.
const (
	pieceHasUp           = 1 << iota // the engine hash of the block before
	pieceHasPrev                     // the piece of the block before
	pieceHasHead                     // a key that is not the first local hash
	pieceHasBy                       // who taught the names
	pieceIsMixed                     // several intervals
	pieceHasSides                    // further names
	pieceHasOwn                      // copies, and names of single sources
	pieceHasClientHashes             // client hashes, in a chunk of their own
	pieceHasIdentity                 // another identity than the base one
)

// imageWriter writes an image.
//
// Lines of the arena mean nothing to a reader, so a piece is named by its ordinal: how many
// pieces began before it, in the order of lines, at the moment of the checkpoint. Every
// piece has an ordinal, also one that is left out. The hints between pieces can therefore
// be written in one pass, before the pieces that they lead to.
type imageWriter struct {
	c       *Checkpoint
	numbers Numbers
	emit    func(kind ChunkKind, blocks int, chunk []byte) error
	err     error

	source  []uint32             // by Source: number plus one; of one without a number that of a relative, or goneFamily
	living  []bool               // by set: some owner has a number
	rank    []uint32             // by page: pieces on the pages before
	own     map[uint32][]ownWord // by line
	ordinal uint32
	next    uint32 // ordinal that a record without a gap has

	pieces, clientHashes, alone chunkBuffer
}

// ownWord is a copy of a block, or a name that a source means alone.
type ownWord struct {
	at     uint32
	number uint32 // of the owner, or of the source
	copies uint32 // beyond the first; 0 for a name
	engine uint64
}

// chunkBuffer is a chunk in the making.
type chunkBuffer struct {
	bytes  []byte
	blocks int
}

// WriteImage writes the blocks, and ends the checkpoint. emit gets each chunk, and how many
// blocks its pieces or stretches have; it must not keep the bytes.
//
// Chunks are written while events go on. A piece is copied when its turn comes, or before
// by the event that changes it. What pieces refer to comes before them: families and sets,
// which the checkpoint copied at its beginning.
func (c *Checkpoint) WriteImage(numbers Numbers, emit func(kind ChunkKind, blocks int, chunk []byte) error) error {
	defer c.Release()
	w := &imageWriter{c: c, numbers: numbers, emit: emit}
	w.numberAll()
	w.writeFamilies()
	w.writeSets()
	w.listOwnWords()
	for p := range c.eachPiece {
		switch {
		case numbers.Identity != nil && !numbers.Identity(p.identity.id):
		case p.loose:
			w.writeSingles(p)
		default:
			w.writePiece(p)
		}
		// Also for a piece that was left out: hints are written as ranks in the bitmap,
		// which has it.
		if w.ordinal++; w.err != nil {
			break
		}
	}
	w.flushChunk(ChunkPieces, &w.pieces)
	w.flushChunk(ChunkClientHashes, &w.clientHashes)
	w.flushChunk(ChunkSingles, &w.alone)
	w.writeLinks()
	return w.err
}

// flushChunk emits a chunk, unless it is empty.
func (w *imageWriter) flushChunk(kind ChunkKind, b *chunkBuffer) {
	if len(b.bytes) > 0 && w.err == nil {
		w.err = w.emit(kind, b.blocks, b.bytes)
	}
	b.bytes, b.blocks = b.bytes[:0], 0
}

// numberAll finds the numbers of owners and sources, and the living sets.
//
// A set lives if an owner with a number is in it. That is found once a set and not once an
// interval, as thousands of pieces share one. Ranks of pages turn a line into an ordinal:
// how many pieces begin before it.
//
// A source without a number still may have taught names that others use. What a reader
// needs of a teacher is its family, so the first relative with a number stands for it, and
// where no relative has one, a number that says that the family is gone.
func (w *imageWriter) numberAll() {
	s := w.c.snap
	for _, o := range s.owners {
		if n, ok := w.numbers.Owner(o.name); ok {
			o.number = n + 1
		}
	}
	w.source = make([]uint32, len(s.families))
	relative := make(map[Source]uint32)
	for i, family := range s.families {
		n, ok := w.numbers.Source(Source(i))
		if !ok {
			s.sources[i] = nil // a relative stands for it, but not for what it means alone
		}
		if s.sources[i] != nil {
			w.source[i] = n + 1
			relative[family] = cmp.Or(relative[family], n+1)
		}
	}
	for i, family := range s.families {
		w.source[i] = cmp.Or(w.source[i], relative[family], goneFamily|uint32(family)+1)
	}
	w.living = make([]bool, len(s.bits)/s.width)
	for id := range w.living {
		for o := range s.eachOwner(uint32(id)) {
			w.living[id] = w.living[id] || o.number != 0
		}
		w.c.countStep()
	}
	w.rank = make([]uint32, len(w.c.heads))
	n := uint32(0)
	for page, word := range w.c.heads {
		w.rank[page] = n
		n += uint32(bits.OnesCount64(word))
	}
}

// writeFamilies writes pairs of relatives: source, family. The source that stands for a
// family is a relative like the others.
func (w *imageWriter) writeFamilies() {
	s, b := w.c.snap, chunkBuffer{}
	members := make([]int, len(s.families))
	for _, family := range s.families {
		members[family]++
	}
	for i, family := range s.families {
		if s.sources[i] != nil && members[family] > 1 {
			b.bytes = binary.AppendUvarint(b.bytes, uint64(w.source[i]-1))
			b.bytes = binary.AppendUvarint(b.bytes, uint64(family))
		}
	}
	w.flushChunk(ChunkFamilies, &b)
}

// writeSets writes the living owner sets: number, count, owners by their distances. The
// first distance is the first owner itself. Owners without a number are left out of the
// sets here, so two sets may be equal to the reader; it interns them, and they become one.
func (w *imageWriter) writeSets() {
	b := chunkBuffer{}
	for id, living := range w.living {
		if !living {
			continue
		}
		var owners []uint32 // plus one
		for o := range w.c.snap.eachOwner(uint32(id)) {
			if o.number != 0 {
				owners = append(owners, o.number)
			}
		}
		slices.Sort(owners)
		b.bytes = binary.AppendUvarint(b.bytes, uint64(id))
		b.bytes = binary.AppendUvarint(b.bytes, uint64(len(owners)))
		last := uint32(1)
		for _, n := range owners {
			b.bytes = binary.AppendUvarint(b.bytes, uint64(n-last))
			last = n
		}
		if len(b.bytes) >= chunkBytes {
			w.flushChunk(ChunkSets, &b)
		}
		w.c.countStep()
	}
	w.flushChunk(ChunkSets, &b)
}

// listOwnWords lists copies and private names by their pieces.
//
// They are in maps by source and owner, and pieces are written in the order of lines, so
// they are sorted by piece first.
func (w *imageWriter) listOwnWords() {
	w.own = make(map[uint32][]ownWord)
	for _, o := range w.c.snap.owners {
		for ref, copies := range o.copies {
			if p := decodePosition(ref); o.number != 0 {
				w.own[p.piece] = append(w.own[p.piece], ownWord{at: p.at, number: o.number - 1, copies: copies})
			}
		}
	}
	for i, src := range w.c.snap.sources {
		if src == nil {
			continue
		}
		for engine, ref := range src.own {
			p := decodePosition(ref)
			w.own[p.piece] = append(w.own[p.piece], ownWord{at: p.at, number: w.source[i] - 1, engine: engine})
		}
	}
}

// writePiece writes a piece of a chain, as far as its blocks have owners with numbers.
//
// Blocks at the end whose owners are all left out are cut off; those in the midst stay,
// without an owner, because keys behind them need their local hashes. Fields that have
// their usual value take no byte: a full piece of a shared prompt is its words and some ten
// bytes more.
func (w *imageWriter) writePiece(p *snapPiece) {
	var buf [maxPiece + 2]interval
	intervals, blocks, start := buf[:0], 0, uint32(0)
	for _, v := range p.intervals {
		if w.living[v.set] {
			blocks += int(v.end - start)
		} else {
			v.set = 0
		}
		intervals = appendInterval(intervals, v.set, v.end)
		start = v.end
	}
	// appendInterval has joined neighbours without an owner, so one interval at most is to
	// go.
	if k := len(intervals); intervals[k-1].set == 0 {
		intervals = intervals[:k-1]
	}
	if len(intervals) == 0 {
		return
	}
	n := intervals[len(intervals)-1].end
	by := w.teacherOf(p.by)
	flags := uint64(0)
	set := func(flag uint64, on bool) {
		if on {
			flags |= flag
		}
	}
	// The key of a piece that begins prompts follows from its first local hash, and need
	// not be written. A piece whose parent has left has the key of its place, which nothing
	// else in it tells.
	root := p.up == 0 && p.head == p.identity.firstKey(p.local[0])
	names, own := w.encodeNames(p, 0, n), w.encodeOwnWords(p, 0, n)
	set(pieceHasUp, p.up != 0)
	set(pieceHasPrev, p.up != 0 && w.c.hasPiece(p.prev))
	set(pieceHasHead, !root)
	set(pieceHasBy, by != 0)
	set(pieceIsMixed, len(intervals) > 1)
	set(pieceHasSides, len(names) > 0)
	set(pieceHasOwn, len(own) > 0)
	set(pieceHasClientHashes, len(p.clientHashes) > 0)
	set(pieceHasIdentity, p.identity.id != 0)

	b := w.pieces.bytes
	// Each chunk says with which ordinal it begins, and each piece how many ordinals were
	// left out before it. So no reader has to count the pieces of the chunks before.
	if len(b) == 0 {
		b = binary.AppendUvarint(b, uint64(w.ordinal))
		w.next = w.ordinal
	}
	b = append(binary.AppendUvarint(b, flags), byte(n))
	b = binary.AppendUvarint(b, uint64(w.ordinal-w.next))
	w.next = w.ordinal + 1
	if flags&pieceHasIdentity != 0 {
		b = binary.AppendUvarint(b, uint64(p.identity.id))
	}
	if flags&pieceHasUp != 0 {
		b = binary.LittleEndian.AppendUint64(b, p.up)
	}
	// The hint may lead to a line that something else has by now. hasPiece says that a
	// piece was there at the moment, and the reader takes it for a hint as well.
	if flags&pieceHasPrev != 0 {
		word := w.c.heads[p.prev/pageLines] & (1<<(p.prev%pageLines) - 1)
		b = binary.AppendUvarint(b, uint64(w.rank[p.prev/pageLines])+uint64(bits.OnesCount64(word)))
	}
	if flags&(pieceHasHead|pieceHasIdentity) != 0 { // with an identity also the key of a first local hash
		b = binary.LittleEndian.AppendUint64(b, p.head)
	}
	if flags&pieceHasBy != 0 {
		b = binary.AppendUvarint(b, uint64(by-1))
	}
	if flags&pieceIsMixed != 0 {
		b = append(b, byte(len(intervals)))
	}
	for _, v := range intervals {
		b = binary.AppendUvarint(b, uint64(v.set))
		if flags&pieceIsMixed != 0 {
			b = append(b, byte(v.end))
		}
	}
	b = putWords(b, p.local[:n])
	b = putWords(b, p.engine[:n])
	b = append(append(b, names...), own...)
	w.pieces.bytes = b
	w.pieces.blocks += blocks
	if flags&pieceHasClientHashes != 0 {
		w.clientHashes.bytes = binary.AppendUvarint(w.clientHashes.bytes, uint64(w.ordinal))
		w.clientHashes.bytes = append(w.clientHashes.bytes, byte(n))
		w.clientHashes.bytes = putWords(w.clientHashes.bytes, p.clientHashes[:n])
	}
	// The pieces go first: a reader finds the piece of client hashes by its ordinal.
	if len(b) >= chunkBytes {
		w.flushChunk(ChunkPieces, &w.pieces)
		w.flushChunk(ChunkClientHashes, &w.clientHashes)
	}
}

// teacherOf returns the number of the teacher of names, plus one.
func (w *imageWriter) teacherOf(teacher uint32) uint32 {
	if teacher == 0 {
		return 0
	}
	return w.source[teacher-1]
}

// encodeNames returns the further names of blocks [lo, hi): count, then block, teacher plus
// one, name. It returns nil if there is none. Those in the body are written with the piece;
// blocks of loose pieces have all of their names in sides.
func (w *imageWriter) encodeNames(p *snapPiece, lo, hi uint32) (b []byte) {
	count := 0
	for i := range p.sides {
		d := &p.sides[i]
		for k, engine := range d.engine {
			if at := d.from + uint32(k); engine != 0 && at >= lo && at < hi {
				count++
				b = binary.AppendUvarint(append(b, byte(at-lo)), uint64(w.teacherOf(d.by)))
				b = binary.LittleEndian.AppendUint64(b, engine)
			}
		}
	}
	return listOf(count, b)
}

// encodeOwnWords returns what single owners and sources have of blocks [lo, hi): count,
// then block, number of the owner or source, copies; without copies a name. It returns nil
// if they have nothing. One list serves for both, since 0 copies beyond the first are never
// kept (invariant 6), and so can mark a name.
func (w *imageWriter) encodeOwnWords(p *snapPiece, lo, hi uint32) (b []byte) {
	count := 0
	for _, o := range w.own[p.line] {
		if o.at < lo || o.at >= hi {
			continue
		}
		count++
		b = binary.AppendUvarint(append(b, byte(o.at-lo)), uint64(o.number))
		if b = binary.AppendUvarint(b, uint64(o.copies)); o.copies == 0 {
			b = binary.LittleEndian.AppendUint64(b, o.engine)
		}
	}
	return listOf(count, b)
}

// listOf puts the number of parts before them. It returns nil for no part.
func listOf(parts int, b []byte) []byte {
	if parts == 0 {
		return nil
	}
	return append(binary.AppendUvarint(nil, uint64(parts)), b...)
}

// Flags of a single block in an image.
const (
	singleHasSide     = 2 // names
	singleHasOwn      = 4 // copies, and names of single sources
	singleHasIdentity = 8 // another identity than the base one
)

// writeSingles writes the blocks of a loose piece, each with its identity, key, client
// hash, set, names, and what single owners and sources have of it.
//
// Loose blocks have nothing in common but their line, so each is written for itself, and
// has no ordinal.
func (w *imageWriter) writeSingles(p *snapPiece) {
	for block := range p.eachBlock {
		at, set := block.at, block.ownerSet()
		if !w.living[set] {
			continue
		}
		names, own := w.encodeNames(p, at, at+1), w.encodeOwnWords(p, at, at+1)
		flags := byte(0)
		if len(names) > 0 {
			flags |= singleHasSide
		}
		if len(own) > 0 {
			flags |= singleHasOwn
		}
		if p.identity.id != 0 {
			flags |= singleHasIdentity
		}
		b := append(w.alone.bytes, flags)
		if p.identity.id != 0 {
			b = binary.AppendUvarint(b, uint64(p.identity.id))
		}
		b = putWords(b, []uint64{p.local[at], block.clientHash()})
		b = binary.AppendUvarint(b, uint64(set))
		w.alone.bytes = append(append(b, names...), own...)
		if w.alone.blocks++; len(w.alone.bytes) >= chunkBytes {
			w.flushChunk(ChunkSingles, &w.alone)
		}
	}
}

// writeLinks writes the blocks that wait for their parents: source, then engine hash,
// parent, local hash and client hash, the oldest first, so that the reader's room lets go
// of them in the same order.
func (w *imageWriter) writeLinks() {
	b := chunkBuffer{}
	for i, src := range w.c.snap.sources {
		if src == nil {
			continue
		}
		for _, l := range src.waiting {
			if l.of.id != 0 {
				l.clientHash = 0 // an image has no identities of links
			}
			b.bytes = binary.AppendUvarint(b.bytes, uint64(w.source[i]-1))
			b.bytes = putWords(b.bytes, []uint64{l.engine, l.parent, l.local, l.clientHash})
			if len(b.bytes) >= chunkBytes {
				w.flushChunk(ChunkLinks, &b)
			}
		}
	}
	w.flushChunk(ChunkLinks, &b)
}

// putWords appends words as eight bytes each, the lowest first.
func putWords(b []byte, words []uint64) []byte {
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
