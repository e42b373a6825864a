package relay

import "encoding/binary"

// What the header of a msgpack value announces.
type kind uint8

const (
	scalar kind = iota // no further values
	text               // str or bin
	list
	pairs
)

// header reads the header of the value at the start of b: its kind, how many elements, pairs or
// bytes follow, and its size. The size is 0 if there is no whole header, or more is announced
// than there are bytes.
func header(b []byte) (k kind, n, size int) {
	if len(b) == 0 {
		return 0, 0, 0
	}
	switch h := b[0]; {
	case h <= 0x7f || h >= 0xe0:
		return scalar, 0, 1
	case h <= 0x8f:
		k, n, size = pairs, int(h&0x0f), 1
	case h <= 0x9f:
		k, n, size = list, int(h&0x0f), 1
	case h <= 0xbf:
		k, n, size = text, int(h&0x1f), 1
	case h <= 0xc3:
		return scalar, 0, 1
	case h <= 0xc6:
		k, size = text, 1+1<<(h-0xc4)
	case h <= 0xc9: // ext: a type byte behind the length
		width := 1 << (h - 0xc7)
		if n, ok := length(b, width); ok && len(b) >= 2+width+n {
			return scalar, 0, 2 + width + n
		}
		return 0, 0, 0
	case h <= 0xcb:
		return whole(b, 5+4*int(h-0xca))
	case h <= 0xd3:
		return whole(b, 1+1<<((h-0xcc)&3))
	case h <= 0xd8:
		return whole(b, 2+1<<(h-0xd4))
	case h <= 0xdb:
		k, size = text, 1+1<<(h-0xd9)
	case h <= 0xdd:
		k, size = list, 1+2<<(h-0xdc)
	default:
		k, size = pairs, 1+2<<(h-0xde)
	}
	if size > 1 {
		var ok bool
		if n, ok = length(b, size-1); !ok {
			return 0, 0, 0
		}
	}
	if n > len(b)-size { // each takes a byte at least
		return 0, 0, 0
	}
	return k, n, size
}

// whole is the header of a scalar of a fixed size.
func whole(b []byte, size int) (kind, int, int) {
	if len(b) < size {
		return 0, 0, 0
	}
	return scalar, 0, size
}

// length reads a length of some bytes behind the first byte.
func length(b []byte, width int) (int, bool) {
	if len(b) < 1+width {
		return 0, false
	}
	var wide [8]byte
	copy(wide[8-width:], b[1:1+width])
	n := binary.BigEndian.Uint64(wide[:])
	return int(n), n <= 1<<32
}

// value splits the first value off b. It returns nil if there is no whole one.
func value(b []byte) (v, rest []byte) {
	at := 0
	for open := 1; open > 0; open-- {
		k, n, size := header(b[at:])
		if size == 0 {
			return nil, b
		}
		at += size
		switch k {
		case text:
			at += n
		case list:
			open += n
		case pairs:
			open += 2 * n
		}
		if open > len(b) { // more than there can be
			return nil, b
		}
	}
	return b[:at:at], b[at:]
}

// elements returns the elements of a list, or the keys and values of pairs in turns. ok is false
// if v is neither.
func elements(v []byte, dst [][]byte) (all [][]byte, ok bool) {
	k, n, size := header(v)
	if size == 0 || k != list && k != pairs {
		return dst, false
	}
	if k == pairs {
		n *= 2
	}
	for rest := v[size:]; n > 0; n-- {
		var e []byte
		if e, rest = value(rest); e == nil {
			return dst, false
		}
		dst = append(dst, e)
	}
	return dst, true
}

// word returns the bytes of a str or bin, nil if v is none.
func word(v []byte) []byte {
	k, n, size := header(v)
	if k != text || size == 0 || len(v) < size+n {
		return nil
	}
	return v[size : size+n]
}

// appendList appends the header of a list of n elements.
func appendList(dst []byte, n int) []byte { return appendHeader(dst, n, 0x90, 0xdc) }

// appendPairs appends the header of n pairs.
func appendPairs(dst []byte, n int) []byte { return appendHeader(dst, n, 0x80, 0xde) }

func appendHeader(dst []byte, n int, short, long byte) []byte {
	switch {
	case n < 16:
		return append(dst, short|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, long), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, long+1), uint32(n))
}

// appendWord appends a str.
func appendWord(dst []byte, s string) []byte {
	if len(s) < 32 {
		dst = append(dst, 0xa0|byte(len(s)))
	} else {
		dst = append(dst, 0xd9, byte(len(s)))
	}
	return append(dst, s...)
}

// null is a msgpack nil.
var null = []byte{0xc0}
