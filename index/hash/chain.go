package hash

// Chain computes the sequence hashes of one prompt when they are asked for: a
// prompt whose first block nobody holds costs one block of hashing. Its zero
// value is an empty prompt under seed 0. Reset keeps its buffer, unless that is a giant's.
type Chain struct {
	scheme Scheme
	local  Scheme // of single blocks
	tokens []uint32
	size   int
	ahead  int
	seq    []uint64 // hashes computed so far
}

// keepHashes is the longest buffer worth keeping: a million tokens in blocks of 16.
const keepHashes = 1 << 16

// Reset starts over with a prompt, which must stay unchanged while the chain is
// in use. A block is blockSize tokens, and its hash covers the ahead tokens behind it as
// well. Only blocks whose tokens are all there count.
func (c *Chain) Reset(s Scheme, tokens []uint32, blockSize, ahead int) {
	if cap(c.seq) > keepHashes {
		c.seq = nil
	}
	*c = Chain{scheme: s, local: s, tokens: tokens, size: blockSize, ahead: ahead, seq: c.seq[:0]}
}

// Under hashes the tokens of single blocks under a scheme of their own, as peers do that mix
// names into local hashes. It follows Reset.
func (c *Chain) Under(local Scheme) { c.local = local }

// Len returns the number of blocks.
func (c *Chain) Len() int {
	if c.size < 1 {
		return 0
	}
	return max(len(c.tokens)-c.ahead, 0) / c.size
}

// At returns the sequence hash of block i, 0 <= i < Len(). It computes the hashes
// up to i that are still missing.
func (c *Chain) At(i int) uint64 {
	for n := len(c.seq); n <= i; n++ {
		l := c.local.Local(c.tokens[n*c.size : (n+1)*c.size+c.ahead])
		if n > 0 {
			l = c.scheme.Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}

// Computed returns how many hashes the prompt has cost so far.
func (c *Chain) Computed() int { return len(c.seq) }
