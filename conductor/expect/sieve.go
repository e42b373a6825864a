package expect

// sieve is a counting filter in front of the heads of a space. For nearly every key that begins no node it says so, without
// a lookup in a map that has outgrown the processor's caches. It counts keys by their lowest bits. Its zero value is empty.
type sieve struct {
	counts []uint8 // a power of two of them; one that is full stays so until rebuildFor
	keys   int
}

// sieveRoom is the least number of counts for each key. About one in sieveRoom keys that begin no node still costs a lookup.
const sieveRoom = 8

// has reports whether a key may be there.
func (s *sieve) has(key uint64) bool {
	return len(s.counts) > 0 && s.counts[key&uint64(len(s.counts)-1)] != 0
}

// add counts a key. It reports false if there is no room for it, which rebuildFor makes.
func (s *sieve) add(key uint64) bool {
	if s.keys++; s.keys*sieveRoom > len(s.counts) {
		return false
	}
	if n := &s.counts[key&uint64(len(s.counts)-1)]; *n < 255 {
		*n++
	}
	return true
}

// rebuildFor counts the keys of a map from scratch, with room for twice as many. For an empty map it takes no memory.
func (s *sieve) rebuildFor(heads map[uint64]*node) {
	if len(heads) == 0 {
		*s = sieve{}
		return
	}
	size := 256
	for size < 2*sieveRoom*len(heads) {
		size *= 2
	}
	*s = sieve{counts: make([]uint8, size)}
	for key := range heads {
		s.add(key)
	}
}

// remove undoes add.
func (s *sieve) remove(key uint64) {
	s.keys--
	if n := &s.counts[key&uint64(len(s.counts)-1)]; *n < 255 {
		*n--
	}
}
