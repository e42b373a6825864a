// Package watch collects what operators look at:
//
//	conductor.Stats --collect--> rows, sums of tenants --changes--> audience --frames--> Viewer
//	                                  |                                ^
//	                                  +--> history, documents          +-- batches, queries
//
// A Hub collects at a pace: each second while a Viewer looks, else for the history alone. An
// audience is all viewers of the same tenants: what they see is encoded once. A Viewer has a short
// queue. A viewer that reads too slowly loses its queue, and gets the whole state again.
//
// Invariants:
//
//  1. An audience gets nothing of other tenants, counts of what it does not see included.
//  2. Batches and queries are looked at while there is a viewer. They wait for no viewer.
//  3. Collecting takes at most a hundredth of the time: the next collection waits accordingly.
//  4. Every collection is shown to every viewer, as its difference to the one before.
//
// Concurrency: all methods are safe for concurrent use. Hub.mu comes before all locks of the
// Conductor; the locks of an audience and of a viewer are leaves. Batch and Query never take
// Hub.mu.
package watch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
)

// Config is what a Hub is made of.
type Config struct {
	Conductor *conductor.Conductor
	Version   string
	// Viewers is how many may look at once at /admin/live, 0 for none.
	Viewers int
	// KeepQueries keeps the token ids of some queries while there is a viewer (ui.recent_queries).
	KeepQueries bool
	// Draining says that the server is about to leave; nil is never.
	Draining func() bool
	// Snapshots and Replicas tell of those of the server; nil is none.
	Snapshots func() Snapshots
	Replicas  func() []Replica
	// Refused tells how many requests the server has refused since its start for want of room; nil is none.
	Refused func() uint64
	// Targets tells of those of discovery, sorted by name; nil is none.
	Targets func() []Target
	// Store tells of the store that replicas share; nil is none.
	Store func() *Store
	// Process tells of the process of the server; nil is not known.
	Process func() Process
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Errors of Join.
var (
	ErrBusy     = errors.New("as many clients look as may at once")
	ErrDisabled = errors.New("ui.enabled is false")
)

const (
	pace    = time.Second      // between collections while there is a viewer
	minPace = 9 * pace / 10    // collections are never closer
	step    = 15 * time.Second // between points of the history
	// share is the part of the time that collecting may take.
	share = 100
)

// Hub collects for all viewers. Create it with New and end it with Close.
type Hub struct {
	cfg     Config
	started time.Time

	audiences atomic.Pointer[[]*audience] // what Batch and Query read; nil for none

	mu      sync.Mutex
	groups  map[string]*audience // by the key of their tenants; guarded by mu
	viewers int                  // guarded by mu
	now     *collection          // the newest; guarded by mu
	took    time.Duration        // to make and show it; guarded by mu
	history history              // guarded by mu
	closed  bool                 // guarded by mu

	refused, resets atomic.Uint64 // viewers, and times that one lost its queue

	wake       chan struct{}
	stop, done chan struct{}
}

// New returns a Hub that collects.
func New(cfg Config) *Hub {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Hub{
		cfg: cfg, started: cfg.Now(), groups: make(map[string]*audience),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	h.takeTurn()
	go h.run()
	return h
}

// run collects until Close.
func (h *Hub) run() {
	defer close(h.done)
	tick := time.NewTicker(step)
	defer tick.Stop()
	for looked := false; ; {
		select {
		case <-tick.C:
		case <-h.wake:
		case <-h.stop:
			return
		}
		if looks := h.takeTurn(); looks != looked {
			if looked = looks; looks {
				tick.Reset(pace)
			} else {
				tick.Reset(step)
			}
		}
	}
}

// takeTurn is one turn of run: it collects if it is time, and serves the viewers. It reports whether there are any.
func (h *Hub) takeTurn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.groups {
		a.beginSecond(h.cfg.Now())
	}
	h.collectUnlessRecent(false)
	h.serveViewers(false)
	return h.viewers > 0
}

// collectUnlessRecent makes a collection and sends the difference to the viewers, unless the newest collection is recent enough.
// If rows is set, one without the texts of rows is not enough. mu is held.
func (h *Hub) collectUnlessRecent(rows bool) {
	now, old := h.cfg.Now(), h.now
	rows = rows || h.viewers > 0
	if old != nil && (old.rowsToo || !rows) && now.Sub(old.at) < min(max(minPace, share*h.took), step-pace) && !now.Before(old.at) {
		return
	}
	began := time.Now() // of the processor, whatever Config.Now says
	h.now = collect(h.cfg.Conductor.Stats(), old, now, rows)
	if rows {
		h.now.lists.reporters, h.now.lists.topics = h.cfg.Conductor.Sources().Pushes().Reporters(), h.cfg.Conductor.UnclaimedTopics()
		h.now.lists.vain = h.cfg.Conductor.UnregisteredQueries(nil)
		if h.cfg.Targets != nil {
			h.now.lists.targets = h.cfg.Targets()
		}
	}
	if old != nil {
		h.now.were = old.lists
	}
	if h.cfg.Process != nil {
		h.now.addProcess(h.cfg.Process(), old)
	}
	if h.cfg.Refused != nil {
		h.now.refused = h.cfg.Refused()
	}
	h.now.point = h.history.addCollection(h.now)
	h.serveViewers(true)
	h.took = time.Since(began)
}

// serveViewers sends the whole state to viewers that lack it, and the newest difference to all others if
// it is fresh. mu is held.
func (h *Hub) serveViewers(fresh bool) {
	for _, a := range h.groups {
		var difference []byte
		for _, v := range a.all() {
			if v.wantsAll() {
				v.queueState(h.wholeFrame(a))
				continue
			}
			if fresh {
				if difference == nil {
					difference = encodeFrame("stats", h.makeDifference(a.tenants))
				}
				if !v.pushFrame(difference) {
					h.resets.Add(1)
				}
			}
		}
	}
}

// wholeFrame returns the frame of the whole state for an audience. mu is held.
func (h *Hub) wholeFrame(a *audience) []byte {
	if a.wholeOf != h.now {
		a.whole, a.wholeOf = encodeFrame("stats", h.makeDocument(a.tenants, 0, nil)), h.now
	}
	return a.whole
}

// Document returns what a client of some tenants sees, with at most top sources, 0 for all. Its history is that of a model,
// of all models if it is "".
func (h *Hub) Document(tenants scope.Tenants, top int, model string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.collectUnlessRecent(true)
	return h.makeDocument(tenants, top, h.historyOf(tenants, model))
}

// Join adds a viewer of some tenants; feed says that it sees batches too. The caller calls Leave.
//
// Errors: ErrBusy, ErrDisabled, conductor.ErrClosed.
func (h *Hub) Join(tenants scope.Tenants, feed bool) (*Viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ingest.ErrClosed
	case h.cfg.Viewers == 0:
		return nil, ErrDisabled
	case h.viewers >= h.cfg.Viewers:
		h.refused.Add(1)
		return nil, ErrBusy
	case h.wouldCrowd(tenants):
		h.refused.Add(1)
		return nil, fmt.Errorf("%w, but for the half that other tenants keep", ErrBusy)
	}
	key := tenants.Key()
	a := h.groups[key]
	if a == nil {
		a = newAudience(tenants)
		h.groups[key] = a
	}
	v := &Viewer{audience: a, feed: feed, wake: make(chan struct{}, 1), over: make(chan struct{}), lacks: true}
	a.addViewer(v)
	h.viewers++
	h.publishAudiences()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return v, nil
}

