package catalog

import (
	"sync"
	"sync/atomic"
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

// Changes returns a channel that is closed when answers about the deployment may have changed since the call.
func (d *Deployment) Changes() <-chan struct{} { return d.bell.wait() }

// NotifyChange wakes those who wait for Changes. Call it after the change.
func (d *Deployment) NotifyChange() { d.bell.ring() }

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

// ring wakes those who wait. Call it after the change.
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
