// Package conductor is the application: it keeps, for a fleet of inference
// engines, which instance holds which prefix on which tier, and answers queries.
//
//	sources (one goroutine each)                         clients
//	   |  events.Batch                                      |  Query
//	   v                                                    v
//	 normalize: changes --> names.Resolve  --Store-->  index.Index  --Match--> tiers.Hits --> Answer
//	 group, owner, tokens   identity, names            of a deployment
//
// The words: a source is one subscription, keyed (instance_id, tenant_id,
// dp_rank). A deployment is what a router asks about: everything of one
// (tenant, model, block size). It has the instances registered for it and one
// index. An identity is an adapter and a salt of a deployment, a context in documents:
// a constant in the keys of its blocks keeps them apart in the index (package names). A
// namespace is what one source has in one deployment: its engine hashes and its owners. An
// owner is a dense integer for (source, rank, medium, attention group) inside one index.
//
// Invariants:
//
//  1. A source key names at most one running source.
//  2. What a source holds in an index changes only while its turn is held: by its own
//     goroutine, by its ageing, or by a recovery before the gate opens.
//  3. An owner's descriptor is published before its first block is stored, so a
//     reader that finds an owner in a match finds its descriptor too.
//  4. A deployment lives while a source is registered for it or has a namespace in it.
//  5. An identity leaves its table only while it is not pinned and the index has no piece of it.
//     Events pin it while they store blocks under its number.
//
// Lock order: registry.cutting; the turns of sources, several of them by key; registry.mu,
// which guards the registry and all deployments; names.Table.mu; then one of deployment.ownersMu and
// holdings.mu; then the locks of the index. An index is never asked for anything under registry.mu, no
// turn is waited for and no stream is closed under it. Queries take it for reading, for
// one map lookup. What the index calls back under its locks takes none of these: of a table it
// needs names.Table.Of alone, which reads without a lock. The journal's lock is a leaf: a record may be
// put under any other, and so is that of expect.Table, which has the blocks that routers have reported and engines
// have not announced yet.
package conductor

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/prefixes"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/objectkey"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/zmq"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// Options configures a Conductor. Zero values take the defaults of New.
type Options struct {
	// HashSeed is the XXH3 seed of the canonical hashes (hash.seed).
	HashSeed uint64
	// Memo keeps engine digests that queries have computed; nil keeps none. It belongs
	// to the caller, who closes it after the Conductor.
	Memo *hash.Memo
	// Copies says what a repeated store of a block means (stream.copies).
	Copies index.CopyPolicy
	// Stream is the template of every source's stream; endpoints and the first
	// sequence number are filled in per source.
	Stream stream.Config
	// Transport returns the transport of the stream of one registration; static is that of
	// RegisterOptions. Every stream has Stream.Transport when nil.
	Transport func(r registration.Registration, static bool) stream.Transport
	// Strays returns the topics on bound sockets that no source claims, see UnclaimedTopics; nil is none.
	Strays func() []zmq.Stray
	// Reaches returns why a client must not name an endpoint, nil if it may. Registrations that
	// are not static are asked about; nil allows all.
	Reaches func(endpoint string) error
	// MaxSources bounds how many sources may be registered, 0 for no bound.
	MaxSources int
	// MaxOrphans bounds the blocks per source that wait for their parent, as in
	// index.Options.
	MaxOrphans int
	// MaxBytes bounds each index, as in index.Options.
	MaxBytes int
	// SaltedOnly hides blocks without a salt from queries: with a shared engine they say which
	// prompts others asked.
	SaltedOnly bool
	// MaxTokenID bounds token ids in queries and events, 0 for no bound.
	MaxTokenID uint32
	// MaxContexts bounds the adapters and salts of one deployment, 0 for no bound. Their names may
	// have 256 bytes each on average.
	MaxContexts int
	// MaxBytesTotal bounds all indexes together, 0 for no bound.
	MaxBytesTotal int64
	// KeepClientHashes keeps client hashes, for snapshots and for queries by them under
	// adapters and salts. They cost 8 bytes a block and an entry of translation where they
	// differ from local hashes (see clienthash.go). Deployments with blocks from a peer pay the
	// 8 bytes, all others nothing.
	KeepClientHashes bool
	// Completeness is which objects make a block of a pool count (pool.completeness).
	Completeness objectkey.Completeness
	// PoolBytes bounds the memory for the objects of one pool (pool.max_bytes),
	// pool.DefaultLimit when 0.
	PoolBytes int64
	// GhostBytes bounds the memory for blocks that no source holds any more, and whose names events
	// may still mention (index.ghost_bytes); 0 keeps none.
	GhostBytes int64
	// RemovalsBytes bounds the memory of each source for the blocks that it removed last
	// for Explain, 0 for none.
	RemovalsBytes int
	// TTL is the time to live of sources whose registration names none, 0 for none.
	TTL time.Duration
	// SilentAfter is how long a source may be silent while it is asked for before
	// that is a finding, defaultSilentAfter when 0.
	SilentAfter time.Duration
	// MinSynced is how many sources must be synced before Ready says so (ready.min_sources).
	MinSynced int
	// Gate, if set, holds back what publishers send until it is closed: sockets
	// connect and batches queue, nothing is applied. See Recover.
	Gate <-chan struct{}
	// ExpectedBytes bounds the memory for what instances are expected to have,
	// 64 MiB when 0.
	ExpectedBytes int64
	// Tape records applied batches, in memory or on the disk too; nil records nothing. It
	// belongs to the caller, who closes it after the Conductor.
	Tape *tape.Tape
	Log  zerolog.Logger
	// Now is the clock of ages in answers; time.Now when nil.
	Now func() time.Time
}

