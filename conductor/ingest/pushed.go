package ingest

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// pushed is the feed of a source whose publisher calls us. It has no connection and no replay:
// a restart of this server begins with nothing.
//
//	hub --Take, Renew--> queue --Next--> source --Next--> End
//
// The goroutine of the source calls Next. What implements lmcache.Receiver is called under the lock
// of the hub.
type pushed struct {
	now        func() time.Time
	staleAfter time.Duration // without a first batch; 0: never
	decode     func([]byte) (events.Batch, error)
	onState    func(stream.State, string)
	hub        *lmcache.Hub
	feed       *lmcache.Feed

	wake    chan struct{}     // capacity 1: the state has changed, or the queue
	hand    *lmcache.Delivery // with the source, nil for none; owned by the goroutine that calls Next
	seq     uint64            // of hand; likewise
	told    stream.State      // likewise
	toldWhy string

	mu     sync.Mutex
	st     stream.Status // guarded by mu
	opened time.Time
	queue  []pushedStep  // guarded by mu
	room   chan struct{} // closed once the queue is shorter, nil: no sender waits; guarded by mu
	over   bool          // it is closed; guarded by mu
	trust  string        // guarded by mu
	doubt  string        // guarded by mu
	heard  bool          // guarded by mu
	paused bool          // guarded by mu
	broken string        // why no batch is applied until Renew; guarded by mu
}

// open adds the feed of a source to the hub of its tenant.
func (p *Pushes) open(r registration.Registration, on func(stream.State, string)) *pushed {
	f := &pushed{
		now: p.now, staleAfter: p.staleAfter, decode: p.decode, onState: on, hub: p.hub(r.Tenant),
		wake: make(chan struct{}, 1),
		st:   stream.Status{Epoch: 1, Dropped: make(map[events.Reason]uint64)}, opened: p.now(),
	}
	if f.decode == nil {
		f.decode = stream.DecodeWithDefaults
	}
	f.feed = lmcache.NewFeed(r.Instance, r.Model, f, p.most, r.BlockSize)
	f.hub.Add(f.feed)
	return f
}

// Next counts the previous step as applied and returns the next one; false once the feed is
// closed.
func (f *pushed) Next() (stream.Step, bool) {
	f.count()
	for {
		step, blocked, state := f.next()
		switch state {
		case pushedDue:
			return step, true
		case pushedOver:
			return stream.Step{}, false
		}
		f.tell()
		select {
		case <-blocked:
		case <-f.wake:
		}
	}
}

// What next has found.
const (
	pushedIdle = iota
	pushedDue
	pushedOver
)

// next takes the next step from the queue. Without one blocked is closed when the first in the queue
// can be taken, unless it is nil.
func (f *pushed) next() (step stream.Step, blocked <-chan struct{}, state int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.over:
			return step, nil, pushedOver
		case len(f.queue) == 0:
			return step, nil, pushedIdle
		}
		next := f.queue[0]
		if next.delivery == nil {
			f.shift()
			f.st.Epoch++
			f.st.LastSeq, f.st.HasSeq = 0, false
			return stream.Step{Kind: stream.DropBlocks, Epoch: f.st.Epoch, Reason: next.reason}, nil, pushedDue
		}
		if blocked = next.delivery.Blocked(); blocked != nil {
			return step, blocked, pushedIdle
		}
		payload := next.delivery.Payload
		batch, err := f.decode(payload)
		if err != nil {
			f.broken, f.st.LastError = cmp.Or(f.broken, string(events.BadPayload)), err.Error()
			f.st.Dropped[events.BadPayload]++
			f.emptyQueue()
			continue
		}
		for reason, n := range batch.Dropped {
			f.st.Dropped[reason] += uint64(n)
		}
		f.hand, f.seq = next.delivery, 0
		if f.st.HasSeq {
			f.seq = f.st.LastSeq + 1
		}
		f.shift()
		return stream.Step{Kind: stream.ApplyBatch, Batch: batch, Payload: payload, Epoch: f.st.Epoch, Seq: f.seq}, nil, pushedDue
	}
}

// count moves the watermark past the step that the source has applied.
func (f *pushed) count() {
	if f.hand == nil {
		return
	}
	f.mu.Lock()
	f.st.LastSeq, f.st.HasSeq, f.st.LastBatchAt = f.seq, true, f.now()
	f.mu.Unlock()
	f.hand.End()
	f.hand = nil
}

// Resync drops everything, the queue too. What the publisher reported is not reported again.
func (f *pushed) Resync(reason string) {
	f.change(func() {
		f.broken = reason
		f.emptyQueue()
		f.queue = append(f.queue, pushedStep{reason: reason})
	})
}

// ResumeBehind does nothing: pools have no blocks in snapshots.
func (f *pushed) ResumeBehind(stream.Mark) {}

// MarkIncomplete notes that the source misses something.
func (f *pushed) MarkIncomplete(reason string) { f.change(func() { f.doubt = reason }) }

// MarkUnusable does nothing: who reports an entry that makes no sense hears of it in the answer.
func (f *pushed) MarkUnusable(string) {}

// Pause lets batches pass by until Unpause. The source starts over then.
func (f *pushed) Pause() { f.change(func() { f.paused = true }) }

// Unpause undoes Pause.
func (f *pushed) Unpause() { f.change(func() { f.paused = false }) }

// Close makes Next return false.
func (f *pushed) Close() {
	f.change(func() {
		f.over = true
		f.emptyQueue()
	})
	f.hub.Remove(f.feed)
}

// change changes the state or the queue, and wakes Next.
func (f *pushed) change(change func()) {
	f.mu.Lock()
	change()
	f.mu.Unlock()
	f.signal()
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
	st.Dropped = maps.Clone(st.Dropped)
	st.Reason = cmp.Or(st.Reason, f.broken, f.trust, f.doubt)
	st.History = st.Reason
	switch {
	case f.paused:
		st.State, st.Reason = stream.Paused, ""
	case !f.heard:
		st.State, st.Reason, st.History = stream.Connecting, "", stream.ReasonUnknown
		if f.staleAfter > 0 && f.now().Sub(f.opened) > f.staleAfter {
			st.State, st.StaleAt = stream.Stale, f.opened.Add(f.staleAfter)
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
