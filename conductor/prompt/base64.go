package prompt

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
)

var (
	// errBase64 is text that is not of the standard alphabet, or is cut.
	errBase64 = errors.New("not base64")
	// ErrWords is a number of bytes that is no multiple of four.
	ErrWords = errors.New("not a multiple of 4 bytes")
)

// Base64 appends little-endian numbers of four bytes from base64 of the standard
// alphabet, padded or not.
func Base64(dst []uint32, text []byte) ([]uint32, error) {
	encoding := unpadded
	if len(text) > 0 && text[len(text)-1] == '=' {
		encoding = padded
	}
	n := (encoding.DecodedLen(len(text)) + 3) / 4
	dst = slices.Grow(dst, n)
	list := dst[len(dst) : len(dst)+n]
	out := bytesOf(list)
	rest := text[quads(out, text):]
	done := (len(text) - len(rest)) / 4 * 3
	got, err := encoding.Decode(out[done:], rest)
	got += done
	switch {
	case err != nil, bytes.IndexByte(rest, '\n') >= 0, bytes.IndexByte(rest, '\r') >= 0:
		return dst, errBase64 // the decoder steps over line ends
	case got%4 != 0:
		return dst, ErrWords
	}
	list = list[:got/4]
	toHost(list)
	return dst[:len(dst)+len(list)], nil
}

// Strict encodings leave one text for every list.
var padded, unpadded = base64.StdEncoding.Strict(), base64.RawStdEncoding.Strict()

// sextets is what a character of base64 stands for at each place of a quad; a bit above
// the three bytes marks a character that stands for none.
var sextets = func() (places [4][256]uint32) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := range places {
		for c := range places[i] {
			places[i][c] = 1 << 24
		}
		for v := range len(alphabet) {
			places[i][alphabet[v]] = uint32(v) << (18 - 6*i)
		}
	}
	return places
}()

// quads decodes pairs of quads for as long as they have all their characters and two
// bytes more than they need are free, and returns how much of text that is. It is three
// times as fast as encoding/base64.
func quads(dst, text []byte) (read int) {
	a, b, c, d := &sextets[0], &sextets[1], &sextets[2], &sextets[3]
	for len(text)-read >= 8 && len(dst) >= 8 {
		q := text[read : read+8 : read+8]
		high := a[q[0]] | b[q[1]] | c[q[2]] | d[q[3]]
		low := a[q[4]] | b[q[5]] | c[q[6]] | d[q[7]]
		if (high|low)>>24 != 0 {
			break
		}
		binary.BigEndian.PutUint64(dst, uint64(high)<<40|uint64(low)<<16)
		dst, read = dst[6:], read+8
	}
	return read
}
