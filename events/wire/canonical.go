package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// A value that the decoder has no meaning for is compared by its msgpack in one
// canonical form: every header as short as it can be, floats in 64 bits, the pairs
// of a map in the order of their keys' bytes. So neither the encoder that wrote the
// value nor the order in which it wrote a map matters.

// appendCanonical appends the canonical form of the next value to dst, and steps over the
// value. The value's depth has been checked: canonical calls itself for each level.
func (c *cursor) appendCanonical(dst []byte) []byte {
	at := c.i
	switch k, n := c.readHeader(); k {
	case kUint:
		return appendUint(dst, n)
	case kInt:
		return appendNegative(dst, int64(n))
	case kFloat:
		return binary.BigEndian.AppendUint64(append(dst, 0xcb), n)
	case kStr:
		return append(appendHeader(dst, n, 0xa0, 0x1f, 0xd9), c.readBytes(n)...)
	case kBin:
		return append(appendHeader(dst, n, 0, 0, 0xc4), c.readBytes(n)...)
	case kExt: // the type byte is counted in n
		return append(appendExt(dst, n-1), c.readBytes(n)...)
	case kArray:
		dst = appendHeader(dst, n, 0x90, 0x0f, 0xdb)
		for range n {
			dst = c.appendCanonical(dst)
		}
		return dst
	case kMap:
		return c.appendCanonicalMap(appendHeader(dst, n, 0x80, 0x0f, 0xdd), int(n))
	}
	return append(dst, c.b[at:c.i]...) // nil and bools
}

// appendCanonicalMap appends n pairs, sorted by their keys.
func (c *cursor) appendCanonicalMap(dst []byte, n int) []byte {
	type pair struct{ from, value, end int }
	from, pairs := len(dst), make([]pair, n)
	for i := range pairs {
		pairs[i].from = len(dst)
		dst = c.appendCanonical(dst)
		pairs[i].value = len(dst)
		dst = c.appendCanonical(dst)
		pairs[i].end = len(dst)
	}
	unsorted := slices.Clone(dst[from:])
	part := func(from2, to int) []byte { return unsorted[from2-from : to-from] }
	slices.SortFunc(pairs, func(a, b pair) int {
		if order := bytes.Compare(part(a.from, a.value), part(b.from, b.value)); order != 0 {
			return order
		}
		return bytes.Compare(part(a.value, a.end), part(b.value, b.end))
	})
	dst = dst[:from]
	for _, p := range pairs {
		dst = append(dst, part(p.from, p.end)...)
	}
	return dst
}

func appendUint(dst []byte, n uint64) []byte {
	switch {
	case n <= 0x7f:
		return append(dst, byte(n))
	case n < 1<<8:
		return append(dst, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
}

func appendNegative(dst []byte, n int64) []byte {
	switch {
	case n >= -32:
		return append(dst, byte(n))
	case n >= -1<<7:
		return append(dst, 0xd0, byte(n))
	case n >= -1<<15:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(n))
	case n >= -1<<31:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(n))
}

// appendHeader appends the shortest header of n bytes, elements or pairs. In one byte it
// is short and n, up to most; longer ones begin with long, which stands for a length of
// one byte, and the two bytes after it. Arrays and maps have no header with one byte.
func appendHeader(dst []byte, n uint64, short byte, most uint64, long byte) []byte {
	counts := long == 0xdb || long == 0xdd
	switch {
	case n <= most && short != 0:
		return append(dst, short|byte(n))
	case n < 1<<8 && !counts:
		return append(dst, long, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, long+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, long+2), uint32(n))
}

// appendExt appends the header of an ext of n bytes.
func appendExt(dst []byte, n uint64) []byte {
	switch n {
	case 1, 2, 4, 8, 16:
		return append(dst, 0xd4+byte(bits.TrailingZeros64(n)))
	}
	return appendHeader(dst, n, 0, 0, 0xc7)
}
