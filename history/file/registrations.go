package file

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
)

// soon is the longest time until a change that no client waits for is on the disk.
const soon = 100 * time.Millisecond

// lastly is how long the end of a server waits for the last write. All of its end takes ten seconds at most.
const lastly = time.Second

// Registrations keeps the file of the registrations up to date:
//
//	a client registers, unregisters ---Commit---> one write for all who wait: file, fsync, rename, fsync
//	reload, discovery, other replicas --Run-----^
//
// A change is on the disk once the file and its name in the directory are synced.
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
	saved   [3]uint64 // revision that the disk has; guarded by mu
	next    *commit   // the write that comes after the one under way, nil if no caller waits for it; guarded by mu
	writing bool      // guarded by mu
	failure error     // of the last write; guarded by mu

	salted int // sources and targets that were left out of the last write; owned by writePending
}

// commit is a write that callers wait for.
type commit struct {
	done chan struct{} // closed once err is set
	err  error
}

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
	r.shared, r.cfg.Dir.Changes = changes, changes.Saved
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
		at := r.revision()
		written := at == r.saved // the previous write already had these changes
		r.mu.Unlock()
		if !written {
			c.err = r.writeFile(before != nil)
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

// writeFile writes the file. failing says that the previous attempt failed, so that a disk that stays full is logged once.
func (r *Registrations) writeFile(failing bool) error {
	sum, err := r.cfg.Dir.SaveRegistrations(r.cfg.Conductor, r.cfg.Now())
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

// causeOf returns the system's error number of err, if it has one: clients may not see names of files.
func causeOf(err error) error {
	var cause syscall.Errno
	if errors.As(err, &cause) {
		return cause
	}
	return err
}

// revision returns numbers that change whenever the registrations do.
func (r *Registrations) revision() (at [3]uint64) {
	if at[0] = r.cfg.Conductor.Catalog().Revision(); r.cfg.Targets != nil {
		at[1] = r.cfg.Targets.Revision()
	}
	if r.shared != nil {
		at[2] = r.shared.Revision()
	}
	return at
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
				r.Commit(last)
				stop()
			default: // nothing may be written before the start has ended
			}
			return
		}
	}
}
