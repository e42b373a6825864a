package expect

// sieve tells of nearly all keys under which no piece begins that there is none, for less than a look into a map that
// does not fit into the processor's caches. It counts keys by their lowest bits. Its zero value is empty.
type sieve struct {
	counts []uint8 // a power of two of them; one that is full stays so until grow
	keys   int
}

// sieveRoom is how many counts a key has at least: one in as many looks into the map is in vain.
const sieveRoom = 8

// has reports whether a key may be there.
func (s *sieve) has(key uint64) bool {
	return len(s.counts) > 0 && s.counts[key&uint64(len(s.counts)-1)] != 0
}

// add counts a key. It reports false if there is no room: grow makes some.
func (s *sieve) add(key uint64) bool {
	if s.keys++; s.keys*sieveRoom > len(s.counts) {
		return false
	}
	if n := &s.counts[key&uint64(len(s.counts)-1)]; *n < 255 {
		*n++
	}
	return true
}

// grow makes room for twice as many keys, and counts those of a map.
func (s *sieve) grow(heads map[uint64]*piece) {
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
