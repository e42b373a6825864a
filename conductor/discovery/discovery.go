// Package discovery finds out where engines publish, by asking their HTTP servers, and keeps
// the registrations of their sources up to date.
//
//	Target: URL --resolve--> addresses --ask--> ranks, model, block size --> Registry
//	          ^                                                                |
//	          +--------- every interval: health of the sources <---------------+
//
// A name that has several addresses is a fleet: each address is an instance of its own,
// NAME@ADDRESS. An engine is asked again when one of its sources is dead for a while, and when
// its publisher was restarted: the ports that the system picks are others then.
//
// Concurrency: one goroutine per target works at a time, at most workers in all. Manager.mu
// guards the list of targets, target.mu one target. No lock is held while an engine is asked.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/events/reach"
	"kvconductor/events/stream"
)

const (
	// Interval is the pause between two looks at a target.
	Interval = 5 * time.Second
	// deadAfter is how long a source may be without a connection before its engine is asked.
	deadAfter = 10 * time.Second
	// graceTime is how long an address may be missing from a name before its sources go.
	graceTime = 30 * time.Second

	minPause = 2 * time.Second
	maxPause = 30 * time.Second

	workers      = 16
	maxAddresses = 256
)

// Target is an engine, or a fleet of them, that is asked where it publishes.
type Target struct {
	// Registration has the fields that its sources have in common. Endpoints come from the
	// engine, as do Type, Model and BlockSize where they are not given. Rank is for an engine
	// that does not tell its ports.
	conductor.Registration
	//
	// Without a URL the registration has endpoints, type and model, and lacks its block size.
	URL    string
	Static bool // of the configuration
}

// host returns the host of the URL.
func (t *Target) host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Name identifies a target.
type Name struct {
	Instance, Tenant string
	Rank             int // AllRanks where the engine tells them
}

// AllRanks is the rank of a target with a URL.
const AllRanks = -1

// Name returns the name of the target.
func (t *Target) Name() Name {
	n := Name{t.Instance, cmp.Or(t.Tenant, conductor.DefaultTenant), AllRanks}
	if t.URL == "" {
		n.Rank = t.Rank
	}
	return n
}

// Registry is where sources are registered.
type Registry interface {
	Register(conductor.Registration, conductor.RegisterOptions) error
	Unregister(conductor.Key) (conductor.Key, error)
	// Health returns the state of a source and how often its publisher was restarted. It
	// returns false if there is no such source.
	Health(conductor.Key) (state stream.State, restarts uint64, ok bool)
	// ReportLearned adds a finding about settings that the engine told.
	ReportLearned(key conductor.Key, text string)
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
	// Learn returns the block size that the events of a rank have.
	Learn func(ctx context.Context, t *Target, r Rank) (int, error)
	// Reaches refuses endpoints that clients may not name; nil refuses none.
	Reaches func(endpoint string) error
	// Bounds returns how many targets there may be, and how many of clients of one tenant; 0 is
	// no bound.
	Bounds func() (all, ofTenant int)
	Now    func() time.Time // time.Now when nil
	Log    zerolog.Logger
}

// Manager follows targets.
type Manager struct {
	opts Options
	asker
	places chan struct{}
	ctx    context.Context
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	targets map[Name]*target // guarded by mu
	asked   map[string]uint64
}

// target is a Target that is followed.
type target struct {
	Target
	ctx  context.Context
	stop context.CancelFunc
	// after is closed once the target that had the name before has dropped its sources; done
	// once this one has.
	after, done chan struct{}

	mu        sync.Mutex // held while the target is worked on
	many      bool       // its name has had several addresses
	engines   map[netip.Addr]*engine
	withdrawn map[conductor.Key]bool // unregistered by others

	seen   atomic.Bool // it was worked on
	queued atomic.Bool // a look waits for a place, or is under way
	shown  sync.Mutex
	err    string // guarded by shown
	counts struct{ addresses, sources int }
}

