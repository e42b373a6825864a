package tape

import (
	"time"

	"example.com/conductor/events/payload"
)

// idleEvery is the pause between records of a run of batches without events. A
// publisher may send one a second for months.
const idleEvery = time.Minute

// Recorder records what happens to one registered source. A nil Recorder does
// nothing.
type Recorder struct {
	tape         *Tape
	id           uint32
	key          string
	registration []byte // payload of Registered

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

// Register begins to record a source. key is how people name it, fields are its
// registration. It is nil if t is.
func (t *Tape) Register(key string, fields ...Field) *Recorder {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids++
	s := &Recorder{tape: t, id: t.ids, key: key, pos: position{epoch: 1}}
	s.registration = registration(key, fields)
	s.memory = memory{frame: frame{bare: true}, limit: t.opts.Memory, span: Span{Epoch: 1}, evicts: t.opts.Evict != nil}
	t.enqueue(s, Record{Kind: Registered, Source: s.id, Time: time.Now(), Epoch: 1, Payload: s.registration}, nil)
	t.alive[s] = true
	return s
}

// RecordBatch records a batch that is applied. raw is in block, which the tape retains until
// it is written; without a block raw is never written to again.
func (s *Recorder) RecordBatch(epoch, seq uint64, replayed bool, raw []byte, block *payload.Block) {
	r := Record{Kind: Batch, Epoch: epoch, Seq: seq, Payload: raw}
	if replayed {
		r.Flags = Replayed
	}
	s.recordAny(r, block)
}

// RecordIdle records a batch without events, with those that follow it.
func (s *Recorder) RecordIdle(epoch, seq uint64) {
	s.recordAny(Record{Kind: Idle, Epoch: epoch, Seq: seq}, nil)
}

// RecordUndecodable records a batch that has no effect. raw is never written to again.
func (s *Recorder) RecordUndecodable(epoch, seq uint64, raw []byte) {
	s.recordAny(Record{Kind: Undecodable, Epoch: epoch, Seq: seq, Payload: raw}, nil)
}

// RecordReset records that the blocks of the source are dropped and an epoch begins.
func (s *Recorder) RecordReset(epoch uint64, reason string) {
	s.recordAny(Record{Kind: Reset, Epoch: epoch, Payload: []byte(reason)}, nil)
}

// RecordState records how far the source can be trusted from here on.
func (s *Recorder) RecordState(state, reason string) {
	s.recordAny(Record{Kind: State, Payload: AppendFields(nil, Field{FieldState, state}, Field{FieldReason, reason})}, nil)
}

// RecordOmission records that n records are left out: what was applied is not in the tape.
func (s *Recorder) RecordOmission(n uint64) { s.recordAny(Record{Kind: Lost, Seq: n}, nil) }

// RecordAging records that half of a time to live is over: blocks on the media that have it
// expire, unless they were announced meanwhile.
func (s *Recorder) RecordAging(ttl time.Duration) {
	s.recordAny(Record{Kind: Aged, Seq: uint64(ttl)}, nil)
}

// Unregister ends the source; later calls do nothing.
func (s *Recorder) Unregister() { s.recordAny(Record{Kind: Unregistered}, nil) }

func (s *Recorder) recordAny(r Record, block *payload.Block) {
	if s == nil {
		return
	}
	r.Source, r.Time = s.id, time.Now()
	if r.Kind == Batch || r.Kind == Idle || r.Kind == Reset {
		evicted, tooLarge := s.memory.addRecord(&r)
		for i := range evicted {
			scan := Scanner{data: evicted[i].data, frame: s.memory.frame}
			for rec := (Record{}); scan.Next(&rec); {
				s.tape.opts.Evict(&rec)
			}
		}
		if tooLarge && s.memory.evicts {
			left := r // r itself stays off the heap
			s.tape.opts.Evict(&left)
		}
	}
	if s.tape.opts.Dir == "" && r.Kind != Unregistered {
		return
	}
	s.tape.mu.Lock()
	defer s.tape.mu.Unlock()
	if s.gone {
		return
	}
	switch now := r.Time; {
	case r.Kind != Idle:
		if s.idle.Kind != 0 {
			s.tape.enqueue(s, s.idle, nil)
		}
		s.idleAt = time.Time{}
	case now.Sub(s.idleAt) < idleEvery:
		s.idle = r
		return
	default:
		s.idleAt = now
	}
	s.idle = Record{}
	s.tape.enqueue(s, r, block)
	if r.Kind == Unregistered {
		s.gone = true
		delete(s.tape.alive, s)
	}
}
