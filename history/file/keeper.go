package file

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events/tape"
	"example.com/conductor/history"
)

// Config is what a Keeper is made of.
type Config struct {
	Dir       *Dir
	Conductor *conductor.Conductor
	// Targets are kept with the registrations; nil is none.
	Targets Targets
	// Interval is the pause between snapshots, 0 for none but the last.
	Interval time.Duration
	// Keep is how many snapshots stay.
	Keep int
	Log  zerolog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Kept is something that is kept with the registrations.
type Kept interface {
	// Revision changes when Saved does.
	Revision() uint64
	// Saved returns the fields of each part, which Restore takes.
	Saved() [][]tape.Field
	Restore([]tape.Field) error
}

// Targets are those of discovery that clients have registered.
type Targets interface {
	Kept
	// Withdrawn hears that a client has unregistered a source.
	Withdrawn(key conductor.Key)
}

// Keeper loads the newest snapshot at the start of a server, and writes one at an interval.
// All methods are safe for concurrent use; RestoreSources, Restore and Keep are called once, in
// this order.
type Keeper struct {
	// Registrations have a file of their own.
	Registrations *Registrations

	cfg   Config
	known bool // the registrations were loaded

	mu       sync.Mutex
	status   Status             // guarded by mu
	progress conductor.Progress // of the load under way; guarded by mu
}

// Progress returns how far the load under way has come, the zero value for none.
func (k *Keeper) Progress() conductor.Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.progress
}

// Reasons why something of a snapshot was not loaded, next to those of history.Reasons.
const (
	reasonChanged = "changed" // a source or target: the configuration or a client says otherwise today
	reasonSealed  = "sealed"  // a source or an identity with a salt, without the key
	reasonBudget  = "budget"  // blocks: index.max_bytes or index.max_bytes_total is reached
)

// Status is what a Keeper has done.
type Status struct {
	Loaded  string         // file that the server began with, "" for none
	Blocks  int            // of it
	Seconds float64        // that loading took
	LeftOut map[string]int // files, sources, identities and blocks, by reason
	// Written are the snapshots since the start, Failed those that were not.
	Written, Failed int
	Last            history.Summary // of the newest
	LastTook        time.Duration   // to write it
	Error           string          // why none could be written, "" since one was
	// Unkept is why the registrations cannot be written, nil if they can.
	Unkept error
}

// NewKeeper returns a Keeper.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Targets != nil && cfg.Dir != nil {
		cfg.Dir.Targets = cfg.Targets.Saved
	}
	return &Keeper{cfg: cfg, Registrations: newRegistrations(cfg), status: Status{LeftOut: make(map[string]int)}}
}

// Status returns what was done so far.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.status
	st.Unkept = k.Registrations.Failure()
	st.LeftOut = make(map[string]int, len(k.status.LeftOut))
	for reason, n := range k.status.LeftOut {
		st.LeftOut[reason] = n
	}
	return st
}

