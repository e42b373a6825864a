package conductor

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"kvconductor/conductor/lmcache"
	"kvconductor/conductor/pool"
	"kvconductor/events"
	"kvconductor/events/journal"
	"kvconductor/events/stream"
)

// pushes has the hubs of the tenants that have pushed sources.
type pushes struct {
	mu   sync.Mutex
	hubs map[string]*lmcache.Hub // by tenant; guarded by mu

	batches   [lmcache.Applied + 1]atomic.Uint64 // by outcome
	unclaimed atomic.Uint64                      // entries
}

// hub returns the hub of a tenant, making it when new.
func (p *pushes) hub(tenant string) *lmcache.Hub {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hubs[tenant]
	if h == nil {
		if p.hubs == nil {
			p.hubs = make(map[string]*lmcache.Hub)
		}
		h = new(lmcache.Hub)
		p.hubs[tenant] = h
	}
	return h
}

// of returns the hubs of tenants with sources.
func (p *pushes) of(has func(tenant string) bool) (all []*lmcache.Hub) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for tenant, h := range p.hubs {
		if has(tenant) && !h.Empty() {
			all = append(all, h)
		}
	}
	return all
}

// Pushed is what became of a batch that an LMCache instance reported.
type Pushed struct {
	Outcome   lmcache.Outcome
	Unclaimed int // entries that no source is registered for
}

// PushLMCache applies a batch to the sources of the client's tenants. It returns once they have
// applied it. Without such a source the batch is applied, and its entries are unclaimed. It returns ErrPast.
func (v View) PushLMCache(b *lmcache.Batch) (Pushed, error) {
	if v.conductor.past {
		return Pushed{}, ErrPast
	}
	p := Pushed{lmcache.Applied, len(b.Entries)}
	for i, h := range v.conductor.pushes.of(v.reader.Tenants.Has) {
		outcome, unclaimed := h.Push(b, v.conductor.now())
		if i == 0 || outcome > p.Outcome {
			p.Outcome = outcome
		}
		p.Unclaimed = min(p.Unclaimed, unclaimed)
	}
	if p.Unclaimed > 0 {
		v.conductor.pushes.unclaimed.Add(uint64(p.Unclaimed))
	}
	v.conductor.pushes.batches[p.Outcome].Add(1)
	return p, nil
}

// pushed is the feed of a source whose publisher calls us. It has no connection and no replay:
// a restart of this server begins with nothing.
//
// The goroutine of the source calls Next, that of a request Apply, Trust and Drop, under the
// turn of the hub.
type pushed struct {
	now        func() time.Time
	staleAfter time.Duration // without a first batch; 0: never
	decode     func([]byte) (events.Batch, error)
	onState    func(stream.State, string)
	hub        *lmcache.Hub
	feed       *lmcache.Feed

	steps   chan stream.Step
	applied chan struct{}
	wake    chan struct{} // capacity 1: the state has changed, or a reset is due
	closed  chan struct{}
	closing sync.Once
	busy    bool         // a step is with the source; owned by the goroutine that calls Next
	hand    stream.Step  // likewise
	told    stream.State // likewise
	toldWhy string

	mu     sync.Mutex
	st     stream.Status // guarded by mu
	opened time.Time
	trust  string // guarded by mu
	doubt  string // guarded by mu
	heard  bool   // guarded by mu
	paused bool   // guarded by mu
	broken string // why no batch is applied until Renew; guarded by mu
	reset  bool   // a Reset step is due; guarded by mu
}

// openPushed adds the feed of a source to the hub of its tenant.
func (c *Conductor) openPushed(r Registration, recorded *journal.Source, on func(stream.State)) *pushed {
	f := &pushed{
		now: c.now, staleAfter: c.opts.Stream.StaleAfter, decode: c.opts.Stream.Decode, hub: c.pushes.hub(r.Tenant),
		steps: make(chan stream.Step), applied: make(chan struct{}), wake: make(chan struct{}, 1), closed: make(chan struct{}),
		st: stream.Status{Epoch: 1, Dropped: make(map[events.Reason]uint64)}, opened: c.now(),
	}
	f.onState = func(state stream.State, reason string) {
		if recorded != nil {
			recorded.State(string(state), reason)
		}
		on(state)
	}
	if f.decode == nil {
		f.decode = stream.DecodeDefault
	}
	f.feed = lmcache.NewFeed(r.Instance, r.Model, f, cmp.Or(c.opts.PoolBytes, pool.DefaultLimit))
	f.hub.Add(f.feed)
	return f
}

// Next counts the previous step as applied and returns the next one; false once the feed is
// closed.
func (f *pushed) Next() (stream.Step, bool) {
	if f.busy {
		f.busy = false
		f.count(&f.hand)
		select {
		case f.applied <- struct{}{}:
		case <-f.closed:
		}
	}
	for {
		if step, due := f.due(); due {
			return step, true
		}
		f.tell()
		select {
		case f.hand = <-f.steps:
			f.busy = true
			return f.hand, true
		case <-f.wake:
		case <-f.closed:
			return stream.Step{}, false
		}
	}
}

// due returns the Reset step of a Resync.
func (f *pushed) due() (stream.Step, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.reset {
		return stream.Step{}, false
	}
	f.reset = false
	return f.newEpoch(), true
}

