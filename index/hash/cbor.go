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
//	                                   | 82 f6 05       no extra keys, look-ahead of one token

const (
	cborNegative = 0x20
	cborBytes    = 0x40
	cborString   = 0x60
	cborArray    = 0x80
	cborNull     = 0xf6
)

// appendCBOR appends a block whose extra keys are written already, with the tokens of
// its look-ahead.
func appendCBOR(b, parent []byte, tokens, ahead []uint32, extras []byte) []byte {
	b = append(b, cborArray|3)
	b = appendCBORHead(b, cborBytes, uint64(len(parent)))
	b = append(b, parent...)
	b = appendCBORHead(b, cborArray, uint64(len(tokens)))
	b = appendCBORTokens(b, tokens)
	if len(ahead) == 0 {
		return append(b, extras...)
	}
	b = appendCBORHead(b, cborArray, uint64(1+len(ahead)))
	return appendCBORTokens(append(b, extras...), ahead)
}

// cborWidths say how an integer is written, by the number of its significant bits:
// the head in byte 0, in byte 1 how far to the left of the eight bytes that are
// stored, in byte 2 how many of those count. Entry 0 is for those below 24, which are
// their own head.
var cborWidths = func() (w [33]uint32) {
	for n := range w {
		switch {
		case n == 0:
			w[n] = 0 | 56<<8 | 1<<16
		case n <= 8:
			w[n] = 24 | 48<<8 | 2<<16
		case n <= 16:
			w[n] = 25 | 40<<8 | 3<<16
		default:
			w[n] = 26 | 24<<8 | 5<<16
		}
	}
	return w
}()

// appendCBORTokens appends tokens as signed numbers. It stores eight bytes for each
// and moves on by those that count: which those are cannot be predicted, so a branch
// would cost more.
func appendCBORTokens(b []byte, tokens []uint32) []byte {
	at := len(b)
	b = slices.Grow(b, 5*len(tokens)+8)
	b = b[:cap(b)]
	for _, t := range tokens {
		sign := uint32(int32(t) >> 31) // all ones if negative: -1-n is written as n
		n := t ^ sign
		small := int((int64(n) - 24) >> 63) // all ones below 24
		w := cborWidths[bits.Len32(n)&^small]
		head := uint64(w&0xff | sign&cborNegative)
		binary.BigEndian.PutUint64(b[at:], head<<56|uint64(n)<<(w>>8&63))
		at += int(w >> 16)
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
