package conductor

import (
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
)

// Reasons why a source of a replayed journal is partial, whatever it was.
const (
	// Its epoch began before the journal does.
	reasonBeforeJournal = "before_journal"
	// Records of it are missing.
	reasonJournalGap = "journal_gap"
)

// Replay rebuilds, record by record, the Conductor that wrote a journal. Sources
// apply recorded events as they apply live ones; a feed stands where their
// stream was.
//
//	Take --Record--> feed.hand --Step--> source.run --> ingest
//	                     ^                    |
//	                     +---- applied -------+
//
// One step is under way at a time, in the order of the journal, so the outcome
// is the same every time. A Replay is used by one goroutine; its Conductor
// answers any number of them meanwhile.
type Replay struct {
	opts Options
	c    *Conductor
	now  atomic.Int64 // ns since 1970 of the last record

	run      uint64
	begun    bool
	first    uint64               // the run's first segment there is
	sources  map[uint32]*recorded // registered, by their number
	standing map[uint32]bool      // seen in the opening under way

	sum ReplaySummary
}

// ReplaySummary is what was taken so far.
type ReplaySummary struct {
	Records int
	Runs    int // lives of the server
	Sources int // registrations
	Batches int
	Epochs  int // begun by a reset
	// Undecodable batches had no effect, then or now.
	Undecodable int
	// Missing are batches between two of one epoch that were never applied.
	Missing uint64
	// Lost are records that were dropped instead of written, as far as it is
	// known; Stray ones are of sources whose registration cannot be read.
	Lost        uint64
	Stray       int
	First, Last time.Time
}

// NewReplay returns a Replay with no sources. Settings that the journal names
// win over those of opts; Now and Tape are ignored.
func NewReplay(opts Options) *Replay {
	p := &Replay{}
	opts.Tape, opts.MaxSources, opts.TTL, opts.past = nil, 0, 0, true
	opts.Now = func() time.Time { return time.Unix(0, p.now.Load()).UTC() }
	if opts.Stream.Decode == nil {
		opts.Stream.Decode = func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) }
	}
	p.opts = opts
	p.begin()
	return p
}

// begin starts over with nothing.
func (p *Replay) begin() {
	p.c = New(p.opts)
	p.sources = make(map[uint32]*recorded)
	p.c.sources.open = func(r registration.Registration, _ bool, _ *tape.Recorder, _ func(stream.State, string)) feed {
		f := newRecorded(p.c.now, p.opts.Stream.StaleAfter)
		if r.IsApproximate() {
			f.st.State = stream.Approximate // which the journal has no record of
		}
		return f
	}
}

// Conductor is what was rebuilt so far. It refuses registrations and belongs to
// the caller once no more records are taken.
func (p *Replay) Conductor() *Conductor { return p.c }

// Summary returns what was taken so far.
func (p *Replay) Summary() ReplaySummary { return p.sum }

// Take applies the next record. An error says that the record makes no sense to
// this program; it may be passed over.
func (p *Replay) Take(rec *tape.Record) error {
	p.sum.Records++
	if p.sum.First.IsZero() {
		p.sum.First = rec.Time
	}
	p.sum.Last = rec.Time
	p.now.Store(rec.Time.UnixNano())
	if !p.begun || rec.Run != p.run {
		if p.begun {
			p.c.Close() // the server ended
			p.begin()
		}
		p.run, p.begun, p.first, p.standing = rec.Run, true, rec.At.Segment, nil
		p.sum.Runs++
	}
	if rec.AfterDamage {
		for _, f := range p.sources {
			f.suspect = true
		}
	}
	switch rec.Kind {
	case tape.Settings:
		p.standing = make(map[uint32]bool)
		if len(p.sources) > 0 {
			return nil // of the same run, so the same
		}
		return p.settings(rec)
	case tape.Registered:
		return p.registered(rec)
	case tape.Begin:
		p.opened(rec)
		return nil
	}
	f := p.sources[rec.Source]
	if f == nil {
		p.sum.Stray++
		return nil
	}
	switch rec.Kind {
	case tape.Batch:
		return p.batch(f, rec)
	case tape.Idle:
		p.idle(f, rec)
	case tape.Undecodable:
		p.sum.Undecodable++
		f.change(func(st *stream.Status) {
			st.Dropped[events.BadPayload]++
			st.LastError = fmt.Sprintf("batch %d could not be decoded", rec.Seq)
		})
	case tape.Reset:
		p.sum.Epochs++
		f.suspect = false
		f.hand(stream.Step{Kind: stream.DropBlocks, Epoch: rec.Epoch, Reason: string(rec.Payload)}, rec.Time)
	case tape.State:
		fields, err := rec.Fields()
		if err != nil {
			return err
		}
		f.change(func(st *stream.Status) {
			st.State, st.Reason = stream.State(tape.Value(fields, tape.FieldState)), tape.Value(fields, tape.FieldReason)
			st.Connected = st.State != stream.Connecting && st.State != stream.Paused && st.State != stream.Failed
			f.since = rec.Time
		})
	case tape.Aged:
		ttl := time.Duration(rec.Seq)
		if ttl == 0 { // written before media had their own
			ttl = f.source.reg.TTL
		}
		f.source.guard(func() { f.source.rotateGenerations(ttl) })
	case tape.Lost:
		p.sum.Lost += rec.Seq
		f.incomplete(reasonJournalGap)
	case tape.Unregistered:
		p.unregister(rec.Source)
	}
	return nil
}