// engine is one address of a target.
type engine struct {
	instance  string
	keys      []conductor.Key
	restarts  uint64
	next      time.Time // of the next question; zero: none is due
	pause     time.Duration
	dead      time.Time // since when a source is dead
	missing   time.Time // since when the name does not have the address
	blockSize int       // learned
	learning  bool
}

// New returns a Manager without targets.
func New(o Options) *Manager {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Resolve == nil {
		o.Resolve = resolve
	}
	m := &Manager{
		opts: o, asker: asker{rules: o.Rules, tokenFile: o.TokenFile}, places: make(chan struct{}, workers),
		targets: make(map[Name]*target), asked: make(map[string]uint64),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Check returns the fault of a target, nil if it has none. The error is a *conductor.FieldError.
func Check(t *Target) error {
	if t.Instance == "" {
		return conductor.Invalid("instance_id", "invalid_value", "instance_id must not be empty")
	}
	if t.URL == "" {
		return checkAuto(t)
	}
	if err := CheckURL(t.URL); err != nil {
		return conductor.Invalid("discover", "invalid_value", "discover: %v", err)
	}
	for _, f := range []struct{ name, value string }{{"endpoint", t.Endpoint}, {"replay_endpoint", t.ReplayEndpoint}, {"snapshot_endpoint", t.SnapshotEndpoint}} {
		if f.value != "" {
			return conductor.Invalid(f.name, "conflict", "%s comes from the engine with discover", f.name)
		}
	}
	trial := t.Registration
	trial.Endpoint = "tcp://127.0.0.1:1"
	trial.Type, trial.Model = cmp.Or(trial.Type, conductor.TypeVLLM), cmp.Or(trial.Model, "model")
	if trial.BlockSize == 0 {
		trial.BlockSize = 1
	}
	if err := trial.Check(); err != nil {
		return err
	}
	if trial.Pool() {
		return conductor.Invalid("discover", "invalid_value", "discover is for engines, not for type %s", conductor.TypeMooncake)
	}
	return nil
}

// checkAuto is Check for a target without a URL.
func checkAuto(t *Target) error {
	if strings.HasPrefix(t.Endpoint, "bind:") {
		return conductor.Invalid("block_size", "invalid_value", "block_size must be a number where publishers connect to us")
	}
	trial := t.Registration
	trial.BlockSize = 1
	if err := trial.Check(); err != nil {
		return err
	}
	if trial.Pool() {
		return conductor.Invalid("block_size", "invalid_value", "block_size must be a number for type %s", conductor.TypeMooncake)
	}
	return nil
}

// admit returns why one more target may not be added. mu is held.
func (m *Manager) admit(t *Target) error {
	if !t.Static && m.opts.Reaches != nil && t.URL == "" {
		for _, f := range []struct{ name, value string }{{"endpoint", t.Endpoint}, {"replay_endpoint", t.ReplayEndpoint}, {"snapshot_endpoint", t.SnapshotEndpoint}} {
			if f.value == "" {
				continue
			}
			if err := m.opts.Reaches(f.value); err != nil {
				return conductor.Invalid(f.name, "invalid_value", "%s %v", f.name, err)
			}
		}
	}
	if m.opts.Bounds == nil {
		return nil
	}
	all, ofTenant := m.opts.Bounds()
	same := 0
	for _, other := range m.targets {
		if !other.Static && other.Tenant == t.Tenant {
			same++
		}
	}
	switch {
	case all > 0 && len(m.targets) >= all:
		return conductor.ErrTooManySources
	case ofTenant > 0 && !t.Static && same >= ofTenant:
		return fmt.Errorf("%w for its tenant: limits.max_tenant_sources allows %d", conductor.ErrTooManySources, ofTenant)
	}
	return nil
}

// Add begins to follow a target. The same target again changes nothing. With other fields it
// is a *conductor.ConflictError, or takes the place of the old one.
func (m *Manager) Add(t Target, replace bool) error {
	if err := Check(&t); err != nil {
		return err
	}
	t.Tenant = t.Name().Tenant
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.targets[t.Name()]
	switch {
	case old == nil:
		if err := m.admit(&t); err != nil {
			return err
		}
	case same(&old.Target, &t):
		return nil
	case !replace || old.Static && !t.Static:
		return &conductor.ConflictError{Key: t.Key(), Field: "discover", Have: old.URL, Want: t.URL}
	default:
		m.end(old)
	}
	n := &target{Target: t, engines: make(map[netip.Addr]*engine), withdrawn: make(map[conductor.Key]bool), done: make(chan struct{})}
	if old != nil {
		n.after = old.done
	}
	n.ctx, n.stop = context.WithCancel(m.ctx)
	m.targets[t.Name()] = n
	m.tasks.Go(func() { m.work(n) })
	return nil
}

// same reports whether two targets are equal.
func same(a, b *Target) bool {
	return a.URL == b.URL && a.Static == b.Static && reflect.DeepEqual(a.Registration, b.Registration)
}

// Remove stops following a target, and drops its sources. It reports whether there was one that
// a client may remove, or the configuration.
func (m *Manager) Remove(n Name) bool {
	n.Tenant = cmp.Or(n.Tenant, conductor.DefaultTenant)
	m.mu.Lock()
	t := m.targets[n]
	delete(m.targets, n)
	m.mu.Unlock()
	if t == nil {
		return false
	}
	m.end(t)
	return true
}

// end drops the sources of a target that is followed no more.
func (m *Manager) end(t *target) {
	t.stop()
	m.tasks.Go(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		defer close(t.done)
		for _, e := range t.engines {
			m.drop(t, e)
		}
	})
}

// drop unregisters the sources of an engine.
func (m *Manager) drop(t *target, e *engine) {
	for _, key := range e.keys {
		m.opts.Registry.Unregister(key) // it may be gone
	}
	e.keys = nil
}

// Run looks at all targets each Interval, until ctx ends. It returns once nothing is under way.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.Close()
			return
		case <-tick.C:
			m.look()
		}
	}
}

