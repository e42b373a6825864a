package wire

import (
	"encoding/binary"
	"math"
	"unsafe"

	"example.com/conductor/events"
)

// Token ids are most of a payload's bytes, and where one ends depends on its
// first byte. Ids of today's vocabularies take three or five bytes in turns no
// branch predictor can guess, so readCompactTokens decides nothing: the width is computed
// from the tag, and the value is the last four bytes of the token under the
// tag's mask.
//
//	7f              width 1, mask 7f
//	cc 80           width 2, mask ff
//	cd 12 34        width 3, mask ffff
//	ce 00 01 86 a0  width 5, mask ffffffff
//	any other tag   width at most 9, counted as foreign

const (
	// chunk is how many tokens readCompactTokens reads between two looks at how many bytes
	// are left, and at whether all of them were compact.
	chunk = 8
	// chunkBytes is what chunk tokens take at most if every tag says nine bytes,
	// rounded up.
	chunkBytes = 80

	notCompact = 1 << 32
)

// tokenMasks tell by tag which of the last four bytes of a token are its value.
var tokenMasks = func() (m [256]uint64) {
	for tag := range m {
		m[tag] = notCompact
	}
	for tag := range 0x80 {
		m[tag] = 0x7f
	}
	m[0xcc], m[0xcd], m[0xce] = 0xff, 0xffff, 0xffffffff
	return m
}()

// readCompactTokens reads unsigned integers of at most 32 bits from b[at:] into list for as
// long as whole chunks of them come, and returns how many it read and where the
// next value starts.
func readCompactTokens(list []uint32, b []byte, at int) (n, next int) {
	for at >= 3 && len(b)-at >= chunkBytes && len(list)-n >= chunk {
		width, ok := readCompactChunk((*[chunk]uint32)(list[n:]), (*[chunkBytes + 3]byte)(b[at-3:]))
		if !ok {
			break
		}
		n += chunk
		at += width
	}
	return n, at
}

// readCompactChunk reads chunk integers from b[3:], and tells how many bytes they took
// and whether all were compact. It is a function of its own to have the registers
// for itself.
//
//go:noinline
func readCompactChunk(out *[chunk]uint32, b *[chunkBytes + 3]byte) (width int, ok bool) {
	// p stays within b: a token takes at most nine bytes, and reading its last four
	// reaches back three bytes at most. Checked indexing takes a fifth more
	// time.
	p := unsafe.Pointer(&b[3])
	all := uint64(0)
	for i := range out {
		tag := uint64(*(*byte)(p))
		p = unsafe.Add(p, 1+(tag>>7)<<(tag&3))
		mask := tokenMasks[uint8(tag)]
		all |= mask
		out[i] = binary.BigEndian.Uint32((*[4]byte)(unsafe.Add(p, -4))[:]) & uint32(mask)
	}
	return int(uintptr(p) - uintptr(unsafe.Pointer(&b[3]))), all&notCompact == 0
}

// readTokens reads token ids: a list of integers, or of pairs where an EAGLE
// draft model keys the cache by bigrams. Elements that are neither (TensorRT-LLM
// puts strings at multimodal places) leave the event without tokens. A number that
// is no token id is a bad_token: without its tokens the block would wait, by a hash
// that no other event explains.
func (d *decoder) readTokens() (list []uint32, bigram bool, why events.Reason) {
	n, why := d.in.openList(d.lim.MaxTokens)
	if why != "" || n == 0 {
		return nil, false, why
	}
	first := d.in.i
	d.in.beyond = false
	bigram = isArray(d.in.b[first])
	ok := false
	if bigram {
		list, ok = d.readTokenPairs(n)
	} else {
		list, ok = d.readFlatTokens(n)
	}
	if ok {
		return list, bigram, ""
	}
	d.in.i = first
	d.in.skipValues(n)
	switch {
	case d.in.deep:
		why = events.TooLarge
	case d.in.beyond:
		why = events.BadToken
	}
	return nil, false, why
}

// readFlatTokens reads n integers.
func (d *decoder) readFlatTokens(n int) ([]uint32, bool) {
	list := d.tokens.takeElements(n, d.siblings, d.in.bytesLeft())
	for j := 0; j < n; {
		k := 0
		k, d.in.i = readCompactTokens(list[j:], d.in.b, d.in.i)
		// The rest, or up to and beyond a token that is not compact.
		for end := min(n, j+k+chunk); j+k < end; k++ {
			t, ok := d.in.readToken()
			if !ok {
				return nil, false
			}
			list[j+k] = t
		}
		j += k
	}
	return list, true
}

// readTokenPairs reads [[t0,t1],[t1,t2],...] as t0,t1,t2,... Neighbours that do not
// overlap are no bigrams of one sequence.
func (d *decoder) readTokenPairs(n int) ([]uint32, bool) {
	list := d.tokens.takeElements(n+1, d.siblings, d.in.bytesLeft())
	for j := range n {
		if k, size := d.in.readHeader(); k != kArray || size != 2 {
			return nil, false
		}
		a, okA := d.in.readToken()
		b, okB := d.in.readToken()
		if !okA || !okB || j > 0 && list[j] != a {
			return nil, false
		}
		list[j], list[j+1] = a, b
	}
	return list, true
}

// readToken reads a u32; negative int32 values count by two's complement.
func (c *cursor) readToken() (uint32, bool) {
	k, n := c.readHeader()
	switch {
	case k == kUint && n <= math.MaxUint32:
		return uint32(n), true
	case k == kInt && int64(n) >= math.MinInt32:
		return uint32(n), true
	}
	c.beyond = c.beyond || k == kUint || k == kInt || k == kFloat
	return 0, false
}
