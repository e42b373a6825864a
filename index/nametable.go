package index

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// nameTable says which block an engine hash may mean, where the hash has an entry (see
// unindexed.go). An entry lies in the bucket of its hash, or in one behind it, before the
// first bucket with a free slot. A segment is locked during each call. One that is too
// small, or not small enough, dies, and others take its place in the directory.
//
//	directory  upper bits of the mixed hash -> segment, which several may share
//	segment    buckets in the order of the hashes, some 12,000 entries at most
//	bucket     8 entries in a cache line
//	entry      | upper bits of the mixed hash, 28 | reference, 36 |   0 is free, 1 was used
//
// Nothing but the entries is needed to move them. The block of an entry says whether it
// has the engine hash.
//
// It is locked by segments, unlike the tables of keys, because only events use it and a few
// queries by names: a lock of a few words costs less than versions that every reader would
// have to compare. The locks are held for a probe, or for the copy of one segment. A bucket
// with a slot that was never used ends the probe. Slots that were used go on, as an entry
// may have been put behind them while they were full.
type nameTable struct {
	dir  atomic.Pointer[nameDir]
	_    [cacheLine]byte // what follows changes with each entry
	n    atomic.Int64    // entries
	size atomic.Int64    // bytes of all buckets
	mu   spin            // guards changes of the directory
}

// nameDir is the segments by the upper bits of a mixed hash.
type nameDir struct {
	segs  []atomic.Pointer[nameSegment] // 1 << depth
	depth uint
}

// nameSegment is the entries of hashes with the same upper bits. It is replaced as a whole,
// so a lane that waits for its lock must look whether it is dead afterwards.
type nameSegment struct {
	mu      spin
	dead    bool // others have taken its place
	buckets []bucket
	depth   uint // upper bits that all its hashes have in common
	probe   int  // full buckets that an insert passes before it rebuilds the segment: longProbe, or more (copySegment)
}

// bucket is a cache line of entries: one miss finds all entries that may be of a hash.
type bucket [8]uint64

const (
	nameRefBits = 36
	nameRefMask = 1<<nameRefBits - 1
	nameTagBits = 64 - nameRefBits
	nameTagMask = 1<<nameTagBits - 1

	usedEntry = 1 // of line 0, which has no block

	// longProbe is how many full buckets an insert passes in nearly all segments.
	longProbe   = 16
	segmentFull = 12 << 10 // entries of a segment that splits
	maxDepth    = 20
)

// homeBucket returns the bucket where the probe for a tag begins. It scales the tag to the
// number of buckets and does not mask it, so a segment may have any number of them, and its
// entries are in the order of their hashes.
func (s *nameSegment) homeBucket(tag uint64) int {
	return int((tag << s.depth & nameTagMask) * uint64(len(s.buckets)) >> nameTagBits)
}

// segmentOf returns the segment of a mixed hash, which may be dead.
func (d *nameDir) segmentOf(h uint64) *nameSegment {
	return d.segs[h>>((64-d.depth)&63)&uint64(len(d.segs)-1)].Load()
}

// lockSegment returns the segment of a mixed hash, locked, and the upper bits of the hash;
// nil in an empty table. A segment that died between the look at the directory and its lock
// has been replaced, so the directory is asked again.
func (t *nameTable) lockSegment(h uint64) (*nameSegment, uint64) {
	for {
		d := t.dir.Load()
		if d == nil {
			return nil, 0
		}
		s := d.segmentOf(h)
		if s.mu.lock(); !s.dead {
			return s, h >> nameRefBits
		}
		s.mu.unlock()
	}
}

// nextBucket returns the bucket behind another one.
func (s *nameSegment) nextBucket(b int) int {
	if b++; b < len(s.buckets) {
		return b
	}
	return 0
}

