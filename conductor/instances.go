package conductor

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/status"
)

// Instances returns the instances of the client's tenants, sorted by tenant, model, block size and name. They are those of the
// shards that this replica serves.
func Instances(v View) (all []status.Instance) {
	for _, d := range v.conductor.catalog.Deployments() {
		if !v.reader.Tenants.Has(d.Key.Tenant) {
			continue
		}
		rows := d.Instances().All
		for i := range rows {
			all = append(all, instanceOf(d, &rows[i]))
		}
	}
	slices.SortFunc(all, func(a, b status.Instance) int { return a.Compare(&b) })
	return all
}

func instanceOf(d *catalog.Deployment, in *catalog.Instance) status.Instance {
	row := status.Instance{Tenant: d.Key.Tenant, Model: d.Key.Model, BlockSize: d.Key.BlockSize, Name: in.Name, Address: in.Address,
		State: string(match.StateOf(in)), Approximate: in.Approximate, Ranks: in.Ranks}
	for _, m := range in.Members {
		row.Role = cmp.Or(row.Role, m.Registered().Role)
		row.Aliases = append(row.Aliases, m.Registered().Aliases...)
		row.Adapters = append(row.Adapters, m.Registered().Adapters...)
	}
	for _, names := range []*[]string{&row.Aliases, &row.Adapters} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return row
}
