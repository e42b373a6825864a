package index

// cursor is where the next block of a chain goes: behind a block.
type cursor struct {
	kind cursorKind
	at   place  // the block, none where it is in no piece
	key  uint64 // of the block
	made uint64 // tree.made when at was found to be none
	root        // of the block, or of those that come behind
}

type cursorKind uint8

const (
	atUnknown cursorKind = iota // the key of the block is not known
	atRoot                      // before the first block
	atBlock                     // at is the block; or none has the key, if at is none
	atKey                       // the key is known, not which piece would have the block
)

// cursorAt returns the cursor of a block.
func (t *tree) cursorAt(p place) cursor {
	if p.isNone() {
		return cursor{}
	}
	r := t.lines.pieceAt(p.piece)
	if r.loose() {
		return cursor{kind: atKey, at: p, key: t.keyOf(p), root: r.root()}
	}
	return cursor{kind: atBlock, at: p, key: t.keyOf(p), root: r.root()}
}

// markCursor keeps a cursor for the next event.
func (t *tree) markCursor(c cursor) mark {
	if c.at.isNone() {
		return mark{}
	}
	r := t.lines.pieceAt(c.at.piece)
	return mark{c.at, c.key, r.head, r.lost}
}

// cursorAtMark returns the cursor of a mark, whose block is still in its place.
func (t *tree) cursorAtMark(m *mark) cursor {
	if r := t.lines.pieceAt(m.at.piece); r.head == m.head && r.lost == m.lost {
		return cursor{kind: atBlock, at: m.at, key: m.key, root: r.root()}
	}
	return t.cursorAt(m.at)
}

// childOf returns the cursor behind the child of a block with a local hash.
func (t *tree) childOf(c cursor, local uint64) cursor {
	if c.kind == atUnknown {
		return cursor{}
	}
	next := cursor{kind: atBlock, made: t.made, root: c.root}
	if c.kind == atRoot {
		next.key = c.first(local)
	} else {
		next.key = t.followKey(c.key, c.constant, local)
	}
	if c.kind == atBlock && !c.at.isNone() {
		if r := t.lines.pieceAt(c.at.piece); c.at.at+1 < r.len() && r.local()[c.at.at+1] == local {
			next.at = place{c.at.piece, c.at.at + 1}
			return next
		}
	}
	if next.at = t.findBeginning(next.key, c.kind == atRoot); next.at.isNone() && c.kind == atKey {
		next.kind, next.at = atKey, t.findLoose(next.key)
	}
	return next
}

// refreshCursor looks at a cursor after other blocks have changed.
func (t *tree) refreshCursor(c cursor) cursor {
	if c.kind != atBlock && c.kind != atKey || c.at.isNone() {
		return c
	}
	r := t.lines.pieceAt(c.at.piece)
	if r.meta&isSide == 0 && c.at.at < r.len() && r.loose() == (c.kind == atKey) && t.keyOf(c.at) == c.key {
		return c
	}
	c.at, c.made = place{}, t.made
	return c
}

// cleanCursor takes retired owners out of the piece of a cursor, and looks at the cursor again.
func (m *nameMap) cleanCursor(c cursor) cursor {
	if c.at.isNone() || m.sweep.left == 0 {
		return c
	}
	m.cleanPiece(c.at.piece, m.tree.lines.pieceAt(c.at.piece))
	return m.tree.refreshCursor(c)
}

// seekBlock looks for the block of a cursor by its engine hash as well, where only the key is known,
// and takes retired owners out of its piece. behind is the cursor of the block before.
func (rs *resolver) seekBlock(s *source, engine uint64, c, behind cursor) cursor {
	if c.kind == atKey {
		if q := rs.meaningOf(s, engine); !q.isNone() && rs.tree.keyOf(q) == c.key {
			return rs.tree.cursorAt(q)
		}
	}
	if c = rs.names.cleanCursor(c); c.at.isNone() && behind.kind == atKey {
		c = rs.names.cleanCursor(cursor{kind: atKey, at: rs.tree.findLoose(c.key), key: c.key, root: c.root})
	}
	return c
}

