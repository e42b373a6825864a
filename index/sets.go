package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// sets interns owner sets: each distinct set exists once and is named by a number. A set
// is a bitmap over internal owner ids. It is counted by the intervals that name it and its
// number is used again after the last has gone. Number 0 is the empty set.
//
// A reader finds the words of a set through body, after it has read the number from a
// piece and before it looks at the version of the piece again: the piece names the set
// all that time, so the set is what it was.
type sets struct {
	body   atomic.Pointer[setBody]
	ref    []uint32
	hash   []uint64
	n      uint32   // numbers in use, with 0 and those in spare
	spare  []uint32 // numbers to use again
	intern []uint32 // numbers by hash, open addressing, at most half full
	memo   []transition
	buf    []uint64
}

// setBody is the words of all sets. It is replaced when it is too small.
type setBody struct {
	width int // words of a set
	bits  []uint64
	gen   []uint32 // by number: how often it was given up
}

// transition says that two sets differ by one owner.
type transition struct{ from, to, owner, fromGen, toGen uint32 }

const (
	maxSets     = 1 << 25
	memoEntries = 1 << 12
)

func (s *sets) init() {
	s.n = 1
	s.ref, s.hash = make([]uint32, 8), make([]uint64, 8)
	s.intern = make([]uint32, 16)
	s.buf = make([]uint64, 1)
	s.body.Store(&setBody{width: 1, bits: make([]uint64, 8), gen: make([]uint32, 8)})
}

// of returns the words of a set.
func (b *setBody) of(id uint32) []uint64 {
	at := int(id) * b.width
	return b.bits[at : at+b.width : at+b.width]
}

// has reports whether an owner is in a set. The index is locked.
func (s *sets) has(id, owner uint32) bool {
	b := s.body.Load()
	w := int(owner >> 6)
	return w < b.width && b.bits[int(id)*b.width+w]>>(owner&63)&1 != 0
}

// resize replaces the words by a body for more sets or more owners.
func (s *sets) resize(n, width int) {
	old := s.body.Load()
	b := &setBody{width: width, bits: make([]uint64, n*width), gen: make([]uint32, n)}
	copy(b.gen, old.gen)
	for i := range int(s.n) {
		copy(b.bits[i*width:], old.bits[i*old.width:(i+1)*old.width])
	}
	s.ref = append(s.ref, make([]uint32, n-len(s.ref))...)
	s.hash = append(s.hash, make([]uint64, n-len(s.hash))...)
	s.buf = make([]uint64, width)
	s.body.Store(b)
}

// widen makes room for an owner in the sets.
func (s *sets) widen(owner uint32) {
	if b := s.body.Load(); int(owner>>6) >= b.width {
		s.resize(len(b.gen), max(int(owner>>6)+1, b.width+b.width/2))
	}
}

// toggle returns the set that differs from another by one owner, with a reference for the
// caller.
func (s *sets) toggle(from, owner uint32) uint32 {
	if s.memo == nil {
		s.memo = make([]transition, 64)
	}
	b := s.body.Load()
	m := &s.memo[uint64(from*0x9e3779b1^owner*0x85ebca77)*0xd6e8feb8>>16&uint64(len(s.memo)-1)]
	if m.from == from && m.owner == owner && m.fromGen == b.gen[from] && m.toGen == b.gen[m.to] && (m.to != 0 || m.from != 0) {
		if m.to != 0 {
			s.ref[m.to]++
		}
		return m.to
	}
	to := s.make(from, owner)
	b = s.body.Load()
	*m = transition{from, to, owner, b.gen[from], b.gen[to]}
	return to
}

// single returns the set of one owner, with a reference for the caller.
func (s *sets) single(owner uint32) uint32 { return s.toggle(0, owner) }

// make is toggle without the memo.
func (s *sets) make(from, owner uint32) uint32 {
	b := s.body.Load()
	words := s.buf
	copy(words, b.of(from))
	words[owner>>6] ^= 1 << (owner & 63)
	some := uint64(0)
	for _, w := range words {
		some |= w
	}
	if some == 0 {
		return 0
	}
	return s.number(s.hash[from]^mix(uint64(owner)), words)
}

