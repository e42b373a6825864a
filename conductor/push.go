package conductor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/lmcache"
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
	refused  map[lmcacheRefusal]uint64 // guarded by counting
}

// lmcacheRefusal is a part of a request that had no effect: request, batch or entry.
type lmcacheRefusal struct{ part, reason string }

// lmcacheRefusals are those that metrics have from the start.
var lmcacheRefusals = []lmcacheRefusal{
	{"request", "invalid_json"}, {"batch", "missing"}, {"batch", "invalid_type"}, {"batch", "invalid_value"}, {"batch", "out_of_range"},
	{"batch", "limit"},
	{"entry", "missing"}, {"entry", "invalid_type"}, {"entry", "invalid_value"}, {"entry", "out_of_range"},
}

// CountRefused counts a request, batch or entry of LMCache that has no effect.
func (p *Pushes) CountRefused(part, reason string) {
	p.counting.Lock()
	defer p.counting.Unlock()
	if p.refused == nil {
		p.refused = make(map[lmcacheRefusal]uint64)
	}
	p.refused[lmcacheRefusal{part, reason}]++
}

// refusals returns the counts of what was refused.
func (p *Pushes) refusals() map[lmcacheRefusal]uint64 {
	p.counting.Lock()
	defer p.counting.Unlock()
	all := maps.Clone(p.refused)
	if all == nil {
		all = make(map[lmcacheRefusal]uint64)
	}
	for _, r := range lmcacheRefusals {
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

// PushLMCache applies a batch to the sources of the client's tenants. It returns once they have
// applied it. Without such a source the batch is applied, and its entries are unclaimed.
//
// Errors: ErrPast; ErrBehind once ctx ends, see lmcache.Hub.Push.
func (v View) PushLMCache(ctx context.Context, b *lmcache.Batch) (Pushed, error) {
	if v.conductor.catalog.Past {
		return Pushed{}, ErrPast
	}
	p := Pushed{lmcache.Applied, len(b.Entries)}
	for i, h := range v.conductor.sources.pushes.of(v.reader.Tenants.Has) {
		outcome, unclaimed, err := h.Push(ctx, b, v.conductor.now())
		if err != nil {
			if outcome == lmcache.Applied { // later
				v.conductor.sources.pushes.batches[outcome].Add(1)
			}
			return Pushed{}, fmt.Errorf("%w: %w", ErrBehind, err)
		}
		if i == 0 || outcome > p.Outcome {
			p.Outcome = outcome
		}
		p.Unclaimed = min(p.Unclaimed, unclaimed)
	}
	if p.Unclaimed > 0 {
		v.conductor.sources.pushes.unclaimed.Add(uint64(p.Unclaimed))
	}
	v.conductor.sources.pushes.batches[p.Outcome].Add(1)
	v.conductor.sources.pushes.note(v.reader.Tenants, b, p, v.conductor.now())
	return p, nil
}
