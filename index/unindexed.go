package index

import (
	"unsafe"
)

// Names on demand. An entry in the table of names costs two cache misses, and nearly all
// removals and parents are next to what their source mentioned last. So a block gets its
// entry only where a chain or a removal of an owner stops and something else has its turn,
// where the block begins a piece, since queries by engine hashes begin there, or where it
// begins a stored event of several blocks: SGLang evicts such stretches from their first
// block on. All other blocks are found from there, or by a search of the source's unindexed
// pieces: those with blocks that it holds and that have no entry. A search is bounded by
// the length of that list, and a piece that was searched often gets all its entries.
//
// This lasts until a source mentions an engine hash that it has not announced, as with
// blocks that come without tokens, or whose parent was missed. Any other source may have
// taught that hash. From then on all blocks get entries, those at hand a part with each
// event, until no source has mentioned such a hash for some thousand events.

const (
	// maxUnindexed bounds the list of a source: two million blocks in full pieces, which a
	// search passes in less than a millisecond. The oldest piece makes room with all its
	// entries, half as much memory again.
	maxUnindexed = 1 << 15
	// searchPatience is how often a piece is searched before it gets all its entries,
	// namedAtOnce how many pieces get theirs in one search: each takes some microseconds.
	searchPatience, namedAtOnce = 16, 64
	// maxNearby is how many owners of a source a search looks at before their unindexed
	// pieces.
	maxNearby = 4
	// calmEvents is how many events pass between two looks whether all blocks have to be
	// named, maxCalm how many looks that find no reason it takes at most.
	calmEvents = 1 << 10
	maxCalm    = 1 << 12
	// farAround is how many pieces along a chain a search looks at before the unindexed
	// ones.
	farAround = 16
	// searchAhead is how many unindexed pieces a search looks at from where the last one
	// ended.
	searchAhead = 32
	// headsAhead and namesAhead are how far ahead of a search the heads of pieces and their
	// names are fetched.
	headsAhead, namesAhead = 8, 4
)

// unindexedList is the unindexed pieces of a source, in a ring when it is full.
type unindexedList struct {
	pieces []unindexedPiece
	oldest int
	found  int // in pieces: where the last search ended
}

// unindexedPiece is a piece and bits of its first key: other ones say that the piece has
// ended, and its line is that of another one. The source has noted that too, if it holds a
// block of it.
type unindexedPiece struct {
	piece uint32
	life  uint32 // bits of the key, and below lookBits how often it was searched
}

const lookBits = 5

// lifeOf returns the bits of a piece's first key that tell it from the pieces which had the
// line before. They are 27 of 64, so a piece is taken for its predecessor about once in a
// hundred million times. A search then looks at names that are not there.
func (a *arena) lifeOf(n uint32) uint32 {
	return uint32(load64(&a.pieceAt(n).head)) >> lookBits << lookBits
}

// hasEnded reports whether a piece has ended.
func (a *arena) hasEnded(w unindexedPiece) bool {
	return w.life>>lookBits<<lookBits != a.lifeOf(w.piece)
}

// timesSearched returns how often a search came by the piece in vain.
func (w *unindexedPiece) timesSearched() uint32 { return w.life & (1<<lookBits - 1) }

// naming says whether the index makes entries on demand, is catching up, or has one for every block.
type naming uint8

const (
	onDemand naming = iota
	catchingUp
	allNamed
)

// fullNaming says how long all blocks stay named.
type fullNaming struct {
	always   bool   // Index.NameAllBlocks was called
	checked  uint32 // events of all lanes at the last look
	calm     int    // looks in a row that found no reason
	patience int    // looks that it takes; more than that ends it
}

// noteUnindexed says that a source holds blocks of a piece that have no entries.
//
// Only the last two entries are compared, so a piece may be listed twice; a second entry
// costs a search eight bytes to pass, and a lookup in a set would cost each store more.
func (f *finder) noteUnindexed(s *source, n uint32) {
	if f.names.naming == allNamed {
		return
	}
	v := &s.unindexed
	k := len(v.pieces)
	fresh := unindexedPiece{n, f.tree.lines.lifeOf(n)}
	for i := 1; i <= min(k, 2); i++ {
		if w := v.entryAt(k - i); w.piece == n {
			if f.tree.lines.hasEnded(*w) {
				*w = fresh
			}
			return
		}
	}
	if k < maxUnindexed {
		v.pieces = append(v.pieces, fresh)
		return
	}
	// The list is full and the oldest piece makes room. No search will come by it any more,
	// so its names get entries instead.
	if old := v.pieces[v.oldest]; old.piece != 0 && !f.tree.lines.hasEnded(old) {
		s.lane.due = append(s.lane.due, old.piece)
	}
	v.pieces[v.oldest] = fresh
	v.oldest = (v.oldest + 1) % k
	if f.tree.lanes.alone {
		f.nameDuePieces(s)
	}
}

