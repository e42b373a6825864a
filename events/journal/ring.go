package journal

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// A ring that is used begins with this many bytes and doubles.
	minRing = 4 << 10
	// A reader walks over the records between two marks. minMark is the least distance of
	// marks in bytes, maxMarks bounds the marks of a large ring.
	minMark  = 64 << 10
	maxMarks = 1024
)

// Ring keeps the batches of one source that were applied last, in memory: records of a
// segment, without their checksums. A nil Ring keeps nothing.
//
//	+--------------------+------+------------------------+--------+
//	| newer records      | free |          older records | unused |
//	+--------------------+------+------------------------+--------+
//	0                    head   tail                     end      len(buf)
//
// Until the first record is overwritten, all records lie between 0 and head.
//
// Invariants:
//
//  1. All records are of one epoch, and their numbers ascend. A Reset removes them.
//  2. The ring has everything that was applied from number first to number last. An Idle
//     record stands for batches without events.
//  3. A record lies in one piece. buf never takes more than limit bytes.
//
// Concurrency: all methods are safe from any goroutine.
//
// Cost: a batch takes one lock and one copy of its payload, and no allocation once buf has
// its size.
type Ring struct {
	opening // of the segments that Read returns
	limit   int

	mu         sync.Mutex
	buf        []byte
	tail, head int
	end        int // of older records, while there are some
	wrapped    bool
	newest     int   // offset of the newest record, -1 if there is none
	marks      []int // by offset/step: 1 + the offset of a record that begins there, 0 for none
	step       int

	span Span
}

// NewRing returns an empty ring of at most limit bytes, nil if limit is 0. key is the
// printed key of the source, fields are its registration, settings those of the server.
func NewRing(limit int, settings []Field, key string, fields ...Field) *Ring {
	if limit <= 0 {
		return nil
	}
	registration := AppendFields(AppendFields(nil, Field{FieldSource, key}), fields...)
	r := &Ring{opening: newOpening(rand.Uint64(), settings, 1, registration), limit: limit, newest: -1, span: Span{Epoch: 1}}
	r.step = max(minMark, (limit+maxMarks-1)/maxMarks)
	r.marks = make([]int, (limit+r.step-1)/r.step)
	return r
}

