package index

// named is a block whose key has just become known.
type named struct{ engine, key uint64 }

// settle gives keys to all blocks that wait on an engine hash, directly or through
// others, and returns how many held blocks moved. Each turn uses up a link, so it
// ends whatever the publisher claims.
func (h *hand) settle(engine, key uint64) (moved int) {
	s := h.s
	if i := s.room.of(engine); i != none {
		h.leave(i)
	}
	s.work = append(s.work[:0], named{engine, key})
	for len(s.work) > 0 {
		at := s.work[len(s.work)-1]
		s.work = s.work[:len(s.work)-1]
		for i := s.room.child(at.engine); i != none; i = s.room.child(at.engine) {
			l := s.room.links[i]
			s.room.remove(i)
			next := normal(h.x.scheme.Next(plain(at.key), l.local))
			if h.heldRaw(l.engine) && h.canLearn(l.engine) {
				if h.learn(l.engine, next) {
					h.res.Conflicts++
				}
				up := place{}
				if p := h.t.find(at.key); p != nil {
					up = place{slot: h.t.number(p), tag: tagOf(at.key)}
				}
				h.unraw(l.engine, next, up, false)
				if s := h.t.find(next); s != nil {
					h.label(h.t.number(s), l.label)
				}
				if h.joined != nil {
					*h.joined = append(*h.joined, plain(l.engine))
				}
				moved++
			}
			s.work = append(s.work, named{l.engine, next})
		}
	}
	return moved
}

// leave takes a link out of the room, and with it the links only it was kept for.
func (h *hand) leave(i int32) {
	parent := h.s.room.links[i].parent
	h.s.room.remove(i)
	h.forget(parent)
}

// forget drops the link of an engine hash that nobody holds and nothing waits on,
// and goes on with its parent.
func (h *hand) forget(engine uint64) {
	for {
		i := h.s.room.of(engine)
		if i == none || h.s.room.child(engine) != none || h.heldRaw(engine) {
			return
		}
		engine = h.s.room.links[i].parent
		h.s.room.remove(i)
	}
}

// sweep is forget for all links.
func (h *hand) sweep() {
	var gone []uint64
	h.s.room.byEngine.all(func(engine uint64, _ *int32) bool {
		if h.s.room.child(engine) == none && !h.heldRaw(engine) {
			gone = append(gone, engine)
		}
		return true
	})
	for _, engine := range gone {
		h.forget(engine)
	}
}
