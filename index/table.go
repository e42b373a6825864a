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
type table struct {
	bodies [1 << segBits]atomic.Pointer[body] // of the segments: nearly only read
	segs   [1 << segBits]segment
	size   atomic.Int64 // bytes of all bodies
}

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

func (s *segment) unlock() {
	write32(&s.ver, load32(&s.ver)+1)
	chance(nil)
}

// body is what readers see of a segment.
type body struct {
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

// split returns the segment and the tag of a mixed key.
func split(h uint64) (seg int, tag uint64) { return int(h >> (64 - segBits)), h << segBits >> refBits }

func (b *body) home(tag uint64) uint64 { return tag >> (b.shift & 63) }

func (t *table) resize(seg, log int) {
	var old []uint64
	if b := t.bodies[seg].Load(); b != nil {
		old = b.entries
		t.size.Add(-b.bytes())
	}
	n := &body{entries: make([]uint64, 1<<log), shift: uint8(tagBits - log)}
	mask := uint64(len(n.entries) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		p := n.home(v >> refBits)
		for n.entries[p&mask] != 0 {
			p++
		}
		n.entries[p&mask] = v
	}
	n.sift()
	t.segs[seg].added = 0
	t.size.Add(n.bytes())
	t.bodies[seg].Store(n)
}

// sift builds the sieve from the entries.
func (b *body) sift() {
	b.sieve = make([]uint64, (len(b.entries)+wordsEach-1)/wordsEach)
	for _, v := range b.entries {
		if v != 0 {
			b.mark(v >> refBits)
		}
	}
}

func (b *body) mark(tag uint64) {
	at := tag >> ((b.shift - sieveLog) & 63)
	write64(&b.sieve[at>>6], b.sieve[at>>6]|1<<(at&63))
}

// absent reports that no entry has a tag. It may be wrong only by saying no.
func (b *body) absent(tag uint64) bool {
	at := tag >> ((b.shift - sieveLog) & 63)
	return load64(&b.sieve[at>>6])>>(at&63)&1 == 0
}

// absent reports that no entry has the tag of a mixed key, which others do not insert meanwhile.
// It may be wrong only by saying no.
func (t *table) absent(h uint64) bool {
	seg, tag := split(h)
	b := t.bodies[seg].Load()
	return b == nil || b.absent(tag)
}

func (b *body) bytes() int64 { return int64(8*len(b.entries) + 8*len(b.sieve)) }

// find returns the place of the first entry with a tag that matches, none if there is none.
func (b *body) find(tag uint64, matches func(place) bool) place {
	if b.absent(tag) {
		return place{}
	}
	mask := uint64(len(b.entries) - 1)
	for p, k := b.home(tag)&mask, 0; k < len(b.entries); p, k = (p+1)&mask, k+1 {
		v := load64(&b.entries[p])
		if v == 0 {
			break
		}
		if q := placeOf(v & refMask); v>>refBits == tag && matches(q) {
			return q
		}
	}
	return place{}
}

// find looks a mixed key up, without a lock, and again if the segment changes meanwhile. matches tells entries of
// the key from others with its tag. Next to other lanes, the caller has to look at the piece again.
func (t *table) find(h uint64, matches func(place) bool) place {
	seg, tag := split(h)
	s := &t.segs[seg]
	for n := spins(0); ; n.pause() {
		ver := load32(&s.ver)
		b := t.bodies[seg].Load()
		if b == nil {
			return place{}
		}
		if q := b.find(tag, matches); !q.isNone() || ver&1 == 0 && load32(&s.ver) == ver {
			return q
		}
	}
}

// insert adds an entry for the block of a mixed key, which has none.
func (t *table) insert(h uint64, p place) { t.claim(h, p, nil) }

// claim adds an entry unless there is one that taken says is of the key. Then it returns false.
func (t *table) claim(h uint64, at place, taken func(place) bool) bool {
	seg, tag := split(h)
	s := &t.segs[seg]
	s.lock()
	defer s.unlock()
	b := t.bodies[seg].Load()
	if taken != nil && b != nil && !b.find(tag, taken).isNone() {
		return false
	}
	if b == nil {
		t.resize(seg, firstLog)
		b = t.bodies[seg].Load()
	} else if int(s.used)*4 >= len(b.entries)*3 {
		t.resize(seg, bits.Len(uint(len(b.entries))))
		b = t.bodies[seg].Load()
	}
	s.used++
	if s.added++; int(s.added) > len(b.entries) {
		n := &body{entries: b.entries, shift: b.shift}
		n.sift()
		s.added = 0
		t.bodies[seg].Store(n)
		b = n
	}
	b.mark(tag)
	mask := uint64(len(b.entries) - 1)
	p := b.home(tag) & mask
	for b.entries[p] != 0 {
		p = (p + 1) & mask
	}
	write64(&b.entries[p], tag<<refBits|at.ref())
	return true
}

// remove takes exactly this entry out, if it is there.
func (t *table) remove(h uint64, at place) {
	seg, tag := split(h)
	s := &t.segs[seg]
	s.lock()
	defer s.unlock()
	b := t.bodies[seg].Load()
	if b == nil {
		return
	}
	want := tag<<refBits | at.ref()
	mask := uint64(len(b.entries) - 1)
	p := b.home(tag) & mask
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
		if (p-b.home(v>>refBits))&mask >= (p-hole)&mask {
			write64(&b.entries[hole], v)
			hole = p
		}
	}
	write64(&b.entries[hole], 0)
	if n := len(b.entries); n > 1<<firstLog && int(s.used)*8 < n {
		t.resize(seg, bits.Len(uint(n))-2)
	}
}

// clear gives the memory of an empty table back.
func (t *table) clear() {
	for i := range t.segs {
		s := &t.segs[i]
		s.lock()
		t.bodies[i].Store(nil)
		s.used, s.added = 0, 0
		s.unlock()
	}
	t.size.Store(0)
}

// len returns the number of entries. All lanes are locked.
func (t *table) len() (n int) {
	for i := range t.segs {
		n += int(t.segs[i].used)
	}
	return n
}

// prefetchEntry begins the load that a probe of a present key waits for.
func (t *table) prefetchEntry(h uint64) {
	seg, tag := split(h)
	if b := t.bodies[seg].Load(); b != nil {
		prefetch(unsafe.Pointer(&b.entries[b.home(tag)&uint64(len(b.entries)-1)]))
	}
}
