package conductor

import (
	"cmp"
	"slices"
	"sync/atomic"
)

// Shard is all deployments of a tenant's model, whatever their block sizes. Replicas share the
// fleet's shards among them: queries that name no block size ask one replica.
type Shard struct{ Tenant, Model string }

// ReplicaAddress is where another replica of the fleet answers.
type ReplicaAddress struct{ ID, URL string }

// UnservedError says that this replica does not answer for a shard.
type UnservedError struct {
	Shard Shard
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

// Serving returns an *UnservedError for a shard that this replica does not answer for, else nil.
type Serving func(Shard) *UnservedError

// serving is the Serving of a Conductor; none is one that answers for all.
type serving struct{ ask atomic.Pointer[Serving] }

// ServeBy lets a function decide which queries the Conductor answers. nil answers all.
func (c *Conductor) ServeBy(ask Serving) {
	if ask == nil {
		c.serving.ask.Store(nil)
		return
	}
	c.serving.ask.Store(&ask)
}

// unserved returns why the Conductor does not answer for a model, nil if it does.
func (c *Conductor) unserved(tenant, model string) error {
	ask := c.serving.ask.Load()
	if ask == nil {
		return nil
	}
	if err := (*ask)(Shard{cmp.Or(tenant, DefaultTenant), model}); err != nil {
		return err
	}
	return nil
}

// Serves returns an *UnservedError if the Conductor does not answer for a tenant's model.
func (v View) Serves(tenant, model string) error { return v.conductor.unserved(tenant, model) }

// ShardQueries returns how many queries have been answered for each registered shard.
func (c *Conductor) ShardQueries() map[Shard]uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[Shard]uint64)
	for key, d := range c.deployments {
		for _, n := range d.asked.load() {
			all[Shard{key.Tenant, key.Model}] += n.Queries
		}
	}
	return all
}

// Shards returns the shards whose answers a source of the registration has a part in.
func (r *Registration) Shards() []Shard {
	all := []Shard{{cmp.Or(r.Tenant, DefaultTenant), r.Model}}
	for _, tenant := range r.MayAnnounce {
		if s := (Shard{tenant, r.Model}); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
