// Package discovery finds out where engines publish, by asking their HTTP servers, and keeps
// the registrations of their sources up to date.
//
//	Target: URL --resolve--> addresses --ask--> ranks, model, block size --> Registry
//	          ^                                                                |
//	          +--------- every interval: health of the sources <---------------+
//
// A name that has several addresses is a fleet: each address is an instance of its own,
// NAME@ADDRESS. An engine is asked again when one of its sources is dead for a while, and when
// its publisher was restarted: the ports that the system picks are others then. It is also asked
// now and then while all is well, because it may run with more or fewer ranks by then: refresh.go.
//
// Concurrency: one goroutine per target works at a time, at most AskedAtOnce in all, and refreshers
// besides them. They take turns, so a name with many addresses that do not answer delays other
// targets by one or two questions only. Manager.mu guards the list of targets. target.mu guards one
// target, and is held for a turn; a look that finds it held leaves the target to the next one.
package discovery

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/reach"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

const (
	// interval is the pause between two looks at a target.
	interval = 5 * time.Second
	// deadAfter is how long a source may be without a connection before its engine is asked.
	deadAfter = 10 * time.Second
	// graceTime is how long an address may be missing from a name before its sources go.
	graceTime = 30 * time.Second

	minPause = 2 * time.Second
	maxPause = 30 * time.Second

	workers      = 16
	maxAddresses = 256
)

// Registry is where sources are registered.
type Registry interface {
	Register(registration.Registration, ingest.RegisterOptions) error
	Unregister(registration.Key) (registration.Key, error)
	// HoldPlace holds a place for a source while its engine has to tell something over a connection.
	HoldPlace(ingest.Holder) (*ingest.Place, error)
	// Health returns the state of a source and how often its publisher was restarted. It
	// returns false if there is no such source.
	Health(registration.Key) (state stream.State, restarts uint64, ok bool)
	// ReportLearned adds a finding about settings that the engine told.
	ReportLearned(key registration.Key, text string)
}

// Options configures a Manager.
type Options struct {
	Registry Registry
	// Rules say which addresses a target of a client may have; nil is all.
	Rules func() *reach.Rules
	// TokenFile has the token for engines of the configuration that want one.
	TokenFile string
	// Resolve returns the addresses of a name; the system's resolver when nil.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Learn returns the block size that the events of a rank have. exempt says that its endpoints need no permission.
	Learn func(ctx context.Context, t *Target, r Rank, exempt bool) (int, error)
	// Reaches refuses endpoints that neither clients nor engines may name; nil refuses none.
	Reaches func(endpoint string) error
	// Bounds returns how many targets there may be, and how many of clients of one tenant; 0 is
	// no bound.
	Bounds func() (all, ofTenant int)
	// TooMany counts a target beyond them, and returns why it is refused. It is set with Bounds.
	TooMany func(ofTenant bool) error
	// AskedAtOnce is how many engines are asked at a time, and how many are refreshed besides; workers when 0.
	AskedAtOnce int
	// Removed, if set, hears that a target is removed, before its sources are, or that it is added, by its name.
	Removed func(name registration.Key, removed bool)
	Now     func() time.Time // time.Now when nil
	Log     zerolog.Logger
}

// Manager follows targets.
type Manager struct {
	opts  Options
	slots chan struct{}
	// refreshers has a place for each target that is refreshed. It is not slots, so that engines that wait for an answer are
	// not behind those that need none.
	refreshers chan struct{}
	// turn is how long a target that has a place asks one engine after another: askTimeout. The last question may take as long
	// again.
	turn time.Duration

	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	changes kept.Log[registration.Key] // of what Saved returns, by the names of targets

	mu      sync.Mutex
	targets map[registration.Key]*target // guarded by mu
	asked   map[string]uint64
	// ending is closed once the last target of a name that was removed has dropped its sources;
	// guarded by mu.
	ending map[registration.Key]chan struct{}
}

// target is a Target that is followed.
type target struct {
	Target
	ctx  context.Context
	stop context.CancelFunc
	// after is closed once the target that had the name before has dropped its sources; done
	// once this one has.
	after, done chan struct{}

	mu      sync.Mutex // held while the target is worked on
	many    bool       // its name has had several addresses
	engines map[netip.Addr]*engine

	seen   atomic.Bool // all engines that were due were asked
	queued atomic.Bool // a look waits for a place, or is under way
	// refreshing is set while a refresh waits for a place, or is under way.
	refreshing atomic.Bool
	// givesWay is Target.GivesWay, until a call of Add lacks it.
	givesWay atomic.Bool
	shown    sync.Mutex
	err      string                           // guarded by shown
	learns   bool                             // err is errLearning; guarded by shown
	counts   struct{ addresses, sources int } // guarded by shown
	found    bool                             // it has had a source; guarded by shown
	kept     []tape.Field                     // see recordKept; guarded by shown
	// withdrawn are sources that others have unregistered; guarded by shown.
	withdrawn map[registration.Key]bool
	began     time.Time
}

// engine is one address of a target.
type engine struct {
	instance  string
	keys      []registration.Key
	restarts  uint64
	next      time.Time // of the next question; zero: none is due
	pause     time.Duration
	refresh   time.Time // when it is asked again although nothing is wrong
	silences  int       // refreshes in a row that failed
	fault     error     // of the last question; nil after an answer
	dead      time.Time // since when a source is dead
	alive     bool      // a source is not dead
	tells     bool      // it has told its ranks
	missing   time.Time // since when the name does not have the address
	blockSize int       // learned
	relearn   bool      // it was started again since it told its block size, or may have been
	names     []string  // of the model, as the engine told last
	adapters  []string  // of it, likewise
	learning  *learning // nil: nothing waits for its events
	drafter   drafter
	// place is for the source of an engine that has told its block size, until it is registered.
	place *ingest.Place
}

