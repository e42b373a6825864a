package conductor

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// registry has the sources and the deployments that they are registered for.
type registry struct {
	mu          sync.RWMutex
	sources     map[registration.Key]*source         // guarded by mu
	sorted      atomic.Pointer[[]*source]            // of sources, nil until registered makes it; written with mu held
	following   map[registration.Publisher][]*source // of sources, by whom they follow; guarded by mu
	recovered   int                                  // of sources, those without a registration; guarded by mu
	deployments map[scope.Deployment]*deployment     // guarded by mu
	sizes       map[scope.Shard][]int                // block sizes of the deployments, ascending, never changed; guarded by mu
	groups      map[scope.Shard]*fleetGroup          // for metrics; guarded by mu
	leaving     map[*source]bool                     // removed, and not yet retired; guarded by mu
	goneNamed   sourceCounts                         // dropped and snapshots of sources that have left; guarded by mu
	closed      bool                                 // guarded by mu
	past        bool                                 // a Replay fills it: no source ages or registers
	revision    atomic.Uint64                        // how often a source came, went or changed its aliases
	aliases     aliases                              // of the sources, see aliases.go
	prefixRoom  *prefixes.Room
	expected    *expect.Table

	options       index.Options // of every index
	log           zerolog.Logger
	maxIdentities int          // of one deployment; 0 is no bound
	elsewhere     askedCounts  // of queries without a deployment, and of deployments that are gone
	askedAt       atomic.Int64 // Unix seconds of the last query of any deployment
	cutting       sync.Mutex   // held while a snapshot copies blocks; taken before any turn
}

// learnParts notes of how many parts a published block is.
func (c *registry) learnParts(dk scope.Deployment, n int) {
	d := c.deployment(dk)
	for d != nil {
		most := d.parts.Load()
		if int(most) >= n || d.parts.CompareAndSwap(most, int32(n)) {
			return
		}
	}
}

// noteBlockSize notes that there is a deployment, or no more. What queries have read of the
// sizes stays as it is. c.mu is held.
func (c *registry) noteBlockSize(key scope.Deployment, there bool) {
	p := scope.Shard{Tenant: key.Tenant, Model: key.Model}
	old := c.sizes[p]
	at, _ := slices.BinarySearch(old, key.BlockSize)
	var sizes []int
	if there {
		sizes = slices.Insert(slices.Clone(old), at, key.BlockSize)
	} else {
		sizes = slices.Delete(slices.Clone(old), at, at+1)
	}
	if c.sizes[p] = sizes; len(sizes) == 0 {
		delete(c.sizes, p)
	}
}

// deploymentOf returns the deployment, making it when new. c.mu is held.
func (c *registry) deploymentOf(key scope.Deployment) *deployment {
	d, ok := c.deployments[key]
	if !ok {
		d = &deployment{
			key: key, scheme: c.options.Scheme, summary: prefixes.New(c.prefixRoom), log: c.log,
			instances: make(map[string]*instance), pooled: make(map[*source]bool), holders: make(map[index.Source]*source),
		}
		options := c.options
		options.Contradicts, options.Agree = d.contradicts, d.agree
		d.index = index.New(options)
		d.names = names.New(d.index, c.maxIdentities, weightOfIdentity)
		d.expected = c.expected.NewSpace(key.Tenant, key.BlockSize)
		d.translation.on = options.KeepClientHashes
		d.seeds.Store(new(doctor.Seeds))
		d.publish(nil)
		c.deployments[key] = d
		c.noteBlockSize(key, true)
	}
	return d
}

// addSource makes a source's instance visible in the deployment it is registered
// for. Pools are never rows. c.mu is held.
func (c *registry) addSource(s *source) {
	c.revision.Add(1)
	c.sorted.Store(nil)
	if !s.reg.IsApproximate() { // those follow none
		p := s.reg.Publisher()
		c.following[p] = append(c.following[p], s)
	}
	c.countAliases(s, 1)
	if s.recovered {
		c.recovered++
	}
	c.joinGroup(s)
	d := c.deploymentOf(s.holdings.deploymentKey())
	d.refs++
	if s.reg.IsPool() {
		d.await() // before another source's next removal: a pool names blocks that engines evict
		d.pooled[s] = true
	} else {
		in := d.instance(s.reg.Instance)
		in.sources[s] = true
		s.home, s.instance = d, in.id
	}
	d.publish(s)
}

// removeSource undoes addSource. The journal records nothing more of the source. c.mu is held, and
// retire follows.
func (c *registry) removeSource(s *source) {
	c.revision.Add(1)
	c.sorted.Store(nil)
	if p := s.reg.Publisher(); !s.reg.IsApproximate() {
		c.following[p] = slices.DeleteFunc(c.following[p], func(other *source) bool { return other == s })
		if len(c.following[p]) == 0 {
			delete(c.following, p)
		}
	}
	c.countAliases(s, -1)
	if s.recovered {
		c.recovered--
	}
	c.leaving[s] = true
	s.tape.Unregister()
	d := c.deployments[s.holdings.deploymentKey()]
	if s.reg.IsPool() {
		delete(d.pooled, s)
	} else {
		delete(d.instances[s.reg.Instance].sources, s)
	}
	d.publish(s)
	c.release(d)
}

