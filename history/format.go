package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"time"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
)

// MediaType is the media type of a snapshot.
const MediaType = "application/vnd.conductor.snapshot"

const (
	magic = "KVSNAP\r\n" // a transfer that changes line ends shows
	// newest and oldest are the versions that are read. What is written has the oldest version whose readers know all
	// that is in it: see docs/formats.md.
	newest     = 4
	oldest     = 2
	headerSize = 36
	// sectionSize is the bytes of a section before its payload.
	sectionSize = 20
	// maxSection bounds the payload of a section. Ours are some 256 KiB.
	maxSection = 16 << 20
)

// Kinds of sections. Those of chunks are kindChunk and the index.ChunkKind.
const (
	kindHead       = 1 // fields of the server
	kindSource     = 2 // fields of a source
	kindDeployment = 3 // fields of a deployment
	kindHolder     = 4 // fields of a holder, of the deployment named
	kindTarget     = 5 // fields of a target of discovery
	kindChange     = 6 // fields of a change that the store has not
	kindIdentity   = 7 // fields of an adapter and salt, of the deployment named
	kindGone       = 8 // kind and name of a part that a file of registrations has no more, since version 3
	kindEnd        = 9 // fields with the numbers of sections and blocks
	kindChunk      = 16
)

// Fields of the head and the end.
const (
	fieldSeed     = "hash.seed"
	fieldSections = "sections"
	fieldBlocks   = "blocks"
	fieldSources  = "sources"
	fieldLeftOut  = "left_out"
)

// Fields of a file of registrations that changes are appended to.
const (
	fieldPart = "part" // the name of a part, which a later part of the same kind and name takes the place of
	fieldKind = "kind" // of the part that is gone
)

var (
	le   = binary.LittleEndian
	crcs = crc32.MakeTable(crc32.Castagnoli) // in hardware on amd64 and arm64
)

// Errors of a stream that is no whole snapshot.
var (
	errForeign = errors.New("it is no snapshot: its first bytes are others")
	errTorn    = errors.New("it ends in the middle")
)

// versionError says that a snapshot is of another version of the format.
type versionError struct{ Version uint32 }

func (e *versionError) Error() string {
	return fmt.Sprintf("it has format version %d; this program knows %d to %d", e.Version, oldest, newest)
}

// damageError says that a section is not what was written.
type damageError struct {
	Section int // counted from 0
	Offset  int64
	Err     error // nil: its checksum does not fit
}

func (e *damageError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("section %d at byte %d is damaged: %v", e.Section, e.Offset, e.Err)
	}
	return fmt.Sprintf("section %d at byte %d is damaged: its checksum does not fit", e.Section, e.Offset)
}

func (e *damageError) Unwrap() error { return e.Err }

// Reasons why a snapshot cannot be used.
const (
	ReasonTorn    = "torn"     // it ends in the middle
	ReasonDamaged = "damaged"  // a checksum does not fit
	ReasonForeign = "foreign"  // it is no snapshot
	ReasonVersion = "version"  // it has another version of the format
	ReasonSeed    = "seed"     // it has another hash.seed
	ReasonDisk    = "disk"     // the disk does not give or take it
	ReasonOther   = "unusable" // anything else
)

// Reasons has all reasons that Reason returns.
var Reasons = []string{
	ReasonTorn, ReasonDamaged, ReasonForeign, ReasonVersion, ReasonSeed, ReasonDisk, ReasonOther,
}

// Reason returns the reason of an error of Read, as metrics name it.
func Reason(err error) string {
	var field *invalid.FieldError
	switch {
	case errors.Is(err, errTorn):
		return ReasonTorn
	case errors.Is(err, errForeign):
		return ReasonForeign
	case errors.As(err, new(*versionError)):
		return ReasonVersion
	case errors.As(err, new(*damageError)):
		return ReasonDamaged
	case errors.As(err, &field) && field.Field == "hash.seed":
		return ReasonSeed
	case errors.As(err, new(*fs.PathError)):
		return ReasonDisk
	}
	return ReasonOther
}

// header identifies a snapshot.
type header struct {
	version uint32
	id      uint64 // random
	time    time.Time
}

func (h header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = le.AppendUint32(b, h.version)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, h.id)
	b = le.AppendUint64(b, uint64(h.time.UnixNano()))
	return le.AppendUint32(b, crc32.Checksum(b, crcs))
}

// decodeHeader reads a header. A writer of another version keeps the first twelve bytes.
func decodeHeader(b []byte) (header, error) {
	if len(b) < 12 || string(b[:8]) != magic {
		return header{}, errForeign
	}
	v := le.Uint32(b[8:])
	if v < oldest || v > newest {
		return header{}, &versionError{v}
	}
	if len(b) < headerSize {
		return header{}, errTorn
	}
	if crc32.Checksum(b[:headerSize-4], crcs) != le.Uint32(b[headerSize-4:]) {
		return header{}, &damageError{Err: errors.New("the header's checksum does not fit")}
	}
	return header{version: v, id: le.Uint64(b[16:]), time: time.Unix(0, int64(le.Uint64(b[24:]))).UTC()}, nil
}

// seed is the start value of every checksum of a snapshot: sections of two do not mix.
func (h header) seed() uint32 { return crc32.Checksum(h.encode(), crcs) }

// section is a section without its payload.
type section struct {
	kind       uint16
	deployment uint32 // of holders and chunks
	blocks     uint32
	length     uint32
}

// encode returns the bytes before the payload.
func (s section) encode(seed uint32, payload []byte) (b [sectionSize]byte) {
	le.PutUint16(b[:], s.kind)
	le.PutUint32(b[4:], s.deployment)
	le.PutUint32(b[8:], s.blocks)
	le.PutUint32(b[12:], uint32(len(payload)))
	le.PutUint32(b[16:], crc32.Update(crc32.Update(seed, crcs, b[:16]), crcs, payload))
	return b
}

func decodeSection(b []byte) section {
	return section{kind: le.Uint16(b), deployment: le.Uint32(b[4:]), blocks: le.Uint32(b[8:]), length: le.Uint32(b[12:])}
}

// chunkKind returns the kind of a chunk, false for another section.
func (s section) chunkKind() (index.ChunkKind, bool) {
	if s.kind < kindChunk || s.kind > kindChunk+uint16(index.ChunkLinks) {
		return 0, false
	}
	return index.ChunkKind(s.kind - kindChunk), true
}

// decodeFields reads a payload of fields.
func decodeFields(payload []byte) ([]tape.Field, error) {
	return (&tape.Record{Kind: tape.Registered, Payload: payload}).Fields()
}
