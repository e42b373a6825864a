package index

import "slices"

// A block stored without tokens waits under its engine hash, as a loose block, until any
// source says what the hash means. Then it moves to its place, of all sources to which the
// hash means the block, and so does what waits behind it in their rooms.
//
//	learn(hash, block) --blocks wait--> met --placeWaiters, at the end of the block--> moved
//
// An event next to others does not give a hash its meaning while blocks wait under it
// (isAwaited).

// noteMeaning notes that an engine hash has got a meaning, for placeWaiters.
func (m *nameMap) noteMeaning(engine uint64) {
	if m.tree.looseBlocks.Load() > 0 && !m.tree.findLoose(engine).isNone() {
		m.met = append(m.met, engine)
	}
}

// waitersOf returns the sources that hold blocks under an engine hash itself.
//
// They come in the order of their numbers: the answer of the index must not depend on the
// order of a map.
func (h *holders) waitersOf(engine uint64) (all []*source) {
	p := h.tree.findLoose(engine)
	if p.isNone() || !h.names.isAlive(p) || h.names.hasNames(p) {
		return nil
	}
	h.eachHolder(h.tree.lines.setOf(p), func(o *owner) {
		if o.s.raw && !slices.Contains(all, o.s) {
			all = append(all, o.s)
		}
	})
	slices.SortFunc(all, func(a, b *source) int { return int(a.name) - int(b.name) })
	return all
}

// HasLoose reports whether blocks wait under hashes.
func (x *Index) HasLoose() bool { return x.tree.looseBlocks.Load() > 0 }

// alsoLearn lets an engine hash mean a block, for a source that waits under it, and so for
// all others unless they mean something else by it.
//
// Sources that announce tokens say themselves what their hashes mean. One waiting source is
// enough: once the hash has a meaning, the others get theirs by placeWaiters.
func (rs *resolver) alsoLearn(engine uint64, p position) {
	for _, s := range rs.holders.waitersOf(engine) {
		if !s.teaches && !rs.isContested(s, engine) && rs.meaningOf(s, engine).isNone() {
			rs.learnMeaning(s, engine, p, 1)
			return
		}
	}
}

// placeWaiters gives places to the blocks that wait under engine hashes which have got a
// meaning, of all sources to which they mean a block now, and to what waits behind those.
//
// It goes on until no hash is left that has got a meaning: a block that moves may give one
// to the next. Each turn moves a block out of its waiting place, so that ends.
//
// met is a list that grows while the loop goes over it, so the loop counts and does not
// range. The result belongs to the event that is being stored only where its own source
// moved blocks; what other sources gain is theirs, and goes into a result that nobody
// reads.
func (p *storing) placeWaiters() {
	x := p.x
	for k := 0; k < len(x.names.met); k++ {
		engine := x.names.met[k]
		for _, s := range x.holders.waitersOf(engine) {
			q := x.resolver.meaningOf(s, engine)
			if q.isNone() {
				continue
			}
			owners := p.partHolders(s, engine)
			if !x.holders.moveRaw(s, engine, q) {
				continue
			}
			p.tellAwaited(owners, s, engine)
			if line := x.names.lineOf(q, engine); line != 0 && s.private.find(engine) == nil {
				x.finder.joinTeacher(s, line)
			}
			w := &storing{x: x, s: s, e: p.e}
			if s == p.s {
				w = p
			}
			if engine != x.tree.keyOf(q) {
				w.res.Resolved++
			}
			if s.room.used > 0 {
				w.res.Resolved += w.placeWaiting(engine, x.tree.cursorAt(q))
			}
			if s != p.s {
				x.holders.emptyIdleRoom(s)
			}
		}
	}
	x.names.met = x.names.met[:0]
}

// placeOthers is placeWaiters where no event is being stored, as when a question ended
// naming on demand. It reports whether there may have been such blocks.
func placeOthers(x *Index) bool {
	if len(x.names.met) == 0 {
		return false
	}
	w := storing{x: x, e: &Store{}}
	w.placeWaiters()
	return true
}

// isAwaited reports whether blocks may wait under an engine hash for its meaning.
//
// It is asked for every new hash as long as any block waits, so it is one probe of the
// table of loose blocks, and one more for each other form of the hash.
func (p *storing) isAwaited(engine uint64) bool {
	x := p.x
	if x.tree.looseBlocks.Load() == 0 {
		return false
	}
	if !x.tree.findLoose(engine).isNone() {
		return true
	}
	for _, other := range p.otherHashes(engine) {
		if !x.tree.findLoose(other).isNone() {
			return true
		}
	}
	return false
}

// mayAlsoWait reports whether sources without tokens may have other hashes for the block at
// hand.
func (p *storing) mayAlsoWait() bool { return p.e.AlsoWaiting != 0 || p.constant != 0 }

// otherHashes returns the other hashes that sources without tokens may have for the block
// at hand, whose name is engine. Two may be the same.
func (p *storing) otherHashes(engine uint64) [2]uint64 {
	return [2]uint64{normal(plain(engine) ^ p.e.AlsoWaiting), normal(plain(engine) ^ p.constant)}
}

// partHolders returns the owners of a source that wait under the hash of a block which the
// event at hand has in parts.
//
// They are collected before the block moves: afterwards nothing says who waited.
func (p *storing) partHolders(s *source, engine uint64) (all []*owner) {
	from := p.x.tree.findLoose(engine)
	if p.e.Parts < 2 || p.e.Awaited == nil || from.isNone() {
		return nil
	}
	set := p.x.tree.lines.setOf(from)
	for _, o := range s.owners {
		if p.x.tree.sets.hasOwner(set, o.id) {
			all = append(all, o)
		}
	}
	return all
}

