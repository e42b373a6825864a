package conductor

import (
	"iter"
	"slices"
	"sync"
	"time"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/index"
)

// ReasonNotRegistered is the reason of a source that was recovered from a peer and
// that is not registered here: nothing follows it, and it expires.
const ReasonNotRegistered = "not_registered"

// Recovery brings back what a peer holds, before the gate of Options.Gate opens.
//
//	peer's marks  --Source--> the registered source that waits at the gate, or a
//	peer's blocks --Stored-->   recovered source, which its registration takes over
//
// A peer that tells marks gives each source exactly what its engine held at the
// mark; the source goes on behind it. From one that tells none the blocks are a
// guess at what the engine holds: they are kept apart, as the older generation of
// their holders, until the source's own history is whole.
//
// One goroutine recovers at a time.
type Recovery struct {
	c       *Conductor
	ttl     time.Duration
	sources map[Key]*source  // those asked for, by what they were asked for as; nil takes nothing
	pending []pendingStretch // whose parent was not known yet
	Blocks  int              // brought back
	Refused int              // of sources that run already, or of deployments and tenants not theirs
}

// pendingStretch is a stretch that came before its parent, which another tier or another
// holder has, or whose parent has left.
type pendingStretch struct {
	source *source
	ns     *namespace
	to     index.Owner
	blocks index.Stretch
	local  []uint64
}

// Recover begins one. Sources that stay without a registration expire ttl after
// Done, 0 is never.
func (c *Conductor) Recover(ttl time.Duration) *Recovery {
	return &Recovery{c: c, ttl: ttl, sources: make(map[Key]*source)}
}

// HashSeed returns the seed of the canonical hashes that Stored takes.
func (r *Recovery) HashSeed() uint64 { return r.c.HashSeed() }

// BlockSizes returns the block sizes of a partition as Conductor.BlockSizes does.
func (r *Recovery) BlockSizes(p Partition) []int { return r.c.BlockSizes(p) }

// Source notes how far the peer had come with a source.
func (r *Recovery) Source(m SourceMark) error {
	s, err := r.lock(m.Registration, true)
	if s == nil {
		return err
	}
	defer s.turn.Unlock()
	s.normal.RaiseParts(m.Parts)
	s.peerLookAheads |= lookAheadSet(m.LookAheads)
	if m.Mark != nil {
		s.mark, s.marked = *m.Mark, true
	}
	return nil
}

// Stored brings blocks back. Source had the source's mark before, or the peer knows
// of none.
func (r *Recovery) Stored(e *Stored) error {
	s, err := r.lock(e.Source, false)
	if s == nil {
		r.Refused += len(e.Engine)
		return err
	}
	defer s.turn.Unlock()
	if !s.reg.mayAnnounce(e.Tenant) || e.Owned && s.reg.Owned == OwnedDrop {
		r.Refused += len(e.Engine)
		return nil
	}
	at := scope.Context{
		Deployment: scope.Deployment{Tenant: e.Tenant, Model: e.Model, BlockSize: e.BlockSize}, Variant: scope.Variant{Lora: e.Lora, Salt: e.Salt},
	}
	ns := s.namespaceIn(at)
	local := e.Local
	if local == nil && e.ClientHashes[0] != 0 {
		if local = e.ClientHashes; ns.context.translates {
			r.Refused += len(e.Engine) // its tokens' hashes in this context are not known
			return nil
		}
	}
	switch {
	case s.marked:
		ns.useLookAheads(&r.c.contexts, max(s.peerLookAheads, noLookAhead))
	case local == nil:
		ns.useAnyLookAhead(&r.c.contexts)
	default:
		ns.useLookAheads(&r.c.contexts, dynamoLookAheads) // Dynamo's dumps do not tell
	}
	owner := s.holder(ns, normalize.Owner{Rank: e.Rank, Medium: e.Medium.Name, Group: e.Group, Backend: e.Backend, Owned: e.Owned}, e.Medium)
	to := owner.current
	if !s.marked {
		to = s.previousGeneration(ns, owner, e)
		r.c.unscoped.Store(true)
	}
	if local != nil && !e.Waiting && !e.Root && (e.HasParent || e.HasKey) && !ns.placed(e.Stretch) {
		r.deferUntilParent(s, ns, to, e.Stretch, local)
	}
	if local == nil && e.Key == e.Engine[0] && s.reg.Type != TypeStandard {
		r.c.addWaiter(s, ns.context)
	}
	ns.context.index.Restore(to, e.Stretch, local, false)
	ns.context.learn(e.ClientHashes, e.Local, e.Root)
	r.Blocks += len(e.Engine)
	return nil
}

