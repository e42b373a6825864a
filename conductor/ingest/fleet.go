package ingest

import (
	"maps"
	"slices"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Counters of the fleet outlive their sources: else each source that leaves would look like a
// restart of the counter. A source counts
//
//	registered --removeSource--> leaving --retire--> in gone of its fleetGroup
//
// and in one of the three at any time, under Sources.mu.

// maxFleetGroups bounds the fleet groups. Clients choose tenants and models.
const maxFleetGroups = 500

// fleetGroup is the sources of one tenant and model, as metrics add them up.
type fleetGroup struct {
	scope.Shard
	sources int           // registered or leaving; guarded by Sources.mu
	gone    status.Counts // guarded by Sources.mu
}

// fleetGroups are the groups of all sources. Sources.mu guards them.
type fleetGroups struct {
	by    map[scope.Shard]*fleetGroup
	named status.Counts // by reason and result, of sources that have left
}

// join returns the group of a registration, which then counts one source more.
func (f *fleetGroups) join(r *registration.Registration) *fleetGroup {
	p := scope.Shard{Tenant: r.Tenant, Model: r.Model}
	g := f.by[p]
	if g == nil && len(f.by) >= maxFleetGroups {
		p = scope.Shard{Tenant: status.Others, Model: status.Others}
		g = f.by[p]
	}
	if g == nil {
		g = &fleetGroup{Shard: p}
		f.by[p] = g
	}
	g.sources++
	return g
}

// retire keeps the counters of a source that has left its group.
func (f *fleetGroups) retire(g *fleetGroup, counts status.Counts) {
	f.named.Add(counts.SplitNamed())
	g.gone.Add(&counts)
	if g.sources--; g.sources == 0 && g.Tenant != status.Others {
		delete(f.by, g.Shard)
	}
}

// retire stops a source that was removed and keeps its counters.
func (c *Sources) retire(s *Source) {
	s.stop()
	counts := Rows([]*Source{s})[0].Counts()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leaving, s)
	c.groups.retire(s.group, counts)
}

// Fleet returns all sources at one moment, for metrics.
func (c *Sources) Fleet() *status.Fleet {
	c.mu.RLock()
	f := &status.Fleet{
		Gone:  make(map[scope.Shard]status.Counts, len(c.groups.by)),
		Named: status.Counts{Dropped: maps.Clone(c.groups.named.Dropped), Snapshots: maps.Clone(c.groups.named.Snapshots)},
	}
	registered, leaving := slices.Collect(maps.Values(c.sources)), slices.Collect(maps.Keys(c.leaving))
	for p, g := range c.groups.by {
		f.Gone[p] = g.gone
	}
	c.mu.RUnlock()
	for i, row := range Rows(registered) {
		f.Registered = append(f.Registered, status.Grouped{Source: row, Group: registered[i].group.Shard})
	}
	for i, row := range Rows(leaving) {
		f.Leaving = append(f.Leaving, status.Grouped{Source: row, Group: leaving[i].group.Shard})
	}
	return f
}
