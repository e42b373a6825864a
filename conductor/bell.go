package conductor

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/scope"
)

// bell tells those who wait for it that answers of a deployment may have changed. As a rule there
// is no one: then a ring is one load.
//
//	watch: wait, ask, until rung --> wait, ask, …
//	source: apply a step, ring
//
// A step that is applied before the wait is in the answer, one that is applied later rings.
type bell struct {
	awaited atomic.Bool
	mu      sync.Mutex
	rung    chan struct{} // closed by ring; guarded by mu
}

// wait returns a channel that the next ring closes.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.awaited.Load() {
		b.rung = make(chan struct{})
		b.awaited.Store(true)
	}
	return b.rung
}

func (b *bell) ring() {
	if !b.awaited.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.awaited.CompareAndSwap(true, false) {
		close(b.rung)
	}
}

// ringBells tells watches that a step of the source was applied. Deployments that it left meanwhile ring by
// themselves.
func (s *holdings) ringBells() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		ns.deployment.bell.ring()
	}
}

// LookAgain is how long an answer may have changed before View.Changes says so, where no event of
// an engine has changed it: a time to live, the end of a source.
const LookAgain = time.Second

// Changes returns a channel that is closed when the answer to a query may have changed since the
// call. It is nil if nothing is registered for what the query asks. Callers also ask again after
// LookAgain.
func (v View) Changes(q *Query) <-chan struct{} {
	d := v.conductor.registry.deployment(scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant),
		Model: v.conductor.modelOf(q.Tenant, q.Model), BlockSize: q.BlockSize})
	if d == nil {
		return nil
	}
	return d.bell.wait()
}
