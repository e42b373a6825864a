package prompt

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"unsafe"
)

// Token ids of today's vocabularies have five or six digits in turns no branch
// predictor can guess. So the usual element, up to seven digits and a comma, is read
// as one word of eight bytes: how long it is and what it says are computed. Where
// elements end is found for 64 bytes of text at a time, so that one need not be read
// before the next can be. Processors with AVX2 convert eight elements of 32 bits at a
// time.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// Digits goes on with an array of numbers in JSON text behind one of its elements:
// src[at] is the comma if there is more. It appends to dst, until that holds limit of
// them, and returns where it stopped: behind an element again. It takes the plain
// cases, a comma, at most one space, digits that certainly fit T, a comma or bracket;
// whatever else comes next is for the caller to look at.
func Digits[T uint32 | uint64](dst []T, src []byte, at, limit int) ([]T, int) {
	return elements(dst, src, at, limit, hasVectors)
}

// elements is Digits with or without vector instructions. Both return the same.
func elements[T uint32 | uint64](dst []T, src []byte, at, limit int, vectors bool) ([]T, int) {
	// Nine digits fit into 32 bits, nineteen into 64.
	most, wide := 9, uint64(^T(0)) > math.MaxUint32
	if wide {
		most = 19
	}
	for len(dst) < limit && at < len(src) && src[at] == ',' {
		if len(dst) == cap(dst) {
			// Most elements take four bytes or more.
			dst = slices.Grow(dst, min(limit-len(dst), max(len(dst), (len(src)-at)/6+8)))
		}
		list := dst[len(dst):min(cap(dst), limit)]
		var n, next int
		if vectors && !wide {
			n, next = readWindows(unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(list))), len(list)), src, at)
		} else {
			n, next = stretch(list, src, at)
		}
		if n < len(list) {
			var more int
			more, next = short(list[n:], src, next)
			n += more
		}
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
		list[n] = T(value(digits << ((64 - width) & 63)))
		n++
		at = first + int(width>>3)
	}
	return n, at
}

// value is what eight digits say, the first in the lowest byte.
func value(digits uint64) uint32 {
	digits = digits*10 + digits>>8 // pairs, in every other byte
	return uint32((digits&0x000000ff000000ff*(100+1000000<<32) + digits>>16&0x000000ff000000ff*(1+10000<<32)) >> 32)
}

const (
	// window is how much text is looked at for ends of elements at a time.
	window = 64
	// crowd is the most elements that can end in it.
	crowd = window / 2
)

// stretch reads elements of up to seven digits into list, like short, for as long as a
// window, and eight bytes behind it, and room for a crowd are left.
func stretch[T uint32 | uint64](list []T, src []byte, at int) (n, next int) {
	if len(src)-at < 1+window+8 || src[at] != ',' {
		return 0, at
	}
	// Checked indexing takes a third more time. All reads are within src: first is
	// in the window or before it, and never more than two bytes behind an end.
	out := unsafe.Pointer(unsafe.SliceData(list))
	first := 0 // of an element, from where the window begins
	if src[at+1] == ' ' {
		first = 1
	}
	behind := uint64(1) // whether the last byte before the window is no digit
	for from := at + 1; len(src)-from >= window+8 && len(list)-n >= crowd; from += window {
		text := unsafe.Pointer(&src[from])
		marked := marks((*[window]byte)(text))
		// What follows another mark ends nothing: the space behind a comma, or what
		// makes a first byte that is no digit.
		ends := marked &^ (marked<<1 | behind)
		behind = marked >> (window - 1)
		wrong := uint64(0) // high bits: bytes of elements that are no digits
		took := n
		for rest := ends; rest != 0; rest &= rest - 1 {
			end := bits.TrailingZeros64(rest)
			width := uint(end - first)
			digits := binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(text, first))[:]) ^ '0'*ones
			if width-1 > 6 || *(*byte)(unsafe.Add(text, end)) != ',' || byte(digits) == 0 && width > 1 {
				wrong = highs
				break
			}
			digits <<= (64 - 8*width) & 63
			wrong |= digits + 0x76*ones | digits
			*(*T)(unsafe.Add(out, uintptr(n)*unsafe.Sizeof(T(0)))) = T(value(digits))
			n++
			first = end + 1
			if *(*byte)(unsafe.Add(text, first)) == ' ' {
				first++
			}
		}
		if wrong&highs != 0 {
			return took, at // short finds out where
		}
		if ends != 0 {
			at = from + bits.Len64(ends) - 1
		}
		first -= window
	}
	return n, at
}

// marks tells which bytes lack the bit that all digits have, the first in the lowest
// bit: commas and spaces do. It is a function of its own to have the registers for itself.
//
//go:noinline
func marks(text *[window]byte) (ends uint64) {
	const bit = 0x10 * ones
	m := binary.LittleEndian.Uint64(text[0:])&bit>>4 |
		binary.LittleEndian.Uint64(text[8:])&bit>>3 |
		binary.LittleEndian.Uint64(text[16:])&bit>>2 |
		binary.LittleEndian.Uint64(text[24:])&bit>>1 |
		binary.LittleEndian.Uint64(text[32:])&bit |
		binary.LittleEndian.Uint64(text[40:])&bit<<1 |
		binary.LittleEndian.Uint64(text[48:])&bit<<2 |
		binary.LittleEndian.Uint64(text[56:])&bit<<3
	// Bit i of byte j is of byte j of word i. Turned over it is the other way round.
	t := (m ^ m>>7) & 0x00AA00AA00AA00AA
	m ^= t ^ t<<7
	t = (m ^ m>>14) & 0x0000CCCC0000CCCC
	m ^= t ^ t<<14
	t = (m ^ m>>28) & 0x00000000F0F0F0F0
	m ^= t ^ t<<28
	return ^m
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
