package watch

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"

	"example.com/conductor/conductor/scope"
)

// Bounds of the queue of a viewer. A frame that is larger than maxQueuedBytes has room alone.
const (
	maxQueued      = 256
	maxQueuedBytes = 1 << 20
)

// Viewer is one client that looks.
type Viewer struct {
	audience *audience
	feed     bool
	wake     chan struct{} // something is queued
	over     chan struct{} // closed when the Hub ends

	mu     sync.Mutex
	frames [][]byte // guarded by mu
	bytes  int      // of frames; guarded by mu
	lacks  bool     // the viewer needs the whole state before anything else; guarded by mu
	busy   bool     // frames that Take returned are on their way; guarded by mu
}

// Wake receives when Take has frames.
func (v *Viewer) Wake() <-chan struct{} { return v.wake }

// Over is closed when the server leaves.
func (v *Viewer) Over() <-chan struct{} { return v.over }

// Take returns the queued frames. A caller has sent all frames of the call before.
func (v *Viewer) Take() [][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.frames
	v.frames, v.bytes, v.busy = nil, 0, len(all) > 0
	return all
}

// pushFrame queues a frame. It reports false if there is no room: then the viewer loses its queue, and
// lacks the whole state.
func (v *Viewer) pushFrame(f []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.lacks:
		return true
	case len(v.frames) > 0 && (v.bytes+len(f) > maxQueuedBytes || len(v.frames) >= maxQueued):
		v.frames, v.bytes, v.lacks = nil, 0, true
		return false
	}
	v.queueFrame(f)
	return true
}

// queueState queues the whole state.
func (v *Viewer) queueState(f []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lacks = false
	v.queueFrame(f)
}

// queueFrame queues a frame. v.mu is held.
func (v *Viewer) queueFrame(f []byte) {
	v.frames, v.bytes = append(v.frames, f), v.bytes+len(f)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// wantsAll reports whether the viewer lacks the whole state and has sent what it had.
func (v *Viewer) wantsAll() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lacks && !v.busy
}

// audience is all viewers of the same tenants.
type audience struct {
	tenants scope.Tenants
	name    string       // begins the ids of queries, unlike those of other audiences
	limit   atomic.Int64 // bytes of recent

	viewers atomic.Pointer[[]*Viewer] // never changed once published
	feeders atomic.Int32              // viewers that see batches
	batches budget
	queries budget

	// The frame of the whole state at a collection. Guarded by Hub.mu.
	whole   []byte
	wholeOf *collection

	recent recent
}

func newAudience(tenants scope.Tenants) *audience {
	var name [3]byte
	rand.Read(name[:]) // it never fails
	a := &audience{tenants: tenants, name: "q" + hex.EncodeToString(name[:]) + "-"}
	a.viewers.Store(new([]*Viewer))
	a.batches.left.Store(batchesPerSecond)
	a.queries.left.Store(queriesPerSecond)
	return a
}

// all returns the viewers.
func (a *audience) all() []*Viewer { return *a.viewers.Load() }

// addViewer adds a viewer. Hub.mu is held.
func (a *audience) addViewer(v *Viewer) {
	all := append(slices.Clone(a.all()), v)
	a.viewers.Store(&all)
	if v.feed {
		a.feeders.Add(1)
	}
}

// removeViewer takes a viewer away. Hub.mu is held.
func (a *audience) removeViewer(v *Viewer) {
	all := slices.DeleteFunc(slices.Clone(a.all()), func(o *Viewer) bool { return o == v })
	a.viewers.Store(&all)
	if v.feed {
		a.feeders.Add(-1)
	}
}

// pushToAll queues a frame for all viewers. A frame of the feed goes only to those that see batches.
func (a *audience) pushToAll(f []byte, feed bool) {
	for _, v := range a.all() {
		if !feed || v.feed {
			v.pushFrame(f)
		}
	}
}

// encodeFrame returns an event of a stream, in the form of server-sent events.
func encodeFrame(event string, data []byte) []byte {
	f := make([]byte, 0, len("event: \ndata: \n\n")+len(event)+len(data))
	f = append(append(append(f, "event: "...), event...), "\ndata: "...)
	return append(append(f, data...), "\n\n"...)
}
