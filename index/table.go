package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// table is open addressing in segments that grow one at a time. An entry says where a key
// may be, and the piece there says whether it is:
//
//	| part of the mixed key, 28 bits | reference, 36 bits |      0 is free
//
// Nothing but the entries is needed to move them. Who changes a segment makes its version
// odd, which is its lock. A reader takes no lock: it believes that a key is absent if the
// version of the segment was even and the same before and after.
//
// Readers take no lock because a query probes it for each piece, on all cores at once, and
// even an uncontended lock would pass its cache line from core to core. Writers are rare
// beside that: one entry for a piece of a chain, not one for each block.
type table struct {
	bodies [1 << segBits]atomic.Pointer[segmentBody] // of the segments: nearly only read
	segs   [1 << segBits]segment
	size   atomic.Int64 // bytes of all bodies
}

// segment is what a lane changes of a segment; readers look at ver alone.
type segment struct {
	ver   uint32 // odd while entries change
	used  uint32 // entries
	added uint32 // since the sieve was made
}

// lock waits until nothing else changes the segment.
func (s *segment) lock() {
	chance(nil)
	for n := spins(0); ; n.pause() {
		if v := load32(&s.ver); v&1 == 0 && atomic.CompareAndSwapUint32(&s.ver, v, v+1) {
			return
		}
	}
}

// unlock makes the version even again, and another one than before.
func (s *segment) unlock() {
	write32(&s.ver, load32(&s.ver)+1)
	chance(nil)
}

// segmentBody is what readers see of a segment.
type segmentBody struct {
	entries []uint64
	sieve   []uint64 // 16 bits an entry: a clear bit says that its keys are absent, as most probes find
	shift   uint8    // 28 - log2(len(entries))
}

const (
	segBits   = 6
	refBits   = 36
	refMask   = 1<<refBits - 1
	tagBits   = 64 - refBits
	firstLog  = 3
	sieveLog  = 4 // log2 of the bits of the sieve for an entry
	wordsEach = 64 / (1 << sieveLog)
)

// splitKey returns the segment and the tag of a mixed key: six bits for the one, the next
// 28 for the other. Segments grow one at a time, so the longest pause of a store is that of
// copying a 64th of the table.
func splitKey(h uint64) (seg int, tag uint64) {
	return int(h >> (64 - segBits)), h << segBits >> refBits
}

// homeSlot returns the slot where the probe for a tag begins.
func (b *segmentBody) homeSlot(tag uint64) uint64 { return tag >> (b.shift & 63) }

// resizeSegment replaces the body of a locked segment by one of another size. Readers of
// the old body lose nothing: one that finds an entry there asks the piece, and one that finds
// none sees that the version has changed and looks again.
func (t *table) resizeSegment(seg, log int) {
	var old []uint64
	if b := t.bodies[seg].Load(); b != nil {
		old = b.entries
		t.size.Add(-b.bytes())
	}
	n := &segmentBody{entries: make([]uint64, 1<<log), shift: uint8(tagBits - log)}
	mask := uint64(len(n.entries) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		p := n.homeSlot(v >> refBits)
		for n.entries[p&mask] != 0 {
			p++
		}
		n.entries[p&mask] = v
	}
	n.buildSieve()
	t.segs[seg].added = 0
	t.size.Add(n.bytes())
	t.bodies[seg].Store(n)
}

// buildSieve fills the sieve from the entries. Most probes are for keys that are absent: a
// prompt's next block usually begins no piece. A bit of the sieve answers them with one
// load from a table a quarter as large as the entries.
func (b *segmentBody) buildSieve() {
	b.sieve = make([]uint64, (len(b.entries)+wordsEach-1)/wordsEach)
	for _, v := range b.entries {
		if v != 0 {
			b.markTag(v >> refBits)
		}
	}
}

// markTag sets the bit of a tag in the sieve. It is set before the entry is written, so no
// reader finds the entry and not the bit.
func (b *segmentBody) markTag(tag uint64) {
	at := tag >> ((b.shift - sieveLog) & 63)
	write64(&b.sieve[at>>6], b.sieve[at>>6]|1<<(at&63))
}

// isAbsent reports that no entry has a tag. It may be wrong only by saying no.
func (b *segmentBody) isAbsent(tag uint64) bool {
	at := tag >> ((b.shift - sieveLog) & 63)
	return load64(&b.sieve[at>>6])>>(at&63)&1 == 0
}

// isAbsent reports that no entry has the tag of a mixed key, which others do not insert
// meanwhile. It may be wrong only by saying no.
//
// It is asked for each new block, as none may have the key of a piece that is there.
func (t *table) isAbsent(h uint64) bool {
	seg, tag := splitKey(h)
	b := t.bodies[seg].Load()
	return b == nil || b.isAbsent(tag)
}

func (b *segmentBody) bytes() int64 { return int64(8*len(b.entries) + 8*len(b.sieve)) }

// findEntry returns the place of the first entry with a tag that matches, none if there is
// none.
//
// It is linear probing: the next slot is nearly always in the same cache line.
//
// It may find an entry whose block has moved or ended, and the caller's matches looks at
// the piece for that. It may also miss one while a removal pulls entries back, which the
// version tells the caller.
func (b *segmentBody) findEntry(tag uint64, matches func(position) bool) position {
	if b.isAbsent(tag) {
		return position{}
	}
	mask := uint64(len(b.entries) - 1)
	for p, k := b.homeSlot(tag)&mask, 0; k < len(b.entries); p, k = (p+1)&mask, k+1 {
		v := load64(&b.entries[p])
		if v == 0 {
			break
		}
		if q := decodePosition(v & refMask); v>>refBits == tag && matches(q) {
			return q
		}
	}
	return position{}
}

