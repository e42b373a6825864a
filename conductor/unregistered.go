package conductor

import (
	"fmt"
	"time"

	"example.com/conductor/conductor/scope"
)

// UnregisteredQuery is what queries of the last ten minutes asked for and no engine is registered for.
type UnregisteredQuery struct {
	Tenant, Model string
	BlockSize     int
	Queries       uint64
	At            time.Time // of the last one
	// Advice says what is registered instead.
	Advice string
}

// UnregisteredQueries returns what the client's tenants asked for and have no engine for, the most often asked for first.
func (v View) UnregisteredQueries() []UnregisteredQuery {
	return v.conductor.UnregisteredQueries(v.reader.Tenants)
}

// UnregisteredQueries is View.UnregisteredQueries for a client of some tenants.
func (c *Conductor) UnregisteredQueries(of scope.Tenants) (all []UnregisteredQuery) {
	for _, u := range c.catalog.Unregistered(c.now()) {
		if !of.Has(u.Tenant) || c.Unserved(u.Tenant, u.Model) != nil {
			continue
		}
		advice := c.catalog.Models().Unregistered(u.Tenant, u.Model, u.BlockSize)
		for _, d := range c.catalog.Deployments() {
			if d.Key.Tenant != u.Tenant && d.Key.Model == u.Model && of.Has(d.Key.Tenant) {
				advice += fmt.Sprintf("; tenant %q has it: ask with that tenant_id, or register its engines for tenant %q", d.Key.Tenant,
					u.Tenant)
				break
			}
		}
		all = append(all, UnregisteredQuery{u.Tenant, u.Model, u.BlockSize, u.Queries, u.At, advice})
	}
	return all
}