// number returns the set of some words, with a reference for the caller.
func (s *sets) number(h uint64, words []uint64) uint32 {
	b := s.body.Load()
	mask := uint64(len(s.intern) - 1)
	p := h & mask
probe:
	for ; s.intern[p] != 0; p = (p + 1) & mask {
		id := s.intern[p]
		if s.hash[id] != h {
			continue
		}
		for i, w := range b.of(id) {
			if w != words[i] {
				continue probe
			}
		}
		s.ref[id]++
		return id
	}
	var id uint32
	if k := len(s.spare); k > 0 {
		id = s.spare[k-1]
		s.spare = s.spare[:k-1]
	} else {
		if id = s.n; int(id) == len(b.gen) {
			if id >= maxSets/2 {
				panic("BUG: more owner sets than numbers")
			}
			s.resize(2*len(b.gen), b.width)
			b = s.body.Load()
			words = append([]uint64(nil), words...)
		}
		s.n++
	}
	for i := range b.width {
		store64(&b.bits[int(id)*b.width+i], words[i])
	}
	s.hash[id], s.ref[id] = h, 1
	s.intern[p] = id
	if live := int(s.n) - 1 - len(s.spare); 2*live > len(s.intern) {
		s.reintern(2 * len(s.intern))
		if len(s.memo) < memoEntries {
			s.memo = make([]transition, min(2*len(s.intern), memoEntries))
		}
	}
	return id
}

// reintern makes the table of numbers anew, for n entries.
func (s *sets) reintern(n int) {
	old := s.intern
	s.intern = make([]uint32, n)
	mask := uint64(n - 1)
	for _, id := range old {
		if id == 0 {
			continue
		}
		p := s.hash[id] & mask
		for s.intern[p] != 0 {
			p = (p + 1) & mask
		}
		s.intern[p] = id
	}
}

// hold adds a reference.
func (s *sets) hold(id uint32) {
	if id != 0 {
		s.ref[id]++
	}
}

// drop takes a reference away and forgets the set with the last.
func (s *sets) drop(id uint32) {
	if id == 0 {
		return
	}
	if s.ref[id]--; s.ref[id] != 0 {
		return
	}
	mask := uint64(len(s.intern) - 1)
	p := s.hash[id] & mask
	for s.intern[p] != id {
		p = (p + 1) & mask
	}
	hole := p
	for {
		p = (p + 1) & mask
		c := s.intern[p]
		if c == 0 {
			break
		}
		if (p-s.hash[c])&mask >= (p-hole)&mask {
			s.intern[hole] = c
			hole = p
		}
	}
	s.intern[hole] = 0
	store32(&s.body.Load().gen[id], s.body.Load().gen[id]+1)
	s.spare = append(s.spare, id)
}

// live returns the number of sets.
func (s *sets) live() int { return int(s.n) - 1 - len(s.spare) }

func (s *sets) bytes() int {
	b := s.body.Load()
	return 8*len(b.bits) + 4*len(b.gen) + 4*cap(s.ref) + 8*cap(s.hash) + 4*cap(s.spare) + 4*len(s.intern) + len(s.memo)*int(unsafe.Sizeof(transition{}))
}

// trim gives memory back when no set is left.
func (s *sets) trim() {
	if s.live() == 0 && s.n > 64 {
		width, gens := s.body.Load().width, s.body.Load().gen
		last := uint32(0)
		for _, g := range gens {
			last = max(last, g)
		}
		*s = sets{n: 1, ref: make([]uint32, 8), hash: make([]uint64, 8), intern: make([]uint32, 16), buf: make([]uint64, width)}
		b := &setBody{width: width, bits: make([]uint64, 8*width), gen: make([]uint32, 8)}
		for i := range b.gen {
			b.gen[i] = last + 1
		}
		s.body.Store(b)
	}
}

// ids maps internal owner ids to owners. It is replaced when it is too small.
type ids struct {
	owner   []uint32 // by internal id
	retired []uint64 // bitmap of ids that are in sets but in no answer
}

// living returns the words of a set without those of retired ids.
func (d *ids) living(word uint64, i int) uint64 { return word &^ load64(&d.retired[i]) }

func trailing(w uint64) uint32 { return uint32(bits.TrailingZeros64(w)) }
