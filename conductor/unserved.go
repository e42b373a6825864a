package conductor

import (
	"cmp"
	"slices"
	"strings"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
)

// ReplicaAddress is where another replica of the group answers.
type ReplicaAddress struct{ ID, URL string }

// UnservedError says that this replica does not answer for a shard.
type UnservedError struct {
	Shard scope.Shard
	// Serving are the replicas that do, best first. Without any, the group knows the shard, and
	// no replica has its blocks yet.
	Serving []ReplicaAddress
}

func (e *UnservedError) Error() string {
	text := "this replica does not serve model " + e.Shard.Model + " of tenant " + e.Shard.Tenant
	if len(e.Serving) > 0 {
		return text + ", replica " + e.Serving[0].ID + " at " + e.Serving[0].URL + " does"
	}
	return text + ", and no other does yet: try again"
}

// ServedBy returns the ids of the replicas in Serving, in one text for each set of them: a batch is split by it.
func (e *UnservedError) ServedBy() string {
	ids := make([]string, len(e.Serving))
	for i, r := range e.Serving {
		ids[i] = r.ID
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// Serving decides what a Conductor answers. Its methods return an *UnservedError for what others
// answer, else nil.
type Serving interface {
	Serves(scope.Shard) *UnservedError
	// ServesInstance is about the shards that an engine of a tenant has blocks of.
	ServesInstance(tenant, instance string) *UnservedError
	// Away returns the errors of all shards.
	Away() []*UnservedError
	catalog.SharedNames
}

// ServeBy sets what decides. Without it the Conductor answers everything. Call ServeBy before the
// first query.
func (c *Conductor) ServeBy(s Serving) {
	c.serving = s
	c.catalog.UseSharedNames(s)
}

// Unserved returns an *UnservedError if the Conductor does not answer for a model, else nil.
func (c *Conductor) Unserved(tenant, model string) error {
	if c.serving == nil {
		return nil
	}
	shard := scope.Shard{Tenant: cmp.Or(tenant, scope.DefaultTenant), Model: c.catalog.Models().Resolve(tenant, model).Model}
	if err := c.serving.Serves(shard); err != nil {
		return err
	}
	return nil
}

// ServesModel returns an *UnservedError if other replicas answer for a model of some of the client's
// tenants; "" is every model. Those that serve answer for all of that.
func (v View) ServesModel(model string) error {
	if v.conductor.serving == nil {
		return nil
	}
	var all *UnservedError
	for _, err := range v.conductor.serving.Away() {
		switch {
		case err.Shard == (scope.Shard{}):
			return err
		case !v.reader.Tenants.Has(err.Shard.Tenant),
			model != "" && err.Shard.Model != v.conductor.catalog.Models().Resolve(err.Shard.Tenant, model).Model:
		case all == nil:
			all = &UnservedError{err.Shard, err.Serving}
		default:
			all.Serving = slices.DeleteFunc(slices.Clone(all.Serving), func(r ReplicaAddress) bool {
				return !slices.Contains(err.Serving, r)
			})
		}
	}
	if all == nil {
		return nil
	}
	return all
}

// ShardQueries returns how many queries have been answered for each registered shard.
func (c *Conductor) ShardQueries() map[scope.Shard]uint64 {
	all := make(map[scope.Shard]uint64)
	for _, d := range c.catalog.Deployments() {
		for _, n := range d.QueryCounts() {
			all[scope.Shard{Tenant: d.Key.Tenant, Model: d.Key.Model}] += n.Queries
		}
	}
	return all
}

// Unregistered says that nothing is registered for a query, and lists the models or block sizes that are. It
// returns "" if something is registered, or if the client may not name the tenant.
func (v View) Unregistered(q *match.Query) string {
	if v.May(q.Tenant) != nil {
		return ""
	}
	return v.conductor.catalog.Models().Unregistered(q.Tenant, q.Model, q.BlockSize)
}
