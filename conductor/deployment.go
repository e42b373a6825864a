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

	"kvconductor/conductor/doctor"
	"kvconductor/conductor/prefixes"
	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// deployment is everything of one (tenant, model, block size).
type deployment struct {
	key scope.Deployment

	// Guarded by Conductor.mu.
	refs      int                  // sources registered here plus namespaces in its contexts
	instances map[string]*instance // every instance ever seen here
	pooled    map[*source]bool     // pools registered here
	kinds     map[int]string       // attention groups by index, as engines have told
	loras     []string             // adapters that registrations have named; append-only
	salts     []string             // likewise, salts

	// What queries read, changed under Conductor.mu only.
	contexts sync.Map                        // scope.Variant -> *indexContext
	firsts   sync.Map                        // client hash -> *indexContext that translates it, of blocks that begin prompts
	askedAt  atomic.Int64                    // Unix seconds of the last query
	asked    askedCounts                     // by queries
	awaiting atomic.Pointer[[]*indexContext] // contexts with blocks under hashes that no engine has announced; nil for none

	lookAheads usedLookAheads                          // of the namespaces in all contexts
	adapted    atomic.Bool                             // events have named an adapter that their source's registration does not
	salted     atomic.Bool                             // likewise, a salt
	tokenless  atomic.Bool                             // blocks come without tokens
	tiered     atomic.Bool                             // blocks are on a lower tier than the device
	early      atomic.Int64                            // names remembered, see earlyNames
	parts      atomic.Int32                            // most parts of a published block; 0 while none had several: see normalize/parts.go
	summary    *prefixes.Summary                       // of what queries ask for
	view       atomic.Pointer[view]                    // registered instances
	outdated   atomic.Bool                             // the view is older than the instances
	bell       bell                                    // rings when answers may have changed
	pools      atomic.Pointer[[]*source]               // registered pools, sorted by key; never changed once published
	profiles   atomic.Pointer[map[string]hash.Profile] // by adapter, see profile; likewise, nil when there is none
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
	loras   []string
	sources []*source
}

// serves reports whether the instance is registered for the adapter or has
// announced blocks under it.
func (r *row) serves(lora string) bool { return slices.Contains(r.loras, lora) }

// indexContext is one index and what its owners mean.
type indexContext struct {
	key        scope.Variant
	deployment *deployment
	index      *index.Index
	scheme     hash.Scheme
	refs       int // namespaces; guarded by Conductor.mu

	mu     sync.Mutex                    // serialises writers of owners
	owners atomic.Pointer[[]tiers.Owner] // by index.Owner; append-only

	sources map[index.Source]*source // of the namespaces; guarded by Conductor.mu

	waiting atomic.Pointer[[]*source] // whose blocks may wait here for their hash; written under Conductor.mu

	log     zerolog.Logger
	tidying atomic.Bool // a tidy is due
	seeds   doctor.Seeds

	// translates says that the local hashes of Dynamo's clients are kept and differ from
	// the context's own; translation then has them.
	translates  bool
	translation translation

	lookAheads usedLookAheads // of the namespaces in the context

	// recalledFrom is shared by the names that recall has of this context, until its
	// look-aheads change; guarded by recall.move.
	recalledFrom *recalledFrom

	serial  uint64       // unlike that of any other context
	askedAt atomic.Int64 // Unix seconds of the last query
}

// tidyAfter gathers what leaves together, such as the ranks of an instance.
const tidyAfter = time.Second

// tidy makes the index give memory back soon after many blocks have left at once. It
// reads the statistics, which does so without a store or a query. A broken invariant
// that this meets is logged.
func (x *indexContext) tidy() {
	if x.tidying.CompareAndSwap(false, true) {
		time.AfterFunc(tidyAfter, func() {
			x.tidying.Store(false)
			defer func() {
				if p := recover(); p != nil {
					x.log.Error().Interface("panic", p).Str("stack", string(debug.Stack())).Msg("index was not tidied")
				}
			}()
			x.index.Stats()
		})
	}
}

// newOwner hands out an owner of src and publishes its descriptor. tally counts its
// blocks; it may be nil.
func (x *indexContext) newOwner(src index.Source, o tiers.Owner, tally *atomic.Int64) index.Owner {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.index.NewCountedOwner(src, tally)
	var table []tiers.Owner
	if p := x.owners.Load(); p != nil {
		table = *p
	}
	for len(table) <= int(id) {
		table = append(table, tiers.Owner{Instance: tiers.Retired})
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

// ids returns the ids of named instances, whether or not they are there yet; nil for
// all. c.mu is held.
func (d *deployment) ids(names []string) []int32 {
	var all []int32
	for _, name := range names {
		all = append(all, d.instance(name).id)
	}
	return all
}

// context returns the context of a key, nil when there is none.
func (d *deployment) context(key scope.Variant) *indexContext {
	if x, ok := d.contexts.Load(key); ok {
		return x.(*indexContext)
	}
	return nil
}

// publish lets the next query rebuild the rows: many registrations cost one. changed is the source
// that came, went or announced an adapter, nil for none. c.mu is held.
func (d *deployment) publish(changed *source) {
	d.outdated.Store(true)
	defer d.bell.ring()
	if changed == nil || changed.reg.pool() {
		pools := slices.Collect(maps.Keys(d.pooled))
		slices.SortFunc(pools, func(a, b *source) int { return strings.Compare(a.reg.Key().String(), b.reg.Key().String()) })
		d.pools.Store(&pools)
	}
	if changed != nil && (changed.profile != (hash.Profile{}) || changed.reg.pool()) {
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
		r := row{id: in.id, name: name, address: workerAddress(name)}
		for s := range in.sources {
			r.ranks = append(r.ranks, int32(s.reg.Rank))
			r.loras = append(r.loras, s.reg.Lora)
			r.loras = append(r.loras, s.announced...)
			r.sources = append(r.sources, s)
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

// removeWaiter undoes addWaiter. c.mu is held.
func (x *indexContext) removeWaiter(s *source) {
	if !x.isWaiter(s) {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(*x.waiting.Load()), func(other *source) bool { return other == s })
	if len(rest) > 0 {
		x.waiting.Store(&rest)
		return
	}
	x.waiting.Store(nil)
	d := x.deployment
	all := slices.DeleteFunc(slices.Clone(*d.awaiting.Load()), func(other *indexContext) bool { return other == x })
	if len(all) == 0 {
		d.awaiting.Store(nil)
		return
	}
	d.awaiting.Store(&all)
}

// replaceWaiter lets a source wait in the place of another. c.mu is held.
func (x *indexContext) replaceWaiter(old, s *source) {
	if x.isWaiter(old) {
		list := slices.Clone(*x.waiting.Load())
		list[slices.Index(list, old)] = s
		x.waiting.Store(&list)
	}
}

// isWaiter reports whether blocks of the source may wait in the context.
func (x *indexContext) isWaiter(s *source) bool {
	list := x.waiting.Load()
	return list != nil && slices.Contains(*list, s)
}
