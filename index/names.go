package index

import (
	"math/bits"
)

// A name is an engine hash of a block. The names of a chained piece lie in its body, one
// a block, as far as sources of one family have taught them; all others lie in sides. All
// names of a block leave with its last owner.

// nameMap is the engine hashes of blocks as all sources mean them. It also takes retired
// owners out of pieces (the sweep), because a name may lead to a block that only they held,
// and keeps ghosts.
type nameMap struct {
	tree     *tree
	table    *nameTable
	families familyTable
	privates privateNames

	// Written while all lanes are locked.
	sweep      sweep
	naming     naming  // which blocks have entries in the table
	namedPages int     // of catchingUp: pages whose blocks have
	perEvent   portion // what an event does of a sweep, and of naming
	full       fullNaming
	met        []uint64 // engine hashes with a new meaning, under which blocks may wait

	ghosts ghosts // last: its queue changes with events, and what stands above is read by each of them
}

// findName returns the block that an engine hash means to all, and the line of the name.
//
// Next to other lanes the answer is a guess by the time it is used: the block may be just
// leaving, and its line be another piece's. Such callers hold the piece and ask lineOf
// again. While a sweep is under way the piece is cleaned first, or the hash would mean a
// block that nobody holds.
func (m *nameMap) findName(engine uint64) (at position, line uint32) {
	var buf [4]uint64
	for _, ref := range m.table.appendRefs(mix(engine), buf[:0]) {
		if at, line = m.blockAt(ref, engine); line == 0 {
			continue
		}
		if m.sweep.left > 0 && m.cleanPiece(at.piece, m.tree.lines.pieceAt(at.piece)) && !m.hasEntry(ref, engine) {
			return position{}, 0 // only retired owners held it
		}
		return at, line
	}
	return position{}, 0
}

// blockAt returns the block of a name, if the reference leads to it. The line may be a
// piece, a side, or either of another life; the word there decides, and flags and lengths
// are checked before it is read.
func (m *nameMap) blockAt(ref, engine uint64) (position, uint32) {
	q := decodePosition(ref)
	r := m.tree.lines.pieceAt(q.piece)
	switch meta := load32(&r.meta); {
	case meta&isSide != 0:
		d := m.tree.lines.sideAt(q.piece)
		if load64(&d.engineHashes()[q.at]) == engine {
			return position{load32(&d.piece), meta&255 + q.at}, q.piece
		}
	case meta&isLoose == 0 && q.at < meta>>8&255:
		if load64(&r.engineHashesAt(meta)[q.at]) == engine {
			return q, q.piece
		}
	}
	return position{}, 0
}

// hasEntry reports whether the table has a name with a reference.
func (m *nameMap) hasEntry(ref, engine uint64) bool {
	return m.table.hasEntry(mix(engine), ref)
}

// isSimple reports that all engine hashes are ordinary to a source.
func (s *source) isSimple() bool { return s.private.len() == 0 && !s.raw && s.room.used == 0 }

// enterName makes the entry of an engine hash of a block, unless it means another block.
//
// The first try adds nothing if any entry has the same tag, which needs no look at a block
// in the usual case. Only then are the blocks asked whether one of them has this very hash.
func (m *nameMap) enterName(engine uint64, at position) bool {
	h := mix(engine)
	if m.table.addEntry(h, at.encode()) {
		return true
	}
	if q, _ := m.findName(engine); !q.isNone() {
		return false
	}
	m.table.insertEntry(h, at.encode())
	return true
}

// dropNames makes ghosts of blocks that have no owner any more, or strips them. The piece
// is changing.
//
// The caller has made readers wait, so none of them comes by a name without its block.
func (m *nameMap) dropNames(l *lane, n uint32, r *piece, blocks uint64) {
	if m.ghosts.on.Load() {
		if blocks = m.fadeBlocks(l, n, r, blocks); blocks == 0 {
			return
		}
	}
	m.stripNames(l, n, r, blocks)
}

// stripNames drops all names of blocks without an owner, and the entries of loose ones.
//
// Entries of all names are fetched before the first is removed. A removal of a full piece
// would otherwise wait for 64 cache misses one after the other.
//
// Counts and entries leave here, the words stay: they are no names once the block has
// neither an owner nor an entry, and clearing them would cost a cache line each. Keys of
// loose blocks are cleared, as nothing else says that such a block has gone.
func (m *nameMap) stripNames(l *lane, n uint32, r *piece, blocks uint64) {
	local := r.localHashes()
	if !r.loose() {
		l.names -= countHashes(r.engineHashes(), blocks)
		m.leaveNames(r.engineHashes(), n, blocks&r.named)
		r.named &^= blocks
	}
	for line := r.side; line != 0; {
		d := m.tree.lines.sideAt(line)
		here := d.partOf(blocks)
		l.names -= countHashes(d.engineHashes(), here)
		m.leaveNames(d.engineHashes(), line, here&d.named)
		d.named &^= here
		line = d.next
	}
	m.losePrivates(l, n, blocks)
	if r.loose() {
		m.tree.looseBlocks.Add(-int64(bits.OnesCount64(blocks)))
		for w := blocks; w != 0; w &= w - 1 {
			i := lowestBit(w)
			m.tree.loose.removeEntry(mix(local[i]), position{n, i})
			m.ghosts.forgetLost(local[i])
			write64(&local[i], 0)
		}
	}
}

