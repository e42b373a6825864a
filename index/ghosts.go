package index

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Names that outlive their blocks. In an index that keeps ghosts, a block that loses its
// last owner and has a name stays where it is, as a ghost: its names keep their entries, so
// that an event finds the block by them. No query sees it, as no owner holds it. The next
// store gives it an owner again, in its place.
//
//	last owner leaves --fadeBlocks--> ghost --reviveGhosts--> owner
//	                                    +----dismissGhosts--> gone; its names and its key are remembered as lost
//
// All names have entries in such an index. So a block without an owner is a ghost if one of
// its names has an entry, and else its words are no names.
//
// Ghosts leave in the order in which they came. The queue has for each block, by line and
// position, one entry if it is a ghost, and one more for each time that it has stopped
// being one before its entry was popped. Those come first, and are counted in stale: so an
// entry that is popped concerns its blocks without a count, and takes one off the others.
// This is so whatever the line was used for between.
//
// Names that had to go are in a filter. A store by such a name is lost: its block would
// have been found. While it is held, queries that may end because of it say so.

// ghostBytes is what a ghost counts: two words, 10 to 13 bytes of the table of names, its
// share of a piece of 16 blocks and of the table of heads, and of the queue what blocks
// need that leave by threes. TestGhostsCost measures 28 to 33 bytes. Chains of single
// blocks cost more.
const ghostBytes = 40

const (
	// someGhosts is how many more ghosts an event lets go than twice those that it made.
	someGhosts = 8
	// manyGhosts is how many ghosts go at once where there is no room for a block.
	manyGhosts = 4096
	// queueSlack is how many entries of the queue may be stale, apart from as many as there
	// are ghosts.
	queueSlack = 64
	// fewLost is the least number of names in a generation of the filter of lost names.
	fewLost = 64
	// lostProbes is how many bits a name or key sets in a filter, which has 8 for each name
	// that it is made for.
	lostProbes = 4
)

// Ghosts bounds the memory of the blocks without an owner that several indexes keep for
// their names. Each of those indexes may have an equal part of it. Safe for concurrent use.
type Ghosts struct {
	most    int64
	used    atomic.Int64
	indexes atomic.Int64 // that keep ghosts
}

// NewGhosts returns a bound of some bytes, nil for 0, which keeps none.
func NewGhosts(bytes int64) *Ghosts {
	if bytes <= 0 {
		return nil
	}
	return &Ghosts{most: bytes}
}

// Used returns the bytes in use and the bound, 0 and 0 of a nil Ghosts.
func (g *Ghosts) Used() (used, most int64) {
	if g == nil {
		return 0, 0
	}
	return g.used.Load(), g.most
}

// ghostCount is how many ghosts an index has, of those that share a bound.
type ghostCount struct {
	of *Ghosts
	n  atomic.Int64
}

// addGhosts counts ghosts in, or out if negative, here and among those of all indexes that
// share the bound.
func (c *ghostCount) addGhosts(n int) {
	c.n.Add(int64(n))
	c.of.used.Add(int64(n) * ghostBytes)
}

// leaveBound takes an index out of those that share a bound.
func (c *ghostCount) leaveBound() {
	c.of.used.Add(-c.n.Load() * ghostBytes)
	c.of.indexes.Add(-1)
}

// ghosts are the blocks without an owner that an index keeps.
type ghosts struct {
	on    atomic.Bool // never off again; read by lanes, set under all
	count *ghostCount // nil if there is no bound to keep them in

	lost   atomic.Int64 // blocks of held
	blind  atomic.Bool  // a generation has gone since, so the key of any block may be lost
	gens   atomic.Pointer[[2]*generation]
	wanted atomic.Int64 // ghosts with which no name would have been lost

	_     [cacheLine]byte // queries read the words above
	mu    spin            // guards all below
	queue []ghostEntry
	first int    // of queue
	stale copies // by block: entries from before it was no ghost for a time
	held  map[uint64]struct{}
}

