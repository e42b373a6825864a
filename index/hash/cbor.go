package hash

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Blocks as canonical CBOR: an array of the parent's digest, the tokens and the
// extra keys, every head as short as it can be.
//
//	83 | 58 20 parent | 84 01 02 03 04 | f6             no extra keys
//	                                   | 81 69 adapter-A

const (
	cborNegative = 0x20
	cborBytes    = 0x40
	cborString   = 0x60
	cborArray    = 0x80
	cborNull     = 0xf6
)

// appendCBOR appends a block whose extra keys are written already.
func appendCBOR(b, parent []byte, tokens []uint32, extras []byte) []byte {
	b = append(b, cborArray|3)
	b = appendCBORHead(b, cborBytes, uint64(len(parent)))
	b = append(b, parent...)
	b = appendCBORHead(b, cborArray, uint64(len(tokens)))
	b = appendCBORTokens(b, tokens)
	return append(b, extras...)
}

// cborWidth is how an integer is written, by the number of its significant bits:
// with which head, how far to the left of the seven bytes behind it, and how long it
// is with it.
type cborWidth struct{ head, shift, size uint8 }

var cborWidths = func() (w [33]cborWidth) {
	for n := range w {
		switch {
		case n <= 8:
			w[n] = cborWidth{24, 48, 2}
		case n <= 16:
			w[n] = cborWidth{25, 40, 3}
		default:
			w[n] = cborWidth{26, 24, 5}
		}
	}
	return w
}()

// appendCBORTokens appends tokens as signed numbers. It stores eight bytes for each
// and moves on by those that count, because which those are cannot be predicted.
func appendCBORTokens(b []byte, tokens []uint32) []byte {
	at := len(b)
	b = slices.Grow(b, 5*len(tokens)+8)
	b = b[:cap(b)]
	for _, t := range tokens {
		sign := uint32(int32(t) >> 31) // all ones if negative: -1-n is written as n
		major, n := cborNegative&uint8(sign), t^sign
		if n < 24 {
			b[at] = major | uint8(n)
			at++
			continue
		}
		w := cborWidths[bits.Len32(n)]
		binary.BigEndian.PutUint64(b[at:], uint64(major|w.head)<<56|uint64(n)<<w.shift)
		at += int(w.size)
	}
	return b[:at]
}

// appendCBORHead appends the shortest head of a value.
func appendCBORHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= 0xff:
		return append(b, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

func appendCBORText(b []byte, s string) []byte {
	return append(appendCBORHead(b, cborString, uint64(len(s))), s...)
}

// appendCBORExtras appends the extra keys of a block.
func appendCBORExtras(b []byte, extras []extraKey) []byte {
	if len(extras) == 0 {
		return append(b, cborNull)
	}
	b = appendCBORHead(b, cborArray, uint64(len(extras)))
	for _, e := range extras {
		if e.tag != "" {
			b = appendCBORText(append(b, cborArray|2), e.tag)
		}
		b = appendCBORText(b, e.text)
	}
	return b
}
