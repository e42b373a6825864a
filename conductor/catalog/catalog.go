package catalog

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Catalog has the deployments, each with its index, and the sources that are registered for them.
type Catalog struct {
	mu         sync.RWMutex
	members    map[registration.Key]*Member     // guarded by mu
	byKey      map[scope.Deployment]*Deployment // guarded by mu
	sizes      sizesByShard                     // guarded by mu
	changes    kept.Log[registration.Key]       // of members that came, went or changed a live field
	further    furtherNames                     // of the members, see models.go
	shared     SharedNames                      // nil is none, see UseSharedNames
	prefixRoom *prefixes.Room
	expected   *expect.Table // of all deployments

	options       index.Options // of every index
	log           zerolog.Logger
	maxIdentities int          // of one deployment; 0 is no bound
	past          bool         // a replay fills it
	elsewhere     askedCounts  // of queries without a deployment, and of deployments that are gone
	unregistered  unregistered // what such queries asked for
	askedAt       atomic.Int64 // when the last query of any deployment came, see steady.Seconds
}

// Options configures a Catalog.
type Options struct {
	Index         index.Options // of every index
	Past          bool          // a replay fills it: sources come from a journal alone
	MaxIdentities int           // adapters and salts of one deployment, 0 for no bound
	ExpectedBytes int64         // of what instances are expected to have
	Now           func() time.Time
	Log           zerolog.Logger
}

// New returns a Catalog without deployments.
func New(o Options) *Catalog {
	return &Catalog{
		members: make(map[registration.Key]*Member), byKey: make(map[scope.Deployment]*Deployment), sizes: make(sizesByShard),
		prefixRoom: new(prefixes.Room), expected: expect.New(o.ExpectedBytes, o.Now),
		options: o.Index, log: o.Log, maxIdentities: o.MaxIdentities, past: o.Past,
	}
}

// Changes has the sources that came, went or changed a live field.
func (c *Catalog) Changes() *kept.Log[registration.Key] { return &c.changes }

// Join makes a member's instance visible in the deployment it is registered for. Pools are never rows.
func (c *Catalog) Join(m *Member) { c.Replace(nil, m) }

// Replace lets a member join, and another one part, which may have the same key; nil is none. A query sees one of the two.
func (c *Catalog) Replace(old, m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m != nil { // first, so that a deployment which both are in stays
		c.members[m.Key()] = m
		c.further.countMember(m, 1)
		d := c.deploymentOf(m.Registration.Deployment())
		d.refs++
		if m.Registration.IsPool() {
			d.AwaitTokens() // before another source's next removal: a pool names blocks that engines evict
			d.pooled[m] = true
		} else {
			in := d.instance(m.Registration.Instance)
			in.members[m] = true
			m.Home, m.InstanceID = d, in.id
		}
		c.publish(d, m)
		c.changes.Note(m.Key())
	}
	if old != nil {
		old.left.Store(true)
		if c.members[old.Key()] == old {
			delete(c.members, old.Key())
		}
		c.changes.Note(old.Key())
		c.further.countMember(old, -1)
		d := c.byKey[old.Registration.Deployment()]
		if old.Registration.IsPool() {
			delete(d.pooled, old)
		} else {
			delete(d.instances[old.Registration.Instance].members, old)
		}
		c.publish(d, old)
		c.release(d)
	}
}

// Member returns the member with a key, nil if there is none. It may be a recovered one.
func (c *Catalog) Member(key registration.Key) *Member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.members[key]
}

// Members returns the members, in any order.
func (c *Catalog) Members() []*Member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.members))
}

// MembersOf returns the engines of an instance.
func (c *Catalog) MembersOf(instance, tenant string) (all []*Member) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, m := range c.members {
		if m.Registration.Instance == instance && m.Registration.Tenant == tenant && !m.Registration.IsPool() {
			all = append(all, m)
		}
	}
	return all
}

// Announce notes that a member has stored blocks of an adapter, under which its instance then has a row.
func (c *Catalog) Announce(m *Member, d *Deployment, lora string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.announced[lora] {
		return
	}
	if len(m.announced) >= m.mostAnnounced {
		kept := make(map[string]bool)
		for _, id := range d.Names.All() {
			if m.announced[id.Lora] {
				kept[id.Lora] = true
			}
		}
		m.announced, m.mostAnnounced = kept, max(MaxAdapters, 2*len(kept))
	}
	m.announced[lora] = true
	c.publish(d, m)
}

