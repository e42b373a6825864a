package ingest

import (
	"cmp"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/pool"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/statelog"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/objectkey"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// shared is what all sources of a server have in common.
type shared struct {
	opts    Options
	catalog *catalog.Catalog
	scheme  hash.Scheme
	now     func() time.Time
	gate    <-chan struct{}
	log     zerolog.Logger
	limits  atomic.Pointer[Limits]
	counts  eventCounts
	watcher atomic.Pointer[BatchWatcher] // nil is none
}

// Limits are the options of Sources that may change while they run.
type Limits struct {
	MaxSources       int    // registered ones, 0 for no bound
	MaxSourcesBy     Room   // what MaxSources comes from
	MaxTenantSources int    // those that clients register for one tenant, 0 for no bound
	MaxTokenID       uint32 // of events, 0 for no bound
}

// Sources has the sources that are registered, and those that a recovery brought. It starts and stops them, and
// hands on what one of them finds out about others.
type Sources struct {
	shared
	Places Places
	// Unregistered has what a recovery leaves out.
	Unregistered unregistrations
	pushes       *Pushes // of those whose publisher calls us
	open         FeedFunc
	copying      sync.Mutex  // held while a snapshot copies blocks; taken before any turn
	unscoped     atomic.Bool // blocks came from a peer that tells no marks

	mu        sync.RWMutex
	sources   sourcesByKey                         // guarded by mu
	sorted    atomic.Pointer[[]*Source]            // of sources, nil until All makes it; written with mu held
	following map[registration.Publisher][]*Source // of sources, by whom they follow; guarded by mu
	instances map[registration.Key][]*Source       // of sources, by their key with AllRanks; guarded by mu
	recovered int                                  // of sources, those without a registration; guarded by mu
	leaving   map[*Source]bool                     // removed, and not yet retired; guarded by mu
	held      map[*Place]bool                      // guarded by mu
	groups    fleetGroups                          // for metrics; guarded by mu
	closed    bool                                 // guarded by mu

	watching           sync.Once
	stopWatch, watched chan struct{} // end watch; it has ended
}

// Registrations returns the registrations in any order, without sources that only a peer
// has named. Unlike Rows it looks at no stream and no index.
func (c *Sources) Registrations() []registration.Registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(c.sources.registrations())
}

// addSource counts a source in. It is not in the catalog yet. Sources.mu is held.
func (c *Sources) addSource(s *Source) {
	c.sorted.Store(nil)
	if !s.Registration.IsApproximate() { // those follow none
		p := s.Registration.Publisher()
		c.following[p] = append(c.following[p], s)
	}
	instance := s.Registration.InstanceKey()
	c.instances[instance] = append(c.instances[instance], s)
	if s.recovered {
		c.recovered++
	}
	s.group = c.groups.join(s.Registration)
}

// removeSource undoes addSource. The tape records nothing more of the source. Sources.mu is held; the source leaves the catalog,
// and retire follows.
func (c *Sources) removeSource(s *Source) {
	c.sorted.Store(nil)
	if !s.Registration.IsApproximate() {
		dropSource(c.following, s.Registration.Publisher(), s)
	}
	dropSource(c.instances, s.Registration.InstanceKey(), s)
	if s.recovered {
		c.recovered--
	}
	c.leaving[s] = true
	s.tape.Unregister()
}

// dropSource removes a source from a list, and a list that is empty then.
func dropSource[K comparable](lists map[K][]*Source, key K, s *Source) {
	lists[key] = slices.DeleteFunc(lists[key], func(other *Source) bool { return other == s })
	if len(lists[key]) == 0 {
		delete(lists, key)
	}
}

// Find returns the source under a key, nil if there is none. It may be a recovered one.
func (c *Sources) Find(key registration.Key) *Source {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sources[key]
}

// SourceOf returns the source of a member, nil if it has left.
func (c *Sources) SourceOf(m *catalog.Member) *Source {
	if s := c.Find(m.Key()); s != nil && s.Member == m {
		return s
	}
	return nil
}

// All returns the sources sorted by key. The list serves all callers: they must not change it.
func (c *Sources) All() []*Source {
	if all := c.sorted.Load(); all != nil {
		return *all
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(c.sources), func(a, b *Source) int { return a.Registration.Key().Compare(b.Registration.Key()) })
	c.sorted.Store(&all)
	return all
}

