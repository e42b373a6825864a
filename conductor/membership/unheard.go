package membership

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// A client may unregister a source that this replica does not know yet. It is answered with 404, and yet the store has to
// know: a replica that writes the source in the next seconds is too late then. Such an entry ends after unheardFor, no
// other replica reads the registry for it, and it is not on the disk. Anybody who may unregister can make up names, so
// there are no more of them than sources: for each tenant, and in all.

// Reasons why a change is not written.
const (
	reasonPending    = "pending"     // mostPending wait
	reasonTenant     = "tenant"      // limits.max_tenant_sources
	reasonMaxSources = "max_sources" // limits.max_sources, or what this process has room for
)

// unregisterKey lets g know that a client has unregistered a key here. known says that there was such a source. Else another
// replica may have one, or ask an engine of that name, of which this one has not heard yet.
func unregisterKey(g *Registry, key registration.Key, known bool) {
	key.Tenant = cmp.Or(key.Tenant, scope.DefaultTenant)
	if known {
		g.Unregistered(Name{Key: key})
		return
	}
	names := namesOf(key)
	g.mu.Lock()
	heard := slices.DeleteFunc(slices.Clone(names), func(n Name) bool { return !hasHeardOf(g, n) })
	reason := refusesUnheard(g, names)
	if len(heard) == 0 && reason != "" {
		g.dropped[reason]++
	}
	g.mu.Unlock()
	switch {
	case len(heard) > 0:
		for _, n := range heard {
			g.Unregistered(n)
		}
	case reason == "":
		for _, n := range names {
			g.queueChange(n, &change{unheard: true})
		}
	}
}

// namesOf returns the names that the entry of a key may have.
func namesOf(key registration.Key) []Name {
	ofAll := key
	ofAll.Rank = discovery.AllRanks
	return []Name{{Key: key}, {Key: key, Asked: true}, {Key: ofAll, Asked: true}}
}

// hasHeardOf reports whether a source of the name is registered, as far as this replica knows. Registry.mu is held.
func hasHeardOf(g *Registry, n Name) bool {
	e, p := g.known[n], g.pending[n]
	return e != nil && !e.Gone || p != nil && p.source != nil
}

// refusesUnheard returns why there is no room to unregister an entry by the names that it may have, "" if there is: none of
// them is new, or there are not as many as limits allow. Registry.mu is held.
func refusesUnheard(g *Registry, names []Name) (reason string) {
	if !slices.ContainsFunc(names, func(n Name) bool { return g.known[n] == nil && g.pending[n] == nil }) {
		return ""
	}
	all, ofTenant := g.cfg.Conductor.Sources().Places.Bounds()
	total, same := 0, 0
	count := func(n Name) {
		if total++; n.Tenant == names[0].Tenant {
			same++
		}
	}
	for n, c := range g.pending {
		if c.unheard {
			count(n)
		}
	}
	clock, now := g.cfg.Group.Status().clock, g.cfg.Group.cfg.Now()
	since := clock.timeOf(now.Add(-unheardFor)).UnixMilli()
	for n, e := range g.known {
		if e.Unheard && e.By == g.cfg.Group.ID() && e.at >= since && g.pending[n] == nil {
			count(n)
		}
	}
	switch {
	case ofTenant > 0 && same >= ofTenant*len(names):
		return reasonTenant
	case all > 0 && total >= all*len(names):
		return reasonMaxSources
	}
	return ""
}

// isAlone returns 1 if no other replica shares the store, proven or not, else 0. Others that found the store away too may
// take a lease to come back.
func isAlone(g *Group, st *Status) int {
	isOther := func(r Replica) bool { return r.ID != g.ID() }
	early := g.cfg.Now().Sub(st.Since) < g.cfg.Lease
	if early || slices.ContainsFunc(st.Replicas, isOther) || slices.ContainsFunc(st.Unproven, isOther) {
		return 0
	}
	return 1
}
