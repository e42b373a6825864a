package index

import "slices"

// Inspector answers what a query does not: which names a block has, what waits, what was
// lost for want of memory. People and tests ask, and callers that meet an event out of the
// ordinary. Each method locks the whole index and some walk all of it, so none belongs on
// the way of a query.
type Inspector struct{ x *Index }

// Inspect returns the Inspector of the index. It costs nothing.
func (x *Index) Inspect() Inspector { return Inspector{x} }

// WasRefused reports whether a key was refused since there was room last, or looks like one
// that was. The key is a canonical sequence hash, of the identity with a constant.
func (q Inspector) WasRefused(constant, key uint64) bool {
	return q.x.bounds.wasRefused(normal(key ^ constant))
}

// WaitingAmong returns the positions of the local hashes under which blocks of a source
// wait for their parent. It walks the waiting room.
func (q Inspector) WaitingAmong(src Source, local []uint64) (at []int) {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil || s.room.used == 0 {
		return nil
	}
	waits := make(map[uint64]bool, s.room.used)
	for i := s.room.oldest; i != none; i = s.room.links[i].newer {
		waits[s.room.links[i].local] = true
	}
	for i, l := range local {
		if waits[l] {
			at = append(at, i)
		}
	}
	return at
}

// CountTokenless returns how many memberships of a source are under engine hashes that wait
// for tokens, not for a parent. It is an estimate.
func (q Inspector) CountTokenless(src Source) int {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil {
		return 0
	}
	return s.untold()
}

// untold returns about how many memberships of the source are under engine hashes and do not wait for a parent.
//
// Each block that waits for a parent is held raw as well, so those in the room are taken
// off. Several owners of the source may hold a block for which there is one link, and links
// may be of blocks that are not held, so the difference is no exact number.
func (s *source) untold() (n int) {
	if !s.raw {
		return 0
	}
	for _, o := range s.owners {
		n += o.raw
	}
	return max(n-s.room.decided, 0)
}

// NamesAt returns the engine hashes of a block of a chain, of the identity with a constant,
// as far as an owner holds the block, or it is a ghost, and all blocks before it have a
// place.
//
// It looks back up to 64 blocks for the head of the piece that has the block, since keys
// within pieces are in no table.
//
// The nearest head decides. Its block is in no other piece, so no piece that begins before
// it has the block that is asked for.
func (q Inspector) NamesAt(constant uint64, c LocalChain, block int) (names []uint64) {
	q.x.lock()
	defer q.x.unlock()
	if block >= c.Len() {
		return nil
	}
	local, of := c.Locals(block+1), chainIdentity{constant: constant}
	for i := block; i >= 0 && i > block-maxPiece; i-- {
		p := q.x.tree.findBeginning(of.keyOf(c.At(i)), i == 0)
		if p.isNone() {
			continue
		}
		r := q.x.tree.lines.pieceAt(p.piece)
		for k := i; k < block; k++ { // on to the block, in the same piece
			if p.at++; r.loose() || p.at >= r.len() || r.localHashes()[p.at] != local[k+1] {
				return nil
			}
		}
		if q.x.tree.lines.setOf(p) != 0 || q.x.names.isGhost(p) {
			q.x.tree.lines.eachNameOf(p, func(engine uint64, _ uint32) { names = append(names, plain(engine)) })
		}
		return names
	}
	return nil
}

// OnlyName reports whether an engine hash means a block to a source that one of some owners of it holds, and that no other
// engine hash means. Then the owner got the block by this hash. It returns the identity of the block.
func (q Inspector) OnlyName(src Source, owners []Owner, engine uint64) (id Identity, only bool) {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil {
		return 0, false
	}
	p := q.x.resolver.meaningOf(s, normal(engine))
	if p.isNone() || len(q.x.names.privates.of[p.encode()]) > 0 {
		return 0, false
	}
	names, held := 0, false
	q.x.tree.lines.eachNameOf(p, func(uint64, uint32) { names++ })
	for _, name := range owners {
		o := q.x.holders.owners[name]
		held = held || o != nil && q.x.tree.sets.hasOwner(q.x.tree.lines.setOf(p), o.id)
	}
	return q.x.tree.lines.pieceAt(p.piece).identityID(), held && names == 1
}

