package status

import (
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
)

// states are all states, those that ask for attention first.
var states = []stream.State{stream.Failed, stream.Stale, stream.Partial, stream.Connecting, stream.Replaying, stream.Paused,
	stream.Approximate, stream.Synced}

// stateCounts counts sources by their state, in the order of states.
type stateCounts [8]int

// tenantCounts counts the sources of a tenant: those that are erring apart, the others by their state.
type tenantCounts struct {
	states stateCounts
	erring int // they have a finding of severity error, while their state is none
}

// Summary says in one sentence how the sources of some tenants are, the worst state first, and how much that
// matters. draining says that the server is about to leave.
//
//	2 of 13 sources are stale, 1 is replaying, 1 has an error finding
//	13 sources are synced
//
// The severity is Error if an operator must act on a source, or there is none, and Warning if no source can be relied on yet.
// Sources that connect, replay or are partial are no warning as long as others are synced: the first two are over soon, and a
// partial source still answers for what it has.
func (r *Readiness) Summary(tenants scope.Tenants, draining bool) (string, doctor.Severity) {
	switch {
	case draining:
		return "draining", doctor.Warning
	case r.Recovering:
		return "recovering: nothing that engines send is applied yet", doctor.Warning
	}
	var sum tenantCounts
	for tenant, counts := range r.states {
		if tenants.Has(tenant) {
			for i, n := range counts.states {
				sum.states[i] += n
			}
			sum.erring += counts.erring
		}
	}
	if sum == (tenantCounts{}) {
		text := "no source is registered"
		if !tenants.All() {
			text += " for " + tenants.Text()
		}
		return text, doctor.SeverityOf("no_sources")
	}
	total, well := sum.erring, 0
	for i, n := range sum.states {
		total += n
		if states[i].Ready() {
			well += n
		}
	}
	var parts []string
	add := func(n int, how string) {
		switch {
		case n == 0:
		case len(parts) > 0:
			parts = append(parts, fmt.Sprintf("%d %s", n, how))
		case well == total || total == 1:
			parts = append(parts, fmt.Sprintf("%s %s", spelling.Count(n, "source"), how))
		default:
			parts = append(parts, fmt.Sprintf("%d of %s %s", n, spelling.Count(total, "source"), how))
		}
	}
	for i, n := range sum.states {
		if well == total || !states[i].Ready() {
			add(n, spelling.Agree(n, "is ", "are ")+string(states[i]))
		}
	}
	add(sum.erring, spelling.Agree(sum.erring, "has an error finding", "have error findings"))
	severity := sum.severity(well)
	if tenants.All() && r.Synced < r.MinSynced {
		severity = doctor.Error
		parts = append(parts, fmt.Sprintf("%d must be synced", r.MinSynced))
	}
	return strings.Join(parts, ", "), severity
}

// severity is that of the summary. well is how many sources are synced and not erring.
func (n *tenantCounts) severity(well int) doctor.Severity {
	for i := range states {
		if n.states[i] > 0 && doctor.SeverityOf(string(states[i])) == doctor.Error {
			return doctor.Error
		}
	}
	switch {
	case n.erring > 0:
		return doctor.Error
	case well == 0 || n.states[slices.Index(states, stream.Paused)] > 0:
		return doctor.Warning
	}
	return doctor.OK
}
