// Package conductor is the application: it keeps, for a fleet of inference
// engines, which instance holds which prefix on which tier, and answers queries.
//
//	sources (one goroutine each)                         clients
//	   |  events.Batch                                      |  match.Query
//	   v                                                    v
//	 normalize: changes --> names.Resolve  --Store-->  index.Index  --Match--> tiers.FoldHits --> match.Answer
//	 group, owner, tokens   identity, names            of a deployment (package catalog)
//
// The words: a source is one subscription, keyed (instance_id, tenant_id,
// dp_rank). A deployment is what a router asks about: everything of one
// (tenant, model, block size). It has the instances registered for it and one
// index. An identity is an adapter and a salt of a deployment, a context in documents:
// a constant in the keys of its blocks keeps them apart in the index (package names). A
// namespace is what one source has in one deployment: its engine hashes and its owners. An
// owner is a dense integer for (source, rank, medium, attention group) inside one index.
//
// Invariants, next to those of package catalog:
//
//  1. A source key names at most one running source.
//  2. What a source holds in an index changes only while its turn is held: by its own
//     goroutine, by its ageing, or by a recovery before the gate opens.
//  3. A source knows no other source. What a step of one means for others it returns as Effects, and
//     Sources.dispatch hands them on while no turn is held.
//  4. An identity leaves its table only while it is not pinned and the index has no piece of it.
//     Events pin it while they store blocks under its number.
//
// Lock order: Sources.cutting; the turns of sources, several of them by key; Sources.mu, which guards which sources
// there are; Catalog.mu, which guards deployments; names.Table.mu; then one of Deployment.ownersMu and
// holdings.mu; then the locks of the index. No turn is waited for and no stream is closed under Sources.mu or Catalog.mu,
// and no index walks its blocks under them, except when a registration takes over what a recovery brought. What the index
// calls back under its locks takes none of these: of a table it needs names.Table.Of alone, which reads without a lock.
// The tape's lock is a leaf: a record may be put under any other, and so is that of expect.Table, which has the blocks that
// routers have reported and engines have not announced yet.
package conductor

import (
	"cmp"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/feedback"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/meter"
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
	// Transport returns the transport of the stream of one registration; free says that its endpoints
	// need no permission. Every stream has Stream.Transport when nil.
	Transport func(r registration.Registration, free bool) stream.Transport
	// Strays returns the topics on bound sockets that no source claims, see UnclaimedTopics; nil is none.
	Strays func() []zmq.Stray
	// Reaches returns why a client, or an engine that was asked, must not name an endpoint, nil if it may. The
	// endpoints of the configuration need no permission; nil allows all.
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
	// differ from local hashes (see catalog/client_hashes.go). Deployments with blocks from a peer pay the
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
	// that is a finding, 5 minutes when 0.
	SilentAfter time.Duration
	// MinSynced is how many sources must be synced before Ready says so (ready.min_sources).
	MinSynced int
	// Gate, if set, holds back what publishers send until it is closed: sockets
	// connect and batches queue, nothing is applied. See Recover.
	Gate <-chan struct{}
	// ExpectedBytes bounds the memory for what instances are expected to have,
	// 64 MiB when 0.
	ExpectedBytes int64
	// AnswerBytes bounds the memory for the answers that reports can name, 64 MiB when 0: some 15,000 answers for 8,192
	// tokens in blocks of 16. Of an answer that was forgotten the router reports the prompt.
	AnswerBytes int64
	// Tape records applied batches, in memory or on the disk too; nil records nothing. It
	// belongs to the caller, who closes it after the Conductor.
	Tape *tape.Tape
	Log  zerolog.Logger
	Past bool // a replay fills it: sources come from a journal alone, and never age by the clock
	// Now is the clock of ages in answers; time.Now when nil.
	Now func() time.Time
}

