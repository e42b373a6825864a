package match

import "example.com/conductor/conductor/catalog"

// clientChain is a prompt given as client hashes. The index asks for local hashes as far
// as it matches.
type clientChain struct {
	deployment   *catalog.Deployment
	clientHashes []uint64
	asLocal      bool // clientHashes are local hashes, as are those recovered from a peer of Dynamo's
	local        []uint64
	seq          []uint64
	ended        bool // the last of local was of a block that no engine has announced
}

func (c *clientChain) reset(d *catalog.Deployment, clientHashes []uint64, asLocal bool) {
	*c = clientChain{deployment: d, clientHashes: clientHashes, asLocal: asLocal, local: c.local[:0], seq: c.seq[:0]}
}

// Len returns the number of blocks.
func (c *clientChain) Len() int { return len(c.clientHashes) }

// Locals returns the local hashes of the first n blocks. Behind a block that no engine
// has announced every hash is one of no block.
func (c *clientChain) Locals(n int) []uint64 {
	if c.asLocal {
		return c.clientHashes
	}
	for i := len(c.local); i < n; i++ {
		local, known := c.deployment.LocalHashOf(c.clientHashes[i])
		if c.ended = c.ended || !known; c.ended {
			local = ^c.clientHashes[i]
		}
		c.local = append(c.local, local)
	}
	return c.local
}

// At returns the seq hash of block i.
func (c *clientChain) At(i int) uint64 {
	local := c.Locals(i + 1)
	for n := len(c.seq); n <= i; n++ {
		l := local[n]
		if n > 0 {
			l = c.deployment.Scheme.Next(c.seq[n-1], l)
		}
		c.seq = append(c.seq, l)
	}
	return c.seq[i]
}
