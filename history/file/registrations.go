package file

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
	"example.com/conductor/history"
)

// soon is the longest time until a change that no client waits for is on the disk.
const soon = 100 * time.Millisecond

// lastly is how long the end of a server waits for the last write. All of its end takes ten seconds at most.
const lastly = time.Second

// Registrations keeps the file of the registrations up to date:
//
//	a client registers, unregisters ---Commit---> one write for all who wait: their changes are appended, fsync
//	reload, discovery, other replicas --Run-----^
//
// The first write, one after an error, and one after many changes write the whole file again: file, fsync, rename, fsync. So does
// the last one, in the form that older programs read.
//
// Invariants:
//
//  1. When Commit returns nil, the file on the disk has everything that was registered and unregistered
//     before the call.
//  2. Until the sources in the file that the server found at its start are registered again, nothing
//     replaces that file: see allowWrites.
//  3. A write does not wait for a snapshot. A caller waits for at most two writes: the one under way,
//     which may lack its change, and the next one.
//
// Concurrency: all methods are safe for concurrent use. The first caller that waits starts a goroutine, which
// writes until no caller waits.
type Registrations struct {
	cfg    Config
	opened chan struct{} // closed by allowWrites
	shared Kept          // see Share; nil for none

	once   sync.Once
	closed error // why nothing may be written; set before opened is closed

	mu      sync.Mutex
	saved   [3]uint64 // revisions of tables that the disk has; guarded by mu
	next    *commit   // the write that comes after the one under way, nil if no caller waits for it; guarded by mu
	writing bool      // guarded by mu
	failure error     // of the last write; guarded by mu

	// What follows is owned by writePending.
	log    *openLog // nil: the next write writes the whole file again
	salted int      // the most sources and targets that the file has lacked, as there is no key: so many are logged
}

// commit is a write that callers wait for.
type commit struct {
	last bool          // the file is closed
	done chan struct{} // closed once err is set
	err  error
}

// appendable is how many bytes are appended to a file at least before it is written again.
var appendable int64 = 1 << 20

func newRegistrations(cfg Config) *Registrations {
	return &Registrations{cfg: cfg, opened: make(chan struct{})}
}

// allowWrites lets writes begin if err is nil. Otherwise every Commit fails with err. Only the first call counts.
func (r *Registrations) allowWrites(err error) {
	r.once.Do(func() {
		r.closed = err
		close(r.opened)
	})
}

// Share also keeps the changes that wait for the store of replicas. Without them, a server that starts before
// the store has a change would believe the store and undo the change. Call Share before the Keeper restores.
func (r *Registrations) Share(changes Kept) {
	r.shared = changes
}

// restoreChange lets a change from the file wait for the store again. Without a store it does nothing.
func (r *Registrations) restoreChange(f []tape.Field) error {
	if r.shared == nil {
		return nil
	}
	return r.shared.Restore(f)
}

// Keeps reports whether reg is written to the file. A registration with a salt is written only under a key.
func (r *Registrations) Keeps(reg *registration.Registration) bool {
	_, ok := r.cfg.Dir.key.Seal(reg.Fields())
	return ok
}

// Unregistered tells discovery that a client has unregistered key, so that it does not register the source again.
func (r *Registrations) Unregistered(key registration.Key) {
	if r.cfg.Targets != nil {
		r.cfg.Targets.Withdrawn(key)
	}
}

// Failure returns why the last write failed, nil if it did not.
func (r *Registrations) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// Commit returns nil once everything that was registered and unregistered before the call is on the disk. It
// returns the error of the disk, without names of files, or that of ctx; if ctx ends, the write still goes on.
func (r *Registrations) Commit(ctx context.Context) error { return r.commit(ctx, false) }