// nameDuePieces gives pieces that left the list of a source their entries. It is put off to
// the end of the event, as the lane holds the piece that the event is about, and can hold
// only one. The source may hold no block of such a piece any more; then the names are no
// concern of its own. The lane holds another piece afterwards.
func (f *finder) nameDuePieces(s *source) {
	l := s.lane
	for _, n := range l.due {
		if f.tree.holdPiece(l, n); f.holdsBlockOf(s, n) {
			f.names.namePiece(l, n)
		}
	}
	l.due = l.due[:0]
}

// surelyLists reports whether a source that is about to hold blocks of a held piece lists
// it for sure: it holds a block whose name in the body has no entry.
//
// It spares the list an entry with each event of a source that comes by the same pieces
// again and again.
func (f *finder) surelyLists(s *source, r *piece) bool {
	if r.loose() || !f.names.families.sameFamily(s.name, r.by) {
		return false
	}
	var buf [maxPiece + 2]interval
	start := uint32(0)
	for _, v := range f.tree.lines.intervalsOf(r, &buf) {
		for w := spanOf(start, v.end) &^ r.named; w != 0 && v.set != 0; w &= w - 1 {
			if r.engineHashes()[lowestBit(w)] != 0 {
				if f.tree.isInSet(s, v.set) {
					return true
				}
				break
			}
		}
		start = v.end
	}
	return false
}

// holdsBlockOf reports whether a source holds a block of a held piece.
func (f *finder) holdsBlockOf(s *source, n uint32) bool {
	r := f.tree.lines.pieceAt(n)
	if r.len() == 0 || r.loose() {
		return false
	}
	var buf [maxPiece + 2]interval
	for _, v := range f.tree.lines.intervalsOf(r, &buf) {
		if f.tree.isInSet(s, v.set) {
			return true
		}
	}
	return false
}

// searchUnindexed looks for an engine hash in the unindexed pieces of a source: in some
// from where the last search ended, as an engine evicts the oldest blocks first, then in
// all, the newest first. held asks for a block that the source holds. The lane holds the
// block's piece.
//
// A piece that is searched in vain again and again gets all of its entries and leaves the
// list: it holds what the engine keeps for long, while what is asked for is what it evicts.
// That bounds the cost of a search over time. Heads and names are fetched ahead, since the
// pieces lie anywhere in memory and each would otherwise be waited for.
func (f *finder) searchUnindexed(s *source, engine uint64, held bool) position {
	v := &s.unindexed
	n := len(v.pieces)
	for i := v.found; i < min(v.found+searchAhead, n); i++ {
		if i+headsAhead < n {
			prefetch(unsafe.Pointer(f.tree.lines.pieceAt(v.pieces[i+headsAhead].piece)))
		}
		if i+namesAhead < n {
			f.tree.lines.pieceAt(v.pieces[i+namesAhead].piece).prefetchNames()
		}
		if p := f.searchUnindexedPiece(s, &v.pieces[i], engine, held); !p.isNone() {
			v.found = i
			return p
		}
	}
	for k, named := n-1, 0; k >= 0; k-- {
		if k >= headsAhead {
			prefetch(unsafe.Pointer(f.tree.lines.pieceAt(v.entryAt(k - headsAhead).piece)))
		}
		if k >= namesAhead {
			f.tree.lines.pieceAt(v.entryAt(k - namesAhead).piece).prefetchNames()
		}
		w := v.entryAt(k)
		if p := f.searchUnindexedPiece(s, w, engine, held); !p.isNone() {
			v.found = (k + v.oldest) % n
			return p
		}
		if w.piece == 0 {
			continue
		}
		if w.timesSearched() < searchPatience-1 {
			w.life++
		} else if named < namedAtOnce {
			f.names.namePiece(s.lane, w.piece)
			w.piece, named = 0, named+1
		}
	}
	return position{}
}

// searchUnindexedPiece looks for an engine hash in one piece of the list of a source.
func (f *finder) searchUnindexedPiece(s *source, w *unindexedPiece, engine uint64, held bool) position {
	if w.piece == 0 {
		return position{}
	}
	if f.tree.lines.hasEnded(*w) {
		w.piece = 0
		return position{}
	}
	if f.names.sweep.left > 0 {
		f.names.cleanPiece(w.piece, f.tree.lines.pieceAt(w.piece))
	}
	if f.tree.lines.mayHaveName(w.piece, engine) {
		f.tree.holdPiece(s.lane, w.piece)
		if p, line := f.tree.lines.findNameIn(w.piece, engine); line != 0 && (!held || f.tree.isHeldBy(s, p)) {
			f.names.nameBlock(s.lane, p)
			return p
		}
	}
	return position{}
}

