// Package prompt reads prompts out of request bodies: lists of token ids or of
// hashes, thousands of numbers each, straight into buffers that are used again.
//
//	socket --Read--> body --Skip, Digits--> []uint32 or []uint64
//	                      --Base64, Words-> []uint32
//
// Dialects decide what a body may hold and what its errors say. This package reads long
// lists of numbers, which all dialects have. It looks at a byte once or little more, and
// allocates only to grow a buffer that the caller gave.
//
// Concurrency: functions are pure but for their arguments.
package prompt

import (
	"encoding/binary"
	"io"
	"slices"
	"unsafe"
)

const (
	// KeepBytes is the largest body buffer worth keeping for the next request: a list of some 60
	// prompts of 8,192 tokens. To grow a buffer again costs several times as much as to read what it holds.
	KeepBytes = 4 << 20
	// KeepNumbers is the longest list of numbers worth keeping.
	KeepNumbers = 1 << 20
)

// believed is the most that Read makes room for before bytes arrive. Clients announce what they
// never send.
const believed = 64 << 10

// Read appends what r holds to dst. size is the announced size, -1 if
// unknown; it is believed as far as a usual query needs, and beyond only as bytes arrive.
func Read(dst []byte, r io.Reader, size int64) ([]byte, error) {
	// One byte more lets the end be met without growing.
	dst = slices.Grow(dst, int(min(max(size, 511), believed))+1)
	for {
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, len(dst))
		}
	}
}

// Kept returns an empty buffer for the next request: buf, unless a giant one has made
// it longer than most.
func Kept[T any](buf []T, most int) []T {
	if cap(buf) > most {
		return nil
	}
	return buf[:0]
}

// Words appends little-endian numbers of four bytes; bytes behind the last whole one
// are left out.
func Words(dst []uint32, raw []byte) []uint32 {
	n := len(raw) / 4
	dst = slices.Grow(dst, n)
	list := dst[len(dst) : len(dst)+n]
	copy(bytesOf(list), raw[:4*n])
	toHost(list)
	return dst[:len(dst)+n]
}

// bytesOf is the memory of a list.
func bytesOf(list []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), 4*len(list))
}

// toHost turns numbers whose bytes are little-endian into the machine's.
func toHost(list []uint32) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return
	}
	for i, v := range list {
		list[i] = v<<24 | v>>24 | v&0xff00<<8 | v>>8&0xff00
	}
}
