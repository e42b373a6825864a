package meter

import (
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/tape"
	"example.com/conductor/index/hash"
)

// Options are what a Meter reads.
type Options struct {
	Catalog  *catalog.Catalog
	Sources  *ingest.Sources
	Matcher  *match.Matcher
	Memo     *hash.Memo      // nil for none
	Tape     *tape.Tape      // nil for none
	Payloads *payload.Memory // of messages that wait; nil for no bound
	Now      func() time.Time
}

// Meter reads the numbers of a server. Until Tune is called, all limits are zero.
type Meter struct {
	opts    Options
	limits  atomic.Pointer[Limits]
	unfound atomic.Pointer[func() []status.Unfound] // see AwaitUnfound
}

// Limits are settings of a Meter that may change at any time.
type Limits struct {
	// MinSynced is how many sources must be synced before Ready says so.
	MinSynced int
	// Series says which sources, and which instances, have series of their own.
	Series status.SourceSeries
}

// New returns a Meter.
func New(opts Options) *Meter {
	m := &Meter{opts: opts}
	m.limits.Store(new(Limits))
	return m
}

// Tune replaces the limits.
func (m *Meter) Tune(l Limits) { m.limits.Store(&l) }

// Services returns every registered source, sorted by key. It locks each index once.
func (m *Meter) Services() []status.Source {
	all := ingest.Rows(m.opts.Sources.All())
	m.addExpectations(all)
	return all
}

// AwaitUnfound lets Ready count engines that have not told where they publish, and wait for those of the configuration.
func (m *Meter) AwaitUnfound(unfound func() []status.Unfound) { m.unfound.Store(&unfound) }

// Ready reports whether the gate is open, Limits.MinSynced sources are synced, and every
// static source is synced or given up on. A source is given up on when it is partial, stale,
// paused or failed: waiting would not help. One whose engine publishes nothing counts as synced.
func (m *Meter) Ready() status.Readiness {
	r := status.Readiness{Recovering: m.opts.Sources.Recovering(), MinSynced: m.limits.Load().MinSynced}
	r.IndexBytes, r.IndexLimit = m.opts.Catalog.IndexOptions().Budget.Used()
	for _, s := range m.opts.Sources.All() {
		r.Count(s.Static, s.State())
	}
	m.countUnfound(&r)
	r.Decide()
	return r
}

// countUnfound counts the engines that AwaitUnfound is about.
func (m *Meter) countUnfound(r *status.Readiness) {
	if unfound := m.unfound.Load(); unfound != nil {
		for _, s := range (*unfound)() {
			r.Count(s.Static, s.SourceState)
		}
	}
}

// Stats returns the numbers. It locks each index a few times, and costs the number of sources
// and owners, not blocks.
func (m *Meter) Stats() *status.Stats {
	st := &status.Stats{Sources: m.Services(), Tenants: make(map[string]status.TenantStats), Times: m.opts.Matcher.Times()}
	for labels, x := range sizes(m.opts.Catalog) {
		t := st.Tenants[labels[0]]
		t.Blocks += x.Blocks
		t.Memberships += x.Memberships
		st.Tenants[labels[0]] = t
		st.Bytes += int64(x.Bytes)
	}
	if used, limit := m.opts.Catalog.IndexOptions().Budget.Used(); limit > 0 {
		st.Bytes, st.Limit = used, limit
	}
	st.Models = queriesByModel(m.opts.Catalog)
	for model, n := range st.Models {
		t := st.Tenants[model.Tenant]
		t.Queries.Add(n)
		st.Tenants[model.Tenant] = t
	}
	for _, n := range m.opts.Catalog.SumQueries() {
		st.Queries.Add(n)
	}
	st.Ready = status.Readiness{
		Recovering: m.opts.Sources.Recovering(), MinSynced: m.limits.Load().MinSynced, IndexBytes: st.Bytes, IndexLimit: st.Limit,
	}
	for i := range st.Sources {
		st.Ready.Count(st.Sources[i].Static, status.StateOf(&st.Sources[i]))
	}
	m.countUnfound(&st.Ready)
	st.Ready.Decide()
	return st
}

// queriesByModel returns the counts of the queries of registered models.
func queriesByModel(c *catalog.Catalog) map[scope.Shard]catalog.QueryCounts {
	all := make(map[scope.Shard]catalog.QueryCounts)
	for _, d := range c.Deployments() {
		model := scope.Shard{Tenant: d.Key.Tenant, Model: d.Key.Model}
		sum := all[model]
		for _, n := range d.QueryCounts() {
			sum.Add(n)
		}
		all[model] = sum
	}
	return all
}
