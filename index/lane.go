package index

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// An event that is ordinary is applied while its source's lane is locked, next to events of
// sources in other lanes. All other calls lock all lanes. Ordinary is what engines send
// nearly always: blocks with tokens behind a block whose name is found at once, and
// removals of blocks that are found at once. Each step looks whether it is ordinary before
// it changes anything that an answer shows. If not, the event locks all lanes and goes on
// there (storing.storeAlone).
//
// Next to others, a lane holds one piece at a time, by a bit of its version. It believes
// what it found before only after it has seen it again in the piece it holds. Below that
// it takes one of the small locks: of a segment, the sets, the lines, the ghosts.
// So no two lanes wait for each other.
//
//   - What an owner holds leaves only by an event of its source, or under all lanes.
//   - A block is made by who holds the piece of the block before it, so once. The first
//     block of a chain is made by who enters it into tree.firsts.
//   - A new piece is held from its beginning until its blocks have owners.
//   - A piece that ends leaves the tables, then its lines are free.

const (
	// lanes is twice the cores of a usual machine: of 16 sources whose events come at the
	// same time, 13 are in lanes of their own on average. An event that needs all lanes
	// takes all 32 locks, which costs half a microsecond as long as no other event holds
	// one of them; else it also waits for that event to end or to let go.
	lanes     = 32
	cacheLine = 64
)

// lane is a lock for the sources whose number ends alike, and what one event at a time
// needs.
type lane struct {
	mu      sync.Mutex
	piece   uint32 // the one that it holds, 0 for none
	foreign bool   // an event mentioned a block that its source does not hold
	clash   bool   // a name without an entry means two blocks
	events  uint32 // applied
	live    int    // blocks that got an owner, less those that lost it
	names   int    // engine hashes of blocks that got one, less those that lost it
	memo    []transition
	set     []uint64 // buffer of sets.makeSet
	body    *words   // buffer of namesFor
	ended   []uint64 // blocks without owners by now that had private names
	faded   int      // blocks that became ghosts since the last call of evictGhosts
	due     []uint32 // pieces that left the source's list of unindexed pieces and have no entries yet
}

// laneSet is the lanes of an index. Each has cache lines of its own, because a lane changes
// with every event.
type laneSet struct {
	laneBy  atomic.Pointer[[]uint8] // lanes by Owner
	waiters atomic.Int32            // calls that wait for all lanes until no event is half applied
	halves  atomic.Int32            // events that were begun next to others and wait for all lanes
	_       [cacheLine]byte
	each    [lanes]struct {
		lane lane
		_    [cacheLine - unsafe.Sizeof(lane{})%cacheLine]byte
	}
	alone bool // all lanes are locked
}

// lock locks all lanes, once no event is half applied: nothing else changes the index. It
// waits for such events by letting them have the lanes again and again, since an event that
// was begun next to others and needs all lanes for its rest must not see its work of before
// undone by a call that came between. waiters tells events that begin to do so alone at
// once, or a steady stream of them would keep the caller waiting.
func (x *Index) lock() {
	x.tree.lanes.waiters.Add(1)
	x.lockRest()
	for x.tree.lanes.halves.Load() > 0 {
		x.unlock()
		runtime.Gosched()
		x.lockRest()
	}
	x.tree.lanes.waiters.Add(-1)
}

// lockRest locks all lanes for the rest of an event. The locks are taken in one order, by
// everyone, so two callers do not wait for each other. What lanes have put off because it
// needs all of them is done here first, before the caller looks at anything.
func (x *Index) lockRest() {
	for i := range x.tree.lanes.each {
		x.tree.lanes.each[i].lane.mu.Lock()
	}
	x.tree.lanes.alone = true
	for i := range x.tree.lanes.each {
		x.names.endOnDemand(&x.tree.lanes.each[i].lane)
		x.names.privates.endPrivates(&x.tree.lanes.each[i].lane)
	}
}

// unlock lets all lanes go. A question may have ended naming on demand, and so have given a
// meaning to hashes under which blocks wait: they move now, while nothing else runs.
func (x *Index) unlock() {
	if placeOthers(x) { // a question may begin to name all blocks
		x.tree.places = nil
	}
	x.bounds.accountMemory()
	x.tree.lanes.alone = false
	for i := range x.tree.lanes.each {
		x.tree.lanes.each[i].lane.mu.Unlock()
	}
}

// sumLanes adds up what lanes count. All lanes are locked.
func (ls *laneSet) sumLanes(count func(*lane) int) (n int) {
	for i := range ls.each {
		n += count(&ls.each[i].lane)
	}
	return n
}

