package conductor

import (
	"cmp"
	"slices"
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

// serving decides which queries a Conductor answers; without functions it answers all.
type serving struct {
	ask  Serving
	away func() []*UnservedError // of all shards that it does not answer for
}

// ServeBy lets functions decide which queries the Conductor answers: away returns the errors of all
// shards that it does not answer for. Call ServeBy before the first query.
func (c *Conductor) ServeBy(ask Serving, away func() []*UnservedError) {
	c.serving = serving{ask, away}
}

// unserved returns why the Conductor does not answer for a model, nil if it does.
func (c *Conductor) unserved(tenant, model string) error {
	if c.serving.ask == nil {
		return nil
	}
	if err := c.serving.ask(Shard{cmp.Or(tenant, DefaultTenant), model}); err != nil {
		return err
	}
	return nil
}

// ServesModel returns an *UnservedError if another replica answers for a model of one of the client's
// tenants; "" is every model.
func (v View) ServesModel(model string) error {
	if v.conductor.serving.away == nil {
		return nil
	}
	for _, err := range v.conductor.serving.away() {
		if err.Shard == (Shard{}) || (model == "" || err.Shard.Model == model) && v.reader.Tenants.Has(err.Shard.Tenant) {
			return err
		}
	}
	return nil
}

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

// Follows reports whether a source is registered, not only named by a peer.
func (c *Conductor) Follows(key Key) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.sources[key]
	return s != nil && !s.recovered
}
