package journal

import (
	"bytes"

	"kvconductor/keyfile"
)

// Damage is what could not be read.
type Damage struct {
	Torn    int   // segments that end in the middle of a record
	Skipped int   // other stretches that hold no record
	Bytes   int64 // of both
	Foreign int   // files named like segments that are none
	// Unopened is the number of records among Skipped that are whole and that the key does
	// not open: the key is another one, or the bytes were changed.
	Unopened int
}

// scanner finds the records of one segment.
type scanner struct {
	data   []byte
	off    int
	frame  frame
	head   header
	damage Damage
}

// newScanner returns a scanner of a segment. It returns errSealed if the segment is sealed and
// key is nil.
func newScanner(data []byte, key *keyfile.Key) (scanner, error) {
	head, err := decodeHeader(data)
	if err == nil && head.sealed && key == nil {
		err = errSealed
	}
	if err != nil {
		return scanner{}, err
	}
	return scanner{data: data, off: headerSize, head: head, frame: head.frame(key)}, nil
}

// next reads the next record, behind damage if there is some.
func (s *scanner) next(r *Record) bool {
	for start := s.off; s.off < len(s.data); {
		n, err := s.frame.parse(s.data[s.off:], r)
		if n > 0 {
			if s.off > start {
				s.damage.Skipped++
				s.damage.Bytes += int64(s.off - start)
			}
			r.AfterDamage = s.off > start
			r.Run, r.At = s.head.run, Place{s.head.number, int64(s.off)}
			s.off += n
			return true
		}
		if err != nil {
			s.damage.Unopened++
		}
		if i := bytes.Index(s.data[s.off+1:], s.frame.mark[:]); i >= 0 {
			s.off += 1 + i
			continue
		}
		if s.frame.cutOff(s.data[start:]) {
			s.damage.Torn++
		} else {
			s.damage.Skipped++
		}
		s.damage.Bytes += int64(len(s.data) - start)
		s.off = len(s.data)
	}
	return false
}
