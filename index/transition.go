package index

import (
	"sync/atomic"
	"unsafe"
)

// memo remembers transitions set x owner -> set. It forgets when two fall on one
// place, and a race loses one; what it says is always true, because a transition
// is one word and sets are immutable.
//
//	| from 24 | owner 15 | to 24 |     owners beyond 15 bits are not remembered
type memo []uint64

const memoOwners = 1 << 15

// newMemo returns a memo for a table of n slots: 4 KB to 256 KB.
func newMemo(n int) memo {
	size := 512
	for size < n/8 && size < 1<<15 {
		size *= 2
	}
	return make(memo, size)
}

// toggle returns the set that differs from another by one owner.
func (g *generation) toggle(from, owner uint32) uint32 {
	if owner >= memoOwners {
		return g.sets.toggle(from, owner)
	}
	key := uint64(from)<<15 | uint64(owner)
	at := &g.memo[key*spread>>32&uint64(len(g.memo)-1)]
	if v := atomic.LoadUint64(at); v>>24 == key && v != 0 {
		return uint32(v & (maxSets - 1))
	}
	to := g.sets.toggle(from, owner)
	atomic.StoreUint64(at, key<<24|uint64(to))
	return to
}

// step is the last transition of a call: a run of blocks with one set costs one.
type step struct {
	owner, from, to uint32
	used            bool
}

// add returns the set with the owner in.
func (s *step) add(g *generation, from, owner uint32) uint32 {
	if s.used && s.from == from && s.owner == owner {
		return s.to
	}
	to := from
	if !g.sets.has(from, owner) {
		to = g.toggle(from, owner)
	}
	*s = step{owner: owner, from: from, to: to, used: true}
	return to
}

// drop returns the set with the owner out.
func (s *step) drop(g *generation, from, owner uint32) uint32 {
	if s.used && s.from == from && s.owner == owner {
		return s.to
	}
	to := from
	if g.sets.has(from, owner) {
		to = g.toggle(from, owner)
	}
	*s = step{owner: owner, from: from, to: to, used: true}
	return to
}

func (m memo) bytes() int { return len(m) * int(unsafe.Sizeof(uint64(0))) }
