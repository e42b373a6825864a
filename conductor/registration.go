package conductor

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/pool"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/journal"
	"kvconductor/events/stream"
	"kvconductor/events/zmq"
	"kvconductor/tiers"
)

// DefaultTenant is the tenant of registrations and queries that name none.
const DefaultTenant = "default"

// Publisher types a registration may name, in their canonical spelling. The
// type never decides how events are decoded; Mooncake makes the source a pool.
const (
	TypeVLLM     = "vLLM"
	TypeSGLang   = "SGLang"
	TypeMooncake = "Mooncake"
	TypeStandard = "Standard"
)

// Key identifies a source.
type Key struct {
	Instance string
	Tenant   string
	Rank     int
}

// String returns instance|tenant|rank, the form clients see.
func (k Key) String() string { return fmt.Sprintf("%s|%s|%d", k.Instance, k.Tenant, k.Rank) }

// Registration describes one source: where it publishes and what its blocks are.
type Registration struct {
	Endpoint       string
	ReplayEndpoint string
	Type           string
	Model          string
	Lora           string
	Tenant         string
	Instance       string
	BlockSize      int // tokens per block
	Rank           int // data-parallel rank, used where events name none
	Salt           string
	// TTL is how long a block stays after it was last announced, for publishers
	// that announce no removals; 0 is for ever.
	TTL time.Duration
	// MediaTTL is that of single media, by names that tiers.Parse knows.
	MediaTTL map[string]time.Duration
	// Serves names the instances a pool is bound to, sorted; none is all of them.
	Serves []string
	// Copies, Owned, Clear and MayAnnounce rule what events of the source do: see
	// policy.go.
	Copies      string
	Owned       string
	Clear       string
	MayAnnounce []string // tenants, sorted
	// Profile says how the engine names its blocks, for those that come without
	// tokens; the zero value is not known. All engines of a context have one.
	Profile HashProfile
}

// compare orders keys by their fields.
func (k Key) compare(other Key) int {
	return cmp.Or(strings.Compare(k.Instance, other.Instance), strings.Compare(k.Tenant, other.Tenant), cmp.Compare(k.Rank, other.Rank))
}

// Key returns the identity of the source.
func (r Registration) Key() Key { return Key{Instance: r.Instance, Tenant: r.Tenant, Rank: r.Rank} }

// pool reports whether the source holds blocks for other instances and is no
// routable instance itself.
func (r Registration) pool() bool { return r.Type == TypeMooncake }

// Pool is pool for others.
func (r Registration) Pool() bool { return r.pool() }

// Errors a caller branches on.
var (
	// ErrClosed: the Conductor is shutting down.
	ErrClosed = errors.New("conductor is shutting down")
	// ErrNotFound: no source is registered under the key.
	ErrNotFound = errors.New("service not found")
	// ErrPast: a Replay alone changes this Conductor.
	ErrPast = errors.New("this is a recorded past; sources come from the journal alone")
	// ErrTooManySources: limits.max_sources is reached.
	ErrTooManySources = errors.New("too many registered sources")
)

// FieldError is bad input that names its field. Reason is one of missing,
// invalid_type, invalid_value, out_of_range, conflict, unknown_field.
type FieldError struct {
	Field   string
	Index   int // element of an array field, -1 when the field itself is wrong
	Reason  string
	Message string
}

func (e *FieldError) Error() string { return e.Message }

