package hash

import "encoding/binary"

// A prompt is remembered in stretches of blocks, counted from where its chain begins.
// The last one is shorter: it is found again by the same prompt, and left behind by
// one that goes on.

// SetMemo lets the chain look digests up before it computes them, and keep what it
// computed. The chain has no prompt afterwards. Nil is no memo, as at the beginning.
func (c *DigestChain) SetMemo(m *Memo) {
	c.memo = m
	c.writeScopes()
	c.Reset(nil, 0)
}

// writeScopes writes what digests depend on in addition to parents and tokens: the algorithm, the
// look-ahead, whether the first block has a parent, and the extra keys. All else of a profile is
// in its root, the first parent. Salts of later blocks are in their parents.
func (c *DigestChain) writeScopes() {
	a := c.profile.algorithm
	if c.memo == nil || a == 0 {
		return
	}
	rooted := byte(0)
	if c.rooted {
		rooted = 1
	}
	ahead := byte(c.profile.ahead)
	c.scopes[0] = appendScope(c.scopes[0][:0], a, ahead, rooted, &c.first, &c.rest)
	c.scopes[1] = appendScope(c.scopes[1][:0], a, ahead, 1, &c.rest, &c.rest)
}

func appendScope(b []byte, a algorithm, ahead, rooted byte, first, rest *blockExtras) []byte {
	b = append(b, byte(a), ahead, rooted)
	if a == sha256Pages || a == sha256Bigrams {
		return b // they have no extra keys
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(first.written)))
	b = append(b, first.written...)
	return append(b, rest.written...)
}

// recallStretch takes the digests of the stretch that begins with block n from the memo, and
// reports whether it had them. Otherwise they are to be put in when all are there.
func (c *DigestChain) recallStretch(n int) bool {
	blocks := min(c.Len()-n, stretch)
	if blocks < 1 {
		return false
	}
	c.key = c.appendKey(c.key[:0], n, blocks)
	c.hash = c.memo.hashKey(c.key)
	found := c.memo.findDigests(c.hash, c.key)
	if found == nil {
		c.start, c.end = n, n+blocks
		return false
	}
	c.digests = append(c.digests, bytesAsDigests(found)...)
	return true
}

// memoriseStretch notes that block n was hashed.
func (c *DigestChain) memoriseStretch(n int) {
	if n+1 == c.end && c.memo.wasHashedBefore(c.hash) {
		c.key = append(c.key, digestsAsBytes(c.digests[c.start:c.end])...)
		c.memo.addEntry(c.hash, c.key)
	}
}

// appendKey appends all that the digests of blocks depend on. No two such stretches
// have the same key: numbers and scopes say how long the rest is.
func (c *DigestChain) appendKey(b []byte, n, blocks int) []byte {
	scope := c.scopes[1]
	if n == 0 && !c.after {
		scope = c.scopes[0]
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(blocks))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.size))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(scope)))
	b = append(b, scope...)
	if parent, rooted := c.parentOf(n); rooted {
		b = append(b, parent[:]...)
	}
	return appendPage(b, c.tokens[n*c.size:(n+blocks)*c.size+c.profile.ahead])
}
