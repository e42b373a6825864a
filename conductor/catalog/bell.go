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
	rung    chan struct{} // closed by Ring; guarded by mu
}

// Wait returns a channel that the next Ring closes.
func (b *bell) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.awaited.Load() {
		b.rung = make(chan struct{})
		b.awaited.Store(true)
	}
	return b.rung
}

// Ring wakes those who wait. Call it after the change.
func (b *bell) Ring() {
	if !b.awaited.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.awaited.CompareAndSwap(true, false) {
		close(b.rung)
	}
}
