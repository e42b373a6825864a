package index

// Questions of people about one prompt. Unlike queries they lock the index, and may walk.

// Refused reports whether a key was refused since there was room last, or looks like one that
// was. The key is a canonical sequence hash, of the identity with a constant.
func (x *Index) Refused(constant, key uint64) bool { return x.wasRefused(normal(key ^ constant)) }

// WaitingAmong returns the positions of the local hashes under which blocks of a source wait for
// their parent. It walks the waiting room.
func (x *Index) WaitingAmong(src Source, local []uint64) (at []int) {
	x.lock()
	defer x.unlock()
	s := x.sources[src]
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

// Tokenless returns how many memberships of a source are under engine hashes that wait for
// tokens, not for a parent. It is an estimate.
func (x *Index) Tokenless(src Source) (n int) {
	x.lock()
	defer x.unlock()
	s := x.sources[src]
	if s == nil || !s.raw {
		return 0
	}
	for _, o := range s.owners {
		n += o.raw
	}
	return max(n-s.room.used, 0)
}

// NamesAt returns the engine hashes of a block of a chain, of the identity with a constant, as far as an
// owner holds the block, or it is a ghost, and all blocks before it have a place.
func (x *Index) NamesAt(constant uint64, c LocalChain, block int) (names []uint64) {
	x.lock()
	defer x.unlock()
	if block >= c.Len() {
		return nil
	}
	local, of := c.Locals(block+1), root{constant: constant}
	for i := block; i >= 0 && i > block-maxPiece; i-- {
		p := x.beginOf(of.key(c.At(i)), i == 0)
		if p.isNone() {
			continue
		}
		r := x.at(p.piece)
		for k := i; k < block; k++ { // on to the block, in the same piece
			if p.at++; r.loose() || p.at >= r.len() || r.local()[p.at] != local[k+1] {
				return nil
			}
		}
		if x.setOf(p) != 0 || x.isGhost(p) {
			x.allNamesOf(p, func(engine uint64, _ uint32) { names = append(names, plain(engine)) })
		}
		return names
	}
	return nil
}
