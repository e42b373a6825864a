package mooncake

import (
	"encoding/binary"
	"math"
	"strconv"
)

// Appenders of msgpack, each value in its shortest form.

func appendMap(dst []byte, pairs int) []byte { return appendLength(dst, pairs, 0x80, 15, 0, 0xde) }

func appendList(dst []byte, n int) []byte { return appendLength(dst, n, 0x90, 15, 0, 0xdc) }

func appendText[T string | []byte](dst []byte, s T) []byte {
	return append(appendLength(dst, len(s), 0xa0, 31, 0xd9, 0xda), s...)
}

// appendLength writes a length: in the tag up to a bound, in one byte where there is a
// tag for that, in two or four bytes.
func appendLength(dst []byte, n int, fixed byte, most int, one, two byte) []byte {
	switch {
	case n <= most:
		return append(dst, fixed|byte(n))
	case one != 0 && n <= math.MaxUint8:
		return append(dst, one, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, two), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, two+1), uint32(n))
}

// appendInt writes a number that is not negative.
func appendInt(dst []byte, n int) []byte { return appendUint(dst, uint64(n)) }

func appendUint(dst []byte, n uint64) []byte {
	switch {
	case n <= 0x7f:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return append(dst, 0xcc, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
}

func appendNil(dst []byte) []byte { return append(dst, 0xc0) }

// appendRank writes a rank as the key of a map.
func appendRank(dst []byte, rank int) []byte { return appendText(dst, strconv.Itoa(rank)) }

// appendTextField and appendIntField write one pair of a map.
func appendTextField(dst []byte, name, s string) []byte {
	return appendText(appendText(dst, name), s)
}

func appendIntField(dst []byte, name string, n int) []byte {
	return appendInt(appendText(dst, name), n)
}
