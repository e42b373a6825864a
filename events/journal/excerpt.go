package journal

import (
	"errors"
	"time"
)

// maxExcerpt bounds the bytes of records in an excerpt, apart from the first record. To
// copy them takes about a millisecond, and the source may have to wait for that.
const maxExcerpt = 4 << 20

// Span says which batches there are.
type Span struct {
	Epoch uint64
	// First and Last are numbers, valid if Any. Where no batch is left, First is Last+1.
	First, Last uint64
	Any         bool // a batch of the epoch was applied
}

// Errors of Read.
var (
	// ErrGone: the range begins before the batches there are.
	ErrGone = errors.New("the batches are gone")
	// ErrTooNew: the range begins after the last batch.
	ErrTooNew = errors.New("the batches are not there yet")
)

// Range says which batches are asked for.
type Range struct {
	Epoch    uint64 // 0: the current one
	Oldest   bool   // begin with the oldest batch, whatever From says
	From, To uint64 // numbers, both included
	Limit    int    // records, at least 1
}

// Excerpt is a range of the batches of one source.
type Excerpt struct {
	// Segment is a whole segment: the settings, the registration as it stands before the
	// range, and the records of the range.
	Segment []byte
	// More: the limit cut the range, and Next is the first number that is missing.
	More bool
	Next uint64
}

// opening makes the openings of excerpts.
type opening struct {
	head    header
	frame   frame
	records [3]Record
}

// newOpening returns the opening of one source. registration is the payload of Registered.
func newOpening(run uint64, settings []Field, source uint32, registration []byte) opening {
	o := opening{head: header{run: run, number: 1}}
	o.frame = o.head.frame(nil)
	o.records = [3]Record{
		{Kind: Settings, Payload: AppendFields(nil, settings...)},
		{Kind: Registered, Flags: Standing, Source: source, Payload: registration},
		{Kind: Begin, Seq: 1},
	}
	return o
}

// open begins a segment whose first record is of a number of the epoch, or later.
func (o *opening) open(epoch, from uint64) []byte {
	b := o.head.encode()
	now := time.Now()
	for _, rec := range o.records {
		rec.Time = now
		if rec.Kind == Registered {
			rec.Epoch = epoch
			if from > 0 {
				rec.Flags, rec.Seq = rec.Flags|HasSeq, from-1
			}
		}
		b = o.frame.append(b, &rec)
	}
	return b
}

// openingBytes is the memory of an opening without its payloads, about.
const openingBytes = 512

func (o *opening) bytes() int {
	return openingBytes + len(o.records[0].Payload) + len(o.records[1].Payload)
}
