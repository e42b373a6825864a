package index

import (
	"sync/atomic"
	"unsafe"
)

// Losses remembers the blocks that owners lost last, each stretch with the mark of the
// event that took it. It answers why a prompt that was cached a minute ago is not any more.
//
//	Remove --stretch--> ring --Find(prompt)--> mark of the event
//
// It knows blocks by their place in a chain of an identity: the key of the first block of
// the piece, and sums of the local hashes behind it. A key of each block would be exact,
// but costs up to 63 hashes for each removal, and nearly no removal is ever asked for. Sums
// cost a few additions, and the hashes are left to Find, which knows the prompt. Two
// stretches with equal sums behind one head are mixed up: the same blocks in another order,
// or a chance of one in 2^64.
//
// The owners of one source share it, over all indexes. The source's events write it, and no
// event of the source may run meanwhile when others read it, Bytes excepted. Blocks of a
// chain that leave one by one from its end, with one event, make one stretch. A nil Losses
// remembers nothing.
type Losses struct {
	mark  uint64 // of the event at hand
	most  int    // stretches
	ring  []loss
	next  int          // where the next one goes
	first uint64       // local hash of the first block of the newest one
	over  bool         // older ones were forgotten
	since uint64       // mark of the newest one forgotten, valid if over
	size  atomic.Int64 // bytes of ring
}

// loss is a stretch of neighbouring blocks of a piece that an owner lost with one event.
type loss struct {
	head   uint64 // key of the first block of the piece
	below  uint64 // sum of the local hashes behind that block, up to the first lost one
	sum    uint64 // of the local hashes of the lost blocks
	mark   uint64
	label  uint32 // of the owner
	lo, hi uint8  // positions in the piece, hi not included
}

// lossBytes is what a loss takes.
const lossBytes = int(unsafe.Sizeof(loss{}))

// firstLosses is how many losses the first ring holds: 2.5 KiB.
const firstLosses = 64

// NewLosses returns a Losses of at most the given bytes, nil if they hold no loss.
func NewLosses(bytes int) *Losses {
	if bytes < lossBytes {
		return nil
	}
	return &Losses{most: bytes / lossBytes}
}

// SetMark sets the mark of the losses that follow.
func (l *Losses) SetMark(mark uint64) {
	if l != nil {
		l.mark = mark
	}
}

// Reset forgets all losses.
func (l *Losses) Reset() {
	if l != nil {
		l.ring, l.next, l.over, l.since = nil, 0, false, 0
		l.size.Store(0)
	}
}

// Bytes returns the memory of the ring.
func (l *Losses) Bytes() int {
	if l == nil {
		return 0
	}
	return int(l.size.Load())
}

// Since returns the mark of the newest loss that was forgotten, and false if none was.
func (l *Losses) Since() (mark uint64, some bool) {
	if l == nil {
		return 0, false
	}
	return l.since, l.over
}

// RecordLosses makes an owner remember its losses in l, under a label. With nil it
// remembers none. Blocks that the owner lost before are not in l, and a clear is not
// recorded: the caller that clears knows why.
func (x *Index) RecordLosses(o Owner, l *Losses, label uint32) {
	x.lock()
	defer x.unlock()
	if own := x.holders.owners[o]; own != nil {
		own.losses, own.label = l, label
	}
}

// noteBlocks remembers blocks of a piece that an owner has just lost. sum is that of their
// words, or 0 if it is not known.
//
// It runs within each removal, so it adds no hash and no lock: local hashes are at hand,
// and Find pays for the rest when somebody asks. A loose block is a stretch of its own,
// found by its key.
func (l *Losses) noteBlocks(r *piece, blocks, sum uint64, label uint32) {
	words := r.localHashes()
	if r.loose() {
		for ; blocks != 0; blocks &= blocks - 1 {
			l.putLoss(loss{head: words[lowestBit(blocks)], mark: l.mark, label: label, hi: 1}, 0)
		}
		return
	}
	for blocks != 0 {
		lo := lowestBit(blocks)
		hi := lo + lowestBit(^(blocks >> lo))
		stretch := blocks & spanOf(lo, hi)
		if stretch != blocks || sum == 0 {
			sum = 0
			for _, w := range words[lo:hi] {
				sum += w
			}
		}
		l.noteStretch(r, lo, hi, sum, label)
		blocks, sum = blocks&^stretch, 0
	}
}

