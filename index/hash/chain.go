package hash

// Chain computes the sequence hashes of one prompt when they are asked for: a
// prompt whose first block no owner holds costs one block of hashing. Its zero
// value is an empty prompt under seed 0. Reset keeps its buffer, unless that is a giant's.
type Chain struct {
	scheme Scheme
	under  Scheme // of single blocks
	tokens []uint32
	size   int
	ahead  int
	local  []uint64 // local hashes computed so far
	seq    []uint64 // sequence hashes computed so far
}

// keepHashes is the longest buffer worth keeping: a million tokens in blocks of 16.
const keepHashes = 1 << 16

// Reset starts over with a prompt, which must stay unchanged while the chain is
// in use. A block is blockSize tokens, and its hash covers the ahead tokens behind it as
// well. Only blocks whose tokens are all there count.
func (c *Chain) Reset(s Scheme, tokens []uint32, blockSize, ahead int) {
	if cap(c.local) > keepHashes {
		c.local, c.seq = nil, nil
	}
	*c = Chain{scheme: s, under: s, tokens: tokens, size: blockSize, ahead: ahead, local: c.local[:0], seq: c.seq[:0]}
}

// SetLocalScheme hashes the tokens of single blocks under a scheme of their own, as peers do that mix
// names into local hashes. It follows Reset.
func (c *Chain) SetLocalScheme(local Scheme) { c.under = local }

// Len returns the number of blocks.
func (c *Chain) Len() int {
	if c.size < 1 {
		return 0
	}
	return max(len(c.tokens)-c.ahead, 0) / c.size
}

// Locals returns the local hashes of the first n blocks or more, n <= Len(). It computes
// those that are still missing. They are valid until the next call of Reset.
func (c *Chain) Locals(n int) []uint64 {
	for i := len(c.local); i < n; i++ {
		c.local = append(c.local, c.under.Local(c.tokens[i*c.size:(i+1)*c.size+c.ahead]))
	}
	return c.local
}

// At returns the sequence hash of block i, 0 <= i < Len(). It computes the hashes
// up to i that are still missing.
func (c *Chain) At(i int) uint64 {
	local := c.Locals(i + 1)
	for n := len(c.seq); n <= i; n++ {
		l := local[n]
		if n > 0 {
			l = c.scheme.Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}

// Computed returns how many blocks of the prompt have been hashed so far.
func (c *Chain) Computed() int { return len(c.local) }
