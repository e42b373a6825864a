package digest

import "encoding/binary"

// Major types of CBOR, RFC 8949, in the upper three bits.
const (
	cborUint  = 0 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

// cborHead writes a type with its argument in the shortest form.
func cborHead(b []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
}

func cborTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		b = cborHead(b, cborUint, int(t))
	}
	return b
}

// Opcodes of pickle, protocol 5.
const (
	pickleProto    = 0x80
	pickleFrame    = 0x95
	pickleMemoize  = 0x94
	pickleStop     = '.'
	pickleNone     = 'N'
	pickleMark     = '('
	pickleTuple    = 't'
	pickleTuple1   = 0x85 // and behind it those of two and three
	pickleTuple3   = 0x87
	pickleBytes    = 'C' // up to 255 of them
	pickleText     = 0x8c
	pickleUint8    = 'K'
	pickleUint16   = 'M'
	pickleInt32    = 'J'
	pickleLong     = 0x8a
	pickleLongSize = 5 // of a token above 2^31: a zero keeps it positive
)

// pickle writes a value that fits one frame.
func pickle(b []byte, value func([]byte) []byte) []byte {
	b = append(b, pickleProto, 5, pickleFrame)
	size := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(value(b), pickleStop)
	binary.LittleEndian.PutUint64(b[size:], uint64(len(b)-size-8))
	return b
}

func pickledText(b []byte, s string) []byte {
	b = append(b, pickleText, byte(len(s)))
	return append(append(b, s...), pickleMemoize)
}

// pickledBlock writes (before, tokens, None), or (before, tokens, (None, ahead...)).
func pickledBlock(b, before []byte, tokens, ahead []uint32) []byte {
	b = append(b, pickleBytes, byte(len(before)))
	b = append(append(b, before...), pickleMemoize)
	b = pickledTuple(b, nil, tokens)
	if len(ahead) > 0 {
		b = pickledTuple(b, []byte{pickleNone}, ahead)
	} else {
		b = append(b, pickleNone)
	}
	return append(b, pickleTuple3, pickleMemoize)
}

// pickledTuple writes a tuple of values, written already in a byte each, and tokens.
func pickledTuple(b, values []byte, tokens []uint32) []byte {
	n := len(values) + len(tokens)
	if n > 3 {
		b = append(b, pickleMark)
	}
	b = append(b, values...)
	for _, t := range tokens {
		switch {
		case t < 1<<8:
			b = append(b, pickleUint8, byte(t))
		case t < 1<<16:
			b = binary.LittleEndian.AppendUint16(append(b, pickleUint16), uint16(t))
		case t < 1<<31:
			b = binary.LittleEndian.AppendUint32(append(b, pickleInt32), t)
		default:
			b = binary.LittleEndian.AppendUint32(append(b, pickleLong, pickleLongSize), t)
			b = append(b, 0)
		}
	}
	if n > 3 {
		b = append(b, pickleTuple)
	} else {
		b = append(b, pickleTuple1+byte(n)-1)
	}
	return append(b, pickleMemoize)
}
