package index

import "unsafe"

// nameTable says which block an engine hash may mean, where the hash has an entry (see
// vague.go). An entry lies in the bucket of its hash, or in one behind it, before the first
// bucket with a free slot. The index is locked during all calls.
//
//	directory  upper bits of the mixed hash -> segment, which several may share
//	segment    buckets in the order of the hashes, some 12,000 entries at most
//	bucket     8 entries in a cache line
//	entry      | upper bits of the mixed hash, 28 | reference, 36 |   0 is free, 1 was used
//
// Nothing but the entries is needed to move them. The block of an entry says whether it
// has the engine hash.
type nameTable struct {
	dir   []*nameSegment // 1 << depth
	depth uint
	n     int // entries
	size  int // bytes of all buckets
	buf   []uint8
}

type nameSegment struct {
	buckets []bucket
	depth   uint // upper bits that all its hashes have in common
}

type bucket [8]uint64

const (
	nameRefBits = 36
	nameRefMask = 1<<nameRefBits - 1
	nameTagBits = 64 - nameRefBits
	nameTagMask = 1<<nameTagBits - 1

	usedEntry = 1 // of line 0, which has no block

	// longProbe is how many full buckets an insert passes before it rebuilds the segment.
	longProbe   = 4
	segmentFull = 12 << 10 // entries of a segment that splits
	maxDepth    = 20
)

func (s *nameSegment) home(tag uint64) int {
	return int((tag << s.depth & nameTagMask) * uint64(len(s.buckets)) >> nameTagBits)
}

// segment returns the segment of a mixed hash and its upper bits, nil in an empty table.
func (t *nameTable) segment(h uint64) (*nameSegment, uint64) {
	if t.dir == nil {
		return nil, 0
	}
	return t.dir[h>>((64-t.depth)&63)&uint64(len(t.dir)-1)], h >> nameRefBits
}

// next returns the bucket behind another one.
func (s *nameSegment) next(b int) int {
	if b++; b < len(s.buckets) {
		return b
	}
	return 0
}

// each calls f for the references of entries that may have a mixed hash until f returns
// false.
func (t *nameTable) each(h uint64, f func(ref uint64) bool) {
	s, tag := t.segment(h)
	if s == nil {
		return
	}
	for b, k := s.home(tag), 0; k < len(s.buckets); b, k = s.next(b), k+1 {
		free := false
		for _, v := range &s.buckets[b] {
			if v>>nameRefBits == tag && v > usedEntry && !f(v&nameRefMask) {
				return
			}
			free = free || v == 0
		}
		if free {
			return
		}
	}
}