// HasRawBlocks reports whether a source may hold blocks under their engine hashes, as their
// keys are not known.
func (q Inspector) HasRawBlocks(src Source) bool {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	return s != nil && s.raw
}

// EachAlias calls f for each source and each engine hash of known key that an owner of the
// source holds, with the identity of the block and its canonical sequence hash, in no
// particular order, until f returns false. f must not call the index.
//
// Each name is given once for each source, even if several owners of the source hold the
// block.
//
// seen has, for each source, the number of the last name that was given for it. That
// answers whether the name at hand was given already, without a set to be cleared for each
// of millions of names.
func (q Inspector) EachAlias(f func(src Source, id Identity, engine, seq uint64) bool) {
	q.x.lock()
	defer q.x.unlock()
	seen, n := make([]int, len(q.x.holders.sources)), 0
	more := true
	q.x.tree.lines.eachName(func(engine uint64, p position) bool {
		n++
		key := q.x.tree.seqOf(p)
		q.x.holders.eachHolder(q.x.tree.lines.setOf(p), func(o *owner) {
			src := o.s.name
			if !more || seen[src] == n {
				return
			}
			seen[src] = n
			if o.s.private.find(engine) == nil {
				more = f(src, q.x.tree.lines.pieceAt(p.piece).identityID(), plain(engine), key)
			}
		})
		return more
	})
	for _, s := range q.x.holders.sources {
		if s == nil || !more {
			continue
		}
		s.private.each(func(engine uint64, ref *uint64) bool {
			if p := decodePosition(*ref); q.x.tree.isHeldBy(s, p) {
				more = f(s.name, q.x.tree.lines.pieceAt(p.piece).identityID(), plain(engine), q.x.tree.seqOf(p))
			}
			return more
		})
	}
}

// IsPlaced reports whether an engine hash means a block to a source whose place in a chain
// is known.
func (q Inspector) IsPlaced(src Source, engine uint64) bool {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil {
		return false
	}
	p := q.x.resolver.meaningOf(s, normal(engine))
	return !p.isNone() && !q.x.tree.lines.pieceAt(p.piece).loose()
}

// CountCopies returns how many blocks an owner holds, with all their copies. It costs the
// blocks with copies.
func (q Inspector) CountCopies(name Owner) (n int) {
	q.x.lock()
	defer q.x.unlock()
	if o := q.x.holders.owners[name]; o != nil {
		n = o.digest.Blocks
		o.copies.eachBlock(func(_ position, more uint32) { n += int(more) })
	}
	return n
}

// Copies appends how many copies an owner holds of the block that each engine hash means to it, 0 where it does not hold the
// block. All events wait meanwhile.
func (q Inspector) Copies(dst []int, name Owner, engine []uint64) []int {
	q.x.lock()
	defer q.x.unlock()
	o := q.x.holders.owners[name]
	for _, h := range engine {
		n := 0
		if o != nil {
			r := removing{x: q.x, s: o.s, o: o}
			if p := r.resolveHash(normal(h)); !p.isNone() && q.x.tree.sets.hasOwner(q.x.tree.lines.setOf(p), o.id) {
				n = 1 + int(o.copies.extraOf(p))
			}
		}
		dst = append(dst, n)
	}
	return dst
}

// NamesBefore appends names of the n blocks before the one that an engine hash means to a
// source, in the order of the chain. It appends fewer where the chain begins, and then
// reports root, or where a block has no name that means it to the source. All events wait
// meanwhile.
//
// A name counts only if the source would be understood by it: one that it means another
// block by, or that is contested, is passed over for the next.
func (q Inspector) NamesBefore(dst []uint64, src Source, engine uint64, n int) (names []uint64, root bool) {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil {
		return dst, false
	}
	from := len(dst)
	for p := q.x.resolver.meaningOf(s, normal(engine)); !p.isNone() && !q.x.tree.lines.pieceAt(p.piece).loose(); {
		p, root = q.x.resolver.parentOf(s, p)
		if p.isNone() || len(dst)-from == n {
			break
		}
		name := uint64(0)
		q.x.tree.lines.eachNameOf(p, func(engine uint64, _ uint32) {
			if name == 0 && (s.private.len() == 0 || s.private.find(engine) == nil) && !q.x.resolver.isContested(s, engine) {
				name = engine
			}
		})
		if name == 0 {
			break
		}
		dst = append(dst, plain(name))
	}
	slices.Reverse(dst[from:])
	return dst, root
}

