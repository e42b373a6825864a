package journal

import "path/filepath"

// Segment is a segment of one source that grows in memory. It belongs to one goroutine, but
// Bytes that were returned do not change.
type Segment struct {
	frame frame
	data  []byte
}

// NewSegment begins a segment whose first record is of a number of the epoch, or later. key
// is the printed key of the source, fields are its registration.
func NewSegment(run, number, epoch, from uint64, key string, fields ...Field) *Segment {
	registration := AppendFields(AppendFields(nil, Field{FieldSource, key}), fields...)
	o := newOpening(run, nil, 1, registration)
	o.head.number = number
	o.frame = o.head.frame(nil)
	return &Segment{frame: o.frame, data: o.open(epoch, from)}
}

// Append adds a record of the source. It copies the payload.
func (s *Segment) Append(rec *Record) {
	rec.Source = 1
	s.data = s.frame.append(s.data, rec)
}

// Bytes returns the segment as it is now.
func (s *Segment) Bytes() []byte { return s.data }

// Path returns the file of a segment in a directory.
func Path(dir string, number uint64) string { return filepath.Join(dir, segmentName(number)) }

// Files returns the files of all segments in a directory, oldest first.
func Files(dir string) ([]string, error) {
	all, err := segments(dir)
	paths := make([]string, len(all))
	for i, s := range all {
		paths[i] = Path(dir, s.number)
	}
	return paths, err
}

// Tail reads a segment in memory that grows.
type Tail struct{ scan scanner }

// NewTail returns a Tail at the beginning of a plain segment. It fails if the header is no
// journal's.
func NewTail(data []byte) (*Tail, error) {
	scan, err := newScanner(data, nil)
	return &Tail{scan}, err
}

// EndOf returns a Tail at the end of what a segment has now.
func EndOf(data []byte) *Tail {
	t, err := NewTail(data)
	if err != nil {
		panic("BUG: a segment that was made here has no header: " + err.Error())
	}
	t.scan.off = len(data)
	return t
}

// Grow tells the Tail the bytes that the segment has now.
func (t *Tail) Grow(data []byte) { t.scan.data = data }

// Next reads the next record into rec, and reports whether there is one. The payload stays
// valid.
func (t *Tail) Next(rec *Record) bool { return t.scan.next(rec) }

// Damage is what was skipped so far.
func (t *Tail) Damage() Damage { return t.scan.damage }