// AnnouncedBy returns the adapters that a member has announced, sorted.
func (c *Catalog) AnnouncedBy(m *Member) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Sorted(maps.Keys(m.announced))
}

// CountEngines returns how many members an instance has in its deployment.
func (c *Catalog) CountEngines(m *Member) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(m.Home.instances[m.Registration.Instance].members)
}

// Enter gives a member a namespace in a deployment, making that when new.
func (c *Catalog) Enter(m *Member, key scope.Deployment) *Namespace {
	ns := &Namespace{Member: m, InstanceID: tiers.Pool}
	c.mu.Lock()
	d := c.deploymentOf(key)
	d.refs++
	if m.Registration.IsPool() {
		ns.Serves = d.ids(m.Registration.Serves)
	} else {
		ns.InstanceID = d.instance(m.Registration.Instance).id
	}
	c.mu.Unlock()
	ns.Deployment, ns.Source = d, d.Index.NewSource()
	ns.Names = d.Names.NewSpeaker(ns.Source, m.Registration.Variant(), NamingOf(&m.Registration))
	c.mu.Lock()
	d.holders[ns.Source] = ns
	c.mu.Unlock()
	return ns
}

// HandOver gives namespaces of a recovered member to the one that is registered in its place, which has then announced the
// same adapters.
func (c *Catalog) HandOver(namespaces []*Namespace, from, to *Member) {
	c.mu.Lock()
	to.announced = from.announced
	for _, ns := range namespaces {
		ns.Member = to
	}
	c.mu.Unlock()
	for _, ns := range namespaces {
		before := ns.Names
		ns.Names = ns.Deployment.Names.NewSpeaker(ns.Source, to.Registration.Variant(), NamingOf(&to.Registration))
		ns.Names.Follow(before)
	}
}

// Leave drops everything a source holds in a deployment.
func (c *Catalog) Leave(ns *Namespace) {
	d := ns.Deployment
	d.Index.DropSource(ns.Source)
	d.bell.ring()
	d.TidySoon()
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(d.holders, ns.Source); len(d.holders) == 0 {
		d.seeds.Store(new(doctor.Seeds))
	}
	d.lookAheads.addUsers(ns.LookAheads, -1)
	c.release(d)
}

// NoteAsked notes that a query has come, whatever it is about.
func (c *Catalog) NoteAsked(now time.Time) { storeSecond(&c.askedAt, now) }

// SinceAsked returns how long ago the last query came, to the second. It is decades if none did.
func (c *Catalog) SinceAsked(now time.Time) time.Duration { return sinceSecond(&c.askedAt, now) }

// LearnParts notes of how many parts a published block is.
func (c *Catalog) LearnParts(dk scope.Deployment, n int) {
	d := c.Deployment(dk)
	for d != nil {
		most := d.parts.Load()
		if int(most) >= n || d.parts.CompareAndSwap(most, int32(n)) {
			return
		}
	}
}

// sizesByShard are the block sizes of the deployments, ascending. What queries have read of them stays as it is.
type sizesByShard map[scope.Shard][]int

// note notes that there is a deployment, or no more.
func (all sizesByShard) note(key scope.Deployment, there bool) {
	p := scope.Shard{Tenant: key.Tenant, Model: key.Model}
	old := all[p]
	at, _ := slices.BinarySearch(old, key.BlockSize)
	var sizes []int
	if there {
		sizes = slices.Insert(slices.Clone(old), at, key.BlockSize)
	} else {
		sizes = slices.Delete(slices.Clone(old), at, at+1)
	}
	if all[p] = sizes; len(sizes) == 0 {
		delete(all, p)
	}
}

