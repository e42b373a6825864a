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
	// idleEvery is the pause between records of a run of batches without events. A
	// publisher may send one a second for months.
	idleEvery = time.Minute
	// Space for entries that the queue keeps when it is empty.
	keptEntries = 4096
)

// Recorder records what happens to one registered source. A nil Recorder does
// nothing.
type Recorder struct {
	w    *Tape
	id   uint32
	key  string
	desc []byte // payload of Registered

	memory memory

	// Guarded by Tape.mu.
	gone bool
	pos  position // with everything that was called
	lost uint64   // records dropped since the last one queued
	// idle is the last of the batches without events that no record tells of, Kind 0 if
	// there is none. idleAt is when the record before was taken, if that is of such.
	idle   Record
	idleAt time.Time

	// Owned by the writer goroutine.
	written   position // with everything that was written or failed to be
	unwritten uint64   // records that the disk refused since the last one it took
	piece     uint64   // disk.piece when a record was encoded last
}

// position is what an opening says of a source.
type position struct {
	epoch  uint64
	seq    uint64
	hasSeq bool
	state  []byte // payload of State, nil before the first
}

// after returns the position behind a record.
func (p position) after(r *Record) position {
	switch r.Kind {
	case Batch, Idle:
		p.epoch, p.seq, p.hasSeq = r.Epoch, r.Seq, true
	case Reset:
		if r.Epoch != p.epoch {
			p.epoch, p.seq, p.hasSeq = r.Epoch, 0, false
		}
	case State:
		p.state = r.Payload
	}
	return p
}

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
}

// room reports whether a payload may be added. Behind an overflow it waits until
// half the queue is free, so that losses come in few long stretches.
func (q *queue) room(n int) bool {
	if q.full && q.bytes > q.max/2 {
		return false
	}
	q.full = q.bytes > 0 && q.bytes+n+entryBytes > q.max
	return !q.full
}

func (q *queue) add(e entry) {
	q.entries = append(q.entries, e)
	q.bytes += e.size()
}

func (e *entry) size() int { return len(e.Payload) + entryBytes*(1+len(e.alive)) }

// Register begins to record a source. key is how people name it, fields are its
// registration. It is nil if w is.
func (w *Tape) Register(key string, fields ...Field) *Recorder {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	s := &Recorder{w: w, id: w.ids, key: key, pos: position{epoch: 1}}
	s.desc = registration(key, fields)
	s.memory = memory{frame: frame{bare: true}, limit: w.opts.Memory, span: Span{Epoch: 1}}
	w.put(s, Record{Kind: Registered, Source: s.id, Time: time.Now(), Epoch: 1, Payload: s.desc}, nil)
	w.alive[s] = true
	return s
}

// RecordBatch records a batch that is applied. raw is in block, which the journal retains until
// it is written; without a block raw is never written to again.
func (s *Recorder) RecordBatch(epoch, seq uint64, replayed bool, raw []byte, block *payload.Block) {
	r := Record{Kind: Batch, Epoch: epoch, Seq: seq, Payload: raw}
	if replayed {
		r.Flags = Replayed
	}
	s.record(r, block)
}

// RecordIdle records a batch without events, with those that follow it.
func (s *Recorder) RecordIdle(epoch, seq uint64) {
	s.record(Record{Kind: Idle, Epoch: epoch, Seq: seq}, nil)
}

// RecordUndecodable records a batch that has no effect. raw is never written to again.
func (s *Recorder) RecordUndecodable(epoch, seq uint64, raw []byte) {
	s.record(Record{Kind: Undecodable, Epoch: epoch, Seq: seq, Payload: raw}, nil)
}

// RecordReset records that the blocks of the source are dropped and an epoch begins.
func (s *Recorder) RecordReset(epoch uint64, reason string) {
	s.record(Record{Kind: Reset, Epoch: epoch, Payload: []byte(reason)}, nil)
}

// RecordState records how far the source can be trusted from here on.
func (s *Recorder) RecordState(state, reason string) {
	s.record(Record{Kind: State, Payload: AppendFields(nil, Field{FieldState, state}, Field{FieldReason, reason})}, nil)
}