// Batch adds a batch that was applied at a time. The ring copies raw.
func (r *Ring) Batch(at time.Time, epoch, seq uint64, replayed bool, raw []byte) {
	if r == nil {
		return
	}
	rec := Record{Kind: Batch, Source: 1, Time: at, Epoch: epoch, Seq: seq, Payload: raw}
	if replayed {
		rec.Flags = Replayed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(&rec)
}

// Idle adds a batch without events. Those that follow each other are one record.
func (r *Ring) Idle(at time.Time, epoch, seq uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest < 0 || Kind(r.buf[r.newest+kindAt]) != Idle || !r.follows(epoch, seq) {
		r.put(&Record{Kind: Idle, Source: 1, Time: at, Epoch: epoch, Seq: seq})
		return
	}
	le.PutUint64(r.buf[r.newest+timeAt:], uint64(at.UnixNano()))
	le.PutUint64(r.buf[r.newest+seqAt:], seq)
	r.span.Last = seq
}

// Reset removes everything: the blocks of the source are dropped, and an epoch begins.
func (r *Ring) Reset(epoch uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear(epoch)
}

// Span returns which batches the ring has.
func (r *Ring) Span() Span {
	if r == nil {
		return Span{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.span
}

// Bytes returns the memory of the ring.
func (r *Ring) Bytes() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.buf) + 8*len(r.marks) + r.opening.bytes()
}

// follows reports whether a batch may stand behind the newest one. mu is held.
func (r *Ring) follows(epoch, seq uint64) bool {
	return epoch == r.span.Epoch && (!r.span.Any || seq > r.span.Last)
}

// clear removes everything. mu is held.
func (r *Ring) clear(epoch uint64) {
	r.tail, r.head, r.wrapped, r.newest = 0, 0, false, -1
	clear(r.marks)
	r.span = Span{Epoch: epoch}
}

// put appends a record. One that is larger than the ring removes the others. mu is held.
func (r *Ring) put(rec *Record) {
	if !r.follows(rec.Epoch, rec.Seq) {
		r.clear(rec.Epoch)
	}
	n := recordSize + len(rec.Payload)
	if n > r.limit {
		r.clear(rec.Epoch)
		r.span = Span{Epoch: rec.Epoch, First: rec.Seq + 1, Last: rec.Seq, Any: true}
		return
	}
	if !r.span.Any {
		r.span.First, r.span.Any = rec.Seq, true
	}
	r.span.Last = rec.Seq
	r.reserve(n)
	r.frame.draft(r.buf[r.head:r.head:r.head+n], rec)
	if mark := &r.marks[r.head/r.step]; *mark == 0 {
		*mark = r.head + 1
	}
	r.newest = r.head
	r.head += n
}

// reserve makes room for n bytes at head. mu is held.
func (r *Ring) reserve(n int) {
	for {
		switch {
		case r.wrapped && r.tail-r.head >= n, !r.wrapped && len(r.buf)-r.head >= n:
			return
		case r.wrapped:
			r.removeOldest()
		case len(r.buf) < r.limit:
			buf := make([]byte, min(max(2*len(r.buf), r.head+n, minRing), r.limit))
			copy(buf, r.buf[:r.head])
			r.buf = buf
		default:
			r.end, r.head, r.wrapped = r.head, 0, true
		}
	}
}

// removeOldest removes the record at tail. mu is held.
func (r *Ring) removeOldest() {
	if mark := &r.marks[r.tail/r.step]; *mark == r.tail+1 {
		*mark = 0
	}
	r.span.First = r.seqAt(r.tail) + 1
	if r.tail += sizeOf(r.buf[r.tail:]); r.tail == r.end {
		r.tail, r.wrapped = 0, false
	}
}

func (r *Ring) seqAt(offset int) uint64 { return le.Uint64(r.buf[offset+seqAt:]) }

// sizeOf returns the size of the encoded record at the start of b.
func sizeOf(b []byte) int { return recordSize + int(le.Uint32(b[lengthAt:])) }

// Read returns the batches of a range, and which batches the ring has. It returns ErrGone or
// ErrTooNew if the ring has not the first of them.
func (r *Ring) Read(q Range) (Excerpt, Span, error) {
	if r == nil {
		return Excerpt{}, Span{}, ErrGone
	}
	e, records, span, err := r.copy(&q)
	if err != nil {
		return Excerpt{}, span, err
	}
	for b := e.Segment[records:]; len(b) > 0; {
		n := sizeOf(b)
		if le.Uint64(b[seqAt:]) > q.To { // an Idle record that goes on
			le.PutUint64(b[seqAt:], q.To)
		}
		r.frame.close(b[:n])
		b = b[n:]
	}
	return e, span, nil
}

// copy returns the records of a range behind an opening, and where they begin.
func (r *Ring) copy(q *Range) (e Excerpt, records int, span Span, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span = r.span
	if q.Oldest {
		q.From = span.First
	}
	switch {
	case q.Epoch != 0 && q.Epoch < span.Epoch, span.Any && q.From < span.First:
		return e, 0, span, ErrGone
	case q.Epoch > span.Epoch, !q.Oldest && (!span.Any || q.From > span.Last):
		return e, 0, span, ErrTooNew
	}
	e.Segment = r.open(span.Epoch, q.From)
	records = len(e.Segment)
	next, n := span.First, 0 // the number after the last record; records taken
	for _, part := range r.parts(q.From) {
		begin, at := part[0], part[0]
		for ; at < part[1] && next <= q.To; at += sizeOf(r.buf[at:]) {
			seq := r.seqAt(at)
			if seq > q.To && Kind(r.buf[at+kindAt]) != Idle {
				next = seq
				break
			}
			if seq < q.From {
				begin = at + sizeOf(r.buf[at:])
			} else if n == q.Limit || n > 0 && len(e.Segment)-records+at-begin+sizeOf(r.buf[at:]) > maxExcerpt {
				e.More, e.Next = true, next
				e.Segment = append(e.Segment, r.buf[begin:at]...)
				return e, records, span, nil
			} else {
				n++
			}
			next = seq + 1
		}
		e.Segment = append(e.Segment, r.buf[begin:at]...)
	}
	return e, records, span, nil
}

// parts returns offsets between which records lie, older ones first. Records before a number
// are left out as far as marks show them. mu is held.
func (r *Ring) parts(from uint64) [][2]int {
	parts := [][2]int{{0, r.head}}
	if r.wrapped {
		if r.head == 0 || r.seqAt(0) > from {
			parts = [][2]int{{r.tail, r.end}, {0, r.head}}
		}
	}
	first := &parts[0]
	low, high := first[0], first[1]
	for slot := low/r.step + 1; slot*r.step < high; slot++ {
		at := r.marks[slot] - 1
		if at < low || at >= high {
			continue
		}
		if r.seqAt(at) > from {
			break
		}
		first[0] = at
	}
	return parts
}
