package index

import (
	"math/bits"
	"slices"
	"unsafe"
)

// Names on demand. An entry in the table of names costs two cache misses, and nearly all
// removals and parents are next to what their source mentioned last. So a block gets its
// entry only where a chain or a removal of an owner stops and something else has its turn, where
// the block begins a piece, since queries by engine hashes begin there, or where it begins a stored
// event of several blocks: SGLang evicts such stretches from their first block on.
// All other blocks are found from there, or by a search of the source's vague pieces: those
// with blocks that it holds and that have no entry. A search is bounded by the length of that
// list, and a piece that was searched often gets all its entries.
//
// This lasts until a source mentions an engine hash that it has not announced, as with blocks
// that come without tokens, or whose parent was missed. Any other source may have taught that
// hash. From then on all blocks get entries, those at hand a part with each event, until no
// source has mentioned such a hash for some thousand events.

const (
	// maxVague bounds the list of a source: two million blocks in full pieces, which a search passes in
	// less than a millisecond. The oldest piece makes room with all its entries, half as much memory again.
	maxVague = 1 << 15
	// vaguePatience is how often a piece is searched before it gets all its entries, namedAtOnce how many pieces
	// get theirs in one search: each takes some microseconds.
	vaguePatience, namedAtOnce = 16, 64
	// maxNearby is how many owners of a source a search looks at before their vague pieces.
	maxNearby = 4
	// calmEvents is how many events pass between two looks whether all blocks have to be named,
	// maxCalm how many looks that find no reason it takes at most.
	calmEvents = 1 << 10
	maxCalm    = 1 << 12
	// farAround is how many pieces along a chain a search looks at before the vague ones.
	farAround = 16
	// vagueAhead is how many vague pieces a search looks at from where the last one ended.
	vagueAhead = 32
	// headsAhead and namesAhead are how far ahead of a search the heads of pieces and their names
	// are fetched.
	headsAhead, namesAhead = 8, 4
)

// vagueList is the vague pieces of a source, in a ring when it is full.
type vagueList struct {
	pieces []vaguePiece
	oldest int
	found  int // in pieces: where the last search ended
}

// vaguePiece is a piece and bits of its first key: other ones say that the piece has ended, and
// its line is that of another one. The source has noted that too, if it holds a block of it.
type vaguePiece struct {
	piece uint32
	life  uint32 // bits of the key, and below lookBits how often it was searched
}

const lookBits = 5

func (a *arena) lifeOf(n uint32) uint32 {
	return uint32(load64(&a.pieceAt(n).head)) >> lookBits << lookBits
}

// hasEnded reports whether a piece has ended.
func (a *arena) hasEnded(w vaguePiece) bool { return w.life>>lookBits<<lookBits != a.lifeOf(w.piece) }

func (w *vaguePiece) looks() uint32 { return w.life & (1<<lookBits - 1) }

// naming is how far an index has come with entries for all blocks.
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

// noteVague says that a source holds blocks of a piece that have no entries.
func (f *finder) noteVague(s *source, n uint32) {
	if f.names.naming == allNamed {
		return
	}
	v := &s.vague
	k := len(v.pieces)
	fresh := vaguePiece{n, f.tree.lines.lifeOf(n)}
	for i := 1; i <= min(k, 2); i++ {
		if w := v.at(k - i); w.piece == n {
			if f.tree.lines.hasEnded(*w) {
				*w = fresh
			}
			return
		}
	}
	if k < maxVague {
		v.pieces = append(v.pieces, fresh)
		return
	}
	if old := v.pieces[v.oldest]; old.piece != 0 && !f.tree.lines.hasEnded(old) {
		s.lane.due = append(s.lane.due, old.piece)
	}
	v.pieces[v.oldest] = fresh
	v.oldest = (v.oldest + 1) % k
	if f.tree.lanes.alone {
		f.nameDuePieces(s)
	}
}

// nameDuePieces gives pieces that left the list of a source their entries. The lane holds another
// piece afterwards.
func (f *finder) nameDuePieces(s *source) {
	l := s.lane
	for _, n := range l.due {
		if f.tree.holdPiece(l, n); f.holdsBlockOf(s, n) {
			f.names.namePiece(l, n)
		}
	}
	l.due = l.due[:0]
}

