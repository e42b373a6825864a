package index

import (
	"runtime"
	"slices"
	"unsafe"
)

// growWalks returns the ways of a query through n places.
func (m *Match) growWalks(n int) []chainWalk {
	if len(m.walks) < n {
		m.walks = append(m.walks, make([]chainWalk, n-len(m.walks))...)
	}
	return m.walks[:n]
}

// releaseWalks lets go of what a query lent, so that a Match which its caller keeps does
// not keep a prompt or an index alive. The index must live until here: the walks read
// memory that its death gives back.
func releaseWalks(ways []chainWalk) {
	for i := range ways {
		w := &ways[i]
		runtime.KeepAlive(w.x)
		w.x, w.c, w.locals, w.local, w.engine = nil, nil, nil, nil, nil
	}
}

// matchJoined looks a chain up in several places, and among loose blocks. It costs a probe
// per block and place with loose blocks.
func (m *Match) matchJoined(ways []chainWalk) {
	for try := 0; ; try++ {
		for i := range ways {
			ways[i].joined = true
			ways[i].restart()
		}
		x := ways[0].x
		if try == patience {
			x.lock()
		}
		m.joinWalks(ways)
		if try == patience {
			x.unlock()
			return
		}
		valid := true
		for i := range ways {
			valid = valid && ways[i].isStillTrue()
		}
		if valid {
			return
		}
	}
}

// joinWalks goes all ways side by side, a stretch of blocks with the same owners at a time.
//
// A stretch is as long as all places allow: as many blocks as are left of the shortest run
// at hand, or one where loose blocks may be in the way. As long as no place's owners
// change, the answer only grows longer, and no list is touched.
func (m *Match) joinWalks(ways []chainWalk) {
	m.Reset()
	for i := 0; ; {
		blocks, same := 0, i > 0
		for k := range ways {
			w := &ways[k]
			now := [2]ownerRun{}
			if i < w.length {
				left := w.length - i
				if !w.apart {
					now[0] = w.runAt(i)
					left = now[0].blocks
				}
				if w.engine == nil && w.x.tree.looseBlocks.Load() > 0 {
					now[1] = w.looseRunAt(i)
					left = 1
				}
				if blocks == 0 || left < blocks {
					blocks = left
				}
			}
			for j := range now {
				same = same && w.sameOwners(now[j], w.was[j])
			}
			w.was = now
		}
		if same && blocks > 0 {
			m.Blocks += blocks
			i += blocks
			continue
		}
		m.owners = m.owners[:0]
		for k := range ways {
			for _, r := range ways[k].was {
				m.owners = ways[k].holdersOf(m.owners, r)
			}
		}
		slices.Sort(m.owners)
		m.owners = slices.Compact(m.owners)
		if m.changeOwners(); len(m.owners) == 0 {
			return
		}
		m.Blocks += blocks
		i += blocks
	}
}

// openOwner is an owner that holds the blocks at hand, and where it is in the answer: a
// place in Prefixes, or the complement of one in Later.
type openOwner struct {
	owner uint32
	at    int32
}

// changeOwners goes on with m.owners as the owners of the blocks from m.Blocks on.
//
// Both lists are in the order of owners, so one pass tells who came, who stayed and who
// left.
func (m *Match) changeOwners() {
	before, now, at := m.joined[0], m.joined[1][:0], uint32(m.Blocks)
	for _, o := range m.owners {
		for len(before) > 0 && before[0].owner < o {
			m.endOpen(before[0])
			before = before[1:]
		}
		switch {
		case len(before) > 0 && before[0].owner == o:
			now = append(now, before[0])
			before = before[1:]
		case at == 0:
			now = append(now, openOwner{o, int32(len(m.Prefixes))})
			m.Prefixes = append(m.Prefixes, Prefix{Owner: o})
		default:
			now = append(now, openOwner{o, ^int32(len(m.Later))})
			m.Later = append(m.Later, Span{Owner: o, From: at})
		}
	}
	for _, j := range before {
		m.endOpen(j)
	}
	m.joined[0], m.joined[1] = now, m.joined[0]
}

