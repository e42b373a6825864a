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
//
// The lists of numbers (seen, runs, words) stay as they are. Their capacity is what makes
// the next query with the same Match allocate nothing.
func releaseWalks(ways []chainWalk) {
	for i := range ways {
		w := &ways[i]
		runtime.KeepAlive(w.x)
		w.x, w.c, w.locals, w.local, w.engine = nil, nil, nil, nil, nil
	}
}

// matchJoined looks a chain up in several places, and among loose blocks. It costs a probe
// per block and place with loose blocks.
//
// If one way turns out stale, all of them start over. The answer joins what is held in all
// places, so all of it has to be true of one moment: a block that moved between the reads
// of two ways, from a place that was still to be read to one that had been, would be
// missing from both, and an owner could be listed with a gap that it never had. All places
// are in one index, so the lock of the first way's index serves for all of them.
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
// at hand, or a single one where loose blocks may be in the way, because neighbours in a
// prompt need not be neighbours as loose blocks. As long as no place's owners change, the
// answer only grows longer, and no list is touched. That is the usual case, so the
// comparison with the previous runs (was) comes first, and owners are listed and sorted
// only where it fails.
//
// A way that has come to its end has two empty runs. When the last one ends, no owner is
// left, and changeOwners closes all open entries of the answer before the loop returns.
func (m *Match) joinWalks(ways []chainWalk) {
	m.Reset()
	gap := false // behind a block without an owner
	for i := 0; ; {
		// There are no owners before block 0, so same must not be true there even if all
		// runs are empty.
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
				// Loose blocks are found by keys, so a way by names finds none.
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
		m.walked = i
		if m.changeOwners(); len(m.owners) == 0 {
			if !gap {
				gap, m.Blocks = true, i
			}
			if !m.Gaps || blocks == 0 {
				return
			}
		}
		i += blocks
	}
}

// openOwner is an owner that holds the blocks at hand, and where it is in the answer: a
// place in Prefixes, or the complement of one in Later.
type openOwner struct {
	owner uint32
	at    int32
}

// changeOwners goes on with m.owners as the owners of the blocks from m.walked on.
//
// Both lists are in the order of owners, so one pass tells who came, who stayed and who
// left. Only who is there at block 0 gets a Prefix. Everybody who comes later gets a Span,
// also an owner that has been there before: there is a block between that it lacks, and a
// router that took the sum for a prefix would expect a cache hit that the engine cannot
// have.
//
// The two buffers of m.joined change places with each call, since the previous list is read
// while the new one is written.
func (m *Match) changeOwners() {
	before, now, at := m.joined[0], m.joined[1][:0], uint32(m.walked)
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

// endOpen ends what an owner holds at m.walked.
func (m *Match) endOpen(j openOwner) {
	if j.at >= 0 {
		m.Prefixes[j.at].Blocks = uint32(m.walked)
	} else {
		m.Later[^j.at].To = uint32(m.walked)
	}
}

// runAt returns the run of block i in a chain, with as many blocks as are left of it. i
// only ever rises, so run and start go on from where the last call left them.
//
// Pieces are read as late as possible, because the answer may end before. stepPiece cannot
// come to nothing here: i is below the length, and a joined way goes on behind a block that
// nobody holds (skipBlock). So the first loop ends.
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
//
// It has a place of its own for the key of the block at hand. The one in w.key belongs to
// stepPiece, which knows keys only at the ends of pieces, and must not be moved back or
// forth by a probe for a loose block in the midst of one.
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
// behind the last one found is tried before the table. Each further turn of the loop asks
// the table: whatever made the last attempt fail (another block at the position, a piece
// that was changing, a version that did not last), only the table says where the key is
// now.
//
// As in readPiece, everything is read between two looks at the version and believed behind
// the second one. A piece counts as seen only if the block was found in it. Nothing needs
// to be remembered of a block that is absent: if it comes meanwhile, the answer is shorter
// than the truth, which is allowed, and if it moves into a chain, turns tells.
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
			// The body is loaded after the number, so it has every set that a piece may
			// name. A number beyond it is half of something else, as the version will tell.
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
//
// Equal numbers of sets are not enough, because a number may have been given to another set
// between the two reads. Different numbers with equal owners are possible for the same
// reason; that mistake costs a merge of two lists and changes no answer.
func (w *chainWalk) sameOwners(a, b ownerRun) bool {
	return a.set == b.set && (a.set == 0 || slices.Equal(w.wordsOfRun(a), w.wordsOfRun(b)))
}

// appendWords appends a copy of the words of a set. Each word is loaded atomically: the set
// may have ended, and a writer may be filling the words for the next one of that number.
// The caller finds that out by the version of the piece.
func appendWords(dst []uint64, b *setBody, set uint32) []uint64 {
	n, from := len(dst), b.wordsOf(set)
	dst = slices.Grow(dst, len(from))[:n+len(from)]
	for i, to := 0, dst[n:]; i < len(from) && i < len(to); i++ {
		to[i] = load64(&from[i])
	}
	return dst
}