// tellAwaited tells of owners that waited under the hash of a block which the event has in
// parts.
//
// A publisher with larger blocks announced one block by the hash of its last part, and
// holds all of them. While the block waited, nobody knew which parts those are; this event
// does, as it has all of them. The last part is the block that the hash means, so moveRaw
// has moved it. The others are the caller's to give: the parts of a block belong together,
// which an owner of the index does not know.
func (p *storing) tellAwaited(owners []*owner, s *source, engine uint64) {
	if len(owners) == 0 {
		return
	}
	for i := p.e.Parts - 1; i < len(p.e.Engine); i += p.e.Parts {
		if name := normal(p.e.Engine[i]); name != engine {
			// The source may have waited under another form of the last part's hash.
			if others := p.otherHashes(name); others[0] != engine && others[1] != engine {
				continue
			}
		}
		for _, o := range owners {
			parts := slices.Clone(p.e.Engine[i+1-p.e.Parts : i+1])
			parts[p.e.Parts-1] = plain(engine)
			p.e.Awaited(Awaited{Source: s.name, Owner: o.name, Engine: parts})
		}
		return
	}
}

// settledBlock is a block whose key has just become known.
type settledBlock struct {
	engine uint64
	at     cursor
	up     int // the named block before it, below zero for none
	local  uint64
}

// settledCursor returns the cursor of a block of the stack, as it is now.
//
// The block was found a while ago, and each block that placeWaiting has placed since may
// have moved it or ended its piece. If it is no longer there, only its key is known. If it
// was in no piece, and blocks have been made since, one of them may be it: it is looked for
// again as the child of the one before it, which is asked in the same way, down to the
// block that the event named.
func (p *storing) settledCursor(i int) cursor {
	w := &p.s.work[i]
	if c := p.x.tree.refreshCursor(w.at); c.kind != atBlock || !c.at.isNone() {
		return c
	}
	if w.up < 0 {
		if w.at.at.isNone() && w.at.made == p.x.tree.made {
			return w.at
		}
		return cursor{kind: atKey, key: w.at.key, chainIdentity: w.at.chainIdentity}
	}
	if !w.at.at.isNone() || w.at.made != p.x.tree.made {
		w.at = p.x.tree.childOf(p.settledCursor(w.up), w.local)
	}
	return w.at
}

// placeWaiting gives places to all blocks that wait on an engine hash, directly or through
// others, and returns how many held blocks moved. Each turn uses up a link, so it
// ends whatever the publisher claims.
//
// It keeps a stack of its own and does not recurse: a prompt of a million tokens is a chain
// of 65,536 links.
//
// A link whose block the source holds moves that block. One whose block it does not hold is
// passed through: it only carried the tokens for those behind it. Where the budget has no
// room for a block, it stays where it waits, and those behind it still learn their keys.
func (p *storing) placeWaiting(engine uint64, at cursor) (moved int) {
	x, s := p.x, p.s
	if i := s.room.linkOf(engine); i != none {
		x.holders.dropLink(s, i)
	}
	s.work = append(s.work[:0], settledBlock{engine, at, -1, 0})
	for stack := []int{0}; len(stack) > 0; {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		w := s.work[top]
		for i := s.room.firstChild(w.engine); i != none; i = s.room.firstChild(w.engine) {
			l := s.room.links[i]
			s.room.removeLink(i)
			if w.at = p.settledCursor(top); !x.tree.identities.mayFollow(l.says, l.of, w.at) {
				continue // it is not this parent that the event meant
			}
			next := x.tree.childOf(w.at, l.local)
			// The link has left the room, so whatever happens now, the loop comes to an
			// end.
			if !x.tree.findHeldRaw(s, l.engine).isNone() {
				if next = x.resolver.seekBlock(s, l.engine, next, w.at); next.at.isNone() {
					clientHash := l.clientHash
					if l.of != w.at.chainIdentity {
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
			s.work = append(s.work, settledBlock{l.engine, x.tree.refreshCursor(next), top, l.local})
		}
	}
	return moved
}

// isUndecided reports whether a block behind another one, 0 for none, waits only until its identity is known: the source has
// announced all before it.
func (p *storing) isUndecided(parent uint64) bool {
	s := p.s
	if parent == 0 {
		s.undecided = s.undecided || p.e.Undecided
		return p.e.Undecided
	}
	if at := s.room.linkOf(parent); at != none {
		return s.room.links[at].undecided
	}
	return s.undecided && !p.x.tree.findHeldRaw(s, parent).isNone()
}

// waitForParent parks a block behind its parent. The newest report of a block's parent
// counts; a full room loses its oldest link, since a parent that has not come for so long
// was most likely evicted before this server listened.
//
// A second link of one hash takes the place of the first. The new one is added before idle
// links are dropped: its parent may be the only reason why another link is still of use.
func (p *storing) waitForParent(engine, parent uint64, i int) {
	r, fresh := &p.s.room, link{engine: engine, parent: parent, local: p.e.Local[i], clientHash: p.clientHash(i, p.of.id), of: p.of,
		says: p.e.Says, undecided: p.isUndecided(parent)}
	if engine == parent {
		p.res.Conflicts++
		return
	}
	if p.x.maxOrphans < 1 {
		p.res.Shed++
		return
	}
	if at := r.linkOf(engine); at != none {
		old := r.links[at].parent
		r.removeLink(at)
		r.pushLink(fresh) // first: it may be what keeps others useful
		p.x.holders.forgetIdleLinks(p.s, old)
		return
	}
	r.pushLink(fresh)
	if r.used > p.x.maxOrphans {
		p.x.holders.dropLink(p.s, r.oldest)
		p.res.Shed++
	}
}
