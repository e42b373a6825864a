package index

import "unsafe"

// sets interns owner sets: each distinct set exists once, is immutable, counts
// its references and is named by a small number. Id 0 is the empty set.
//
// add and drop trade one reference for another: the caller's reference to the old
// set becomes a reference to the new one.
type sets struct {
	recs      []set
	free      []uint32      // ids of records without a set
	byHash    table[uint32] // hash of the members -> first id; others by set.next
	listBytes int           // of all member lists
	memo      [64]transition
}

type set struct {
	members []uint32 // ascending; never written to, readers may keep it
	hash    uint64   // exclusive or of the members' mixes
	refs    uint32
	next    uint32 // next set with the same hash, 0 at the end
	life    uint32 // how many sets had this id before
}

// transition remembers set x owner -> set. It counts only while both ids still
// name the sets of that time.
type transition struct {
	from, fromLife uint32
	to, toLife     uint32
	owner          uint32
	add, used      bool
}

func (s *sets) init() { s.recs = make([]set, 1) }

// members returns the owners of a set. The slice must not be changed.
func (s *sets) members(id uint32) []uint32 { return s.recs[id].members }

// has reports whether an owner is in a set.
func (s *sets) has(id, owner uint32) bool {
	m := s.recs[id].members
	i := search(m, owner)
	return i < len(m) && m[i] == owner
}

// search returns the position of the first member that is not smaller.
func search(m []uint32, owner uint32) int {
	lo, hi := 0, len(m)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); m[mid] < owner {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// add trades a reference to a set without the owner for one with it.
func (s *sets) add(from, owner uint32) uint32 { return s.trade(from, owner, true) }

// drop trades a reference to a set with the owner for one without it.
func (s *sets) drop(from, owner uint32) uint32 { return s.trade(from, owner, false) }

func (s *sets) trade(from, owner uint32, add bool) uint32 {
	m := &s.memo[(from*31+owner)%uint32(len(s.memo))]
	if m.used && m.from == from && m.owner == owner && m.add == add &&
		m.fromLife == s.recs[from].life && m.toLife == s.recs[m.to].life {
		s.hold(m.to)
		s.release(from)
		return m.to
	}
	to := s.intern(from, owner, add)
	s.hold(to)
	*m = transition{from, s.recs[from].life, to, s.recs[to].life, owner, add, true}
	s.release(from)
	return to
}

// intern finds or makes the set that differs from another by one owner.
func (s *sets) intern(from, owner uint32, add bool) uint32 {
	base := s.recs[from].members
	n := len(base) + 1
	if !add {
		n = len(base) - 1
	}
	if n == 0 {
		return 0
	}
	at := search(base, owner)
	h := s.recs[from].hash ^ mix(uint64(owner))
	first := s.byHash.ref(h)
	if first != nil {
		for id := *first; id != 0; id = s.recs[id].next {
			if m := s.recs[id].members; len(m) == n && differ(m, base, at, owner, add) {
				return id
			}
		}
	}
	members := make([]uint32, 0, n)
	members = append(members, base[:at]...)
	if add {
		members = append(members, owner)
		members = append(members, base[at:]...)
	} else {
		members = append(members, base[at+1:]...)
	}
	return s.create(members, h)
}

// differ reports whether m is base with the owner put in, or left out, at position at.
func differ(m, base []uint32, at int, owner uint32, add bool) bool {
	if !add {
		m, base = base, m
	}
	if m[at] != owner {
		return false
	}
	for i := range at {
		if m[i] != base[i] {
			return false
		}
	}
	for i := at; i < len(base); i++ {
		if m[i+1] != base[i] {
			return false
		}
	}
	return true
}

// create makes a set without references.
func (s *sets) create(members []uint32, h uint64) uint32 {
	var id uint32
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		id = uint32(len(s.recs))
		s.recs = append(s.recs, set{})
	}
	first := s.byHash.insert(h)
	s.recs[id] = set{members: members, hash: h, next: *first, life: s.recs[id].life}
	*first = id
	s.listBytes += 4 * len(members)
	return id
}

func (s *sets) hold(id uint32) {
	if id != 0 {
		s.recs[id].refs++
	}
}

// release gives a reference back; the last one frees the set.
func (s *sets) release(id uint32) {
	if id == 0 {
		return
	}
	r := &s.recs[id]
	if r.refs--; r.refs > 0 {
		return
	}
	if first := s.byHash.ref(r.hash); *first != id {
		p := *first
		for s.recs[p].next != id {
			p = s.recs[p].next
		}
		s.recs[p].next = r.next
	} else if *first = r.next; r.next == 0 {
		s.byHash.remove(r.hash)
	}
	s.listBytes -= 4 * len(r.members)
	*r = set{life: r.life + 1}
	s.free = append(s.free, id)
}

// len returns the number of distinct sets in use.
func (s *sets) len() int { return len(s.recs) - 1 - len(s.free) }

func (s *sets) bytes() int {
	return cap(s.recs)*int(unsafe.Sizeof(set{})) + 4*cap(s.free) + s.byHash.bytes() + s.listBytes
}
