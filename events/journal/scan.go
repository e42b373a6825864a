package journal

import "bytes"

// Damage is what could not be read.
type Damage struct {
	Torn    int   // segments that end in the middle of a record
	Skipped int   // other stretches that hold no record
	Bytes   int64 // of both
	Foreign int   // files named like segments that are none
}

// scanner finds the records of one segment.
type scanner struct {
	data   []byte
	off    int
	seal   seal
	head   header
	damage Damage
}

func newScanner(data []byte) (scanner, error) {
	head, err := decodeHeader(data)
	return scanner{data: data, off: headerSize, head: head, seal: head.seal()}, err
}

// next reads the next record, behind damage if there is some.
func (s *scanner) next(r *Record) bool {
	for start := s.off; s.off < len(s.data); {
		if n := s.seal.parse(s.data[s.off:], r); n > 0 {
			if s.off > start {
				s.damage.Skipped++
				s.damage.Bytes += int64(s.off - start)
			}
			r.Run, r.At = s.head.run, Place{s.head.number, int64(s.off)}
			s.off += n
			return true
		}
		if i := bytes.Index(s.data[s.off+1:], s.seal.mark[:]); i >= 0 {
			s.off += 1 + i
			continue
		}
		if s.seal.cutOff(s.data[start:]) {
			s.damage.Torn++
		} else {
			s.damage.Skipped++
		}
		s.damage.Bytes += int64(len(s.data) - start)
		s.off = len(s.data)
	}
	return false
}
