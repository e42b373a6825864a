package index

import (
	"math/bits"
	"slices"
	"unsafe"
)

// Many prompts have one block. Such a first block lies in a roots piece, next to first
// blocks of other chains, since a piece for each would cost 128 bytes a block instead of
// some 21. Once its chain has a second block, the first block moves into a chained piece
// together with that one. Only an event of one block stores a first block here.
//
// A roots piece belongs to the source that began it, and only that source adds blocks. The
// places of blocks that left are free for later ones. Each block has its own word for the
// owner set, since neighbours have nothing in common.
//
//	head  up: places with a block, a bit each; intervals[0]: its number in rootList.open
//	body  keys | engine hashes | client hashes, if wide | owner sets, 4 bytes a block
//
// The names of its blocks have entries at once: a source mentions such a block next to
// others that lie elsewhere.
//
// The key of a first block is its local hash, except for the local hash 0. A block of that
// hash begins a chained piece.

// rootList is the roots pieces of a source.
type rootList struct {
	open []uint32 // pieces with a free place, the next one to fill last
	held int      // blocks in all of them
}

// roots reports whether the blocks of a piece are first blocks, each of another chain.
func (r *piece) roots() bool { return r.meta&isRoots != 0 }

// rootBytes returns the bytes of a block in a roots piece.
func rootBytes(meta uint32) int {
	if meta&isWide != 0 {
		return 8 + 8 + 8 + 4
	}
	return 8 + 8 + 4
}

// rootCap returns how many blocks fit into the lines of a roots piece for want blocks.
func rootCap(want int, flags uint32) int {
	n := (min(want, maxPiece)*rootBytes(flags) + lineBytes - 1) / lineBytes
	return min(n*lineBytes/rootBytes(flags), maxPiece)
}

// rootSets returns the owner sets of a roots piece, given its meta.
func (r *piece) rootSets(meta uint32) *[maxPiece]uint32 {
	k := uintptr(2)
	if meta&isWide != 0 {
		k = 3
	}
	return (*[maxPiece]uint32)(unsafe.Add(unsafe.Pointer(r), lineBytes+8*k*uintptr(meta>>8&255)))
}

// prefetchRoot begins the loads that a removal of a block waits for.
func (r *piece) prefetchRoot(at uint32) {
	prefetch(unsafe.Pointer(&r.local()[at]))
	prefetch(unsafe.Pointer(&r.rootSets(r.meta)[at]))
}

// rootSet returns the owner set of a first block with a key, if the block lies in a place
// of a roots piece. A caller without the lock has to look at the version of the piece.
func (r *piece) rootSet(at, meta uint32, key uint64) (set uint32, ok bool) {
	if meta&isRoots == 0 || at >= meta&255 || load64(&r.local()[at]) != key {
		return 0, false
	}
	return load32(&r.rootSets(meta)[at]), true
}

// begins reports whether a first block with a key is in a place.
func (x *Index) begins(p place, key uint64) bool {
	r := x.at(p.piece)
	if load64(&r.head) == key {
		return true
	}
	_, ok := r.rootSet(p.at, load32(&r.meta), key)
	return ok
}

// open lets the source of a roots piece fill its free places.
func (x *Index) open(n uint32, r *piece) {
	s := x.sources[r.by-1]
	if s == nil || r.intervals[0] != 0 || x.wide && r.meta&isWide == 0 {
		return
	}
	s.roots.open = append(s.roots.open, n)
	write32(&r.intervals[0], uint32(len(s.roots.open)))
}

// shut is the reverse of open.
func (x *Index) shut(r *piece) {
	s, i := x.sources[r.by-1], r.intervals[0]
	if s == nil || i == 0 {
		return
	}
	l := s.roots.open
	last := l[len(l)-1]
	l[i-1] = last
	write32(&x.at(last).intervals[0], i)
	write32(&r.intervals[0], 0)
	if s.roots.open = l[:len(l)-1]; s.roots.held == 0 && cap(l) > maxPiece {
		s.roots.open = nil
	}
}

