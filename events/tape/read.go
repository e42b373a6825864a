package tape

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
)

// maxExcerpt bounds the bytes of records in an excerpt, apart from the first record.
const maxExcerpt = 4 << 20

// Span says which batches of the current epoch a tape has.
type Span struct {
	Epoch uint64
	// First and Last are numbers, valid if Any. Where no batch is left, First is Last+1.
	First, Last uint64
	Any         bool // a batch of the epoch was applied
}

// Errors of Read and Visit.
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

// Read returns batches of the source, from the memory or else, in any epoch of the registration, from what this run
// wrote to the disk, and which batches of the current epoch there are. It returns ErrGone or ErrTooNew if the first
// batch of the range is not there. Reads of the disk hold one segment in memory, and wait for each other.
func (s *Recorder) Read(q Range) (Excerpt, Span, error) {
	if s == nil {
		return Excerpt{}, Span{}, ErrGone
	}
	var segment *Segment
	opening := 0
	p := passage{source: s, q: q}
	begin := func() {
		segment = newSegment(header{run: s.tape.disk.run, number: 1}, s.tape.opts.Settings, s.id, s.registration, p.q.Epoch, p.q.From)
		opening = len(segment.data)
	}
	p.visit = func(rec *Record) bool {
		switch {
		case rec.Kind == Reset:
			segment = nil
			return true
		case segment == nil:
			begin()
		case len(segment.data)-opening+recordSize+len(rec.Payload) > maxExcerpt:
			return false
		}
		segment.Append(rec)
		return true
	}
	span, err := p.readRange(&s.tape.reading)
	if err != nil {
		return Excerpt{}, span, err
	}
	if segment == nil {
		begin()
	}
	return Excerpt{Segment: segment.data, More: p.more, Next: p.next}, span, nil
}

// Visit calls visit with the records of a range, oldest first, until visit returns false, and returns the number behind
// the last one. It reads where Read does and returns the same errors. visit also sees a Reset within the
// epoch, after which what it saw before does not count any more. Payloads are valid while visit runs, and for good if
// Options.Evict is set. One segment of the disk is in memory meanwhile.
func (s *Recorder) Visit(q Range, visit func(*Record) bool) (next uint64, err error) {
	p := passage{source: s, q: q, visit: visit}
	_, err = p.readRange(nil)
	return p.next, err
}

// Span returns which batches of the current epoch are in memory.
func (s *Recorder) Span() Span {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.span
}

// OldestNumber returns the number of the oldest batch of the current epoch in memory or on the disk, valid if
// the memory's Span has Any. It looks at the first 64 KiB of a segment or two.
func (s *Recorder) OldestNumber() uint64 {
	span := s.Span()
	if s.tape.opts.Dir == "" {
		return span.First
	}
	p := passage{
		source: s, visit: func(*Record) bool { return true },
		q: Range{Epoch: span.Epoch, Oldest: true, To: math.MaxUint64, Limit: 1},
	}
	files, _ := p.files()
	for _, f := range files[:min(2, len(files))] {
		data, _ := readPrefix(s.tape.path(f.number), 64<<10) // what is there: a segment may be shorter
		if scan, err := NewScanner(data, s.tape.opts.Key); err == nil {
			p.scanRecords(scan)
		}
		if p.n > 0 {
			return min(p.q.From, span.First)
		}
	}
	return span.First
}

// passage reads a range of the batches of one source, in memory or in segments.
type passage struct {
	source *Recorder
	q      Range
	visit  func(*Record) bool // takes a record of the range, or returns false to end before it

	known       bool   // first and next are valid
	first, next uint64 // all that was applied from first up to next was read
	n           int    // records visited
	more        bool
	gone, done  bool
}

// readRange reads the range, from the disk under a lock if there is one, and returns the span of the tape.
func (p *passage) readRange(disk sync.Locker) (Span, error) {
	span, err := p.source.memory.visitRange(p)
	if err != ErrGone || p.source.tape.opts.Dir == "" {
		return span, err
	}
	if disk != nil {
		disk.Lock()
		defer disk.Unlock()
	}
	err = p.readFiles(&span)
	return span, err
}

