package index

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
)

// Snapshot is what an index holds at one moment: 20 bytes a block where pieces are full,
// some 300 a piece where they are short, and the owner sets. A
// walk holds nothing up, and may take as long as it likes.
type Snapshot struct {
	x        *Index
	pieces   []*snapPiece
	width    int      // words of a set
	bits     []uint64 // of the sets
	sources  []*snapSource
	families []Source
	owners   map[uint32]*snapOwner // by internal id
	unified  bool                  // one name for each block, see Unify
	planted  bool
	// Engine hashes that a source means alone, and the block that they mean to others. For
	// electName.
	toOthers map[uint64]snapBlock
}

// snapPiece is a piece as it was.
type snapPiece struct {
	line, by, prev              uint32
	head, up                    uint64
	loose                       bool
	identity                    chainIdentity // the identity
	local, engine, clientHashes []uint64      // engine of a chain, clientHashes of a wide piece
	intervals                   []interval
	sides                       []snapSide

	// What the first walk adds, see linkPieces.
	keys    []uint64
	parent  snapBlock    // the block before the first one
	behind  []*snapPiece // pieces whose parent is in this one
	elected []uint64     // of a unified snapshot: the one name of a block, 0 before the vote, see electName
	climb   int          // on which way up the piece was met first
}

// snapSide is further names of a piece as they were.
type snapSide struct {
	from, by uint32
	engine   []uint64
}

// snapBlock is a block as it was. The zero value is none. It is a pair of a pointer and a
// number, so two of them can be compared, and the walk keeps them as marks instead of
// building maps by block.
type snapBlock struct {
	*snapPiece
	at uint32
}

// snapSource is a source as it was.
type snapSource struct {
	name    Source
	own     map[uint64]uint64 // engine hash -> block, where it differs from what others mean
	waiting []link            // the oldest first

	private map[uint64][]uint64 // the reverse of own, and
	links   map[uint64]link     // waiting by engine hash, both made by linkPieces
	rank    int                 // place among the sources of a unified snapshot
	holds   snapBlock           // the block whose name is elected, where the source holds it
	teaches snapBlock           // the same, where the source taught a name of the block
}

// snapOwner is an owner as it was. The fields from number on belong to the goroutine that
// writes or walks the snapshot; there is one at a time.
type snapOwner struct {
	name   Owner
	id     uint32 // internal
	source *snapSource
	copies map[uint64]uint32 // by block
	number uint32            // in an image, plus one; 0 is none
	wanted bool
	run    Stretch   // what the walk has of it that is not handed out yet
	last   snapBlock // its last block
}

// Stretch is blocks of one owner, each behind the one before. Its slices
// are valid until f returns.
type Stretch struct {
	Owner Owner
	// Root says that the first block begins prompts. Else Parent is the engine hash
	// of the block before, if HasParent: one that the owner holds, that another
	// holds, that, if Gone, no owner holds any more, so that the hash may be another
	// block's by now, or, if Waiting, one that no event has announced.
	Root, HasParent, Gone, Waiting bool
	Parent                         uint64
	// Key of the first block, if HasKey; not where it is Waiting. It is a canonical
	// sequence hash.
	Key    uint64
	HasKey bool
	// Identity of the blocks; of one that is Waiting that of its client hash, which is a
	// guess.
	Identity Identity
	// Engine hashes and client hashes of the blocks. A block without tokens has the client
	// hash 0, and is a stretch of its own.
	Engine, ClientHashes []uint64
	// Copies beyond the first, by position; nil where there are none.
	Copies map[int]int
	// More are further engine hashes of blocks, by position; nil where there are none.
	More map[int][]uint64
}

// longest bounds what the walk gathers of an owner.
const longest = 512