// lockSources returns the sources registered for a deployment, or all if of is nil, in the order of
// their keys and with their turns held until release is called; of a
// Conductor that is closed also those that have ended.
func (c *Sources) lockSources(of *scope.Deployment) (all []*Source, release func()) {
	for {
		all = c.All()
		if of != nil {
			all = slices.DeleteFunc(slices.Clone(all), func(s *Source) bool { return s.holdings.deploymentKey() != *of })
		}
		gone := false
		for _, s := range all {
			s.turn.Lock()
			gone = gone || s.gone
		}
		release = func() {
			for _, s := range all {
				s.turn.Unlock()
			}
		}
		c.mu.RLock()
		closed := c.closed
		c.mu.RUnlock()
		if !gone || closed {
			return all, release
		}
		release() // what it held may be another's, who is not among them
	}
}

// Options configures Sources. Of the fields that conductor.Options has too, that type says more.
type Options struct {
	Copies        index.CopyPolicy
	Stream        stream.Config
	Transport     func(r registration.Registration, free bool) stream.Transport
	Reaches       func(endpoint string) error
	Completeness  objectkey.Completeness
	PoolBytes     int64
	RemovalsBytes int
	TTL           time.Duration
	SilentAfter   time.Duration
	Gate          <-chan struct{}
	Tape          *tape.Tape
	Log           zerolog.Logger
	Now           func() time.Time
}

