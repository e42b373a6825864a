package index

// finder finds the block that a source means by an engine hash where it most likely is,
// near what the source mentioned last, and gives names their entries where such a search
// would not lead.
type finder struct {
	tree  *tree
	names *nameMap
}

// holdNamed returns the block that an engine hash means to a source, if it is found at
// once, or none. The lane holds its piece. event is the engine hashes of blocks behind it,
// or nil. While names get entries on demand, an entry that leads to a block which the
// source does not hold is not enough: the source may mean a block of its own with the same
// hash that has no entry yet.
//
// If the search finds nothing, the entry is asked again, as the lane has let go of its
// piece to search.
func (f *finder) holdNamed(s *source, engine uint64, event []uint64) position {
	q := f.holdEntered(s, engine)
	if f.names.naming == allNamed {
		f.noteMention(s, q)
	}
	if f.names.naming != onDemand || !q.isNone() && f.tree.isHeldBy(s, q) {
		return q
	}
	if own := f.searchHash(s, engine, event, !q.isNone()); !own.isNone() {
		return own
	}
	return f.holdEntered(s, engine)
}

// holdEntered returns the block of a name with an entry, or none. The lane holds its piece.
// The entry is looked at again once the piece is held, as everything found without the hold
// may have changed.
func (f *finder) holdEntered(s *source, engine uint64) position {
	q, _ := f.names.findName(engine)
	if !q.isNone() {
		if f.tree.holdPiece(s.lane, q.piece); f.names.lineOf(q, engine) == 0 {
			return position{}
		}
	}
	return q
}

// addName makes an engine hash the name of a block for all. It reports false if the piece
// has too many names, or the hash means another block. Names of want blocks may follow.
//
// The word is written while readers wait if an entry follows, because a query by names
// believes a word that it finds in the piece. Without an entry no query gets to it.
//
// A checkpoint copies names, so the piece is copied before. A hash that was remembered as
// lost with its ghost means something again, and leaves that list.
func (f *finder) addName(s *source, p position, engine uint64, want int) bool {
	f.tree.keepForCheckpoint(p.piece)
	line, i, named := f.spareWord(s, p, want)
	if line == 0 {
		return false
	}
	word := &f.tree.lines.namesAt(line)[i]
	r := f.tree.lines.pieceAt(p.piece)
	unindexed := f.names.naming == onDemand && !r.loose()
	if unindexed && p.at > 0 {
		write64(word, engine)
	} else {
		r.lockReaders() // no reader sees a hash that means another block
		write64(word, engine)
		entered := f.names.enterName(engine, position{line, i})
		if !entered {
			write64(word, 0)
		}
		if r.unlockReaders(); !entered {
			return false
		}
		*named |= 1 << i
	}
	if unindexed {
		f.noteUnindexed(s, p.piece)
	}
	f.names.ghosts.forgetLost(engine)
	s.lane.names++
	return true
}

// spareWord returns where an engine hash of a source's family can lie for a block that has
// none there: the line, the position in it, and which others have entries. It returns line
// 0 if the piece has as many sides as it may have: a publisher that gives one block new
// names for ever must not fill the memory with them.
//
// Names of one family lie in one line as far as possible, so that events of its sources
// compare them in one stretch. A new side has room for the blocks that may follow, up to
// the end of the piece. It is written before the piece names it, as queries by names follow
// the sides of a piece without a lock.
func (f *finder) spareWord(s *source, p position, want int) (line, i uint32, named *uint64) {
	r := f.tree.lines.pieceAt(p.piece)
	if !r.loose() && r.engineHashes()[p.at] == 0 && (r.by == 0 || f.names.families.sameFamily(s.name, r.by)) {
		if r.by == 0 {
			r.by = uint32(s.name) + 1
		}
		return p.piece, p.at, &r.named
	}
	n := 0
	for line = r.side; line != 0; n++ {
		d := f.tree.lines.sideAt(line)
		if d.covers(p.at) && d.engineHashes()[p.at-d.firstBlock()] == 0 && f.names.families.sameFamily(s.name, d.by) {
			return line, p.at - d.firstBlock(), &d.named
		}
		line = d.next
	}
	if n >= maxSides {
		return 0, 0, nil
	}
	lines, names := sideLines(min(uint32(max(want, 1)), r.cap()-p.at))
	line = f.tree.lines.allocLines(forNames, lines)
	d := f.tree.lines.sideAt(line)
	d.initialize(p, names, r.side, uint32(s.name)+1)
	store32(&r.side, line)
	if r.loose() {
		f.tree.looseSides++
	}
	return line, 0, &d.named
}