// readFiles reads the range from the disk, and adds the batches there to the span.
func (p *passage) readFiles(span *Span) error {
	files, err := p.files()
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(p.source.tape.path(f.number))
		if errors.Is(err, fs.ErrNotExist) {
			p.passHole() // the writer removed it meanwhile
			continue
		} else if err != nil {
			return err
		}
		if scan, err := NewScanner(data, p.source.tape.opts.Key); err != nil {
			p.passHole() // damaged meanwhile
		} else if p.scanRecords(scan); p.done {
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
		p.endEarly()
	}
	return nil
}

// scanRecords reads the records of the source in one segment.
func (p *passage) scanRecords(s *Scanner) {
	skipped := 0
	for rec := (Record{}); !p.done && s.Next(&rec); {
		if s.damage.Skipped > skipped {
			skipped = s.damage.Skipped
			p.passHole()
		}
		if rec.Source == p.source.id && !p.done {
			p.readRecord(&rec)
		}
	}
}

// files returns the segments from the one on that the range begins in.
func (p *passage) files() ([]segment, error) {
	all, err := segments(p.source.tape.opts.Dir)
	if err != nil {
		return nil, err
	}
	for i, f := range slices.Backward(all) {
		mine, at := p.source.standingIn(f.number)
		if !mine {
			return all[i+1:], nil
		}
		// The segment has what came after at.
		if at == nil || at.Epoch < p.q.Epoch ||
			at.Epoch == p.q.Epoch && !p.q.Oldest && (at.Flags&HasSeq == 0 || at.Seq < p.q.From) {
			return all[i:], nil
		}
	}
	return all, nil
}

// standingIn reports whether a segment is of this run, and returns the source as its
// opening has it, nil if it has it not.
func (s *Recorder) standingIn(number uint64) (mine bool, at *Record) {
	for size := 64 << 10; ; size *= 2 {
		data, err := readPrefix(s.tape.path(number), size)
		// Other runs may have other keys.
		if h, bad := decodeHeader(data); bad != nil || h.run != s.tape.disk.run {
			return false, nil
		}
		r := scanWith(s.tape.opts.Key, data)
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

// readPrefix returns the first bytes of a file, with an error if there are fewer than size.
func readPrefix(name string, size int) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data := make([]byte, size)
	n, err := io.ReadFull(file, data)
	return data[:n], err
}

// readRecord reads the next record of the source.
func (p *passage) readRecord(rec *Record) {
	switch {
	case rec.Kind == Lost:
		p.passHole()
		return
	case rec.Kind != Registered && rec.Kind != Batch && rec.Kind != Idle && rec.Kind != Reset, rec.Epoch < p.q.Epoch:
		return
	case rec.Epoch > p.q.Epoch:
		p.done = true
		return
	case rec.Kind == Reset: // within the epoch: what came before does not count any more
		p.known, p.n = false, 0
		p.visit(rec)
		return
	case rec.Kind == Registered: // the opening of a segment
		if rec.Flags&HasSeq == 0 || p.known && p.next == rec.Seq+1 {
			return
		}
		if p.passHole(); !p.done {
			p.known, p.first, p.next = true, rec.Seq+1, rec.Seq+1
		}
		return
	}
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
		next := *rec
		next.Seq = min(rec.Seq, p.q.To)
		if p.n == p.q.Limit || !p.visit(&next) {
			p.endEarly()
			return
		}
		p.n++
	}
	p.next = rec.Seq + 1
}

// passHole ends the range where records are missing, unless it has not begun.
func (p *passage) passHole() {
	if p.n > 0 {
		p.endEarly()
		return
	}
	p.known = false
}

// endEarly ends the range before its end.
func (p *passage) endEarly() { p.more, p.done = true, true }
