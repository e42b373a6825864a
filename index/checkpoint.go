package index

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// Checkpoint is an index at one moment, as databases mean the word. Making one waits for
// the events under way, and copies the owner sets and what sources have apart from blocks.
// The blocks are copied later, while events go on: an event that is about to change a piece
// copies it first, unless the checkpoint has it already. So an event waits for the copies
// of the pieces that it changes, and no longer.
//
//	moment:   heads ---------------- pieces there are
//	reader:   piece by piece, in the order of lines:  claim, copy, mark as copied
//	writer:   before its change:                      claim, copy into saved, mark as copied
//
// One checkpoint of an index lasts at a time. Release ends it, and so does every method
// that says so.
type Checkpoint struct {
	// Yield, if it is set, is called between the copies of pieces and of owner sets, some
	// 70 microseconds of work apart. It may take its time.
	Yield func()
	steps int // pieces and sets so far

	x      *Index
	snap   *Snapshot
	heads  []uint64 // bitmap of lines that begin a piece, as arena.heads
	claims []uint64 // pieces that are copied, or about to be; changed atomically
	copies []uint64 // pieces that are copied; changed atomically

	identities []Identity // those with pieces, next to the base one

	mu    sync.Mutex
	saved map[uint32]*snapPiece // by writers; guarded by mu
}

// Checkpoint makes a checkpoint, once the one before has ended. All lanes are locked while
// it copies the bitmap of pieces and what newSnapshot copies; that is the whole wait that
// it costs events at once.
//
// It is published in tree.checkpoint before the lanes are unlocked. From then on each event
// that changes a piece sees it first.
func (x *Index) Checkpoint() *Checkpoint {
	x.checkpointing.Lock()
	x.lock()
	defer x.unlock()
	c := &Checkpoint{x: x, snap: newSnapshot(x), heads: slices.Clone(x.tree.lines.heads), saved: make(map[uint32]*snapPiece)}
	c.claims, c.copies = make([]uint64, len(c.heads)), make([]uint64, len(c.heads))
	for i := range *x.tree.identities.list.Load() {
		if id := Identity(i); load32(&x.tree.identities.byID(id).pieces) > 0 {
			c.identities = append(c.identities, id)
		}
	}
	x.tree.checkpoint.Store(c)
	return c
}

// Identities returns the identities that have pieces, next to the base one.
func (c *Checkpoint) Identities() []Identity { return c.identities }

// Release ends the checkpoint.
func (c *Checkpoint) Release() {
	c.x.tree.checkpoint.Store(nil)
	c.x.checkpointing.Unlock()
}

// lockPiece makes readers of a piece wait that is about to change. The lane holds the
// piece.
func (t *tree) lockPiece(n uint32, r *piece) {
	t.keepForCheckpoint(n)
	r.lockReaders()
}

// keepForCheckpoint lets the checkpoint have a piece as it is. The lane holds the piece. It
// must be called before the first change of anything that copyPiece reads, and costs
// nothing the second time, so callers need not know whether others have called it.
//
// A piece that began after the moment is none of the checkpoint's business (hasPiece). Its
// line may be one that began a piece at the moment: then that piece was copied before it
// ended, as ending is a change, and the claim says so.
//
// Without a checkpoint it costs one load of a pointer that is nearly never written, and so
// stays in each core's cache.
func (t *tree) keepForCheckpoint(n uint32) {
	c := t.checkpoint.Load()
	switch {
	case c == nil || !c.hasPiece(n):
	case c.claimPiece(n):
		p := new(snapPiece)
		t.lines.copyPiece(n, p)
		c.mu.Lock()
		c.saved[n] = p
		c.mu.Unlock()
		c.markCopied(n)
	default:
		c.waitForCopy(n)
	}
}

// hasPiece reports whether a line began a piece at the moment.
func (c *Checkpoint) hasPiece(n uint32) bool {
	page := n / pageLines
	return int(page) < len(c.heads) && c.heads[page]>>(n%pageLines)&1 != 0
}