// Name brings back what an engine hash means.
func (r *Recovery) Name(n *Name) error {
	s, err := r.lock(n.Source, true)
	if s == nil {
		return err
	}
	defer s.turn.Unlock()
	if !s.reg.mayAnnounce(n.Tenant) {
		return nil
	}
	ns := s.namespaceIn(scope.Context{
		Deployment: scope.Deployment{Tenant: n.Tenant, Model: n.Model, BlockSize: n.BlockSize}, Variant: scope.Variant{Lora: n.Lora, Salt: n.Salt},
	})
	ns.context.index.Teach(ns.source, n.Engine, n.Key)
	return nil
}

// Done ends the recovery: what came back is what the sources go on with.
func (r *Recovery) Done() {
	r.attachPending()
	for s := range r.filled() {
		if s.marked {
			s.stream.Resume(s.mark)
		}
		s.settled = true
		if s.recovered && r.ttl > 0 {
			s.expires = time.AfterFunc(r.ttl, func() { r.c.expire(s) })
		}
	}
}

// deferUntilParent notes a stretch whose parent has no place yet.
func (r *Recovery) deferUntilParent(s *source, ns *namespace, to index.Owner, e *index.Stretch, local []uint64) {
	r.pending = append(r.pending, pendingStretch{s, ns, to, index.Stretch{
		HasParent: e.HasParent, Parent: e.Parent, Key: e.Key, HasKey: e.HasKey, Engine: slices.Clone(e.Engine), ClientHashes: slices.Clone(e.ClientHashes),
	}, slices.Clone(local)})
}

// attachPending ties the stretches that came early to their parents, as far as those have
// come since.
func (r *Recovery) attachPending() {
	for before := -1; len(r.pending) != before; {
		before = len(r.pending)
		r.pending = slices.DeleteFunc(r.pending, func(e pendingStretch) bool { return e.attach(false) })
		if len(r.pending) == before {
			// Their parents are not to come.
			r.pending = slices.DeleteFunc(r.pending, func(e pendingStretch) bool { return e.blocks.HasKey && e.attach(true) })
		}
	}
	r.pending = nil
}

// attach reports whether nothing is left to do. With complete, no parent is waited for.
func (e *pendingStretch) attach(complete bool) bool {
	e.source.turn.Lock()
	defer e.source.turn.Unlock()
	if e.source.byContext[e.ns.key()] != e.ns {
		return true // registered or unregistered meanwhile
	}
	known := e.ns.placed(&e.blocks)
	if known || complete {
		e.ns.context.index.Restore(e.to, &e.blocks, e.local, complete)
	}
	return known || complete
}

// Undo drops what came back, so that another peer can be asked.
func (r *Recovery) Undo() {
	var drop []*source
	for s := range r.filled() {
		s.forget()
		s.marked = false
		if s.recovered {
			drop = append(drop, s)
		}
	}
	for _, s := range drop {
		_, _ = r.c.unregisterIf(s.reg.Key(), s)
	}
	r.sources, r.pending, r.Blocks, r.Refused = make(map[Key]*source), nil, 0, 0
}