// Conductor answers what the sources of a fleet hold. All methods are safe for concurrent use.
type Conductor struct {
	catalog *catalog.Catalog
	sources *ingest.Sources
	matcher *match.Matcher
	meter   *meter.Meter

	opts Options
	now  func() time.Time

	saltKey  [32]byte // of the texts that stand for salts
	tuned    atomic.Pointer[Tunables]
	sharing  *sharing           // see Share; nil for none
	keeper   RegistrationKeeper // see KeepRegistrations; nil for none
	feedback *feedback.Table
	serving  Serving
	mirror   Mirror // see MirrorBy; nil for none
}

// New returns a Conductor with no sources.
func New(opts Options) *Conductor {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.ExpectedBytes == 0 {
		opts.ExpectedBytes = 64 << 20
	}
	c := &Conductor{
		opts: opts,
		now:  opts.Now,
	}
	rand.Read(c.saltKey[:]) // it never fails
	c.catalog = catalog.New(catalog.Options{
		Index: index.Options{
			Scheme: hash.Scheme{Seed: opts.HashSeed}, MaxOrphans: opts.MaxOrphans, MaxBytes: opts.MaxBytes,
			Budget: index.NewBudget(opts.MaxBytesTotal), KeepClientHashes: opts.KeepClientHashes,
			Ghosts: index.NewGhosts(opts.GhostBytes), WideBase: catalog.ClientSeed(scope.Variant{}) != opts.HashSeed,
		},
		Past: opts.Past, MaxIdentities: opts.MaxContexts, ExpectedBytes: opts.ExpectedBytes, Now: opts.Now, Log: opts.Log,
	})
	c.sources = ingest.New(c.catalog, ingest.Options{
		Copies: opts.Copies, Stream: opts.Stream, Transport: opts.Transport, Reaches: opts.Reaches, Completeness: opts.Completeness,
		PoolBytes: opts.PoolBytes, RemovalsBytes: opts.RemovalsBytes, TTL: opts.TTL, SilentAfter: opts.SilentAfter, Gate: opts.Gate,
		Tape: opts.Tape, Log: opts.Log, Now: opts.Now,
	})
	c.matcher = match.New(c.catalog, opts.Memo, opts.Now)
	c.matcher.KeepAnswers(cmp.Or(opts.AnswerBytes, 64<<20))
	c.meter = meter.New(meter.Options{Catalog: c.catalog, Sources: c.sources, Matcher: c.matcher, Memo: opts.Memo, Tape: opts.Tape,
		Payloads: opts.Stream.Memory, Now: opts.Now})
	c.feedback = feedback.New(feedback.Options{Catalog: c.catalog, Resync: c.sources.Resync, Now: opts.Now, Log: &c.opts.Log})
	c.Tune(Tunables{MaxSources: opts.MaxSources, MinSynced: opts.MinSynced, SaltedOnly: opts.SaltedOnly, MaxTokenID: opts.MaxTokenID})
	return c
}

// Close stops every source, drops what they hold and waits for them. From then
// on registrations fail with ErrClosed and queries find nothing.
func (c *Conductor) Close() { c.sources.Close() }

// Sources returns the sources, which it starts and stops.
func (c *Conductor) Sources() *ingest.Sources { return c.sources }

// Catalog returns the deployments that sources are registered for.
func (c *Conductor) Catalog() *catalog.Catalog { return c.catalog }

// Register is Sources.Register.
func (c *Conductor) Register(r registration.Registration, opts ingest.RegisterOptions) error {
	return c.sources.Register(r, opts)
}

// Unregister is Sources.Unregister.
func (c *Conductor) Unregister(key registration.Key) (registration.Key, error) {
	return c.sources.Unregister(key)
}

// Registrations is Sources.Registrations.
func (c *Conductor) Registrations() []registration.Registration { return c.sources.Registrations() }

// Matcher returns what answers queries.
func (c *Conductor) Matcher() *match.Matcher { return c.matcher }

// Query is Matcher.Query.
func (c *Conductor) Query(q match.Query) match.Answer { return c.matcher.Query(q) }

// Answer is Matcher.Answer.
func (c *Conductor) Answer(q *match.Query, use func(*match.Answer)) { c.matcher.Answer(q, use) }