// entryAt returns entry k of a list, 0 the oldest.
func (v *unindexedList) entryAt(k int) *unindexedPiece {
	if k += v.oldest; k >= len(v.pieces) {
		k -= len(v.pieces)
	}
	return &v.pieces[k]
}

// nameBlock gives a block's engine hashes their entries, if they are names.
func (m *nameMap) nameBlock(l *lane, p position) {
	if p.isNone() {
		return
	}
	if r := m.holdCleanPiece(l, p.piece); !r.loose() && p.at < r.len() {
		m.nameBlocks(l, p.piece, r, 1<<p.at)
	}
}

// holdCleanPiece is holdPiece for a piece without retired owners, which may have ended then.
//
// A caller that goes on with its blocks has to look at their number, which is 0 then.
func (m *nameMap) holdCleanPiece(l *lane, n uint32) *piece {
	r := m.tree.holdPiece(l, n)
	if m.sweep.left > 0 {
		m.cleanPiece(n, r)
	}
	return r
}

// namePiece gives the engine hashes of a piece their entries.
func (m *nameMap) namePiece(l *lane, n uint32) {
	if r := m.holdCleanPiece(l, n); !r.loose() && r.len() > 0 {
		m.nameBlocks(l, n, r, spanOf(0, r.len()))
	}
}

// nameBlocks gives the engine hashes of some blocks their entries. A hash that means
// another block by now gets none here. It tells of a source that lies, and ends naming on
// demand.
//
// Names that get an entry are fetched together first: the entries lie in different cache
// lines, and the loads overlap.
//
// Next to other lanes a clash is only noted, because what follows from it concerns sources
// of other lanes: the next call that locks all lanes ends naming on demand (lockRest).
func (m *nameMap) nameBlocks(l *lane, n uint32, r *piece, blocks uint64) {
	blocks &^= m.tree.lines.deadBlocks(r)
	for line := n; line != 0; {
		engine, named, next := r.engineHashes(), &r.named, r.side
		here := blocks
		if line != n {
			d := m.tree.lines.sideAt(line)
			engine, named, next = d.engineHashes(), &d.named, d.next
			here = d.partOf(blocks)
		}
		made, clash := m.enterNames(engine, line, here&^*named)
		*named |= made
		l.clash = l.clash || clash
		line = next
	}
	if m.tree.lanes.alone {
		m.endOnDemand(l)
	}
}

// endOnDemand ends naming on demand if a lane came upon a name that means two blocks. All
// lanes are locked. Some publisher is wrong then, or hashes differently, and only a full
// table tells which blocks are concerned.
func (m *nameMap) endOnDemand(l *lane) {
	if l.clash && m.naming == onDemand {
		m.beginNaming()
	}
	l.clash = false
}

// reconsiderNaming goes back to names on demand after some thousand events that mentioned
// only what their sources hold, as when a follower came late and the engines have evicted
// what it missed. Each time it takes twice as many. All lanes are locked, and all blocks
// are named.
//
// One late subscriber, whose engines evict blocks that it never saw, would otherwise cost
// every index a full table for good.
func (f *finder) reconsiderNaming() {
	events, foreign := f.tree.lanes.countEvents(), false
	for i := range f.tree.lanes.each {
		foreign = foreign || f.tree.lanes.each[i].lane.foreign
	}
	if f.names.full.always || events-f.names.full.checked < calmEvents {
		return
	}
	for i := range f.tree.lanes.each {
		f.tree.lanes.each[i].lane.foreign = false
	}
	f.names.full.checked = events
	if f.names.full.calm++; foreign {
		f.names.full.calm = 0
	}
	if f.names.full.calm > f.names.full.patience {
		f.names.naming = onDemand
	}
}

// beginNaming ends naming on demand. Each time it lasts twice as long.
func (m *nameMap) beginNaming() {
	m.naming, m.namedPages, m.full.checked = catchingUp, 0, m.tree.lanes.countEvents()
	m.full.calm, m.full.patience = 0, min(2*m.full.patience+1, maxCalm)
}

// NameAllBlocks says that sources will mention engine hashes that others have taught.
func (x *Index) NameAllBlocks() {
	x.lock()
	defer x.unlock()
	x.names.full.always = true
	x.resolver.beginNamingAll()
}