// appendRefs appends the references of entries that may have a mixed hash. 28 bits of 64
// are compared, so a wrong one among them is rare; the caller asks the block. They are
// copied out, because the block must not be looked at under the segment's lock: that look
// can end in the removal of the very entry.
func (t *nameTable) appendRefs(h uint64, dst []uint64) []uint64 {
	s, tag := t.lockSegment(h)
	if s == nil {
		return dst
	}
	defer s.mu.unlock()
	for b, k := s.homeBucket(tag), 0; k < len(s.buckets); b, k = s.nextBucket(b), k+1 {
		free := false
		for _, v := range &s.buckets[b] {
			if v>>nameRefBits == tag && v > usedEntry {
				dst = append(dst, v&nameRefMask)
			}
			free = free || v == 0
		}
		if free {
			break
		}
	}
	return dst
}

// findEntry returns the bucket of exactly this entry and its slot there, nil if there is
// none.
func (s *nameSegment) findEntry(tag, ref uint64) (*bucket, int) {
	want := tag<<nameRefBits | ref
	for b, k := s.homeBucket(tag), 0; k < len(s.buckets); b, k = s.nextBucket(b), k+1 {
		free := false
		for i, v := range &s.buckets[b] {
			if v == want {
				return &s.buckets[b], i
			}
			free = free || v == 0
		}
		if free {
			return nil, 0
		}
	}
	return nil, 0
}

// hasEntry reports whether the table has exactly this entry.
func (t *nameTable) hasEntry(h, ref uint64) bool {
	s, tag := t.lockSegment(h)
	if s == nil {
		return false
	}
	defer s.mu.unlock()
	b, _ := s.findEntry(tag, ref)
	return b != nil
}

// addEntry adds an entry unless one with the same tag may be of the same hash, and reports
// whether it did.
func (t *nameTable) addEntry(h, ref uint64) bool { return t.placeEntry(h, ref, false) }

// insertEntry adds an entry. The hash has none with this reference.
func (t *nameTable) insertEntry(h, ref uint64) { t.placeEntry(h, ref, true) }

// placeEntry adds an entry. Unless always is set, it returns false if there is one with the
// same tag, which may be of the same hash. It takes the first slot that is free or was
// used, but must look on to the end of the probe before: an entry with the tag may stand
// behind it.
//
// The segment may be replaced in between. Then everything begins again, in the segment that
// has the hash now.
func (t *nameTable) placeEntry(h, ref uint64, always bool) bool {
	s, tag := t.lockSegment(h)
	if s == nil {
		t.initialize()
		s, tag = t.lockSegment(h)
	}
	for {
		// The first slot that could take the entry is remembered while the probe goes on to
		// a bucket with a free one. An entry with the same tag may stand there.
		var slot *uint64
		full := 0
		for b, k := s.homeBucket(tag), 0; k < len(s.buckets); b, k = s.nextBucket(b), k+1 {
			free := false
			for i := range &s.buckets[b] {
				switch v := s.buckets[b][i]; {
				case v <= usedEntry:
					if free = free || v == 0; slot == nil {
						slot = &s.buckets[b][i]
					}
				case v>>nameRefBits == tag && !always:
					s.mu.unlock()
					return false
				}
			}
			if free {
				break
			}
			full++
		}
		// A long run of full buckets is a segment that is too small, or full of used slots.
		if full <= s.probe && slot != nil && full < len(s.buckets) {
			*slot = tag<<nameRefBits | ref
			s.mu.unlock()
			t.n.Add(1)
			return true
		}
		t.rebuildSegment(s, tag)
		s, tag = t.lockSegment(h)
	}
}

// removeEntry takes exactly this entry out and reports whether it was there. The slot is
// marked as used, not as free, or probes that had passed the full bucket would end too
// early. If the bucket has a free slot already, none has passed it.
func (t *nameTable) removeEntry(h, ref uint64) bool {
	s, tag := t.lockSegment(h)
	if s == nil {
		return false
	}
	defer s.mu.unlock()
	b, i := s.findEntry(tag, ref)
	if b == nil {
		return false
	}
	b[i] = usedEntry
	for _, v := range b {
		if v == 0 {
			b[i] = 0
			break
		}
	}
	t.n.Add(-1)
	return true
}

