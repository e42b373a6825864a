package catalog

import (
	"cmp"
	"fmt"
	"hash/fnv"
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
	"example.com/conductor/conductor/steady"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// Deployment is everything of one (tenant, model, block size), with the index of all its blocks.
type Deployment struct {
	Key    scope.Deployment
	Scheme hash.Scheme
	Index  *index.Index
	Names  *names.Table // adapters and salts

	mu        *sync.RWMutex               // Catalog.mu; it guards the five fields below
	refs      int                         // sources registered here plus namespaces
	instances map[string]*seenInstance    // every instance ever seen here
	pooled    map[*Member]bool            // pools registered here
	kinds     map[int]string              // attention groups by index, as engines have told
	holders   map[index.Source]*Namespace // by their numbers in the index

	ownersMu   sync.Mutex                    // serialises writers of ownerTable
	ownerTable atomic.Pointer[[]tiers.Owner] // what owners of the index are, by index.Owner; append-only
	Caches     Caches                        // of the owners

	// What queries read, changed under Catalog.mu only unless atomic.
	askedAt    atomic.Int64                            // when the last query came, see steady.Seconds
	asked      askedCounts                             // by queries
	lookAheads usedLookAheads                          // of the namespaces
	tokenless  atomic.Bool                             // some blocks were announced by hash alone
	digests    atomic.Bool                             // queries have asked by the digests of engines
	parts      atomic.Int32                            // most parts of a published block, 0 while none had several
	Summary    *prefixes.Summary                       // of what queries ask for
	view       atomic.Pointer[Instances]               // registered instances
	outdated   atomic.Bool                             // the view is older than the instances
	bell       bell                                    // rings when answers may have changed
	pools      atomic.Pointer[[]*Member]               // registered pools, sorted by key; never changed once published
	profiles   atomic.Pointer[map[string]hash.Profile] // by adapter, see Profile; likewise, nil when there is none

	Expected    *expect.Space                // what routers have reported and engines have not announced
	translation translation                  // of client hashes, see client_hashes.go
	seeds       atomic.Pointer[doctor.Seeds] // of the base model; others while no source is in the deployment
	log         zerolog.Logger
	tidying     atomic.Bool // a tidy is due
}

// seenInstance is one routable target inside a deployment.
type seenInstance struct {
	id      int32 // dense, stable for the life of the deployment
	name    string
	members map[*Member]bool // registered here
}

// Instance is one instance that may appear in an answer.
type Instance struct {
	ID      int32
	Name    string
	Address string  // where it takes requests: that of its first rank that is registered with one, else what its name says
	Worker  string  // the URL by which sgl-router knows it, see workerAddress
	Ranks   []int32 // registered ranks, ascending
	loras   map[string]bool
	Members []*Member // by rank
	// approximate: the engine of a source publishes nothing, so that what it holds is known from reports alone.
	Approximate bool
}

// Serves reports whether the instance is registered for the adapter or has announced blocks under it. An
// approximate one announces nothing, so it may serve any.
func (r *Instance) Serves(lora string) bool { return r.loras[lora] || r.Approximate }

// tidyAfter gathers what leaves together, such as the ranks of an instance.
const tidyAfter = time.Second

// TidySoon makes the index give memory back soon after many blocks have left at once. It
// reads the statistics, which does so without a store or a query. A broken invariant
// that this meets is logged.
func (d *Deployment) TidySoon() {
	if d.tidying.CompareAndSwap(false, true) {
		time.AfterFunc(tidyAfter, func() {
			d.tidying.Store(false)
			defer func() {
				if p := recover(); p != nil {
					d.log.Error().Interface("panic", p).Str("stack", string(debug.Stack())).Msg("index was not tidied")
				}
			}()
			d.Index.Stats()
		})
	}
}

// NewOwner hands out an owner of src and publishes its descriptor. tally counts its
// blocks; it may be nil.
func (d *Deployment) NewOwner(src index.Source, o tiers.Owner, tally *atomic.Int64) index.Owner {
	d.ownersMu.Lock()
	defer d.ownersMu.Unlock()
	id := d.Index.NewCountedOwner(src, tally)
	table := d.Owners()
	for len(table) <= int(id) {
		table = append(table, tiers.Owner{Instance: tiers.Retired})
	}
	table[id] = o
	d.Caches.note(&o)
	d.ownerTable.Store(&table)
	return id
}

// agree reports whether two identities have in common what an event says of the first one. The index
// calls it.
func (d *Deployment) agree(says index.Says, a, b index.Identity) bool {
	one, other := d.Names.Of(a), d.Names.Of(b)
	return one != nil && other != nil && (says&index.SaysAdapter == 0 || one.Lora == other.Lora) &&
		(says&index.SaysSalt == 0 || one.Salt == other.Salt)
}

// Owners returns the owner descriptors; index.Owner is the position.
func (d *Deployment) Owners() []tiers.Owner {
	if p := d.ownerTable.Load(); p != nil {
		return *p
	}
	return nil
}

// instance returns the named instance, making it when new. Catalog.mu is held.
func (d *Deployment) instance(name string) *seenInstance {
	in, ok := d.instances[name]
	if !ok {
		in = &seenInstance{id: int32(len(d.instances)), name: name, members: make(map[*Member]bool)}
		d.instances[name] = in
	}
	return in
}

// ids returns the ids of named instances, whether or not they are there yet; nil for
// all. Catalog.mu is held.
func (d *Deployment) ids(names []string) []int32 {
	var all []int32
	for _, name := range names {
		all = append(all, d.instance(name).id)
	}
	return all
}

// publish lets the next query rebuild the rows: many registrations cost one. changed is the source
// that came, went or announced an adapter. Catalog.mu is held.
func (c *Catalog) publish(d *Deployment, changed *Member) {
	d.outdated.Store(true)
	defer d.bell.ring()
	if changed.Registration.IsPool() {
		pools := slices.Collect(maps.Keys(d.pooled))
		slices.SortFunc(pools, func(a, b *Member) int { return strings.Compare(a.Key().String(), b.Key().String()) })
		d.pools.Store(&pools)
	}
	if changed.Profile != (hash.Profile{}) || changed.Registration.IsPool() {
		d.publishProfiles()
		for m := range d.pooled {
			m.LogFindings(&c.log)
		}
	}
}

// Instances returns the instances that are registered now.
func (d *Deployment) Instances() *Instances {
	if d.outdated.Load() {
		d.mu.Lock()
		if d.outdated.Load() {
			d.rebuild()
			d.outdated.Store(false)
		}
		d.mu.Unlock()
	}
	return d.view.Load()
}

// rebuild makes the view. Catalog.mu is held.
func (d *Deployment) rebuild() {
	rows := make([]Instance, 0, len(d.instances))
	for name, in := range d.instances {
		r := Instance{ID: in.id, Name: name, Worker: workerAddress(name), loras: make(map[string]bool)}
		for m := range in.members {
			r.Ranks = append(r.Ranks, int32(m.Registration.Rank))
			r.loras[m.Registration.Lora] = true
			maps.Copy(r.loras, m.announced)
			for _, adapter := range m.Registered().Adapters {
				r.loras[adapter] = true
			}
			r.Members = append(r.Members, m)
			r.Approximate = r.Approximate || m.Registration.IsApproximate()
		}
		if len(r.Members) == 0 {
			continue
		}
		slices.Sort(r.Ranks)
		r.Ranks = slices.Compact(r.Ranks)
		slices.SortFunc(r.Members, func(a, b *Member) int { return a.Registration.Rank - b.Registration.Rank })
		for _, m := range slices.Backward(r.Members) {
			r.Address = cmp.Or(m.Registered().Address, r.Address)
		}
		r.Address = cmp.Or(r.Address, addressIn(r.Worker))
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Instance) int { return strings.Compare(a.Name, b.Name) })
	d.view.Store(&Instances{All: rows})
}