// New returns Sources with none. What they hold is in the indexes of the catalog.
func New(catalog *catalog.Catalog, opts Options) *Sources {
	if opts.SilentAfter == 0 {
		opts.SilentAfter = defaultSilentAfter
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	c := &Sources{
		sources: make(sourcesByKey), following: make(map[registration.Publisher][]*Source),
		instances: make(map[registration.Key][]*Source),
		groups:    fleetGroups{by: make(map[scope.Shard]*fleetGroup)}, leaving: make(map[*Source]bool), held: make(map[*Place]bool),
		stopWatch: make(chan struct{}), watched: make(chan struct{}),
	}
	c.opts, c.catalog, c.scheme, c.now, c.log = opts, catalog, catalog.IndexOptions().Scheme, opts.Now, opts.Log
	c.limits.Store(new(Limits))
	c.Unregistered.shared, c.Unregistered.stop = &c.shared, c.stopWatch
	c.pushes = &Pushes{
		now: opts.Now, staleAfter: opts.Stream.StaleAfter, decode: opts.Stream.Decode, most: cmp.Or(opts.PoolBytes, pool.DefaultLimit),
	}
	c.open = func(r registration.Registration, free bool, recorded *tape.Recorder, on func(stream.State, string)) Feed {
		switch {
		case r.IsPushed():
			return c.pushes.open(r, on)
		case r.IsApproximate():
			return newApproximate()
		}
		return stream.Open(opts.streamConfig(r, free, recorded, on))
	}
	if c.gate = opts.Gate; c.gate == nil {
		open := make(chan struct{})
		close(open)
		c.gate = open
	}
	return c
}

// Tune replaces the limits. Sources beyond a smaller MaxSources stay.
func (c *Sources) Tune(l Limits) {
	c.limits.Store(&l)
	c.Places.tune(l)
}

// Watch lets a watcher see applied batches in place of the one before; nil is none.
func (c *Sources) Watch(w BatchWatcher) {
	if w == nil {
		c.watcher.Store(nil)
		return
	}
	c.watcher.Store(&w)
}

// Recovering reports whether the gate is closed.
func (c *shared) Recovering() bool {
	select {
	case <-c.gate:
		return false
	default:
		return true
	}
}

// Close stops every source, drops what they hold and waits for them. From then
// on registrations fail with ErrClosed.
func (c *Sources) Close() {
	c.watching.Do(func() { close(c.watched) })
	c.mu.Lock()
	if !c.closed {
		close(c.stopWatch)
	}
	c.closed = true
	running := make([]*Source, 0, len(c.sources))
	for _, s := range c.sources {
		running = append(running, s)
	}
	c.mu.Unlock()

	var wg sync.WaitGroup
	for _, s := range running {
		wg.Go(s.stop)
	}
	wg.Wait()
	<-c.watched
}

// watch looks for findings that only time shows, until Close.
func (c *Sources) watch() {
	defer close(c.watched)
	tick := time.NewTicker(c.opts.SilentAfter / 4)
	defer tick.Stop()
	var asked demands
	for {
		select {
		case <-tick.C:
			now, all := c.now(), c.All()
			asked = demandsOn(all, asked, now)
			r := &round{now: now, held: make(heldBlocks), doubts: doubtsAbout(&c.shared, now), asked: asked, contests: openContests(c)}
			for _, s := range all {
				observe(c, s, r)
			}
		case <-c.stopWatch:
			return
		}
	}
}

// round is one look at all sources. It has what is found out for all of them before each is looked at.
type round struct {
	now      time.Time
	held     heldBlocks
	doubts   map[*catalog.Deployment][]expect.Doubt
	asked    demands
	contests map[*catalog.Member]contest // that go on
}

// observe looks for findings of one source. A broken invariant costs that source a resync.
func observe(c *Sources, s *Source, r *round) {
	defer s.resyncAfterPanic()
	observeSilence(s, r.now, r.asked)
	observeContest(s, r.contests)
	observeUse(s, r.now)
	observeAliases(s)
	observeExpected(s, r.now, r.doubts)
	observeLives(s, r.now)
	observeRefusals(s)
	observeSnapshots(s)
	s.guard(func() { // it logs what all of these have found
		observeHolding(s, r.held, r.now)
		if !c.catalog.IsPast() {
			s.doctor.Unremoved(r.now)
		}
	})
}

// EventCounts returns the counts so far.
func (c *Sources) EventCounts() EventCounts {
	n := &c.counts
	return EventCounts{
		Stored: n.stored.load(), Removed: n.removed.load(), Cleared: n.cleared.load(),
		DuplicateStores: n.duplicates.Load(),
	}
}

// HasUnscoped reports whether the context without adapter and salt may have blocks of
// adapters and salts. An indexer of Dynamo's says neither in its dump: they show in its
// client hashes alone. Blocks from its dump stand in that context until their sources
// announce them. No prompt without adapter and salt has their hashes, but
// match.Query.SearchUnscoped asks for them. It finds none if hash.seed is not Dynamo's.
func (c *Sources) HasUnscoped() bool { return c.unscoped.Load() }

// Pushes returns what publishers have called us with.
func (c *Sources) Pushes() *Pushes { return c.pushes }

// sourcesByKey are sources by their keys.
type sourcesByKey map[registration.Key]*Source

// registrations walks the registered ones.
func (all sourcesByKey) registrations() iter.Seq[registration.Registration] {
	return func(yield func(registration.Registration) bool) {
		for _, s := range all {
			if !s.recovered && !yield(*s.Member.Registered()) {
				return
			}
		}
	}
}

// sameInstance returns a registered source of the same instance and deployment, nil without one: its
// publisher may speak for several ranks.
func (all sourcesByKey) sameInstance(reg *registration.Registration) *Source {
	var found *Source
	for _, s := range all {
		r := s.Registration
		if r.Instance == reg.Instance && r.Deployment() == reg.Deployment() && !r.IsPool() && !s.recovered &&
			(found == nil || r.Rank < found.Registration.Rank) {
			found = s
		}
	}
	return found
}

// EachSource calls f for each registered source in the order of their keys: with its state, and status.Source.Pending. It looks
// at no index.
func (c *Sources) EachSource(f func(r *registration.Registration, s status.SourceState, pending bool)) {
	for _, s := range c.All() {
		if !s.recovered {
			f(s.Registration, s.State(), s.AtGate())
		}
	}
}

// Follows reports whether a source is registered, not only named by a peer.
func (c *Sources) Follows(key registration.Key) bool {
	s := c.Find(key)
	return s != nil && !s.recovered
}

// State returns the state of the source.
func (s *Source) State() status.SourceState {
	st := s.feed.Status()
	return status.SourceState{Key: s.Registration.Key(), State: st.State, Reason: st.Reason, Fault: st.LastError,
		Erring: s.doctor.Findings.HasError()}
}

// BatchWatcher sees applied batches, as a Watcher does.
type BatchWatcher interface{ Batch(*AppliedBatch) }

// AppliedBatch is a batch that a source has applied.
type AppliedBatch struct {
	Source   registration.Key
	Seq      uint64
	Replayed bool
	At       time.Time
	Events   []events.Event
}

// FindByPrintedKey returns the source of some tenants by its printed key, nil without one.
func (c *Sources) FindByPrintedKey(key string, of scope.Tenants) *Source {
	for _, s := range c.All() {
		if of.Has(s.Registration.Tenant) && s.Registration.Key().String() == key {
			return s
		}
	}
	return nil
}

// ReadTape returns applied batches of the source, see tape.Recorder.Read.
func (s *Source) ReadTape(q tape.Range) (tape.Excerpt, tape.Span, error) {
	e, span, err := s.tape.Read(q)
	if err != nil && !errors.Is(err, tape.ErrGone) && !errors.Is(err, tape.ErrTooNew) {
		s.shared.log.Warn().Err(err).Str("source", s.Registration.Key().String()).Msg("the journal cannot be read")
		err = tape.ErrGone
	}
	return e, span, err
}

// Story returns the row of the source, what has happened to it, the oldest first, and how many events there were before.
func (s *Source) Story() (row status.Source, events []statelog.Event, older uint64) {
	events, older = s.states.History()
	return Rows([]*Source{s})[0], events, older
}