// prefetchBucket begins the load that a probe waits for.
func (t *nameTable) prefetchBucket(h uint64) {
	if d := t.dir.Load(); d != nil {
		s := d.segmentOf(h)
		prefetch(unsafe.Pointer(&s.buckets[s.homeBucket(h>>nameRefBits)]))
	}
}

// initialize makes the first segment, unless there is one.
func (t *nameTable) initialize() {
	t.mu.lock()
	defer t.mu.unlock()
	if t.dir.Load() == nil {
		d := &nameDir{segs: make([]atomic.Pointer[nameSegment], 1)}
		d.segs[0].Store(&nameSegment{buckets: t.allocBuckets(1), probe: longProbe})
		t.dir.Store(d)
	}
}

// allocBuckets returns free buckets and counts their memory.
func (t *nameTable) allocBuckets(n int) []bucket {
	t.size.Add(int64(n) * lineBytes)
	return makeBuckets(n)
}

// freeBuckets gives buckets back and takes their memory off. No lane may be looking at
// them: the segment is locked, and dead.
func (t *nameTable) freeBuckets(b []bucket) {
	t.size.Add(-int64(len(b)) * lineBytes)
	freeBuckets(b)
}

// rebuildSegment replaces a locked segment of a tag by a larger one, a smaller one, one
// without used slots, or two. A segment that is not full for its entries only loses the
// used slots: growth because of those would leave two slots of three empty under churn. The
// segment is dead then, and not locked.
func (t *nameTable) rebuildSegment(s *nameSegment, tag uint64) {
	live, used := 0, 0
	for i := range s.buckets {
		for _, v := range &s.buckets[i] {
			if v > usedEntry {
				live++
			} else if v == usedEntry {
				used++
			}
		}
	}
	// Segments split before they get large, so no rebuild copies more than some 100 KB
	// while its lock is held.
	if live >= segmentFull && s.depth < maxDepth {
		t.replaceSegment(s, tag, t.copyHalf(s, live, 0), t.copyHalf(s, live, 1))
		return
	}
	// Else the segment stays one, and gets as many buckets as its entries need.
	n := len(s.buckets)
	switch slots := n * len(bucket{}); {
	// More than 70 % are entries, or a run of buckets is full although none was used. An
	// eighth more is enough, as segments grow on their own: doubling would leave half of
	// the memory empty.
	case used == 0 || live*20 > slots*14:
		n += max(1, n/8)
	case live*2 < slots:
		n = max(1, live*2/len(bucket{}))
	}
	fresh := t.copySegment(s, s.depth, live, n, nil)
	t.replaceSegment(s, tag, fresh, fresh)
}

// copyHalf returns a segment with those entries of another one whose next upper bit is
// side.
func (t *nameTable) copyHalf(s *nameSegment, live int, side uint64) *nameSegment {
	return t.copySegment(s, s.depth+1, live, live*25/32/len(bucket{})+1, func(tag uint64) bool {
		return tag>>(nameTagBits-s.depth-1)&1 == side
	})
}

// copySegment returns a segment of n buckets, or more, with the entries of another one, of
// which there are live, that want accepts. Entries are in the order of their hashes, so it reads one array and writes
// another from front to back, and needs no hash function.
//
// A fill can fail although there is room enough: many hashes may begin at one bucket. More
// buckets spread them, unless their tags are equal: no fill succeeds with 137 of those. The
// key of mix is random, so they do not come together by chance and are hard to choose, but
// nothing proves that they never come, and they must not take all memory then. So a segment
// gets at most some four slots an entry. With that many it takes all entries, however long
// the run is, and inserts pass all full buckets from then on.
func (t *nameTable) copySegment(s *nameSegment, depth uint, live, n int, want func(tag uint64) bool) *nameSegment {
	most := live/2 + 1
	for n = min(n, most); ; n = min(n+max(1, n/4), most) {
		fresh := &nameSegment{buckets: t.allocBuckets(n), depth: depth, probe: longProbe}
		if n == most {
			fresh.probe = max(n, longProbe)
		}
		if fresh.fillFrom(s.buckets, want) {
			return fresh
		}
		t.freeBuckets(fresh.buckets)
	}
}

