package index

import "math/bits"

// copies counts the copies that an owner has of blocks, beyond the first ones. Engines copy
// stretches, and nearly always once: a word a piece says which blocks have a second copy.
//
// It also remembers the blocks whose last event took a copy and left another one. If the owner's stores
// had been touches, it would not hold them: see Index.Uncount.
type copies struct {
	second  flat[uint64] // piece -> its blocks with a second copy
	third   flat[uint32] // block -> copies beyond the second
	n       int          // blocks with a second copy
	doubted flat[uint64] // piece -> its blocks whose last event took a copy
}

func (c *copies) len() int   { return c.n }
func (c *copies) bytes() int { return c.second.bytes() + c.third.bytes() + c.doubted.bytes() }

// of returns the copies of a block beyond the first.
func (c *copies) of(p place) uint32 {
	w := c.second.ref(uint64(p.piece))
	if w == nil || *w>>p.at&1 == 0 {
		return 0
	}
	if more := c.third.ref(p.ref()); more != nil {
		return 1 + *more
	}
	return 1
}

// set says how many copies of a block there are beyond the first.
func (c *copies) set(p place, n uint32) {
	c.single(p.piece, 1<<p.at)
	if n > 0 {
		c.raise(p.piece, 1<<p.at)
	}
	if n > 1 {
		*c.third.insert(p.ref()) = n - 1
	}
}

// doubt notes that the last event took a copy of some blocks of a piece.
func (c *copies) doubt(piece uint32, blocks uint64) {
	if blocks != 0 {
		*c.doubted.insert(uint64(piece)) |= blocks
	}
}

// trust notes that the last event stored some blocks of a piece.
func (c *copies) trust(piece uint32, blocks uint64) {
	if w := c.doubted.ref(uint64(piece)); w != nil {
		if *w &^= blocks; *w == 0 {
			c.doubted.remove(uint64(piece))
		}
	}
}

// doubts reports whether the last event took a copy of a block.
func (c *copies) doubts(p place) bool {
	w := c.doubted.ref(uint64(p.piece))
	return w != nil && *w>>p.at&1 != 0
}

// add adds a copy of each of some blocks of a piece.
func (c *copies) add(piece uint32, blocks uint64) {
	if blocks == 0 {
		return
	}
	c.trust(piece, blocks)
	c.raise(piece, blocks)
}

// raise is add where no event has stored the blocks.
func (c *copies) raise(piece uint32, blocks uint64) {
	w := c.second.insert(uint64(piece))
	for more := *w & blocks; more != 0; more &= more - 1 {
		*c.third.insert(place{piece, trailing(more)}.ref())++
	}
	c.n += bits.OnesCount64(blocks &^ *w)
	*w |= blocks
}

// take takes a copy of those of some blocks of a piece that have several, and returns them.
func (c *copies) take(piece uint32, blocks uint64) (taken uint64) {
	w := c.second.ref(uint64(piece))
	if w == nil || *w&blocks == 0 {
		return 0
	}
	taken = *w & blocks
	gone := taken
	if c.third.len() > 0 {
		for left := taken; left != 0; left &= left - 1 {
			ref := place{piece, trailing(left)}.ref()
			if more := c.third.ref(ref); more != nil {
				if *more--; *more == 0 {
					c.third.remove(ref)
				}
				gone &^= left & -left
			}
		}
	}
	c.clear(piece, w, gone)
	c.doubt(piece, taken)
	return taken
}

// drop forgets some blocks of a piece, which the owner holds no more.
func (c *copies) drop(piece uint32, blocks uint64) {
	c.trust(piece, blocks)
	c.single(piece, blocks)
}

// single forgets the copies of some blocks of a piece beyond the first.
func (c *copies) single(piece uint32, blocks uint64) {
	w := c.second.ref(uint64(piece))
	if w == nil || *w&blocks == 0 {
		return
	}
	gone := *w & blocks
	if c.third.len() > 0 {
		for left := gone; left != 0; left &= left - 1 {
			c.third.remove(place{piece, trailing(left)}.ref())
		}
	}
	c.clear(piece, w, gone)
}

// clear takes blocks with two copies off the word of their piece.
func (c *copies) clear(piece uint32, w *uint64, blocks uint64) {
	c.n -= bits.OnesCount64(blocks)
	if *w &^= blocks; *w == 0 {
		c.second.remove(uint64(piece))
	}
}

// empty reports whether no block has several copies, nor a last event that took one.
func (c *copies) empty() bool { return c.n == 0 && c.doubted.len() == 0 }

// all calls f for each block with several copies, and how many it has beyond the first.
func (c *copies) all(f func(p place, n uint32)) {
	for piece, w := range c.second.all {
		for left := *w; left != 0; left &= left - 1 {
			p := place{uint32(piece), trailing(left)}
			f(p, c.of(p))
		}
	}
}
