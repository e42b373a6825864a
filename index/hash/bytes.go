package hash

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// littleEndian is true where a token slice already has the bytes to be hashed.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// tokensAsBytes returns the memory of tokens as bytes. It is only read, and only while
// tokens is alive.
func tokensAsBytes(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}

// bytesAsDigests returns memory that holds whole digests as such.
func bytesAsDigests(b []byte) []Digest {
	return unsafe.Slice((*Digest)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/len(Digest{}))
}

// digestsAsBytes returns the memory of digests.
func digestsAsBytes(d []Digest) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(d))), len(d)*len(Digest{}))
}

// stackTokens is how many tokens are converted without the heap; block sizes
// beyond it are rare.
const stackTokens = 256

// localCopied is Local for hosts of any byte order: it hashes a converted copy.
func localCopied(tokens []uint32, seed uint64) uint64 {
	return hashWithItems(tokens, nil, seed)
}

// hashWithItems hashes tokens and the numbers of what they stand for, which are in order.
func hashWithItems(tokens []uint32, items []uint64, seed uint64) uint64 {
	var buf [4 * stackTokens]byte
	b := buf[:0]
	if n := 4*len(tokens) + 8*len(items); n > len(buf) {
		b = make([]byte, 0, n)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, n := range items {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return xxh3.HashSeed(b, seed)
}