// noteStretch remembers neighbouring blocks. sum is that of their local hashes.
//
// Engines evict a chain from its end, block by block. The sum over all blocks below would
// make that quadratic in the length of the piece, so it is computed from that of the
// stretch before, which ended where this one begins. With w for the local hashes:
//
//	before  below = w[1] + ... + w[hi]             first = w[hi]
//	now     below = w[1] + ... + w[lo] = before - first - sum + w[lo]
//
// The two stretches become one if the same event took them, else the new one is put behind.
func (l *Losses) noteStretch(r *piece, lo, hi uint32, sum uint64, label uint32) {
	words := r.localHashes()
	if l.next > 0 && lo > 0 {
		last := &l.ring[l.next-1]
		if last.head == r.head && uint32(last.lo) == hi && last.label == label {
			below := last.below - l.first - sum + words[lo]
			if l.first = words[lo]; last.mark == l.mark {
				last.below, last.sum, last.lo = below, last.sum+sum, uint8(lo)
				return
			}
			l.putLoss(loss{r.head, below, sum, l.mark, label, uint8(lo), uint8(hi)}, words[lo])
			return
		}
	}
	below := uint64(0)
	if lo > 0 {
		for _, w := range words[1 : lo+1] {
			below += w
		}
	}
	l.putLoss(loss{r.head, below, sum, l.mark, label, uint8(lo), uint8(hi)}, words[lo])
}

// putLoss adds a loss. first is the local hash of its first block.
//
// The ring grows by doubling up to its bound, as most sources lose little that is ever
// asked for. From then on the oldest loss makes room, and since remembers its mark: Find
// may have nothing to say about what happened up to then, which is another answer than that
// nothing did.
func (l *Losses) putLoss(one loss, first uint64) {
	l.first = first
	switch {
	case len(l.ring) < cap(l.ring):
		l.ring = append(l.ring, one)
		l.next = len(l.ring)
		return
	case len(l.ring) < l.most:
		more := make([]loss, len(l.ring), min(max(2*len(l.ring), firstLosses), l.most))
		copy(more, l.ring)
		l.ring = append(more, one)
		l.next = len(l.ring)
		l.size.Store(int64(cap(l.ring) * lossBytes))
		return
	case l.next == len(l.ring):
		l.next = 0
	}
	l.over, l.since = true, l.ring[l.next].mark
	l.ring[l.next] = one
	l.next++
}

// Find returns the mark of the last event that took a block of a chain, of the identity
// with a constant, from owners with a label, and false if the Losses remember none.
//
// The piece that had the block began at most 63 blocks before it, so the keys of those are
// all that is looked for. It walks the whole ring, and hashes the prompt up to the block:
// this is for people who ask.
func (l *Losses) Find(constant uint64, c LocalChain, block int, label uint32) (mark uint64, found bool) {
	if l == nil || block >= c.Len() {
		return 0, false
	}
	local, at := c.Locals(c.Len()), make(map[uint64]int)
	of := chainIdentity{constant: constant}
	sums := make([]uint64, c.Len()+1) // of the local hashes before each block
	for i := range c.Len() {
		sums[i+1] = sums[i] + local[i]
		if i <= block && i > block-maxPiece {
			at[of.keyOf(c.At(i))] = i
		}
	}
	for i := range l.ring {
		one := &l.ring[i]
		head, ok := at[one.head]
		lo, hi := head+int(one.lo), head+int(one.hi)
		switch {
		case !ok || one.label != label || block < lo || block >= hi || found && one.mark < mark:
		// Another chain left the prompt between the head and the lost block.
		case sums[lo+1]-sums[head+1] != one.below:
		// The first lost block is certain. Those behind it were the prompt's only if all of
		// the stretch was.
		case block > lo && (hi > c.Len() || sums[hi]-sums[lo] != one.sum):
		default:
			mark, found = one.mark, true
		}
	}
	return mark, found
}