// liveBlocks returns the number of blocks with an owner, aliases that of engine hashes that
// all mean. All lanes are locked.
func (ls *laneSet) liveBlocks() int  { return ls.sumLanes(func(l *lane) int { return l.live }) }
func (ls *laneSet) sharedNames() int { return ls.sumLanes(func(l *lane) int { return l.names }) }

// countEvents returns the number of events applied so far, of all lanes. All lanes are
// locked.
func (ls *laneSet) countEvents() uint32 {
	return uint32(ls.sumLanes(func(l *lane) int { return int(l.events) }))
}

// isCalmFor reports whether nothing is under way that concerns all sources, and the source
// has nothing that is not ordinary. It is asked once an event, under the lane's lock. Each
// condition is about something that changes only while all lanes are locked, so the answer
// holds for the whole event.
func (rs *resolver) isCalmFor(s *source) bool {
	return rs.tree.lanes.waiters.Load() == 0 && rs.names.sweep.left == 0 && rs.names.naming != catchingUp && rs.tree.places == nil &&
		s.isSimple() && rs.isUncontested(s)
}

// leaveLane ends what an event did next to others, up to block i of n. It reports whether it
// has a rest, or something else is to be done, while all lanes are locked.
//
// The budget hears of new memory with every 64th event only: it is a word that all indexes
// share, and a store that changed it would take the cache line from all other cores.
func (rs *resolver) leaveLane(s *source, i, n int) bool {
	l := s.lane
	rs.finder.nameDuePieces(s)
	evicted := rs.bounds.evictGhosts(l)
	rs.tree.releasePiece(l)
	if i > 0 || n == 0 {
		if l.events++; l.events%64 == 0 {
			rs.bounds.accountMemory()
		}
	}
	if i > 0 && i < n {
		rs.tree.lanes.halves.Add(1)
	}
	return i < n || !evicted || l.clash || s.held == 0 || l.events%64 == 0 && rs.bounds.isWasteful() ||
		l.events%calmEvents == 0 && rs.names.naming == allNamed && !rs.names.full.always
}

// resumeAlone goes on with an event of n blocks at block i, while all lanes are locked.
func (rs *resolver) resumeAlone(l *lane, i, n int) {
	if i == 0 {
		l.events++
	}
	if i > 0 && i < n {
		rs.tree.lanes.halves.Add(-1)
	}
}

// laneOf returns the lane of a source.
func (ls *laneSet) laneOf(s Source) *lane { return &ls.each[s%lanes].lane }

// laneOfOwner returns the lane of an owner's source.
func (ls *laneSet) laneOfOwner(o Owner) *lane { return &ls.each[(*ls.laneBy.Load())[o]].lane }

// holdPiece returns a piece that no other lane changes until this one holds another.
//
// The bit is taken by a compare-and-swap on the version, so one word says both who writes
// and what readers may believe. It is held for a microsecond or so. spins gives the
// processor away if that takes longer, because then the holder has lost its own.
func (t *tree) holdPiece(l *lane, n uint32) *piece {
	r := t.lines.pieceAt(n)
	if t.lanes.alone || l.piece == n {
		return r
	}
	t.releasePiece(l)
	chance(l)
	for s := spins(0); ; s.pause() {
		if v := load32(&r.ver); v&(held|changing) == 0 && atomic.CompareAndSwapUint32(&r.ver, v, v|held) {
			l.piece = n
			return r
		}
	}
}

// holdNewPiece notes that a new piece is held, as beginPiece has set the bit. The one held
// before is released only now: that of the block before must not change until its child is
// in the tables.
func (t *tree) holdNewPiece(l *lane, n uint32) {
	if !t.lanes.alone {
		t.releasePiece(l)
		l.piece = n
	}
}

// releasePiece ends the hold of a lane.
func (t *tree) releasePiece(l *lane) {
	if l.piece == 0 {
		return
	}
	r := t.lines.pieceAt(l.piece)
	write32(&r.ver, load32(&r.ver)&^held)
	l.piece = 0
}

// A spin is a lock that is held for less than a microsecond. A sync.Mutex would do, but
// takes eight bytes and costs more where nobody waits, and there is one of these for each
// segment of the table of names.
type spin struct{ word uint32 }

// lock waits until the word is free. It looks before it tries to take it: a failed
// compare-and-swap would take the cache line from the holder.
func (s *spin) lock() {
	for n := spins(0); load32(&s.word) != 0 || !atomic.CompareAndSwapUint32(&s.word, 0, 1); {
		n.pause()
	}
}

// unlock lets the next one in.
func (s *spin) unlock() {
	write32(&s.word, 0)
	chance(nil)
}