// settings opens a run.
func (p *Replay) settings(rec *tape.Record) error {
	fields, err := rec.Fields()
	if err == nil {
		err = p.opts.adopt(fields)
	}
	p.c.Close()
	p.begin()
	return err
}

// registered takes a registration, or compares one that stands with the
// known one.
func (p *Replay) registered(rec *tape.Record) error {
	stands := rec.Flags&tape.Standing != 0
	if stands && p.standing != nil {
		p.standing[rec.Source] = true
	}
	f := p.sources[rec.Source]
	if f == nil {
		var err error
		if f, err = p.register(rec); err != nil {
			return err
		}
		if f.st.Epoch = rec.Epoch; stands && rec.Flags&tape.HasSeq != 0 {
			f.change(func(st *stream.Status) { st.LastSeq, st.HasSeq = rec.Seq, true })
			f.incomplete(reasonJournalGap)
			if rec.At.Segment == p.first {
				f.incomplete(reasonBeforeJournal)
			}
		}
		return nil
	}
	if !stands {
		return nil
	}
	has := rec.Flags&tape.HasSeq != 0
	if rec.Epoch != f.st.Epoch {
		f.hand(stream.Step{Kind: stream.DropBlocks, Epoch: rec.Epoch, Reason: reasonJournalGap}, rec.Time)
	}
	if has != f.st.HasSeq || has && rec.Seq != f.st.LastSeq {
		f.incomplete(reasonJournalGap)
		f.change(func(st *stream.Status) { st.LastSeq, st.HasSeq = rec.Seq, true })
	}
	return nil
}

// register starts a source whose feed is this replay.
func (p *Replay) register(rec *tape.Record) (*recorded, error) {
	fields, err := rec.Fields()
	if err != nil {
		return nil, err
	}
	reg, static, err := registration.FromFields(fields)
	if err != nil {
		return nil, err
	}
	if old := p.c.sources.source(reg.Key()); old != nil {
		p.unregister(old.stream.(*recorded).id)
	}
	if err := p.c.sources.register(reg, RegisterOptions{Static: static}); err != nil {
		return nil, err
	}
	s := p.c.sources.source(reg.Key())
	f := s.stream.(*recorded)
	f.source, f.id = s, rec.Source
	p.sources[rec.Source] = f
	p.sum.Sources++
	return f, nil
}

func (p *Replay) unregister(id uint32) {
	if _, err := p.c.sources.unregisterIf(p.sources[id].source.reg.Key(), nil); err != nil {
		panic("BUG: a replayed source is not registered: " + err.Error())
	}
	delete(p.sources, id)
}

// opened ends an opening: a source that is not in it is gone, if it was read whole.
func (p *Replay) opened(rec *tape.Record) {
	if p.standing != nil && uint64(len(p.standing)) == rec.Seq {
		for id := range maps.Clone(p.sources) {
			if !p.standing[id] {
				p.unregister(id)
			}
		}
	}
	p.standing = nil
}

// enter begins the epoch of a record whose Reset is missing.
func (p *Replay) enter(f *recorded, rec *tape.Record) {
	if rec.Epoch != f.st.Epoch {
		f.hand(stream.Step{Kind: stream.DropBlocks, Epoch: rec.Epoch, Reason: reasonJournalGap}, rec.Time)
		f.incomplete(reasonJournalGap)
	}
}

// follow compares the number of a record with the one before, if there is damage between them.
// The damage may hold the numbers that are left out.
func (p *Replay) follow(f *recorded, rec *tape.Record) {
	if f.suspect && (!f.st.HasSeq || rec.Seq > f.st.LastSeq+1) {
		f.incomplete(reasonJournalGap)
	}
	f.suspect = false
}

// idle moves past batches without events.
func (p *Replay) idle(f *recorded, rec *tape.Record) {
	p.enter(f, rec)
	p.follow(f, rec)
	f.source.guard(func() { f.source.mark.Seq = rec.Seq })
	f.change(func(st *stream.Status) { st.LastSeq, st.HasSeq, st.LastBatchAt = rec.Seq, true, rec.Time })
}

// batch applies a batch.
func (p *Replay) batch(f *recorded, rec *tape.Record) error {
	batch, err := p.opts.Stream.Decode(rec.Payload)
	if err != nil {
		f.incomplete(reasonJournalGap)
		return fmt.Errorf("batch %d of %s was applied and cannot be decoded now: %w", rec.Seq, f.source.reg.Key(), err)
	}
	p.enter(f, rec)
	p.follow(f, rec)
	if f.st.HasSeq && rec.Seq > f.st.LastSeq {
		p.sum.Missing += rec.Seq - f.st.LastSeq - 1
	}
	p.sum.Batches++
	f.hand(stream.Step{
		Kind: stream.ApplyBatch, Batch: batch, Payload: rec.Payload, Seq: rec.Seq, Epoch: rec.Epoch, Replayed: rec.Flags&tape.Replayed != 0,
	}, rec.Time)
	f.change(func(st *stream.Status) {
		for reason, n := range batch.Dropped {
			st.Dropped[reason] += uint64(n)
		}
	})
	return nil
}
