package index

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// sets interns owner sets: each distinct set exists once, is immutable and is
// named by a small number, which is never used again within a generation. Id 0 is
// the empty set. A set is a bitmap over internal owner ids, from the first word
// with a member to the last.
//
// Records and words lie in chunks that double, so neither ever moves: what an id
// names can be read while others are added.
//
//	id  -> record{hash, at, first, n}  -> words[at : at+n]
type sets struct {
	recs  [20]unsafe.Pointer // chunk k holds ids of k+firstBits significant bits
	words [24]unsafe.Pointer
	table atomic.Pointer[[]uint32] // ids by hash, open addressing, at most half full

	mu    sync.Mutex // guards adding
	n     uint32     // ids in use, with 0
	top   uint64     // words in use
	bytes atomic.Int64
}

type record struct {
	hash  uint64 // exclusive or of the members' mixes
	at    uint32 // first word
	first uint16 // index of the first word in the bitmap
	n     uint16 // words
}

const (
	recBits  = 5 // the first chunk has 32 records
	wordBits = 5
)

func newSets() *sets {
	s := &sets{n: 1, top: 1}
	tab := make([]uint32, 64)
	s.table.Store(&tab)
	s.chunk(s.recs[:], 0, recBits, unsafe.Sizeof(record{}))
	return s
}

// chunkOf returns the chunk of a position and the offset in it.
func chunkOf(pos uint64, first uint) (k int, off uint64) {
	k = bits.Len64(pos >> first)
	if k == 0 {
		return 0, pos
	}
	return k, pos - 1<<(first+uint(k)-1)
}

// chunk makes a chunk where there is none.
func (s *sets) chunk(of []unsafe.Pointer, k int, first uint, size uintptr) {
	if of[k] != nil {
		return
	}
	n := uintptr(1) << first
	if k > 0 {
		n <<= k - 1
	}
	words := make([]uint64, n*size/8)
	s.bytes.Add(int64(8 * len(words)))
	atomic.StorePointer(&of[k], unsafe.Pointer(unsafe.SliceData(words)))
}

func (s *sets) rec(id uint32) *record {
	k, off := chunkOf(uint64(id), recBits)
	return (*record)(unsafe.Add(atomic.LoadPointer(&s.recs[k]), off*uint64(unsafe.Sizeof(record{}))))
}

func (s *sets) bitmap(r *record) []uint64 {
	k, off := chunkOf(uint64(r.at), wordBits)
	return unsafe.Slice((*uint64)(unsafe.Add(atomic.LoadPointer(&s.words[k]), off*8)), r.n)
}

// of returns the words of a set and the index of the first.
func (s *sets) of(id uint32) (words []uint64, first int) {
	if id == 0 {
		return nil, 0
	}
	r := s.rec(id)
	return s.bitmap(r), int(r.first)
}

// has reports whether an owner is in a set.
func (s *sets) has(id, owner uint32) bool {
	if id == 0 {
		return false
	}
	r := s.rec(id)
	i := owner>>6 - uint32(r.first)
	return i < uint32(r.n) && s.bitmap(r)[i]>>(owner&63)&1 != 0
}

// wordAt returns one word of a bitmap that begins at word first.
func wordAt(words []uint64, first, i int) uint64 {
	if i -= first; uint(i) < uint(len(words)) {
		return words[i]
	}
	return 0
}

