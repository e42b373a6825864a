package membership

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
)

// Times of the registry.
const (
	// soon is how long changes wait for further ones.
	soon = 50 * time.Millisecond
	// confirmEvery is the pause between two confirmations of what the configuration has; an entry
	// that none confirms in keptFor, or in droppedFor after a configuration lost it, is
	// unregistered. A restart takes less.
	confirmEvery = time.Minute
	keptFor      = 10 * confirmEvery
	droppedFor   = 2 * confirmEvery
	// graveFor is how long the store keeps what was unregistered, so that replicas that come back
	// do not register it again.
	graveFor = 24 * time.Hour
	// unheardFor is how long it keeps what was unregistered and no replica knew: what another one writes arrives within seconds.
	unheardFor = time.Minute
	// mostPending bounds the changes that wait for the store.
	mostPending = 1 << 16
	// mostReplicas bounds the replicas that are remembered: each start is one.
	mostReplicas = 1 << 12
)

// RegistryConfig is what a Registry is made of. Its clock is that of the Group.
type RegistryConfig struct {
	Group     *Group
	Conductor *conductor.Conductor
	Targets   *discovery.Manager
	Log       zerolog.Logger
}

// Registry keeps the sources of all replicas equal:
//
//	client --> Conductor --> pending --writing--> store --reading--> known --> Conductor
//	configuration ---------^
//
// A change counts at once where it is made, and reaches the others by the store. While the store
// is away, changes wait; the last one of each entry counts. Of two changes of one entry the later
// one counts everywhere, by the clock of the store.
//
// Invariants:
//
//  1. Entries of the store become newer, never older. One that is older than this replica knows it, or
//     missing, was lost by the store, and is written again with its time.
//  2. An entry of the store obeys the rules for clients of this replica. One that is refused
//     changes nothing.
//  3. The configuration of this replica counts more than the store, here alone. Where a client has
//     unregistered one of its sources, that counts.
//  4. Where the limits of this replica are reached, entries by replicas that it has never seen alive give
//     way to all others.
//
// Concurrency: all methods are safe for concurrent use, and of a nil Registry do nothing. Sync
// holds working; mu is never held while the store or the Conductor is asked.
type Registry struct {
	cfg  RegistryConfig
	wake chan struct{}
	was  atomic.Bool // the registry was read once

	working   sync.Mutex        // one Sync at a time
	began     bool              // the registry was read once; guarded by working
	lost      uint64            // Status.Lost that was answered; guarded by working
	revision  int64             // Status.Revision at which it was read; -1 for none; guarded by working
	confirmed time.Time         // guarded by working
	told      string            // what this replica follows, as the store has it; guarded by working
	toldAt    time.Time         // guarded by working
	texts     map[uint64]parsed // the entries as they were read, by print of the field; guarded by working

	mu         sync.Mutex
	wanted     func(registration.Registration) bool // nil is all; guarded by mu
	asked      uint64                               // calls of Again; guarded by mu
	known      map[Name]*entry                      // guarded by mu
	unreadable int                                  // entries that cannot be read; guarded by mu
	replicas   map[string]bool                      // that were alive since the start, this one included; guarded by mu
	refused    map[string]uint64                    // entries that were not taken over, by reason; guarded by mu
	complaints complaints                           // guarded by mu
	pending    map[Name]*change                     // guarded by mu
	kept       kept.Log[Name]                       // of the parts that Saved returns
	dropped    map[string]uint64                    // changes that are never written, by reason; guarded by mu
	configured map[Name]Source                      // guarded by mu
	lostNames  map[Name]time.Time                   // when the configuration lost them; guarded by mu

	followers followers
}

// entry is an entry as the store has it.
type entry struct {
	record
	at   int64 // by the store's clock
	ours int64 // at of the last change of it by this replica, 0 for none
	text string
	done bool // it was taken over
	// fresh says that it was not looked at yet.
	fresh     bool
	why       error // it is refused, nil if not
	elsewhere bool  // this replica does not want it
}

// tail returns the text of the entry behind its time, with fields of newer replicas that this one does not know.
func (e *entry) tail() string {
	if tail, is := strings.CutPrefix(e.text, timed(e.at)); is {
		return tail
	}
	return e.record.tail() // it is in no store yet, or nobody wrote it as replicas do
}

// describes reports whether the entry says the same as a source.
func (e *entry) describes(s *Source) bool {
	if e.Gone {
		return false
	}
	own := e.source()
	return own.equal(s)
}

// says reports whether the entry says what a change does.
func (e *entry) says(c *change) bool {
	if c.source == nil {
		return e.Gone && (c.unheard || !e.Unheard)
	}
	return e.describes(c.source)
}

