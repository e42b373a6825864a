package ingest

import (
	"cmp"
	"fmt"
	"iter"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/pool"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/statelog"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// RegisterOptions are the parts of a registration that are not its identity.
type RegisterOptions struct {
	// Replace moves an existing subscription to new fields instead of failing
	// with ConflictError; blocks of the old one are dropped.
	Replace bool
	// Static marks a source of the configuration; /ready waits for those, and they
	// alone may name further tenants. Any other registration keeps the tenants of the
	// source that it equals or replaces.
	Static bool
	// FromEngine says that the endpoints of a Static source are not in the configuration: an engine told them, and so they need
	// the permission that those of clients need.
	FromEngine bool
	// AnyEndpoint takes endpoints as they are: one that can never work makes a
	// source that has failed.
	AnyEndpoint bool
	// GivesWay lets another registration, unless that gives way too, take the place of the source where
	// limits.max_sources or limits.max_tenant_sources is reached. An equal registration without it ends that, and
	// one with it changes nothing.
	GivesWay bool
	// Place is one that the source has before it is registered, see HoldPlace; nil is none.
	Place *Place
	// By says who registers the source, for operators. Without a Kind it is the configuration if Static, else a client.
	By registration.Registrar
	// Admit, if set, sees everything that is registered before anything changes,
	// and refuses the registration with its error. It must not call the Conductor.
	Admit func(all iter.Seq[registration.Registration]) error
}

// isExempt reports whether endpoints need no permission of register.allow: who writes the configuration may read the network.
func (o *RegisterOptions) isExempt() bool { return o.Static && !o.FromEngine }

// Register starts a source. It never waits for the endpoint. The same key with
// equal fields is a success that changes nothing.
//
// Errors: *invalid.FieldError for bad input, *registration.ConflictError for a key taken by other
// fields, or a topic by other names, *catalog.ProfileConflictError, ErrTooManySources, ErrTenantFull, which is one too,
// ErrClosed, ErrPast, or that of Admit.
func (c *Sources) Register(r registration.Registration, opts RegisterOptions) error {
	if c.catalog.IsPast() {
		return ErrPast
	}
	r, err := c.Canonical(r, opts.AnyEndpoint)
	if err != nil {
		return err
	}
	if !opts.Static && len(r.MayAnnounce) > 0 {
		return &invalid.FieldError{Field: "may_announce", Index: 0, Reason: "invalid_value",
			Message: "may_announce is for sources of the configuration file alone"}
	}
	if !opts.isExempt() && c.opts.Reaches != nil {
		for _, f := range r.Endpoints() {
			if f.Endpoint == "" {
				continue
			}
			if err := c.opts.Reaches(f.Endpoint); err != nil {
				return invalid.Field(f.Field, "invalid_value", "%s %v", f.Field, err)
			}
		}
	}
	return c.RegisterChecked(r, opts)
}

// Canonical returns the registration with the defaults of these Sources, or its first fault.
func (c *Sources) Canonical(r registration.Registration, anyEndpoint bool) (registration.Registration, error) {
	if r.TTL == 0 {
		r.TTL = c.opts.TTL
	}
	err := r.Normalize(anyEndpoint)
	if r.Copies == registration.CopiesWord(c.opts.Copies) {
		r.Copies = ""
	}
	return r, err
}

// RegisterChecked is Register for a registration that has been checked before: it has no faults, and its endpoints need no
// permission.
func (c *Sources) RegisterChecked(r registration.Registration, opts RegisterOptions) error {
	for {
		recovered := c.Find(r.Key())
		if recovered != nil && !recovered.recovered {
			recovered = nil
		}
		gone, claimed, err := claimFrom(c, recovered, r, opts)
		if !claimed {
			continue // another one has the key now
		}
		for _, old := range gone {
			c.retire(old)
		}
		if s := c.Find(r.Key()); err == nil && s != nil {
			observeAliases(s)
		}
		return err
	}
}

// claimFrom claims a key while the recovered source that has it, if there is one,
// stands still. It reports false if that is not the one under the key any more.
func claimFrom(c *Sources, recovered *Source, r registration.Registration, opts RegisterOptions) (gone []*Source, claimed bool, err error) {
	if recovered != nil {
		recovered.turn.Lock()
		defer recovered.turn.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.sources[r.Key()]; at != recovered && (recovered != nil || at != nil && at.recovered) {
		return nil, false, nil
	}
	gone, err = c.claim(r.Key(), r, opts)
	return gone, true, err
}

// claim starts the source, unless its key is taken: an equal registration is
// left alone, a different one is an error or, with Replace, gives way. So does another source if
// there are too many. It returns those that gave way, which are to be stopped. Sources.mu is held,
// and the turn of a recovered source that has the key.
func (c *Sources) claim(key registration.Key, r registration.Registration, opts RegisterOptions) (gone []*Source, err error) {
	if c.closed {
		return nil, ErrClosed
	}
	if opts.Admit != nil {
		if err := opts.Admit(c.sources.registrations()); err != nil {
			return nil, err
		}
	}
	old := c.sources[key]
	var from givingWay
	if old == nil || old.recovered { // which has no place
		if from, err = findPlace(c, r.Tenant, &opts); err != nil {
			return nil, err
		}
	} else {
		if !opts.Static {
			r.MayAnnounce = old.Registration.MayAnnounce // only the configuration names tenants, so only it changes them
		}
		field, have, got := old.Registration.Diff(&r, registration.CopiesWord(c.opts.Copies))
		switch {
		case field == "":
			if !opts.GivesWay && old.givesWay.CompareAndSwap(true, false) {
				c.catalog.Changes().Note(key)
			}
			c.catalog.SetLive(old.Member, &r)
			return nil, nil
		case !opts.Replace:
			return nil, &registration.ConflictError{Key: key, Field: field, Have: have, Want: got}
		}
	}
	if err := checkTopic(c, &r); err != nil {
		return nil, err
	}
	if err := c.catalog.CheckProfile(r, memberOf(old)); err != nil {
		return nil, err
	}
	gone = giveWay(c, from, key.String())
	if old != nil {
		gone = append(gone, old)
		if !old.recovered {
			c.removeSource(old)
		}
	}
	s := newRegistered(c, r, &opts)
	s.by = opts.By.WithDefaults(opts.Static, s.opened)
	s.givesWay.Store(opts.GivesWay)
	if old != nil && old.recovered {
		s.inheritFrom(c, old)
		c.removeSource(old)
	}
	c.sources[key] = s
	c.Unregistered.remove(key)
	c.catalog.Replace(memberOf(old), s.Member) // at once, so that queries see the instance all the time
	for _, old := range gone {
		judgeRanksNear(c, old)
	}
	judgeRanksNear(c, s)
	warnOfOtherTenants(c, s)
	c.watching.Do(func() { go c.watch() })
	go c.followSource(s)
	c.log.Info().Str("source", key.String()).Str("endpoint", r.Endpoint).Str("model", r.Model).Msg("source registered")
	return gone, nil
}

// Unregister stops a source and drops its blocks and aliases. Its instance stays
// while another rank of it is registered. It returns the key with its defaults
// filled in; ErrNotFound when it is unknown, ErrPast.
func (c *Sources) Unregister(key registration.Key) (registration.Key, error) {
	key.Tenant = cmp.Or(key.Tenant, scope.DefaultTenant)
	if c.catalog.IsPast() {
		return key, ErrPast
	}
	return c.UnregisterIf(key, nil)
}

// UnregisterIf unregisters a complete key if it still belongs to meant; a nil meant is any source.
func (c *Sources) UnregisterIf(key registration.Key, meant *Source) (registration.Key, error) {
	c.mu.Lock()
	s, ok := c.sources[key]
	ok = ok && (meant == nil || s == meant)
	if meant == nil {
		c.Unregistered.add(key, standingOf(s))
	}
	if ok {
		delete(c.sources, key)
		c.removeSource(s)
		c.catalog.Replace(s.Member, nil)
		judgeRanksNear(c, s)
	}
	c.mu.Unlock()
	if !ok {
		return key, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	c.retire(s)
	if !s.recovered { // else it was never registered
		c.log.Info().Str("source", key.String()).Msg("source unregistered")
	}
	return key, nil
}

// pauser is a feed that can let its publisher alone for a while.
type pauser interface {
	Pause()
	Unpause()
}

// SetPaused closes the connections of a source and keeps its blocks, until it is undone: what was published meanwhile
// shows as a gap and is replayed then. A source that had failed tries its endpoint again. ErrNotFound, ErrPast.
func (c *Sources) SetPaused(key registration.Key, paused bool) error {
	if c.catalog.IsPast() {
		return ErrPast
	}
	s := c.Find(key)
	if s == nil {
		return fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	switch p, ok := s.feed.(pauser); {
	case !ok:
	case paused:
		p.Pause()
	default:
		p.Unpause()
	}
	return nil
}

// checkTopic returns an error if other names of the tenant have the topic of r at its endpoint. Sources.mu is held.
func checkTopic(c *Sources, r *registration.Registration) error {
	if r.IsApproximate() {
		return nil
	}
	for _, other := range c.following[r.Publisher()] {
		if is := other.Registration; is.Tenant == r.Tenant && is.Key() != r.Key() && !other.recovered {
			if err := registration.TopicConflict(r, is); err != nil {
				return err
			}
		}
	}
	return nil
}

// newRegistered opens the stream, which does not wait for the endpoint, and joins
// the source to its deployment. Sources.mu is held.
func newRegistered(c *Sources, r registration.Registration, opts *RegisterOptions) *Source {
	recorded := c.opts.Tape.Register(r.Key().String(), r.AppendFields(nil, opts.Static)...)
	s := newUnjoined(c, r)
	s.Static, s.tape = opts.Static, recorded
	s.feed = c.open(r, opts.isExempt(), recorded, s.onState)
	switch f := s.feed.(type) {
	case *RecordedFeed:
		f.source = s
	case *stream.Stream:
		f.LimitClears(func(media []string) bool { return keepsAtClear(&s.holdings, media) })
	}
	s.states = statelog.New(c.log.With().Str("source", r.Key().String()).Logger(), s.feed.Status, c.opts.Stream.StaleAfter)
	c.addSource(s)
	return s
}

// newRecovered joins a source that is not registered here to its deployment. c.mu is
// held.
func newRecovered(c *Sources, r registration.Registration) *Source {
	s := newUnjoined(c, r)
	s.feed, s.recovered = newUnfollowed(c.now()), true
	s.by = registration.Registrar{Kind: registration.ByPeer, At: s.opened}
	c.addSource(s)
	c.catalog.Join(s.Member)
	return s
}

// memberOf returns the member of a source, nil for none.
func memberOf(s *Source) *catalog.Member {
	if s == nil {
		return nil
	}
	return s.Member
}

// newUnjoined makes a source without a feed, not yet visible to queries.
func newUnjoined(c *Sources, r registration.Registration) *Source {
	s := &Source{
		shared:  &c.shared,
		stopped: make(chan struct{}),
		done:    make(chan struct{}),
		opened:  c.now(),
		doctor:  doctor.New(observedBy(&r), c.now),
	}
	m := catalog.NewMember(r, &s.doctor.Findings, func() stream.Status { return s.feed.Status() })
	m.State = func() (stream.State, uint64) {
		if feed, is := s.feed.(*stream.Stream); is {
			return feed.State()
		}
		st := s.feed.Status()
		return st.State, st.Epoch
	}
	s.Member, s.Registration = m, &m.Registration
	s.holdings = holdings{
		catalog: c.catalog, member: m, reg: s.Registration, policy: r.CopyPolicy(c.opts.Copies),
		full:  r.Reports == registration.ReportsFull,
		byKey: make(map[scope.Deployment]*namespace), media: make(map[string]tiers.Medium), digest: new(index.SharedDigest),
		past: past{losses: index.NewLosses(c.opts.RemovalsBytes)},
	}
	a := &s.applier
	a.member, a.reg, a.holdings, a.shared, a.doctor = m, s.Registration, &s.holdings, s.shared, s.doctor
	a.dropped = make(map[events.Reason]uint64)
	a.normal = normalize.New(normalize.Options{
		Registered: r.Context(), Rank: r.Rank, Pool: r.IsPool(), Standard: r.Type == registration.TypeStandard,
		DropOwned: r.Owned == registration.OwnedDrop, ClearDevice: registration.LeavesLowerTiers(&r), MayAnnounce: r.AllowsTenant,
		IsAlias: m.IsAlias,
		Scheme:  c.scheme, Findings: &s.doctor.Findings, Medium: s.holdings.mediumOf,
	})
	if r.IsPool() {
		a.pool = pool.New(pool.Options{
			Registered: r.Context(), Completeness: c.opts.Completeness, Limit: c.opts.PoolBytes,
			Counts: c.catalog.CountsGroup, Findings: &s.doctor.Findings,
		})
	}
	return s
}

// streamConfig fills the template for one source.
func (o *Options) streamConfig(r registration.Registration, free bool, recorded *tape.Recorder,
	on func(stream.State, string)) stream.Config {
	cfg := o.Stream
	cfg.OnState = on
	if recorded != nil {
		cfg.OnUndecodable = recorded.RecordUndecodable
	}
	cfg.Endpoint, cfg.ReplayEndpoint, cfg.SnapshotEndpoint = r.Endpoint, r.ReplayEndpoint, r.SnapshotEndpoint
	if o.Transport != nil {
		cfg.Transport = o.Transport(r, free)
	}
	cfg.ReplayFlow = r.Tenant
	if cfg.Rank = r.Rank; r.IsPool() {
		cfg.Rank = stream.NoRanks
	}
	if r.Type == registration.TypeMooncake {
		cfg.FirstSeq = 1 // the master numbers its batches from 1
	}
	if r.SharesSequence() {
		cfg.Topic = r.Topic()
	}
	return cfg
}