// joinTeacher notes that a source uses a name in a line. It reports false if that needs all
// lanes.
func (f *finder) joinTeacher(s *source, line uint32) bool {
	r := f.tree.lines.pieceAt(line)
	if r.meta&isSide != 0 {
		return f.names.joinFamily(s.name, f.tree.lines.sideAt(line).by)
	}
	return f.names.joinFamily(s.name, r.by)
}

// namesFor returns the names of a piece among which a block has an engine hash, and the
// block of the first of them; nil if it has another one. ok is false if the source would
// have to join the family of their teacher, which needs all lanes.
//
// A side may have fewer than 64 names. It is copied to a buffer of the lane then, so that
// the caller's loop can read 64 words whatever line they come from.
func (f *finder) namesFor(s *source, r *piece, at uint32, engine uint64) (names *words, first uint32, ok bool) {
	if r.engineHashes()[at] == engine {
		return r.engineHashes(), 0, f.names.joinFamily(s.name, r.by)
	}
	for line := r.side; line != 0; {
		d := f.tree.lines.sideAt(line)
		if d.covers(at) && d.engineHashes()[at-d.firstBlock()] == engine {
			names = d.engineHashes()
			if l := s.lane; d.cap() < maxPiece { // the names end early: compare the names that are there
				if l.body == nil {
					l.body = new(words)
				}
				clear(l.body[:])
				copy(l.body[:], names[:d.cap()])
				names = l.body
			}
			return names, d.firstBlock(), f.names.joinFamily(s.name, d.by)
		}
		line = d.next
	}
	return nil, 0, true
}

// findNeighbour returns the block before or after another one if it has an engine hash. The
// lane holds its piece.
//
// Both sides are tried, because engines evict towards the beginning and announce towards
// the end.
//
// Hints between pieces may be wrong. That is no harm here: the block must have the hash,
// wherever the hint led. p itself may be long gone, and its line another piece's; a wrong
// neighbour with the right name is still the block of that name.
func (f *finder) findNeighbour(l *lane, p position, engine uint64) position {
	if p.isNone() {
		return position{}
	}
	h := f.names.holdCleanPiece(l, p.piece)
	if h.loose() {
		return position{}
	}
	before, behind := position{p.piece, p.at - 1}, position{p.piece, p.at + 1}
	if behind.at >= h.len() {
		behind = position{piece: h.next}
	}
	if p.at == 0 {
		before = f.lastBlock(l, h.prev)
	}
	for _, q := range [...]position{before, behind} {
		if !q.isNone() {
			if f.names.holdCleanPiece(l, q.piece); f.names.lineOf(q, engine) != 0 {
				return q
			}
		}
	}
	return position{}
}

// lastBlock returns the last block of a piece, none of no piece. The lane holds it.
func (f *finder) lastBlock(l *lane, n uint32) position {
	if n == 0 {
		return position{}
	}
	return position{n, max(f.names.holdCleanPiece(l, n).len(), 1) - 1}
}

// searchAround returns the block that has an engine hash, of some pieces along a chain from
// one on towards the root. The lane holds its piece.
//
// It goes towards the root only, as the hints in that direction are unambiguous: a piece
// has one before it and any number behind.
//
// Each piece is first looked at without a hold (mayHaveName), as holding it would make a
// lane that works there wait for nothing.
func (f *finder) searchAround(l *lane, n uint32, pieces int, engine uint64) position {
	for ; n != 0 && pieces > 0; pieces-- {
		r := f.tree.lines.pieceAt(n)
		if f.tree.lines.mayHaveName(n, engine) {
			r = f.names.holdCleanPiece(l, n)
			if q, line := f.tree.lines.findNameIn(n, engine); line != 0 {
				return q
			}
		}
		n = load32(&r.prev)
	}
	return position{}
}

// nameExpected makes an entry for the block where removals would go on.
//
// The removal has gone elsewhere. If it comes back, it will be here, and finds the entry.
func (f *finder) nameExpected(l *lane, t trail) {
	if t.at.isNone() {
		return
	}
	h := f.tree.holdPiece(l, t.at.piece)
	switch {
	case h.loose():
	case t.rising:
		f.names.nameBlock(l, position{t.at.piece, t.at.at + 1})
	case t.at.at > 0:
		f.names.nameBlock(l, position{t.at.piece, t.at.at - 1})
	default:
		f.names.nameBlock(l, f.lastBlock(l, h.prev))
	}
}

