package lmcache

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// claim is what a feed hears of.
type claim struct{ emitter, model string }

// Hub takes the batches of the instances of one tenant.
type Hub struct {
	turn   sync.Mutex // held during a Push; guards gate, chains and what the feeds know
	gate   gate
	chains map[string]*chains // by model

	mu    sync.Mutex // a leaf
	feeds map[claim][]*Feed
	gone  []*Feed // removed, and not forgotten
}

// Add adds a feed. It waits for no Push.
func (h *Hub) Add(f *Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.feeds == nil {
		h.feeds = make(map[claim][]*Feed)
	}
	at := claim{f.Emitter, f.Model}
	h.feeds[at] = append(slices.Clip(h.feeds[at]), f)
}

// Remove takes a feed away. It waits for no Push: one that is under way forgets what the feed held.
func (h *Hub) Remove(f *Feed) {
	h.remove(f)
	if h.turn.TryLock() {
		defer h.turn.Unlock()
		h.forgetGone()
	}
}

func (h *Hub) remove(f *Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := claim{f.Emitter, f.Model}
	h.feeds[at] = slices.DeleteFunc(slices.Clone(h.feeds[at]), func(g *Feed) bool { return g == f })
	if len(h.feeds[at]) == 0 {
		delete(h.feeds, at)
	}
	h.gone = append(h.gone, f)
}

// forgetGone forgets what feeds held that are removed. turn is held.
func (h *Hub) forgetGone() {
	h.mu.Lock()
	gone := h.gone
	h.gone = nil
	h.mu.Unlock()
	for _, f := range gone {
		f.book.clear("", h.chainsOf(f.Model).places.vanish)
	}
	for _, f := range gone {
		if !h.follows(f.Model) {
			delete(h.chains, f.Model)
		}
	}
}

// follows reports whether a feed hears of a model.
func (h *Hub) follows(model string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := range h.feeds {
		if at.model == model {
			return true
		}
	}
	return false
}

// Empty reports whether no feed hears of anything.
func (h *Hub) Empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.feeds) == 0
}

// find returns the feeds of a claim. They stay as they are.
func (h *Hub) find(at claim) []*Feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.feeds[at]
}

// concerned returns the feeds of an instance, and those of shared storage.
func (h *Hub) concerned(instance string) (all []*Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, feeds := range h.feeds {
		if at.emitter == instance || strings.HasPrefix(at.emitter, poolPrefix) {
			all = append(all, feeds...)
		}
	}
	return all
}

// Push applies a batch. It returns how many of its entries no source is registered for.
func (h *Hub) Push(b *Batch, now time.Time) (outcome Outcome, unclaimed int) {
	h.turn.Lock()
	defer h.turn.Unlock()
	defer h.forgetGone()
	h.forgetInstances(now)
	a := h.gate.admit(b, now)
	if a.outcome != Applied {
		return a.outcome, 0
	}
	h.forgetGone()
	touched := make(map[*Feed]bool)
	for _, f := range h.concerned(b.Instance) {
		f.begin(b, a, h.chainsOf(f.Model).places)
		touched[f] = touched[f] || !f.shared()
	}
	trials := maxTrials
	var before *Entry
	var last claim
	var feeds []*Feed
	for i := range b.Entries {
		e := &b.Entries[i]
		at := claim{b.Instance, e.Model}
		if b.Shared {
			at.emitter = poolPrefix + b.Backend
		}
		if at != last || i == 0 {
			last, feeds = at, h.find(at)
		}
		if len(feeds) == 0 {
			unclaimed++
			continue
		}
		c := h.chainsOf(e.Model)
		var parent string
		var placed bool
		if b.Type == Store && len(e.Tokens) > 0 {
			parent, placed = c.place(e, before, &trials)
		}
		before = e
		for _, f := range feeds {
			if b.Shared {
				f.sent[b.Instance] = true
			}
			f.apply(b, e, parent, placed, c.places)
			touched[f] = true
		}
	}
	for f, is := range touched {
		if is {
			f.flush(b.Time)
		}
	}
	for _, c := range h.chains {
		c.places.announceAgain(b.Time)
	}
	return Applied, unclaimed
}

// forgetInstances forgets instances that are gone. One that has a source stays: its next batch
// says whether it was restarted. turn is held.
func (h *Hub) forgetInstances(now time.Time) {
	gone := h.gate.forget(now, h.emits)
	if len(gone) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, feeds := range h.feeds {
		for _, f := range feeds {
			for _, instance := range gone {
				delete(f.sent, instance)
			}
		}
	}
}

// emits reports whether a source follows an instance.
func (h *Hub) emits(instance string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := range h.feeds {
		if at.emitter == instance {
			return true
		}
	}
	return false
}

// chainsOf returns the chains of a model. A source has a model, so they are bounded.
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
