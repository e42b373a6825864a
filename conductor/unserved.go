package conductor

import (
	"cmp"
	"slices"
	"strings"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// ReplicaAddress is where another replica of the fleet answers.
type ReplicaAddress struct{ ID, URL string }

// UnservedError says that this replica does not answer for a shard.
type UnservedError struct {
	Shard scope.Shard
	// Serving are the replicas that do, best first. Without any, the fleet knows the shard, and
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
	// Names are the aliases of all registrations of the fleet, as far as they are known.
	Names() registration.Names
	// Models are the models of a tenant that are registered in the fleet.
	Models(tenant string) []string
}

// ServeBy sets what decides. Without it the Conductor answers everything. Call ServeBy before the
// first query.
func (c *Conductor) ServeBy(s Serving) { c.serving = s }

// Unserved returns an *UnservedError if the Conductor does not answer for a model, else nil.
func (c *Conductor) Unserved(tenant, model string) error {
	if c.serving == nil {
		return nil
	}
	if err := c.serving.Serves(scope.Shard{Tenant: cmp.Or(tenant, scope.DefaultTenant), Model: c.modelOf(tenant, model)}); err != nil {
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
		case model != "" && err.Shard.Model != v.conductor.modelOf(err.Shard.Tenant, model) || !v.reader.Tenants.Has(err.Shard.Tenant):
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
	c.registry.mu.RLock()
	defer c.registry.mu.RUnlock()
	all := make(map[scope.Shard]uint64)
	for key, d := range c.registry.deployments {
		for _, n := range d.asked.load() {
			all[scope.Shard{Tenant: key.Tenant, Model: key.Model}] += n.Queries
		}
	}
	return all
}

// Follows reports whether a source is registered, not only named by a peer.
func (c *Conductor) Follows(key registration.Key) bool {
	s := c.registry.source(key)
	return s != nil && !s.recovered
}
