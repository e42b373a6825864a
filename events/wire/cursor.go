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

// depthCap is the number of levels skip can tell apart.
const depthCap = 32

// cursor walks msgpack bytes. The first thing wrong with the bytes themselves
// (as opposed to what they mean) sticks in err, and every later read yields
// kNone, so loops end and callers may check once.
type cursor struct {
	b   []byte
	i   int    // next byte to read, never beyond len(b)
	err *Error // nil while b[:i] is well-formed

	maxDepth int
	deep     bool // skip met more levels than maxDepth
}

// fail records the first error and drives the cursor to the end.
func (c *cursor) fail(r events.Reason, format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Reason: r, Offset: c.i, what: fmt.Sprintf(format, args...)}
	}
	c.i = len(c.b)
}

func (c *cursor) short() (kind, uint64) {
	c.fail(events.BadPayload, "truncated")
	return kNone, 0
}

// rest is the number of bytes not read yet.
func (c *cursor) rest() int { return len(c.b) - c.i }

// head reads one header and, for scalars, the value. A length or count it
// returns is backed by bytes that are really there.
func (c *cursor) head() (kind, uint64) {
	if c.i >= len(c.b) {
		return c.short()
	}
	h := c.b[c.i]
	c.i++
	switch {
	case h <= 0x7f:
		return kUint, uint64(h)
	case h <= 0x8f:
		return c.backed(kMap, uint64(h&0x0f), true)
	case h <= 0x9f:
		return c.backed(kArray, uint64(h&0x0f), true)
	case h <= 0xbf:
		return c.backed(kStr, uint64(h&0x1f), true)
	case h >= 0xe0:
		return kInt, uint64(int64(int8(h)))
	}
	switch h {
	case 0xc0:
		return kNil, 0
	case 0xc2, 0xc3:
		return kBool, uint64(h & 1)
	case 0xc4, 0xc5, 0xc6:
		n, ok := c.be(1 << (h - 0xc4))
		return c.backed(kBin, n, ok)
	case 0xc7, 0xc8, 0xc9:
		n, ok := c.be(1 << (h - 0xc7))
		return c.backed(kExt, n+1, ok)
	case 0xca:
		n, ok := c.be(4)
		return c.scalar(kFloat, math.Float64bits(float64(math.Float32frombits(uint32(n)))), ok)
	case 0xcb:
		n, ok := c.be(8)
		return c.scalar(kFloat, n, ok)
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, ok := c.be(1 << (h - 0xcc))
		return c.scalar(kUint, n, ok)
	case 0xd0, 0xd1, 0xd2, 0xd3:
		w := 1 << (h - 0xd0)
		n, ok := c.be(w)
		v := int64(n<<(64-8*w)) >> (64 - 8*w)
		if v < 0 {
			return c.scalar(kInt, uint64(v), ok)
		}
		return c.scalar(kUint, uint64(v), ok)
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return c.backed(kExt, 1<<(h-0xd4)+1, true)
	case 0xd9, 0xda, 0xdb:
		n, ok := c.be(1 << (h - 0xd9))
		return c.backed(kStr, n, ok)
	case 0xdc, 0xdd:
		n, ok := c.be(2 << (h - 0xdc))
		return c.backed(kArray, n, ok)
	case 0xde, 0xdf:
		n, ok := c.be(2 << (h - 0xde))
		return c.backed(kMap, n, ok)
	}
	c.i-- // 0xc1, the one byte msgpack leaves undefined
	c.fail(events.BadPayload, "byte 0x%02x is not msgpack", h)
	return kNone, 0
}

// be reads w bytes, 1, 2, 4 or 8, as a big-endian number.
func (c *cursor) be(w int) (uint64, bool) {
	if c.rest() < w {
		c.short()
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

func (c *cursor) scalar(k kind, n uint64, ok bool) (kind, uint64) {
	if !ok {
		return kNone, 0
	}
	return k, n
}

// backed refuses a length or count beyond the bytes left.
func (c *cursor) backed(k kind, n uint64, ok bool) (kind, uint64) {
	if !ok {
		return kNone, 0
	}
	if n > uint64(c.rest()) {
		return c.short()
	}
	return k, n
}

// take returns the n bytes that head announced. They alias the payload.
func (c *cursor) take(n uint64) []byte {
	p := c.b[c.i : c.i+int(n)]
	c.i += int(n)
	return p
}

// skip moves past n values of any shape. Levels beyond maxDepth are counted
// into their parent's, so the end is exact however deep they go; deep is set.
func (c *cursor) skip(n int) {
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
		switch k, n := c.head(); k {
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

// next returns the kind of the next value without moving.
func (c *cursor) next() kind {
	at := c.i
	k, _ := c.head()
	if c.err == nil {
		c.i = at
	}
	return k
}

// isArray reports whether h starts an array.
func isArray(h byte) bool { return h&0xf0 == 0x90 || h == 0xdc || h == 0xdd }

// isStr reports whether h starts a str.
func isStr(h byte) bool { return h&0xe0 == 0xa0 || h >= 0xd9 && h <= 0xdb }
