package index

// step is a block whose key has just become known.
type step struct{ engine, seq uint64 }

// settle gives keys to all blocks that wait on an engine hash, directly or through
// others, and returns how many held blocks moved. Each turn uses up a link, so it
// ends whatever the publisher claims.
func (x *Index) settle(s *source, engine, seq uint64) (moved int) {
	if i := s.room.of(engine); i != none {
		s.leave(i)
	}
	x.work = append(x.work[:0], step{engine, seq})
	for len(x.work) > 0 {
		at := x.work[len(x.work)-1]
		x.work = x.work[:len(x.work)-1]
		for i := s.room.child(at.engine); i != none; i = s.room.child(at.engine) {
			l := s.room.links[i]
			s.room.remove(i)
			seq := x.scheme.Next(at.seq, l.local)
			if ent := s.engines.ref(l.engine); ent != nil {
				if !ent.raw {
					panic("BUG: a block with a known key waits for its parent")
				}
				x.rekey(ent, seq)
				moved++
			}
			x.work = append(x.work, step{l.engine, seq})
		}
	}
	return moved
}

// leave takes a link out of the room, and with it the links only it was kept for.
func (s *source) leave(i int32) {
	parent := s.room.links[i].parent
	s.room.remove(i)
	s.forget(parent)
}

// forget drops the link of an engine hash that nobody holds and nothing waits on,
// and goes on with its parent.
func (s *source) forget(engine uint64) {
	for {
		i := s.room.of(engine)
		if i == none || s.room.child(engine) != none || s.engines.ref(engine) != nil {
			return
		}
		engine = s.room.links[i].parent
		s.room.remove(i)
	}
}

// sweep is forget for all links.
func (s *source) sweep() {
	if s.engines.len() == 0 {
		s.room = room{}
		return
	}
	var gone []uint64
	s.room.byEngine.all(func(engine uint64, _ *int32) bool {
		if s.engines.ref(engine) == nil && s.room.child(engine) == none {
			gone = append(gone, engine)
		}
		return true
	})
	for _, engine := range gone {
		s.forget(engine)
	}
}

// rekey moves a raw entry, with all its owners, to the key it turned out to have.
// Copies are counted by engine hash and stay as they are.
func (x *Index) rekey(ent *entry, seq uint64) {
	old := ent.key
	ent.key, ent.raw = seq, false
	x.raw--
	if old == seq {
		return
	}
	for _, id := range x.sets.members(ent.set) {
		own := x.owners[id]
		x.part(own, id, old)
		x.join(own, id, seq)
	}
}

// evict takes an entry from all its owners and leaves it without any.
func (x *Index) evict(engine uint64, ent *entry) {
	for _, id := range x.sets.members(ent.set) {
		own := x.owners[id]
		x.part(own, id, ent.key)
		own.copies.remove(engine)
		own.blocks--
	}
	x.sets.release(ent.set)
	ent.set = 0
}

// join adds an owner to a key, for one more of its engine hashes.
func (x *Index) join(own *owner, id uint32, key uint64) {
	slot := x.blocks.insert(key)
	if x.sets.has(*slot, id) {
		*own.shared.insert(key)++
		return
	}
	*slot = x.sets.add(*slot, id)
	x.memberships++
}

// part takes one engine hash of an owner from a key; with the last the owner leaves.
func (x *Index) part(own *owner, id uint32, key uint64) {
	if more := own.shared.ref(key); more != nil {
		if *more--; *more == 0 {
			own.shared.remove(key)
		}
		return
	}
	slot := x.blocks.ref(key)
	if *slot = x.sets.drop(*slot, id); *slot == 0 {
		x.blocks.remove(key)
	}
	x.memberships--
}