// RecordOmission records that n records are left out: what was applied is not in the journal.
func (s *Recorder) RecordOmission(n uint64) { s.record(Record{Kind: Lost, Seq: n}, nil) }

// RecordAging records that half of a time to live is over: blocks on the media that have it
// expire, unless they were announced meanwhile.
func (s *Recorder) RecordAging(ttl time.Duration) {
	s.record(Record{Kind: Aged, Seq: uint64(ttl)}, nil)
}

// Unregister ends the source; later calls do nothing.
func (s *Recorder) Unregister() { s.record(Record{Kind: Unregistered}, nil) }

func (s *Recorder) record(r Record, block *payload.Block) {
	if s == nil {
		return
	}
	r.Source, r.Time = s.id, time.Now()
	if r.Kind == Batch || r.Kind == Idle || r.Kind == Reset {
		s.memory.add(&r)
	}
	if s.w.opts.Dir == "" && r.Kind != Unregistered {
		return
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.gone {
		return
	}
	switch now := r.Time; {
	case r.Kind != Idle:
		if s.idle.Kind != 0 {
			s.w.put(s, s.idle, nil)
		}
		s.idleAt = time.Time{}
	case now.Sub(s.idleAt) < idleEvery:
		s.idle = r
		return
	default:
		s.idleAt = now
	}
	s.idle = Record{}
	s.w.put(s, r, block)
	if r.Kind == Unregistered {
		s.gone = true
		delete(s.w.alive, s)
	}
}

// put queues a record, or counts it as lost. mu is held.
func (w *Tape) put(s *Recorder, r Record, block *payload.Block) {
	if w.closed || w.opts.Dir == "" {
		return
	}
	q := &w.queue
	defer func() { s.pos = s.pos.after(&r) }()
	if !q.room(len(r.Payload)) {
		w.stats.Dropped++
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
		w.confess(r.Time)
	}
	block.Retain()
	q.add(entry{Record: r, block: block, source: s})
	if idle {
		signal(w.wake)
	}
	if q.bytes > q.max/2 {
		signal(w.rush)
	}
}

// confess queues the marks of dropped records. mu is held.
func (w *Tape) confess(now time.Time) {
	q := &w.queue
	if q.blind {
		alive := make([]standing, 0, len(w.alive))
		for s := range w.alive {
			alive = append(alive, standing{s, s.pos})
		}
		slices.SortFunc(alive, func(a, b standing) int { return cmp.Compare(a.source.id, b.source.id) })
		q.add(entry{alive: alive})
	}
	for _, s := range q.lossy {
		if !s.gone {
			q.add(entry{Record: Record{Kind: Lost, Source: s.id, Time: now, Seq: s.lost}, source: s})
		}
		s.lost = 0
	}
	q.lossy, q.blind = nil, false
}

// take returns the queued records and leaves an empty slice in its place; closed
// says that no more will come. The room is given back by release.
func (w *Tape) take(empty []entry) (full []entry, closed bool) {
	if cap(empty) > keptEntries {
		empty = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	full, w.queue.entries = w.queue.entries, empty[:0]
	return full, w.closed
}

// release gives room of the queue back and adds to the counts.
func (w *Tape) release(bytes int, done Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.bytes -= bytes
	w.stats.Bytes += done.Bytes
	w.stats.Dropped += done.Dropped
	w.stats.Errors += done.Errors
}

// MemoryBytes returns the memory of the newest batches and of the records that are not written yet, 0
// of a nil Tape.
func (w *Tape) MemoryBytes() int {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.queue.bytes
	for s := range w.alive {
		n += s.memory.size()
	}
	return n
}

// Stats is what a Tape did so far.
type Stats struct {
	Bytes   uint64 // written
	Dropped uint64 // records not written
	Errors  uint64 // failed attempts to write
}

// Stats returns the counts so far. Those of a nil Tape are zero.
func (w *Tape) Stats() Stats {
	if w == nil {
		return Stats{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}
