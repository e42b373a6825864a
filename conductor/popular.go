package conductor

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
)

// BeginsWith returns how many blocks the prefix with a key has, of those that Popular names, if the prompt of kept
// begins with it and kept asks the same deployment and adapter as q. Otherwise it returns 0.
func (v Inspection) BeginsWith(kept, q *match.Query, key uint64) int {
	at := func(q *match.Query) scope.Deployment {
		return scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant), Model: v.conductor.catalog.Models().Of(q.Tenant, q.Model),
			BlockSize: q.BlockSize}
	}
	d := v.conductor.catalog.Deployment(at(q))
	if d == nil || at(kept) != at(q) || kept.Lora != q.Lora {
		return 0
	}
	c := (&explaining{conductor: v.conductor, query: kept}).chainsOf(d, kept.BlockSize)[0] // the one that sample looks at
	for depth := 1; depth <= c.Len(); depth *= 2 {
		if c.At(depth-1) == key {
			return depth
		}
	}
	return 0
}

// Popular is what queries ask of a deployment.
type Popular struct {
	scope.Deployment
	prefixes.Report
}

// Popular returns what queries ask of each deployment that the client may see, with at most top
// prefixes of each, most asked for first.
func (v Inspection) Popular(top int) (all []Popular) {
	for _, d := range v.conductor.catalog.Deployments() {
		if v.reader.Tenants.Has(d.Key.Tenant) {
			all = append(all, Popular{Deployment: d.Key, Report: d.Summary.Report(top)})
		}
	}
	all = slices.DeleteFunc(all, func(p Popular) bool { return p.Queries == 0 })
	slices.SortFunc(all, func(a, b Popular) int { return cmp.Or(cmp.Compare(b.Queries, a.Queries), a.Compare(b.Deployment)) })
	return all
}