// beginRoot makes a first block in a roots piece of a source, without an owner and a name,
// and returns the piece locked. A new piece has room for as many blocks as the source has.
func (x *Index) beginRoot(s *source, key, clientHash uint64) (place, *piece) {
	l := &s.roots
	var n uint32
	var r *piece
	for n == 0 && len(l.open) > 0 {
		n = l.open[len(l.open)-1]
		if r = x.at(n); x.wide && r.meta&isWide == 0 { // from before client hashes came
			x.shut(r)
			n = 0
		}
	}
	if n != 0 {
		x.lockPiece(n, r)
	} else {
		flags := uint32(isRoots)
		if x.wide {
			flags |= isWide
		}
		n, r = x.begin(max(l.held, 1), flags)
		r.by = uint32(s.name) + 1
		write32(&r.intervals[0], 0)
		x.open(n, r)
	}
	l.held++
	at := trailing(^r.up)
	if r.up |= 1 << at; r.up == spanOf(0, r.cap()) {
		x.shut(r)
	}
	x.write(r, at, key, clientHash)
	write32(&r.rootSets(r.meta)[at], 0)
	if at >= r.len() {
		r.set(at+1, 0)
	}
	p := place{n, at}
	x.heads.insert(mix(key), p.ref())
	x.placed(key, p)
	return p, r
}

// root stores the only block of an event, which is a first block that no piece has. The
// engine hash is new.
func (p *storing) root(key uint64) cursor {
	x, engine := p.x, normal(p.e.Engine[0])
	q, r := x.beginRoot(p.s, key, p.e.clientHash(0))
	write64(&r.engine()[q.at], engine)
	write32(&r.rootSets(r.meta)[q.at], x.sets.single(p.s.lane, p.o.id))
	r.unlock()
	if x.nameBlocks(p.s.lane, q.piece, r, 1<<q.at); r.named>>q.at&1 == 0 {
		x.noteVague(p.s, q.piece)
	}
	p.o.held(1, 0, key)
	p.s.lane.live++
	p.s.lane.names++
	p.res.Added++
	return cursor{kind: atBlock, at: q, key: key}
}

// promote returns the block of a cursor, in a chained piece: a block in a roots piece moves
// into a new one with room for want blocks. It returns none if that block has left.
//
// Queries find the block at any moment: the new piece is in Index.heads before the old
// place is not. A query that has read the old place looks again, since the roots piece
// counts the block as lost.
func (x *Index) promote(c cursor, want int) place {
	from := c.at
	r := x.at(from.piece)
	if !r.roots() {
		return from
	}
	if x.naming == catchingUp && x.vagueIn(r, from.at, from.at+1) {
		// Naming may have passed the page of the new piece.
		x.nameAllOf(&x.lanes[0].lane, from.piece)
		x.yield(from.piece)
	}
	set, ok := r.rootSet(from.at, r.meta, c.key)
	if !ok {
		return place{}
	}
	n, chained := x.beginChained(want, c.key, cursor{}, 0)
	to := place{piece: n}
	x.write(chained, 0, c.key, r.clientHash(from.at))
	x.extend(chained, 1, set)
	x.moveNames(from, to)
	for _, own := range slices.Clone(x.privates[from.ref()]) {
		x.keepPrivate(own.s, own.engine, to)
	}
	x.holders(set, func(o *owner) {
		if more := o.copies.of(from); more > 0 {
			o.copies.set(from, 0)
			o.copies.set(to, more)
		}
	})
	chained.unlock()

	x.lockPiece(from.piece, r)
	write32(&r.lost, r.lost+1)
	write32(&r.rootSets(r.meta)[from.at], 0)
	x.sets.drop(set)
	x.vacate(from.piece, r, 1<<from.at)
	x.trim(&x.lanes[0].lane, from.piece, r)
	return to
}

