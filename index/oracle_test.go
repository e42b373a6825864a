package index

import (
	"maps"
	"slices"

	"kvconductor/index/hash"
)

// oracle is the index as plain maps and lists, written from the rules alone:
// nothing interned, nothing counted, everything looked for from the start.
type oracle struct {
	scheme  hash.Scheme
	max     int
	sources map[Source]*oSource
	owners  map[Owner]Source // living ones
}

type oSource struct {
	blocks map[uint64]*oBlock // by engine hash
	links  []oLink            // oldest first
}

type oBlock struct {
	key    uint64
	known  bool
	copies map[Owner]int // at least 1 each
}

type oLink struct{ engine, parent, local uint64 }

func newOracle(scheme hash.Scheme, max int) *oracle {
	return &oracle{scheme, max, map[Source]*oSource{}, map[Owner]Source{}}
}

// tidy forgets links that serve nothing: neither is their block held nor does
// another link wait on them.
func (s *oSource) tidy() {
	if len(s.blocks) == 0 {
		s.links = nil
	}
	for again := true; again; {
		again = false
		for i, l := range s.links {
			held := s.blocks[l.engine] != nil
			awaited := slices.ContainsFunc(s.links, func(c oLink) bool { return c.parent == l.engine })
			if !held && !awaited {
				s.links = slices.Delete(s.links, i, i+1)
				again = true
				break
			}
		}
	}
}

func (o *oracle) store(e *Store) (res StoreResult) {
	src, living := o.owners[e.Owner]
	if !living {
		return res
	}
	s := o.sources[src]
	seq, known := uint64(0), false
	if e.HasParent && e.Local != nil {
		if b := s.blocks[e.Parent]; b != nil && b.known {
			seq, known = b.key, true
		}
	}
	for i, engine := range e.Engine {
		b := s.blocks[engine]
		if e.Local != nil {
			switch {
			case i == 0 && !e.HasParent && !e.Rootless:
				seq, known = e.Local[0], true
			case known:
				seq = o.scheme.Next(seq, e.Local[i])
			}
		}
		switch {
		case known && b != nil && !b.known:
			b.key, b.known = seq, true
			res.Resolved++
		case known && b != nil && b.key != seq:
			b.key = seq
			clear(b.copies)
			res.Conflicts++
		case b == nil && known:
			b = &oBlock{seq, true, map[Owner]int{}}
		case b == nil:
			b = &oBlock{engine, false, map[Owner]int{}}
		}
		s.blocks[engine] = b
		if b.copies[e.Owner] == 0 {
			b.copies[e.Owner] = 1
			res.Added++
		} else {
			res.Copies++
			if e.Copies == CopyCount {
				b.copies[e.Owner]++
			}
		}
		switch {
		case e.Local == nil:
			if !b.known {
				res.HashOnly++
			}
		case known:
			res.Resolved += o.resolve(s, engine, seq)
		case b.known:
			seq, known = b.key, true
		default:
			res.Orphaned++
			parent := e.Parent
			if i > 0 {
				parent = e.Engine[i-1]
			}
			if i > 0 || e.HasParent {
				o.wait(s, oLink{engine, parent, e.Local[i]}, &res)
			}
		}
		s.tidy()
	}
	return res
}

func (o *oracle) wait(s *oSource, l oLink, res *StoreResult) {
	switch {
	case l.engine == l.parent:
		res.Conflicts++
	case o.max < 1:
		res.Shed++
	default:
		s.links = slices.DeleteFunc(s.links, func(old oLink) bool { return old.engine == l.engine })
		s.links = append(s.links, l)
		s.tidy()
		if len(s.links) > o.max {
			s.links = slices.Delete(s.links, 0, 1)
			res.Shed++
		}
	}
}

// resolve gives keys to what waits on an engine hash whose key is seq.
func (o *oracle) resolve(s *oSource, engine, seq uint64) (moved int) {
	s.links = slices.DeleteFunc(s.links, func(l oLink) bool { return l.engine == engine })
	for {
		i := slices.IndexFunc(s.links, func(l oLink) bool { return l.parent == engine })
		if i < 0 {
			return moved
		}
		l := s.links[i]
		s.links = slices.Delete(s.links, i, i+1)
		next := o.scheme.Next(seq, l.local)
		if b := s.blocks[l.engine]; b != nil {
			b.key, b.known = next, true
			moved++
		}
		moved += o.resolve(s, l.engine, next)
	}
}

func (o *oracle) remove(owner Owner, engine []uint64, remaining []int, policy CopyPolicy) (res RemoveResult) {
	for i, e := range engine {
		src, living := o.owners[owner]
		if !living || o.sources[src].blocks[e] == nil || o.sources[src].blocks[e].copies[owner] == 0 {
			res.Unknown++
			continue
		}
		s := o.sources[src]
		b := s.blocks[e]
		left := 0
		if policy == CopyCount {
			left = b.copies[owner] - 1
		}
		if i < len(remaining) && remaining[i] >= 0 {
			left = remaining[i]
		}
		if left > 0 {
			b.copies[owner] = left
			res.Copies++
			continue
		}
		res.Removed++
		delete(b.copies, owner)
		if len(b.copies) == 0 {
			delete(s.blocks, e)
		}
		s.tidy()
	}
	return res
}

func (o *oracle) clear(owner Owner) (n int) {
	src, living := o.owners[owner]
	if !living {
		return 0
	}
	s := o.sources[src]
	for e, b := range s.blocks {
		if b.copies[owner] > 0 {
			n++
			delete(b.copies, owner)
			if len(b.copies) == 0 {
				delete(s.blocks, e)
			}
		}
	}
	s.tidy()
	return n
}

func (o *oracle) drop(src Source) {
	delete(o.sources, src)
	maps.DeleteFunc(o.owners, func(_ Owner, s Source) bool { return s == src })
}

// holders returns who holds a key, ascending.
func (o *oracle) holders(key uint64) []uint32 {
	set := map[uint32]bool{}
	for _, s := range o.sources {
		for _, b := range s.blocks {
			if b.key == key {
				for owner := range b.copies {
					set[uint32(owner)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// match expands to one owner list per block.
func (o *oracle) match(chain []uint64) (out [][]uint32) {
	for _, key := range chain {
		h := o.holders(key)
		if len(h) == 0 {
			return out
		}
		out = append(out, h)
	}
	return out
}

func (o *oracle) stats() (st Stats) {
	keys := map[uint64]map[Owner]bool{}
	for _, s := range o.sources {
		st.Orphans += len(s.links)
		for _, b := range s.blocks {
			if b.known {
				st.Aliases++
			} else {
				st.Raw++
			}
			if keys[b.key] == nil {
				keys[b.key] = map[Owner]bool{}
			}
			for owner := range b.copies {
				keys[b.key][owner] = true
			}
		}
	}
	st.Blocks = len(keys)
	for _, owners := range keys {
		st.Memberships += len(owners)
	}
	return st
}

func (o *oracle) held(owner Owner) (n int) {
	if src, living := o.owners[owner]; living {
		for _, b := range o.sources[src].blocks {
			if b.copies[owner] > 0 {
				n++
			}
		}
	}
	return n
}
