package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// ErrBehind is the error of a client that does not wait until sources have applied what it sends.
var ErrBehind = errors.New("sources have not applied their batches yet")

// Pushes has the hubs of the tenants that have pushed sources.
type Pushes struct {
	now        func() time.Time
	staleAfter time.Duration
	decode     func([]byte) (events.Batch, error) // nil is stream.DecodeWithDefaults
	most       int64                              // bytes of one feed

	mu   sync.Mutex
	hubs map[string]*lmcache.Hub // by tenant; guarded by mu

	batches   [lmcache.Applied + 1]atomic.Uint64 // by outcome
	unclaimed atomic.Uint64                      // entries
	heard     reporters

	counting sync.Mutex
	refused  map[PushRefusal]uint64 // guarded by counting
}

// PushRefusal is a part of a request that had no effect, and why.
type PushRefusal struct {
	Part   string // request, batch or entry
	Reason string
}

// pushRefusals are those that metrics have from the start.
var pushRefusals = []PushRefusal{
	{"request", "invalid_json"}, {"batch", "missing"}, {"batch", "invalid_type"}, {"batch", "invalid_value"}, {"batch", "out_of_range"},
	{"batch", "limit"},
	{"entry", "missing"}, {"entry", "invalid_type"}, {"entry", "invalid_value"}, {"entry", "out_of_range"},
}

// CountRefused counts a request, batch or entry of LMCache that has no effect.
func (p *Pushes) CountRefused(part, reason string) {
	p.counting.Lock()
	defer p.counting.Unlock()
	if p.refused == nil {
		p.refused = make(map[PushRefusal]uint64)
	}
	p.refused[PushRefusal{part, reason}]++
}

// refusals returns the counts of what was refused.
func (p *Pushes) refusals() map[PushRefusal]uint64 {
	p.counting.Lock()
	defer p.counting.Unlock()
	all := maps.Clone(p.refused)
	if all == nil {
		all = make(map[PushRefusal]uint64)
	}
	for _, r := range pushRefusals {
		all[r] += 0
	}
	return all
}

// hub returns the hub of a tenant, making it when new.
func (p *Pushes) hub(tenant string) *lmcache.Hub {
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

// bytes returns the memory of the hubs.
func (p *Pushes) bytes() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hubs {
		n += h.Bytes()
	}
	return n
}

// of returns the hubs of tenants with sources.
func (p *Pushes) of(has func(tenant string) bool) (all []*lmcache.Hub) {
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

// Push applies a batch to the sources of some tenants. It returns once they have
// applied it. Without such a source the batch is applied, and its entries are unclaimed.
//
// Errors: ErrBehind once ctx ends, see lmcache.Hub.Push.
func (p *Pushes) Push(ctx context.Context, by scope.Tenants, b *lmcache.Batch) (Pushed, error) {
	done := Pushed{lmcache.Applied, len(b.Entries)}
	for i, h := range p.of(by.Has) {
		outcome, unclaimed, err := h.Push(ctx, b, p.now())
		if err != nil {
			if outcome == lmcache.Applied { // later
				p.batches[outcome].Add(1)
			}
			return Pushed{}, fmt.Errorf("%w: %w", ErrBehind, err)
		}
		if i == 0 || outcome > done.Outcome {
			done.Outcome = outcome
		}
		done.Unclaimed = min(done.Unclaimed, unclaimed)
	}
	if done.Unclaimed > 0 {
		p.unclaimed.Add(uint64(done.Unclaimed))
	}
	p.batches[done.Outcome].Add(1)
	p.noteBatch(by, b, done, p.now())
	return done, nil
}

// PushCounts are what publishers have called us with since the start.
type PushCounts struct {
	Batches   [lmcache.Applied + 1]uint64 // by outcome
	Unclaimed uint64                      // entries that no source is registered for
	Refused   map[PushRefusal]uint64
}

// Counts returns what publishers have called us with.
func (p *Pushes) Counts() (n PushCounts) {
	for i := range p.batches {
		n.Batches[i] = p.batches[i].Load()
	}
	n.Unclaimed, n.Refused = p.unclaimed.Load(), p.refusals()
	return n
}