// AwaitTokens notes that blocks wait by their hashes.
func (d *Deployment) AwaitTokens() {
	if !d.tokenless.Load() {
		d.tokenless.Store(true)
		d.Index.KeepGhosts()
	}
}

// HasWaiting reports whether blocks may wait by their hashes.
func (d *Deployment) HasWaiting() bool { return d.tokenless.Load() && d.Index.HasLoose() }

// NoteAskedByDigests notes that a query has looked for blocks that wait by their hashes, with digests of its own.
func (d *Deployment) NoteAskedByDigests() {
	if !d.digests.Load() {
		d.digests.Store(true)
	}
}

// FindsWaiting reports whether queries find blocks that wait by their hashes: some bring the digests of engines along, or a
// profile tells those of a prompt.
func (d *Deployment) FindsWaiting() bool { return d.digests.Load() || d.Profiles() != nil }

// NoteAsked notes that queries are interested in a deployment. A second is fine enough.
func (d *Deployment) NoteAsked(now time.Time) { storeSecond(&d.askedAt, now) }

// SinceAsked returns how long ago a query was about the deployment last, to the second. It is decades if none was.
func (d *Deployment) SinceAsked(now time.Time) time.Duration { return sinceSecond(&d.askedAt, now) }

// storeSecond rounds now to seconds and stores it if it differs, so that queries do not write a shared cache line each time.
func storeSecond(at *atomic.Int64, now time.Time) {
	if t := steady.Seconds(now); at.Load() != t {
		at.Store(t)
	}
}