// ghostEntry is blocks of a piece that lost their last owner one after the other.
type ghostEntry struct {
	blocks uint64
	piece  uint32
}

// generation is the ghosts that had to go in some stretch of time, as two inexact sets.
type generation struct {
	names, keys []uint64 // atomic words
	n, most     int      // names; guarded by ghosts.mu
}

// KeepGhosts makes the index keep blocks that lose their last owner, for their names, from
// now on. All names get entries, as with NameAllBlocks. Without Options.Ghosts it does
// nothing.
func (x *Index) KeepGhosts() {
	g := &x.names.ghosts
	if g.count == nil || g.on.Load() {
		return
	}
	x.lock()
	defer x.unlock()
	if g.on.Load() {
		return
	}
	g.count.of.indexes.Add(1)
	runtime.AddCleanup(x, (*ghostCount).leaveBound, g.count)
	g.on.Store(true)
	x.names.full.always = true
	x.resolver.beginNamingAll()
}

// capacity returns how many ghosts the index may have.
func (g *ghosts) capacity() int64 {
	return g.count.of.most / ghostBytes / max(g.count.of.indexes.Load(), 1)
}

// hasGhosts reports whether there are ghosts.
func (g *ghosts) hasGhosts() bool { return g.on.Load() && g.count.n.Load() > 0 }

// isGhost reports whether a block has no owner, and names all the same.
func (m *nameMap) isGhost(p position) bool {
	return m.ghosts.on.Load() && m.tree.lines.setOf(p) == 0 && m.tree.lines.enteredBlocks(m.tree.lines.pieceAt(p.piece))>>p.at&1 != 0
}

// fadeBlocks makes ghosts of those blocks of a changing piece that have names, and returns
// the others. They have just lost their last owner.
//
// Private names end at once: they are for a source's own removals, and no source holds the
// block any more.
func (m *nameMap) fadeBlocks(l *lane, n uint32, r *piece, blocks uint64) (rest uint64) {
	if m.naming != allNamed {
		m.nameFadingBlocks(n, r, blocks)
	}
	// A block without a name stays for nothing: no event could mention it.
	stay := blocks & m.tree.lines.enteredBlocks(r)
	if stay == 0 {
		return blocks
	}
	m.losePrivates(l, n, stay)
	// Names of ghosts are not counted as names of blocks.
	l.names -= m.tree.lines.countNames(r, stay)
	l.faded += bits.OnesCount64(stay)
	g := &m.ghosts
	g.count.addGhosts(bits.OnesCount64(stay))
	g.mu.lock()
	g.pushBlocks(n, stay)
	g.mu.unlock()
	return blocks &^ stay
}

// nameFadingBlocks gives names of blocks that become ghosts their entries, where not all
// names have them yet. A name that means another block is dropped.
func (m *nameMap) nameFadingBlocks(n uint32, r *piece, blocks uint64) {
	enter := func(engine *words, line uint32, named *uint64, here uint64) {
		made, _ := m.enterNames(engine, line, here&^*named)
		*named |= made
		for w := here &^ *named; w != 0; w &= w - 1 {
			if i := lowestBit(w); engine[i] != 0 {
				write64(&engine[i], 0)
				m.tree.lanes.each[0].lane.names-- // all lanes are locked
			}
		}
	}
	if !r.loose() {
		enter(r.engineHashes(), n, &r.named, blocks)
	}
	for line := r.side; line != 0; {
		d := m.tree.lines.sideAt(line)
		enter(d.engineHashes(), line, &d.named, d.partOf(blocks))
		line = d.next
	}
}

// reviveGhosts notes that ghosts of a piece have an owner again. Their entries in the queue
// stay, since finding them would cost a search; they are counted as stale instead, and
// skipped when their turn comes.
//
// Their names count as names of blocks again. The lane holds the piece, so no other lane
// can pop the entry at the same time.
func (b *bounds) reviveGhosts(l *lane, n uint32, r *piece, blocks uint64) {
	l.names += b.tree.lines.countNames(r, blocks)
	g := &b.names.ghosts
	g.count.addGhosts(-bits.OnesCount64(blocks))
	g.mu.lock()
	g.stale.addCopies(n, blocks)
	g.mu.unlock()
}

