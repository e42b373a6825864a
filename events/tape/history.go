package tape

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// maxExcerpt bounds the bytes of records in an excerpt, apart from the first record.
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
	Oldest   bool   // begin with the oldest batch in memory, else on the disk, whatever From says
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

// Read returns batches of the source, from the memory or else, in any epoch of the registration,
// from what this run wrote to the disk, and which batches of the current epoch there are. It returns
// ErrGone or ErrTooNew if the first batch of the range is not there. Reads of the disk hold one segment
// in memory, and wait for each other.
func (s *Recorder) Read(q Range) (Excerpt, Span, error) {
	if s == nil {
		return Excerpt{}, Span{}, ErrGone
	}
	p := passage{source: s, q: q}
	span, err := s.memory.read(&p)
	if err == ErrGone && s.w.opts.Dir != "" {
		err = p.readFiles(&span)
	}
	if err != nil {
		return Excerpt{}, span, err
	}
	if p.part == nil {
		p.begin()
	}
	return Excerpt{Segment: p.part.data, More: p.more, Next: p.next}, span, nil
}

// passage collects a range of the batches of one source from segments.
type passage struct {
	source *Recorder
	q      Range

	known       bool     // first and next are valid
	first, next uint64   // all that was applied from first up to next was read
	part        *Segment // of the excerpt, nil before the first record
	opening     int      // bytes of its opening
	n           int      // records in it
	more        bool
	gone, done  bool
}

// begin begins the excerpt.
func (p *passage) begin() {
	s := p.source
	p.part = newSegment(header{run: s.w.disk.run, number: 1}, s.w.opts.Settings, s.id, s.desc, p.q.Epoch, p.q.From)
	p.opening = len(p.part.data)
}

// readFiles reads the range from the disk, and adds the batches there to the span.
func (p *passage) readFiles(span *Span) error {
	p.source.w.reading.Lock()
	defer p.source.w.reading.Unlock()
	files, err := p.files()
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(p.source.w.path(f.number))
		if errors.Is(err, fs.ErrNotExist) {
			p.hole() // the writer removed it meanwhile
			continue
		} else if err != nil {
			return err
		}
		if scan, err := NewScanner(data, p.source.w.opts.Key); err != nil {
			p.hole() // damaged meanwhile
		} else if p.scan(scan); p.done {
			break
		}
	}
	waits := false // the writer has the next batch of the range
	if p.q.Epoch == span.Epoch {
		first := span.Last + 1
		if p.known {
			first = p.first
		}
		if p.source.memory.limit > 0 {
			first = min(first, span.First)
		}
		span.First = first
		waits = !p.done && p.next <= min(p.q.To, span.Last)
	}
	switch {
	case p.gone || !p.known || p.n == 0 && !p.q.Oldest && p.q.From < p.first:
		return ErrGone
	case waits && p.n == 0:
		return ErrTooNew
	case waits:
		p.cut()
	}
	return nil
}

// scan takes the records of the source in one segment.
func (p *passage) scan(s *Scanner) {
	skipped := 0
	for rec := (Record{}); !p.done && s.Next(&rec); {
		if s.damage.Skipped > skipped {
			skipped = s.damage.Skipped
			p.hole()
		}
		if rec.Source == p.source.id && !p.done {
			p.take(&rec)
		}
	}
}

// files returns the segments from the one on that the range begins in.
func (p *passage) files() ([]segment, error) {
	all, err := segments(p.source.w.opts.Dir)
	if err != nil {
		return nil, err
	}
	for i, f := range slices.Backward(all) {
		mine, at := p.source.standingIn(f.number)
		if !mine {
			return all[i+1:], nil
		}
		// The segment has what came after at.
		if at == nil || at.Epoch < p.q.Epoch || at.Epoch == p.q.Epoch && !p.q.Oldest && (at.Flags&HasSeq == 0 || at.Seq < p.q.From) {
			return all[i:], nil
		}
	}
	return all, nil
}

// standingIn reports whether a segment is of this run, and returns the source as its
// opening has it, nil if it has it not.
func (s *Recorder) standingIn(number uint64) (mine bool, at *Record) {
	file, err := os.Open(s.w.path(number))
	if err != nil {
		return false, nil
	}
	defer file.Close()
	for size, data := 64<<10, []byte(nil); ; size *= 2 {
		more := make([]byte, size-len(data))
		n, err := io.ReadFull(file, more)
		data = append(data, more[:n]...)
		// Other runs may have other keys.
		if h, err := decodeHeader(data); err != nil || h.run != s.w.disk.run {
			return false, nil
		}
		r := scanWith(s.w.opts.Key, data)
		for rec := (Record{}); r.Next(&rec) == nil; {
			switch {
			case rec.Kind == Registered && rec.Source == s.id && rec.Flags&Standing != 0:
				return true, &rec
			case rec.Kind == Begin:
				return true, nil
			}
		}
		if err != nil {
			return false, nil // no whole opening
		}
	}
}

// take takes the next record of the source.
func (p *passage) take(rec *Record) {
	if rec.Kind == Lost {
		p.hole()
		return
	}
	if rec.Kind != Registered && rec.Kind != Batch && rec.Kind != Idle && rec.Kind != Reset || rec.Epoch < p.q.Epoch {
		return
	}
	if rec.Epoch > p.q.Epoch {
		p.done = true
		return
	}
	switch rec.Kind {
	case Reset: // within the epoch: what came before does not count any more
		p.known, p.n, p.part = false, 0, nil
	case Registered:
		if rec.Flags&HasSeq == 0 || p.known && p.next == rec.Seq+1 {
			return
		}
		if p.hole(); !p.done {
			p.known, p.first, p.next = true, rec.Seq+1, rec.Seq+1
		}
	default:
		p.batch(rec)
	}
}

// hole ends the range where records are missing, unless it has not begun.
func (p *passage) hole() {
	if p.n > 0 {
		p.cut()
		return
	}
	p.known = false
}

// cut ends the range before its end.
func (p *passage) cut() { p.more, p.done = true, true }

// batch takes a record of batches.
func (p *passage) batch(rec *Record) {
	if !p.known {
		p.known, p.first, p.next = true, rec.Seq, rec.Seq
	}
	if p.q.Oldest && p.n == 0 {
		p.q.From = p.first
	}
	switch {
	case p.q.From < p.first:
		p.gone, p.done = true, true
		return
	case p.next > p.q.To, rec.Seq > p.q.To && rec.Kind == Batch:
		p.done = true
		return
	}
	if rec.Seq >= p.q.From {
		switch {
		case p.n == 0:
			p.begin()
		case p.n == p.q.Limit || len(p.part.data)-p.opening+recordSize+len(rec.Payload) > maxExcerpt:
			p.cut()
			return
		}
		p.n++
		next := *rec
		next.Seq = min(rec.Seq, p.q.To)
		p.part.Append(&next)
	}
	p.next = rec.Seq + 1
}
