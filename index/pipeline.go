package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Every probe misses the caches, and a miss costs as much as all the work on a
// block. So calls with many blocks look ahead, a group at a time: while one is
// worked on, the lines that the next ones need are on their way, each a step
// further: alias, slot, slot of the first child.

// ahead is how many hashes make a group, about as many as there are misses a core
// has in flight.
const ahead = 16

// group returns the n-th group from the one that begins at i.
func group(hashes []uint64, i, n int) []uint64 {
	begin := min(i+n*ahead, len(hashes))
	return hashes[begin:min(begin+ahead, len(hashes))]
}

// advance looks ahead for the group of keys that begins at i.
func (t *table) advance(keys []uint64, i int) {
	if i == 0 {
		t.prefetch(group(keys, i, 0))
	}
	t.prefetch(group(keys, i, 1))
}

// advance looks ahead for the group of engine hashes that begins at i: for their
// slots, through aliases if named, and with below for the slots of their children.
func (h *hand) advance(engines []uint64, i int, named, below bool) {
	if !named {
		h.t.advance(engines, i)
		if below {
			h.below(group(engines, i, 0), false)
		}
		return
	}
	if i == 0 {
		h.a.prefetch(group(engines, i, 0))
		h.a.prefetch(group(engines, i, 1))
		h.follow(group(engines, i, 0))
	}
	h.a.prefetch(group(engines, i, 2))
	h.follow(group(engines, i, 1))
	if below {
		h.below(group(engines, i, 0), true)
	}
	if h.s.raw {
		h.t.advance(engines, i)
	}
}

// follow prefetches the slots of the keys that engine hashes stand for.
func (h *hand) follow(engines []uint64) {
	for _, e := range engines {
		if key := h.a.get(normal(e)); key != 0 {
			prefetch(unsafe.Pointer(&h.t.buckets[h.t.home(key)]))
		}
	}
}

// below prefetches what a look at the first child of each block waits for. A child
// that is removed just before its parent needs none.
func (h *hand) below(engines []uint64, named bool) {
	before := uint32(0)
	for _, e := range engines {
		key := normal(e)
		if named {
			if k := h.a.get(key); k != 0 {
				key = k
			}
		}
		if s := h.t.find(key); s != nil {
			if c := atomic.LoadUint32(&s.child); c != 0 && c != before {
				i, _ := bits.Mul64(uint64(c&^manyBit-1)<<linkShift, uint64(len(h.t.buckets)))
				prefetch(unsafe.Pointer(&h.t.buckets[i]))
			}
		}
		before = linkTo(key)
	}
}
