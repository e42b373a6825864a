package mooncake

import (
	"encoding/binary"
	"math"

	"kvconductor/conductor/body"
)

// kind is what a msgpack value is, as far as requests care.
type kind uint8

const (
	null kind = iota
	boolean
	integer
	float
	text
	bin
	list
	dict
	extension
)

// value is one msgpack value. Lists and maps are still encoded; their contents are
// known to be well-formed.
type value struct {
	kind kind
	neg  bool       // of an integer
	bits uint64     // of an integer, two's complement
	n    int        // elements of a list, pairs of a map
	raw  []byte     // contents of text, bin, list and map; of a map in JSON its text
	list *body.List // numbers of a list in JSON, nil in msgpack
}

// int returns an integer that fits into an int64.
func (v *value) int() (int64, bool) {
	return int64(v.bits), v.kind == integer && (v.neg || v.bits <= math.MaxInt64)
}

// maxDepth bounds how deep values are nested; no request needs more than 2.
const maxDepth = 64

// read reads the first value of src and returns the rest.
func read(src []byte, depth int) (v value, rest []byte, ok bool) {
	v, rest, ok = readHead(src)
	if !ok || v.kind != list && v.kind != dict {
		return v, rest, ok
	}
	n := v.n
	if v.kind == dict {
		n *= 2
	}
	if depth == 0 || n > len(rest) {
		return v, nil, false
	}
	inside := rest
	if rest, ok = skip(rest, n, depth-1); !ok {
		return v, nil, false
	}
	v.raw = inside[:len(inside)-len(rest)]
	return v, rest, true
}

// skip steps over n values.
func skip(src []byte, n, depth int) (rest []byte, ok bool) {
	for n > 0 {
		if n, src = skipIntegers(src, n); n == 0 {
			break
		}
		if _, src, ok = read(src, depth); !ok {
			return nil, false
		}
		n--
	}
	return src, true
}

// widths are how many bytes integers take by their tag, 0 for any other tag.
var widths = func() (w [256]uint8) {
	for tag := range w {
		if tag <= 0x7f || tag >= 0xe0 {
			w[tag] = 1
		}
	}
	for i := range 4 {
		w[0xcc+i], w[0xd0+i] = 1+1<<i, 1+1<<i
	}
	return w
}()

// skipIntegers steps over the integers that src begins with, n at most, and returns how
// many of the n are left.
func skipIntegers(src []byte, n int) (left int, rest []byte) {
	at := 0
	for ; n > 0 && at < len(src); n-- {
		width := int(widths[src[at]])
		if width == 0 || width > len(src)-at {
			break
		}
		at += width
	}
	return n, src[at:]
}

// masks tell by tag which bits of an unsigned integer of up to 32 bits are its value.
var masks = func() (m [256]uint32) {
	for tag := range 0x80 {
		m[tag] = 0x7f
	}
	m[0xcc], m[0xcd], m[0xce] = 0xff, 0xffff, 0xffffffff
	return m
}()

// readTokens reads the unsigned integers of up to 31 bits that src begins with into dst,
// for as long as eight bytes can be read at once, and returns how many and the rest behind
// them. Their widths alternate as no branch predictor can guess, so nothing branches on
// them.
func readTokens(dst []uint32, src []byte) (n int, rest []byte) {
	at := 0
	for n < len(dst) && len(src)-at >= 8 {
		word := binary.BigEndian.Uint64(src[at:])
		tag := word >> 56
		mask, width := masks[tag], widths[tag]
		v := uint32(word>>((64-8*width)&63)) & mask
		if mask == 0 || v > math.MaxInt32 {
			break
		}
		dst[n] = v
		n++
		at += int(width)
	}
	return n, src[at:]
}

// readHead reads a value, of lists and maps only how long they are.
func readHead(src []byte) (v value, rest []byte, ok bool) {
	if len(src) == 0 {
		return v, nil, false
	}
	tag, src := src[0], src[1:]
	switch {
	case tag <= 0x7f:
		return value{kind: integer, bits: uint64(tag)}, src, true
	case tag >= 0xe0:
		return value{kind: integer, bits: uint64(int64(int8(tag))), neg: true}, src, true
	case tag <= 0x8f:
		return value{kind: dict, n: int(tag & 0x0f)}, src, true
	case tag <= 0x9f:
		return value{kind: list, n: int(tag & 0x0f)}, src, true
	case tag <= 0xbf:
		return contents(text, int(tag&0x1f), src)
	}
	switch tag {
	case 0xc0:
		return value{kind: null}, src, true
	case 0xc2, 0xc3:
		return value{kind: boolean}, src, true
	case 0xca:
		return contents(float, 4, src)
	case 0xcb:
		return contents(float, 8, src)
	case 0xcc, 0xcd, 0xce, 0xcf: // uint 8..64
		bits, rest, ok := number(1<<(tag-0xcc), src)
		return value{kind: integer, bits: bits}, rest, ok
	case 0xd0, 0xd1, 0xd2, 0xd3: // int 8..64
		size := 1 << (tag - 0xd0)
		bits, rest, ok := number(size, src)
		shift := 64 - 8*size
		signed := int64(bits<<shift) >> shift
		return value{kind: integer, bits: uint64(signed), neg: signed < 0}, rest, ok
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // fixext 1..16, with its type
		return contents(extension, 1+1<<(tag-0xd4), src)
	case 0xc4, 0xc5, 0xc6:
		return sized(bin, 1<<(tag-0xc4), 0, src)
	case 0xc7, 0xc8, 0xc9:
		return sized(extension, 1<<(tag-0xc7), 1, src)
	case 0xd9, 0xda, 0xdb:
		return sized(text, 1<<(tag-0xd9), 0, src)
	case 0xdc, 0xdd:
		n, rest, ok := number(2<<(tag-0xdc), src)
		return value{kind: list, n: int(n)}, rest, ok
	case 0xde, 0xdf:
		n, rest, ok := number(2<<(tag-0xde), src)
		return value{kind: dict, n: int(n)}, rest, ok
	}
	return v, nil, false // 0xc1 is never used
}

// number reads a big-endian number of 1, 2, 4 or 8 bytes.
func number(size int, src []byte) (bits uint64, rest []byte, ok bool) {
	if len(src) < size {
		return 0, nil, false
	}
	switch size {
	case 1:
		bits = uint64(src[0])
	case 2:
		bits = uint64(binary.BigEndian.Uint16(src))
	case 4:
		bits = uint64(binary.BigEndian.Uint32(src))
	default:
		bits = binary.BigEndian.Uint64(src)
	}
	return bits, src[size:], true
}

// contents cuts off n bytes.
func contents(k kind, n int, src []byte) (value, []byte, bool) {
	if len(src) < n {
		return value{}, nil, false
	}
	return value{kind: k, raw: src[:n]}, src[n:], true
}

// sized is contents behind their length, and more bytes than that says.
func sized(k kind, size, more int, src []byte) (value, []byte, bool) {
	n, src, ok := number(size, src)
	if !ok {
		return value{}, nil, false
	}
	return contents(k, int(n)+more, src)
}