// pushBlocks adds blocks that have become ghosts to the queue.
//
// Engines evict neighbours one after the other, so the newest entry is usually of the same
// piece and just gets another bit.
func (g *ghosts) pushBlocks(n uint32, blocks uint64) {
	if k := len(g.queue); k > g.first && g.queue[k-1].piece == n {
		g.stale.takeCopies(n, g.queue[k-1].blocks&blocks) // that entry is the newest one again
		g.queue[k-1].blocks |= blocks
		return
	}
	// Before the queue grows, use the space of what was popped.
	if len(g.queue) == cap(g.queue) && g.first > len(g.queue)/4 {
		g.queue = append(g.queue[:0], g.queue[g.first:]...)
		g.first = 0
	}
	g.queue = append(g.queue, ghostEntry{blocks, n})
	// More than half of the entries are stale: engines store again what they have just
	// evicted.
	if int64(len(g.queue)-g.first) > 2*g.count.n.Load()+queueSlack {
		g.compactQueue()
	}
}

// compactQueue takes all stale entries out of the queue.
func (g *ghosts) compactQueue() {
	kept := g.queue[:0]
	for _, e := range g.queue[g.first:] {
		if e.blocks &^= g.stale.takeCopies(e.piece, e.blocks); e.blocks != 0 {
			kept = append(kept, e)
		}
	}
	g.queue, g.first = kept, 0
	if cap(kept) > 4*len(kept)+queueSlack {
		g.queue = append(make([]ghostEntry, 0, 2*len(kept)), kept...)
	}
}

// oldestPiece returns the piece of the oldest entry, 0 for none.
func (g *ghosts) oldestPiece() uint32 {
	if g.first == len(g.queue) {
		return 0
	}
	return g.queue[g.first].piece
}

// popOldest takes the oldest entry out, and returns the ghosts in it.
func (g *ghosts) popOldest() uint64 {
	e := g.queue[g.first]
	if g.first++; g.first == len(g.queue) {
		g.queue, g.first = g.queue[:0], 0
	}
	return e.blocks &^ g.stale.takeCopies(e.piece, e.blocks)
}

// evictGhosts lets the oldest ghosts go that are too many, as part of an event. It reports
// false if that takes all lanes: the piece of a loose ghost may end with it, and what
// counts such pieces is guarded by all lanes. The lane holds another piece afterwards.
func (b *bounds) evictGhosts(l *lane) bool {
	g := &b.names.ghosts
	if !g.on.Load() {
		return true
	}
	// Twice as many as came, so that the number falls to the bound although each event lets
	// go only a few.
	left := 2*l.faded + someGhosts
	l.faded = 0
	for left > 0 && g.count.n.Load() > g.capacity() {
		n, ok := b.evictOldest(l)
		if !ok {
			return false
		}
		left -= max(n, 1)
	}
	return true
}

// evictInAllLanes is evictGhosts for all lanes, which are locked.
func (b *bounds) evictInAllLanes() {
	if b.names.ghosts.on.Load() {
		for i := range b.tree.lanes.each {
			b.evictGhosts(&b.tree.lanes.each[i].lane)
		}
	}
}

