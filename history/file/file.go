// Package file keeps snapshots in a directory of the server's own, and the registrations next to them.
//
//	NNNNNNNN.snapshot   all blocks and registrations at one moment, each interval   Keeper
//	registrations       the registrations alone, as of the last answered call       Registrations, openLog
//	lock                claims the directory for one process                        Dir
//
// Invariants:
//
//  1. A file has its name only once all of it is on the disk: it is written under another one, synced and renamed.
//     Changes are appended to the registrations, each write with an end of its own; what is behind the last end does not count.
//  2. The registrations are newer than any snapshot, and win over it.
//  3. What the configuration and clients say today wins over both.
//
// Concurrency: a Keeper and Registrations are safe for concurrent use. A Dir is used by one goroutine for snapshots, and
// by one for the registrations.
//
// Cost: a snapshot is written in one pass, at the pace of the disk. A call that registers waits for one sync, or shares it
// with the calls that wait at the same time. It writes what it changes, whatever the number of registrations; the whole file
// is written again once as much was appended as it had.
package file

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
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

// Table is one of the tables whose parts are in the file of the registrations.
type Table interface {
	// Revision changes when Saved does.
	Revision() uint64
	// Saved returns all parts.
	Saved() []kept.Part
	// SavedSince returns the parts that have changed since a revision. It returns false if all have to be asked for.
	SavedSince(revision uint64) ([]kept.Part, bool)
}

// Kept is a table that is kept with the registrations.
type Kept interface {
	Table
	// Restore takes the fields of a part.
	Restore([]tape.Field) error
}

// Targets are those of discovery that clients have registered.
type Targets interface {
	Kept
	// Withdrawn hears that a client has unregistered a source.
	Withdrawn(key registration.Key)
}