// Settle waits until each target has been asked once, but not longer than a time.
func (m *Manager) Settle(ctx context.Context, most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := false
		m.mu.Lock()
		for _, t := range m.targets {
			waiting = waiting || !t.seen.Load()
		}
		m.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			return
		case <-tick.C:
		}
	}
}

// Close ends all work. The sources stay.
func (m *Manager) Close() {
	m.stop()
	m.tasks.Wait()
}

// look works on each target that nothing works on.
func (m *Manager) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.targets {
		if !t.queued.CompareAndSwap(false, true) {
			continue
		}
		m.tasks.Go(func() {
			defer t.queued.Store(false)
			m.work(t)
		})
	}
}

// work brings the sources of a target up to date. It returns at once if that is under way.
func (m *Manager) work(t *target) {
	if t.after != nil {
		select {
		case <-t.after:
		case <-t.ctx.Done():
			return
		}
	}
	select {
	case m.places <- struct{}{}:
		defer func() { <-m.places }()
	case <-t.ctx.Done():
		return
	}
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return
	}
	now := m.opts.Now()
	err := m.locate(t, now)
	for addr, e := range t.engines {
		m.watch(t, e, now)
		if e.next.IsZero() || now.Before(e.next) || !e.missing.IsZero() {
			continue
		}
		if askErr := m.question(t, addr, e); askErr != nil {
			e.pause = min(max(2*e.pause, minPause), maxPause)
			e.next = now.Add(e.pause)
			err = fmt.Errorf("%s: %w", e.instance, askErr)
			m.count("failed")
		} else {
			m.count("ok")
		}
	}
	t.show(err)
}

// show lets others see how far the target has come.
func (t *target) show(err error) {
	t.seen.Store(true)
	t.shown.Lock()
	defer t.shown.Unlock()
	t.err = ""
	if err != nil {
		t.err = err.Error()
	}
	t.counts.addresses, t.counts.sources = len(t.engines), 0
	for _, e := range t.engines {
		t.counts.sources += len(e.keys)
	}
}