// Conductor is the registry of sources and the indexes they fill.
// All methods are safe for concurrent use.
type Conductor struct {
	registry registry

	opts   Options
	scheme hash.Scheme
	memo   *hash.Memo // nil is none
	now    func() time.Time
	open   func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) feed
	gate   <-chan struct{}

	saltKey  [32]byte // of the texts that stand for salts
	tuned    atomic.Pointer[Tunables]
	unscoped atomic.Bool // blocks came from a peer that tells no marks
	queries  queryMetrics
	counts   eventCounts
	pushes   pushes
	unfound  atomic.Pointer[func() []SourceState] // see AwaitUnfound
	sharing  *sharing                             // see Share; nil for none
	keeper   RegistrationKeeper                   // see KeepRegistrations; nil for none
	feedback feedback
	watcher  atomic.Pointer[Watcher]
	serving  Serving
	mirror   Mirror // see MirrorBy; nil for none

	watching           sync.Once
	stopWatch, watched chan struct{} // end watch; it has ended
}

// New returns a Conductor with no sources.
func New(opts Options) *Conductor {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.SilentAfter == 0 {
		opts.SilentAfter = defaultSilentAfter
	}
	if opts.ExpectedBytes == 0 {
		opts.ExpectedBytes = 64 << 20
	}
	c := &Conductor{
		opts:      opts,
		scheme:    hash.Scheme{Seed: opts.HashSeed},
		memo:      opts.Memo,
		now:       opts.Now,
		queries:   newQueryMetrics(),
		stopWatch: make(chan struct{}),
		watched:   make(chan struct{}),
	}
	rand.Read(c.saltKey[:]) // it never fails
	c.registry = registry{
		prefixRoom: new(prefixes.Room), expected: expect.New(opts.ExpectedBytes, c.now), sources: make(map[registration.Key]*source),
		following: make(map[registration.Publisher][]*source), deployments: make(map[scope.Deployment]*deployment),
		sizes:  make(map[scope.Shard][]int),
		groups: make(map[scope.Shard]*fleetGroup), leaving: make(map[*source]bool),
	}
	c.Tune(Tunables{MaxSources: opts.MaxSources, MinSynced: opts.MinSynced, SaltedOnly: opts.SaltedOnly, MaxTokenID: opts.MaxTokenID})
	c.registry.maxIdentities, c.registry.log = opts.MaxContexts, opts.Log
	c.registry.options = index.Options{
		Scheme: c.scheme, MaxOrphans: opts.MaxOrphans, MaxBytes: opts.MaxBytes, Budget: index.NewBudget(opts.MaxBytesTotal),
		KeepClientHashes: opts.KeepClientHashes,
		Ghosts:           index.NewGhosts(opts.GhostBytes), WideBase: dynamoSeed(scope.Variant{}) != opts.HashSeed,
	}
	c.open = func(r registration.Registration, static bool, recorded *tape.Recorder, on func(stream.State, string)) feed {
		switch {
		case r.IsPushed():
			return c.openPushed(r, on)
		case r.IsApproximate():
			return newApproximate()
		}
		return stream.Open(c.streamConfig(r, static, recorded, on))
	}
	if c.gate = opts.Gate; c.gate == nil {
		open := make(chan struct{})
		close(open)
		c.gate = open
	}
	return c
}

// recovering reports whether the gate is closed.
func (c *Conductor) recovering() bool {
	select {
	case <-c.gate:
		return false
	default:
		return true
	}
}

// Close stops every source, drops what they hold and waits for them. From then
// on registrations fail with ErrClosed and queries find nothing.
func (c *Conductor) Close() {
	c.watching.Do(func() { close(c.watched) })
	c.registry.mu.Lock()
	if !c.registry.closed {
		close(c.stopWatch)
	}
	c.registry.closed = true
	running := make([]*source, 0, len(c.registry.sources))
	for _, s := range c.registry.sources {
		running = append(running, s)
	}
	c.registry.mu.Unlock()

	var wg sync.WaitGroup
	for _, s := range running {
		wg.Go(s.stop)
	}
	wg.Wait()
	<-c.watched
}

// watch looks for findings that only time shows, until the Conductor is closed.
func (c *Conductor) watch() {
	defer close(c.watched)
	tick := time.NewTicker(c.opts.SilentAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			now, held := c.now(), make(heldBlocks)
			doubts := c.doubts(now)
			for _, s := range c.registry.registered() {
				s.observeSilence(now)
				s.observeUse(now)
				s.observeAliases()
				s.observeExpected(now, doubts)
				s.observeLives(now)
				s.observeRefusals()
				s.observeSnapshots()
				s.guard(func() { // it logs what all of these have found
					s.observeParents(held)
					s.decideAll()
					if !c.registry.past {
						s.doctor.Unremoved(now)
					}
				})
			}
		case <-c.stopWatch:
			return
		}
	}
}

// HashSeed is the seed of the canonical hashes, which only replicas of the same can
// take from a snapshot (Options.HashSeed).
func (c *Conductor) HashSeed() uint64 { return c.opts.HashSeed }

// KeepsClientHashes reports whether Options.KeepClientHashes is set.
func (c *Conductor) KeepsClientHashes() bool { return c.opts.KeepClientHashes }

// EventCounts returns the counts so far.
func (c *Conductor) EventCounts() EventCounts {
	n := &c.counts
	return EventCounts{
		Stored: n.stored.load(), Removed: n.removed.load(), Cleared: n.cleared.load(),
		DuplicateStores: n.duplicates.Load(),
	}
}