// filled yields the sources that something came back to, each with its turn held.
func (r *Recovery) filled() iter.Seq[*source] {
	return func(yield func(*source) bool) {
		done := make(map[*source]bool)
		for key, s := range r.sources {
			for s != nil && !done[s] {
				done[s] = true
				s.turn.Lock()
				if s.gone {
					s.turn.Unlock()
					s = r.c.successorOf(s)
					r.sources[key] = s
					continue
				}
				more := yield(s)
				s.turn.Unlock()
				if !more {
					return
				}
			}
		}
	}
}

// lock returns the source that takes the blocks of a registration, with its turn
// held, or nil. One that was registered meanwhile follows the recovered one it
// replaced; one that was unregistered takes nothing more.
func (r *Recovery) lock(reg Registration, exact bool) (*source, error) {
	for {
		s, err := r.source(reg, exact)
		if s == nil || err != nil {
			return nil, err
		}
		s.turn.Lock()
		if !s.gone {
			return s, nil
		}
		s.turn.Unlock()
		r.sources[complete(reg).Key()] = r.c.successorOf(s)
	}
}

// successorOf returns the source that is registered in the place of one that is gone, nil
// if there is none.
func (c *Conductor) successorOf(gone *source) *source {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.sources[gone.reg.Key()]
	if s == nil || s == gone || s.recovered || !s.atGate() || s.deploymentKey() != gone.deploymentKey() {
		return nil
	}
	return s
}

// complete fills in the tenant of a registration that names none.
func complete(reg Registration) Registration {
	if reg.Tenant == "" {
		reg.Tenant = DefaultTenant
	}
	return reg
}

// source returns the source that takes the blocks of a registration: the one under
// its key, else, for a peer that tells no sources, one of its instance that may
// publish for several ranks, else a recovered one. nil is one that takes nothing.
func (r *Recovery) source(reg Registration, exact bool) (*source, error) {
	reg = complete(reg)
	key := reg.Key()
	if s, known := r.sources[key]; known {
		return s, nil
	}
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	s := c.sources[key]
	if s == nil && !exact && reg.Endpoint == "" {
		s = c.sameInstanceSource(reg)
	}
	switch {
	case s == nil:
		if c.opts.MaxSources > 0 && len(c.sources) >= c.opts.MaxSources {
			return nil, ErrTooManySources
		}
		s = c.newRecovered(reg)
		c.sources[key] = s
		go s.run()
	case !s.recovered && !s.atGate(), s.deploymentKey() != reg.deploymentKey():
		s = nil
	}
	r.sources[key] = s
	return s, nil
}

// expire drops a recovered source that is still not registered.
func (c *Conductor) expire(s *source) {
	key := s.reg.Key()
	c.mu.RLock()
	still := c.sources[key] == s
	c.mu.RUnlock()
	if still {
		c.log.Info().Str("source", key.String()).Int("blocks", s.blocks()).Msg("blocks recovered from a peer expire: nobody has registered their source")
		_, _ = c.unregisterIf(key, s)
	}
}

// unfollowed is the feed of a recovered source: nothing comes from it.
type unfollowed struct {
	closed chan struct{}
	mu     sync.Mutex
	st     stream.Status // guarded by mu
}

func newUnfollowed(now time.Time) *unfollowed {
	return &unfollowed{closed: make(chan struct{}), st: stream.Status{
		State: stream.Partial, Reason: ReasonNotRegistered, History: ReasonNotRegistered, Epoch: 1, LastBatchAt: now,
		Dropped: map[events.Reason]uint64{},
	}}
}

func (f *unfollowed) Next() (stream.Step, bool) { <-f.closed; return stream.Step{}, false }
func (f *unfollowed) Resync(string)             {}
func (f *unfollowed) Doubt(string)              {}
func (f *unfollowed) Close()                    { close(f.closed) }

func (f *unfollowed) Status() stream.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st
}

func (f *unfollowed) Resume(m stream.Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.LastSeq, f.st.HasSeq, f.st.History = m.Seq, true, m.Missing
}