// newSnapshot returns a snapshot without blocks of an index whose lanes are all locked.
//
// It copies what is not in pieces: sets, families, private names, waiting rooms and copies.
// All events wait meanwhile, so the cost matters: it grows with sets and sources, and with
// blocks only as far as those have copies or private names. Owners without blocks are left
// out. So are retired ones, which makes the ids of a sweep in the copied sets lead to
// nobody.
func newSnapshot(x *Index) *Snapshot {
	s := &Snapshot{x: x, owners: make(map[uint32]*snapOwner), families: make([]Source, len(x.names.families.of))}
	for i := range s.families {
		s.families[i] = x.names.families.familyOf(Source(i))
	}
	b := x.tree.sets.body.Load()
	s.width, s.bits = b.width, slices.Clone(b.bits[:int(x.tree.sets.n)*b.width])
	s.sources = make([]*snapSource, len(x.holders.sources))
	for i, src := range x.holders.sources {
		if src == nil {
			continue
		}
		n := &snapSource{name: src.name}
		if names := src.private.len(); names > 0 { // most sources have none
			n.own = make(map[uint64]uint64, names)
		}
		for engine, ref := range src.private.each {
			n.own[engine] = *ref
		}
		for l := range src.room.each {
			// The identity that the link guessed has gone, and its number may be that of
			// another one. The client hash was computed for the old one, so it goes with
			// it.
			if !x.tree.identities.isCurrent(l.of) {
				l.clientHash, l.of = 0, chainIdentity{}
			}
			n.waiting = append(n.waiting, l)
		}
		s.sources[i] = n
	}
	for _, o := range x.holders.owners {
		if o == nil || o.digest.Blocks == 0 {
			continue
		}
		so := &snapOwner{name: o.name, id: o.id, source: s.sources[o.s.name], run: Stretch{Owner: o.name}}
		if n := o.copies.len(); n > 0 {
			so.copies = make(map[uint64]uint32, n)
		}
		o.copies.eachBlock(func(p position, n uint32) { so.copies[p.encode()] = n })
		s.owners[o.id] = so
	}
	return s
}

// Unify keeps the owners that among accepts, before the first Walk. From then on a
// block has one name, for every owner: see electName. among also ranks the owner's source.
//
// Recoveries need it, as their reader follows one engine at a time and would otherwise know
// a block by names of engines that it does not follow.
func (s *Snapshot) Unify(among func(Owner) (rank int, ok bool)) {
	maps.DeleteFunc(s.owners, func(_ uint32, o *snapOwner) bool {
		rank, ok := among(o.name)
		o.source.rank = rank
		return !ok
	})
	s.unified = true
}