// createBlock makes the block behind a cursor, which is in no piece yet, and has no owner. It
// returns none if the budget is spent. up is the engine hash of the block before it, want
// the number of blocks that may follow.
func (h *holders) createBlock(s *source, c cursor, key, up, local, clientHash uint64, want int) place {
	if c.kind == atKey {
		return h.createLoose(s, c.root, key, clientHash, want)
	}
	if h.bounds.isOverBudget() {
		if !h.bounds.makeRoom() {
			return place{}
		}
		c = h.tree.refreshCursor(c) // it may have been a ghost
	}
	if !c.at.isNone() {
		r := h.tree.lines.pieceAt(c.at.piece)
		if n := r.len(); c.at.at+1 == n && n < r.cap() {
			h.tree.lockPiece(c.at.piece, r)
			h.tree.writeBlock(r, n, local, clientHash)
			r.setLastKey(key)
			h.tree.extendPiece(r, 1, 0)
			r.unlock()
			h.tree.notePlace(key, place{c.at.piece, n})
			return place{c.at.piece, n}
		}
	}
	n, r := h.tree.beginChainedPiece(want, key, local, c, up)
	h.tree.writeBlock(r, 0, local, clientHash)
	h.tree.extendPiece(r, 1, 0)
	r.unlock()
	h.tree.notePlace(key, place{n, 0})
	return place{n, 0}
}

// notePlace tells findPlace of a new block.
func (t *tree) notePlace(key uint64, p place) {
	if t.places != nil {
		t.places[key] = p.ref()
	}
}

// writeBlock writes the words of a block of a chained piece, without a name.
func (t *tree) writeBlock(r *piece, at uint32, local, clientHash uint64) {
	t.made++ // all lanes are locked
	write64(&r.local()[at], local)
	write64(&r.engine()[at], 0)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
}

// createLoose makes a block of a key whose place is not known. It has no owner. of is the identity
// of the key, that of the base if the key is an engine hash without a constant.
func (h *holders) createLoose(s *source, of root, key, clientHash uint64, want int) place {
	if h.bounds.isOverBudget() && !h.bounds.makeRoom() {
		return place{}
	}
	n, at := s.tail.piece, s.tail.at+1
	r := h.tree.lines.pieceAt(n)
	if n == 0 || r.meta&(isLoose|isSide) != isLoose || r.len() != at || at >= r.cap() || clientHash != 0 && r.meta&isWide == 0 ||
		r.identity() != of.id {
		flags := uint32(isLoose)
		if clientHash != 0 && h.tree.keepsClientHashes {
			flags |= isWide
		}
		if n != 0 && r.meta&(isLoose|isSide) == isLoose && r.len() == at && r.identity() == of.id {
			want = max(want, 2*int(r.cap()))
		}
		n, r = h.tree.beginPiece(want, flags, of)
		at = 0
	} else {
		h.tree.lockPiece(n, r)
	}
	write64(&r.local()[at], key)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
	h.tree.extendPiece(r, 1, 0)
	r.unlock()
	h.tree.loose.insert(mix(key), place{n, at})
	h.tree.looseBlocks.Add(1)
	s.tail = place{n, at}
	return s.tail
}

// addHolder gives a block to an owner and reports whether it did not hold it.
func (h *holders) addHolder(o *owner, p place) bool {
	r, dead := h.tree.lines.pieceAt(p.piece), uint64(0)
	if h.tree.lines.setOf(p) == 0 {
		if !h.names.isGhost(p) {
			h.tree.clearStaleNames(p.piece, r, p.at)
			dead = 1 << p.at
		}
	} else if h.names.naming != allNamed && h.tree.lines.hasVagueNames(r, p.at, p.at+1) {
		h.finder.noteVague(o.s, p.piece)
	}
	h.tree.lockPiece(p.piece, r)
	changed := h.addHolders(o, p.piece, r, p.at, p.at+1, dead)
	r.unlock()
	return changed != 0
}

// removeHolder takes a block from an owner and reports whether it held it.
func (h *holders) removeHolder(o *owner, p place) bool {
	if !h.tree.sets.has(h.tree.lines.setOf(p), o.id) {
		return false
	}
	return h.removeHolders(o, p.piece, p.at, p.at+1) != 0
}