// release drops one reference and the deployment with the last one. c.mu is held.
func (c *registry) release(d *deployment) {
	if d.refs--; d.refs == 0 {
		delete(c.deployments, d.key)
		c.elsewhere.take(&d.asked)
		d.summary.Close()
		d.expected.Close()
		c.noteBlockSize(d.key, false)
	}
}

// enter gives a source a namespace in a deployment, making that when new.
func (c *registry) enter(s *source, key scope.Deployment) *namespace {
	ns := &namespace{owners: make(map[normalize.Owner]*holder), instance: tiers.Pool}
	c.mu.Lock()
	d := c.deploymentOf(key)
	d.refs++
	if s.reg.IsPool() {
		ns.serves = d.ids(s.reg.Serves)
	} else {
		ns.instance = d.instance(s.reg.Instance).id
	}
	c.mu.Unlock()
	ns.deployment, ns.source = d, d.index.NewSource()
	ns.names = d.names.NewSpeaker(ns.source, s.reg.Variant(), namingOf(s.reg))
	c.mu.Lock()
	d.holders[ns.source] = s
	c.mu.Unlock()
	return ns
}

// leave drops everything a source holds in a deployment.
func (c *registry) leave(ns *namespace) {
	d := ns.deployment
	d.index.DropSource(ns.source)
	d.bell.ring()
	d.tidy()
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(d.holders, ns.source); len(d.holders) == 0 {
		d.seeds.Store(new(doctor.Seeds))
	}
	d.lookAheads.count(ns.lookAheads, -1)
	c.release(d)
}

// countsGroup reports whether blocks of a group are indexed, as far as engines have
// announced its kind. Group 0 counts while its kind is unknown.
func (c *registry) countsGroup(at scope.Group) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d := c.deployments[at.Deployment]; d != nil {
		if kind, known := d.kinds[at.Index]; known {
			return normalize.MainGroup(kind)
		}
	}
	return at.Index == 0
}

// groupsOf returns the kinds of the attention groups of a deployment.
func (c *registry) groupsOf(d *deployment) map[int]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(d.kinds)
}

// learnGroup notes the kind of a group, and reports whether that is new.
func (c *registry) learnGroup(at scope.Group, kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.deployments[at.Deployment]
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

// Revision changes when a source comes, goes or has other aliases.
func (c *Conductor) Revision() uint64 { return c.registry.revision.Load() }

// sameInstanceSource returns a registered source of the same instance and deployment: its
// publisher may speak for several ranks. c.mu is held.
func (c *registry) sameInstanceSource(reg registration.Registration) *source {
	var found *source
	if d := c.deployments[reg.Deployment()]; d != nil && d.instances[reg.Instance] != nil {
		for s := range d.instances[reg.Instance].sources {
			if !s.recovered && (found == nil || s.reg.Rank < found.reg.Rank) {
				found = s
			}
		}
	}
	return found
}

// source returns the source under a key, nil if there is none. It may be a recovered one.
func (c *registry) source(key registration.Key) *source {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sources[key]
}

// registered returns the sources sorted by key. The list serves all callers: they must not change it.
func (c *registry) registered() []*source {
	if all := c.sorted.Load(); all != nil {
		return *all
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(c.sources), func(a, b *source) int { return a.reg.Key().Compare(b.reg.Key()) })
	c.sorted.Store(&all)
	return all
}

// indexed returns the deployments that sources have entered, ordered by key.
func (c *registry) indexed() (all []*deployment) {
	c.mu.RLock()
	for _, d := range c.deployments {
		if len(d.holders) > 0 {
			all = append(all, d)
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *deployment) int { return a.key.Compare(b.key) })
	return all
}

// lockSources returns the sources registered for a deployment, or all if of is nil, in the order of
// their keys and with their turns held until release is called; of a
// Conductor that is closed also those that have ended.
func (c *registry) lockSources(of *scope.Deployment) (all []*source, release func()) {
	for {
		all = c.registered()
		if of != nil {
			all = slices.DeleteFunc(slices.Clone(all), func(s *source) bool { return s.holdings.deploymentKey() != *of })
		}
		gone := false
		for _, s := range all {
			s.turn.Lock()
			gone = gone || s.gone
		}
		release = func() {
			for _, s := range all {
				s.turn.Unlock()
			}
		}
		c.mu.RLock()
		closed := c.closed
		c.mu.RUnlock()
		if !gone || closed {
			return all, release
		}
		release() // what it held may be another's, who is not among them
	}
}

// deployment returns the deployment of a key, nil when there is none.
func (c *registry) deployment(key scope.Deployment) *deployment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.deployments[key]
}
