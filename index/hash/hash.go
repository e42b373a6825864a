// Package hash computes the canonical key of a block: a rolling hash over the
// tokens of the whole prefix, equal for everyone who uses the same seed.
//
//	tokens   t0 t1 .. tb-1 | tb .. t2b-1 | ...   u32, b = block size
//	local    local[0]        local[1]             XXH3-64(seed, tokens as LE u32)
//	seq      seq[0] -------> seq[1] -----> ...    seq[0] = local[0],
//	                                              seq[i] = XXH3-64(seed, LE64(seq[i-1]) LE64(local[i]))
//
// LoRA and cache salt are not part of the key: they name another index. Peers
// that mix them into the local hash derive a seed with Seeded; their chain keeps
// the plain seed. Images and other multimodal items are part of it, because the
// tokens in their place say nothing: see Windows.
//
// What an engine itself names its blocks by is another chain, of whole digests under
// a Profile: see DigestChain. It is for blocks that come without tokens. A Memo spares
// chains what one of them has hashed before.
//
// Invariants:
//
//  1. Only complete blocks have a hash; trailing tokens are ignored, and a block
//     size below one gives no hashes at all.
//  2. seq[i] depends on tokens 0..(i+1)b-1 and the seed, on nothing else; so a
//     chain may be computed lazily, or continued from any parent.
//  3. The result does not depend on the byte order of the host.
//
// Concurrency: functions are pure, a Profile is a value. A Chain or DigestChain
// belongs to one goroutine, a Memo to all.
//
// Cost: one pass over the tokens and 16 bytes a block for the chain, 32 for one of
// digests. Nothing allocates beyond growing dst, but a Memo: by the stretch, not by the
// block.
package hash

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// DefaultSeed is the seed the standardized event format and its known users agree on.
const DefaultSeed = 1337

// Scheme is a seed; the zero value is the scheme with seed 0, not the default.
type Scheme struct{ Seed uint64 }

// DefaultScheme is the scheme with DefaultSeed.
func DefaultScheme() Scheme { return Scheme{DefaultSeed} }

// Local returns the hash of one block's tokens.
func (s Scheme) Local(tokens []uint32) uint64 {
	if littleEndian {
		return xxh3.HashSeed(tokensAsBytes(tokens), s.Seed)
	}
	return localCopied(tokens, s.Seed)
}

// AppendLocals appends the local hash of each complete block to dst.
func (s Scheme) AppendLocals(dst []uint64, tokens []uint32, blockSize int) []uint64 {
	if blockSize < 1 {
		return dst
	}
	for len(tokens) >= blockSize {
		dst = append(dst, s.Local(tokens[:blockSize]))
		tokens = tokens[blockSize:]
	}
	return dst
}

// Next returns the sequence hash of a block from its parent's and its own local hash.
func (s Scheme) Next(parentSeq, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parentSeq)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], s.Seed)
}

// AppendChain appends the sequence hashes of a prompt's local hashes to dst. dst may be
// locals[:0].
func (s Scheme) AppendChain(dst, locals []uint64) []uint64 {
	var seq uint64
	for i, l := range locals {
		if i == 0 {
			seq = l
		} else {
			seq = s.Next(seq, l)
		}
		dst = append(dst, seq)
	}
	return dst
}

// AppendTokenChain appends the sequence hashes of a prompt's complete blocks to dst.
func (s Scheme) AppendTokenChain(dst []uint64, tokens []uint32, blockSize int) []uint64 {
	if blockSize < 1 {
		return dst
	}
	var seq uint64
	for at := 0; at+blockSize <= len(tokens); at += blockSize {
		l := s.Local(tokens[at : at+blockSize])
		if at == 0 {
			seq = l
		} else {
			seq = s.Next(seq, l)
		}
		dst = append(dst, seq)
	}
	return dst
}

// DeriveSeed returns the seed of local hashes that carry a LoRA name and a cache
// salt, the way Dynamo's indexer derives it: base + XXH3-64(0, lora) +
// XXH3-64(1, salt), an empty string adding nothing.
func DeriveSeed(base uint64, lora, salt string) uint64 {
	if lora != "" {
		base += xxh3.HashString(lora)
	}
	if salt != "" {
		base += xxh3.HashStringSeed(salt, 1)
	}
	return base
}