// findIdentity returns the identity under which there are all blocks of a prompt, with an
// owner or as ghosts, of those with some constants. It reports whether it is exactly one.
// The lane holds another piece afterwards.
//
// Two identities with the same tokens are two answers, and then none is given: a guess
// would put blocks of one tenant under another's salt.
func (f *finder) findIdentity(l *lane, constants, local []uint64) (of chainIdentity, once bool) {
	for _, constant := range constants {
		found, all := f.findPrompt(l, constant, local)
		if !all {
			continue
		}
		if once {
			return chainIdentity{}, false
		}
		of, once = found, true
	}
	return of, once
}

// findPrompt reports whether there are all blocks of a prompt under an identity, and
// returns that.
//
// A piece that is found by its key and has another one once it is held has ended meanwhile,
// and the table is asked again. A dead block ends the search: its words are there, the
// block is not.
func (f *finder) findPrompt(l *lane, constant uint64, local []uint64) (of chainIdentity, all bool) {
	key := normal(local[0] ^ constant)
	for i := 0; ; {
		at := f.tree.findBeginning(key, i == 0)
		if at.isNone() {
			return chainIdentity{}, false
		}
		r := f.names.holdCleanPiece(l, at.piece)
		if load64(&r.head) != key {
			continue // it has ended
		}
		of = r.chainIdentity()
		gone, n := f.tree.lines.deadBlocks(r), uint32(0)
		for ; n < r.len() && i < len(local) && r.localHashes()[n] == local[i]; n++ {
			if gone>>n&1 != 0 {
				return chainIdentity{}, false
			}
			// The key of the next block is needed only if the piece ends here, but is
			// cheaper than going back for it.
			if i++; i < len(local) {
				key = f.tree.followKey(key, constant, local[i])
			}
		}
		if i == len(local) || n == 0 {
			return of, n > 0
		}
	}
}

// noteMention notes, while all blocks are named, whether a hash that a source mentions is
// why they are: the source does not hold the block. As long as that happens, searches near
// a source's own mentions would fail, so names must keep their entries (reconsiderNaming).
func (f *finder) noteMention(s *source, p position) {
	if s == nil {
		f.tree.lanes.each[0].lane.foreign = true
	} else if p.isNone() || !f.tree.isHeldBy(s, p) {
		s.lane.foreign = true
	}
}

// searchHash looks for an engine hash without an entry: before the last block of an event,
// where events of the source ended last, and in its unindexed pieces. held asks for a block
// that the source holds. The lane holds the block's piece.
//
// The places are tried in the order of how often they hit in streams of engines: the parent
// of what is announced, then ends of removals and stores, then the list.
func (f *finder) searchHash(s *source, engine uint64, event []uint64, held bool) position {
	fits := func(q position) bool { return !q.isNone() && (!held || f.tree.isHeldBy(s, q)) }
	if n := len(event); n > 0 {
		end := f.holdEntered(s, normal(event[n-1]))
		for _, o := range s.owners[:min(len(s.owners), maxNearby)] {
			for i := 0; end.isNone() && i < len(o.gone); i++ {
				end = f.findNeighbour(s.lane, o.gone[i].at, normal(event[n-1]))
			}
		}
		if !end.isNone() {
			if q := f.searchBefore(s.lane, end, n, engine); fits(q) {
				return q
			}
		}
	}
	for _, o := range s.owners[:min(len(s.owners), maxNearby)] {
		for _, n := range [...]uint32{o.gone[0].at.piece, o.last.at.piece, o.gone[1].at.piece} {
			if q := f.searchAround(s.lane, n, farAround, engine); fits(q) {
				return q
			}
		}
	}
	return f.searchUnindexed(s, engine, held)
}

// searchBefore returns the block of an engine hash that lies n blocks before another one,
// or close to there. An event about a lower tier names a parent and the blocks behind it.
// The parent has no entry, but the last block usually has: the end of a chain has an entry,
// and what leaves one tier for the next is ends. So it goes back from there, along the
// hints, by as many blocks as the event has.
func (f *finder) searchBefore(l *lane, p position, n int, engine uint64) position {
	r := f.names.holdCleanPiece(l, p.piece)
	for n > int(p.at) && r.prev != 0 {
		n -= int(p.at) + 1
		p = f.lastBlock(l, r.prev)
		r = f.tree.lines.pieceAt(p.piece)
	}
	return f.searchAround(l, p.piece, 2, engine)
}
