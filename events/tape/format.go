package tape

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"example.com/conductor/keyfile"
)

const (
	magic      = "KVJRNL\r\n" // a transfer that changes line ends shows
	version    = 1
	headerSize = 36
	recordSize = 44

	flagSealed = 1 // of a segment

	// Offsets in a record.
	sumAt  = 8
	kindAt = 12
)

var (
	le      = binary.LittleEndian
	crcs    = crc32.MakeTable(crc32.Castagnoli) // in hardware on amd64 and arm64
	errHead = errors.New("the header is no journal's")
)

// header identifies a segment.
type header struct {
	run    uint64
	number uint64
	sealed bool
}

// encode returns the header's bytes.
func (h header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = le.AppendUint32(b, version)
	flags := uint32(0)
	if h.sealed {
		flags = flagSealed
	}
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, h.run)
	b = le.AppendUint64(b, h.number)
	return le.AppendUint32(b, crc32.Checksum(b, crcs))
}

// decodeHeader reads a header. A writer of another version keeps the first
// twelve bytes.
func decodeHeader(b []byte) (header, error) {
	if len(b) < 12 || string(b[:8]) != magic {
		return header{}, errHead
	}
	if v := le.Uint32(b[8:]); v != version {
		return header{}, &versionError{Version: v}
	}
	if len(b) < headerSize || crc32.Checksum(b[:headerSize-4], crcs) != le.Uint32(b[headerSize-4:]) {
		return header{}, errHead
	}
	flags := le.Uint32(b[12:])
	if flags&^flagSealed != 0 {
		return header{}, &versionError{version, flags}
	}
	return header{run: le.Uint64(b[16:]), number: le.Uint64(b[24:]), sealed: flags&flagSealed != 0}, nil
}

// versionError says that a segment is of another version of the format, or has flags that
// this program does not know.
type versionError struct{ Version, Flags uint32 }

func (e *versionError) Error() string {
	if e.Version == version {
		return fmt.Sprintf("format version %d with flags %#x; this program knows %#x", e.Version, e.Flags, flagSealed)
	}
	return fmt.Sprintf("format version %d; this program knows %d", e.Version, version)
}

// frame is what makes a segment's records recognisable. Engines do not know run,
// so no payload can look like a record.
type frame struct {
	mark [4]byte
	crc  uint32      // of the header, start value of every checksum
	aead cipher.AEAD // nil: payloads are plain
	bare bool        // in memory, where checksums are 0
}

// frame returns the frame of a segment. A plain segment needs no key.
func (h header) frame(key *keyfile.Key) (s frame) {
	b := h.encode()
	s.crc = crc32.Checksum(b[:headerSize-4], crcs)
	copy(s.mark[:], b[16:20])
	if h.sealed {
		s.aead = h.newAEAD(key)
	}
	return s
}

// appendRecord encodes a record.
func (s frame) appendRecord(dst []byte, r *Record) []byte {
	at, n := len(dst), len(r.Payload)
	if s.aead != nil {
		n += sealBytes
	}
	dst = slices.Grow(dst, recordSize+n)
	dst = append(dst, s.mark[:]...)
	dst = le.AppendUint32(dst, uint32(n))
	dst = le.AppendUint32(dst, 0)
	dst = append(dst, byte(r.Kind), r.Flags, 0, 0)
	dst = le.AppendUint32(dst, r.Source)
	dst = le.AppendUint64(dst, uint64(r.Time.UnixNano()))
	dst = le.AppendUint64(dst, r.Epoch)
	dst = le.AppendUint64(dst, r.Seq)
	if s.aead == nil {
		dst = append(dst, r.Payload...)
	} else {
		// #nosec G407 -- the cipher draws a random nonce itself (cipher.NewGCMWithRandomNonce)
		dst = s.aead.Seal(dst, nil, r.Payload, dst[at+kindAt:at+recordSize])
	}
	s.setChecksum(dst[at:])
	return dst
}

// setChecksum gives an encoded record its checksum.
func (s frame) setChecksum(b []byte) { le.PutUint32(b[sumAt:], s.checksum(b)) }

// checksum is the checksum of an encoded record.
func (s frame) checksum(b []byte) uint32 {
	if s.bare {
		return 0
	}
	return crc32.Update(crc32.Update(s.crc, crcs, b[4:8]), crcs, b[12:])
}

// parseRecord reads the record at the start of b and returns its size, 0 if there is
// none. It returns errUnopened if the checksum fits and the key does not. b may be
// parsed again: a sealed payload is opened into memory of its own.
func (s frame) parseRecord(b []byte, r *Record) (int, error) {
	if len(b) < recordSize || !bytes.Equal(b[:4], s.mark[:]) {
		return 0, nil
	}
	n := uint64(le.Uint32(b[4:]))
	if n > uint64(len(b)-recordSize) {
		return 0, nil
	}
	b = b[: recordSize+n : recordSize+n]
	if s.checksum(b) != le.Uint32(b[8:]) {
		return 0, nil
	}
	payload := b[recordSize:]
	if s.aead != nil {
		var err error
		if payload, err = s.aead.Open(nil, nil, payload, b[kindAt:recordSize]); err != nil {
			return 0, errUnopened
		}
	}
	r.Kind, r.Flags = Kind(b[12]), b[13]
	r.Source = le.Uint32(b[16:])
	r.Time = time.Unix(0, int64(le.Uint64(b[20:]))).UTC()
	r.Epoch, r.Seq = le.Uint64(b[28:]), le.Uint64(b[36:])
	r.Payload = payload
	return len(b), nil
}

// cutOff reports whether b starts like a record whose end is missing.
func (s frame) cutOff(b []byte) bool {
	if len(b) < 8 {
		return bytes.HasPrefix(s.mark[:], b[:min(4, len(b))])
	}
	return bytes.Equal(b[:4], s.mark[:]) && (len(b) < recordSize || uint64(le.Uint32(b[4:])) > uint64(len(b)-recordSize))
}
