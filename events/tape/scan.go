package tape

import (
	"bytes"

	"example.com/conductor/keyfile"
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

// Scanner finds the records of one segment in memory, which may grow. It belongs to one goroutine.
type Scanner struct {
	data   []byte
	off    int
	frame  frame
	head   header
	damage Damage
}

// NewScanner returns a Scanner at the beginning of a segment. It fails if the header is no
// tape's, or if the segment is sealed and key is nil.
func NewScanner(data []byte, key *keyfile.Key) (*Scanner, error) {
	head, err := decodeHeader(data)
	if err == nil && head.sealed && key == nil {
		err = errSealed
	}
	if err != nil {
		return nil, err
	}
	return &Scanner{data: data, off: headerSize, head: head, frame: head.frame(key)}, nil
}

// Grow tells the Scanner the bytes that the segment has now.
func (s *Scanner) Grow(data []byte) { s.data = data }

// Damage is what was skipped so far.
func (s *Scanner) Damage() Damage { return s.damage }

// Next reads the next record into r, behind damage if there is some, and reports whether there is
// one. The payload stays valid.
func (s *Scanner) Next(r *Record) bool {
	for start := s.off; s.off < len(s.data); {
		n, err := s.frame.parseRecord(s.data[s.off:], r)
		if n > 0 {
			if s.off > start {
				s.damage.Skipped++
				s.damage.Bytes += int64(s.off - start)
			}
			r.AfterDamage = s.off > start
			r.Run, r.At = s.head.run, Position{s.head.number, int64(s.off)}
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
