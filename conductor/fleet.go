package conductor

import (
	"maps"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// Counters of the fleet outlive their sources: else each source that leaves would look like a
// restart of the counter. A source counts
//
//	registered --removeSource--> leaving --retire--> in gone of its fleetGroup
//
// and in one of the three at any time, under Sources.mu.

// maxFleetGroups bounds the fleet groups. Clients choose tenants and models.
const maxFleetGroups = 500

// others stands for the names beyond a bound of series.
const others = "(others)"

// fleetGroup is the sources of one tenant and model, as metrics add them up.
type fleetGroup struct {
	scope.Shard
	sources int          // registered or leaving; guarded by Sources.mu
	gone    sourceCounts // guarded by Sources.mu
}

// sourceCounts are the counters of a source, or of several.
type sourceCounts struct {
	gaps, replayed, restarts, overruns, duplicates, reconnects uint64
	dropped                                                    map[events.Reason]uint64
	snapshots                                                  map[string]uint64 // requests for snapshots of engines, by result
}

// snapshotApplied is the result of a request for a snapshot of an engine that did not fail.
const snapshotApplied = "applied"

func (n *sourceCounts) add(o *sourceCounts) {
	n.gaps += o.gaps
	n.replayed += o.replayed
	n.restarts += o.restarts
	n.overruns += o.overruns
	n.duplicates += o.duplicates
	n.reconnects += o.reconnects
	n.dropped = sumOf(n.dropped, o.dropped)
	n.snapshots = sumOf(n.snapshots, o.snapshots)
}

// sumOf adds more to sums and returns it, or a new map if it is nil and there is more.
func sumOf[K comparable](sums, more map[K]uint64) map[K]uint64 {
	if sums == nil && len(more) > 0 {
		sums = make(map[K]uint64)
	}
	for k, n := range more {
		sums[k] += n
	}
	return sums
}

// splitNamed takes the counters by reason and result out of n: groups do not have them.
func (n *sourceCounts) splitNamed() *sourceCounts {
	named := &sourceCounts{dropped: n.dropped, snapshots: n.snapshots}
	n.dropped, n.snapshots = nil, nil
	return named
}

// counts returns the counters of a service.
func (s *Service) counts() sourceCounts {
	return sourceCounts{s.Gaps, s.Replayed, s.Restarts, s.Overruns, s.Duplicates, s.Reconnects, s.Dropped, s.snapshotResults()}
}

// snapshotResults counts requests for snapshots of the engine by result, nil for a source that has
// made none and never does.
func (s *Service) snapshotResults() map[string]uint64 {
	if !s.asksSnapshots && s.Snapshots == 0 && len(s.SnapshotFailures) == 0 {
		return nil
	}
	all := map[string]uint64{snapshotApplied: s.Snapshots}
	maps.Copy(all, s.SnapshotFailures)
	return all
}

// fleetGroups are the groups of all sources. Sources.mu guards them.
type fleetGroups struct {
	by    map[scope.Shard]*fleetGroup
	named sourceCounts // by reason and result, of sources that have left
}

// join returns the group of a registration, which then counts one source more.
func (f *fleetGroups) join(r *registration.Registration) *fleetGroup {
	p := scope.Shard{Tenant: r.Tenant, Model: r.Model}
	g := f.by[p]
	if g == nil && len(f.by) >= maxFleetGroups {
		p = scope.Shard{Tenant: others, Model: others}
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
func (f *fleetGroups) retire(g *fleetGroup, counts sourceCounts) {
	f.named.add(counts.splitNamed())
	g.gone.add(&counts)
	if g.sources--; g.sources == 0 && g.Tenant != others {
		delete(f.by, g.Shard)
	}
}

// retire stops a source that was removed and keeps its counters.
func (c *Sources) retire(s *source) {
	s.stop()
	counts := servicesOf([]*source{s})[0].counts()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leaving, s)
	c.groups.retire(s.group, counts)
}

// fleetSources are all sources at one moment, for metrics.
type fleetSources struct {
	registered, leaving []*source
	gone                map[scope.Shard]sourceCounts // by group
	named               sourceCounts                 // by reason and result, of sources that have left
}

func (c *Sources) fleetSources() fleetSources {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f := fleetSources{
		registered: make([]*source, 0, len(c.sources)), gone: make(map[scope.Shard]sourceCounts, len(c.groups.by)),
		named: sourceCounts{dropped: maps.Clone(c.groups.named.dropped), snapshots: maps.Clone(c.groups.named.snapshots)},
	}
	for _, s := range c.sources {
		f.registered = append(f.registered, s)
	}
	for s := range c.leaving {
		f.leaving = append(f.leaving, s)
	}
	for p, g := range c.groups.by {
		f.gone[p] = g.gone
	}
	return f
}
