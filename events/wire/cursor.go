package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"example.com/conductor/events"
)

// kind is what a msgpack header announces.
type kind uint8

const (
	kNone kind = iota // nothing: cursor.err says why
	kNil
	kBool
	kUint  // the number itself
	kInt   // a negative number, in two's complement
	kFloat // the bits of a float64
	kStr   // length; the bytes follow
	kBin   // length; the bytes follow
	kExt   // length; the bytes follow, the type byte first
	kArray // count of elements that follow
	kMap   // count of pairs that follow
)

func (k kind) String() string {
	return [...]string{"nothing", "nil", "a bool", "an unsigned int", "a negative int",
		"a float", "a str", "a bin", "an ext", "an array", "a map"}[k]
}

// depthCap is the number of levels skipValues can tell apart.
const depthCap = 32

// cursor walks msgpack bytes. The first thing wrong with the bytes themselves
// (as opposed to what they mean) sticks in err, and every later read yields
// kNone, so loops end and callers may check once.
type cursor struct {
	b   []byte
	i   int    // next byte to read, never beyond len(b)
	err *Error // nil while b[:i] is well-formed

	maxDepth int
	deep     bool // skipValues met more levels than maxDepth
	beyond   bool // readToken met a number that is no token id
}

// setError records the first error and drives the cursor to the end.
func (c *cursor) setError(r events.Reason, format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Reason: r, Offset: c.i, what: fmt.Sprintf(format, args...)}
	}
	c.i = len(c.b)
}

func (c *cursor) failTruncated() (kind, uint64) {
	c.setError(events.BadPayload, "truncated")
	return kNone, 0
}

// bytesLeft is the number of bytes not read yet.
func (c *cursor) bytesLeft() int { return len(c.b) - c.i }

// readHeader reads one header and, for scalars, the value. A length or count it
// returns is backed by bytes that are really there.
func (c *cursor) readHeader() (kind, uint64) {
	if c.i >= len(c.b) {
		return c.failTruncated()
	}
	h := c.b[c.i]
	c.i++
	switch {
	case h <= 0x7f:
		return kUint, uint64(h)
	case h <= 0x8f:
		return c.checkLength(kMap, uint64(h&0x0f), true)
	case h <= 0x9f:
		return c.checkLength(kArray, uint64(h&0x0f), true)
	case h <= 0xbf:
		return c.checkLength(kStr, uint64(h&0x1f), true)
	case h >= 0xe0:
		return kInt, uint64(int64(int8(h)))
	}
	switch h {
	case 0xc0:
		return kNil, 0
	case 0xc2, 0xc3:
		return kBool, uint64(h & 1)
	case 0xc4, 0xc5, 0xc6:
		n, ok := c.readBigEndian(1 << (h - 0xc4))
		return c.checkLength(kBin, n, ok)
	case 0xc7, 0xc8, 0xc9:
		n, ok := c.readBigEndian(1 << (h - 0xc7))
		return c.checkLength(kExt, n+1, ok)
	case 0xca:
		n, ok := c.readBigEndian(4)
		return c.scalarOrNone(kFloat, math.Float64bits(float64(math.Float32frombits(uint32(n)))), ok)
	case 0xcb:
		n, ok := c.readBigEndian(8)
		return c.scalarOrNone(kFloat, n, ok)
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, ok := c.readBigEndian(1 << (h - 0xcc))
		return c.scalarOrNone(kUint, n, ok)
	case 0xd0, 0xd1, 0xd2, 0xd3:
		w := 1 << (h - 0xd0)
		n, ok := c.readBigEndian(w)
		v := int64(n<<(64-8*w)) >> (64 - 8*w)
		if v < 0 {
			return c.scalarOrNone(kInt, uint64(v), ok)
		}
		return c.scalarOrNone(kUint, uint64(v), ok)
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return c.checkLength(kExt, 1<<(h-0xd4)+1, true)
	case 0xd9, 0xda, 0xdb:
		n, ok := c.readBigEndian(1 << (h - 0xd9))
		return c.checkLength(kStr, n, ok)
	case 0xdc, 0xdd:
		n, ok := c.readBigEndian(2 << (h - 0xdc))
		return c.checkLength(kArray, n, ok)
	case 0xde, 0xdf:
		n, ok := c.readBigEndian(2 << (h - 0xde))
		return c.checkLength(kMap, n, ok)
	}
	c.i-- // 0xc1, the one byte msgpack leaves undefined
	c.setError(events.BadPayload, "byte 0x%02x is not msgpack", h)
	return kNone, 0
}

// readBigEndian reads w bytes, 1, 2, 4 or 8, as a big-endian number.
func (c *cursor) readBigEndian(w int) (uint64, bool) {
	if c.bytesLeft() < w {
		c.failTruncated()
		return 0, false
	}
	p := c.b[c.i:]
	c.i += w
	switch w {
	case 1:
		return uint64(p[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), true
	}
	return binary.BigEndian.Uint64(p), true
}

func (c *cursor) scalarOrNone(k kind, n uint64, ok bool) (kind, uint64) {
	if !ok {
		return kNone, 0
	}
	return k, n
}

// checkLength refuses a length or count beyond the bytes left.
func (c *cursor) checkLength(k kind, n uint64, ok bool) (kind, uint64) {
	if !ok {
		return kNone, 0
	}
	if n > uint64(c.bytesLeft()) {
		return c.failTruncated()
	}
	return k, n
}

// readBytes returns the n bytes that readHeader announced. They alias the payload.
func (c *cursor) readBytes(n uint64) []byte {
	p := c.b[c.i : c.i+int(n)]
	c.i += int(n)
	return p
}

// skipValues moves past n values of any shape. Levels beyond maxDepth are counted
// into their parent's, so the end is exact however deep they go; deep is set.
func (c *cursor) skipValues(n int) {
	var left [depthCap + 1]int // values still to come, by level
	left[0] = n
	for d := 0; ; {
		for left[d] == 0 {
			if d == 0 {
				return
			}
			d--
		}
		left[d]--
		inner := 0
		switch k, n := c.readHeader(); k {
		case kNone:
			return
		case kStr, kBin, kExt:
			c.i += int(n)
		case kArray:
			inner = int(n)
		case kMap:
			inner = 2 * int(n)
		}
		switch {
		case inner == 0:
		case d < c.maxDepth:
			d++
			left[d] = inner
		default:
			c.deep = true
			left[d] += inner
		}
	}
}

// peekKind returns the kind of the next value without moving.
func (c *cursor) peekKind() kind {
	at := c.i
	k, _ := c.readHeader()
	if c.err == nil {
		c.i = at
	}
	return k
}

// isArray reports whether h starts an array.
func isArray(h byte) bool { return h&0xf0 == 0x90 || h == 0xdc || h == 0xdd }

// isStr reports whether h starts a str.
func isStr(h byte) bool { return h&0xe0 == 0xa0 || h >= 0xd9 && h <= 0xdb }