// claimPiece reports whether the caller is to copy a piece. Of the walk and the writers
// exactly one gets true, so no piece is copied half before and half after a change.
//
// The plain load first spares the usual case, that the piece has been copied long ago, an
// atomic operation on a shared word.
func (c *Checkpoint) claimPiece(n uint32) bool {
	bit := uint64(1) << (n % pageLines)
	return load64(&c.claims[n/pageLines])&bit == 0 && atomic.OrUint64(&c.claims[n/pageLines], bit)&bit == 0
}

// markCopied marks a piece as copied: waitForCopy returns from then on, and a writer may
// change the piece. A claim alone does not allow that, since the copy is still being made.
func (c *Checkpoint) markCopied(n uint32) { atomic.OrUint64(&c.copies[n/pageLines], 1<<(n%pageLines)) }

// waitForCopy returns once another goroutine has copied a piece that it has claimed. It has
// the piece at hand, so that takes less than a microsecond.
func (c *Checkpoint) waitForCopy(n uint32) {
	for s := spins(0); load64(&c.copies[n/pageLines])>>(n%pageLines)&1 == 0; {
		s.pause()
	}
}

// yieldSteps is how many pieces or sets are copied between two calls of Yield.
const yieldSteps = 128

// countStep counts a piece or a set.
func (c *Checkpoint) countStep() {
	if c.steps++; c.steps%yieldSteps == 0 && c.Yield != nil {
		c.Yield()
	}
}

// eachPiece yields each piece of the moment. The next one may use the same memory, unless
// that is moved away before.
//
// Writers' copies are taken out as the walk passes them, so that memory grows with the
// pieces that are changed ahead of the walk alone. The walk itself takes no lane's lock: it
// claims a piece, copies it, and a writer that comes meanwhile waits for less than a
// microsecond.
func (c *Checkpoint) eachPiece(yield func(*snapPiece) bool) {
	var buf snapPiece
	for page, w := range c.heads {
		for ; w != 0; w &= w - 1 {
			n := uint32(page*pageLines + bits.TrailingZeros64(w))
			p := &buf
			if c.claimPiece(n) {
				c.x.tree.lines.copyPiece(n, p)
				c.markCopied(n)
			} else {
				c.waitForCopy(n)
				c.mu.Lock()
				p = c.saved[n]
				delete(c.saved, n)
				c.mu.Unlock()
			}
			if !yield(p) {
				return
			}
			c.countStep()
		}
	}
}

// Snapshot copies the blocks, and ends the checkpoint. Options.KeepClientHashes must be
// set.
func (c *Checkpoint) Snapshot() *Snapshot {
	defer c.Release()
	if !c.x.tree.keepsClientHashes {
		panic("BUG: a snapshot of an index that keeps no client hashes")
	}
	for p := range c.eachPiece {
		kept := *p
		c.snap.pieces, *p = append(c.snap.pieces, &kept), snapPiece{}
	}
	return c.snap
}

// copyPiece copies a piece, which is claimed, so its blocks and owners stay what they are.
// Names may come and go meanwhile: each is one word, and is loaded as one.
func (a *arena) copyPiece(n uint32, to *snapPiece) {
	r := a.pieceAt(n)
	k := r.len()
	to.line, to.by, to.prev, to.head, to.up, to.loose, to.identity = n, r.by, load32(&r.prev), r.head, r.up, r.loose(), r.chainIdentity()
	to.local = append(to.local[:0], r.localHashes()[:k]...)
	to.engine, to.clientHashes, to.sides = to.engine[:0], to.clientHashes[:0], to.sides[:0]
	if !to.loose {
		to.engine = copyWords(to.engine, r.engineHashes()[:k])
	}
	if r.meta&isWide != 0 {
		to.clientHashes = copyWords(to.clientHashes, r.clientHashes()[:k])
	}
	var buf [maxPiece + 2]interval
	to.intervals = append(to.intervals[:0], a.intervalsOf(r, &buf)...)
	for line := load32(&r.side); line != 0; {
		d := a.sideAt(line)
		to.sides = append(to.sides, snapSide{d.firstBlock(), d.by, copyWords(nil, d.engineHashes()[:d.cap()])})
		line = d.next
	}
}

// copyWords appends words that others may write.
func copyWords(to, from []uint64) []uint64 {
	for i := range from {
		to = append(to, load64(&from[i]))
	}
	return to
}
