package conductor

import (
	"fmt"
	"maps"
	"runtime/debug"
	"sync"

	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/index"
	"kvconductor/tiers"
)

// source is one subscription and what it holds.
type source struct {
	conductor *Conductor
	reg       Registration
	static    bool
	stream    *stream.Stream
	done      chan struct{}

	// announced lists adapters this source stored blocks under without being
	// registered for them. Guarded by Conductor.mu.
	announced []string

	// groups learns which attention groups count. Owned by run.
	groups groups

	mu      sync.Mutex
	spaces  []*namespace             // changed by run only; guarded by mu for others
	dropped map[events.Reason]uint64 // of single events; guarded by mu
	lastErr string                   // guarded by mu
}

// namespace is what one source holds in one context.
type namespace struct {
	context  *indexContext
	source   index.Source
	instance int32 // id in the deployment, or tiers.Pool
	owners   map[ownerKey]index.Owner
}

// ownerKey tells the owners of one namespace apart. Group -1 and group 0 are
// one: publishers omit the index where there is a single group.
type ownerKey struct {
	rank   int32
	medium string // canonical, as tiers.Medium.Name
	group  int
}

// newSource prepares a source and joins it to its deployment. c.mu is held.
func (c *Conductor) newSource(r Registration, static bool) *source {
	s := &source{
		conductor: c,
		reg:       r,
		static:    static,
		done:      make(chan struct{}),
		dropped:   make(map[events.Reason]uint64),
	}
	c.join(s)
	return s
}

func (s *source) deploymentKey() deploymentKey {
	return deploymentKey{tenant: s.reg.Tenant, model: s.reg.Model, blockSize: s.reg.BlockSize}
}

// start opens the stream; it does not wait for the endpoint.
func (s *source) start() {
	s.stream = stream.Open(s.conductor.streamConfig(s.reg))
	go s.run()
}

// stop ends the stream and returns once nothing of the source is indexed.
func (s *source) stop() {
	s.stream.Close()
	<-s.done
}

// run applies steps in order until the stream is closed.
func (s *source) run() {
	defer close(s.done)
	for {
		step, ok := s.stream.Next()
		if !ok {
			s.forget()
			return
		}
		s.take(step)
	}
}

// take applies one step. A broken invariant costs this source a resync and
// nothing else.
func (s *source) take(step stream.Step) {
	defer func() {
		if p := recover(); p != nil {
			s.fail(fmt.Sprintf("internal error: %v", p))
			s.conductor.log.Error().Str("source", s.reg.Key().String()).Interface("panic", p).
				Str("stack", string(debug.Stack())).Msg("event application failed, source resyncs")
			s.stream.Resync("internal_error")
		}
	}()
	switch step.Kind {
	case stream.Reset:
		s.conductor.log.Info().Str("source", s.reg.Key().String()).Str("reason", step.Reason).
			Uint64("epoch", step.Epoch).Msg("blocks of the source dropped")
		s.forget()
	case stream.Apply:
		s.apply(&step.Batch)
	}
}

// forget drops everything the source holds and what it learned.
func (s *source) forget() {
	s.mu.Lock()
	spaces := s.spaces
	s.spaces = nil
	s.mu.Unlock()
	for _, ns := range spaces {
		s.conductor.exit(ns)
	}
	s.groups = groups{}
}

// space returns the source's namespace in a context, entering it when new.
func (s *source) space(dk deploymentKey, ck contextKey) *namespace {
	for _, ns := range s.spaces {
		if ns.context.key == ck && ns.context.deployment.key == dk {
			return ns
		}
	}
	ns := s.conductor.enter(s, dk, ck)
	s.mu.Lock()
	s.spaces = append(s.spaces, ns)
	s.mu.Unlock()
	return ns
}

// owner returns the owner for a key, making it when new.
func (s *source) owner(ns *namespace, key ownerKey, medium tiers.Medium) index.Owner {
	if o, ok := ns.owners[key]; ok {
		return o
	}
	o := ns.context.newOwner(ns.source, tiers.Owner{Instance: ns.instance, Rank: key.rank, Medium: medium})
	s.mu.Lock()
	ns.owners[key] = o
	s.mu.Unlock()
	return o
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
		for _, o := range ns.owners {
			n += ns.context.index.Blocks(o)
		}
	}
	return n
}

// drops returns the counts of the stream and of the application together.
func (s *source) drops(st stream.Status) map[events.Reason]uint64 {
	all := make(map[events.Reason]uint64, len(st.Dropped)+len(s.dropped))
	maps.Copy(all, st.Dropped)
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, n := range s.dropped {
		all[r] += n
	}
	return all
}
