package registration

import (
	"fmt"
	"iter"
	"slices"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/scope"
)

// maxAliases bounds the aliases of a registration.
const maxAliases = 64

// normalizeAliases sorts the further names of the model.
func (r *Registration) normalizeAliases() error {
	if len(r.Aliases) == 0 {
		r.Aliases = nil
		return nil
	}
	if r.IsPool() {
		return invalid.Field("aliases", "invalid_value", "aliases is for engines, not for type %s", r.Type)
	}
	if len(r.Aliases) > maxAliases {
		return invalid.Field("aliases", "out_of_range", "aliases must have at most %d names, got %d", maxAliases, len(r.Aliases))
	}
	for i, name := range r.Aliases {
		if name == "" {
			return &invalid.FieldError{Field: "aliases", Index: i, Reason: "invalid_value", Message: "aliases must not have an empty name"}
		}
		if len(name) > maxName {
			return &invalid.FieldError{Field: "aliases", Index: i, Reason: "out_of_range",
				Message: fmt.Sprintf("aliases must have names of at most %d bytes, got %d", maxName, len(name))}
		}
	}
	r.Aliases = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.Aliases))),
		func(name string) bool { return name == r.Model })
	if len(r.Aliases) == 0 {
		r.Aliases = nil
	}
	return nil
}

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