// surelyLists reports whether a source that is about to hold blocks of a held piece lists it for sure:
// it holds a block whose name in the body has no entry.
func (f *finder) surelyLists(s *source, r *piece) bool {
	if r.loose() || !f.names.families.sameFamily(s.name, r.by) {
		return false
	}
	var room [maxPiece + 2]interval
	start := uint32(0)
	for _, v := range f.tree.lines.intervalsOf(r, &room) {
		for w := spanOf(start, v.end) &^ r.named; w != 0 && v.set != 0; w &= w - 1 {
			if r.engine()[trailing(w)] != 0 {
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
	var room [maxPiece + 2]interval
	for _, v := range f.tree.lines.intervalsOf(r, &room) {
		if f.tree.isInSet(s, v.set) {
			return true
		}
	}
	return false
}

// seekMeaning returns the block that an engine hash means to a source, nil for none, and to all. Of several
// blocks it is one that the source holds, if there is one.
func (rs *resolver) seekMeaning(s *source, engine uint64) place {
	p, line := rs.names.findName(engine)
	if rs.names.naming == allNamed {
		rs.finder.noteMention(s, p)
		return p
	}
	if line != 0 && (s == nil || rs.tree.isHeldBy(s, p)) {
		return p
	}
	if s != nil {
		if q := rs.finder.searchHash(s, engine, nil, line != 0); !q.isNone() {
			return q
		}
	}
	if line == 0 && rs.names.naming == onDemand {
		rs.beginNamingAll()
		p, _ = rs.names.findName(engine)
	}
	return p
}

// searchHash looks for an engine hash without an entry: before the last block of an event, where
// events of the source ended last, and in its vague pieces. held asks for a block that the source
// holds. The lane holds the block's piece.
func (f *finder) searchHash(s *source, engine uint64, event []uint64, held bool) place {
	fits := func(q place) bool { return !q.isNone() && (!held || f.tree.isHeldBy(s, q)) }
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
	return f.searchVague(s, engine, held)
}

// searchBefore returns the block of an engine hash that lies n blocks before another one, or close to
// there. The end of a chain has an entry, and what leaves one tier for the next is ends.
func (f *finder) searchBefore(l *lane, p place, n int, engine uint64) place {
	r := f.names.holdCleanPiece(l, p.piece)
	for n > int(p.at) && r.prev != 0 {
		n -= int(p.at) + 1
		p = f.lastBlock(l, r.prev)
		r = f.tree.lines.pieceAt(p.piece)
	}
	return f.searchAround(l, p.piece, 2, engine)
}

// searchVague looks for an engine hash in the vague pieces of a source: in some from where the last search
// ended, as an engine evicts the oldest blocks first, then in all, the newest first. held asks
// for a block that the source holds. The lane holds the block's piece.
func (f *finder) searchVague(s *source, engine uint64, held bool) place {
	v := &s.vague
	n := len(v.pieces)
	for i := v.found; i < min(v.found+vagueAhead, n); i++ {
		if i+headsAhead < n {
			prefetch(unsafe.Pointer(f.tree.lines.pieceAt(v.pieces[i+headsAhead].piece)))
		}
		if i+namesAhead < n {
			f.tree.lines.pieceAt(v.pieces[i+namesAhead].piece).prefetchNames()
		}
		if p := f.searchVaguePiece(s, &v.pieces[i], engine, held); !p.isNone() {
			v.found = i
			return p
		}
	}
	for k, named := n-1, 0; k >= 0; k-- {
		if k >= headsAhead {
			prefetch(unsafe.Pointer(f.tree.lines.pieceAt(v.at(k - headsAhead).piece)))
		}
		if k >= namesAhead {
			f.tree.lines.pieceAt(v.at(k - namesAhead).piece).prefetchNames()
		}
		w := v.at(k)
		if p := f.searchVaguePiece(s, w, engine, held); !p.isNone() {
			v.found = (k + v.oldest) % n
			return p
		}
		if w.piece == 0 {
			continue
		}
		if w.looks() < vaguePatience-1 {
			w.life++
		} else if named < namedAtOnce {
			f.names.namePiece(s.lane, w.piece)
			w.piece, named = 0, named+1
		}
	}
	return place{}
}

// searchVaguePiece looks for an engine hash in one piece of the list of a source.
func (f *finder) searchVaguePiece(s *source, w *vaguePiece, engine uint64, held bool) place {
	if w.piece == 0 {
		return place{}
	}
	if f.tree.lines.hasEnded(*w) {
		w.piece = 0
		return place{}
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
	return place{}
}

// at returns entry k of a list, 0 the oldest.
func (v *vagueList) at(k int) *vaguePiece {
	if k += v.oldest; k >= len(v.pieces) {
		k -= len(v.pieces)
	}
	return &v.pieces[k]
}

// mayHaveName reports whether a block of a piece may have an engine hash. The piece need not be held:
// the names of a block stay while the source that asks holds it.
func (a *arena) mayHaveName(n uint32, engine uint64) bool {
	r := a.pieceAt(n)
	meta := load32(&r.meta)
	if meta&isLoose != 0 || load32(&r.side) != 0 {
		return true
	}
	names := r.engineOf(meta)
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
		prefetchLines(unsafe.Pointer(r.engineOf(meta)), int(n+7)/8)
	}
}

// findNameIn returns the block of a piece that has an engine hash, and the line of the name.
func (a *arena) findNameIn(n uint32, engine uint64) (place, uint32) {
	r := a.pieceAt(n)
	if r.loose() {
		return place{}, 0
	}
	for i, have := range r.engine()[:r.len()] {
		if p := (place{n, uint32(i)}); have == engine && (a.setOf(p) != 0 || r.named>>i&1 != 0) {
			return p, n
		}
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		for i, have := range d.engine()[:d.cap()] {
			if p := (place{n, d.from() + uint32(i)}); have == engine && p.at < r.len() && (a.setOf(p) != 0 || d.named>>i&1 != 0) {
				return p, line
			}
		}
		line = d.next
	}
	return place{}, 0
}

// lineOfName returns the line in which a block with an owner, or a ghost, has a name; 0 for none.
func (m *nameMap) lineOfName(p place, engine uint64) uint32 {
	r := m.tree.lines.pieceAt(p.piece)
	if !r.loose() {
		return m.lineOf(p, engine)
	}
	line := r.side
	for line != 0 {
		if d := m.tree.lines.sideAt(line); d.covers(p.at) && d.engine()[p.at-d.from()] == engine {
			break
		}
		line = m.tree.lines.sideAt(line).next
	}
	return line
}

// lineOf returns the line in which a block has an engine hash, 0 if it has another one.
func (m *nameMap) lineOf(p place, engine uint64) uint32 {
	r := m.tree.lines.pieceAt(p.piece)
	if r.loose() || p.at >= r.len() {
		return 0
	}
	line := p.piece
	if r.engine()[p.at] != engine {
		for line = r.side; line != 0; {
			d := m.tree.lines.sideAt(line)
			if d.covers(p.at) && d.engine()[p.at-d.from()] == engine {
				break
			}
			line = d.next
		}
	}
	if line == 0 || m.tree.lines.setOf(p) == 0 && !m.isGhost(p) {
		return 0
	}
	return line
}

// nameBlock gives a block's engine hashes their entries, if they are names.
func (m *nameMap) nameBlock(l *lane, p place) {
	if p.isNone() {
		return
	}
	if r := m.holdCleanPiece(l, p.piece); !r.loose() && p.at < r.len() {
		m.nameBlocks(l, p.piece, r, 1<<p.at)
	}
}

// holdCleanPiece is hold of a piece without retired owners, which may have ended then.
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

// nameBlocks gives the engine hashes of some blocks their entries. A hash that means another
// block by now gets none here. It tells of a source that lies, and ends naming on demand.
func (m *nameMap) nameBlocks(l *lane, n uint32, r *piece, blocks uint64) {
	blocks &^= m.tree.lines.deadBlocks(r)
	for line := n; line != 0; {
		engine, named, next := r.engine(), &r.named, r.side
		here := blocks
		if line != n {
			d := m.tree.lines.sideAt(line)
			engine, named, next = d.engine(), &d.named, d.next
			here = d.part(blocks)
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

// endOnDemand ends naming on demand if a lane came upon a name that means two blocks. All lanes
// are locked.
func (m *nameMap) endOnDemand(l *lane) {
	if l.clash && m.naming == onDemand {
		m.beginNaming()
	}
	l.clash = false
}

// part returns which names of a side are of some blocks of its piece.
func (d *side) part(blocks uint64) uint64 {
	here := blocks >> d.from()
	if d.cap() < maxPiece {
		here &= 1<<d.cap() - 1
	}
	return here
}

// enterNames makes entries for some engine hashes of a line. It returns which it made, and
// whether one means another block.
func (m *nameMap) enterNames(engine *words, line uint32, which uint64) (made uint64, clash bool) {
	for w := which; w != 0; w &= w - 1 {
		m.table.prefetch(mix(engine[trailing(w)]))
	}
	for w := which; w != 0; w &= w - 1 {
		i := trailing(w)
		if engine[i] == 0 {
			continue
		}
		if m.enterName(engine[i], place{line, i}) {
			if made |= 1 << i; m.tree.lanes.alone {
				m.noteMeaning(engine[i]) // it was not found before
			}
		} else {
			clash = true
		}
	}
	return made, clash
}

// yieldNames handles the names of a piece that mean another block to others. A source that uses
// such a name keeps it to itself. A source that holds both blocks loses the block of the
// piece, since its removals would find the other one.
func (rs *resolver) yieldNames(n uint32) {
	type lie struct {
		p      place
		engine uint64
		by     uint32
	}
	var lies []lie
	r := rs.tree.lines.pieceAt(n)
	blocks := spanOf(0, r.len()) &^ rs.tree.lines.deadBlocks(r)
	for line, engine, named, by := n, r.engine(), r.named, r.by; ; {
		from, here := uint32(0), blocks
		next := r.side
		if line != n {
			d := rs.tree.lines.sideAt(line)
			engine, named, by, from, next = d.engine(), d.named, d.by, d.from(), d.next
			here = d.part(blocks)
		}
		for w := here &^ named; w != 0; w &= w - 1 {
			if i := trailing(w); engine[i] != 0 {
				lies = append(lies, lie{place{n, from + i}, engine[i], by})
				write64(&engine[i], 0)
				rs.tree.lanes.each[0].lane.names--
			}
		}
		if line = next; line == 0 {
			break
		}
	}
	head := r.head
	for _, l := range lies {
		if r.meta&isSide != 0 || r.head != head || l.p.at >= r.len() || rs.tree.lines.setOf(l.p) == 0 {
			continue // the owners lost the block by a name before
		}
		shared, _ := rs.names.findName(l.engine)
		if !shared.isNone() && rs.names.isGhost(shared) {
			rs.dropName(shared, l.engine)
			if rs.finder.addName(&source{name: Source(l.by - 1), lane: rs.tree.lanes.laneOf(0)}, l.p, l.engine, 1) {
				continue
			}
		}
		var users []*source
		rs.holders.eachHolder(rs.tree.lines.setOf(l.p), func(o *owner) {
			if rs.names.families.sameFamily(o.s.name, l.by) && !slices.Contains(users, o.s) {
				users = append(users, o.s)
			}
		})
		for _, s := range users {
			if s.private.ref(l.engine) == nil && !rs.tree.isHeldBy(s, shared) {
				rs.names.privates.addPrivate(s, l.engine, l.p)
				if shared, _ = rs.names.findName(l.engine); !shared.isNone() {
					rs.contestHash(s, l.engine, shared)
					rs.decideContest(l.engine)
				}
				continue
			}
			for _, o := range s.owners {
				rs.holders.removeHolder(o, l.p)
			}
		}
	}
}

// noteMention notes, while all blocks are named, whether a hash that a source mentions is why
// they are: the source does not hold the block.
func (f *finder) noteMention(s *source, p place) {
	if s == nil {
		f.tree.lanes.each[0].lane.foreign = true
	} else if p.isNone() || !f.tree.isHeldBy(s, p) {
		s.lane.foreign = true
	}
}

// reconsiderNaming goes back to names on demand after some thousand events that mentioned only what
// their sources hold, as when a follower came late and the engines have evicted what it missed.
// Each time it takes twice as many. All lanes are locked, and all blocks are named.
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

// beginNamingAll begins to give all blocks their entries.
func (rs *resolver) beginNamingAll() {
	if rs.names.naming == onDemand {
		rs.names.beginNaming()
		rs.namePages(8 * rs.names.perEvent.naming)
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

// namePages gives the blocks of some pages their entries.
func (rs *resolver) namePages(pages int) {
	for ; pages > 0 && rs.names.namedPages < len(rs.tree.lines.heads); pages-- {
		for m := rs.tree.lines.heads[rs.names.namedPages]; m != 0; m &= m - 1 {
			if rs.tree.lines.heads[rs.names.namedPages]&m&-m == 0 {
				continue // it has ended meanwhile
			}
			if n := uint32(rs.names.namedPages*pageLines + bits.TrailingZeros64(m)); !rs.tree.lines.pieceAt(n).loose() {
				rs.names.namePiece(&rs.tree.lanes.each[0].lane, n)
				rs.yieldNames(n)
			}
		}
		rs.names.namedPages++
	}
	if rs.names.namedPages < len(rs.tree.lines.heads) {
		return
	}
	rs.names.naming = allNamed
	for _, s := range rs.holders.sources {
		if s != nil {
			s.vague = vagueList{}
		}
	}
}

// hasVagueNames reports whether some blocks of a piece have engine hashes without an entry.
func (a *arena) hasVagueNames(r *piece, lo, hi uint32) bool {
	if r.loose() {
		return false
	}
	blocks := spanOf(lo, hi)
	if blocks&^r.named != 0 {
		return true
	}
	for line := r.side; line != 0; {
		d := a.sideAt(line)
		for w := blocks >> d.from() &^ d.named; w != 0; w &= w - 1 {
			if i := trailing(w); i < d.cap() && d.engine()[i] != 0 {
				return true
			}
		}
		line = d.next
	}
	return false
}

// findKnown returns the block that an engine hash means, and the line of the name. It is the
// block at hand if that has the name. While names get entries on demand it knows no other.
func (m *nameMap) findKnown(engine uint64, at place) (place, uint32) {
	if line := m.lineOf(at, engine); line != 0 {
		return at, line
	}
	if m.naming == onDemand {
		return place{}, 0
	}
	return m.findName(engine)
}
