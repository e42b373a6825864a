package index

// named is a block whose key has just become known.
type named struct {
	engine uint64
	at     cursor
	up     int // the named block before it, below zero for none
	local  uint64
}

// place returns the cursor of a named block. One that was in no piece is looked for
// again if blocks have been made since.
func (p *storing) place(i int) cursor {
	w := &p.s.work[i]
	if c := p.x.tree.refreshCursor(w.at); c.kind != atBlock || !c.at.isNone() {
		return c
	}
	if w.up < 0 {
		if w.at.at.isNone() && w.at.made == p.x.tree.made {
			return w.at
		}
		return cursor{kind: atKey, key: w.at.key, root: w.at.root}
	}
	if !w.at.at.isNone() || w.at.made != p.x.tree.made {
		w.at = p.x.tree.childOf(p.place(w.up), w.local)
	}
	return w.at
}

// placeWaiting gives places to all blocks that wait on an engine hash, directly or through
// others, and returns how many held blocks moved. Each turn uses up a link, so it
// ends whatever the publisher claims.
func (p *storing) placeWaiting(engine uint64, at cursor) (moved int) {
	x, s := p.x, p.s
	if i := s.room.of(engine); i != none {
		x.holders.dropLink(s, i)
	}
	s.work = append(s.work[:0], named{engine, at, -1, 0})
	for stack := []int{0}; len(stack) > 0; {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		w := s.work[top]
		for i := s.room.child(w.engine); i != none; i = s.room.child(w.engine) {
			l := s.room.links[i]
			s.room.remove(i)
			if w.at = p.place(top); !x.tree.identities.mayFollow(l.says, l.of, w.at) {
				continue // it is not this parent that the event meant
			}
			next := x.tree.childOf(w.at, l.local)
			if !x.tree.findHeldRaw(s, l.engine).isNone() {
				if next = x.resolver.seekBlock(s, l.engine, next, w.at); next.at.isNone() {
					clientHash := l.clientHash
					if l.of != w.at.root {
						clientHash = 0 // its tokens are gone
					}
					next.at = x.holders.createBlock(s, w.at, next.key, w.engine, l.local, clientHash, 1)
				}
				if !next.at.isNone() {
					if next.kind == atKey {
						next.at = x.holders.rerootLoose(s, next)
					}
					x.holders.moveRaw(s, l.engine, next.at)
					if x.resolver.learnMeaning(s, l.engine, next.at, 1) {
						p.res.Conflicts++
					}
					moved++
				}
			}
			stack = append(stack, len(s.work))
			s.work = append(s.work, named{l.engine, x.tree.refreshCursor(next), top, l.local})
		}
	}
	return moved
}

// dropLink takes a link out of the room, and with it the links only it was kept for.
func (h *holders) dropLink(s *source, i int32) {
	parent := s.room.links[i].parent
	s.room.remove(i)
	h.forgetIdleLinks(s, parent)
}

// forgetIdleLinks drops the link of an engine hash that the source does not hold and nothing
// waits on, and goes on with its parent.
func (h *holders) forgetIdleLinks(s *source, engine uint64) {
	for {
		i := s.room.of(engine)
		if i == none || s.room.child(engine) != none || !h.tree.findHeldRaw(s, engine).isNone() {
			return
		}
		engine = s.room.links[i].parent
		s.room.remove(i)
	}
}

// sweepRoom is forgetIdleLinks for all links.
func (h *holders) sweepRoom(s *source) {
	var gone []uint64
	for engine := range s.room.byEngine.all {
		if s.room.child(engine) == none && h.tree.findHeldRaw(s, engine).isNone() {
			gone = append(gone, engine)
		}
	}
	for _, engine := range gone {
		h.forgetIdleLinks(s, engine)
	}
}
