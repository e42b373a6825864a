package lmcache

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// claim is the emitter and the model whose entries a feed gets.
type claim struct{ emitter, model string }

// Hub takes the batches of the instances of one tenant.
type Hub struct {
	// mu guards all of the hub and what its feeds know. It is held while a batch is read, and
	// never while a receiver applies one.
	mu     sync.Mutex
	gate   gate
	chains map[string]*chains // by model
	feeds  map[claim][]*Feed
	sent   []*Delivery // by the batch that is read
	flying []*Delivery // sent, and not applied when the last batch was read

	bytes atomic.Int64 // as countBytes counted last
}

// Add adds a feed.
func (h *Hub) Add(f *Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.feeds == nil {
		h.feeds = make(map[claim][]*Feed)
	}
	at := claim{f.Emitter, f.Model}
	f.hub = h
	h.feeds[at] = append(h.feeds[at], f)
}

// Remove takes a feed away, and forgets what it held.
func (h *Hub) Remove(f *Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.countBytes()
	at := claim{f.Emitter, f.Model}
	h.feeds[at] = slices.DeleteFunc(h.feeds[at], func(other *Feed) bool { return other == f })
	if len(h.feeds[at]) == 0 {
		delete(h.feeds, at)
	}
	f.book.clearTier("", h.chainsOf(f.Model).attachments.removeChunk)
	for at := range h.feeds {
		if at.model == f.Model {
			return
		}
	}
	delete(h.chains, f.Model)
}

// Empty reports whether the hub has no feed.
func (h *Hub) Empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.feeds) == 0
}

// Push reads a batch that came at a time, and waits until the receivers have applied it. It returns
// how many of its entries no source is registered for.
//
// When ctx ends first, Push returns its error. The batch is then not read, as long as a receiver
// had no room for it; else it is applied later, and is a duplicate if it comes once more.
func (h *Hub) Push(ctx context.Context, b *Batch, now time.Time) (outcome Outcome, unclaimed int, err error) {
	if err := h.lockWithRoom(ctx, b); err != nil {
		return Refused, 0, err
	}
	outcome, unclaimed = h.readBatch(b, now)
	sent := h.sent
	h.sent = nil
	h.countBytes()
	h.mu.Unlock()
	for _, d := range sent {
		select {
		case <-d.done:
		case <-ctx.Done():
			return outcome, unclaimed, ctx.Err()
		}
	}
	return outcome, unclaimed, nil
}

// lockWithRoom waits until the receivers of a batch have room, and returns with mu locked. If ctx ends first, it returns its
// error, and mu is not locked.
func (h *Hub) lockWithRoom(ctx context.Context, b *Batch) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h.mu.Lock()
		room := h.roomFor(b)
		if room == nil {
			return nil
		}
		h.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
}

// roomFor returns nil if all receivers of a batch have room, else a channel that is closed when one of them has. mu is held.
func (h *Hub) roomFor(b *Batch) <-chan struct{} {
	for at, feeds := range h.feeds {
		if at.emitter != b.Instance && at.emitter != b.Emitter() {
			continue
		}
		for _, f := range feeds {
			if full := f.To.Room(); full != nil {
				return full
			}
		}
	}
	return nil
}

// readBatch turns a batch into events, and queues them at the receivers. mu is held.
func (h *Hub) readBatch(b *Batch, now time.Time) (outcome Outcome, unclaimed int) {
	h.dropEndedDeliveries()
	h.forgetInstances(now)
	a := h.gate.admitBatch(b, now)
	if a.outcome != Applied {
		return a.outcome, 0
	}
	touched := make(map[*Feed]bool)
	for _, f := range h.feedsOf(b.Instance) {
		f.beginBatch(b, a, h.chainsOf(f.Model).attachments)
		touched[f] = touched[f] || !f.shared()
	}
	trials := maxTrials
	var before *Entry
	for i := range b.Entries {
		e := &b.Entries[i]
		feeds := h.feeds[claim{b.Emitter(), e.Model}]
		if len(feeds) == 0 {
			unclaimed++
			continue
		}
		c := h.chainsOf(e.Model)
		var parent string
		var parentKnown bool
		if b.Type == Store && len(e.Tokens) > 0 {
			parent, parentKnown = c.findParent(e, before, &trials)
		}
		before = e
		for _, f := range feeds {
			if b.Shared {
				f.sent[b.Instance] = true
			}
			f.applyEntry(b, e, parent, parentKnown, c.attachments)
			touched[f] = true
		}
		c.attachments.announceAgain(b.Time, touched)
	}
	for f, is := range touched {
		if is {
			f.flush(b.Time)
		}
	}
	return Applied, unclaimed
}

// feedsOf returns the feeds of an instance, and those of all shared storage, where it may have missed something too. mu is held.
func (h *Hub) feedsOf(instance string) (all []*Feed) {
	for at, feeds := range h.feeds {
		if at.emitter == instance || strings.HasPrefix(at.emitter, poolPrefix) {
			all = append(all, feeds...)
		}
	}
	return all
}

// forgetInstances forgets instances that are gone. One that has a source stays: its next batch
// says whether it was restarted. mu is held.
func (h *Hub) forgetInstances(now time.Time) {
	if now.Sub(h.gate.swept) < sweepEvery {
		return
	}
	gone := h.gate.forgetSilent(now, h.listEmitters())
	for _, feeds := range h.feeds {
		for _, f := range feeds {
			for _, instance := range gone {
				delete(f.sent, instance)
			}
		}
	}
}

// chainsOf returns the chains of a model. A source has a model, so they are bounded. mu is held.
func (h *Hub) chainsOf(model string) *chains {
	c := h.chains[model]
	if c == nil {
		if h.chains == nil {
			h.chains = make(map[string]*chains)
		}
		c = newChains()
		h.chains[model] = c
	}
	return c
}
