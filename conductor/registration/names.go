package registration

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"example.com/conductor/conductor/scope"
)

// Meaning is what queries may mean by the name of a model: a model, and an adapter of it, "" for the model itself.
type Meaning struct{ Model, Lora string }

func (m Meaning) compare(other Meaning) int {
	return cmp.Or(strings.Compare(m.Model, other.Model), strings.Compare(m.Lora, other.Lora))
}

// Names are the aliases and adapters of some registrations, each with all that has the name, models of that name too,
// sorted. Names do not change.
type Names map[scope.Shard][]Meaning

// NamesOf returns the aliases and adapters of registrations.
func NamesOf(all iter.Seq[Registration]) Names {
	n := make(Names)
	add := func(name scope.Shard, m Meaning) {
		if at, found := slices.BinarySearchFunc(n[name], m, Meaning.compare); !found {
			n[name] = slices.Insert(n[name], at, m)
		}
	}
	for r := range all {
		for _, s := range r.Shards() {
			for _, alias := range r.Aliases {
				add(scope.Shard{Tenant: s.Tenant, Model: alias}, Meaning{Model: r.Model})
			}
			for _, adapter := range r.Adapters {
				add(scope.Shard{Tenant: s.Tenant, Model: adapter}, Meaning{Model: r.Model, Lora: adapter})
			}
		}
	}
	if len(n) == 0 {
		return nil
	}
	for r := range all {
		for _, s := range r.Shards() {
			if own := (scope.Shard{Tenant: s.Tenant, Model: r.Model}); n[own] != nil && !r.IsPool() {
				add(own, Meaning{Model: r.Model})
			}
		}
	}
	return n
}

// Model returns the model that a name of a tenant means, the name itself if it is nothing else, or several things.
func (n Names) Model(tenant, name string) string {
	if all := n[scope.Shard{Tenant: tenant, Model: name}]; len(all) == 1 {
		return all[0].Model
	}
	return name
}
