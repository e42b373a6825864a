package journal

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Read returns batches of the source that this run wrote to the disk, in any epoch of the
// registration, and which batches of the current epoch there are. It returns ErrGone or
// ErrTooNew if the first batch of the range is not there. A read holds one segment in memory,
// and the reads of a journal wait for each other.
func (s *Source) Read(q Range) (Excerpt, Span, error) {
	if s == nil {
		return Excerpt{}, Span{}, ErrGone
	}
	s.w.reading.Lock()
	defer s.w.reading.Unlock()
	s.w.mu.Lock()
	span := Span{Epoch: s.pos.epoch, Last: s.pos.seq, Any: s.pos.hasSeq}
	s.w.mu.Unlock()
	q.Epoch = cmp.Or(q.Epoch, span.Epoch)
	if q.Epoch > span.Epoch || q.Epoch == span.Epoch && !q.Oldest && (!span.Any || q.From > span.Last) {
		return Excerpt{}, span, ErrTooNew
	}
	p := passage{source: s, q: q, opening: newOpening(s.w.disk.run, s.w.opts.Settings, s.id, s.desc)}
	if err := p.read(); err != nil {
		return Excerpt{}, span, err
	}
	current := q.Epoch == span.Epoch
	if current {
		if span.First = p.first; !p.known {
			span.First = span.Last + 1
		}
	}
	switch {
	case p.gone || !p.known || p.n == 0 && !q.Oldest && q.From < p.first:
		return Excerpt{}, span, ErrGone
	case current && !p.done && p.n == 0 && p.next <= min(q.To, span.Last):
		return Excerpt{}, span, ErrTooNew // the writer has them
	case current && !p.done && p.next <= min(q.To, span.Last):
		p.cut()
	}
	if p.n == 0 {
		p.e.Segment = p.opening.open(q.Epoch, p.q.From)
	}
	return p.e, span, nil
}

// passage collects a range of the batches of one source from segments.
type passage struct {
	source  *Source
	q       Range
	opening opening

	known       bool   // first and next are valid
	first, next uint64 // all that was applied from first up to next was read
	n           int    // records taken
	begin       int    // where they begin in e.Segment
	e           Excerpt
	gone, done  bool
}

// read reads the segments that may have the range, oldest first.
func (p *passage) read() error {
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
		r, skipped := scanWith(p.source.w.opts.Key, data), 0
		for rec := (Record{}); !p.done; {
			if err := r.Next(&rec); err == io.EOF {
				break
			} else if err != nil {
				return err
			}
			if n := r.Damage().Skipped; n > skipped {
				skipped = n
				p.hole()
			}
			if rec.Source == p.source.id && !p.done {
				p.take(&rec)
			}
		}
		if p.done {
			break
		}
	}
	return nil
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
func (s *Source) standingIn(number uint64) (mine bool, at *Record) {
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
		p.known, p.n, p.e = false, 0, Excerpt{}
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
func (p *passage) cut() { p.e.More, p.e.Next, p.done = true, p.next, true }

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
		size := recordSize + len(rec.Payload)
		switch {
		case p.n == 0:
			p.e.Segment = p.opening.open(p.q.Epoch, p.q.From)
			p.begin = len(p.e.Segment)
		case p.n == p.q.Limit || len(p.e.Segment)-p.begin+size > maxExcerpt:
			p.cut()
			return
		}
		p.n++
		next := *rec
		next.Seq = min(rec.Seq, p.q.To)
		p.e.Segment = p.opening.frame.append(p.e.Segment, &next)
	}
	p.next = rec.Seq + 1
}
