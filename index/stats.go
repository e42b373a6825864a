package index

import (
	"math"
	"unsafe"
)

// Stats are the sizes of an index.
type Stats struct {
	Blocks      int // blocks with an owner; with Clear and DropSource exact after the sweep
	Memberships int // pairs (owner, block)
	Aliases     int // engine hashes whose key is known, once for all that hash alike
	Raw         int // memberships under an engine hash, less those whose key others taught
	Orphans     int // links that wait for their parent, over all sources
	Sets        int // distinct owner sets
	Bytes       int // memory of all tables and lists, without the allocator's rounding
	AliasBytes  int // of them for names; those in pieces count as pieces
	SetBytes    int // of them for owner sets
	Ghosts      int // blocks without an owner that are kept for their names
	GhostBytes  int // of Bytes for them, as Options.Ghosts counts
}

// sweepable is the number of pages that Stats sweeps to count exactly: a million blocks.
const sweepable = 1 << 13

// Stats returns the sizes. It costs the number of sources and owners, not blocks.
//
// In a small index it finishes the sweep first, so that a cleared owner's blocks are gone
// from the numbers at once. A large one would hold up all events for that, so its numbers
// count blocks of retired owners until the sweep has come by. A trim that is under way is
// finished as well: Bytes would otherwise depend on how many events came since it began.
func (x *Index) Stats() Stats {
	x.lock()
	defer x.unlock()
	if len(x.tree.lines.heads) <= sweepable || x.holders.countMemberships() == 0 {
		for x.names.sweep.left > 0 {
			x.names.sweepPages(sweepable)
		}
	}
	x.maintain(nil)
	if x.tree.lines.trimmed > 0 {
		x.bounds.giveMemoryBack(math.MaxInt)
	}
	m := memoryOf(x)
	st := Stats{
		Blocks:     x.tree.lanes.liveBlocks(),
		Aliases:    x.tree.lanes.sharedNames(),
		Sets:       x.tree.sets.countSets(),
		Bytes:      m.Pieces + m.Lists + m.Heads + m.Loose + m.Names + m.Sets + m.Waiting + m.Owners,
		AliasBytes: m.Names,
		SetBytes:   m.Sets,
		Ghosts:     x.names.countGhosts(),
		GhostBytes: x.names.countGhosts() * ghostBytes,
	}
	for _, s := range x.holders.sources {
		if s == nil {
			continue
		}
		st.Memberships += s.held
		st.Aliases += s.private.len()
		st.Orphans += s.room.used
		for _, o := range s.owners {
			st.Raw += o.raw
		}
	}
	return st
}

// Memory is what an index takes of the system, in bytes by kind.
type Memory struct {
	Pieces  int // lines of pieces and intervals, in use or spare
	Lists   int // bitmaps of lines and lists of spare ones
	Heads   int // tables of first blocks
	Loose   int // table of blocks without a place in a chain
	Names   int // engine hashes: their table, and those of single sources
	Sets    int // owner sets
	Waiting int // links that wait for their parent
	Owners  int // sources and owners, with their extra copies
	// Bytes of Pieces and Names outside the Go heap.
	PiecesOffHeap, NamesOffHeap int
}

// Memory returns the account of the index. Its cost grows with the number of sources and owners, not of blocks.
func (x *Index) Memory() Memory {
	x.lock()
	defer x.unlock()
	return memoryOf(x)
}

// memoryOf returns the account of an index whose lanes are all locked.
//
// It says what the system has given, free lines included, as it is compared with the
// resident memory of the process. The bounds of memory (tableBytes) count only lines in
// use, as a store may use the free ones before it needs new memory. So the two differ, and
// by most after many evictions.
//
// Maps are counted by what they take on average, everything else by its capacity.
func memoryOf(x *Index) Memory {
	d := x.tree.ids.Load()
	m := Memory{
		Pieces: (int(x.tree.lines.next.Load()) - int(x.tree.lines.back.Load())*pageLines) * lineBytes,
		Heads:  int(x.tree.firsts.size.Load() + x.tree.heads.size.Load()),
		Loose:  int(x.tree.loose.size.Load()),
		Names:  int(x.names.table.size.Load()) + 200*len(x.names.privates.of),
		Sets:   x.tree.sets.bytes(),
		Owners: int(unsafe.Sizeof(*x)) + 4*len(d.owner) + 8*len(d.retired) + 8*cap(x.holders.sources) + 8*cap(x.holders.owners) +
			4*cap(x.names.families.of) + x.tree.identities.bytes(),
	}
	for i := range x.tree.lanes.each { // what they remember of sets
		l := &x.tree.lanes.each[i].lane
		m.Sets += len(l.memo)*int(unsafe.Sizeof(transition{})) + 8*cap(l.set) + 4*cap(l.due)
	}
	// The arena counts its lines, which are in Pieces already, together with its lists.
	m.Lists = x.tree.lines.bytes() - m.Pieces + x.names.ghosts.bytes()
	if offHeap {
		m.PiecesOffHeap, m.NamesOffHeap = m.Pieces, x.names.table.offHeapBytes()
	}
	for _, s := range x.holders.sources {
		if s == nil {
			continue
		}
		m.Names += s.private.bytes()
		m.Waiting += s.room.bytes()
		m.Owners += int(unsafe.Sizeof(*s)) + 8*cap(s.owners) + 8*cap(s.unindexed.pieces) + int(unsafe.Sizeof(settledBlock{}))*cap(s.work)
		for _, o := range s.owners {
			m.Owners += int(unsafe.Sizeof(*o)) + o.copies.bytes()
		}
	}
	return m
}

// Holdings are how many blocks owners have, and how many of them wait, at one moment.
//
// Owners and sources that were dropped keep their places in the lists, with 0: ids are
// never used again, so a caller may index by them without asking who is still there.
type Holdings struct {
	Owners  []int // by Owner
	Waiting []int // for their parent, by Source
	Untold  []int // for tokens: known by an engine hash alone, by Source; an estimate
}

// Of returns the blocks of an owner, 0 of one that came after the Holdings.
func (h *Holdings) Of(o Owner) int {
	if int(o) >= len(h.Owners) {
		return 0
	}
	return h.Owners[o]
}

// WaitingOf returns the blocks of a source that wait for their parent, 0 of one that came
// after the Holdings.
func (h *Holdings) WaitingOf(s Source) int {
	if int(s) >= len(h.Waiting) {
		return 0
	}
	return h.Waiting[s]
}

// UntoldOf returns about how many blocks of a source are known by an engine hash alone and do not wait for a parent,
// 0 of one that came after the Holdings.
func (h *Holdings) UntoldOf(s Source) int {
	if int(s) >= len(h.Untold) {
		return 0
	}
	return h.Untold[s]
}

// Holdings returns what all owners and sources have. It takes the lock once, whatever their
// number, so the numbers are of one moment. One call of BlocksOf for each owner would stop
// all lanes as often, and a block that moved between two of the calls would be counted
// twice or not at all.
func (x *Index) Holdings() Holdings {
	x.lock()
	defer x.unlock()
	sources := len(x.holders.sources)
	h := Holdings{Owners: make([]int, len(x.holders.owners)), Waiting: make([]int, sources), Untold: make([]int, sources)}
	for i, o := range x.holders.owners {
		if o != nil {
			h.Owners[i] = o.digest.Blocks
		}
	}
	for i, s := range x.holders.sources {
		if s != nil {
			h.Waiting[i], h.Untold[i] = s.room.decided, s.untold()
		}
	}
	return h
}