// moveNames moves the names of a block to where the block is now. Each has an entry.
func (x *Index) moveNames(from, to place) {
	r := x.at(from.piece)
	for line, i, engine, named, by := from.piece, from.at, r.engine(), &r.named, r.by; ; {
		if i < maxPiece && engine[i] != 0 {
			now, at, entries := x.spare(&source{name: Source(by - 1)}, to, 1)
			write64(&x.words(now)[at], engine[i])
			x.names.insert(mix(engine[i]), place{now, at}.ref()) // first: a query finds one of both
			x.names.remove(mix(engine[i]), place{line, i}.ref())
			*named &^= 1 << i
			*entries |= 1 << at
		}
		next := r.side
		if line != from.piece {
			next = x.sideAt(line).next
		}
		if line = next; line == 0 {
			return
		}
		d := x.sideAt(line)
		if i, engine, named, by = maxPiece, d.engine(), &d.named, d.by; d.covers(from.at) {
			i = from.at - d.from()
		}
	}
}

// vacate makes the places of some blocks of a locked roots piece free. The blocks have no
// owner there, and their names no entry.
func (x *Index) vacate(n uint32, r *piece, blocks uint64) {
	l, engine := r.local(), r.engine()
	for w := blocks; w != 0; w &= w - 1 {
		i := trailing(w)
		x.heads.remove(mix(l[i]), place{n, i}.ref())
		write64(&l[i], 0)
		write64(&engine[i], 0)
	}
	for line := r.side; line != 0; {
		d := x.sideAt(line)
		for w := d.part(blocks); w != 0; w &= w - 1 {
			write64(&d.engine()[trailing(w)], 0)
		}
		line = d.next
	}
	r.up &^= blocks
	if s := x.sources[r.by-1]; s != nil {
		s.roots.held -= bits.OnesCount64(blocks)
	}
	if r.up != 0 {
		x.open(n, r)
	}
}

// trimRoots takes free places off the end of a locked roots piece and frees the piece if it
// has no block. It unlocks the piece.
func (x *Index) trimRoots(l *lane, n uint32, r *piece) {
	r.set(uint32(bits.Len64(r.up)), 0)
	if r.up != 0 {
		r.unlock()
		return
	}
	x.shut(r)
	x.end(l, n, r)
}

// changeRoots is change for a roots piece.
func (x *Index) changeRoots(l *lane, r *piece, lo, hi, owner uint32, give bool) (changed, edge uint64) {
	sets := r.rootSets(r.meta)
	for w := r.up & spanOf(lo, hi); w != 0; w &= w - 1 {
		at := trailing(w)
		set := sets[at]
		if x.sets.has(set, owner) == give {
			continue
		}
		to := x.sets.toggle(l, set, owner)
		write32(&sets[at], to)
		x.sets.drop(set)
		if changed |= 1 << at; to == 0 || set == 0 {
			edge |= 1 << at
		}
	}
	return changed, edge
}

// cleanRoots takes retired owners out of a locked roots piece, and returns the blocks that
// lost their last owner.
func (x *Index) cleanRoots(r *piece) (dead uint64) {
	sets := r.rootSets(r.meta)
	for w := r.up; w != 0; w &= w - 1 {
		at := trailing(w)
		set := sets[at]
		to := x.without(set)
		write32(&sets[at], to)
		x.sets.drop(set)
		if to == 0 && set != 0 {
			dead |= 1 << at
		}
	}
	return dead
}

// rootIntervals appends the owners of the blocks of a roots piece.
func (r *piece) rootIntervals(out []interval) []interval {
	sets := r.rootSets(r.meta)
	for at := range r.len() {
		set := uint32(0)
		if r.up>>at&1 != 0 {
			set = sets[at]
		}
		out = merged(out, set, at+1)
	}
	return out
}
