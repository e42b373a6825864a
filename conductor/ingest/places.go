package ingest

import (
	"fmt"
	"maps"
	"sync"
)

// Places says how many sources there may be, and counts those for which there is no place. Its methods are safe for concurrent
// use; its lock is taken last.
type Places struct {
	mu      sync.Mutex
	limits  Limits            // guarded by mu
	refused map[string]uint64 // attempts, by reason; guarded by mu
}

// Room is what leaves room for fewer sources than limits.max_sources allows. The zero value is limits.max_sources itself.
type Room struct {
	Reason string // label reason of conductor_sources_refused_total
	Text   string // what there is, and what it is enough for
}

// reasonMaxSources is the Reason of limits.max_sources, reasonTenant that of limits.max_tenant_sources.
const reasonMaxSources, reasonTenant = "max_sources", "tenant"

// tune replaces the limits.
func (p *Places) tune(l Limits) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits = l
}

// Bounds returns how many sources there may be, and how many that clients of one tenant registered; 0 is no bound.
func (p *Places) Bounds() (all, ofTenant int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits.MaxSources, p.limits.MaxTenantSources
}

// TooMany counts an attempt to register or to hold a place for which there is none, of its tenant or at all, and returns why. It is an
// ErrTooManySources.
func (p *Places) TooMany(ofTenant bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	reason, err := reasonMaxSources, ErrTooManySources
	switch {
	case ofTenant:
		reason, err = reasonTenant, fmt.Errorf("%w: limits.max_tenant_sources allows %d", ErrTenantFull, p.limits.MaxTenantSources)
	case p.limits.MaxSourcesBy.Reason != "":
		reason, err = p.limits.MaxSourcesBy.Reason, fmt.Errorf("%w: %s", ErrTooManySources, p.limits.MaxSourcesBy.Text)
	}
	if p.refused == nil {
		p.refused = make(map[string]uint64)
	}
	p.refused[reason]++
	return err
}

// Refused returns for how many attempts there was no place since the start, by reason.
func (p *Places) Refused() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.refused)
}