// Keeper loads the newest snapshot at the start of a server, and writes one at an interval.
//
// All methods are safe for concurrent use. Call RestoreRegistrations, Restore and Run once, in this order.
type Keeper struct {
	// Registrations have a file of their own.
	Registrations *Registrations

	cfg   Config
	known bool // the registrations were loaded

	mu     sync.Mutex
	status Status // guarded by mu
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
		cfg.Dir.Targets = cfg.Targets
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

// updateStatus lets change change the status.
func (k *Keeper) updateStatus(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

// RestoreRegistrations loads the registrations, so that no answer lacks a source while Restore loads the blocks, which
// comes later.
func (k *Keeper) RestoreRegistrations() {
	file, _, err := k.cfg.Dir.openFile(registrationsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return // the snapshots have them too, and Restore brings them
	}
	var targets, changes [][]tape.Field
	var tail history.Tail
	if err == nil {
		defer file.Close()
		into := k.cfg.Conductor.Sources().Snapshots().Recover(0)
		_, tail, err = history.ReadRegistrations(file, history.Reading{
			Into: into, Open: k.cfg.Dir.key.Open,
			Target: func(f []tape.Field) { targets = append(targets, f) },
			Change: func(f []tape.Field) { changes = append(changes, f) },
			Sources: func(all []image.Source) {
				k.leaveOutUnwanted(all, into.Own)
				clear(all) // no blocks come
			},
		})
	}
	if err != nil {
		k.reportUnusable(registrationsFile, err)
		switch history.Reason(err) {
		case history.ReasonVersion:
			k.setAside()
		case history.ReasonDamaged, history.ReasonTorn, history.ReasonForeign:
			k.keepDamaged(0)
		}
		return
	}
	switch {
	case tail.Damaged:
		k.keepDamaged(tail.Bytes)
	case tail.Bytes > 0:
		k.cfg.Log.Warn().Str("file", registrationsFile).Int64("bytes", tail.Bytes).
			Msg("the last write of the registrations was not finished: no client was told that it counts")
	}
	k.restoreTargets(targets)
	for _, f := range changes {
		if err := k.Registrations.restoreChange(f); err != nil {
			k.cfg.Log.Warn().Str("instance_id", tape.Value(f, "instance_id")).Err(err).
				Msg("a change that waited for the store cannot be read")
		}
	}
	k.known = true
	k.Registrations.allowWrites(nil)
}

// restoreTargets lets discovery follow targets again, whose sources are registered.
func (k *Keeper) restoreTargets(targets [][]tape.Field) {
	if k.cfg.Targets == nil {
		return
	}
	for _, f := range targets {
		if err := k.cfg.Targets.Restore(f); err != nil {
			k.cfg.Log.Warn().Str("instance_id", tape.Value(f, "instance_id")).Err(err).
				Msg("an engine of the snapshot is not asked any more where it publishes")
			k.updateStatus(func(st *Status) { st.LeftOut[reasonChanged]++ })
		}
	}
}

// setAside keeps a file of registrations that a newer program wrote: the first write would take its place.
func (k *Keeper) setAside() {
	if err := k.cfg.Dir.setAside(registrationsFile); err != nil {
		k.cfg.Log.Error().Str("file", registrationsFile).Err(err).Msg("the registrations of a newer program cannot be kept, and are lost")
		return
	}
	k.cfg.Log.Warn().Str("file", registrationsFile).Str("kept_as", registrationsFile+newer).
		Msg("a newer program wrote the registrations: they are kept, and this server does not have them")
}

// keepDamaged keeps a file of registrations of which the last bytes, or all if bytes is 0, cannot be read: the first write
// would take its place. A machine that lost its power may leave such an end of a write that nobody was told of, but so may a
// disk that has lost what clients were told.
func (k *Keeper) keepDamaged(bytes int64) {
	k.updateStatus(func(st *Status) { st.LeftOut[history.ReasonDamaged] += int(min(bytes, 1)) })
	line := k.cfg.Log.Error().Str("file", registrationsFile).Int64("bytes", bytes)
	if err := k.cfg.Dir.copyAside(registrationsFile, registrationsFile+damaged); err != nil {
		line.Err(err).Msg("the registrations are damaged, and cannot be kept: what clients were told of may be lost")
		return
	}
	line.Str("kept_as", registrationsFile+damaged).
		Msg("the registrations are damaged, and are kept: this server may lack what clients were told of since, until they register again")
}

// reportUnusable logs and counts a file that cannot be used.
func (k *Keeper) reportUnusable(name string, err error) {
	reason := history.Reason(err)
	k.updateStatus(func(st *Status) { st.LeftOut[reason]++ })
	k.cfg.Log.Error().Str("file", name).Str("reason", reason).Err(err).Msg("a snapshot cannot be used")
}

// Restore implements history.Place: it loads the newest snapshot that can be read. From then on clients may wait for
// the registrations.
func (k *Keeper) Restore(ctx context.Context, loader *history.Loader) {
	names, err := k.cfg.Dir.snapshots()
	if err != nil {
		k.cfg.Log.Error().Err(err).Msg("the snapshot directory cannot be read")
	}
	loaded := false
	for _, name := range names {
		err := k.restoreFile(ctx, loader, name)
		if loaded = err == nil; loaded || ctx.Err() != nil {
			break
		}
		k.reportUnusable(name, err)
	}
	if ctx.Err() != nil {
		k.Registrations.allowWrites(ingest.ErrClosed) // some of them may not be here
		return
	}
	if !loaded {
		k.cfg.Log.Info().Msg("no snapshot, starting with what peers have and engines replay")
	}
	k.Registrations.allowWrites(nil)
}

// restoreFile loads one snapshot.
func (k *Keeper) restoreFile(ctx context.Context, loader *history.Loader, name string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	file, size, err := k.cfg.Dir.openFile(name)
	if err != nil {
		return err
	}
	defer file.Close()
	k.cfg.Log.Info().Str("file", name).Int64("bytes", size).Msg("loading a snapshot")
	var (
		targets [][]tape.Field
		sum     history.Summary
		refused int
	)
	snapshot := history.Snapshot{
		Origin: ingest.FromSnapshot, Name: name, Bytes: size, Slow: "still loading", Field: "file",
	}
	progress, err := loader.Load(snapshot, func(l *history.Loading) (err error) {
		owned := l.Into.Own
		if k.known {
			owned = l.Into.OwnRegistered
		}
		sum, err = history.Read(l.Reader(ctx, file, nil), history.Reading{
			Into: l.Into, Open: k.cfg.Dir.key.Open,
			Target:  func(f []tape.Field) { targets = append(targets, f) },
			Sources: func(all []image.Source) { k.leaveOutUnwanted(all, owned) },
		})
		refused = l.Into.Refused
		return err
	})
	if err != nil {
		return err
	}
	if !k.known { // else the registrations have said it
		k.restoreTargets(targets)
	}
	seconds := time.Since(progress.Since).Seconds()
	k.updateStatus(func(st *Status) {
		st.Loaded, st.Blocks, st.Seconds = name, progress.Blocks, seconds
		st.LeftOut[reasonSealed] += sum.LeftOut
		st.LeftOut[reasonBudget] += refused
	})
	k.cfg.Log.Info().Str("file", name).Time("taken", sum.Time).Int("blocks", progress.Blocks).Int("refused", refused).
		Int("left_out", sum.LeftOut).Int("sources", sum.Sources).Float64("seconds", seconds).
		Msg("snapshot loaded, sources go on behind their marks")
	return nil
}

// leaveOutUnwanted leaves out the sources that today's configuration does not have. owned returns why, "" if it does.
func (k *Keeper) leaveOutUnwanted(all []image.Source, owned func(*image.Source) string) {
	for i := range all {
		m := &all[i]
		if m.Instance == "" {
			continue
		}
		if why := owned(m); why != "" {
			k.cfg.Log.Warn().Str("source", m.Key().String()).Str("reason", why).
				Msg("a source of the snapshot begins without its blocks")
			k.updateStatus(func(st *Status) { st.LeftOut[reasonChanged]++ })
			*m = image.Source{}
		}
	}
}

// Run writes a snapshot each interval until ctx ends, then a last one.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(soon)
	defer tick.Stop()
	last := k.cfg.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			k.writeSnapshot()
			return
		}
		if now := k.cfg.Now(); k.cfg.Interval > 0 && (now.Sub(last) >= k.cfg.Interval || now.Before(last)) {
			last = now
			k.writeSnapshot()
		}
	}
}

// writeSnapshot writes one snapshot. If the disk does not take it, those before stay.
func (k *Keeper) writeSnapshot() {
	start := k.cfg.Now()
	sum, err := k.cfg.Dir.SaveSnapshot(k.cfg.Conductor, start, k.cfg.Keep)
	took := k.cfg.Now().Sub(start)
	if err != nil {
		k.updateStatus(func(st *Status) { st.Failed, st.Error = st.Failed+1, err.Error() })
		k.cfg.Log.Error().Err(err).Msg("no snapshot could be written, those before stay")
		return
	}
	k.updateStatus(func(st *Status) { st.Written, st.Last, st.LastTook, st.Error = st.Written+1, sum, took, "" })
	k.cfg.Log.Debug().Int("blocks", sum.Blocks).Int64("bytes", sum.Bytes).Int("left_out", sum.LeftOut).Dur("took",
		took).Msg("snapshot written")
}
