// Package digest names blocks the way engines do: by a chain of SHA-256 over
// the tokens of a prompt, block by block.
//
//	vLLM    root    = SHA-256(enc(seed))
//	        block i = SHA-256(enc((digest i-1 or root, tokens, None)))
//	                  enc is CPython's pickle, protocol 5, or canonical CBOR
//	SGLang  page i  = SHA-256(digest i-1 if there is one | tokens, u32 little-endian)
//
// An engine with a drafter hashes a block with the L tokens behind it, its look-ahead.
// vLLM 0.33 writes (None, next L tokens...) in place of None. SGLang with EAGLE writes
// each token with its successor, so L is 1.
//
// Events carry eight bytes of a digest, vLLM's the last, SGLang's the first;
// the keys of objects in a Mooncake Store carry all 32, in hex digits.
//
// Concurrency: a Chain belongs to one goroutine at a time; a Digest is a value.
//
// Cost: one SHA-256 over some 100 to 150 bytes for a block of 16 tokens.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Digest names one block together with everything before it.
type Digest [sha256.Size]byte

// Hex returns all of it in lower-case hex digits.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// First64 is the digest as SGLang's events have it.
func (d Digest) First64() uint64 { return binary.BigEndian.Uint64(d[:8]) }

// Last64 is the digest as vLLM's events have it.
func (d Digest) Last64() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// Algorithm is a way to hash.
type Algorithm uint8

const (
	Pickle Algorithm = iota // vLLM's sha256, its default
	CBOR                    // vLLM's sha256_cbor
	Page                    // SGLang's
)

// String returns the name the engine's own flag has for it.
func (a Algorithm) String() string { return [...]string{"sha256", "sha256_cbor", "page"}[a] }

// Event is a digest as the events of the algorithm's engine have it.
func (a Algorithm) Event(d Digest) uint64 {
	if a == Page {
		return d.First64()
	}
	return d.Last64()
}

// Longest is the longest block pickle writes in one frame of 64 KiB, which is
// the only form written here.
const Longest = 8192

// Chain hashes the blocks of prompts.
type Chain struct {
	algorithm Algorithm
	root      Digest
	buf       []byte
}

// New returns a chain. Engines name blocks alike if algorithm and seed, the
// text of PYTHONHASHSEED, are equal. SGLang has no seed.
func New(a Algorithm, seed string) *Chain {
	c := &Chain{algorithm: a}
	switch a {
	case Pickle:
		c.root = sha256.Sum256(pickle(nil, func(b []byte) []byte { return pickledText(b, seed) }))
	case CBOR:
		c.root = sha256.Sum256(append(cborHead(nil, cborText, len(seed)), seed...))
	}
	return c
}

// First returns the name of the first block of a prompt, with the tokens of its
// look-ahead.
func (c *Chain) First(tokens []uint32, ahead ...uint32) Digest {
	if c.algorithm == Page {
		return c.sum(nil, tokens, ahead)
	}
	return c.sum(c.root[:], tokens, ahead)
}

// Next returns the name of the block behind another, with the tokens of its look-ahead.
func (c *Chain) Next(before Digest, tokens []uint32, ahead ...uint32) Digest {
	return c.sum(before[:], tokens, ahead)
}

func (c *Chain) sum(before []byte, tokens, ahead []uint32) Digest {
	if len(tokens) > Longest {
		panic("BUG: a block longer than one frame")
	}
	b := c.buf[:0]
	switch c.algorithm {
	case Pickle:
		b = pickle(b, func(b []byte) []byte { return pickledBlock(b, before, tokens, ahead) })
	case CBOR:
		b = append(b, 0x83) // an array of three
		b = append(cborHead(b, cborBytes, len(before)), before...)
		b = cborTokens(cborHead(b, cborArray, len(tokens)), tokens)
		if len(ahead) > 0 {
			b = cborHead(b, cborArray, 1+len(ahead))
		}
		b = cborTokens(append(b, cborNull), ahead)
	case Page:
		if len(ahead) > 1 {
			panic("BUG: a page of pairs with a look-ahead of more than one token")
		}
		b = append(b, before...)
		for i, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
			switch {
			case len(ahead) == 0:
			case i+1 < len(tokens):
				b = binary.LittleEndian.AppendUint32(b, tokens[i+1])
			default:
				b = binary.LittleEndian.AppendUint32(b, ahead[0])
			}
		}
	}
	c.buf = b
	return sha256.Sum256(b)
}
