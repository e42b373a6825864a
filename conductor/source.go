package conductor

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/pool"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/journal"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// source is one subscription and what it holds.
type source struct {
	conductor *Conductor
	reg       Registration
	profile   hash.Profile     // of reg
	policy    index.CopyPolicy // of reg, for the engine's own copies
	static    bool
	stream    feed
	journal   *journal.Source // nil: nothing is recorded
	stopping  sync.Once
	stopped   chan struct{} // closed by stop
	done      chan struct{} // closed when run has ended

	// recovered is a source that came from a peer and is not registered; it expires
	// then, if at all. turn guards the timer.
	recovered bool
	expires   *time.Timer

	// announced lists adapters this source stored blocks under without being
	// registered for them. Guarded by Conductor.mu.
	announced []string

	// normal learns what the events of the publisher mean. Owned by run.
	normal *normalize.Normalizer
	window atomic.Int64 // the normalizer's Window, for queries

	// pool has the objects of a store, nil for engines. Owned by run.
	pool    *pool.Pool
	objects atomic.Int64 // of the pool
	bound   atomic.Int64 // bytes that the objects take

	// news are hashes just announced that others wait for; turn guards them. waited and
	// joined are buffers.
	news           []taught
	regrouped      []scope.Group // likewise, groups whose kind was said
	waited, joined []uint64

	// asked is what contexts know of the hashes of the event at hand, stored what put
	// stores last. Owned by run.
	asked  inquiry
	stored index.Store

	// label and keys are buffers of labels and place. Owned by run.
	label, keys []uint64

	// doubted is true if the stream knows of gaps in the numbers of standardized events.
	// Owned by run.
	doubted bool

	// turn is held while something of the source is applied or aged. Where it says
	// "owned by run", holding turn is meant.
	turn sync.Mutex

	// settled: the recovery that filled it is done. turn guards it.
	settled bool

	// gone: it has ended, or gave all it holds to another. turn guards it.
	gone bool

	// mark is the batch applied last, valid if marked. Owned by run.
	mark   stream.Mark
	marked bool

	// peerLookAheads are the look-aheads that a peer told of the blocks it gave. Owned by run.
	peerLookAheads lookAheads

	// media are the media announced, by name. Owned by run.
	media map[string]tiers.Medium

	// adapters are the names of adapters by lora_id, see adapter.go. Owned by run.
	adapters map[uint64]*string

	// index finds a space by its key. Owned by run.
	index map[scope.Context]*namespace

	opened time.Time
	heard  atomic.Int64 // when the last batch with events was applied, in ns since 1970; 0: none was
	doctor *doctor.Doctor

	mu      sync.Mutex
	spaces  []*namespace               // changed by run only; guarded by mu for others
	tallies map[tallyKey]*atomic.Int64 // blocks on devices; guarded by mu
	dropped map[events.Reason]uint64   // of single events; guarded by mu
	lastErr string                     // guarded by mu
}

// feed is where steps come from: a stream.Stream, or what was recorded of one.
type feed interface {
	Next() (stream.Step, bool)
	Status() stream.Status
	Resync(reason string)
	Resume(stream.Mark)
	Doubt(reason string)
	Close()
}

// namespace is what one source holds in one context.
type namespace struct {
	context    *indexContext
	source     index.Source
	instance   int32   // id in the deployment, or tiers.Pool
	serves     []int32 // ids of the instances a pool is bound to; nil for all
	owners     map[normalize.Owner]*holder
	lookAheads lookAheads // of the blocks it holds or held; owned by run
}

// holder is the owner of a normalize.Owner, in two generations where the source has a
// time to live.
type holder struct {
	current index.Owner
	old     index.Owner // blocks announced in the period before; valid when hasOld
	hasOld  bool
	seeded  bool // old holds blocks that a peer knew, without a mark
}

// newSource opens the stream, which does not wait for the endpoint, and joins
// the source to its deployment. c.mu is held.
func (c *Conductor) newSource(r Registration, static bool) *source {
	recorded := c.opts.Journal.Register(r.Key().String(), r.fields(static)...)
	s := c.unjoined(r)
	s.static, s.journal = static, recorded
	s.stream = c.open(r, recorded, s.onState)
	c.join(s) // last: queries see it from here on
	return s
}

