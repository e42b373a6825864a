package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// aliases maps engine hashes to keys, for all sources of an index: publishers
// that hash alike share an entry. It is built like table: four entries a cache
// line, claimed once, no pointers, no locks.
type aliases struct {
	buckets [][4]alias
	by      []uint32     // by entry, nil unless kept: the source that taught it, plus one
	used    atomic.Int64 // entries claimed or reserved
	limit   int64
}

type alias struct{ engine, key uint64 } // key 0: claimed, not yet known

// newAliases returns a table of n buckets, none or at least two.
func newAliases(n int, by bool) *aliases {
	a := &aliases{}
	if n > 0 {
		a.buckets = make([][4]alias, n)
		large(unsafe.Pointer(unsafe.SliceData(a.buckets)), uintptr(a.bytes()))
		a.limit = int64(len(a.buckets)) * 4 * fullest / 100
		if by {
			a.by = make([]uint32, 4*n)
			large(unsafe.Pointer(unsafe.SliceData(a.by)), uintptr(4*len(a.by)))
		}
	}
	return a
}

func (a *aliases) home(engine uint64) int {
	hi, _ := bits.Mul64(engine*spread, uint64(len(a.buckets)))
	return int(hi)
}

func (a *aliases) reserve(n int64) bool {
	if a.used.Add(n) <= a.limit {
		return true
	}
	a.used.Add(-n)
	return false
}

// get returns the key of an engine hash, 0 if there is none.
func (a *aliases) get(engine uint64) uint64 {
	if len(a.buckets) == 0 {
		return 0
	}
	for i := a.home(engine); ; {
		b := &a.buckets[i]
		for j := range b {
			switch atomic.LoadUint64(&b[j].engine) {
			case engine:
				return atomic.LoadUint64(&b[j].key)
			case 0:
				return 0
			}
		}
		if i++; i == len(a.buckets) {
			i = 0
		}
	}
}

// claim returns the entry of an engine hash. The caller has reserved it.
func (a *aliases) claim(engine uint64) (e *alias, fresh bool) {
	for i := a.home(engine); ; {
		b := &a.buckets[i]
		for j := range b {
			k := atomic.LoadUint64(&b[j].engine)
			if k == 0 {
				if atomic.CompareAndSwapUint64(&b[j].engine, 0, engine) {
					return &b[j], true
				}
				k = atomic.LoadUint64(&b[j].engine)
			}
			if k == engine {
				return &b[j], false
			}
		}
		if i++; i == len(a.buckets) {
			i = 0
		}
	}
}

// put makes the entry of an engine hash that has none, in aliases nobody else sees.
func (a *aliases) put(entry alias, by uint32) {
	for i := a.home(entry.engine); ; {
		b := &a.buckets[i]
		for j := range b {
			if b[j].engine == 0 {
				b[j] = entry
				if a.by != nil {
					a.by[4*i+j] = by
				}
				return
			}
		}
		if i++; i == len(a.buckets) {
			i = 0
		}
	}
}

// entry returns the entry of an engine hash, nil if there is none.
func (a *aliases) entry(engine uint64) *alias {
	if len(a.buckets) == 0 {
		return nil
	}
	for i := a.home(engine); ; {
		b := &a.buckets[i]
		for j := range b {
			switch atomic.LoadUint64(&b[j].engine) {
			case engine:
				return &b[j]
			case 0:
				return nil
			}
		}
		if i++; i == len(a.buckets) {
			i = 0
		}
	}
}

// prefetch begins the loads that a probe of each engine hash waits for.
func (a *aliases) prefetch(engines []uint64) {
	if len(a.buckets) == 0 {
		return
	}
	for _, e := range engines {
		prefetch(unsafe.Pointer(&a.buckets[a.home(normal(e))]))
	}
}

// prefetchTaught does the same for who taught each.
func (a *aliases) prefetchTaught(engines []uint64) {
	if a.by == nil {
		return
	}
	for _, e := range engines {
		prefetch(unsafe.Pointer(&a.by[4*a.home(normal(e))]))
	}
}

// taught returns who taught an entry, nil where that is not kept.
func (a *aliases) taught(e *alias) *uint32 {
	if a.by == nil {
		return nil
	}
	return &a.by[a.index(e)]
}

// index returns the position of an entry in a.by.
func (a *aliases) index(e *alias) uintptr {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(a.buckets)))
	return (uintptr(unsafe.Pointer(e)) - first) / unsafe.Sizeof(alias{})
}

func (a *aliases) bytes() int { return len(a.buckets)*int(unsafe.Sizeof([4]alias{})) + 4*len(a.by) }
