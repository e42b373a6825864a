package index

import "math"

// RemoveResult counts blocks.
type RemoveResult struct {
	Removed int // the owner no longer holds them
	Copies  int // a copy went or was corrected, the block stays
	Unknown int // the owner did not hold them
}

// Remove applies a removed event. remaining[i], where given and not negative, is
// the number of copies left of engine[i] and overrides the policy. A retired owner
// holds nothing.
func (x *Index) Remove(o Owner, engine []uint64, remaining []int, policy CopyPolicy) RemoveResult {
	x.mu.Lock()
	defer x.mu.Unlock()
	var res RemoveResult
	own := x.owners[o]
	if own == nil {
		res.Unknown = len(engine)
		return res
	}
	s, id := x.sources[own.src], uint32(o)
	for i, e := range engine {
		ent := s.engines.ref(e)
		if ent == nil || !x.sets.has(ent.set, id) {
			res.Unknown++
			continue
		}
		left := -1
		if i < len(remaining) {
			left = remaining[i]
		}
		if left < 0 {
			left = 0
			if more := own.copies.ref(e); more != nil && policy == CopyCount {
				left = int(*more)
			}
		}
		if left > 0 {
			own.setCopies(e, left)
			res.Copies++
			continue
		}
		x.release(s, own, id, e, ent)
		res.Removed++
	}
	return res
}

// setCopies says how many copies of a held block there are, at least one.
func (own *owner) setCopies(engine uint64, n int) {
	if n == 1 {
		own.copies.remove(engine)
		return
	}
	*own.copies.insert(engine) = uint32(min(n-1, math.MaxInt32))
}

// release takes a held block from an owner; with its last owner the alias goes.
func (x *Index) release(s *source, own *owner, id uint32, engine uint64, ent *entry) {
	own.copies.remove(engine)
	own.blocks--
	x.part(own, id, ent.key)
	if ent.set = x.sets.drop(ent.set, id); ent.set != 0 {
		return
	}
	if ent.raw {
		x.raw--
	}
	s.engines.remove(engine)
	if s.room.used == 0 {
		return
	}
	if s.engines.len() == 0 {
		s.room = room{}
		return
	}
	s.forget(engine)
}

// Clear takes all blocks from an owner, which stays, and returns how many it held.
func (x *Index) Clear(o Owner) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.owners[o]
	if own == nil || own.blocks == 0 {
		return 0
	}
	s, id := x.sources[own.src], uint32(o)
	s.engines.retain(func(_ uint64, ent *entry) bool {
		if !x.sets.has(ent.set, id) {
			return true
		}
		x.part(own, id, ent.key)
		if ent.set = x.sets.drop(ent.set, id); ent.set != 0 {
			return true
		}
		if ent.raw {
			x.raw--
		}
		return false
	})
	s.sweep()
	n := own.blocks
	*own = owner{src: own.src}
	return n
}

// DropSource takes everything of a source: memberships, aliases and waiting
// blocks. Its id and its owners' are retired and never come back.
func (x *Index) DropSource(src Source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sources[src]
	if s == nil {
		return
	}
	s.engines.all(func(_ uint64, ent *entry) bool {
		for _, id := range x.sets.members(ent.set) {
			x.part(x.owners[id], id, ent.key)
		}
		x.sets.release(ent.set)
		if ent.raw {
			x.raw--
		}
		return true
	})
	for _, o := range s.owners {
		x.owners[o] = nil
	}
	x.sources[src] = nil
}