// newRecovered joins a source that nobody has registered to its deployment. c.mu is
// held.
func (c *Conductor) newRecovered(r Registration) *source {
	s := c.unjoined(r)
	s.stream, s.recovered = newUnfollowed(c.now()), true
	c.join(s)
	return s
}

// unjoined makes a source without a feed that nobody sees.
func (c *Conductor) unjoined(r Registration) *source {
	s := &source{
		conductor: c,
		reg:       r,
		profile:   r.profile(),
		policy:    r.policy(c.opts.Copies),
		stopped:   make(chan struct{}),
		done:      make(chan struct{}),
		index:     make(map[scope.Context]*namespace),
		media:     make(map[string]tiers.Medium),
		opened:    c.now(),
		dropped:   make(map[events.Reason]uint64),
		doctor:    doctor.New(r.observed(), c.now),
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

func (s *source) deploymentKey() scope.Deployment { return s.reg.deploymentKey() }

// onState hears of changes of the stream's state from the goroutine that runs.
func (s *source) onState(state stream.State) {
	if state == stream.Synced {
		s.guard(s.unseed)
	}
}

// waits reports whether the source is held back at the gate.
func (s *source) waits() bool { return s.conductor.recovering() }

// stop ends the stream and returns once nothing of the source is indexed.
func (s *source) stop() {
	s.stopping.Do(func() {
		close(s.stopped)
		s.stream.Close()
	})
	<-s.done
}

// run applies steps in order until the stream is closed.
func (s *source) run() {
	defer close(s.done)
	c := s.conductor
	select {
	case <-c.gate:
	case <-s.stopped:
		s.guard(s.end) // no step was asked for: a recovery may still be at it
		return
	}
	if !c.past {
		for _, ttl := range s.reg.ttls() {
			go s.age(ttl)
		}
	}
	for {
		step, ok := s.stream.Next()
		if !ok {
			s.guard(s.end)
			return
		}
		s.guard(func() { s.take(step) })
		s.tell()
	}
}

// end drops everything. turn is held.
func (s *source) end() {
	s.forget()
	s.gone, s.marked = true, false
}

// guard runs f. A broken invariant in it costs this source a resync and nothing
// else.
func (s *source) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			s.fail(fmt.Sprintf("internal error: %v", p))
			s.conductor.log.Error().Str("source", s.reg.Key().String()).Interface("panic", p).
				Str("stack", string(debug.Stack())).Msg("event application failed, source resyncs")
			s.stream.Resync("internal_error")
		}
	}()
	s.turn.Lock()
	defer s.turn.Unlock()
	f()
	s.logFindings()
}

// take applies one step.
func (s *source) take(step stream.Step) {
	switch step.Kind {
	case stream.Reset:
		s.journal.Reset(step.Epoch, step.Reason)
		s.conductor.log.Info().Str("source", s.reg.Key().String()).Str("reason", step.Reason).
			Uint64("epoch", step.Epoch).Msg("blocks of the source dropped")
		s.forget()
		s.fail("")
		s.marked = false
	case stream.Apply:
		if s.marked && step.Seq != s.mark.Seq+1 {
			s.normal.BatchMissing()
		}
		if len(step.Batch.Events) == 0 && len(step.Batch.Dropped) == 0 {
			s.journal.Idle(step.Epoch, step.Seq)
		} else {
			s.journal.Batch(step.Epoch, step.Seq, step.Replayed, step.Payload, step.Block)
			s.heard.Store(s.conductor.now().UnixNano())
		}
		s.apply(&step.Batch)
		s.mark, s.marked = stream.Mark{Seq: step.Seq, Print: step.Print}, true
		wire.Release(&step.Batch)
	}
}

// forget drops everything the source holds and what it learned.
func (s *source) forget() {
	for len(s.spaces) > 0 {
		s.quit(s.spaces[len(s.spaces)-1])
	}
	s.normal.Reset()
	s.noteGaps()
	s.noteWindow()
	s.adapters = nil
	if s.pool != nil {
		s.pool.Reset()
		s.noteObjects()
	}
	s.doctor.Reset()
}