// evictOldest lets the ghosts of the oldest entry go, and returns how many they were.
//
// Between the look at the queue and the hold of the piece another lane may have taken the
// entry, so the queue is asked again, with the piece held. From then on its blocks stay
// what they are.
func (b *bounds) evictOldest(l *lane) (int, bool) {
	g := &b.names.ghosts
	for {
		g.mu.lock()
		n := g.oldestPiece()
		g.mu.unlock()
		if n == 0 {
			return 0, true
		}
		// While the lane holds the piece, no block of it becomes a ghost, or stops being
		// one.
		if r := b.tree.holdPiece(l, n); r.loose() && !b.tree.lanes.alone {
			return 0, false
		}
		g.mu.lock()
		if g.oldestPiece() != n { // another lane was faster
			g.mu.unlock()
			continue
		}
		blocks := g.popOldest()
		g.mu.unlock()
		if blocks != 0 {
			b.loseNames(n, blocks)
			b.dismissGhosts(l, n, blocks)
		}
		return bits.OnesCount64(blocks), true
	}
}

// evictForRoom lets ghosts go until the bounds of memory have room, and reports whether
// they have. All lanes are locked. Only blocks with an owner are where they were.
//
// It lets many go at once, since the way here is taken with all lanes locked, and the next
// block would come here again.
func (b *bounds) evictForRoom() bool {
	for l := &b.tree.lanes.each[0].lane; b.tree.lanes.alone && b.names.ghosts.hasGhosts(); {
		for n := 0; n < manyGhosts && b.names.ghosts.hasGhosts(); {
			k, _ := b.evictOldest(l)
			n += max(k, 1)
		}
		if b.freeShare() > 0 {
			return true
		}
	}
	return false
}

// dismissGhosts ends ghosts of a piece, which are in no entry of the queue any more, or
// stale there. The lane holds the piece, which may end.
func (b *bounds) dismissGhosts(l *lane, n uint32, blocks uint64) {
	r := b.tree.lines.pieceAt(n)
	b.tree.lockPiece(n, r)
	l.names += b.tree.lines.countNames(r, blocks) // as those of blocks with owners, which stripNames takes off
	b.names.ghosts.count.addGhosts(-bits.OnesCount64(blocks))
	b.names.stripNames(l, n, r, blocks)
	b.tree.trimPiece(l, n, r)
}

// dismissGhost ends a ghost before its turn. All lanes are locked.
func (b *bounds) dismissGhost(p position) {
	g := &b.names.ghosts
	g.mu.lock()
	g.stale.addCopies(p.piece, 1<<p.at)
	g.mu.unlock()
	b.dismissGhosts(&b.tree.lanes.each[0].lane, p.piece, 1<<p.at)
}

// loseNames remembers the names and keys of ghosts that have to go.
//
// Their names are remembered by a filter and not by themselves: that is the memory which
// had to go.
//
// Keys are remembered as well, because a query does not know names. It asks whether the
// block behind its answer may be one that was lost.
func (b *bounds) loseNames(n uint32, blocks uint64) {
	r, g := b.tree.lines.pieceAt(n), &b.names.ghosts
	key, at, local, c := r.head, uint32(0), r.localHashes(), r.constant()
	for w := blocks; w != 0; w &= w - 1 {
		i := lowestBit(w)
		if r.loose() {
			key = local[i]
		} else {
			for ; at < i; at++ {
				key = b.tree.followKey(key, c, local[at+1])
			}
		}
		g.mu.lock()
		b.tree.lines.eachNameOf(position{n, i}, func(engine uint64, _ uint32) { g.rememberLost(engine, key) })
		g.mu.unlock()
	}
}

// rememberLost puts a name that had to go into the filter.
//
// Two generations alternate. When the newer one is full, the older one is forgotten, so the
// filter stays as exact as it was made to be, and what it forgets is what was lost longest
// ago.
func (g *ghosts) rememberLost(engine, key uint64) {
	gens := g.gens.Load()
	if gens == nil || gens[0].n >= gens[0].most {
		most := max(int(g.capacity()/4), fewLost)
		next := &[2]*generation{{names: make([]uint64, most/8+1), keys: make([]uint64, most/8+1), most: most}, nil}
		if gens != nil {
			if next[1] = gens[0]; gens[1] != nil && len(g.held) > 0 {
				g.blind.Store(true)
			}
		}
		g.gens.Store(next)
		gens = next
	}
	gens[0].n++
	setBits(gens[0].names, engine)
	setBits(gens[0].keys, key)
}