// NewRegistry returns a Registry. It takes changes from now on, and asks nothing before Run.
func NewRegistry(cfg RegistryConfig) *Registry {
	g := &Registry{
		cfg: cfg, wake: make(chan struct{}, 1), revision: -1, known: make(map[Name]*entry), refused: make(map[string]uint64),
		dropped:  make(map[string]uint64),
		replicas: map[string]bool{cfg.Group.ID(): true},
		pending:  make(map[Name]*change), configured: make(map[Name]Source), lostNames: make(map[Name]time.Time),
	}
	cfg.Conductor.Share(func(r registration.Registration) { g.Registered(Source{Registration: r}) },
		func(key registration.Key, known bool) { unregisterKey(g, key, known) }, g.sharedSources,
		func() time.Duration { return cfg.Group.Status().clock.waitForLaterStamp(cfg.Group.cfg.Now()) })
	return g
}

// SetWanted lets the Conductor follow only sources that f wants: it is asked again at each Again.
// Every replica asks the engines that are asked. nil wants all.
func (g *Registry) SetWanted(f func(registration.Registration) bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.wanted = f
	g.mu.Unlock()
	g.Again()
}

// Again looks at all entries again, because other entries are wanted now.
func (g *Registry) Again() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	for _, e := range g.known {
		e.done = false
	}
	g.wakeRun()
}

// Sources returns the registered sources, but those that this replica refuses. It returns false
// before the registry was read.
func (g *Registry) Sources() ([]registration.Registration, bool) {
	return g.selectSources(func(_ Name, e *entry) bool { return e.why == nil }), g.was.Load()
}

// sharedSources returns the registered sources, whichever replicas follow them, but those that a client of this
// one has unregistered.
func (g *Registry) sharedSources() []registration.Registration {
	return g.selectSources(func(n Name, _ *entry) bool { p := g.pending[n]; return p == nil || p.source != nil })
}

// selectSources returns the registered sources for which f returns true. It calls f with mu held.
func (g *Registry) selectSources(f func(Name, *entry) bool) (all []registration.Registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, e := range g.known {
		if n.Asked || e.Gone || !f(n, e) {
			continue
		}
		s := e.source()
		if own, has := g.configured[n]; has {
			s = own
		}
		all = append(all, s.Registration)
	}
	return all
}

// Run keeps the registry until ctx ends. It writes the last changes then.
func (g *Registry) Run(ctx context.Context) {
	defer func() { g.Sync(context.WithoutCancel(ctx)) }()
	for {
		changed := g.cfg.Group.Changed()
		g.Sync(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
			continue
		case <-g.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(soon):
		}
	}
}

// rememberReplicas remembers replicas that are alive: their entries are trusted from now on.
func (g *Registry) rememberReplicas(alive []Replica) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range alive {
		if len(g.replicas) < mostReplicas {
			g.replicas[alive[i].ID] = true
		}
	}
}

// errOther says that the store is not the one that the last beat met.
var errOther = errors.New("the store has changed since the last beat")

// Sync reads the changes of others, writes what waits, and takes new entries over. It does nothing while the store is
// down.
func (g *Registry) Sync(ctx context.Context) error {
	g.working.Lock()
	defer g.working.Unlock()
	st := g.cfg.Group.Status()
	if !st.Up {
		return nil
	}
	err := g.exchange(ctx, &st)
	if err != nil && ctx.Err() == nil {
		g.cfg.Log.Debug().Err(err).Msg("the registry waits for the next beat")
	}
	return err
}

// exchange does what Sync does, while the store is up. It stops at the first error of the store.
func (g *Registry) exchange(ctx context.Context, st *Status) error {
	now := g.cfg.Group.cfg.Now()
	g.rememberReplicas(st.Replicas)
	defer g.logComplaints(now)
	due := g.confirmed.IsZero() || now.Sub(g.confirmed) >= confirmEvery
	if due || st.Lost != g.lost || st.Revision != g.revision {
		if err := g.readEntries(ctx, st); err != nil {
			return err
		}
		if st.Lost != g.lost || due {
			g.lost, g.told = st.Lost, ""
		}
	}
	if !g.began {
		g.began = true
		g.queueRestored()
		g.was.Store(true)
	}
	if due {
		if err := g.confirmConfigured(ctx, st); err != nil {
			return err
		}
		g.confirmed = now
	}
	if err := g.writePending(ctx, st); err != nil {
		return err
	}
	g.takeEntries()
	return g.writeFollowed(ctx, st)
}