// sinceSecond returns how long ago storeSecond stored.
func sinceSecond(at *atomic.Int64, now time.Time) time.Duration {
	return time.Duration(steady.Seconds(now)-at.Load()) * time.Second
}

// contradicts reports whether two meanings of a hash contradict each other. Engines with
// different look-aheads give one hash to different blocks.
func (d *Deployment) contradicts() bool { return d.LookAheads().Count() < 2 }

// WeightOfIdentity tells blocks of one adapter and salt apart from the same tokens of another in a
// digest. Every replica computes the same.
func WeightOfIdentity(v scope.Variant) uint64 { return Fingerprint(v.Lora, v.Salt) | 1 }

// Fingerprint returns a hash of numbers and strings that every replica computes alike.
func Fingerprint(values ...any) uint64 {
	h := fnv.New64a()
	for _, v := range values {
		fmt.Fprintf(h, "%#v\n", v)
	}
	return h.Sum64()
}

// SetOwners replaces the descriptors of owners, all at once.
func (d *Deployment) SetOwners(owners map[index.Owner]tiers.Owner) {
	d.ownersMu.Lock()
	defer d.ownersMu.Unlock()
	table := append([]tiers.Owner(nil), d.Owners()...)
	for id, o := range owners {
		table[id] = o
		d.Caches.note(&o)
	}
	d.ownerTable.Store(&table)
}

// Pools returns the registered pools, sorted by key. The list is not to be changed.
func (d *Deployment) Pools() []*Member { return *d.pools.Load() }

// Seeds returns what the doctor knows of the hash seeds of the base model's engines. Others take their place once no source is
// in the deployment.
func (d *Deployment) Seeds() *doctor.Seeds { return d.seeds.Load() }

// MostParts returns the most parts of a published block, 0 while none had several.
func (d *Deployment) MostParts() int { return int(d.parts.Load()) }

// GroupKinds returns the kinds of the attention groups of the deployment.
func (d *Deployment) GroupKinds() map[int]string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return maps.Clone(d.kinds)
}

// InstanceID returns the number of an instance in the deployment, if that has ever seen it.
func (d *Deployment) InstanceID(name string) (id int32, known bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	in := d.instances[name]
	if in == nil {
		return 0, false
	}
	return in.id, true
}

// Members returns the members that have entered the deployment, by their numbers in its index.
func (d *Deployment) Members() map[index.Source]*Member {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := make(map[index.Source]*Member, len(d.holders))
	for src, ns := range d.holders {
		all[src] = ns.Member
	}
	return all
}

// Holders returns the members that have entered the deployment, by their numbers in its index.
func (d *Deployment) Holders() map[index.Source]*Member {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := make(map[index.Source]*Member, len(d.holders))
	for src, ns := range d.holders {
		all[src] = ns.Member
	}
	return all
}

// HolderOf returns the member of a namespace in the deployment, nil if it is gone.
func (d *Deployment) HolderOf(src index.Source) *Member {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if ns := d.holders[src]; ns != nil {
		return ns.Member
	}
	return nil
}

// HasRank reports whether a rank of an instance has a source of its own.
func (d *Deployment) HasRank(instance, rank int32) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, in := range d.instances {
		if in.id == instance {
			for m := range in.members {
				if m.Registration.Rank == int(rank) {
					return true
				}
			}
		}
	}
	return false
}
