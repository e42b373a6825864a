package index

import "sync/atomic"

// hand is one call's grip on the index: the generation, which cannot change while
// the gate is held to read, and one source, whose mutex is held.
type hand struct {
	x     *Index
	g     *generation
	t     *table
	a     *aliases
	s     *source
	adds  step
	drops step
	live  int64  // keys that got a first holder, less those that lost the last
	keys  int64  // slots claimed
	names int64  // aliases claimed
	full  bool   // no slot is reserved
	gone  uint32 // link to the key the owner lost just before, which need not be looked at
	res   *StoreResult

	joined *[]uint64 // Store.Joined
}

func (x *Index) hand(s *source) hand {
	g := x.gen.Load()
	return hand{x: x, g: g, t: g.table, a: x.aliases.Load(), s: s}
}

// done puts the counts of a call where they belong.
func (h *hand) done() {
	if h.live != 0 {
		h.g.live.Add(h.live)
	}
	if h.s.held == 0 {
		h.s.emptied()
	}
}

// join adds an owner to a key that hangs at a place. It returns the slot, 0 where
// the budget had none, and whether the owner held the key already.
func (h *hand) join(o *owner, key uint64, up place) (at uint32, held bool) {
	var s *slot
	if h.full {
		if s = h.claimFull(key); s == nil {
			return 0, false
		}
	} else {
		var fresh bool
		if s, fresh = h.t.claim(key); fresh {
			h.keys++
		}
	}
	at = h.t.number(s)
	if !up.held && !h.g.ids.isOpen(o.id) {
		h.g.ids.setOpen(o.id)
	}
	for {
		w := atomic.LoadUint32(&s.word)
		tag := w & tagMask
		if tag != up.tag || tag == 0 {
			switch {
			case tag == 0 && up.tag != 0:
				if up.slot != 0 {
					h.g.link(h.t.at(up.slot), key)
				}
				tag = up.tag
			default: // unknown, or not what others say
				if !h.g.ids.isOpen(o.id) {
					h.g.ids.setOpen(o.id)
				}
			}
		}
		id := w >> setShift
		to := h.adds.add(h.g, id, o.id)
		if to == id && tag == w&tagMask {
			return at, true
		}
		if atomic.CompareAndSwapUint32(&s.word, w, to<<setShift|tag) {
			if to == id {
				return at, true
			}
			if id == 0 {
				h.live++
			}
			o.held(1)
			h.s.held++
			return at, false
		}
	}
}

// part takes an owner from a key and reports whether it held it. suspect is the
// slot if the owner is open only because it still holds a child of the key.
func (h *hand) part(o *owner, key uint64) (held bool, suspect uint32) {
	s := h.t.find(key)
	if s == nil {
		return false, 0
	}
	for {
		w := atomic.LoadUint32(&s.word)
		id := w >> setShift
		to := h.drops.drop(h.g, id, o.id)
		if to == id {
			return false, 0
		}
		if c := atomic.LoadUint32(&s.child); c != 0 && c != h.gone && !h.g.ids.isOpen(o.id) && h.g.holdsChild(s, o.id) {
			suspect = h.t.number(s)
			h.g.ids.setOpen(o.id)
		}
		if atomic.CompareAndSwapUint32(&s.word, w, to<<setShift|w&tagMask) {
			if to == 0 {
				h.live--
			}
			o.held(-1)
			h.s.held--
			if o.copies.len() > 0 {
				o.copies.remove(key)
			}
			o.raw = min(o.raw, o.blocks)
			if o.blocks == 0 {
				if h.g.ids.isOpen(o.id) {
					h.g.ids.setClosed(o.id)
				}
			}
			return true, suspect
		}
	}
}

func (h *hand) holds(o *owner, key uint64) bool {
	return h.g.sets.has(h.t.lookup(key), o.id)
}

// heldBySource reports whether an owner of the source holds a key.
func (h *hand) heldBySource(key uint64) bool {
	if id := h.t.lookup(key); id != 0 {
		for _, o := range h.s.owners {
			if h.g.sets.has(id, o.id) {
				return true
			}
		}
	}
	return false
}

// heldRaw is heldBySource for an engine hash, where it can be.
func (h *hand) heldRaw(engine uint64) bool { return h.s.raw && h.heldBySource(engine) }

// alive reports whether anybody holds a key.
func (h *hand) alive(key uint64) bool {
	words, first := h.g.sets.of(h.t.lookup(key))
	for i, w := range words {
		if h.g.ids.living(w, first+i) != 0 {
			return true
		}
	}
	return false
}

// meaning returns the key an engine hash stands for in the source, if it is known
// and somebody holds it.
func (h *hand) meaning(engine uint64) (key uint64, known bool) {
	if h.s.private.len() > 0 {
		if k := h.s.private.ref(engine); k != nil {
			return *k, h.alive(*k)
		}
	}
	key = h.a.get(engine)
	return key, key != 0 && h.alive(key)
}

// learn notes what an engine hash means to the source. What it meant before, no
// removal can name any more, so the source's owners lose it. It reports whether
// any did. The entry is reserved, or canLearn has said yes.
func (h *hand) learn(engine, key uint64) (conflict bool) {
	e, fresh := h.a.claim(engine)
	if fresh {
		h.names++
	}
	now := atomic.LoadUint64(&e.key)
	if now == 0 && atomic.CompareAndSwapUint64(&e.key, 0, key) {
		now = key
	} else {
		now = atomic.LoadUint64(&e.key)
	}
	if h.a.by != nil && now == key {
		h.taught(e)
	}
	if now == key && h.s.private.len() == 0 {
		return false
	}
	before := now
	if k := h.s.private.ref(engine); k != nil {
		before = *k
	}
	if before != key {
		for _, o := range h.s.owners {
			if held, _ := h.part(o, before); held {
				conflict = true
			}
		}
	}
	switch {
	case now == key:
		h.s.private.remove(engine)
	case !h.alive(now) && atomic.CompareAndSwapUint64(&e.key, now, key):
		h.s.private.remove(engine)
		if by := h.a.taught(e); by != nil {
			atomic.StoreUint32(by, uint32(h.s.name)+1)
		}
	default:
		*h.s.private.insert(engine) = key
	}
	return conflict
}

// unraw moves the source's memberships under an engine hash to its key, and reports
// whether there were any. With count, those of an owner that holds the key under
// another hash as well become copies.
func (h *hand) unraw(engine, key uint64, up place, count bool) (moved bool) {
	if !h.s.raw || engine == key || h.t.find(engine) == nil {
		return false
	}
	for _, o := range h.s.owners {
		if !h.holds(o, engine) {
			continue
		}
		moved = true
		more := uint32(0)
		if m := o.copies.ref(engine); m != nil {
			more = *m
		}
		up.held = h.holdsPlace(o, up)
		at, held := h.join(o, key, up) // first, so that the owner is not seen without the block
		switch {
		case at == 0:
		case held && count: // under another engine hash
			*o.copies.insert(key) += more + 1
		case more > 0 && !held:
			*o.copies.insert(key) = more
		}
		h.part(o, engine)
		o.raw = max(o.raw-1, 0)
	}
	return moved
}

func (h *hand) holdsSlot(o *owner, s *slot) bool {
	return h.g.sets.has(atomic.LoadUint32(&s.word)>>setShift, o.id)
}

// holdsPlace reports whether an owner holds the block before.
func (h *hand) holdsPlace(o *owner, up place) bool {
	return up.tag == rootTag || up.slot != 0 && h.holdsSlot(o, h.t.at(up.slot))
}
