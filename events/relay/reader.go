package relay

import (
	"context"
	"errors"
	"fmt"

	"example.com/conductor/events/tape"
)

// reader reads a log from a place on. It belongs to one goroutine.
type reader struct {
	log   *log
	first *part // where to begin, nil for the oldest part
	part  *part // where tail is, nil before the first; guarded by log.mu
	tail  *tape.Scanner
	size  int64  // bytes that tail knows
	skip  uint64 // batches of part below this number are passed over
	lost  loss
	news  chan struct{} // capacity 1
}

// loss says why batches of the log do not follow those that were read.
type loss uint8

const (
	lostNone    loss = iota
	lostBatches      // they left the log before they were read
	lostLife         // the engine's lifetime ended, and the next one has begun
)

// follow returns a reader of the batches that will be appended from now on.
func (l *log) follow() *reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &reader{log: l, part: l.newest, news: make(chan struct{}, 1)}
	if p := l.newest; p != nil {
		r.tail, r.size = tape.EndOf(p.data), p.size
	}
	return r
}

// history is what brings a follower from a number to the present.
type history struct {
	dump  *dump // nil if the log has all
	base  uint64
	whole bool // the dump is all that the engine held after batch base
	*reader
	last uint64 // the newest batch at present, valid if any
	any  bool
}

// since returns the history from a number on. The log keeps it until the reader is closed.
func (l *log) since(from uint64) *history {
	l.treeMu.Lock()
	defer l.treeMu.Unlock()
	h := &history{base: l.base, whole: l.doubts() == "", reader: &reader{log: l}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		return h
	}
	h.any, h.last = true, l.newest.last
	h.first = l.oldest
	for p := l.oldest; p != nil && p.first <= from; p = p.next {
		h.first = p
	}
	if l.inTree && from <= l.base {
		h.dump = l.tree.dump()
	}
	l.readers[h.reader] = struct{}{}
	return h
}

// rejoin goes on with the newest batch of the log.
func (r *reader) rejoin() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.first, r.part, r.tail, r.size, r.skip = nil, r.log.newest, nil, 0, 0
	if r.part != nil {
		r.skip = r.part.last
	}
}

// close lets the log drop what the reader has not read.
func (r *reader) close() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	delete(r.log.readers, r)
	delete(r.log.waiting, r.news)
}

// next reads the next batch. Its payload stays valid. It returns false at the end of the log, and
// once where lost is set: then it goes on with the oldest batch there is.
func (r *reader) next(b *batch) bool {
	for {
		if r.tail != nil {
			for rec := (tape.Record{}); r.tail.Next(&rec); {
				if rec.Kind == tape.Batch && rec.Seq >= r.skip {
					*b = batch{seq: rec.Seq, at: rec.Time, id: r.part.id, payload: rec.Payload}
					return true
				}
			}
		}
		if !r.turn() {
			return false
		}
	}
}

// turn goes to bytes that were not read, and reports whether they follow those that were.
func (r *reader) turn() bool {
	for {
		r.log.mu.Lock()
		p, lost := r.ahead()
		if p == nil {
			r.log.mu.Unlock()
			return false
		}
		grows := p == r.part
		r.part = p
		r.log.mu.Unlock()
		if !grows {
			r.tail, r.size, r.skip = nil, 0, 0
		}
		data, err := r.log.bytes(p)
		if err == nil && r.tail != nil {
			r.tail.Grow(data)
		} else if err == nil {
			r.tail, err = tape.NewScanner(data, nil)
		}
		if err == nil {
			r.size = int64(len(data))
			r.lost = max(r.lost, lost)
			return lost == lostNone
		}
		if !errors.Is(err, errLeft) {
			r.log.report(fmt.Errorf("cannot read a part of the log: %w", err))
		}
		r.tail, r.size, r.lost = nil, p.size, max(r.lost, lost, lostBatches)
	}
}

// ahead returns the part that has the bytes behind those that were read, nil if there are
// none, and the loss between. log.mu is held.
func (r *reader) ahead() (*part, loss) {
	p, oldest := r.part, r.log.oldest
	switch {
	case p == nil && r.first == nil:
		return oldest, lostNone
	case p == nil && !r.first.left:
		return r.first, lostNone
	case p == nil:
		p = r.first
	case !p.left && r.size < p.size:
		return p, lostNone
	case r.size >= p.size && p.next != nil && !p.next.left:
		return p.next, lostNone
	case r.size >= p.size && p.next == nil && !p.left:
		return nil, lostNone
	}
	if p.life != r.log.life {
		return oldest, lostLife
	}
	return oldest, lostBatches
}

// wait waits until there is something to read.
func (r *reader) wait(ctx context.Context) error {
	select {
	case <-r.news:
	default:
	}
	r.log.mu.Lock()
	p, _ := r.ahead()
	if p == nil {
		r.log.waiting[r.news] = true
	}
	r.log.mu.Unlock()
	if p != nil {
		return nil
	}
	select {
	case <-r.news:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