// endOpen ends what an owner holds at m.Blocks.
func (m *Match) endOpen(j openOwner) {
	if j.at >= 0 {
		m.Prefixes[j.at].Blocks = uint32(m.Blocks)
	} else {
		m.Later[^j.at].To = uint32(m.Blocks)
	}
}

// runAt returns the run of block i in a chain, with as many blocks as are left of it.
func (w *chainWalk) runAt(i int) ownerRun {
	for i >= w.n {
		w.stepPiece()
	}
	for i >= w.start+w.runs[w.run].blocks {
		w.start += w.runs[w.run].blocks
		w.run++
	}
	r := w.runs[w.run]
	r.blocks -= i - w.start
	return r
}

// keyOfBlock returns the key of block i, the next one that was not asked for.
func (w *chainWalk) keyOfBlock(i int) uint64 {
	switch {
	case w.locals == nil:
		return normal(w.c.At(i) ^ w.constant)
	case i == 0:
		w.each = normal(w.localHash(0) ^ w.constant)
	default:
		for ; w.keys < i; w.keys++ {
			w.each = w.x.tree.followKey(w.each, w.constant, w.localHash(w.keys+1))
		}
	}
	return w.each
}

// looseRunAt returns who holds block i, its place in a chain being unknown.
//
// Loose blocks of one source lie in the order in which they were stored, so the block
// behind the last one found is tried before the table.
func (w *chainWalk) looseRunAt(i int) ownerRun {
	x, key := w.x, w.keyOfBlock(i)
	looks := spins(0)
	for p := (position{w.loose.piece, w.loose.at + 1}); ; p.piece = 0 {
		if p.piece == 0 || p.at >= maxPiece {
			if p = x.tree.findLoose(key); p.isNone() {
				return ownerRun{}
			}
		}
		r := x.tree.lines.pieceAt(p.piece)
		ver, changing := r.readVersion()
		lost, meta := load32(&r.lost), load32(&r.meta)
		if changing {
			looks.pause()
			continue
		}
		if meta&isLoose == 0 || p.at >= meta&255 || load64(&r.localHashes()[p.at]) != key {
			continue
		}
		count := int(meta >> 16 & 255)
		list := r.intervals[:]
		if count > inlineIntervals {
			line := load32(&r.intervals[0]) // a line of intervals only if the version is the same
			if !r.hasVersion(ver) {
				continue
			}
			list = unsafe.Slice((*uint32)(x.tree.lines.addressOf(line)), count)
		}
		var found ownerRun
		for j := range min(count, len(list)) {
			v := intervalOf(load32(&list[j]))
			if v.end <= p.at {
				continue
			}
			if b := x.tree.sets.body.Load(); v.set != 0 && v.set < b.cap {
				found = w.runOf(b, v.set, w.was[1])
				found.blocks = 1
			}
			break
		}
		if !r.hasVersion(ver) {
			continue
		}
		if k := len(w.seen); k == 0 || w.seen[k-1] != (visitedPiece{p.piece, lost}) {
			w.seen = append(w.seen, visitedPiece{p.piece, lost})
		}
		w.loose = p
		return found
	}
}

// sameOwners reports whether two runs have the same owners, as far as is known without the
// order of ids.
func (w *chainWalk) sameOwners(a, b ownerRun) bool {
	return a.set == b.set && (a.set == 0 || slices.Equal(w.wordsOfRun(a), w.wordsOfRun(b)))
}

// appendWords appends the words of a set.
func appendWords(dst []uint64, b *setBody, set uint32) []uint64 {
	n, from := len(dst), b.wordsOf(set)
	dst = slices.Grow(dst, len(from))[:n+len(from)]
	for i, to := 0, dst[n:]; i < len(from) && i < len(to); i++ {
		to[i] = load64(&from[i])
	}
	return dst
}
