package prompt

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is how deep values may be nested, as in encoding/json.
const MaxDepth = 10_000

// Space steps over white space.
func Space(src []byte, at int) int {
	for at < len(src) && (src[at] == ' ' || src[at] == '\n' || src[at] == '\r' || src[at] == '\t') {
		at++
	}
	return at
}

// Skip steps over the JSON value at src[at], where no white space is, with depth more
// levels of nesting allowed. It returns where the value ends; ok is false, and next
// where that shows, if it is none, by the rules of encoding/json and of UTF-8.
func Skip(src []byte, at, depth int) (next int, ok bool) {
	if at >= len(src) {
		return len(src), false
	}
	switch c := src[at]; {
	case c == '"':
		next, _, ok = String(src, at)
		return next, ok
	case c == '[' || c == '{':
		return nested(src, at, depth)
	case c == 'n':
		return word(src, at, "null")
	case c == 't':
		return word(src, at, "true")
	case c == 'f':
		return word(src, at, "false")
	}
	return Number(src, at)
}

// nested steps over an array or an object.
func nested(src []byte, at, depth int) (next int, ok bool) {
	if depth == 0 {
		return at, false
	}
	object, end := src[at] == '{', src[at]+2 // ']' and '}' are two behind '[' and '{'
	at = Space(src, at+1)
	if at < len(src) && src[at] == end {
		return at + 1, true
	}
	for {
		if object {
			if at, ok = Name(src, at); !ok {
				return at, false
			}
		}
		number := at < len(src) && src[at]-'0' <= 9
		if at, ok = Skip(src, at, depth-1); !ok {
			return at, false
		}
		if number && !object {
			at = plainNumbers(src, at)
		}
		at = Space(src, at)
		switch {
		case at == len(src):
			return at, false
		case src[at] == end:
			return at + 1, true
		case src[at] != ',':
			return at, false
		}
		at = Space(src, at+1)
	}
}

// plainNumbers steps over what Digits reads.
func plainNumbers(src []byte, at int) int {
	var room [2 * crowd]uint32
	for {
		list, next := Digits(room[:0], src, at, len(room))
		if len(list) < len(room) {
			return next
		}
		at = next
	}
}

// Name steps over the name of a member of an object, and the bytes between it and its
// value.
func Name(src []byte, at int) (next int, ok bool) {
	if at == len(src) || src[at] != '"' {
		return at, false
	}
	if at, _, ok = String(src, at); !ok {
		return at, false
	}
	if at = Space(src, at); at == len(src) || src[at] != ':' {
		return at, false
	}
	return Space(src, at+1), true
}

func word(src []byte, at int, w string) (next int, ok bool) {
	if len(src)-at < len(w) || string(src[at:at+len(w)]) != w {
		return at, false
	}
	return at + len(w), true
}

// String steps over a string whose first quote is src[at]; plain says that it stands
// for itself, without escapes.
func String(src []byte, at int) (next int, plain, ok bool) {
	start, ascii := at, true
	plain = true
	at++
	for {
		// Eight bytes at a time as long as none of them is special.
		for len(src)-at >= 8 {
			w := binary.LittleEndian.Uint64(src[at:])
			quote, slash := w^'"'*ones, w^'\\'*ones
			special := ((w - ' '*ones) | (quote - ones) | (slash - ones) | w) & highs
			if special != 0 {
				// Bytes behind the first one marked may be marked wrongly.
				at += bits.TrailingZeros64(special) >> 3
				break
			}
			at += 8
		}
		if at >= len(src) {
			return len(src), false, false
		}
		switch c := src[at]; {
		case c == '"':
			if !ascii && !utf8.Valid(src[start:at]) {
				return at, false, false
			}
			return at + 1, plain, true
		case c == '\\':
			plain = false
			if at, ok = escape(src, at); !ok {
				return at, false, false
			}
		case c < ' ':
			return at, false, false
		default:
			ascii = ascii && c < utf8.RuneSelf
			at++
		}
	}
}

// escape steps over an escape.
func escape(src []byte, at int) (next int, ok bool) {
	if at+1 >= len(src) {
		return len(src), false
	}
	switch src[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return at + 2, true
	case 'u':
		for i := at + 2; i < at+6; i++ {
			if i >= len(src) {
				return len(src), false
			}
			if c := src[i] | 0x20; src[i]-'0' > 9 && c-'a' > 5 {
				return i, false
			}
		}
		return at + 6, true
	}
	return at + 1, false
}

// Number steps over a number.
func Number(src []byte, at int) (next int, ok bool) {
	if at < len(src) && src[at] == '-' {
		at++
	}
	switch {
	case at >= len(src):
		return len(src), false
	case src[at] == '0':
		if at++; at < len(src) && src[at]-'0' <= 9 {
			return at, false
		}
	default:
		if at, ok = digits(src, at); !ok {
			return at, false
		}
	}
	if at < len(src) && src[at] == '.' {
		if at, ok = digits(src, at+1); !ok {
			return at, false
		}
	}
	if at < len(src) && src[at]|0x20 == 'e' {
		at++
		if at < len(src) && (src[at] == '+' || src[at] == '-') {
			at++
		}
		if at, ok = digits(src, at); !ok {
			return at, false
		}
	}
	return at, true
}

// digits steps over at least one digit.
func digits(src []byte, at int) (next int, ok bool) {
	first := at
	for at < len(src) && src[at]-'0' <= 9 {
		at++
	}
	return at, at > first
}