// leaveNames takes the entries of some engine hashes of a line out.
func (m *nameMap) leaveNames(engine *words, line uint32, which uint64) {
	for w := which; w != 0; w &= w - 1 {
		m.table.prefetchBucket(mix(engine[lowestBit(w)]))
	}
	for w := which; w != 0; w &= w - 1 {
		i := lowestBit(w)
		m.table.removeEntry(mix(engine[i]), position{line, i}.encode())
	}
}

// hasNames reports whether a block has names, of all or of single sources.
func (m *nameMap) hasNames(p position) bool {
	some := len(m.privates.of[p.encode()]) > 0
	m.tree.lines.eachNameOf(p, func(uint64, uint32) { some = true })
	return some
}

// isAlive reports whether an owner holds a block. It takes retired owners out of the piece
// first, after which the piece may be shorter than the position, or gone. A caller that
// gets false has to look the block up again.
func (m *nameMap) isAlive(p position) bool {
	if m.sweep.left > 0 && m.cleanPiece(p.piece, m.tree.lines.pieceAt(p.piece)) && p.at >= m.tree.lines.pieceAt(p.piece).len() {
		return false
	}
	return m.tree.lines.setOf(p) != 0
}

// lineOf returns the line in which a block with an owner, or a ghost, has an engine hash, 0
// if it has not. Of a loose block it returns 0; lineOfName is for those.
//
// Engines ask for the block whose name lies in the body, so that is one comparison. The
// word alone is not enough: a dead block has the words of its former life.
func (m *nameMap) lineOf(p position, engine uint64) uint32 {
	r := m.tree.lines.pieceAt(p.piece)
	if r.loose() || p.at >= r.len() {
		return 0
	}
	line := p.piece
	if r.engineHashes()[p.at] != engine {
		for line = r.side; line != 0; {
			d := m.tree.lines.sideAt(line)
			if d.covers(p.at) && d.engineHashes()[p.at-d.firstBlock()] == engine {
				break
			}
			line = d.next
		}
	}
	if line == 0 || m.tree.lines.setOf(p) == 0 && !m.isGhost(p) {
		return 0
	}
	return line
}

// lineOfName returns the line in which a block with an owner, or a ghost, has a name; 0 for
// none.
func (m *nameMap) lineOfName(p position, engine uint64) uint32 {
	r := m.tree.lines.pieceAt(p.piece)
	if !r.loose() {
		return m.lineOf(p, engine)
	}
	line := r.side
	for line != 0 {
		if d := m.tree.lines.sideAt(line); d.covers(p.at) && d.engineHashes()[p.at-d.firstBlock()] == engine {
			break
		}
		line = m.tree.lines.sideAt(line).next
	}
	return line
}

// findKnown returns the block that an engine hash means, and the line of the name. It is
// the block at hand if that has the name. While names get entries on demand it knows no
// other.
func (m *nameMap) findKnown(engine uint64, at position) (position, uint32) {
	if line := m.lineOf(at, engine); line != 0 {
		return at, line
	}
	if m.naming == onDemand {
		return position{}, 0
	}
	return m.findName(engine)
}

// enterNames makes entries for some engine hashes of a line. It returns which it made, and
// whether one means another block.
//
// Blocks that wait under such a hash are placed only while all lanes are locked. Next to
// other lanes no hash gets a meaning while blocks wait under it (isAwaited).
func (m *nameMap) enterNames(engine *words, line uint32, which uint64) (made uint64, clash bool) {
	for w := which; w != 0; w &= w - 1 {
		m.table.prefetchBucket(mix(engine[lowestBit(w)]))
	}
	for w := which; w != 0; w &= w - 1 {
		i := lowestBit(w)
		if engine[i] == 0 {
			continue
		}
		if m.enterName(engine[i], position{line, i}) {
			if made |= 1 << i; m.tree.lanes.alone {
				m.noteMeaning(engine[i]) // it was not found before
			}
		} else {
			clash = true
		}
	}
	return made, clash
}