// ChainTo finds the block that an engine hash means to a source, and returns the local hashes of the n blocks of its chain that end
// there. parent is a name of the block before those n; if they begin a prompt there is none, and begins is true. ok is false if the
// hash means no block in a chain, if the chain has fewer blocks, or if the source knows no name of the block before. All events
// wait meanwhile.
func (q Inspector) ChainTo(src Source, engine uint64, n int) (locals []uint64, parent uint64, begins, ok bool) {
	q.x.lock()
	defer q.x.unlock()
	s := q.x.holders.sources[src]
	if s == nil {
		return nil, 0, false, false
	}
	p, root := q.x.resolver.meaningOf(s, normal(engine)), false
	for range n {
		if p.isNone() || q.x.tree.lines.pieceAt(p.piece).loose() {
			return nil, 0, false, false
		}
		locals = append(locals, q.x.tree.lines.pieceAt(p.piece).localHashes()[p.at])
		p, root = q.x.resolver.parentOf(s, p)
	}
	slices.Reverse(locals)
	if p.isNone() {
		return locals, 0, root, root
	}
	q.x.tree.lines.eachNameOf(p, func(engine uint64, _ uint32) {
		if !ok && (s.private.len() == 0 || s.private.find(engine) == nil) && !q.x.resolver.isContested(s, engine) {
			parent, ok = plain(engine), true
		}
	})
	return locals, parent, false, ok
}

// AppendKeys appends the canonical sequence hashes of the blocks of a prompt, of which engine hashes are known, 0 where one is not to be
// found: its hash means no block of the identity with a constant, or none that has a place in a chain. The first call lets all names
// have entries, as Index.NameAllBlocks does. All events wait meanwhile.
func (q Inspector) AppendKeys(dst []uint64, constant uint64, engine []uint64) []uint64 {
	x := q.x
	x.lock()
	defer x.unlock()
	if !x.names.full.always {
		x.names.full.always = true
		x.resolver.beginNamingAll()
	}
	first := len(dst)
	for _, h := range engine {
		dst = append(dst, 0)
		p, _ := x.names.findName(normal(h))
		if p.isNone() {
			continue
		}
		if r := x.tree.lines.pieceAt(p.piece); r.loose() || r.constant() != constant {
			continue
		}
		for i := len(dst) - 1; ; i, p.at = i-1, p.at-1 { // those before it in its piece may have left
			if dst[i] = x.tree.seqOf(p); i == first || p.at == 0 || dst[i-1] != 0 {
				break
			}
		}
	}
	return dst
}

// GhostsWanted returns the bytes of Options.Ghosts with which no name that events asked for
// so far would have been lost, 0 if none was. It is an estimate.
func (q Inspector) GhostsWanted() int64 {
	if q.x.names.ghosts.count == nil {
		return 0
	}
	return q.x.names.ghosts.wanted.Load() * ghostBytes * max(q.x.names.ghosts.count.of.indexes.Load(), 1)
}

// EachClientHash calls f for the client hash of every block that is held or waits, the same
// one as often as blocks have it. f must not call the index, whose lock is held. Ghosts and
// dead blocks are left out, as nobody can hit them.
func (q Inspector) EachClientHash(f func(clientHash uint64)) {
	q.x.lock()
	defer q.x.unlock()
	q.x.tree.lines.eachPiece(func(n uint32, r *piece) {
		for i := range r.len() {
			if clientHash := r.clientHashOf(i); clientHash != 0 && q.x.tree.lines.setOf(position{n, i}) != 0 {
				f(clientHash)
			}
		}
	})
	for _, s := range q.x.holders.sources {
		if s != nil {
			for l := range s.room.each {
				f(l.clientHash)
			}
		}
	}
}
