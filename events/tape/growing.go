package tape

import "time"

// Segment is a plain segment of one source that grows in memory. It belongs to one goroutine, but
// Bytes that were returned do not change.
type Segment struct {
	frame  frame
	source uint32
	data   []byte
}

// NewSegment begins a segment whose first record is of a number of the epoch, or later. key
// is the printed key of the source, fields are its registration.
func NewSegment(run, number, epoch, from uint64, key string, fields ...Field) *Segment {
	return newSegment(header{run: run, number: number}, nil, 1, registration(key, fields), epoch, from)
}

// registration returns the payload of a Registered record.
func registration(key string, fields []Field) []byte {
	return AppendFields(AppendFields(nil, Field{FieldSource, key}), fields...)
}

// newSegment is NewSegment with the parts of the opening.
func newSegment(h header, settings []Field, source uint32, registration []byte, epoch, from uint64) *Segment {
	s := &Segment{frame: h.frame(nil), source: source, data: h.encode()}
	now := time.Now()
	standing := Record{Kind: Registered, Flags: Standing, Source: source, Time: now, Epoch: epoch, Payload: registration}
	if from > 0 {
		standing.Flags, standing.Seq = Standing|HasSeq, from-1
	}
	for _, rec := range [...]Record{{Kind: Settings, Time: now, Payload: AppendFields(nil, settings...)}, standing, {Kind: Begin, Time: now, Seq: 1}} {
		s.data = s.frame.append(s.data, &rec)
	}
	return s
}

// Append adds a record of the source. It copies the payload.
func (s *Segment) Append(rec *Record) {
	rec.Source = s.source
	s.data = s.frame.append(s.data, rec)
}

// Bytes returns the segment as it is now.
func (s *Segment) Bytes() []byte { return s.data }
