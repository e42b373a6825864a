package explain

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
)

// BeginsWith returns how many blocks the prefix with a key has, of those that Popular names, if the prompt of kept
// begins with it and kept asks the same deployment and adapter as q. Otherwise it returns 0.
func (p Inspector) BeginsWith(kept, q *match.Query, key uint64) int {
	at := func(q *match.Query) scope.Deployment {
		return scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant), Model: p.Catalog.Models().Resolve(q.Tenant, q.Model).Model,
			BlockSize: q.BlockSize}
	}
	d := p.Catalog.Deployment(at(q))
	if d == nil || at(kept) != at(q) || kept.Lora != q.Lora {
		return 0
	}
	c := (&explaining{Inspector: p, query: kept}).chainsOf(d, kept.BlockSize)[0] // the one that queries sample
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
func (p Inspector) Popular(top int) (all []Popular) {
	for _, d := range p.Catalog.Deployments() {
		if p.Tenants.Has(d.Key.Tenant) {
			all = append(all, Popular{Deployment: d.Key, Report: d.Summary.Report(top)})
		}
	}
	all = slices.DeleteFunc(all, func(x Popular) bool { return x.Queries == 0 })
	slices.SortFunc(all, func(a, b Popular) int { return cmp.Or(cmp.Compare(b.Queries, a.Queries), a.Compare(b.Deployment)) })
	return all
}
