package index

import "math/bits"

// copies counts the copies that an owner has of blocks, beyond the first ones. Engines copy
// stretches, and nearly always once: a word a piece says which blocks have a second copy,
// and a table that is nearly always empty how many more.
//
// Whether an engine that stores a block again has made a copy or just touched the one that
// it has, its events do not say. The application decides (CopyPolicy), and may find out
// later that it was wrong. So copies also remembers the blocks whose last event took a copy
// and left another one: doubted. If the owner's stores had been touches, that removal would
// have taken the block, and no event has stored it since. See Index.DropCopies.
type copies struct {
	second  flat[uint64] // piece -> its blocks with a second copy
	third   flat[uint32] // block -> copies beyond the second
	n       int          // blocks with a second copy
	doubted flat[uint64] // piece -> its blocks whose last event took a copy
}

func (c *copies) len() int   { return c.n }
func (c *copies) bytes() int { return c.second.bytes() + c.third.bytes() + c.doubted.bytes() }

// extraOf returns the copies of a block beyond the first.
//
// Nearly every block has none, and the word of its piece says so.
func (c *copies) extraOf(p position) uint32 {
	w := c.second.find(uint64(p.piece))
	if w == nil || *w>>p.at&1 == 0 {
		return 0
	}
	if more := c.third.find(p.encode()); more != nil {
		return 1 + *more
	}
	return 1
}

// setExtra says how many copies of a block there are beyond the first. It does not touch
// doubted: only the caller knows whether the event was a store.
func (c *copies) setExtra(p position, n uint32) {
	c.dropExtra(p.piece, 1<<p.at)
	if n > 0 {
		c.raiseCounts(p.piece, 1<<p.at)
	}
	if n > 1 {
		*c.third.insertKey(p.encode()) = n - 1
	}
}

// doubtBlocks notes that the last event took a copy of some blocks of a piece.
func (c *copies) doubtBlocks(piece uint32, blocks uint64) {
	if blocks != 0 {
		*c.doubted.insertKey(uint64(piece)) |= blocks
	}
}

// trustBlocks notes that the last event stored some blocks of a piece.
func (c *copies) trustBlocks(piece uint32, blocks uint64) {
	if w := c.doubted.find(uint64(piece)); w != nil {
		if *w &^= blocks; *w == 0 {
			c.doubted.deleteKey(uint64(piece))
		}
	}
}

// isDoubted reports whether the last event took a copy of a block.
func (c *copies) isDoubted(p position) bool {
	w := c.doubted.find(uint64(p.piece))
	return w != nil && *w>>p.at&1 != 0
}

// addCopies adds a copy of each of some blocks of a piece.
func (c *copies) addCopies(piece uint32, blocks uint64) {
	if blocks == 0 {
		return
	}
	c.trustBlocks(piece, blocks)
	c.raiseCounts(piece, blocks)
}

// raiseCounts is addCopies where no event has stored the blocks. Blocks that have a second
// copy get one more in the table of third ones; all others get their bit at once.
func (c *copies) raiseCounts(piece uint32, blocks uint64) {
	w := c.second.insertKey(uint64(piece))
	for more := *w & blocks; more != 0; more &= more - 1 {
		*c.third.insertKey(position{piece, lowestBit(more)}.encode())++
	}
	c.n += bits.OnesCount64(blocks &^ *w)
	*w |= blocks
}

// takeCopies takes a copy of those of some blocks of a piece that have several, and returns
// them. The others have one copy, which is for the caller to take.
//
// Only the table of third copies needs a look at each block; the word of second copies is
// changed for all of them at once.
func (c *copies) takeCopies(piece uint32, blocks uint64) (taken uint64) {
	w := c.second.find(uint64(piece))
	if w == nil || *w&blocks == 0 {
		return 0
	}
	taken = *w & blocks
	gone := taken
	if c.third.len() > 0 {
		for left := taken; left != 0; left &= left - 1 {
			ref := position{piece, lowestBit(left)}.encode()
			if more := c.third.find(ref); more != nil {
				if *more--; *more == 0 {
					c.third.deleteKey(ref)
				}
				gone &^= left & -left
			}
		}
	}
	c.clearBlocks(piece, w, gone)
	c.doubtBlocks(piece, taken)
	return taken
}

// dropBlocks forgets some blocks of a piece, which the owner holds no more.
func (c *copies) dropBlocks(piece uint32, blocks uint64) {
	c.trustBlocks(piece, blocks)
	c.dropExtra(piece, blocks)
}

// dropExtra forgets the copies of some blocks of a piece beyond the first.
func (c *copies) dropExtra(piece uint32, blocks uint64) {
	w := c.second.find(uint64(piece))
	if w == nil || *w&blocks == 0 {
		return
	}
	gone := *w & blocks
	if c.third.len() > 0 {
		for left := gone; left != 0; left &= left - 1 {
			c.third.deleteKey(position{piece, lowestBit(left)}.encode())
		}
	}
	c.clearBlocks(piece, w, gone)
}

// clearBlocks takes blocks with two copies off the word of their piece. w points into the
// table of words, so it is used for the last time before the word is deleted: a deletion
// moves others into its place.
func (c *copies) clearBlocks(piece uint32, w *uint64, blocks uint64) {
	c.n -= bits.OnesCount64(blocks)
	if *w &^= blocks; *w == 0 {
		c.second.deleteKey(uint64(piece))
	}
}

// isEmpty reports whether no block has several copies, nor a last event that took one.
func (c *copies) isEmpty() bool { return c.n == 0 && c.doubted.len() == 0 }

// eachBlock calls f for each block with several copies, and how many it has beyond the
// first.
func (c *copies) eachBlock(f func(p position, n uint32)) {
	for piece, w := range c.second.each {
		for left := *w; left != 0; left &= left - 1 {
			p := position{uint32(piece), lowestBit(left)}
			f(p, c.extraOf(p))
		}
	}
}
