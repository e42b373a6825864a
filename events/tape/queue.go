package tape

import (
	"cmp"
	"slices"
	"time"

	"example.com/conductor/events/payload"
)

const (
	// A stall of the disk of half a second at 60 MB/s.
	queueBytes = 32 << 20
	// What a record takes in the queue next to its payload, about.
	entryBytes = 160
	// Space for entries that the queue keeps when it is empty.
	keptEntries = 4096
)

// entry is a record on its way to the writer.
type entry struct {
	Record
	block  *payload.Block // of Payload; the entry has a reference
	source *Recorder
	// alive, if set, is everything registered here, by id: records that say so
	// were lost. The entry is nothing else then.
	alive []standing
}

// standing is a source in an opening.
type standing struct {
	source *Recorder
	pos    position
}

// queue is what waits for the writer.
type queue struct {
	entries []entry
	bytes   int
	max     int
	full    bool // until half of it is free
	// lossy are the sources with records dropped, blind says that one of them was
	// no batch.
	lossy []*Recorder
	blind bool
	// written are closed once the writer is done with the entries.
	written []chan struct{}
}

// hasRoom reports whether a payload may be added. Behind an overflow it waits until
// half the queue is free, so that losses come in few long stretches.
func (q *queue) hasRoom(n int) bool {
	if q.full && q.bytes > q.max/2 {
		return false
	}
	q.full = q.bytes > 0 && q.bytes+n+entryBytes > q.max
	return !q.full
}

func (q *queue) addEntry(e entry) {
	q.entries = append(q.entries, e)
	q.bytes += e.size()
}

func (e *entry) size() int { return len(e.Payload) + entryBytes*(1+len(e.alive)) }

// enqueue queues a record, or counts it as lost. mu is held.
func (t *Tape) enqueue(s *Recorder, r Record, block *payload.Block) {
	if t.closed || t.opts.Dir == "" {
		return
	}
	q := &t.queue
	defer func() { s.pos = s.pos.after(&r) }()
	if !q.hasRoom(len(r.Payload)) {
		t.stats.Dropped++
		if r.Kind != Registered { // the opening will say it
			if s.lost++; s.lost == 1 {
				q.lossy = append(q.lossy, s)
			}
		}
		q.blind = q.blind || r.Kind != Batch && r.Kind != Undecodable
		return
	}
	idle := len(q.entries) == 0
	if q.blind || len(q.lossy) > 0 {
		t.markLosses(r.Time)
	}
	block.Retain()
	q.addEntry(entry{Record: r, block: block, source: s})
	if idle {
		wake(t.wake)
	}
	if q.bytes > q.max/2 {
		wake(t.rush)
	}
}

// markLosses queues the marks of dropped records. mu is held.
func (t *Tape) markLosses(now time.Time) {
	q := &t.queue
	if q.blind {
		alive := make([]standing, 0, len(t.alive))
		for s := range t.alive {
			alive = append(alive, standing{s, s.pos})
		}
		slices.SortFunc(alive, func(a, b standing) int { return cmp.Compare(a.source.id, b.source.id) })
		q.addEntry(entry{alive: alive})
	}
	for _, s := range q.lossy {
		if !s.gone {
			q.addEntry(entry{Record: Record{Kind: Lost, Source: s.id, Time: now, Seq: s.lost}, source: s})
		}
		s.lost = 0
	}
	q.lossy, q.blind = nil, false
}

// Written returns a channel that is closed when nothing that was recorded before the call is on its way to the disk any
// more: it is there, or it is lost.
func (t *Tape) Written() <-chan struct{} {
	done := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.opts.Dir == "" {
		close(done)
		return done
	}
	t.queue.written = append(t.queue.written, done)
	wake(t.wake)
	wake(t.rush)
	return done
}

// takeEntries returns the queued records and leaves an empty slice in its place; written are to be closed behind them, and
// closed says that no more will come. The room is given back by releaseRoom.
func (t *Tape) takeEntries(empty []entry) (full []entry, written []chan struct{}, closed bool) {
	if cap(empty) > keptEntries {
		empty = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	full, t.queue.entries = t.queue.entries, empty[:0]
	written, t.queue.written = t.queue.written, nil
	return full, written, t.closed
}

// releaseRoom gives room of the queue back and adds to the counts.
func (t *Tape) releaseRoom(bytes int, done Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue.bytes -= bytes
	t.stats.Bytes += done.Bytes
	t.stats.Dropped += done.Dropped
	t.stats.Errors += done.Errors
	t.stats.OnDisk = done.OnDisk
}
