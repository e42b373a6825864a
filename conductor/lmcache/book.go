package lmcache

// book has the shards of chunks that an emitter holds, of one model.
type book struct {
	limit, bytes int64
	blockSize    int // tokens
	chunks       map[chunkID]*chunk
	stored       map[string]int // chunks of a tier
	lacking      int            // blocks of chunks that are nowhere whole
}

// chunkID is a chunk on a tier. One prompt under two salts has two.
type chunkID struct{ tier, salt, hash string }

// chunk is the state of a chunk at an emitter.
type chunk struct {
	copies []chunkCopy
	whole  int // copies with all shards
	length int // tokens, 0 if not known
	// What a shard said, kept until all are there.
	tokens      []uint32
	parent      string
	parentKnown bool // the parent is known
}

// chunkCopy is the shards of a chunk on one backend. A chunk that was stored for another world is other
// objects.
type chunkCopy struct {
	backend string
	world   int
	have    int
	shards  [(maxRank + 1) / 64]uint64
}

// Bytes that a chunk and a copy take, about.
const (
	chunkBytes = 256
	copyBytes  = 64
)

func newBook(limit int64, blockSize int) *book {
	return &book{limit: limit, blockSize: max(blockSize, 1), chunks: make(map[chunkID]*chunk), stored: make(map[string]int)}
}

// lackingBlocks returns how many blocks the chunk has if no copy has all its shards, else 0.
func (b *book) lackingBlocks(c *chunk) int {
	if c.whole > 0 || len(c.copies) == 0 {
		return 0
	}
	return max(c.length/b.blockSize, 1)
}

// storeObject enters an object that was stored. appears says that the object made its chunk whole. fits is false if the book
// has no room, and then nothing has changed.
func (b *book) storeObject(at chunkID, backend string, e *Entry, parent string, parentKnown bool) (c *chunk, appears, fits bool) {
	if b.bytes > b.limit {
		return nil, false, false
	}
	c = b.chunks[at]
	if c == nil {
		c = new(chunk)
		b.chunks[at] = c
		b.stored[at.tier]++
		b.bytes += chunkBytes + int64(len(at.hash)+len(at.salt))
	}
	b.lacking -= b.lackingBlocks(c)
	if c.whole == 0 && len(e.Tokens) > 0 && (c.tokens == nil || parentKnown && !c.parentKnown) {
		b.bytes += 4 * int64(len(e.Tokens)-len(c.tokens))
		c.tokens, c.parent, c.parentKnown, c.length = e.Tokens, parent, parentKnown, len(e.Tokens)
	}
	p := c.copyOn(backend, e.World)
	if p == nil {
		c.copies = append(c.copies, chunkCopy{backend: backend, world: e.World})
		p = &c.copies[len(c.copies)-1]
		b.bytes += copyBytes
	}
	if word, bit := e.Rank/64, uint64(1)<<(e.Rank%64); p.shards[word]&bit == 0 {
		p.shards[word] |= bit
		if p.have++; p.have == p.world {
			c.whole++
			appears = c.whole == 1
		}
	}
	b.lacking += b.lackingBlocks(c)
	return c, appears, true
}

// releaseTokens frees the tokens of a chunk, which are not needed once it is announced.
func (b *book) releaseTokens(c *chunk) {
	b.bytes -= 4 * int64(len(c.tokens))
	c.tokens = nil
}

// removeObject removes an object that is gone. vanishes says that its chunk was whole and is not any more, known that the
// book had the object.
func (b *book) removeObject(at chunkID, backend string, e *Entry) (vanishes, known bool) {
	c := b.chunks[at]
	if c == nil {
		return false, false
	}
	p := c.copyOn(backend, e.World)
	word, bit := e.Rank/64, uint64(1)<<(e.Rank%64)
	if p == nil || p.shards[word]&bit == 0 {
		return false, false
	}
	b.lacking -= b.lackingBlocks(c)
	p.shards[word] &^= bit
	if p.have == p.world {
		c.whole--
		vanishes = c.whole == 0
	}
	if p.have--; p.have == 0 {
		*p = c.copies[len(c.copies)-1]
		c.copies = c.copies[:len(c.copies)-1]
		b.bytes -= copyBytes
	}
	b.lacking += b.lackingBlocks(c)
	if len(c.copies) == 0 {
		b.forgetChunk(at, c)
	}
	return vanishes, true
}

// clearTier forgets the chunks on a tier, or all chunks if tier is "". It calls vanish for each that was whole.
func (b *book) clearTier(tier string, vanish func(chunkID)) {
	for at, c := range b.chunks {
		if tier == "" || at.tier == tier {
			if c.whole > 0 {
				vanish(at)
			}
			b.forgetChunk(at, c)
		}
	}
}

func (b *book) forgetChunk(at chunkID, c *chunk) {
	b.releaseTokens(c)
	b.lacking -= b.lackingBlocks(c)
	b.bytes -= chunkBytes + int64(len(at.hash)+len(at.salt)) + copyBytes*int64(len(c.copies))
	b.stored[at.tier]--
	delete(b.chunks, at)
}

// holdsChunk reports whether a chunk is whole on a tier.
func (b *book) holdsChunk(n chunkName) bool {
	for _, tier := range []string{host, storage} {
		if c := b.chunks[chunkID{tier, n.salt, n.hash}]; c != nil && c.whole > 0 {
			return true
		}
	}
	return false
}

// copyOn returns the copy of a chunk on a backend, nil if there is none.
func (c *chunk) copyOn(backend string, world int) *chunkCopy {
	for i := range c.copies {
		if p := &c.copies[i]; p.backend == backend && p.world == world {
			return p
		}
	}
	return nil
}
