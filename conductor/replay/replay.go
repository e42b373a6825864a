package replay

import (
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
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

// Replay rebuilds the Conductor that wrote a tape. One goroutine uses it.
type Replay struct {
	opts conductor.Options
	c    *conductor.Conductor
	now  atomic.Int64 // ns since 1970 of the last record

	run      uint64
	begun    bool
	first    uint64                          // the run's first segment there is
	sources  map[uint32]*ingest.RecordedFeed // registered, by their number
	numbers  map[registration.Key]uint32
	fresh    *ingest.RecordedFeed // by the registration under way
	standing map[uint32]bool      // seen in the opening under way

	sum Summary
}

// Summary is what was taken so far.
type Summary struct {
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

// New returns a Replay with no sources. Settings that the journal names
// win over those of opts; Now and Tape are ignored.
func New(opts conductor.Options) *Replay {
	p := &Replay{}
	opts.Tape, opts.MaxSources, opts.TTL, opts.Past = nil, 0, 0, true
	opts.Now = p.clock
	if opts.Stream.Decode == nil {
		opts.Stream.Decode = func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) }
	}
	p.opts = opts
	p.begin()
	return p
}

// clock returns the time of the last record.
func (p *Replay) clock() time.Time { return time.Unix(0, p.now.Load()).UTC() }

// begin starts over with nothing.
func (p *Replay) begin() {
	p.c = conductor.New(p.opts)
	p.sources, p.numbers = make(map[uint32]*ingest.RecordedFeed), make(map[registration.Key]uint32)
	p.c.Sources().FeedBy(func(r registration.Registration, _ bool, _ *tape.Recorder, _ func(stream.State, string)) ingest.Feed {
		p.fresh = ingest.NewRecorded(p.clock, p.opts.Stream.StaleAfter)
		if r.IsApproximate() {
			p.fresh.UpdateStatus(func(st *stream.Status) { st.State = stream.Approximate }) // which the tape has no record of
		}
		return p.fresh
	})
}

// Conductor is what was rebuilt so far. It refuses registrations and belongs to
// the caller once no more records are taken.
func (p *Replay) Conductor() *conductor.Conductor { return p.c }

// Summary returns what was taken so far.
func (p *Replay) Summary() Summary { return p.sum }

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
			f.MarkSuspect()
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
		f.UpdateStatus(func(st *stream.Status) {
			st.Dropped[events.BadPayload]++
			st.LastError = fmt.Sprintf("batch %d could not be decoded", rec.Seq)
		})
	case tape.Reset:
		p.sum.Epochs++
		f.DropBlocks(rec.Epoch, string(rec.Payload), rec.Time)
	case tape.State:
		fields, err := rec.Fields()
		if err != nil {
			return err
		}
		f.SetState(stream.State(tape.Value(fields, tape.FieldState)), tape.Value(fields, tape.FieldReason), rec.Time)
	case tape.Aged:
		f.ExpireBlocks(time.Duration(rec.Seq)) // 0 was written before media had their own
	case tape.Lost:
		p.sum.Lost += rec.Seq
		f.NoteLoss(reasonJournalGap)
	case tape.Unregistered:
		p.unregister(rec.Source)
	}
	return nil
}

// settings opens a run.
func (p *Replay) settings(rec *tape.Record) error {
	fields, err := rec.Fields()
	if err == nil {
		err = adopt(&p.opts, fields)
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
		f.UpdateStatus(func(st *stream.Status) { st.Epoch = rec.Epoch })
		if stands && rec.Flags&tape.HasSeq != 0 {
			f.UpdateStatus(func(st *stream.Status) { st.LastSeq, st.HasSeq = rec.Seq, true })
			f.NoteLoss(reasonJournalGap)
			if rec.At.Segment == p.first {
				f.NoteLoss(reasonBeforeJournal)
			}
		}
		return nil
	}
	if !stands {
		return nil
	}
	has := rec.Flags&tape.HasSeq != 0
	f.BeginEpoch(rec.Epoch, reasonJournalGap, rec.Time)
	if seq, had := f.LastSeq(); has != had || has && rec.Seq != seq {
		f.NoteLoss(reasonJournalGap)
		f.UpdateStatus(func(st *stream.Status) { st.LastSeq, st.HasSeq = rec.Seq, true })
	}
	return nil
}

// register starts a source whose feed is this replay.
func (p *Replay) register(rec *tape.Record) (*ingest.RecordedFeed, error) {
	fields, err := rec.Fields()
	if err != nil {
		return nil, err
	}
	reg, static, err := registration.FromFields(fields)
	if err != nil {
		return nil, err
	}
	if old, registered := p.numbers[reg.Key()]; registered {
		p.unregister(old)
	}
	if err := p.c.Sources().RegisterChecked(reg, ingest.RegisterOptions{Static: static}); err != nil {
		return nil, err
	}
	f := p.fresh
	p.sources[rec.Source], p.numbers[reg.Key()] = f, rec.Source
	p.sum.Sources++
	return f, nil
}

func (p *Replay) unregister(id uint32) {
	key := p.sources[id].Key()
	if _, err := p.c.Sources().UnregisterIf(key, nil); err != nil {
		panic("BUG: a replayed source is not registered: " + err.Error())
	}
	delete(p.sources, id)
	delete(p.numbers, key)
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
func (p *Replay) enter(f *ingest.RecordedFeed, rec *tape.Record) {
	if f.BeginEpoch(rec.Epoch, reasonJournalGap, rec.Time) {
		f.NoteLoss(reasonJournalGap)
	}
}

// idle moves past batches without events.
func (p *Replay) idle(f *ingest.RecordedFeed, rec *tape.Record) {
	p.enter(f, rec)
	f.CheckDamage(rec.Seq, reasonJournalGap)
	f.SkipBatch(rec.Seq, rec.Time)
}

// batch applies a batch.
func (p *Replay) batch(f *ingest.RecordedFeed, rec *tape.Record) error {
	batch, err := p.opts.Stream.Decode(rec.Payload)
	if err != nil {
		f.NoteLoss(reasonJournalGap)
		return fmt.Errorf("batch %d of %s was applied and cannot be decoded now: %w", rec.Seq, f.Key(), err)
	}
	p.enter(f, rec)
	f.CheckDamage(rec.Seq, reasonJournalGap)
	if seq, has := f.LastSeq(); has && rec.Seq > seq {
		p.sum.Missing += rec.Seq - seq - 1
	}
	p.sum.Batches++
	f.ApplyStep(stream.Step{
		Kind: stream.ApplyBatch, Batch: batch, Payload: rec.Payload, Seq: rec.Seq, Epoch: rec.Epoch, Replayed: rec.Flags&tape.Replayed != 0,
	}, rec.Time)
	f.UpdateStatus(func(st *stream.Status) {
		for reason, n := range batch.Dropped {
			st.Dropped[reason] += uint64(n)
		}
	})
	return nil
}