// newEpoch returns the step that drops all blocks. mu is held.
func (f *pushed) newEpoch() stream.Step {
	f.st.Epoch++
	f.st.LastSeq, f.st.HasSeq = 0, false
	return stream.Step{Kind: stream.Reset, Epoch: f.st.Epoch, Reason: f.broken}
}

// count moves the watermark past a step.
func (f *pushed) count(step *stream.Step) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if step.Kind == stream.Apply && step.Epoch == f.st.Epoch {
		f.st.LastSeq, f.st.HasSeq, f.st.LastBatchAt = step.Seq, true, f.now()
	}
}

// give hands a step to the source, and reports whether the source has applied it.
func (f *pushed) give(step stream.Step) bool {
	select {
	case f.steps <- step:
	case <-f.closed:
		return false
	}
	select {
	case <-f.applied:
		return true
	case <-f.closed:
		return false
	}
}

// Apply implements lmcache.Receiver.
func (f *pushed) Apply(payload []byte) bool {
	batch, err := f.decode(payload)
	f.mu.Lock()
	switch {
	case err != nil && f.broken == "":
		f.broken, f.st.LastError = string(events.BadPayload), err.Error()
		f.st.Dropped[events.BadPayload]++
	case f.paused && f.broken == "":
		f.broken = stream.ReasonGap
	}
	step := stream.Step{Kind: stream.Apply, Batch: batch, Payload: payload, Epoch: f.st.Epoch}
	if f.st.HasSeq {
		step.Seq = f.st.LastSeq + 1
	}
	for reason, n := range batch.Dropped {
		f.st.Dropped[reason] += uint64(n)
	}
	f.heard = f.heard || f.broken == ""
	broken := f.broken != ""
	f.mu.Unlock()
	return !broken && f.give(step)
}

// Renew implements lmcache.Receiver.
func (f *pushed) Renew() bool {
	f.mu.Lock()
	if f.broken == "" || f.paused {
		f.mu.Unlock()
		return false
	}
	step := f.newEpoch()
	f.broken, f.reset = "", false
	f.mu.Unlock()
	return f.give(step)
}

// Trust implements lmcache.Receiver.
func (f *pushed) Trust(reason string) {
	f.mu.Lock()
	if reason == lmcache.Gap && f.trust != reason {
		f.st.Gaps++
	}
	f.trust, f.heard = reason, f.heard || !f.paused
	f.mu.Unlock()
	f.signal()
}

// Drop implements lmcache.Receiver.
func (f *pushed) Drop(reason string, n int) {
	f.mu.Lock()
	f.st.Dropped[events.Reason(reason)] += uint64(n)
	f.mu.Unlock()
}

// Resync drops everything. What the publisher reported is not reported again.
func (f *pushed) Resync(reason string) {
	f.mu.Lock()
	f.broken, f.reset = reason, true
	f.mu.Unlock()
	f.signal()
}

// Resume does nothing: pools have no blocks in snapshots.
func (f *pushed) Resume(stream.Mark) {}

// Doubt notes that the source misses something.
func (f *pushed) Doubt(reason string) {
	f.mu.Lock()
	f.doubt = reason
	f.mu.Unlock()
	f.signal()
}

// Pause lets batches pass by until Unpause. The source starts over then.
func (f *pushed) Pause() { f.setPaused(true) }

// Unpause undoes Pause.
func (f *pushed) Unpause() { f.setPaused(false) }

func (f *pushed) setPaused(paused bool) {
	f.mu.Lock()
	f.paused = paused
	f.mu.Unlock()
	f.signal()
}

// Close makes Next return false.
func (f *pushed) Close() {
	f.closing.Do(func() {
		close(f.closed)
		f.hub.Remove(f.feed)
	})
}

// signal wakes Next.
func (f *pushed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// tell passes a change of state on.
func (f *pushed) tell() {
	st := f.Status()
	if st.State == stream.Stale {
		st.State = stream.Connecting // as a stream does
	}
	if st.State != f.told || st.Reason != f.toldWhy {
		f.told, f.toldWhy = st.State, st.Reason
		f.onState(st.State, st.Reason)
	}
}

// Status returns how far the source can be trusted.
func (f *pushed) Status() stream.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.st
	st.Dropped = make(map[events.Reason]uint64, len(f.st.Dropped))
	for reason, n := range f.st.Dropped {
		st.Dropped[reason] = n
	}
	for _, why := range []string{f.broken, f.trust, f.doubt} {
		if st.Reason == "" {
			st.Reason = why
		}
	}
	st.History = st.Reason
	switch {
	case f.paused:
		st.State, st.Reason = stream.Paused, ""
	case !f.heard:
		st.State, st.Reason, st.History = stream.Connecting, "", stream.ReasonUnknown
		if f.staleAfter > 0 && f.now().Sub(f.opened) > f.staleAfter {
			st.State = stream.Stale
		}
	case st.Reason != "":
		st.State = stream.Partial
	default:
		st.State = stream.Synced
	}
	if st.Connected = f.heard && !f.paused; st.Connected {
		st.LastLifeAt = st.LastBatchAt
	}
	return st
}