// Walk calls f for all blocks of the wanted owners, until f returns false. A parent that a
// wanted owner holds comes before its children. One goroutine walks at a time.
//
// The pieces are visited from the beginnings of prompts on, depth first, with a stack of
// pieces: readers that learn names from what they read need the parent's first. A prompt
// can be thousands of pieces long, so the stack is not the goroutine's.
//
// What is gathered of owners is handed out in the order of their ids at the end, because a
// map has none, and the same snapshot should give the same stretches twice.
func (s *Snapshot) Walk(want func(Owner) bool, f func(*Stretch) bool) {
	s.linkPieces()
	w := &snapWalk{Snapshot: s, f: f, polls: make(map[Source]poll)}
	for _, o := range s.owners {
		o.wanted = want(o.name)
	}
	var stack []*snapPiece
	for _, p := range s.pieces {
		if !p.parent.isNone() {
			continue
		}
		for stack = append(stack[:0], p); len(stack) > 0 && !w.ended; {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for b := range p.eachBlock {
				for o := range s.eachHolder(b) {
					if o.wanted && !w.ended {
						w.visitBlock(b, o)
					}
				}
			}
			// The pieces behind the last block come next, so they are put on the stack
			// last. An owner of both gets one long stretch that way; a branch in the midst
			// of the piece would cut it.
			for _, atEnd := range [...]bool{false, true} {
				for _, c := range slices.Backward(p.behind) {
					if atEnd == (int(c.parent.at) == len(p.local)-1) {
						stack = append(stack, c)
					}
				}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.owners)) {
		w.flushStretch(s.owners[id])
	}
}

// linkPieces finds out how the pieces hang together, once: the keys of all blocks, and the
// parent of each piece.
//
// It is done at the first walk and not when the snapshot is made, because a snapshot that
// becomes an image needs none of it, and it costs a hash a block.
//
// The parent is looked for from the end of the piece that the hint names, as most pieces
// follow the last block of another one. A second pass looks for the others by the engine
// hash of their parent. It costs a look at each name, so it is left out if nobody needs it.
// Either way the key decides: a block is the parent if the child's key follows from its
// key.
func (s *Snapshot) linkPieces() {
	if s.planted {
		return
	}
	s.planted, s.toOthers = true, make(map[uint64]snapBlock)
	for _, src := range s.sources {
		if src == nil {
			continue
		}
		src.private, src.links = make(map[uint64][]uint64, len(src.own)), make(map[uint64]link, len(src.waiting))
		for engine, ref := range src.own {
			src.private[ref] = append(src.private[ref], engine)
			s.toOthers[engine] = snapBlock{}
		}
		for _, l := range src.waiting {
			src.links[l.engine] = l
		}
	}
	byLine := make(map[uint32]*snapPiece, len(s.pieces))
	for _, p := range s.pieces {
		byLine[p.line] = p
		if p.keys = p.local; !p.loose {
			p.keys = make([]uint64, len(p.local))
			p.keys[0] = p.head
			for i := 1; i < len(p.keys); i++ {
				p.keys[i] = s.x.tree.followKey(p.keys[i-1], p.identity.constant, p.local[i])
			}
		}
		if s.unified {
			p.elected = make([]uint64, len(p.local))
		}
	}
	// The hint leads to the parent, unless that has left and come back. Then its engine
	// hash does.
	lost := make(map[uint64][]*snapPiece)
	for _, p := range s.pieces {
		if q := byLine[p.prev]; q != nil && p.up != 0 {
			at := len(q.keys) - 1
			// Each look costs a hash, and most pieces are behind the last block: begin
			// there.
			for at >= 0 && !s.isBehind(p, snapBlock{q, uint32(at)}) {
				at--
			}
			if at >= 0 {
				p.parent = snapBlock{q, uint32(at)}
			}
		}
		if p.up != 0 && p.parent.isNone() {
			lost[p.up] = append(lost[p.up], p)
		}
	}
	if len(lost)+len(s.toOthers) > 0 {
		for _, p := range s.pieces {
			for b := range p.eachBlock {
				// A name says only which pieces may be behind the block. Two blocks may
				// have had it, one after the other.
				for engine := range b.eachName {
					for _, c := range lost[engine] {
						if c.parent.isNone() && s.isBehind(c, b) {
							c.parent = b
						}
					}
					if _, ok := s.toOthers[engine]; ok && s.isHeld(b) {
						s.toOthers[engine] = b
					}
				}
			}
		}
	}
	s.breakCycles()
	for _, p := range s.pieces {
		if !p.parent.isNone() {
			p.parent.behind = append(p.parent.behind, p)
		}
	}
}

// breakCycles makes a root of a piece of each circle. Keys that two chains have by chance,
// or by an attacker's choice, could close one. A walk that begins at roots would never come
// by a circle, and its blocks would be missing from the snapshot.
//
// Each piece is climbed through once, and marked with the number of the way. A way that
// comes to a mark of its own has found a circle; at the mark of another way it can stop.
func (s *Snapshot) breakCycles() {
	for i, p := range s.pieces {
		for p.climb == 0 {
			if p.climb = i + 1; p.parent.isNone() {
				break
			}
			if p.parent.climb == i+1 { // the way up has come back to itself
				p.parent = snapBlock{}
				break
			}
			p = p.parent.snapPiece
		}
	}
}

// isBehind reports whether the first block of a piece is behind a block.
func (s *Snapshot) isBehind(p *snapPiece, b snapBlock) bool {
	return !b.loose && s.x.tree.followKey(b.key(), b.identity.constant, p.local[0]) == p.head
}

// eachBlock yields the blocks of a piece.
func (p *snapPiece) eachBlock(yield func(snapBlock) bool) {
	for at := range p.local {
		if !yield(snapBlock{p, uint32(at)}) {
			return
		}
	}
}

// isNone reports whether there is no such block; key returns its key, once linkPieces has
// computed it.
func (b snapBlock) isNone() bool { return b.snapPiece == nil }
func (b snapBlock) key() uint64  { return b.keys[b.at] }
func (b snapBlock) ref() uint64  { return position{b.line, b.at}.encode() }

// ownerSet returns the owner set of a block.
func (b snapBlock) ownerSet() uint32 {
	k := 0
	for b.at >= b.intervals[k].end {
		k++
	}
	return b.intervals[k].set
}

// blockBefore returns the block before another one, none if that begins a chain or is in
// none.
func (b snapBlock) blockBefore() snapBlock {
	if b.at > 0 && !b.loose {
		return snapBlock{b.snapPiece, b.at - 1}
	}
	return b.parent
}

// clientHash returns the client hash of a block, 0 if its tokens are not known.
func (b snapBlock) clientHash() uint64 {
	switch {
	case len(b.clientHashes) > 0:
		return b.clientHashes[b.at]
	case b.loose:
		return 0
	}
	return b.local[b.at]
}

// eachName yields the names of a block that all mean, each with its teacher plus one.
func (b snapBlock) eachName(yield func(engine uint64, by uint32) bool) {
	if !b.loose && b.engine[b.at] != 0 && !yield(b.engine[b.at], b.by) {
		return
	}
	for i := range b.sides {
		d := &b.sides[i]
		if k := b.at - d.from; k < uint32(len(d.engine)) && d.engine[k] != 0 && !yield(d.engine[k], d.by) {
			return
		}
	}
}

// snapWalk is a walk.
type snapWalk struct {
	*Snapshot
	f     func(*Stretch) bool
	ended bool
	found []uint64        // buffer of names
	polls map[Source]poll // of electName: how each family votes
}

// poll is the number of votes for a name, and the lowest rank of the voters.
type poll struct{ votes, rank int }

// withVote returns the poll with the vote of a source.
func (p poll) withVote(s *snapSource) poll { return poll{p.votes + 1, min(p.rank, s.rank)} }

// visitBlock adds a block to what an owner holds.
//
// An owner's blocks are gathered as long as each is behind the one before, and handed out
// where that ends: where the chain parts, or at a block without tokens, which no reader
// could place behind another one. longest bounds what is gathered, since the owner of a
// million blocks would otherwise collect them all before the reader sees one.
func (w *snapWalk) visitBlock(b snapBlock, o *snapOwner) {
	up, clientHash, r := b.blockBefore(), b.clientHash(), &o.run
	if up.isNone() || up != o.last || clientHash == 0 || len(r.Engine) == longest {
		w.flushStretch(o)
		w.beginStretch(b, up, o, clientHash)
	}
	at, names := len(r.Engine), w.namesFor(b, o.source)
	r.Engine, r.ClientHashes = append(r.Engine, plain(names[0])), append(r.ClientHashes, clientHash)
	if r.Waiting {
		r.ClientHashes[at] = o.source.links[b.key()].clientHash
	}
	if n := o.copies[b.ref()]; n > 0 {
		if r.Copies == nil {
			r.Copies = make(map[int]int)
		}
		r.Copies[at] = int(n)
	}
	for _, engine := range names[1:] {
		if r.More == nil {
			r.More = make(map[int][]uint64)
		}
		r.More[at] = append(r.More[at], plain(engine))
	}
	o.last = b
	if clientHash == 0 {
		w.flushStretch(o)
	}
}

// beginStretch starts a stretch at a block, which is behind up.
//
// The parent's name must be one that the reader has come across: one that this owner has
// handed out, or that of another owner. That owner's stretch may still be in the making, so
// it is flushed first; else the reader would get a child whose parent is unknown to it, and
// put it into its waiting room.
//
// A block without tokens has no parent to name. If its source has a link for it, the link's
// parent is all that is known, and the stretch is Waiting. A piece that knows the hash of
// its parent (b.up), which is nowhere any more, says so by Gone: the hash may be another
// block's by now.
func (w *snapWalk) beginStretch(b, up snapBlock, o *snapOwner, clientHash uint64) {
	r, key := &o.run, b.key()
	r.Key, r.HasKey, r.Identity = b.identity.seqOf(key), true, b.identity.id
	if clientHash == 0 {
		if l, ok := o.source.links[key]; ok && b.loose {
			r.Waiting, r.HasParent, r.Parent = true, true, plain(l.parent)
			r.Key, r.HasKey, r.Identity = 0, false, l.of.id
		}
		return
	}
	if !up.isNone() && (b.at > 0 || w.isHeld(up)) {
		if w.bits[int(up.ownerSet())*w.width+int(o.id>>6)]>>(o.id&63)&1 == 0 {
			for p := range w.eachHolder(up) { // p and o may belong to one worker
				w.flushStretch(p)
			}
		}
		r.HasParent, r.Gone = true, !w.isHeld(up)
		// A parent that nobody holds is called what the owner's own source calls it, if it
		// has a name for it. Votes and names of other holders are for blocks with holders.
		if w.findOwnNames(up, o.source); !r.Gone || len(w.found) == 0 {
			w.namesFor(up, o.source)
		}
		r.Parent = plain(w.found[0])
		return
	}
	if b.at > 0 || b.loose {
		return
	}
	if r.Root = b.up == 0 && b.identity.firstKey(b.local[0]) == key; b.up != 0 {
		r.HasParent, r.Parent, r.Gone = true, plain(b.up), true
	}
}

// flushStretch hands out what has been gathered of an owner. The two slices are used again,
// which is why they are valid only until f returns; the maps are rare, so they are made
// each time.
func (w *snapWalk) flushStretch(o *snapOwner) {
	r := &o.run
	if len(r.Engine) > 0 && !w.ended {
		w.ended = !w.f(r)
	}
	*r = Stretch{Owner: o.name, Engine: r.Engine[:0], ClientHashes: r.ClientHashes[:0]}
	o.last = snapBlock{}
}

// namesFor returns the engine hashes a source uses for a block: its own, what it has taught
// itself first, and those its family has taught; else one that an owner of the block
// uses, so that a reader comes across it, else any, else the key itself. They are valid
// until the next call.
func (w *snapWalk) namesFor(b snapBlock, src *snapSource) []uint64 {
	if w.unified {
		if b.elected[b.at] == 0 {
			b.elected[b.at] = w.electName(b)
		}
		w.found = append(w.found[:0], b.elected[b.at])
		return w.found
	}
	if w.findOwnNames(b, src); len(w.found) > 0 {
		return w.found
	}
	for o := range w.eachHolder(b) {
		if w.findOwnNames(b, o.source); len(w.found) > 0 {
			return w.found[:1]
		}
	}
	name := b.key()
	for engine := range b.eachName {
		name = engine
	}
	w.found = append(w.found, name)
	return w.found
}

// findOwnNames finds the names that a source itself uses: those that it means alone, those
// that it has taught, then those of its family.
//
// What the source taught itself comes before the rest of the family, as that is what its
// engine says. A name by which the source alone means another block is left out, even if it
// has taught it: for this source it is not a name of this block any more.
func (w *snapWalk) findOwnNames(b snapBlock, src *snapSource) {
	w.found = append(w.found[:0], src.private[b.ref()]...)
	own := len(w.found)
	for engine, by := range b.eachName {
		if _, other := src.own[engine]; other {
			continue
		}
		switch {
		case by == uint32(src.name)+1: // a family may have come of one hash in common
			w.found = slices.Insert(w.found, own, engine)
			own++
		case by != 0 && w.families[by-1] == w.families[src.name]:
			w.found = append(w.found, engine)
		}
	}
}

// electName returns the name of a block for all owners, by a vote of the sources that hold
// the block. A source votes for the engine hashes it has taught, else for those of its
// family. Of equal votes the name wins whose voter has the lowest rank. Without votes, the
// only holder's private hash is the name, unless that source holds another block of the
// name. The last choice is the key.
//
// A reader of a unified snapshot knows one name for each block, so all owners must agree on
// it; and the vote must come out the same whichever owner is visited first.
func (w *snapWalk) electName(b snapBlock) uint64 {
	clear(w.polls)
	only, names := uint64(0), 0
	for engine, by := range b.eachName {
		only, names = engine, names+1
		if by == 0 {
			continue
		}
		w.polls[w.families[by-1]] = poll{rank: math.MaxInt}
		if s := w.teacherOf(by); s != nil {
			s.teaches = b
		}
	}
	if names == 1 && len(w.toOthers) == 0 {
		return only
	}
	// Count the voters. A source has several owners and one vote: holds is the block that it
	// has voted on last. A source that taught a name votes for that one below, and one with
	// a name of its own for none.
	holders, last := 0, (*snapSource)(nil)
	for o := range w.eachHolder(b) {
		s := o.source
		if s.holds == b {
			continue
		}
		s.holds, last = b, s
		holders++
		if s.teaches == b || len(s.private[b.ref()]) > 0 {
			continue
		}
		if p, ok := w.polls[w.families[s.name]]; ok {
			w.polls[w.families[s.name]] = p.withVote(s)
		}
	}
	var name uint64
	var best poll
	for engine, by := range b.eachName {
		p := poll{rank: math.MaxInt}
		if by != 0 {
			p = w.polls[w.families[by-1]]
			if s := w.teacherOf(by); s != nil && s.holds == b {
				p = p.withVote(s)
			}
		}
		if name == 0 || p.votes > best.votes || p.votes == best.votes && p.rank < best.rank {
			name, best = engine, p
		}
	}
	// Nobody votes for a shared name, and the only holder calls the block something that
	// others use for another block. That is its name, unless the holder holds the other
	// block too: then one name would stand for two blocks of one owner.
	if best.votes == 0 && holders == 1 {
		for _, engine := range last.private[b.ref()] {
			if other := w.toOthers[engine]; other.isNone() || !w.isHeldBySource(last, other) {
				return engine
			}
		}
	}
	return cmp.Or(name, b.key())
}

// teacherOf returns the source that taught a name, given plus one. It returns nil if the
// source is gone.
func (s *Snapshot) teacherOf(by uint32) *snapSource {
	if by != 0 && int(by) <= len(s.sources) {
		return s.sources[by-1]
	}
	return nil
}

// isHeldBySource reports whether a source holds a block.
func (s *Snapshot) isHeldBySource(src *snapSource, b snapBlock) bool {
	for o := range s.eachHolder(b) {
		if o.source == src {
			return true
		}
	}
	return false
}

// isHeld reports whether an owner holds a block.
func (s *Snapshot) isHeld(b snapBlock) bool {
	for range s.eachHolder(b) {
		return true
	}
	return false
}

// eachHolder yields the owners of a block.
func (s *Snapshot) eachHolder(b snapBlock) iter.Seq[*snapOwner] { return s.eachOwner(b.ownerSet()) }

// EachOwner yields the owners of a set.
func (s *Snapshot) eachOwner(set uint32) iter.Seq[*snapOwner] {
	return func(yield func(*snapOwner) bool) {
		for k, word := range s.bits[int(set)*s.width:][:s.width] {
			for ; word != 0; word &= word - 1 {
				if o := s.owners[uint32(k)<<6+lowestBit(word)]; o != nil && !yield(o) {
					return
				}
			}
		}
	}
}
