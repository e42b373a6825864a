package index

// cursor is where the next block of a chain goes: behind a block.
type cursor struct {
	kind cursorKind
	at   place  // the block, none where it is in no piece
	key  uint64 // of the block
	made uint64 // Index.made when at was found to be none
	root        // of the block, or of those that come behind
}

type cursorKind uint8

const (
	atUnknown cursorKind = iota // the key of the block is not known
	atRoot                      // before the first block
	atBlock                     // at is the block; or none has the key, if at is none
	atKey                       // the key is known, not which piece would have the block
)

// behind returns the cursor of a block.
func (x *Index) behind(p place) cursor {
	if p.isNone() {
		return cursor{}
	}
	r := x.at(p.piece)
	if r.loose() {
		return cursor{kind: atKey, at: p, key: x.key(p), root: r.root()}
	}
	return cursor{kind: atBlock, at: p, key: x.key(p), root: r.root()}
}

// mark keeps a cursor for the next event.
func (x *Index) mark(c cursor) mark {
	if c.at.isNone() {
		return mark{}
	}
	r := x.at(c.at.piece)
	return mark{c.at, c.key, r.head, r.lost}
}

// behindMark returns the cursor of a mark, whose block is still in its place.
func (x *Index) behindMark(m *mark) cursor {
	if r := x.at(m.at.piece); r.head == m.head && r.lost == m.lost {
		return cursor{kind: atBlock, at: m.at, key: m.key, root: r.root()}
	}
	return x.behind(m.at)
}

// child returns the cursor behind the child of a block with a local hash.
func (x *Index) child(c cursor, local uint64) cursor {
	if c.kind == atUnknown {
		return cursor{}
	}
	next := cursor{kind: atBlock, made: x.made, root: c.root}
	if c.kind == atRoot {
		next.key = c.first(local)
	} else {
		next.key = x.follow(c.key, c.constant, local)
	}
	if c.kind == atBlock && !c.at.isNone() {
		if r := x.at(c.at.piece); c.at.at+1 < r.len() && r.local()[c.at.at+1] == local {
			next.at = place{c.at.piece, c.at.at + 1}
			return next
		}
	}
	if next.at = x.beginOf(next.key, c.kind == atRoot); next.at.isNone() && c.kind == atKey {
		next.kind, next.at = atKey, x.looseOf(next.key)
	}
	return next
}

// again looks at a cursor after other blocks have changed.
func (x *Index) again(c cursor) cursor {
	if c.kind != atBlock && c.kind != atKey || c.at.isNone() {
		return c
	}
	r := x.at(c.at.piece)
	if r.meta&isSide == 0 && c.at.at < r.len() && r.loose() == (c.kind == atKey) && x.key(c.at) == c.key {
		return c
	}
	c.at, c.made = place{}, x.made
	return c
}

// cleaned takes retired owners out of the piece of a cursor, and looks at the cursor again.
func (x *Index) cleaned(c cursor) cursor {
	if c.at.isNone() || x.sweep.left == 0 {
		return c
	}
	x.clean(c.at.piece, x.at(c.at.piece))
	return x.again(c)
}

// sought looks for the block of a cursor by its engine hash as well, where only the key is known,
// and takes retired owners out of its piece. behind is the cursor of the block before.
func (x *Index) sought(s *source, engine uint64, c, behind cursor) cursor {
	if c.kind == atKey {
		if q := x.meaning(s, engine); !q.isNone() && x.key(q) == c.key {
			return x.behind(q)
		}
	}
	if c = x.cleaned(c); c.at.isNone() && behind.kind == atKey {
		c = x.cleaned(cursor{kind: atKey, at: x.looseOf(c.key), key: c.key, root: c.root})
	}
	return c
}

// create makes the block behind a cursor, which is in no piece yet, and has no owner. It
// returns none if the budget is spent. up is the engine hash of the block before it, want
// the number of blocks that may follow.
func (x *Index) create(s *source, c cursor, key, up, local, clientHash uint64, want int) place {
	if c.kind == atKey {
		return x.createLoose(s, c.root, key, clientHash, want)
	}
	if x.overBudget() {
		if !x.makeRoom() {
			return place{}
		}
		c = x.again(c) // it may have been a ghost
	}
	if !c.at.isNone() {
		r := x.at(c.at.piece)
		if n := r.len(); c.at.at+1 == n && n < r.cap() {
			x.lockPiece(c.at.piece, r)
			x.write(r, n, local, clientHash)
			r.setLastKey(key)
			x.extend(r, 1, 0)
			r.unlock()
			x.placed(key, place{c.at.piece, n})
			return place{c.at.piece, n}
		}
	}
	n, r := x.beginChained(want, key, local, c, up)
	x.write(r, 0, local, clientHash)
	x.extend(r, 1, 0)
	r.unlock()
	x.placed(key, place{n, 0})
	return place{n, 0}
}

// placed tells placeOf of a new block.
func (x *Index) placed(key uint64, p place) {
	if x.places != nil {
		x.places[key] = p.ref()
	}
}

// write writes the words of a block of a chained piece, without a name.
func (x *Index) write(r *piece, at uint32, local, clientHash uint64) {
	x.made++ // all lanes are locked
	write64(&r.local()[at], local)
	write64(&r.engine()[at], 0)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
}

// createLoose makes a block of a key whose place is not known. It has no owner. of is the identity
// of the key, that of the base if the key is an engine hash without a constant.
func (x *Index) createLoose(s *source, of root, key, clientHash uint64, want int) place {
	if x.overBudget() && !x.makeRoom() {
		return place{}
	}
	n, at := s.tail.piece, s.tail.at+1
	r := x.at(n)
	if n == 0 || r.meta&(isLoose|isSide) != isLoose || r.len() != at || at >= r.cap() || clientHash != 0 && r.meta&isWide == 0 || r.identity() != of.id {
		flags := uint32(isLoose)
		if clientHash != 0 && x.keepsClientHashes {
			flags |= isWide
		}
		if n != 0 && r.meta&(isLoose|isSide) == isLoose && r.len() == at && r.identity() == of.id {
			want = max(want, 2*int(r.cap()))
		}
		n, r = x.begin(want, flags, of)
		at = 0
	} else {
		x.lockPiece(n, r)
	}
	write64(&r.local()[at], key)
	if r.meta&isWide != 0 {
		write64(&r.clientHashes()[at], clientHash)
	}
	x.extend(r, 1, 0)
	r.unlock()
	x.loose.insert(mix(key), place{n, at})
	x.looseBlocks.Add(1)
	s.tail = place{n, at}
	return s.tail
}

// addHolder gives a block to an owner and reports whether it did not hold it.
func (x *Index) addHolder(o *owner, p place) bool {
	r, dead := x.at(p.piece), uint64(0)
	if x.setOf(p) == 0 {
		if !x.isGhost(p) {
			x.forgetStale(p.piece, r, p.at)
			dead = 1 << p.at
		}
	} else if x.naming != allNamed && x.vagueIn(r, p.at, p.at+1) {
		x.noteVague(o.s, p.piece)
	}
	x.lockPiece(p.piece, r)
	changed := x.addHolders(o, p.piece, r, p.at, p.at+1, dead)
	r.unlock()
	return changed != 0
}

// removeHolder takes a block from an owner and reports whether it held it.
func (x *Index) removeHolder(o *owner, p place) bool {
	if !x.sets.has(x.setOf(p), o.id) {
		return false
	}
	return x.removeHolders(o, p.piece, p.at, p.at+1) != 0
}
