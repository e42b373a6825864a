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
	places []place
	whole  int // places with all shards
	length int // tokens, 0 if not known
	// What a shard said, kept until all are there.
	tokens []uint32
	parent string
	placed bool // the parent is known
}

// place is where shards of a chunk are. A chunk that was stored for another world is other
// objects.
type place struct {
	backend string
	world   int
	have    int
	shards  [(maxRank + 1) / 64]uint64
}

// Bytes that a chunk and a place take, about.
const (
	chunkBytes = 256
	placeBytes = 64
)

func newBook(limit int64, blockSize int) *book {
	return &book{limit: limit, blockSize: max(blockSize, 1), chunks: make(map[chunkID]*chunk), stored: make(map[string]int)}
}

// lackingBlocks returns how many blocks the chunk has if no place has all its shards, else 0.
func (b *book) lackingBlocks(c *chunk) int {
	if c.whole > 0 || len(c.places) == 0 {
		return 0
	}
	return max(c.length/b.blockSize, 1)
}

// storeObject enters an object that was stored. appears says that the object made its chunk whole. fits is false if the book
// has no room, and then nothing has changed.
func (b *book) storeObject(at chunkID, backend string, e *Entry, parent string, placed bool) (c *chunk, appears, fits bool) {
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
	if c.whole == 0 && len(e.Tokens) > 0 && (c.tokens == nil || placed && !c.placed) {
		b.bytes += 4 * int64(len(e.Tokens)-len(c.tokens))
		c.tokens, c.parent, c.placed, c.length = e.Tokens, parent, placed, len(e.Tokens)
	}
	p := c.placeOf(backend, e.World)
	if p == nil {
		c.places = append(c.places, place{backend: backend, world: e.World})
		p = &c.places[len(c.places)-1]
		b.bytes += placeBytes
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
	p := c.placeOf(backend, e.World)
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
		*p = c.places[len(c.places)-1]
		c.places = c.places[:len(c.places)-1]
		b.bytes -= placeBytes
	}
	b.lacking += b.lackingBlocks(c)
	if len(c.places) == 0 {
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
	b.bytes -= chunkBytes + int64(len(at.hash)+len(at.salt)) + placeBytes*int64(len(c.places))
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

// placeOf returns the place of a chunk on a backend, nil if there is none.
func (c *chunk) placeOf(backend string, world int) *place {
	for i := range c.places {
		if p := &c.places[i]; p.backend == backend && p.world == world {
			return p
		}
	}
	return nil
}