func (k *Keeper) note(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

// RestoreSources loads the registrations, so that no answer lacks a source. Restore comes
// later.
func (k *Keeper) RestoreSources() {
	k.known = k.cfg.Dir.LoadSources(func(name string, _ int64, from io.Reader, open history.Opener) error {
		r := k.cfg.Conductor.Recover(0)
		var targets, changes [][]tape.Field
		_, err := history.Read(from, history.Reading{Into: r, Open: open, Target: func(f []tape.Field) { targets = append(targets, f) }, Change: func(f []tape.Field) { changes = append(changes, f) }, Sources: func(all []conductor.SourceMark) {
			k.claim(all, r.Own)
			clear(all) // no blocks come
		}})
		if err != nil {
			k.refuse(name, err)
			return err
		}
		k.follow(targets)
		for _, f := range changes {
			if err := k.Registrations.restoreChange(f); err != nil {
				k.cfg.Log.Warn().Str("instance_id", tape.Value(f, "instance_id")).Err(err).Msg("a change that waited for the store cannot be read")
			}
		}
		return nil
	})
	if k.known { // else Restore brings them
		k.Registrations.open(nil)
	}
}

// follow follows targets again, whose sources are registered.
func (k *Keeper) follow(targets [][]tape.Field) {
	if k.cfg.Targets == nil {
		return
	}
	for _, f := range targets {
		if err := k.cfg.Targets.Restore(f); err != nil {
			k.cfg.Log.Warn().Str("instance_id", tape.Value(f, "instance_id")).Err(err).Msg("an engine of the snapshot is not asked any more where it publishes")
			k.note(func(st *Status) { st.LeftOut[reasonChanged]++ })
		}
	}
}

// refuse notes that a file cannot be used.
func (k *Keeper) refuse(name string, err error) {
	reason := history.Reason(err)
	k.note(func(st *Status) { st.LeftOut[reason]++ })
	k.cfg.Log.Error().Str("file", name).Str("reason", reason).Err(err).Msg("a snapshot cannot be used")
}

// Restore loads the newest snapshot that can be read. The gate of the Conductor is closed. It
// reports whether there was one.
func (k *Keeper) Restore(ctx context.Context) bool {
	log := &k.cfg.Log
	own := (*conductor.Recovery).Own
	if k.known {
		own = (*conductor.Recovery).OwnRegistered
	}
	loaded, err := k.cfg.Dir.Load(func(name string, size int64, from io.Reader, open history.Opener) error {
		if ctx.Err() != nil {
			return nil
		}
		err := k.load(ctx, name, size, from, open, own)
		if err != nil {
			k.refuse(name, err)
		}
		return err
	})
	if err != nil {
		log.Error().Err(err).Msg("the snapshot directory cannot be read")
	}
	if !loaded {
		log.Info().Msg("no snapshot, starting with what peers have and engines replay")
	}
	if ctx.Err() != nil {
		k.Registrations.open(conductor.ErrClosed) // some of them may not be here
	}
	k.Registrations.open(nil)
	return loaded
}

// load loads a snapshot.
func (k *Keeper) load(ctx context.Context, name string, size int64, from io.Reader, open history.Opener, own func(*conductor.Recovery, *conductor.SourceMark) string) error {
	log, start := &k.cfg.Log, k.cfg.Now()
	r := k.cfg.Conductor.Recover(0)
	r.Origin = conductor.FromSnapshot
	log.Info().Str("file", name).Int64("bytes", size).Msg("loading a snapshot")
	logged := start
	var targets [][]tape.Field
	sum, err := history.Read(stopping{ctx, from}, history.Reading{
		Into: r, Open: open,
		Target: func(f []tape.Field) { targets = append(targets, f) },
		Sources: func(all []conductor.SourceMark) {
			k.claim(all, func(m *conductor.SourceMark) string { return own(r, m) })
		},
		Progress: func(sum history.Summary) {
			k.note(func(*Status) {
				k.progress = conductor.Progress{From: conductor.FromSnapshot, Name: name, Blocks: r.Blocks, Bytes: sum.Bytes, TotalBytes: size, Since: start}
			})
			if now := k.cfg.Now(); now.Sub(logged) > progressEvery {
				logged = now
				log.Info().Str("file", name).Int("blocks", sum.Blocks).Int64("bytes", sum.Bytes).Int64("of_bytes", size).Msg("still loading")
			}
		},
	})
	k.note(func(*Status) { k.progress = conductor.Progress{} })
	if err != nil {
		r.Undo()
		return err
	}
	r.Done()
	if !k.known { // else the registrations have said it
		k.follow(targets)
	}
	took := k.cfg.Now().Sub(start)
	k.note(func(st *Status) {
		st.Loaded, st.Blocks, st.Seconds = name, r.Blocks, took.Seconds()
		st.LeftOut[reasonSealed] += sum.LeftOut
		st.LeftOut[reasonBudget] += r.Refused
	})
	log.Info().Str("file", name).Time("taken", sum.Time).Int("blocks", r.Blocks).Int("refused", r.Refused).Int("left_out", sum.LeftOut).Int("sources", sum.Sources).
		Float64("seconds", took.Seconds()).Msg("snapshot loaded, sources go on behind their marks")
	return nil
}

// progressEvery is the pause between lines of the log about a long snapshot.
const progressEvery = 5 * time.Second

// claim leaves out the sources that today's configuration does not have.
func (k *Keeper) claim(all []conductor.SourceMark, own func(*conductor.SourceMark) string) {
	for i := range all {
		m := &all[i]
		if m.Instance == "" {
			continue
		}
		if why := own(m); why != "" {
			k.cfg.Log.Warn().Str("source", m.Key().String()).Str("reason", why).Msg("a source of the snapshot begins without its blocks")
			k.note(func(st *Status) { st.LeftOut[reasonChanged]++ })
			*m = conductor.SourceMark{}
		}
	}
}

// stopping is a reader that ends with a context.
type stopping struct {
	ctx  context.Context
	from io.Reader
}

func (s stopping) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.from.Read(p)
}

// Keep writes snapshots until ctx ends, then a last one.
func (k *Keeper) Keep(ctx context.Context) {
	tick := time.NewTicker(soon)
	defer tick.Stop()
	last := k.cfg.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			k.save()
			return
		}
		if now := k.cfg.Now(); k.cfg.Interval > 0 && (now.Sub(last) >= k.cfg.Interval || now.Before(last)) {
			last = now
			k.save()
		}
	}
}

// save writes a snapshot.
func (k *Keeper) save() {
	start := k.cfg.Now()
	sum, err := k.cfg.Dir.Save(k.cfg.Conductor, start, k.cfg.Keep)
	took := k.cfg.Now().Sub(start)
	if err != nil {
		k.note(func(st *Status) { st.Failed, st.Error = st.Failed+1, err.Error() })
		k.cfg.Log.Error().Err(err).Msg("no snapshot could be written, those before stay")
		return
	}
	k.note(func(st *Status) { st.Written, st.Last, st.LastTook, st.Error = st.Written+1, sum, took, "" })
	k.cfg.Log.Debug().Int("blocks", sum.Blocks).Int64("bytes", sum.Bytes).Int("left_out", sum.LeftOut).Dur("took", took).Msg("snapshot written")
}
