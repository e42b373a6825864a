package index

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// An event that is ordinary is applied while its source's lane is locked, next to events of
// sources in other lanes. All other calls lock all lanes. Ordinary is what engines send
// nearly always: blocks with tokens behind a block whose name is found at once, and
// removals of blocks that are found at once. Each step looks whether it is ordinary before
// it changes anything that an answer shows. If not, the event locks all lanes and goes on there
// (storing.alone).
//
// Next to others, a lane holds one piece at a time, by a bit of its version. It believes
// what it found before only after it has seen it again in the piece it holds. Below that
// it takes one of the small locks: of a segment, the sets, the lines, the ghosts.
// So no two lanes wait for each other.
//
//   - What an owner holds leaves only by an event of its source, or under all lanes.
//   - A block is made by who holds the piece of the block before it, so once. The first
//     block of a chain is made by who enters it into Index.firsts.
//   - A new piece is held from its beginning until its blocks have owners.
//   - A piece that ends leaves the tables, then its lines are free.

const (
	// lanes is twice the cores of a usual machine: of 16 sources whose events come at the same time, 13 are in lanes of
	// their own on average. An event that needs all lanes takes all 32 locks, which costs half a microsecond as long
	// as no other event holds one of them; else it also waits for that event to end or to let go.
	lanes     = 32
	cacheLine = 64
)

// lane is a lock for the sources whose number ends alike, and what one event at a time needs.
type lane struct {
	mu      sync.Mutex
	piece   uint32 // the one that it holds, 0 for none
	foreign bool   // an event mentioned a block that its source does not hold
	clash   bool   // a name without an entry means two blocks
	events  uint32 // applied
	live    int    // blocks that got an owner, less those that lost it
	names   int    // engine hashes of blocks that got one, less those that lost it
	memo    []transition
	set     []uint64 // buffer of sets.make
	body    *words   // buffer of namesFor
	ended   []uint64 // blocks without owners by now that had private names
	faded   int      // blocks that became ghosts since the last call of evict
	due     []uint32 // pieces that left the source's vague list and have no entries yet
}

// lock locks all lanes, when no event is half applied: nothing else changes the index.
func (x *Index) lock() {
	x.waiters.Add(1)
	x.lockRest()
	for x.halves.Load() > 0 {
		x.unlock()
		runtime.Gosched()
		x.lockRest()
	}
	x.waiters.Add(-1)
}

// lockRest locks all lanes for the rest of an event.
func (x *Index) lockRest() {
	for i := range x.lanes {
		x.lanes[i].mu.Lock()
	}
	x.alone = true
	for i := range x.lanes {
		x.endOnDemand(&x.lanes[i].lane)
		x.endPrivates(&x.lanes[i].lane)
	}
}

func (x *Index) unlock() {
	if x.placeOthers() { // a question may begin to name all blocks
		x.places = nil
	}
	x.account()
	x.alone = false
	for i := range x.lanes {
		x.lanes[i].mu.Unlock()
	}
}

// sum adds up what lanes count. All lanes are locked.
func (x *Index) sum(count func(*lane) int) (n int) {
	for i := range x.lanes {
		n += count(&x.lanes[i].lane)
	}
	return n
}

// live returns the number of blocks with an owner, aliases that of engine hashes that all mean. All lanes
// are locked.
func (x *Index) live() int    { return x.sum(func(l *lane) int { return l.live }) }
func (x *Index) aliases() int { return x.sum(func(l *lane) int { return l.names }) }

// events returns the number of events applied so far, of all lanes. All lanes are locked.
func (x *Index) events() uint32 { return uint32(x.sum(func(l *lane) int { return int(l.events) })) }

// calm reports whether nothing is under way that concerns all sources, and the source has
// nothing that is not ordinary.
func (x *Index) calm(s *source) bool {
	return x.waiters.Load() == 0 && x.sweep.left == 0 && x.naming != catchingUp && x.places == nil &&
		s.simple() && x.uncontested(s)
}

// leaves ends what an event did next to others, up to block i of n. It reports whether it has a
// rest, or something else is to be done, while all lanes are locked.
func (x *Index) leaves(s *source, i, n int) bool {
	l := s.lane
	x.nameDue(s)
	evicted := x.evict(l)
	x.release(l)
	if i > 0 || n == 0 {
		if l.events++; l.events%64 == 0 {
			x.account()
		}
	}
	if i > 0 && i < n {
		x.halves.Add(1)
	}
	return i < n || !evicted || l.clash || s.held == 0 || l.events%64 == 0 && x.wasteful() ||
		l.events%calmEvents == 0 && x.naming == allNamed && !x.full.always
}

// resume goes on with an event of n blocks at block i, while all lanes are locked.
func (x *Index) resume(l *lane, i, n int) {
	if i == 0 {
		l.events++
	}
	if i > 0 && i < n {
		x.halves.Add(-1)
	}
}

// laneOf returns the lane of a source.
func (x *Index) laneOf(s Source) *lane { return &x.lanes[s%lanes].lane }

// laneOfOwner returns the lane of an owner's source.
func (x *Index) laneOfOwner(o Owner) *lane { return &x.lanes[(*x.laneBy.Load())[o]].lane }

// hold returns a piece that no other lane changes until this one holds another.
func (x *Index) hold(l *lane, n uint32) *piece {
	r := x.at(n)
	if x.alone || l.piece == n {
		return r
	}
	x.release(l)
	chance(l)
	for s := spins(0); ; s.pause() {
		if v := load32(&r.ver); v&(held|changing) == 0 && atomic.CompareAndSwapUint32(&r.ver, v, v|held) {
			l.piece = n
			return r
		}
	}
}

// holds notes that a new piece is held. The one held before is released.
func (x *Index) holds(l *lane, n uint32) {
	if !x.alone {
		x.release(l)
		l.piece = n
	}
}

// release ends the hold of a lane.
func (x *Index) release(l *lane) {
	if l.piece == 0 {
		return
	}
	r := x.at(l.piece)
	write32(&r.ver, load32(&r.ver)&^held)
	l.piece = 0
}

// spin is a lock that is held for less than a microsecond.
type spin struct{ word uint32 }

func (s *spin) lock() {
	for n := spins(0); load32(&s.word) != 0 || !atomic.CompareAndSwapUint32(&s.word, 0, 1); {
		n.pause()
	}
}

func (s *spin) unlock() {
	write32(&s.word, 0)
	chance(nil)
}