// setBits sets the bits of a hash.
func setBits(words []uint64, hash uint64) {
	h, step := probesOf(hash)
	for range lostProbes {
		b, _ := bits.Mul64(h, uint64(len(words))*64)
		atomic.OrUint64(&words[b>>6], 1<<(b&63))
		h += step
	}
}

// hasBits reports whether the bits of a hash are set.
func hasBits(words []uint64, hash uint64) bool {
	h, step := probesOf(hash)
	for range lostProbes {
		b, _ := bits.Mul64(h, uint64(len(words))*64)
		if atomic.LoadUint64(&words[b>>6])>>(b&63)&1 == 0 {
			return false
		}
		h += step
	}
	return true
}

// probesOf returns where the bits of a hash begin in a filter, and how far they are apart.
// An odd step is prime to the size of a filter of a power of two, and good enough for
// others.
func probesOf(hash uint64) (first, step uint64) {
	h := mix(hash)
	return h, h*0x9e3779b97f4a7c15 | 1
}

// isLostName reports whether an unknown engine hash, by which a block has just been stored,
// looks like the name of a ghost that had to go. If the block waits under the hash, queries
// know of it as long as it does: held has the hash, and answers that may end because of it
// say that they are Truncated.
//
// wanted is a by-product for the operator who sets the bound. A name that is found in a
// generation would still be there if the bound had room for all present ghosts and for
// those that went since that generation began.
func (b *bounds) isLostName(engine uint64) bool {
	g := &b.names.ghosts
	gens := g.gens.Load()
	if gens == nil {
		return false
	}
	waits := !b.tree.findLoose(engine).isNone()
	g.mu.lock()
	defer g.mu.unlock()
	since := 0 // names that had to go after it, at most
	for _, gen := range gens {
		if gen == nil {
			break
		}
		if since += gen.n; !hasBits(gen.names, engine) {
			continue
		}
		if waits {
			if g.held == nil {
				g.held = make(map[uint64]struct{})
			}
			g.held[engine] = struct{}{}
			g.lost.Store(int64(len(g.held)))
		}
		g.wanted.Store(max(g.wanted.Load(), max(g.count.n.Load(), g.capacity())+int64(since)))
		return true
	}
	return false
}

// forgetLost says that no block is held by an engine hash any more, or that the hash has a
// meaning.
func (g *ghosts) forgetLost(engine uint64) {
	if g.lost.Load() == 0 {
		return
	}
	g.mu.lock()
	delete(g.held, engine)
	if g.lost.Store(int64(len(g.held))); len(g.held) == 0 {
		g.blind.Store(false)
	}
	g.mu.unlock()
}

// mayHaveLost reports whether a key looks like that of a ghost that had to go. If a
// generation was forgotten while blocks are held by lost names (blind), nothing is known of
// its keys any more, so each key may be one.
func (g *ghosts) mayHaveLost(key uint64) bool {
	gens := g.gens.Load()
	if gens == nil || g.blind.Load() {
		return gens != nil
	}
	key = normal(key)
	return hasBits(gens[0].keys, key) || gens[1] != nil && hasBits(gens[1].keys, key)
}

// countGhosts returns how many ghosts there are.
func (m *nameMap) countGhosts() int {
	if m.ghosts.count == nil {
		return 0
	}
	return int(m.ghosts.count.n.Load())
}

// bytes returns the memory of the queue and of the filters.
func (g *ghosts) bytes() (n int) {
	g.mu.lock()
	defer g.mu.unlock()
	n = int(unsafe.Sizeof(ghostEntry{}))*cap(g.queue) + g.stale.bytes() + 16*len(g.held)
	if gens := g.gens.Load(); gens != nil {
		for _, gen := range gens {
			if gen != nil {
				n += 8 * (len(gen.names) + len(gen.keys))
			}
		}
	}
	return n
}