// commit is Commit. If it is the last one, it also closes the file that is appended to.
func (r *Registrations) commit(ctx context.Context, last bool) error {
	select {
	case <-r.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.closed != nil {
		return r.closed
	}
	r.mu.Lock()
	if r.saved == r.revision() && !last {
		r.mu.Unlock()
		return nil
	}
	if r.next == nil {
		r.next = &commit{done: make(chan struct{})}
	}
	c := r.next
	c.last = c.last || last
	if !r.writing {
		r.writing = true
		go r.writePending()
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// writePending writes the file until no caller waits.
func (r *Registrations) writePending() {
	for {
		r.mu.Lock()
		c, before := r.next, r.failure
		if r.next = nil; c == nil {
			r.writing = false
			r.mu.Unlock()
			return
		}
		at, from := r.revision(), r.saved
		r.mu.Unlock()
		if at != from || c.last && r.log != nil { // else the previous write already had these changes
			c.err = r.write(from, c.last, before != nil)
			r.mu.Lock()
			if r.failure = c.err; c.err == nil {
				r.saved = at
			}
			r.mu.Unlock()
		}
		close(c.done)
		if before != nil && c.err == nil {
			r.cfg.Log.Info().Msg("the registrations are written again")
			r.cfg.Conductor.RegistrationsKept()
		}
	}
}

// write writes what has changed since the revisions of the last write, or the whole file. failing says that the previous
// attempt failed, so that a disk that stays full is logged once.
func (r *Registrations) write(from [3]uint64, last, failing bool) error {
	sum, err := r.appendChanges(from, last)
	if err != nil {
		r.closeLog()
		if !failing {
			r.cfg.Log.Error().Err(err).Msg("the registrations cannot be written: calls that register and unregister fail until they are")
		}
		return causeOf(err)
	}
	if sum.LeftOut > r.salted {
		r.cfg.Log.Warn().Int("sources", sum.LeftOut).Msg("sources with a salt are in no snapshot, as there is no snapshot.key_file")
		r.salted = sum.LeftOut
	}
	return nil
}

// appendChanges appends what has changed, or writes the whole file again.
func (r *Registrations) appendChanges(from [3]uint64, last bool) (sum history.Summary, err error) {
	if r.log != nil && !last && r.log.appended <= max(r.log.whole, appendable) && r.holdsLog() {
		if changed, ok := r.read(func(i int, t Table) ([]kept.Part, bool) { return t.SavedSince(from[i]) }); ok {
			if sum, err = r.log.appendChanges(changed); err != nil || r.holdsLog() {
				return sum, err
			}
		}
	}
	r.closeLog()
	all, _ := r.read(func(_ int, t Table) ([]kept.Part, bool) { return t.Saved(), true })
	if last {
		return r.cfg.Dir.SaveRegistrations(all, r.cfg.Now())
	}
	r.log, sum, err = r.cfg.Dir.beginLog(all, r.cfg.Now())
	if err != nil {
		r.log = nil
	}
	return sum, err
}

// holdsLog reports whether the file that is appended to is still there as it was written, and logs if it is not.
func (r *Registrations) holdsLog() bool {
	if r.cfg.Dir.holds(r.log) {
		return true
	}
	r.cfg.Log.Warn().Str("file", registrationsFile).
		Msg("somebody has removed, replaced or changed the file of the registrations: all of it is written again")
	return false
}

// closeLog closes the file that is appended to, if there is one. All of it is on the disk already, or does not count.
func (r *Registrations) closeLog() {
	if r.log != nil {
		_ = r.log.file.Close()
		r.log = nil
	}
}

// causeOf returns the system's error number of err, if it has one: clients may not see names of files.
func causeOf(err error) error {
	var cause syscall.Errno
	if errors.As(err, &cause) {
		return cause
	}
	return err
}

// tables returns the tables whose parts are in the file; nil is one that this server does not have.
func (r *Registrations) tables() (all [3]Table) {
	if all[0] = r.cfg.Conductor.Sources().Snapshots().KeptSources(); r.cfg.Targets != nil {
		all[1] = r.cfg.Targets
	}
	if r.shared != nil {
		all[2] = r.shared
	}
	return all
}

// revision returns numbers that change whenever the registrations do.
func (r *Registrations) revision() (at [3]uint64) {
	for i, t := range r.tables() {
		if t != nil {
			at[i] = t.Revision()
		}
	}
	return at
}

// read reads parts of all tables. It returns false if one does not know which of its parts are meant.
func (r *Registrations) read(partsOf func(i int, t Table) ([]kept.Part, bool)) (all history.Registrations, ok bool) {
	all.HashSeed = r.cfg.Conductor.Sources().Snapshots().KeptSources().Seed()
	parts := [...]*[]kept.Part{&all.Sources, &all.Targets, &all.Changes}
	for i, t := range r.tables() {
		if t == nil {
			continue
		}
		if *parts[i], ok = partsOf(i, t); !ok {
			return all, false
		}
	}
	return all, true
}

// Run writes the changes that no client waits for, such as those of reloads and discovery, until ctx ends,
// and then the last of them. It waits at most lastly for that, because a disk may hang.
func (r *Registrations) Run(ctx context.Context) {
	tick := time.NewTicker(soon)
	defer tick.Stop()
	for {
		r.Commit(ctx) // Failure has the error
		select {
		case <-tick.C:
		case <-ctx.Done():
			select {
			case <-r.opened:
				last, stop := context.WithTimeout(context.WithoutCancel(ctx), lastly)
				_ = r.commit(last, true) // Failure has the error
				stop()
			default: // nothing may be written before the start has ended
			}
			return
		}
	}
}
