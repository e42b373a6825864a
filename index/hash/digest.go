package hash

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// An engine chains its blocks by whole digests, and events show 64 bits of them: so a
// chain that is to go on keeps the digests.
//
//	vLLM     root = H(seed)    digest[0] = H(root, tokens, (lora, salt))    digest[i] = H(digest[i-1], tokens, (lora))
//	         with look-ahead the third is (it, next tokens...)
//	SGLang                     digest[0] = H(salted, tokens)                digest[i] = H(digest[i-1], tokens)
//	         salted = H(prefix, salt), nothing without a salt
//	bigrams  each position is the token and the one behind it, the last has none

// Digest is the engine's whole name of a block.
type Digest [32]byte

// sglangSalt is what SGLang hashes before a salt.
const sglangSalt = "sglang-cache-salt-v1\x00"

// keyOf returns the bits of a digest that events carry.
func (a algorithm) keyOf(d *Digest) uint64 {
	switch a {
	case sha256CBOR, sha256Pickle:
		return binary.BigEndian.Uint64(d[24:])
	case xxhashCBOR, xxhashPickle:
		return binary.BigEndian.Uint64(d[8:])
	}
	return binary.BigEndian.Uint64(d[:])
}

// extraKey is what a block depends on in addition to its tokens. tag is empty where the
// version of the engine does not write it.
type extraKey struct{ tag, text string }

// extraKeys appends those of a block.
func (p Profile) extraKeys(dst []extraKey, lora, salt string, first bool) []extraKey {
	tags := [2]string{}
	if p.tagged {
		tags = [2]string{"lora", "cache_salt"}
	}
	if lora != "" {
		dst = append(dst, extraKey{tags[0], lora})
	}
	if salt != "" && first {
		dst = append(dst, extraKey{tags[1], salt})
	}
	return dst
}

// DigestChain computes an engine's digests of one prompt when they are asked for.
// Under says whose they are and has to come first; after it, Reset and After give a
// prompt, as often as one likes. It belongs to one goroutine.
type DigestChain struct {
	profile Profile
	first   blockExtras // of the block that starts the prompt
	rest    blockExtras // of the others
	root    Digest
	rooted  bool // the first block has a parent

	tokens  []uint32
	size    int
	after   bool // root is a block before tokens
	parent  Digest
	digests []Digest // known so far
	hashed  int      // of digests
	block   []byte   // the last block written

	memo   *Memo
	scopes [2][]byte // of a stretch that begins the prompt, and of the others; with a memo
	key    []byte    // of the last stretch that the memo was asked for
	hash   uint64    // of key
	start  int       // its first block
	end    int       // the block behind it, 0 if the memo had it
}

// blockExtras are the extra keys of a block, and as they are written.
type blockExtras struct {
	list    []extraKey
	written []byte
}

// NewDigestChain returns an empty chain of prompts that have a LoRA adapter and a salt, each
// empty if they have none. SGLang's digests do not depend on LoRA.
func (p Profile) NewDigestChain(lora, salt string) (*DigestChain, error) {
	c := new(DigestChain)
	if err := c.SetProfile(p, lora, salt); err != nil {
		return nil, err
	}
	return c, nil
}

// SetProfile says whose digests the chain is to have, see Profile.Chain. The chain has no
// prompt afterwards and keeps its buffers. The zero profile is an error, as are texts
// that no engine can have hashed because they are not UTF-8; an error leaves the chain
// as it was.
func (c *DigestChain) SetProfile(p Profile, lora, salt string) error {
	if p.algorithm == 0 {
		return fmt.Errorf("no hash profile")
	}
	if !utf8.ValidString(lora) {
		return fmt.Errorf("lora name %q must be valid UTF-8", lora)
	}
	if !utf8.ValidString(salt) {
		return fmt.Errorf("cache salt %q must be valid UTF-8", salt)
	}
	c.profile, c.root, c.rooted = p, p.root, true
	switch p.algorithm {
	case sha256Pages, sha256Bigrams:
		c.rooted = salt != ""
		if c.rooted {
			b := append(append(c.block[:0], sglangSalt...), salt...)
			c.root, c.block = p.algorithm.sum(b), b
		}
	default:
		c.writeExtras(&c.first, lora, salt, true)
		c.writeExtras(&c.rest, lora, salt, false)
	}
	c.writeScopes()
	c.Reset(nil, 0)
	return nil
}