func (m *Manager) count(result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[result]++
}

// watch plans a question about an engine where its sources are dead, or its publisher is
// another one.
func (m *Manager) watch(t *target, e *engine, now time.Time) {
	dead, restarts := false, uint64(0)
	e.keys = slices.DeleteFunc(e.keys, func(key conductor.Key) bool {
		state, n, ok := m.opts.Registry.Health(key)
		if !ok {
			t.withdrawn[key] = true
			return true
		}
		dead = dead || state == stream.Connecting || state == stream.Stale || state == stream.Failed
		restarts += n
		return false
	})
	switch {
	case restarts != e.restarts && len(e.keys) > 0:
		e.restarts, e.next = restarts, now
	case !dead:
		e.dead = time.Time{}
	case e.dead.IsZero():
		e.dead = now
	case now.Sub(e.dead) >= deadAfter && e.next.IsZero():
		e.next = now
	}
}

// question asks an engine, and registers what it says.
func (m *Manager) question(t *target, addr netip.Addr, e *engine) error {
	found, err := m.ask(t.ctx, &t.Target, addr)
	if err != nil {
		return err
	}
	r := t.Registration
	r.Type, r.Model = cmp.Or(r.Type, found.Type), cmp.Or(r.Model, found.Model)
	var learned []string
	if t.Model == "" {
		learned = append(learned, fmt.Sprintf("model %q", r.Model))
	}
	if r.BlockSize == 0 {
		if r.BlockSize = cmp.Or(found.BlockSize, e.blockSize); r.BlockSize == 0 {
			m.learn(t, e, found.Ranks[0])
			return errors.New("its block size is not known before its first events")
		}
		learned = append(learned, fmt.Sprintf("block size %d", r.BlockSize))
	}
	old := e.keys
	e.keys = nil
	for _, rank := range found.Ranks {
		r := r
		r.Instance, r.Rank = e.instance, rank.Rank
		r.Endpoint, r.ReplayEndpoint = rank.Endpoint, rank.Replay
		if r.Copies != conductor.CopiesSet {
			r.SnapshotEndpoint = rank.Snapshot
		}
		key := r.Key()
		if t.withdrawn[key] {
			continue
		}
		if regErr := m.opts.Registry.Register(r, conductor.RegisterOptions{Static: t.Static, Replace: slices.Contains(old, key)}); regErr != nil {
			err = fmt.Errorf("rank %d: %w", rank.Rank, regErr)
			if slices.Contains(old, key) {
				e.keys = append(e.keys, key)
			}
			continue
		}
		e.keys = append(e.keys, key)
		if len(learned) > 0 {
			m.opts.Registry.ReportLearned(key, fmt.Sprintf("%s told %s", cmp.Or(t.URL, "the engine's first events"), strings.Join(learned, " and ")))
		}
	}
	for _, key := range old {
		if !slices.Contains(e.keys, key) {
			m.opts.Registry.Unregister(key) // it may be gone
		}
	}
	if err != nil {
		return err
	}
	e.next, e.pause, e.dead = time.Time{}, 0, time.Time{}
	m.opts.Log.Info().Str("url", t.URL).Str("instance_id", e.instance).Int("ranks", len(e.keys)).Msg("engine discovered")
	return nil
}

// learn waits for the first events of a rank, which tell the block size.
func (m *Manager) learn(t *target, e *engine, r Rank) {
	if e.learning || m.opts.Learn == nil {
		return
	}
	e.learning = true
	m.tasks.Go(func() {
		size, err := m.opts.Learn(t.ctx, &t.Target, r)
		t.mu.Lock()
		e.learning = false
		if err == nil {
			e.blockSize, e.next, e.pause = size, m.opts.Now(), 0
		}
		t.mu.Unlock()
		if err == nil {
			m.work(t)
		}
	})
}
