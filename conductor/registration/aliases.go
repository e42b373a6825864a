package registration

import (
	"iter"
	"slices"

	"example.com/conductor/conductor/scope"
)

// Names are the aliases of some registrations, each with the models that have the name, as their
// own or as an alias, sorted. Names do not change.
type Names map[scope.Shard][]string

// NamesOf returns the aliases of registrations.
func NamesOf(all iter.Seq[Registration]) Names {
	n := make(Names)
	add := func(name scope.Shard, model string) {
		if at, found := slices.BinarySearch(n[name], model); !found {
			n[name] = slices.Insert(n[name], at, model)
		}
	}
	for r := range all {
		for _, s := range r.Shards() {
			for _, alias := range r.Aliases {
				add(scope.Shard{Tenant: s.Tenant, Model: alias}, r.Model)
			}
		}
	}
	if len(n) == 0 {
		return nil
	}
	for r := range all {
		for _, s := range r.Shards() {
			if own := (scope.Shard{Tenant: s.Tenant, Model: r.Model}); n[own] != nil && !r.IsPool() {
				add(own, r.Model)
			}
		}
	}
	return n
}

// Model returns the model that a name of a tenant means, the name itself if it is no alias or means
// none.
func (n Names) Model(tenant, name string) string {
	if all := n[scope.Shard{Tenant: tenant, Model: name}]; len(all) == 1 {
		return all[0]
	}
	return name
}