// find returns the bucket of exactly this entry and its slot there, nil if there is none.
func (t *nameTable) find(h, ref uint64) (*bucket, int) {
	s, tag := t.segment(h)
	if s == nil {
		return nil, 0
	}
	want := tag<<nameRefBits | ref
	for b, k := s.home(tag), 0; k < len(s.buckets); b, k = s.next(b), k+1 {
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

// add adds an entry unless one with the same tag may be of the same hash, and reports
// whether it did.
func (t *nameTable) add(h, ref uint64) bool { return t.place(h, ref, false) }

// insert adds an entry. The hash has none with this reference.
func (t *nameTable) insert(h, ref uint64) { t.place(h, ref, true) }

func (t *nameTable) place(h, ref uint64, always bool) bool {
	s, tag := t.segment(h)
	if s == nil {
		t.init()
		s, tag = t.segment(h)
	}
	for {
		var slot *uint64
		full := 0
		for b, k := s.home(tag), 0; k < len(s.buckets); b, k = s.next(b), k+1 {
			free := false
			for i := range &s.buckets[b] {
				switch v := s.buckets[b][i]; {
				case v <= usedEntry:
					if free = free || v == 0; slot == nil {
						slot = &s.buckets[b][i]
					}
				case v>>nameRefBits == tag && !always:
					return false
				}
			}
			if free {
				break
			}
			full++
		}
		if full <= longProbe && slot != nil && full < len(s.buckets) {
			*slot = tag<<nameRefBits | ref
			t.n++
			return true
		}
		t.rebuild(s, tag)
		s, tag = t.segment(h)
	}
}

// remove takes exactly this entry out and reports whether it was there.
func (t *nameTable) remove(h, ref uint64) bool {
	b, i := t.find(h, ref)
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
	t.n--
	return true
}

// prefetch begins the load that a probe waits for.
func (t *nameTable) prefetch(h uint64) {
	if s, tag := t.segment(h); s != nil {
		prefetch(unsafe.Pointer(&s.buckets[s.home(tag)]))
	}
}

func (t *nameTable) init() {
	t.dir, t.depth = []*nameSegment{{buckets: t.alloc(1)}}, 0
}

func (t *nameTable) alloc(n int) []bucket {
	t.size += n * lineBytes
	return makeBuckets(n)
}

// counts returns a buffer for n buckets.
func (t *nameTable) counts(n int) []uint8 {
	if n > len(t.buf) {
		t.buf = make([]uint8, n+n/4)
	}
	return t.buf[:n]
}

func (t *nameTable) free(b []bucket) {
	t.size -= len(b) * lineBytes
	freeBuckets(b)
}

// rebuild replaces the segment of a tag by a larger one, a smaller one, one without used
// slots, or two.
func (t *nameTable) rebuild(s *nameSegment, tag uint64) {
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
	if live >= segmentFull && s.depth < maxDepth {
		t.split(s, tag, live)
		return
	}
	n := len(s.buckets)
	switch slots := n * len(bucket{}); {
	case live*2 < slots && used*4 > slots:
		n = max(1, live*3/2/len(bucket{}))
	case used*8 < slots || live*5 > slots*4:
		n += max(1, n/2)
	}
	for {
		fresh := &nameSegment{buckets: t.alloc(n), depth: s.depth}
		if fresh.fill(s.buckets, t.counts(n), nil) {
			t.free(s.buckets)
			*s = *fresh
			return
		}
		t.free(fresh.buckets)
		n += max(1, n/4)
	}
}

// fill moves the entries that want accepts into an empty segment, in their order. It
// reports false if they do not fit well.
func (s *nameSegment) fill(from []bucket, counts []uint8, want func(tag uint64) bool) bool {
	counts = counts[:len(s.buckets)]
	clear(counts)
	for i := range from {
		for _, v := range &from[i] {
			tag := v >> nameRefBits
			if v <= usedEntry || want != nil && !want(tag) {
				continue
			}
			b, full := s.home(tag), 0
			for ; counts[b] == uint8(len(bucket{})); b = s.next(b) {
				if full++; full > longProbe || full == len(s.buckets) {
					return false
				}
			}
			s.buckets[b][counts[b]] = v
			counts[b]++
		}
	}
	return true
}

// split makes two segments of one.
func (t *nameTable) split(s *nameSegment, tag uint64, live int) {
	if s.depth == t.depth {
		dir := make([]*nameSegment, 2*len(t.dir))
		for i, s := range t.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		t.dir = dir
		t.depth++
	}
	depth := s.depth + 1
	var half [2]*nameSegment
	for side := range half {
		for n := live*25/32/len(bucket{}) + 1; half[side] == nil; n += n/4 + 1 {
			h := &nameSegment{buckets: t.alloc(n), depth: depth}
			if h.fill(s.buckets, t.counts(n), func(tag uint64) bool { return int(tag>>(nameTagBits-depth)&1) == side }) {
				half[side] = h
			} else {
				t.free(h.buckets)
			}
		}
	}
	t.free(s.buckets)
	first := int(tag >> (nameTagBits - s.depth) << (t.depth - s.depth))
	each := 1 << (t.depth - depth)
	for i := range each {
		t.dir[first+i], t.dir[first+each+i] = half[0], half[1]
	}
}

// clear gives the memory of the table back.
func (t *nameTable) clear() {
	for s := range t.segments {
		t.free(s.buckets)
	}
	*t = nameTable{}
}

// segments yields each segment once.
func (t *nameTable) segments(yield func(*nameSegment) bool) {
	for i := 0; i < len(t.dir); {
		s := t.dir[i]
		if !yield(s) {
			return
		}
		i += 1 << (t.depth - s.depth)
	}
}

// offHeap returns how much of its size lies outside the Go heap.
func (t *nameTable) offHeap() (n int) {
	for s := range t.segments {
		if len(s.buckets) >= offHeapBuckets {
			n += len(s.buckets) * lineBytes
		}
	}
	return n
}
