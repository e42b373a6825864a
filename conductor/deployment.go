package conductor

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// deploymentKey is what a query must name to be answered at all.
type deploymentKey struct {
	tenant    string
	model     string
	blockSize int // tokens
}

// contextKey tells the indexes of one deployment apart.
type contextKey struct {
	lora string
	salt string
}

// deployment is everything of one (tenant, model, block size).
type deployment struct {
	key deploymentKey

	// Guarded by Conductor.mu.
	refs      int                  // sources registered here plus namespaces in its contexts
	instances map[string]*instance // every instance ever seen here
	contexts  map[contextKey]*indexContext

	// view is what queries read: never changed once published.
	view atomic.Pointer[view]
}

// instance is one routable target inside a deployment.
type instance struct {
	id      int32 // dense, stable for the life of the deployment
	name    string
	sources map[*source]bool // registered here
}

// view is an immutable picture of a deployment's rows and contexts.
type view struct {
	rows     []viewRow // registered instances, sorted by name
	ids      map[string]int32
	contexts map[contextKey]*indexContext
}

// viewRow is one instance that may appear in an answer.
type viewRow struct {
	id      int32
	name    string
	ranks   []int32 // registered ranks, ascending
	loras   []string
	sources []*source
}

// serves reports whether the instance is registered for the adapter or has
// announced blocks under it.
func (r *viewRow) serves(lora string) bool { return slices.Contains(r.loras, lora) }

// indexContext is one index and what its owners mean.
type indexContext struct {
	key        contextKey
	deployment *deployment
	index      *index.Index
	scheme     hash.Scheme
	refs       int // namespaces; guarded by Conductor.mu

	mu     sync.Mutex                    // serialises writers of owners
	owners atomic.Pointer[[]tiers.Owner] // by index.Owner; append-only
}

// newOwner hands out an owner of src and publishes its descriptor.
func (x *indexContext) newOwner(src index.Source, o tiers.Owner) index.Owner {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.index.NewOwner(src)
	var table []tiers.Owner
	if p := x.owners.Load(); p != nil {
		table = *p
	}
	for len(table) <= int(id) {
		table = append(table, tiers.Owner{})
	}
	table[id] = o
	x.owners.Store(&table)
	return id
}

// table returns the owner descriptors; index.Owner is the position.
func (x *indexContext) table() []tiers.Owner {
	if p := x.owners.Load(); p != nil {
		return *p
	}
	return nil
}

// instance returns the named instance, making it when new. c.mu is held.
func (d *deployment) instance(name string) *instance {
	in, ok := d.instances[name]
	if !ok {
		in = &instance{id: int32(len(d.instances)), name: name, sources: make(map[*source]bool)}
		d.instances[name] = in
	}
	return in
}

// publish rebuilds the view. c.mu is held.
func (d *deployment) publish() {
	v := &view{ids: make(map[string]int32, len(d.instances)), contexts: make(map[contextKey]*indexContext, len(d.contexts))}
	for k, x := range d.contexts {
		v.contexts[k] = x
	}
	for name, in := range d.instances {
		v.ids[name] = in.id
		row := viewRow{id: in.id, name: name}
		for s := range in.sources {
			row.ranks = append(row.ranks, int32(s.reg.Rank))
			row.loras = append(row.loras, s.reg.Lora)
			row.loras = append(row.loras, s.announced...)
			row.sources = append(row.sources, s)
		}
		if len(row.sources) == 0 {
			continue
		}
		slices.Sort(row.ranks)
		row.ranks = slices.Compact(row.ranks)
		slices.SortFunc(row.sources, func(a, b *source) int { return a.reg.Rank - b.reg.Rank })
		v.rows = append(v.rows, row)
	}
	slices.SortFunc(v.rows, func(a, b viewRow) int { return strings.Compare(a.name, b.name) })
	d.view.Store(v)
}

// deploymentOf returns the deployment, making it when new. c.mu is held.
func (c *Conductor) deploymentOf(key deploymentKey) *deployment {
	d, ok := c.deployments[key]
	if !ok {
		d = &deployment{
			key:       key,
			instances: make(map[string]*instance),
			contexts:  make(map[contextKey]*indexContext),
		}
		c.deployments[key] = d
	}
	return d
}

// join makes a source's instance visible in the deployment it is registered
// for. Pools are never rows. c.mu is held.
func (c *Conductor) join(s *source) {
	d := c.deploymentOf(s.deploymentKey())
	d.refs++
	if !s.reg.pool() {
		d.instance(s.reg.Instance).sources[s] = true
	}
	d.publish()
}

// leave undoes join. c.mu is held.
func (c *Conductor) leave(s *source) {
	d := c.deployments[s.deploymentKey()]
	if !s.reg.pool() {
		delete(d.instances[s.reg.Instance].sources, s)
	}
	c.release(d)
}

// release drops one reference and the deployment with the last one. c.mu
// is held.
func (c *Conductor) release(d *deployment) {
	if d.refs--; d.refs == 0 {
		delete(c.deployments, d.key)
	}
	d.publish()
}

// enter gives a source a namespace in a context, making both when new.
func (c *Conductor) enter(s *source, dk deploymentKey, ck contextKey) *namespace {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.deploymentOf(dk)
	x, ok := d.contexts[ck]
	if !ok {
		x = &indexContext{key: ck, deployment: d, scheme: c.scheme, index: index.New(index.Options{Scheme: c.scheme, MaxOrphans: c.opts.MaxOrphans})}
		d.contexts[ck] = x
	}
	d.refs++
	x.refs++
	ns := &namespace{context: x, source: x.index.NewSource(), owners: make(map[ownerKey]index.Owner)}
	if s.reg.pool() {
		ns.instance = tiers.Pool
	} else {
		ns.instance = d.instance(s.reg.Instance).id
		if dk == s.deploymentKey() && ck.lora != s.reg.Lora && !slices.Contains(s.announced, ck.lora) {
			s.announced = append(s.announced, ck.lora)
		}
	}
	d.publish()
	return ns
}

// exit drops everything a source holds in a context, and the context with its
// last namespace.
func (c *Conductor) exit(ns *namespace) {
	x := ns.context
	x.index.DropSource(ns.source)
	c.mu.Lock()
	defer c.mu.Unlock()
	d := x.deployment
	if x.refs--; x.refs == 0 {
		delete(d.contexts, x.key)
	}
	c.release(d)
}