// toggle finds or makes the set that differs from another by one owner.
func (s *sets) toggle(from, owner uint32) uint32 {
	h := mix(uint64(owner))
	if from != 0 {
		h ^= s.rec(from).hash
	}
	base, first := s.of(from)
	w, bit := int(owner>>6), uint64(1)<<(owner&63)
	if len(base) == 1 && first == w && base[0] == bit {
		return 0
	}
	if id := s.search(h, base, first, w, bit); id != 0 {
		return id
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.search(h, base, first, w, bit); id != 0 {
		return id
	}
	lo, hi := first, first+len(base)
	if len(base) == 0 {
		lo, hi = w, w+1
	}
	lo, hi = min(lo, w), max(hi, w+1)
	get := func(i int) uint64 {
		v := wordAt(base, first, i)
		if i == w {
			v ^= bit
		}
		return v
	}
	for get(lo) == 0 {
		lo++
	}
	for get(hi-1) == 0 {
		hi--
	}
	id, words := s.add(h, lo, hi-lo)
	for i := range words {
		words[i] = get(lo + i)
	}
	s.publish(h, id)
	return id
}

// search returns the set with a hash that equals base with one bit turned.
func (s *sets) search(h uint64, base []uint64, first, w int, bit uint64) uint32 {
	tab := *s.table.Load()
	mask := uint64(len(tab) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		id := atomic.LoadUint32(&tab[i])
		if id == 0 {
			return 0
		}
		if r := s.rec(id); r.hash == h && turned(s.bitmap(r), int(r.first), base, first, w, bit) {
			return id
		}
	}
}

// turned reports whether a is b with one bit of word w turned.
func turned(a []uint64, fa int, b []uint64, fb, w int, bit uint64) bool {
	lo, hi := min(fa, w), max(fa+len(a), w+1)
	if len(b) > 0 {
		lo, hi = min(lo, fb), max(hi, fb+len(b))
	}
	for i := lo; i < hi; i++ {
		v := wordAt(b, fb, i)
		if i == w {
			v ^= bit
		}
		if v != wordAt(a, fa, i) {
			return false
		}
	}
	return true
}

// intern finds or makes the set with these words, none of the outer ones zero.
// Only the maker of a generation calls it.
func (s *sets) intern(words []uint64, first int) uint32 {
	var h uint64
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			h ^= mix(uint64((first+i)<<6 + bits.TrailingZeros64(w)))
		}
	}
	if id := s.search(h, words, first, first, 0); id != 0 {
		return id
	}
	id, to := s.add(h, first, len(words))
	copy(to, words)
	s.publish(h, id)
	return id
}

// add makes a record with room for n words.
func (s *sets) add(h uint64, first, n int) (uint32, []uint64) {
	if s.n >= maxSets {
		panic("BUG: more owner sets than ids; a generation is replaced before")
	}
	k, off := chunkOf(s.top, wordBits)
	for off+uint64(n) > 1<<(wordBits+uint(max(k-1, 0))) { // a set lies in one chunk
		s.top = 1 << (wordBits + uint(k))
		k, off = chunkOf(s.top, wordBits)
	}
	s.chunk(s.words[:], k, wordBits, 8)
	id := s.n
	k, _ = chunkOf(uint64(id), recBits)
	s.chunk(s.recs[:], k, recBits, unsafe.Sizeof(record{}))
	r := s.rec(id)
	*r = record{hash: h, at: uint32(s.top), first: uint16(first), n: uint16(n)}
	s.top += uint64(n)
	atomic.StoreUint32(&s.n, id+1)
	return id, s.bitmap(r)
}

// publish makes a set findable.
func (s *sets) publish(h uint64, id uint32) {
	tab := *s.table.Load()
	if 2*int(s.n) > len(tab) {
		tab = make([]uint32, 2*len(tab))
		for old := uint32(1); old < s.n; old++ {
			if old != id {
				enter(tab, s.rec(old).hash, old)
			}
		}
		enter(tab, h, id)
		s.table.Store(&tab)
		return
	}
	enter(tab, h, id)
}

func enter(tab []uint32, h uint64, id uint32) {
	mask := uint64(len(tab) - 1)
	i := h & mask
	for tab[i] != 0 { // under mu: nobody else writes
		i = (i + 1) & mask
	}
	atomic.StoreUint32(&tab[i], id)
}

func (s *sets) size() int {
	return int(unsafe.Sizeof(*s)) + int(s.bytes.Load()) + 4*len(*s.table.Load())
}
