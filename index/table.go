package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// table maps keys to owner sets. It is open-addressed by buckets of one cache
// line, holds no pointers, and is read and written without locks.
//
//	bucket  | key word child | key word child | key word child | key word child |  64 bytes
//	word    | set id, 24 bits | tag, 8 bits |
//	labels  | label | label | ...              one a slot, where they are kept
//
// A slot's key is claimed once and never changes; a key nobody holds keeps its
// slot until the next generation. All fields are read and written atomically.
type table struct {
	buckets []bucket
	labels  []uint64     // by slot, nil unless kept; 0 is none
	used    atomic.Int64 // slots claimed or reserved
	limit   int64        // most slots that may be claimed: one bucket is never full
}

type bucket [bucketSlots]slot

type slot struct {
	key   uint64
	word  uint32
	child uint32 // leads to a key that hangs below this one; see closure.go
}

const (
	bucketSlots = 4
	tagMask     = 1<<8 - 1
	setShift    = 8
	maxSets     = 1 << 24
	// zeroKey stands for the key 0, which marks a free slot.
	zeroKey = 0x7c15_9e37_79b9_7f4b
	// spread turns keys that are small or sequential numbers into high bits.
	spread = 0x9e3779b97f4a7c15
	// fullest and emptiest are the loads, in percent, at which a table is left
	// and begun. The gap is what pays for a rebuild.
	fullest, emptiest = 84, 54
	// roomiest is emptiest for tables of fewer keys than roomy, some 80 MB.
	roomiest, roomy = 40, 1 << 21
	// tightest is emptiest for more aliases than roomy.
	tightest = 68
)

// normal replaces the one key a table cannot hold.
func normal(key uint64) uint64 {
	if key == 0 {
		return zeroKey
	}
	return key
}

// bucketsFor returns how many buckets n keys take at a load in percent.
func bucketsFor(n, load int) int { return n*100/(load*bucketSlots) + 2 }

// newTable returns a table of so many buckets, at least two.
func newTable(n int, labels bool) *table {
	t := &table{buckets: make([]bucket, n)}
	large(unsafe.Pointer(unsafe.SliceData(t.buckets)), uintptr(t.bytes()))
	if labels {
		t.labels = make([]uint64, n*bucketSlots)
		large(unsafe.Pointer(unsafe.SliceData(t.labels)), uintptr(8*len(t.labels)))
	}
	t.limit = int64(len(t.buckets)) * bucketSlots * fullest / 100
	return t
}

func (t *table) home(key uint64) int {
	hi, _ := bits.Mul64(key*spread, uint64(len(t.buckets)))
	return int(hi)
}

// reserve sets n slots aside, so that claims cannot fail.
func (t *table) reserve(n int64) bool {
	if t.used.Add(n) <= t.limit {
		return true
	}
	t.used.Add(-n)
	return false
}

// find returns the slot of a key, nil if it has none.
func (t *table) find(key uint64) *slot {
	for i := t.home(key); ; {
		b := &t.buckets[i]
		for j := range b {
			switch atomic.LoadUint64(&b[j].key) {
			case key:
				return &b[j]
			case 0:
				return nil
			}
		}
		if i++; i == len(t.buckets) {
			i = 0
		}
	}
}

// lookup returns the set of a key, 0 if nobody holds it.
func (t *table) lookup(key uint64) uint32 {
	if s := t.find(key); s != nil {
		return atomic.LoadUint32(&s.word) >> setShift
	}
	return 0
}

// claim returns the slot of a key, a new one where there was none. The caller has
// reserved it.
func (t *table) claim(key uint64) (s *slot, fresh bool) {
	for i := t.home(key); ; {
		b := &t.buckets[i]
		for j := range b {
			k := atomic.LoadUint64(&b[j].key)
			if k == 0 {
				if atomic.CompareAndSwapUint64(&b[j].key, 0, key) {
					return &b[j], true
				}
				k = atomic.LoadUint64(&b[j].key)
			}
			if k == key {
				return &b[j], false
			}
		}
		if i++; i == len(t.buckets) {
			i = 0
		}
	}
}

// put makes the slot of a key that has none, in a table nobody else sees.
func (t *table) put(key uint64) *slot {
	for i := t.home(key); ; {
		b := &t.buckets[i]
		for j := range b {
			if b[j].key == 0 {
				b[j].key = key
				return &b[j]
			}
		}
		if i++; i == len(t.buckets) {
			i = 0
		}
	}
}

// prefetch begins the loads that a probe of each key waits for.
func (t *table) prefetch(keys []uint64) {
	for _, k := range keys {
		prefetch(unsafe.Pointer(&t.buckets[t.home(normal(k))]))
	}
}

// prefetchLabels does the same for the labels of keys about to be stored.
func (t *table) prefetchLabels(keys []uint64) {
	if t.labels == nil {
		return
	}
	for _, k := range keys {
		prefetch(unsafe.Pointer(&t.labels[t.home(normal(k))*bucketSlots]))
	}
}

// number is the position of a slot plus one; at is the reverse.
func (t *table) number(s *slot) uint32 {
	return uint32((uintptr(unsafe.Pointer(s))-uintptr(unsafe.Pointer(unsafe.SliceData(t.buckets))))/unsafe.Sizeof(slot{})) + 1
}

func (t *table) at(number uint32) *slot {
	return &t.buckets[(number-1)/bucketSlots][(number-1)%bucketSlots]
}

func (t *table) bytes() int { return len(t.buckets)*int(unsafe.Sizeof(bucket{})) + 8*len(t.labels) }
