package index

import (
	"math/bits"
	"slices"
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
//
// Each lane remembers steps from set to set, and counts by atomic words. All else is
// changed under the lock. A count falls to zero, and rises from there, only under the lock.
type sets struct {
	body atomic.Pointer[setBody]
	used [setChunks]atomic.Pointer[[]uint64] // by number: generation << 32 | references
	size atomic.Int64                        // bytes, without what lanes remember

	mu     spin // guards all below, and changes of body
	hash   []uint64
	n      uint32       // numbers in use, with 0 and those in spare
	spare  []uint32     // numbers to use again
	intern flat[uint32] // numbers by hash; of sets with one hash the one made last, if it is still there
}

// setBody is the words of all sets. It is replaced when it is too small.
type setBody struct {
	width int    // words of a set
	cap   uint32 // sets that there is room for
	bits  []uint64
}

// transition says that two sets differ by one owner.
type transition struct{ from, to, owner, fromGen, toGen uint32 }

const (
	maxSets     = 1 << 25
	memoEntries = 1 << 12 // of all lanes
	firstSets   = 8       // of chunk 0; each has as many as those before it
	setChunks   = 22
)

// initialize empties the sets.
func (s *sets) initialize(width int) {
	s.n, s.spare = 1, nil
	s.hash = make([]uint64, firstSets)
	s.intern = flat[uint32]{}
	s.body.Store(newSetBody(firstSets, width))
	chunk := make([]uint64, firstSets)
	s.used[0].Store(&chunk)
	s.countMemory()
}

// newSetBody returns room for n sets of some words each.
func newSetBody(n, width int) *setBody {
	return &setBody{width: width, cap: uint32(n), bits: make([]uint64, n*width)}
}

// prefetchSets begins to load the words of the sets of intervals, up to block m.
func (b *setBody) prefetchSets(list []uint32, m int) {
	for i := range list {
		v := intervalOf(load32(&list[i]))
		if v.set < b.cap {
			prefetch(unsafe.Pointer(&b.bits[int(v.set)*b.width]))
		}
		if int(v.end) >= m {
			return
		}
	}
}

// wordsOf returns the words of a set.
func (b *setBody) wordsOf(id uint32) []uint64 {
	at := int(id) * b.width
	return b.bits[at : at+b.width : at+b.width]
}

// stateOf returns the generation and the references of a set. Chunks double in size and
// never move, so the word can be changed without the lock while the sets grow.
func (s *sets) stateOf(id uint32) *uint64 {
	k := bits.Len32(id / firstSets)
	first := uint32(firstSets) << k >> 1 &^ (firstSets - 1)
	return &(*s.used[k].Load())[id-first]
}

// hasOwner reports whether an owner is in a set that a piece of any source names. The
// caller holds such a piece, or all lanes are locked. Otherwise the number may be given to
// another set between its load and the look at its words.
func (s *sets) hasOwner(id, owner uint32) bool {
	b := s.body.Load()
	w := int(owner >> 6)
	return w < b.width && b.bits[int(id)*b.width+w]>>(owner&63)&1 != 0
}

// resizeBody replaces the words by a body for more sets or more owners. Readers may go on
// with the old body: the sets that they have numbers of are in it, unchanged, until their
// pieces change.
func (s *sets) resizeBody(n, width int) {
	old := s.body.Load()
	b := newSetBody(n, width)
	for i := range int(s.n) {
		copy(b.bits[i*width:], old.bits[i*old.width:(i+1)*old.width])
	}
	for k := range s.used {
		if s.used[k].Load() == nil && firstSets<<k>>1 < n {
			chunk := make([]uint64, firstSets<<k>>1)
			s.used[k].Store(&chunk)
		}
	}
	s.hash = append(s.hash, make([]uint64, n-len(s.hash))...)
	s.body.Store(b)
	s.countMemory()
}

// widenFor makes room for an owner in the sets. All lanes are locked.
func (s *sets) widenFor(owner uint32) {
	if b := s.body.Load(); int(owner>>6) >= b.width {
		s.resizeBody(int(b.cap), max(int(owner>>6)+1, b.width+b.width/2))
	}
}

// toggleOwner returns the set that differs from another by one owner, with a reference for
// the caller. A piece that the lane holds names the other one.
//
// Owners come and go in the same steps over and over: rank 7 stores what rank 3 has, in
// piece after piece. So each lane remembers its last steps in a small table, and a step
// that it remembers costs a compare-and-swap instead of the lock and a comparison of
// bitmaps. A generation says whether a number still stands for the set that was meant: a
// memo is nothing but a guess, and retainIfLive checks the guess in the same operation that
// takes the reference.
func (s *sets) toggleOwner(l *lane, from, owner uint32) uint32 {
	if l.memo == nil {
		l.memo = make([]transition, 16)
	}
	m := &l.memo[uint64(from*0x9e3779b1^owner*0x85ebca77)*0xd6e8feb8>>16&uint64(len(l.memo)-1)]
	if m.from == from && m.owner == owner && (m.to != 0 || m.from != 0) && (from == 0 || m.fromGen == s.generation(from)) {
		if m.to == 0 || s.retainIfLive(m.to, m.toGen) {
			return m.to
		}
	}
	to := s.makeSet(l, from, owner)
	*m = transition{from: from, to: to, owner: owner, fromGen: s.generation(from), toGen: s.generation(to)}
	return to
}

// generation returns how often the number of a set has been used before.
func (s *sets) generation(id uint32) uint32 { return uint32(load64(s.stateOf(id)) >> 32) }

// retainIfLive adds a reference to a set of a generation, if it has one. A count that is
// zero must not rise here: another lane is about to give the number to another set, under
// the lock.
func (s *sets) retainIfLive(id, gen uint32) bool {
	w := s.stateOf(id)
	for {
		v := load64(w)
		if uint32(v>>32) != gen || uint32(v) == 0 {
			return false
		}
		if atomic.CompareAndSwapUint64(w, v, v+1) {
			return true
		}
	}
}

// setOfOne returns the set of one owner, with a reference for the caller.
func (s *sets) setOfOne(l *lane, owner uint32) uint32 { return s.toggleOwner(l, 0, owner) }

// makeSet is toggleOwner without the memo. It also lets the lane's memo grow with the
// number of sets, since a fleet with few sets would waste it.
func (s *sets) makeSet(l *lane, from, owner uint32) uint32 {
	s.mu.lock()
	defer s.mu.unlock()
	b := s.body.Load()
	if len(l.set) != b.width {
		l.set = make([]uint64, b.width)
	}
	words := l.set
	copy(words, b.wordsOf(from))
	// An XOR in both, words and hash, so that adding and taking an owner are one operation.
	words[owner>>6] ^= 1 << (owner & 63)
	some := uint64(0)
	for _, w := range words {
		some |= w
	}
	if some == 0 {
		return 0
	}
	id := s.internSet(s.hash[from]^setWord(owner), words)
	if want := min(4*len(s.intern.keys), memoEntries) / lanes; len(l.memo) < want {
		l.memo = make([]transition, want)
	}
	return id
}

// setWord returns what an owner adds to the hash of a set. Internal ids follow each other,
// and sums of their mixed numbers would be alike too often for sets of a few owners.
func setWord(owner uint32) uint64 { return mix(mix(uint64(owner))) }

// internSet returns the set of some words, with a reference for the caller. The sets are
// locked. Words are written before the number is known to anybody, one by one, because a
// reader may still be at the words of the number's last set. It will see that the version
// of its piece has changed.
//
// If another set with the same hash is found, the new one takes its place in the table. The
// other one is still a set, but is not found again, so the set might be made twice. That
// takes two sets whose mixed numbers have one XOR, which does not happen by chance.
func (s *sets) internSet(h uint64, words []uint64) uint32 {
	b := s.body.Load()
	if have := s.intern.find(normal(h)); have != nil && slices.Equal(b.wordsOf(*have), words) {
		s.retainSet(*have)
		return *have
	}
	var id uint32
	if k := len(s.spare); k > 0 {
		id = s.spare[k-1]
		s.spare = s.spare[:k-1]
	} else {
		if id = s.n; id == b.cap {
			if id >= maxSets/2 {
				panic("BUG: more owner sets than numbers")
			}
			s.resizeBody(2*int(b.cap), b.width)
			b = s.body.Load()
		}
		s.n++
	}
	for i := range b.width {
		write64(&b.bits[int(id)*b.width+i], words[i])
	}
	s.hash[id] = h
	s.retainSet(id)
	*s.intern.insertKey(normal(h)) = id
	s.countMemory()
	return id
}

// retainSet adds a reference to a set that has one, or whose number is new. Therefore the
// count cannot be zero meanwhile, and no lock is needed.
func (s *sets) retainSet(id uint32) {
	if id != 0 {
		atomic.AddUint64(s.stateOf(id), 1)
	}
}

// releaseSet takes a reference away and forgets the set with the last. Above one it is a
// compare-and-swap. The last reference goes under the lock, where makeSet looks for sets to
// share: it either finds the set with a reference or not at all.
func (s *sets) releaseSet(id uint32) {
	if id == 0 {
		return
	}
	w := s.stateOf(id)
	for v := load64(w); uint32(v) > 1; v = load64(w) {
		if atomic.CompareAndSwapUint64(w, v, v-1) {
			return
		}
	}
	s.mu.lock()
	if v := atomic.AddUint64(w, ^uint64(0)); uint32(v) == 0 {
		s.forgetSet(id)
	}
	s.mu.unlock()
}

// forgetSet ends a set without references. The sets are locked. The next generation makes
// every memo of the number void.
func (s *sets) forgetSet(id uint32) {
	if h := normal(s.hash[id]); s.intern.find(h) != nil && *s.intern.find(h) == id {
		s.intern.deleteKey(h)
		s.countMemory()
	}
	write64(s.stateOf(id), uint64(s.generation(id)+1)<<32)
	s.spare = append(s.spare, id)
}

// countSets returns the number of sets. All lanes are locked.
func (s *sets) countSets() int { return int(s.n) - 1 - len(s.spare) }

// countMemory notes how much memory the sets take.
func (s *sets) countMemory() {
	b := s.body.Load()
	s.size.Store(int64(8*len(b.bits) + (8+8+4)*int(b.cap) + s.intern.bytes()))
}

func (s *sets) bytes() int { return int(s.size.Load()) }

// trimMemory gives memory back when no set is left, and reports whether it did. All lanes
// are locked, and have to forget what they remember. Generations begin again: a query that
// has read sets before asks again, because each piece that it read has lost owners since.
func (s *sets) trimMemory() bool {
	if s.countSets() != 0 || s.n <= 64 {
		return false
	}
	for k := range s.used {
		s.used[k].Store(nil)
	}
	s.initialize(s.body.Load().width)
	return true
}

// ids maps internal owner ids to owners. It is replaced when it is too small.
type ids struct {
	owner   []uint32 // by internal id
	retired []uint64 // bitmap of ids that are in sets but in no answer
}

// maskRetired returns the words of a set without those of retired ids.
func (d *ids) maskRetired(word uint64, i int) uint64 { return word &^ load64(&d.retired[i]) }

// lowestBit returns the position of the lowest bit that is set. Loops over the blocks in a
// word go from there with w &= w-1.
func lowestBit(w uint64) uint32 { return uint32(bits.TrailingZeros64(w)) }
