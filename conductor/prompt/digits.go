package prompt

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// Token ids of today's vocabularies have five or six digits in turns no branch
// predictor can guess. So the usual element, up to seven digits and a comma, is read
// as one word of eight bytes: how long it is and what it says are computed.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// Digits goes on with an array of numbers in JSON text behind one of its elements:
// src[at] is the comma if there is more. It appends to dst, until that holds limit of
// them, and returns where it stopped: behind an element again. It takes what is plainly
// right, a comma, at most one space, digits that certainly fit T, a comma or bracket;
// whatever else comes next is for the caller to look at.
func Digits[T uint32 | uint64](dst []T, src []byte, at, limit int) ([]T, int) {
	// Nine digits fit into 32 bits, nineteen into 64.
	most := 9
	if uint64(^T(0)) > math.MaxUint32 {
		most = 19
	}
	for len(dst) < limit && at < len(src) && src[at] == ',' {
		if len(dst) == cap(dst) {
			// Most elements take four bytes or more.
			dst = slices.Grow(dst, min(limit-len(dst), max(len(dst), (len(src)-at)/6+8)))
		}
		list := dst[len(dst):min(cap(dst), limit)]
		n, next := short(list, src, at)
		dst, at = dst[:len(dst)+n], next
		if n == len(list) || at >= len(src) || src[at] != ',' {
			continue
		}
		v, next := long[T](src, at, most)
		if next == at {
			break
		}
		dst, at = append(dst, v), next
	}
	return dst, at
}

// short reads elements of up to seven digits into list for as long as they come and
// eight bytes can be read at once, and returns how many it read and where it stopped.
func short[T uint32 | uint64](list []T, src []byte, at int) (n, next int) {
	for n < len(list) && len(src)-at >= 10 {
		if src[at] != ',' {
			break
		}
		first := at + 1
		if src[first] == ' ' {
			first++
		}
		word := binary.LittleEndian.Uint64(src[first:])
		digits := word ^ '0'*ones
		// Of the bytes that are no digits the first is marked; those behind it may
		// be wrong.
		width := uint(bits.TrailingZeros64((digits+0x76*ones|digits)&highs)) &^ 7
		if width-8 > 48 { // none, or eight
			break
		}
		end := byte(word >> width)
		// A leading zero is only right for zero itself.
		if end != ',' && end != ']' || byte(digits) == 0 && width > 8 {
			break
		}
		// The last digit to the top, zeros before the first.
		digits <<= 64 - width
		digits = digits*10 + digits>>8 // pairs, in every other byte
		digits = (digits&0x000000ff000000ff*(100+1000000<<32) + digits>>16&0x000000ff000000ff*(1+10000<<32)) >> 32
		list[n] = T(uint32(digits))
		n++
		at = first + int(width>>3)
	}
	return n, at
}

// long reads one element of up to most digits; next is at when it is none.
func long[T uint32 | uint64](src []byte, at, most int) (v T, next int) {
	first := at + 1
	if first < len(src) && src[first] == ' ' {
		first++
	}
	end := first
	for end < len(src) && end-first < most && src[end]-'0' <= 9 {
		v = 10*v + T(src[end]-'0')
		end++
	}
	if end == len(src) || end == first || src[end] != ',' && src[end] != ']' || src[first] == '0' && end != first+1 {
		return 0, at
	}
	return v, end
}