// New returns a Manager without targets.
func New(o Options) *Manager {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Resolve == nil {
		o.Resolve = resolveHost
	}
	if o.Removed == nil {
		o.Removed = func(registration.Key, bool) {}
	}
	o.AskedAtOnce = cmp.Or(o.AskedAtOnce, workers)
	m := &Manager{
		opts: o, turn: askTimeout, slots: make(chan struct{}, o.AskedAtOnce), refreshers: make(chan struct{}, o.AskedAtOnce),
		targets: make(map[registration.Key]*target), asked: make(map[string]uint64), ending: make(map[registration.Key]chan struct{}),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Add begins to follow a target. The same target again changes nothing. With other fields it
// is a *registration.ConflictError, or takes the place of the old one; a client's never takes that of
// the configuration. It returns conductor.ErrClosed after Close.
func (m *Manager) Add(t Target, replace bool) error { return m.addTarget(t, replace, nil) }

// addTarget does what Add does. If begin is set, it is called with a target that is new, before anything is asked.
func (m *Manager) addTarget(t Target, replace bool, begin func(*target)) error {
	if err := checkTarget(&t); err != nil {
		return err
	}
	t.Tenant = t.Name().Tenant
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.targets[t.Name()]
	switch {
	case m.ctx.Err() != nil:
		return ingest.ErrClosed
	case old == nil:
		if err := m.admitTarget(&t); err != nil {
			return err
		}
	case covers(&old.Target, &t):
		if !t.GivesWay && old.givesWay.CompareAndSwap(true, false) {
			m.changes.Note(t.Name())
		}
		return nil
	case !replace || old.Static && !t.Static:
		return conflictError(&old.Target, &t)
	default:
		m.endTarget(old)
	}
	n := &target{Target: t, engines: make(map[netip.Addr]*engine), withdrawn: make(map[registration.Key]bool), done: make(chan struct{}),
		began: m.opts.Now()}
	n.givesWay.Store(t.GivesWay)
	n.after = m.ending[t.Name()]
	n.ctx, n.stop = context.WithCancel(m.ctx)
	if begin != nil {
		begin(n)
	}
	m.targets[t.Name()] = n
	m.changes.Note(t.Name())
	m.opts.Removed(t.Name(), false)
	m.tasks.Go(func() { m.updateTarget(n) })
	return nil
}

// Remove stops following a target, and drops its sources. It reports whether there was one. As with
// sources, clients may remove targets of the configuration too; only Add spares those.
func (m *Manager) Remove(n registration.Key) bool {
	n.Tenant = cmp.Or(n.Tenant, scope.DefaultTenant)
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[n]
	if t == nil {
		return false
	}
	m.removeTarget(t)
	return true
}

// removeTarget stops following a target. mu is held.
func (m *Manager) removeTarget(t *target) {
	n := t.Name()
	delete(m.targets, n)
	m.changes.Note(n)
	m.opts.Removed(n, true)
	m.endTarget(t)
}

// Withdrawn records that a client has unregistered the source of key. No target registers it again, also not
// after a restart of the server. What a client registers under that key from now on belongs to the client:
// the target neither changes nor drops it.
func (m *Manager) Withdrawn(key registration.Key) {
	found := false
	m.mu.Lock()
	for _, t := range m.targets {
		if t.Tenant == key.Tenant && registration.IsInstanceOf(key.Instance, t.Instance) {
			m.recordWithdrawn(t, key)
			found = true
		}
	}
	m.mu.Unlock()
	if found {
		m.opts.Registry.Unregister(key) // an answer of its engine may just have registered it again
	}
}

// recordWithdrawn records that another client has unregistered a source of a target.
func (m *Manager) recordWithdrawn(t *target, key registration.Key) {
	t.shown.Lock()
	defer t.shown.Unlock()
	if !t.withdrawn[key] {
		t.withdrawn[key] = true
		m.changes.Note(t.Name())
	}
}

func (t *target) isWithdrawn(key registration.Key) bool {
	t.shown.Lock()
	defer t.shown.Unlock()
	return t.withdrawn[key]
}

// AwaitDropped waits until earlier targets of the name have dropped their sources. A restart before that would
// find sources without the target that they belong to. It returns the error of ctx if that ends first.
func (m *Manager) AwaitDropped(ctx context.Context, n registration.Key) error {
	n.Tenant = cmp.Or(n.Tenant, scope.DefaultTenant)
	m.mu.Lock()
	dropped := m.ending[n]
	m.mu.Unlock()
	if dropped == nil {
		return nil
	}
	select {
	case <-dropped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// endTarget ends the work on a target that is followed no more, and drops its sources in the background. The next target of
// its name waits for that. mu is held.
func (m *Manager) endTarget(t *target) {
	t.stop()
	name := t.Name()
	m.ending[name] = t.done
	m.tasks.Go(func() {
		if t.after != nil {
			<-t.after
		}
		t.mu.Lock()
		for _, e := range t.engines {
			m.dropEngine(t, e)
		}
		t.mu.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		if close(t.done); m.ending[name] == t.done {
			delete(m.ending, name)
		}
	})
}

// dropEngine unregisters the sources of an engine. t.mu is held.
func (m *Manager) dropEngine(t *target, e *engine) {
	e.learning.end()
	e.place.Release()
	for _, key := range e.keys {
		if !t.isWithdrawn(key) {
			m.opts.Registry.Unregister(key) // it may be gone
		}
	}
	e.keys = nil
}

// Close ends all work. The sources stay.
func (m *Manager) Close() {
	m.mu.Lock()
	m.stop()
	m.mu.Unlock()
	m.tasks.Wait()
}