// deploymentOf returns the deployment, making it when new. Catalog.mu is held.
func (c *Catalog) deploymentOf(key scope.Deployment) *Deployment {
	d, ok := c.byKey[key]
	if !ok {
		d = &Deployment{
			mu: &c.mu, Key: key, Scheme: c.options.Scheme, Summary: prefixes.New(c.prefixRoom), log: c.log,
			instances: make(map[string]*seenInstance), pooled: make(map[*Member]bool), holders: make(map[index.Source]*Namespace),
		}
		options := c.options
		options.Contradicts, options.Agree = d.contradicts, d.agree
		d.Index = index.New(options)
		d.Names = names.New(d.Index, c.maxIdentities, WeightOfIdentity)
		d.Expected = c.expected.NewSpace(key.Tenant, key.BlockSize)
		d.translation.on = options.KeepClientHashes
		d.seeds.Store(new(doctor.Seeds))
		d.pools.Store(new([]*Member))
		d.outdated.Store(true)
		c.byKey[key] = d
		c.sizes.note(key, true)
	}
	return d
}

// release drops one reference and the deployment with the last one. Catalog.mu is held.
func (c *Catalog) release(d *Deployment) {
	if d.refs--; d.refs == 0 {
		delete(c.byKey, d.Key)
		c.elsewhere.take(&d.asked)
		d.Summary.Close()
		d.Expected.Close()
		c.sizes.note(d.Key, false)
	}
}

// CountsGroup reports whether blocks of a group are indexed, as far as engines have
// announced its kind. Group 0 counts while its kind is unknown.
func (c *Catalog) CountsGroup(at scope.Group) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d := c.byKey[at.Deployment]; d != nil {
		if kind, known := d.kinds[at.Index]; known {
			return normalize.MainGroup(kind)
		}
	}
	return at.Index == 0
}

// LearnGroup notes the kind of a group, and reports whether that is new.
func (c *Catalog) LearnGroup(at scope.Group, kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.byKey[at.Deployment]
	if d == nil {
		return false
	}
	was, known := d.kinds[at.Index]
	if was == kind || !known && len(d.kinds) >= maxGroups {
		return false
	}
	if d.kinds == nil {
		d.kinds = make(map[int]string)
	}
	d.kinds[at.Index] = kind
	return true
}

// maxGroups bounds the attention groups of a deployment whose kind is noted.
const maxGroups = 256

// Indexed returns the deployments that sources have entered, ordered by key.
func (c *Catalog) Indexed() (all []*Deployment) {
	c.mu.RLock()
	for _, d := range c.byKey {
		if len(d.holders) > 0 {
			all = append(all, d)
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Deployment) int { return a.Key.Compare(b.Key) })
	return all
}

// Deployment returns the deployment of a key, nil when there is none.
func (c *Catalog) Deployment(key scope.Deployment) *Deployment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byKey[key]
}

// Deployments returns the deployments, in any order.
func (c *Catalog) Deployments() []*Deployment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.byKey))
}

// InstanceNames returns the names of the registered instances of each deployment, by their numbers.
func (c *Catalog) InstanceNames() map[*Deployment]map[int32]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[*Deployment]map[int32]string, len(c.byKey))
	for _, d := range c.byKey {
		names := make(map[int32]string, len(d.instances))
		for name, in := range d.instances {
			if len(in.members) > 0 {
				names[in.id] = name
			}
		}
		all[d] = names
	}
	return all
}

// Partitions returns the tenants and models there is anything of, with their block
// sizes in tokens, ascending. The sizes are not to be changed.
func (c *Catalog) Partitions() map[scope.Shard][]int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.sizes)
}

// BlockSizes returns the block sizes of a partition, in tokens, ascending; none
// when nothing is known of it. They are not to be changed.
func (c *Catalog) BlockSizes(p scope.Shard) []int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sizes[p]
}

// Expected returns what routers have reported and engines have not announced yet, of all deployments.
func (c *Catalog) Expected() *expect.Table { return c.expected }

// PrefixBytes returns the memory that is taken by what queries ask for.
func (c *Catalog) PrefixBytes() int { return c.prefixRoom.Bytes() }

// IndexOptions returns the options of every index. All share one Budget and one Ghosts.
func (c *Catalog) IndexOptions() index.Options { return c.options }

// IsPast reports whether a replay fills the catalog: its sources come from a journal alone.
func (c *Catalog) IsPast() bool { return c.past }

// HashSeed is the seed of the canonical hashes, which only replicas of the same can
// take from a snapshot (conductor.Options.HashSeed).
func (c *Catalog) HashSeed() uint64 { return c.options.Scheme.Seed }

// KeepsClientHashes reports whether conductor.Options.KeepClientHashes is set.
func (c *Catalog) KeepsClientHashes() bool { return c.options.KeepClientHashes }
