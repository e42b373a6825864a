package conductor

import (
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// deployment is everything of one (tenant, model, block size), with the index of all its blocks.
type deployment struct {
	key    scope.Deployment
	scheme hash.Scheme
	index  *index.Index
	names  *names.Table // adapters and salts

	// Guarded by registry.mu.
	refs      int                      // sources registered here plus namespaces
	instances map[string]*instance     // every instance ever seen here
	pooled    map[*source]bool         // pools registered here
	kinds     map[int]string           // attention groups by index, as engines have told
	holders   map[index.Source]*source // by their namespaces in the index

	ownersMu sync.Mutex                    // serialises writers of owners
	owners   atomic.Pointer[[]tiers.Owner] // what owners of the index are, by index.Owner; append-only

	// What queries read, changed under registry.mu only unless atomic.
	askedAt    atomic.Int64                            // Unix seconds of the last query
	asked      askedCounts                             // by queries
	lookAheads usedLookAheads                          // of the namespaces
	tokenless  atomic.Bool                             // blocks come without tokens
	parts      atomic.Int32                            // most parts of a published block; 0 while none had several: see normalize/parts.go
	summary    *prefixes.Summary                       // of what queries ask for
	view       atomic.Pointer[view]                    // registered instances
	outdated   atomic.Bool                             // the view is older than the instances
	bell       bell                                    // rings when answers may have changed
	pools      atomic.Pointer[[]*source]               // registered pools, sorted by key; never changed once published
	profiles   atomic.Pointer[map[string]hash.Profile] // by adapter, see profile; likewise, nil when there is none

	expected    *expect.Space                // see expected.go
	translation translation                  // of client hashes, see clienthash.go
	seeds       atomic.Pointer[doctor.Seeds] // of the base model; others while no source is in the deployment
	log         zerolog.Logger
	tidying     atomic.Bool // a tidy is due
}

// instance is one routable target inside a deployment.
type instance struct {
	id      int32 // dense, stable for the life of the deployment
	name    string
	sources map[*source]bool // registered here
}

// row is one instance that may appear in an answer.
type row struct {
	id      int32
	name    string
	address string  // by which routers know it, "" if they do not: see workers.go
	ranks   []int32 // registered ranks, ascending
	loras   map[string]bool
	sources []*source
	// approximate: the engine of a source publishes nothing, so that what it holds is known from reports alone.
	approximate bool
}

// serves reports whether the instance is registered for the adapter or has announced blocks under it. An
// approximate one announces nothing, so it may serve any.
func (r *row) serves(lora string) bool { return r.loras[lora] || r.approximate }

// tidyAfter gathers what leaves together, such as the ranks of an instance.
const tidyAfter = time.Second

// tidy makes the index give memory back soon after many blocks have left at once. It
// reads the statistics, which does so without a store or a query. A broken invariant
// that this meets is logged.
func (d *deployment) tidy() {
	if d.tidying.CompareAndSwap(false, true) {
		time.AfterFunc(tidyAfter, func() {
			d.tidying.Store(false)
			defer func() {
				if p := recover(); p != nil {
					d.log.Error().Interface("panic", p).Str("stack", string(debug.Stack())).Msg("index was not tidied")
				}
			}()
			d.index.Stats()
		})
	}
}

// newOwner hands out an owner of src and publishes its descriptor. tally counts its
// blocks; it may be nil.
func (d *deployment) newOwner(src index.Source, o tiers.Owner, tally *atomic.Int64) index.Owner {
	d.ownersMu.Lock()
	defer d.ownersMu.Unlock()
	id := d.index.NewCountedOwner(src, tally)
	table := d.table()
	for len(table) <= int(id) {
		table = append(table, tiers.Owner{Instance: tiers.Retired})
	}
	table[id] = o
	d.owners.Store(&table)
	return id
}

// agree reports whether two identities have in common what an event says of the first one. The index
// calls it.
func (d *deployment) agree(says index.Says, a, b index.Identity) bool {
	one, other := d.names.Of(a), d.names.Of(b)
	return one != nil && other != nil && (says&index.SaysAdapter == 0 || one.Lora == other.Lora) &&
		(says&index.SaysSalt == 0 || one.Salt == other.Salt)
}

// table returns the owner descriptors; index.Owner is the position.
func (d *deployment) table() []tiers.Owner {
	if p := d.owners.Load(); p != nil {
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

// ids returns the ids of named instances, whether or not they are there yet; nil for
// all. c.mu is held.
func (d *deployment) ids(names []string) []int32 {
	var all []int32
	for _, name := range names {
		all = append(all, d.instance(name).id)
	}
	return all
}

// publish lets the next query rebuild the rows: many registrations cost one. changed is the source
// that came, went or announced an adapter, nil for none. c.mu is held.
func (d *deployment) publish(changed *source) {
	d.outdated.Store(true)
	defer d.bell.ring()
	if changed == nil || changed.reg.IsPool() {
		pools := slices.Collect(maps.Keys(d.pooled))
		slices.SortFunc(pools, func(a, b *source) int { return strings.Compare(a.reg.Key().String(), b.reg.Key().String()) })
		d.pools.Store(&pools)
	}
	if changed != nil && (changed.profile != (hash.Profile{}) || changed.reg.IsPool()) {
		d.publishProfiles()
	}
}

// rows returns the view of now.
func (d *deployment) rows(c *registry) *view {
	if d.outdated.Load() {
		c.mu.Lock()
		if d.outdated.Load() {
			d.rebuild()
			d.outdated.Store(false)
		}
		c.mu.Unlock()
	}
	return d.view.Load()
}

// rebuild makes the view. c.mu is held.
func (d *deployment) rebuild() {
	rows := make([]row, 0, len(d.instances))
	for name, in := range d.instances {
		r := row{id: in.id, name: name, address: workerAddress(name), loras: make(map[string]bool)}
		for s := range in.sources {
			r.ranks = append(r.ranks, int32(s.reg.Rank))
			r.loras[s.reg.Lora] = true
			maps.Copy(r.loras, s.holdings.announced)
			r.sources = append(r.sources, s)
			r.approximate = r.approximate || s.reg.IsApproximate()
		}
		if len(r.sources) == 0 {
			continue
		}
		slices.Sort(r.ranks)
		r.ranks = slices.Compact(r.ranks)
		slices.SortFunc(r.sources, func(a, b *source) int { return a.reg.Rank - b.reg.Rank })
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	d.view.Store(&view{rows: rows})
}