// writeExtras prepares the extra keys of a block.
func (c *DigestChain) writeExtras(e *blockExtras, lora, salt string, first bool) {
	e.list = c.profile.extraKeys(e.list[:0], lora, salt, first)
	if a := c.profile.algorithm; a == sha256CBOR || a == xxhashCBOR {
		e.written = appendCBORExtras(e.written[:0], e.list)
		return
	}
	k := pickler{b: e.written[:0]}
	k.writeExtras(e.list)
	e.written = k.b
}

// Reset starts over with a prompt, which must stay unchanged while the chain is in
// use. Only complete blocks count.
func (c *DigestChain) Reset(tokens []uint32, blockSize int) {
	if cap(c.digests) > keepHashes {
		c.digests = nil
	}
	// Clipped, so that a block behind the end panics even if there is memory.
	c.tokens, c.size, c.after, c.digests, c.hashed, c.end = slices.Clip(tokens), blockSize, false, c.digests[:0], 0, 0
}

// ResetBehind starts over with the tokens behind a block of the same profile, LoRA adapter
// and salt.
func (c *DigestChain) ResetBehind(parent Digest, tokens []uint32, blockSize int) {
	c.Reset(tokens, blockSize)
	c.after, c.parent = true, parent
}

// Len returns the number of blocks.
func (c *DigestChain) Len() int {
	n := len(c.tokens) - c.profile.ahead
	if c.size < 1 || n < c.size || c.profile.algorithm == 0 {
		return 0
	}
	return n / c.size
}

// At returns the key of block i, 0 <= i < Len(), the one that events name it by; see
// Digest.
func (c *DigestChain) At(i int) uint64 { return c.profile.algorithm.keyOf(c.Digest(i)) }

// Digest returns the digest of block i, 0 <= i < Len(), which is valid until the next
// call of a method. It computes the digests up to i that are still missing.
func (c *DigestChain) Digest(i int) *Digest {
	for len(c.digests) <= i {
		n := len(c.digests)
		if c.memo != nil && n%stretch == 0 && c.recallStretch(n) {
			continue
		}
		c.digests = append(c.digests, Digest{})
		c.computeDigest(n)
		c.hashed++
		if c.memo != nil {
			c.memoriseStretch(n)
		}
	}
	return &c.digests[i]
}

// Computed returns how many digests the prompt has cost so far, those that a memo had
// left out.
func (c *DigestChain) Computed() int { return c.hashed }

// parentOf returns the digest that block n has for a parent, if it has one.
func (c *DigestChain) parentOf(n int) (parent *Digest, rooted bool) {
	switch {
	case n > 0:
		return &c.digests[n-1], true
	case c.after:
		return &c.parent, true
	}
	return &c.root, c.rooted
}

// computeDigest sets digest n, those before which are there.
func (c *DigestChain) computeDigest(n int) {
	a := c.profile.algorithm
	parent, rooted := c.parentOf(n)
	extras := &c.rest
	if n == 0 && !c.after {
		extras = &c.first
	}
	end := (n + 1) * c.size
	tokens, ahead := c.tokens[n*c.size:end], c.tokens[end:end+c.profile.ahead]
	b := c.block[:0]
	switch a {
	case sha256CBOR, xxhashCBOR:
		b = appendCBOR(b, parent[:a.size()], tokens, ahead, extras.written)
	case sha256Pickle, xxhashPickle:
		b = appendPickle(b, parent[:a.size()], tokens, ahead, extras.written, extras.list)
	case sha256Pages, sha256Bigrams:
		if rooted {
			b = append(b, parent[:]...)
		}
		if a == sha256Pages {
			b = appendPage(b, tokens)
		} else {
			b = appendBigrams(b, c.tokens[n*c.size:end+1])
		}
	default:
		panic("BUG: a digest under no profile")
	}
	c.block = b
	c.digests[n] = a.sum(b)
}

// appendPage appends tokens as SGLang hashes them.
func appendPage(b []byte, tokens []uint32) []byte {
	if littleEndian {
		return append(b, tokensAsBytes(tokens)...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}

// appendBigrams appends each token but the last with the one behind it.
func appendBigrams(b []byte, tokens []uint32) []byte {
	for i := range len(tokens) - 1 {
		b = binary.LittleEndian.AppendUint64(b, uint64(tokens[i+1])<<32|uint64(tokens[i]))
	}
	return b
}