// noteObjects shows others what the pool holds.
func (s *source) noteObjects() {
	if s.pool != nil {
		s.objects.Store(int64(s.pool.Objects()))
		s.bound.Store(s.pool.Bytes())
	}
}

// noteWindow shows queries the largest window that a group announced.
func (s *source) noteWindow() {
	if w := int64(s.normal.Window()); s.window.Load() != w {
		s.window.Store(w)
	}
}

// noteGaps lets the stream know whether a stream of standardized events has gaps.
func (s *source) noteGaps() {
	gaps := s.normal.Gaps()
	if gaps == s.doubted {
		return
	}
	s.doubted = gaps
	reason := ""
	if gaps {
		reason = ReasonEventGap
	}
	s.stream.Doubt(reason)
}

// space returns the source's namespace in a context, entering it when new.
func (s *source) space(key scope.Context) *namespace {
	ns, ok := s.index[key]
	if !ok {
		ns = s.conductor.enter(s, key)
		s.index[key] = ns
		s.mu.Lock()
		s.spaces = append(s.spaces, ns)
		s.mu.Unlock()
	}
	return ns
}

// quit leaves a namespace and drops what is in it.
func (s *source) quit(ns *namespace) {
	s.mu.Lock()
	s.spaces = slices.DeleteFunc(s.spaces, func(other *namespace) bool { return other == ns })
	s.mu.Unlock()
	delete(s.index, ns.key())
	s.conductor.exit(s, ns)
}

// quitEmpty leaves namespaces that hold nothing any more: salts may be as many
// as users. The registered one stays, it would only come back.
func (s *source) quitEmpty() {
	home := s.home()
	for i := len(s.spaces) - 1; i >= 0; i-- {
		if ns := s.spaces[i]; ns.key() != home && ns.blocks() == 0 {
			s.quit(ns)
		}
	}
}

// home is the context the registration names.
func (s *source) home() scope.Context { return s.reg.context() }

func (ns *namespace) key() scope.Context {
	return scope.Context{Deployment: ns.context.deployment.key, Variant: ns.context.key}
}

// blocks returns the memberships in the namespace. Callers but run hold mu of
// its source.
func (ns *namespace) blocks() int {
	n := 0
	for _, h := range ns.owners {
		n += ns.context.index.Blocks(h.current)
		if h.hasOld {
			n += ns.context.index.Blocks(h.old)
		}
	}
	return n
}

// holder returns the holder for a key, making it when new.
func (s *source) holder(ns *namespace, key normalize.Owner, medium tiers.Medium) *holder {
	if h, ok := ns.owners[key]; ok {
		return h
	}
	h := &holder{current: s.newOwner(ns, key, medium)}
	s.media[medium.Name] = medium
	s.mu.Lock()
	ns.owners[key] = h
	s.mu.Unlock()
	return h
}

func (s *source) newOwner(ns *namespace, key normalize.Owner, medium tiers.Medium) index.Owner {
	var tally *atomic.Int64
	if medium.Tier == tiers.Device {
		tally = s.tally(ns.context.deployment.key, key.Rank)
	} else {
		ns.context.deployment.tiered.Store(true)
	}
	return ns.context.newOwner(ns.source, tiers.Owner{Instance: ns.instance, Rank: key.Rank, Medium: medium, Serves: ns.serves}, tally)
}

// drop counts n skipped events or hashes.
func (s *source) drop(reason events.Reason, n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	s.dropped[reason] += uint64(n)
	s.mu.Unlock()
}

func (s *source) fail(text string) {
	s.mu.Lock()
	s.lastErr = text
	s.mu.Unlock()
}

// blocks returns how many block memberships the source has, over all contexts.
func (s *source) blocks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ns := range s.spaces {
		n += ns.blocks()
	}
	return n
}

// orphans returns how many blocks wait for their parent, over all contexts.
func (s *source) orphans() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ns := range s.spaces {
		n += ns.context.index.Waiting(ns.source)
	}
	return n
}

// drops returns the counts of the stream and of the application together.
func (s *source) drops(st stream.Status) map[events.Reason]uint64 {
	all := make(map[events.Reason]uint64, len(st.Dropped))
	maps.Copy(all, st.Dropped)
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, n := range s.dropped {
		all[r] += n
	}
	return all
}