// replaceSegment puts two segments in the place of a locked one of a tag, which dies: its
// lower and its upper half. They may be the same.
//
// The directory is locked for a few stores, and segments one at a time, always before the
// directory. A lane that waits for the dead one gets its lock at the end, sees that it is
// dead, and asks the directory, which names the new ones by then.
func (t *nameTable) replaceSegment(s *nameSegment, tag uint64, lower, upper *nameSegment) {
	t.mu.lock()
	d := t.dir.Load()
	if lower.depth > d.depth {
		// The directory doubles: each segment stands there twice. Readers may go on with
		// the old one, as the segments that die say so.
		wide := &nameDir{segs: make([]atomic.Pointer[nameSegment], 2*len(d.segs)), depth: d.depth + 1}
		for i := range d.segs {
			wide.segs[2*i].Store(d.segs[i].Load())
			wide.segs[2*i+1].Store(d.segs[i].Load())
		}
		d = wide
	}
	first, n := int(tag>>(nameTagBits-s.depth)<<(d.depth-s.depth)), 1<<(d.depth-s.depth)
	for i := range n {
		if 2*i < n {
			d.segs[first+i].Store(lower)
		} else {
			d.segs[first+i].Store(upper)
		}
	}
	t.dir.Store(d)
	t.mu.unlock()
	s.dead = true
	t.freeBuckets(s.buckets)
	s.mu.unlock()
}

// fillFrom moves the entries that want accepts into an empty segment, in their order. It
// reports false if they do not fit well: a run of full buckets would make each probe there
// long, and the next insertion would rebuild the segment again.
//
// counts says how many slots of a bucket are taken. No entry was removed from the new
// segment, so the taken ones come first and need not be looked at.
func (s *nameSegment) fillFrom(from []bucket, want func(tag uint64) bool) bool {
	counts := make([]uint8, len(s.buckets))
	for i := range from {
		for _, v := range &from[i] {
			tag := v >> nameRefBits
			if v <= usedEntry || want != nil && !want(tag) {
				continue
			}
			b, full := s.homeBucket(tag), 0
			for ; counts[b] == uint8(len(bucket{})); b = s.nextBucket(b) {
				if full++; full > s.probe || full == len(s.buckets) {
					return false
				}
			}
			s.buckets[b][counts[b]] = v
			counts[b]++
		}
	}
	return true
}

// clearAll gives the memory of the table back. All lanes are locked; queries may look at
// it. The segments die under their own locks, so that a query which waits for one asks the
// directory again and finds it empty.
//
// No query has an entry in hand when its segment dies: entries are copied out under the
// lock, and the block that one leads to is asked.
func (t *nameTable) clearAll() {
	dead := slices.Collect(t.eachSegment)
	t.dir.Store(nil)
	for _, s := range dead {
		s.mu.lock()
		s.dead = true
		t.freeBuckets(s.buckets)
		s.mu.unlock()
	}
	t.n.Store(0)
}

// eachSegment yields each segment once.
func (t *nameTable) eachSegment(yield func(*nameSegment) bool) {
	d := t.dir.Load()
	if d == nil {
		return
	}
	for i := 0; i < len(d.segs); {
		s := d.segs[i].Load()
		if !yield(s) {
			return
		}
		i += 1 << (d.depth - s.depth)
	}
}

// offHeapBytes returns how much of its size lies outside the Go heap.
func (t *nameTable) offHeapBytes() (n int) {
	for s := range t.eachSegment {
		if len(s.buckets) >= offHeapBuckets {
			n += len(s.buckets) * lineBytes
		}
	}
	return n
}
