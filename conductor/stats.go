package conductor

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Stats returns the numbers. It locks each index a few times, and costs the number of sources
// and owners, not blocks.
func (c *Conductor) Stats() *status.Stats {
	st := &status.Stats{Sources: c.Services(), Tenants: make(map[string]status.TenantStats), Times: c.matcher.Times()}
	for labels, x := range indexStats(c.catalog) {
		t := st.Tenants[labels[0]]
		t.Blocks += x.Blocks
		t.Memberships += x.Memberships
		st.Tenants[labels[0]] = t
		st.Bytes += int64(x.Bytes)
	}
	if used, limit := c.catalog.Options.Budget.Used(); limit > 0 {
		st.Bytes, st.Limit = used, limit
	}
	for tenant, n := range queriesByTenant(c.catalog) {
		t := st.Tenants[tenant]
		t.Queries = n
		st.Tenants[tenant] = t
	}
	for _, n := range c.catalog.SumQueries() {
		st.Queries.Add(n)
	}
	st.Ready = status.Readiness{
		Recovering: c.sources.Recovering(), MinSynced: c.tuned.Load().MinSynced, IndexBytes: st.Bytes, IndexLimit: st.Limit,
	}
	for i := range st.Sources {
		s := &st.Sources[i]
		st.Ready.Count(s.Static, status.SourceState{Key: s.Key(), State: s.State, Reason: s.Reason})
	}
	countUnfound(c, &st.Ready)
	st.Ready.Decide()
	return st
}

// queriesByTenant returns the counts of the queries of registered models.
func queriesByTenant(c *catalog.Catalog) map[string]catalog.QueryCounts {
	all := make(map[string]catalog.QueryCounts)
	for _, d := range c.Deployments() {
		sum := all[d.Key.Tenant]
		for _, n := range d.Asked.Load() {
			sum.Add(n)
		}
		all[d.Key.Tenant] = sum
	}
	return all
}

// Tenants returns the tenants that the client of the view may name.
func (v View) Tenants() scope.Tenants { return v.reader.Tenants }
