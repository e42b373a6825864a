package status

import (
	"fmt"
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

// Summary says in one sentence how the sources of some tenants are, the worst state first, and how much that
// matters. draining says that the server is about to leave.
//
//	2 of 13 sources are stale, 1 is replaying
//	13 sources are synced
//
// The severity is Error if no source can be relied on, so that answers are empty or old, and Warning if some
// cannot, or there is none. Sources that connect, replay or are partial are no warning as long as others are
// synced: the first two are over soon, and a partial source still answers for what it has.
func (r *Readiness) Summary(tenants scope.Tenants, draining bool) (string, doctor.Severity) {
	switch {
	case draining:
		return "draining", doctor.Warning
	case r.Recovering:
		return "recovering: nothing that engines send is applied yet", doctor.Warning
	}
	var sum stateCounts
	total, synced, lost := 0, 0, 0
	for tenant, counts := range r.states {
		if !tenants.Has(tenant) {
			continue
		}
		for i, n := range counts {
			sum[i] += n
			total += n
			switch states[i] {
			case stream.Synced, stream.Approximate:
				synced += n
			case stream.Failed, stream.Stale, stream.Paused:
				lost += n
			}
		}
	}
	if total == 0 {
		return "no source is registered", doctor.Warning
	}
	severity := doctor.OK
	switch {
	case lost == total:
		severity = doctor.Error
	case lost > 0 || synced == 0:
		severity = doctor.Warning
	}
	who := spelling.Count(total, "source")
	if synced != total && total > 1 {
		who = " of " + who
	}
	var parts []string
	for i, n := range sum {
		switch {
		case n == 0, states[i].Ready() && synced != total:
		case len(parts) > 0:
			parts = append(parts, fmt.Sprintf("%d %s %s", n, spelling.Agree(n, "is", "are"), states[i]))
		case strings.HasPrefix(who, " "):
			parts = append(parts, fmt.Sprintf("%d%s %s %s", n, who, spelling.Agree(n, "is", "are"), states[i]))
		default:
			parts = append(parts, fmt.Sprintf("%s %s %s", spelling.Count(n, "source"), spelling.Agree(n, "is", "are"), states[i]))
		}
	}
	if tenants.All() && r.Synced < r.MinSynced {
		severity = doctor.Error
		parts = append(parts, fmt.Sprintf("%d must be synced", r.MinSynced))
	}
	return strings.Join(parts, ", "), severity
}
