package snapshot

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"kvconductor/conductor"
	"kvconductor/events/journal"
)

// soon is how long a change that no client waits for may wait until the disk has it.
const soon = 100 * time.Millisecond

// Registrations keeps the file of the registrations up to date:
//
//	a client registers, unregisters ---Commit---> one write for all who wait: file, fsync, rename, fsync
//	reload, discovery, other replicas --Keep----^
//
// Invariants:
//
//  1. When Commit returns nil, the file on the disk has everything that was registered and unregistered
//     before the call.
//  2. The file of a start is not replaced before its sources are registered: see open.
//  3. A write waits for no snapshot, and no caller for more than two writes.
//
// Concurrency: all methods are safe for concurrent use. One goroutine writes for as long as callers wait.
type Registrations struct {
	cfg    Config
	opened chan struct{} // closed by open
	shared Kept          // see Share; nil for none

	once   sync.Once
	closed error // why nothing may be written; set before opened is closed

	mu      sync.Mutex
	saved   [3]uint64 // revision that the disk has; guarded by mu
	next    *commit   // that waits for the write under way to end, nil for none; guarded by mu
	writing bool      // guarded by mu
	failure error     // of the last write; guarded by mu

	salted int // sources and targets that were left out of the last write; owned by write
}

// commit is a write that callers wait for.
type commit struct {
	done chan struct{} // closed once err is set
	err  error
}

func newRegistrations(cfg Config) *Registrations {
	return &Registrations{cfg: cfg, opened: make(chan struct{})}
}

// open lets writes begin, or ends them with an error. The first call counts.
func (r *Registrations) open(err error) {
	r.once.Do(func() {
		r.closed = err
		close(r.opened)
	})
}

// Share keeps the changes that wait for the store of replicas too: until the store has them, it would
// undo them at the next start. Call it before the Keeper restores.
func (r *Registrations) Share(changes Kept) {
	r.shared, r.cfg.Dir.Changes = changes, changes.Saved
}

// restoreChange lets a change wait for the store again, if there is one.
func (r *Registrations) restoreChange(f []journal.Field) error {
	if r.shared == nil {
		return nil
	}
	return r.shared.Restore(f)
}

// Keeps reports whether the file may have a registration: without a key it has none with a salt.
func (r *Registrations) Keeps(reg *conductor.Registration) bool {
	_, ok := r.cfg.Dir.key.Seal(reg.Fields())
	return ok
}

// Unregistered lets discovery know that the source of a key is not to come back.
func (r *Registrations) Unregistered(key conductor.Key) {
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

// Commit returns once the disk has what was registered before the call. Errors are those of the disk,
// without the names of files, and that of ctx: the write goes on then.
func (r *Registrations) Commit(ctx context.Context) error {
	select {
	case <-r.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.closed != nil {
		return r.closed
	}
	r.mu.Lock()
	if r.saved == r.revision() {
		r.mu.Unlock()
		return nil
	}
	if r.next == nil {
		r.next = &commit{done: make(chan struct{})}
	}
	c := r.next
	if !r.writing {
		r.writing = true
		go r.write()
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write writes for as long as callers wait.
func (r *Registrations) write() {
	for {
		r.mu.Lock()
		c, before := r.next, r.failure
		if r.next = nil; c == nil {
			r.writing = false
			r.mu.Unlock()
			return
		}
		at := r.revision()
		written := at == r.saved // by the write before
		r.mu.Unlock()
		if !written {
			c.err = r.save(before != nil)
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

// save writes the file. failing says that the attempt before has failed.
func (r *Registrations) save(failing bool) error {
	sum, err := r.cfg.Dir.SaveSources(r.cfg.Conductor, r.cfg.Now())
	if err != nil {
		if !failing {
			r.cfg.Log.Error().Err(err).Msg("the registrations cannot be written: calls that register and unregister fail until they are")
		}
		return causeOf(err)
	}
	if sum.LeftOut > r.salted {
		r.cfg.Log.Warn().Int("sources", sum.LeftOut).Msg("sources with a salt are in no snapshot, as there is no snapshot.key_file")
	}
	r.salted = sum.LeftOut
	return nil
}

// causeOf returns what the system says of an error, without the names of files.
func causeOf(err error) error {
	var cause syscall.Errno
	if errors.As(err, &cause) {
		return cause
	}
	return err
}

// revision changes when the registrations do.
func (r *Registrations) revision() (at [3]uint64) {
	if at[0] = r.cfg.Conductor.Revision(); r.cfg.Targets != nil {
		at[1] = r.cfg.Targets.Revision()
	}
	if r.shared != nil {
		at[2] = r.shared.Revision()
	}
	return at
}

// Keep writes what has changed without a client that waits, until ctx ends.
func (r *Registrations) Keep(ctx context.Context) {
	tick := time.NewTicker(soon)
	defer tick.Stop()
	for {
		r.Commit(ctx) // Failure has the error
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