// Invalid returns a FieldError for a whole field.
func Invalid(field, reason, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Index: -1, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ConflictError says that the key is taken by a registration that differs.
type ConflictError struct {
	Key   Key
	Field string // the first field that differs, by its wire name
	Have  string
	Want  string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is registered with another %s: have %q, got %q", e.Key, e.Field, e.Have, e.Want)
}

// canonicalType returns the canonical spelling of a publisher type.
func canonicalType(s string) (string, bool) {
	for _, t := range []string{TypeVLLM, TypeSGLang, TypeMooncake, TypeStandard} {
		if strings.EqualFold(s, t) {
			return t, true
		}
	}
	return "", false
}

// normalize fills defaults and canonical spellings, or names the first bad field.
// Endpoints are looked at unless any will do.
func (r *Registration) normalize(anyEndpoint bool) error {
	if r.Tenant == "" {
		r.Tenant = DefaultTenant
	}
	required := []struct{ field, value string }{
		{"endpoint", r.Endpoint}, {"type", r.Type}, {"modelname", r.Model}, {"instance_id", r.Instance},
	}
	for _, f := range required {
		if f.value == "" {
			return Invalid(f.field, "invalid_value", "%s must not be empty", f.field)
		}
	}
	typ, ok := canonicalType(r.Type)
	if !ok {
		return Invalid("type", "invalid_value", "type must be vLLM, SGLang, Mooncake or Standard, got %q", r.Type)
	}
	r.Type = typ
	if r.BlockSize <= 0 {
		return Invalid("block_size", "out_of_range", "block_size must be greater than zero, got %d", r.BlockSize)
	}
	if r.Rank < 0 {
		return Invalid("dp_rank", "out_of_range", "dp_rank must not be negative, got %d", r.Rank)
	}
	if err := r.normalizeTTL(); err != nil {
		return err
	}
	if err := r.normalizeServes(); err != nil {
		return err
	}
	if err := r.normalizePolicies(); err != nil {
		return err
	}
	if err := r.resolve(); err != nil || anyEndpoint {
		return err
	}
	if err := zmq.CheckLive(r.Endpoint); err != nil {
		return Invalid("endpoint", "invalid_value", "endpoint: %v", err)
	}
	if r.ReplayEndpoint != "" {
		if err := zmq.Check(r.ReplayEndpoint); err != nil {
			return Invalid("replay_endpoint", "invalid_value", "replay_endpoint: %v", err)
		}
	}
	return nil
}

// normalizeServes sorts the instances a pool serves.
func (r *Registration) normalizeServes() error {
	if len(r.Serves) == 0 {
		return nil
	}
	if !r.pool() {
		return Invalid("serves", "invalid_value", "serves is for type %s: blocks of an engine are its own", TypeMooncake)
	}
	for i, name := range r.Serves {
		if name == "" {
			return &FieldError{Field: "serves", Index: i, Reason: "invalid_value", Message: "serves must not name an empty instance"}
		}
	}
	r.Serves = slices.Compact(slices.Sorted(slices.Values(r.Serves)))
	return nil
}

// diff names the first field in which want differs from the running r, by its
// wire name; "" when they are equal. copies is the word of stream.copies.
func (r Registration) diff(want Registration, copies string) (field, have, got string) {
	for _, f := range []struct{ name, have, got string }{
		{"endpoint", r.Endpoint, want.Endpoint},
		{"replay_endpoint", r.ReplayEndpoint, want.ReplayEndpoint},
		{"type", r.Type, want.Type},
		{"modelname", r.Model, want.Model},
		{"lora_name", r.Lora, want.Lora},
		{"block_size", fmt.Sprint(r.BlockSize), fmt.Sprint(want.BlockSize)},
		{"additionalsalt", r.Salt, want.Salt},
		{"ttl", r.ttlText(), want.ttlText()},
		{"serves", strings.Join(r.Serves, ", "), strings.Join(want.Serves, ", ")},
		{"copies", cmp.Or(r.Copies, copies), cmp.Or(want.Copies, copies)},
		{"owned", cmp.Or(r.Owned, OwnedCount), cmp.Or(want.Owned, OwnedCount)},
		{"clear", cmp.Or(r.Clear, ClearAll), cmp.Or(want.Clear, ClearAll)},
		{"may_announce", strings.Join(r.MayAnnounce, ", "), strings.Join(want.MayAnnounce, ", ")},
		{"hash_profile", r.Profile.Summary(), want.Profile.Summary()},
	} {
		if f.have != f.got {
			return f.name, f.have, f.got
		}
	}
	return "", "", ""
}

// RegisterOptions are the parts of a registration that are not its identity.
type RegisterOptions struct {
	// Replace moves an existing subscription to new fields instead of failing
	// with ConflictError; blocks of the old one are dropped.
	Replace bool
	// Static marks a source of the configuration; /ready waits for those, and they
	// alone may name further tenants. Any other registration keeps the tenants of the
	// source that it equals or replaces.
	Static bool
	// AnyEndpoint takes endpoints as they are: one that can never work makes a
	// source that has failed.
	AnyEndpoint bool
	// Admit, if set, sees everything that is registered before anything changes,
	// and refuses the registration with its error. It must not call the Conductor.
	Admit func(all iter.Seq[Registration]) error
}

// Register starts a source. It never waits for the endpoint. The same key with
// equal fields is a success that changes nothing.
//
// Errors: *FieldError for bad input, *ConflictError for a key taken by other
// fields, *ProfileConflictError, ErrTooManySources, ErrClosed, ErrPast, or that of
// Admit.
func (c *Conductor) Register(r Registration, opts RegisterOptions) error {
	if c.past {
		return ErrPast
	}
	if r.TTL == 0 {
		r.TTL = c.opts.TTL
	}
	if err := r.normalize(opts.AnyEndpoint); err != nil {
		return err
	}
	if r.Copies == copiesWord(c.opts.Copies) {
		r.Copies = ""
	}
	if !opts.Static && len(r.MayAnnounce) > 0 {
		return &FieldError{Field: "may_announce", Index: 0, Reason: "invalid_value", Message: "may_announce is for sources of the configuration file alone"}
	}
	return c.register(r, opts)
}

// register starts the source of a registration without faults.
func (c *Conductor) register(r Registration, opts RegisterOptions) error {
	for {
		giver := c.recoveredAt(r.Key())
		old, claimed, err := c.claimFrom(giver, r, opts)
		if !claimed {
			continue // another one gives now
		}
		if old != nil {
			old.stop()
		}
		return err
	}
}

// claimFrom claims a key while the recovered source that gives way, if there is one,
// stands still. It reports false if that is not the one under the key any more.
func (c *Conductor) claimFrom(giver *source, r Registration, opts RegisterOptions) (old *source, claimed bool, err error) {
	if giver != nil {
		giver.turn.Lock()
		defer giver.turn.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.sources[r.Key()]; at != giver && (giver != nil || at != nil && at.recovered) {
		return nil, false, nil
	}
	old, err = c.claim(r.Key(), r, opts)
	return old, true, err
}

// claim starts the source, unless its key is taken: an equal registration is
// left alone, a different one is an error or, with Replace, gives way and is
// returned to be stopped. c.mu is held, and the turn of a recovered source that has
// the key.
func (c *Conductor) claim(key Key, r Registration, opts RegisterOptions) (old *source, err error) {
	if c.closed {
		return nil, ErrClosed
	}
	if opts.Admit != nil {
		if err := opts.Admit(c.registrations()); err != nil {
			return nil, err
		}
	}
	old, taken := c.sources[key]
	switch {
	case taken && old.recovered: // gives way
	case taken:
		if !opts.Static {
			r.MayAnnounce = old.reg.MayAnnounce // only the configuration names tenants, so only it changes them
		}
		field, have, got := old.reg.diff(r, copiesWord(c.opts.Copies))
		switch {
		case field == "":
			return nil, nil
		case !opts.Replace:
			return nil, &ConflictError{Key: key, Field: field, Have: have, Want: got}
		}
	case c.opts.MaxSources > 0 && c.registrationCount() >= c.opts.MaxSources:
		return nil, ErrTooManySources
	}
	if err := c.checkProfile(r, old); err != nil {
		return nil, err
	}
	if taken && !old.recovered {
		c.removeSource(old)
	}
	s := c.newSource(r, opts.Static)
	if taken && old.recovered {
		s.inheritFrom(old)
		c.removeSource(old) // now, so that the instance is a row all the time
	}
	c.sources[key] = s
	c.observeEndpoint(s)
	c.watching.Do(func() { go c.watch() })
	go s.run()
	c.log.Info().Str("source", key.String()).Str("endpoint", r.Endpoint).Str("model", r.Model).Msg("source registered")
	return old, nil
}

// Unregister stops a source and drops its blocks and aliases. Its instance stays
// while another rank of it is registered. It returns the key with its defaults
// filled in; ErrNotFound when it is unknown, ErrPast.
func (c *Conductor) Unregister(key Key) (Key, error) {
	if key.Tenant == "" {
		key.Tenant = DefaultTenant
	}
	if c.past {
		return key, ErrPast
	}
	return c.unregister(key)
}

// unregister stops the source of a complete key.
func (c *Conductor) unregister(key Key) (Key, error) { return c.unregisterIf(key, nil) }

// unregisterIf does it if the source is the one meant, any when nil.
func (c *Conductor) unregisterIf(key Key, meant *source) (Key, error) {
	c.mu.Lock()
	s, ok := c.sources[key]
	ok = ok && (meant == nil || s == meant)
	if ok {
		delete(c.sources, key)
		c.removeSource(s)
	}
	c.mu.Unlock()
	if !ok {
		return key, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	s.stop()
	c.log.Info().Str("source", key.String()).Msg("source unregistered")
	return key, nil
}

// streamConfig fills the template for one source.
func (c *Conductor) streamConfig(r Registration, recorded *journal.Source, on func(stream.State)) stream.Config {
	cfg := c.opts.Stream
	cfg.OnState = func(state stream.State, reason string) {
		if recorded != nil {
			recorded.State(string(state), reason)
		}
		on(state)
	}
	if recorded != nil {
		cfg.OnUndecodable = recorded.Undecodable
	}
	cfg.Endpoint, cfg.ReplayEndpoint = r.Endpoint, r.ReplayEndpoint
	if c.opts.Transport != nil {
		cfg.Transport = c.opts.Transport(r)
	}
	cfg.PartialClears = r.Clear == ClearDevice
	if r.pool() {
		cfg.FirstSeq = 1 // the Mooncake master numbers its batches from 1
	}
	return cfg
}

// pauser is a feed that can let its publisher alone for a while.
type pauser interface {
	Pause()
	Unpause()
}

// Pause closes the connections of a source and keeps its blocks until
// Unpause. ErrNotFound, ErrPast.
func (c *Conductor) Pause(key Key) error {
	return c.withFeed(key, pauser.Pause)
}

// Unpause undoes Pause: what was published meanwhile shows as a gap and is
// replayed. A source that had failed tries its endpoint again. ErrNotFound,
// ErrPast.
func (c *Conductor) Unpause(key Key) error {
	return c.withFeed(key, pauser.Unpause)
}

func (c *Conductor) withFeed(key Key, do func(pauser)) error {
	if c.past {
		return ErrPast
	}
	c.mu.RLock()
	s := c.sources[key]
	c.mu.RUnlock()
	if s == nil {
		return fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	if p, ok := s.stream.(pauser); ok {
		do(p)
	}
	return nil
}

// observeEndpoint reports another source that follows the same publisher. c.mu is held.
func (c *Conductor) observeEndpoint(s *source) {
	for key, other := range c.sources {
		if key != s.reg.Key() && other.reg.publisher() == s.reg.publisher() {
			s.doctor.Report(doctor.FindingRank, "%s follows the same publisher %s: one of the two is registered with a wrong endpoint", key, s.reg.Endpoint)
			s.logFindings()
			return
		}
	}
}

// newSource opens the stream, which does not wait for the endpoint, and joins
// the source to its deployment. c.mu is held.
func (c *Conductor) newSource(r Registration, static bool) *source {
	recorded := c.opts.Journal.Register(r.Key().String(), r.fields(static)...)
	s := c.unjoined(r)
	s.static, s.journal = static, recorded
	s.stream = c.open(r, recorded, s.onState)
	c.addSource(s) // last: queries see it from here on
	return s
}

// newRecovered joins a source that is not registered here to its deployment. c.mu is
// held.
func (c *Conductor) newRecovered(r Registration) *source {
	s := c.unjoined(r)
	s.stream, s.recovered = newUnfollowed(c.now()), true
	c.addSource(s)
	return s
}

// unjoined makes a source without a feed, not yet visible to queries.
func (c *Conductor) unjoined(r Registration) *source {
	s := &source{
		conductor: c,
		profile:   r.profile(),
		stopped:   make(chan struct{}),
		done:      make(chan struct{}),
		opened:    c.now(),
		dropped:   make(map[events.Reason]uint64),
	}
	s.doctor = doctor.New(r.observed(), c.now)
	s.holdings = holdings{
		contexts: &c.contexts, owner: s, reg: r, policy: r.policy(c.opts.Copies),
		byContext: make(map[scope.Context]*namespace), media: make(map[string]tiers.Medium),
	}
	s.normal = normalize.New(normalize.Options{
		Registered: r.context(), Rank: r.Rank, Pool: r.pool(), Standard: r.Type == TypeStandard,
		DropOwned: r.Owned == OwnedDrop, ClearDevice: r.Clear == ClearDevice, MayAnnounce: r.mayAnnounce,
		Scheme: c.scheme, Findings: &s.doctor.Findings,
	})
	if r.pool() {
		s.pool = pool.New(pool.Options{
			Registered: r.context(), Completeness: c.opts.Completeness, Limit: c.opts.PoolBytes,
			Counts: c.countsGroup, Findings: &s.doctor.Findings,
		})
	}
	return s
}

func (r Registration) deploymentKey() scope.Deployment {
	return scope.Deployment{Tenant: r.Tenant, Model: r.Model, BlockSize: r.BlockSize}
}

// context returns the context that the registration names.
func (r *Registration) context() scope.Context {
	return scope.Context{Deployment: r.deploymentKey(), Variant: scope.Variant{Lora: r.Lora, Salt: r.Salt}}
}

// holdsFor reports whether blocks of two registrations count for the same rows.
func (r Registration) holdsFor(other Registration) bool {
	return r.deploymentKey() == other.deploymentKey() && r.pool() == other.pool() && slices.Equal(r.Serves, other.Serves)
}

// observed returns the registration as the doctor of its source needs it.
func (r *Registration) observed() doctor.Registered {
	return doctor.Registered{
		Key: r.Key().String(), Rank: r.Rank, Context: r.context(),
		Type: r.Type, SGLang: r.Type == TypeSGLang, Pool: r.pool(),
		Expiring: func(medium string) bool { return r.ttl(medium) > 0 },
	}
}

// publisher identifies where the events of a source come from.
type publisher struct {
	endpoint, instance, model string // the last two and rank for shared sockets alone
	rank                      int
}

// publisher returns where the events of the source come from.
func (r Registration) publisher() publisher {
	if !sharedSocket(r.Endpoint) {
		return publisher{endpoint: r.Endpoint}
	}
	return publisher{r.Endpoint, r.Instance, r.Model, r.Rank}
}
