package registration

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/scope"
)

// Shards returns the shards whose answers a source of the registration has a part in.
func (r *Registration) Shards() []scope.Shard {
	all := []scope.Shard{{Tenant: cmp.Or(r.Tenant, scope.DefaultTenant), Model: r.Model}}
	for _, tenant := range r.MayAnnounce {
		if s := (scope.Shard{Tenant: tenant, Model: r.Model}); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