// findEntry looks a mixed key up, without a lock, and again if the segment changes
// meanwhile. matches tells entries of the key from others with its tag. Next to other
// lanes, the caller has to look at the piece again.
//
// If the segment changes meanwhile, a found entry is as good as any, since the piece is
// asked. Only that nothing was found must be true of one moment.
func (t *table) findEntry(h uint64, matches func(position) bool) position {
	seg, tag := splitKey(h)
	s := &t.segs[seg]
	for n := spins(0); ; n.pause() {
		ver := load32(&s.ver)
		b := t.bodies[seg].Load()
		if b == nil {
			return position{}
		}
		if q := b.findEntry(tag, matches); !q.isNone() || ver&1 == 0 && load32(&s.ver) == ver {
			return q
		}
	}
}

// insertEntry adds an entry for the block of a mixed key, which has none.
func (t *table) insertEntry(h uint64, p position) { t.claimEntry(h, p, nil) }

// claimEntry adds an entry unless there is one that taken says is of the key. Then it
// returns false. The look and the insertion are one step under the segment's lock: of two
// lanes that make the first block of one chain, one gets the entry.
//
// Bits of the sieve are only ever set. Entries that were removed leave theirs behind, so
// after as many insertions as there are slots the sieve is built again, or under churn it
// would say of every key that it may be there.
func (t *table) claimEntry(h uint64, at position, taken func(position) bool) bool {
	seg, tag := splitKey(h)
	s := &t.segs[seg]
	s.lock()
	defer s.unlock()
	b := t.bodies[seg].Load()
	if taken != nil && b != nil && !b.findEntry(tag, taken).isNone() {
		return false
	}
	if b == nil {
		t.resizeSegment(seg, firstLog)
		b = t.bodies[seg].Load()
	} else if int(s.used)*4 >= len(b.entries)*3 {
		t.resizeSegment(seg, bits.Len(uint(len(b.entries))))
		b = t.bodies[seg].Load()
	}
	s.used++
	if s.added++; int(s.added) > len(b.entries) {
		n := &segmentBody{entries: b.entries, shift: b.shift}
		n.buildSieve()
		s.added = 0
		t.bodies[seg].Store(n)
		b = n
	}
	b.markTag(tag)
	mask := uint64(len(b.entries) - 1)
	p := b.homeSlot(tag) & mask
	for b.entries[p] != 0 {
		p = (p + 1) & mask
	}
	write64(&b.entries[p], tag<<refBits|at.encode())
	return true
}

// removeEntry takes exactly this entry out, if it is there. It pulls back entries that had
// probed over the slot, so the table needs no tombstones. A reader that probes meanwhile
// may miss an entry that moves, and sees by the version that it must look again.
func (t *table) removeEntry(h uint64, at position) {
	seg, tag := splitKey(h)
	s := &t.segs[seg]
	s.lock()
	defer s.unlock()
	b := t.bodies[seg].Load()
	if b == nil {
		return
	}
	// Exactly this entry: others with its tag are of other blocks.
	want := tag<<refBits | at.encode()
	mask := uint64(len(b.entries) - 1)
	p := b.homeSlot(tag) & mask
	for b.entries[p] != want {
		if b.entries[p] == 0 {
			return
		}
		p = (p + 1) & mask
	}
	s.used--
	hole := p
	for {
		p = (p + 1) & mask
		v := b.entries[p]
		if v == 0 {
			break
		}
		// The entry probed over the hole, so it may stand there. It is written to the hole
		// before its old slot becomes the next hole: at each moment it is there at least
		// once. A reader between the two slots may still miss it, which the version tells.
		if (p-b.homeSlot(v>>refBits))&mask >= (p-hole)&mask {
			write64(&b.entries[hole], v)
			hole = p
		}
	}
	write64(&b.entries[hole], 0)
	if n := len(b.entries); n > 1<<firstLog && int(s.used)*8 < n {
		t.resizeSegment(seg, bits.Len(uint(n))-2)
	}
}

// clearAll gives the memory of an empty table back. Each segment is locked for that, so its
// version changes: a query that is probing the old body looks again, and finds none.
func (t *table) clearAll() {
	for i := range t.segs {
		s := &t.segs[i]
		s.lock()
		t.bodies[i].Store(nil)
		s.used, s.added = 0, 0
		s.unlock()
	}
	t.size.Store(0)
}

// countEntries returns the number of entries. All lanes are locked.
func (t *table) countEntries() (n int) {
	for i := range t.segs {
		n += int(t.segs[i].used)
	}
	return n
}

// prefetchEntry begins the load that a probe of a present key waits for, so that the caller
// can do something else meanwhile.
func (t *table) prefetchEntry(h uint64) {
	seg, tag := splitKey(h)
	if b := t.bodies[seg].Load(); b != nil {
		prefetch(unsafe.Pointer(&b.entries[b.homeSlot(tag)&uint64(len(b.entries)-1)]))
	}
}