// wouldCrowd reports whether one more viewer would give tenants more than half of the places while there
// are other tenants. Viewers of all tenants are no tenant's. mu is held.
func (h *Hub) wouldCrowd(tenants scope.Tenants) bool {
	if tenants.All() {
		return false
	}
	look := 1
	for _, a := range h.groups {
		if !a.tenants.All() && slices.ContainsFunc(a.tenants, tenants.Has) {
			look += len(a.all())
		}
	}
	if look <= (h.cfg.Viewers+1)/2 {
		return false
	}
	h.collectUnlessRecent(false)
	for tenant := range h.now.tenants {
		if !tenants.Has(tenant) {
			return true
		}
	}
	return false
}

// Leave takes a viewer away. With its last viewer an audience forgets everything.
func (h *Hub) Leave(v *Viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers--
	if v.audience.removeViewer(v); len(v.audience.all()) == 0 {
		delete(h.groups, v.audience.tenants.Key())
	}
	h.publishAudiences()
}

// publishAudiences updates the audiences that Batch and Query see. mu is held.
func (h *Hub) publishAudiences() {
	if len(h.groups) == 0 || h.closed {
		h.cfg.Conductor.Watch(nil)
		h.audiences.Store(nil)
		return
	}
	all := make([]*audience, 0, len(h.groups))
	for _, a := range h.groups {
		a.limit.Store(maxRecentBytes / int64(len(h.groups)))
		all = append(all, a)
	}
	h.audiences.Store(&all)
	h.cfg.Conductor.Watch(h)
}

// Close ends all viewers and collects no more. Documents are still there.
func (h *Hub) Close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.stop)
		for _, a := range h.groups {
			for _, v := range a.all() {
				close(v.over)
			}
		}
		h.publishAudiences()
	}
	h.mu.Unlock()
	<-h.done
}
