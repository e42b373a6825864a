package objectkey

import (
	"math"
	"strings"
)

// nibble is the value of a hex digit, 0xff for any other byte.
var nibble = func() (t [256]uint8) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 10 {
		t['0'+i] = uint8(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = uint8(10+i), uint8(10+i)
	}
	return t
}()

// low64 reads hex digits, any number but none, and keeps the last 64 bits.
func low64(digits string) (uint64, bool) {
	var h uint64
	var bad uint8
	for i := range len(digits) {
		n := nibble[digits[i]]
		bad |= n
		h = h<<4 | uint64(n&15)
	}
	return h, bad < 16 && digits != ""
}

// blockHash reads a digest that was written from bytes: an even number of
// hex digits, at least that many.
func blockHash(digits string, atLeast int) (uint64, bool) {
	h, ok := low64(digits)
	return h, ok && len(digits)%2 == 0 && len(digits) >= atLeast
}

// Digest reads a hash that stands next to a key, as the master's
// connector_block_hash does: hex digits, an even number of at least 16,
// with or without 0x. It returns them without, and their last eight bytes.
func Digest(text string) (digits string, hash uint64, err error) {
	digits, _ = strings.CutPrefix(text, "0x")
	hash, ok := blockHash(digits, 16)
	if !ok {
		return "", 0, &Error{Key: text, Want: "an even number of hex digits, at least 16"}
	}
	return digits, hash, nil
}

// natural reads a decimal number from 0 to 2^31-1 without leading zeros.
func natural(s string) (int32, bool) {
	n, ok := decimal(s)
	return int32(n & math.MaxInt32), ok && n <= math.MaxInt32 && (s[0] != '0' || len(s) == 1)
}

// decimal reads a u64. strconv's errors would allocate for a text that is often
// only tried.
func decimal(s string) (uint64, bool) {
	if s == "" {
		return 0, false
	}
	var n uint64
	for i := range len(s) {
		c := uint64(s[i]) - '0'
		if c > 9 || n > (math.MaxUint64-c)/10 {
			return 0, false
		}
		n = n*10 + c
	}
	return n, true
}
