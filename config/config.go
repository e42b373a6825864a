// Package config holds every setting of the server in one struct and builds it
// from four layers, the later ones winning:
//
//	Default() <- file (YAML or JSON) <- CONDUCTOR_… <- flags
//	                 |
//	                 +-- our keys and Mooncake's own, in one file or apart
//
// Invariants:
//  1. Nothing is guessed: an unknown key, a value of the wrong type or a
//     number without its unit is an error, never a default.
//  2. All errors of all layers are reported at once, each with its place:
//     file:line:column, env NAME or flag --name.
//  3. Every scalar key is one row of the table in keys.go; file, environment,
//     flags, range checks and the printed defaults are read from it.
//
// Concurrency: a Config is a plain value; nothing here keeps state. It is read
// once, at the start.
package config

import (
	"math"
	"strconv"
	"time"
)

// Values of Listener.Dialect.
const (
	Conductor        = "conductor"         // JSON as the published Conductor page has it
	ConductorMsgpack = "conductor-msgpack" // msgpack of Mooncake Conductor's second server
	ConductorJSONV2  = "conductor-json-v2" // the same in JSON, as that server spoke it at first
	Dynamo           = "dynamo"            // JSON of Dynamo's standalone indexer
	GRPC             = "grpc"              // gRPC: kvconductor.v1.Conductor, and what sgl-router calls
)

// Values of Stream.OnUnrecoverableGap.
const (
	keep = "keep" // suspect blocks stay, answers say partial
	drop = "drop" // the source's blocks go
)

// Values of Stream.Copies.
const (
	Count = "count" // a block leaves with its last copy
	Set   = "set"   // a block leaves at the first removal
)

// Values of Source.Reports.
const (
	incremental = "incremental" // a store on the device is a copy
	full        = "full"        // it may announce a block again that the engine reuses
)

// Source.Owned is Count or drop, Source.Clear All or device.
const device = "device" // a clear of an engine takes the blocks of its devices alone

// none is the value of Source.Events.
const none = "none" // the engine publishes no events

// capacityBlocks is the name of Source.CapacityBlocks in files.
const capacityBlocks = "capacity_blocks"

// Values of Source.Sequence.
const (
	own    = "own"    // the publisher numbers the batches of the source without holes
	shared = "shared" // numbers run over all topics of the publisher
)

// Values of Pool.Completeness.
const (
	All = "all" // a block counts with all objects that such blocks consist of
	Any = "any" // with any of them
)

// Metrics.PerSource is Auto, Always or Never.
const (
	Auto   = "auto"
	Always = "always"
	Never  = "never"
)

// DefaultTenant is the tenant of sources and queries that name none.
const DefaultTenant = "default"

// Values of cluster.mode.
const (
	Replicas = "replicas" // every replica follows every source
	Shards   = "shards"   // each replica follows the sources of its shards
)

// Config is everything a server needs to know before it starts.
type Config struct {
	Listeners []Listener    `mapstructure:"listeners"`
	Log       Log           `mapstructure:"log"`
	Hash      Hash          `mapstructure:"hash"`
	Sources   []Source      `mapstructure:"sources"`
	Stream    Stream        `mapstructure:"stream"`
	Index     Index         `mapstructure:"index"`
	Pool      Pool          `mapstructure:"pool"`
	Feedback  Feedback      `mapstructure:"feedback"`
	Expected  Expected      `mapstructure:"expected"`
	Doctor    Doctor        `mapstructure:"doctor"`
	Snapshot  Snapshot      `mapstructure:"snapshot"`
	Ready     Ready         `mapstructure:"ready"`
	Journal   Journal       `mapstructure:"journal"`
	Metrics   Metrics       `mapstructure:"metrics"`
	Tracing   Tracing       `mapstructure:"tracing"`
	Dynamo    DynamoDialect `mapstructure:"dynamo"`
	SGLang    SGLangDialect `mapstructure:"sglang"`
	Limits    Limits        `mapstructure:"limits"`
	Shutdown  Shutdown      `mapstructure:"shutdown"`
	Register  Register      `mapstructure:"register"`
	TLS       TLS           `mapstructure:"tls"`
	Auth      Auth          `mapstructure:"auth"`
	Peer      Peer          `mapstructure:"peer"`
	Privacy   Privacy       `mapstructure:"privacy"`
	Reload    Reload        `mapstructure:"reload"`
	UI        UI            `mapstructure:"ui"`
	Discovery Discovery     `mapstructure:"discovery"`
	Store     Store         `mapstructure:"store"`
	Cluster   Cluster       `mapstructure:"cluster"`
}

// Listener is one port.
type Listener struct {
	Address string `mapstructure:"address"` // host:port; an empty host is every interface, port 0 any free one
	Dialect string `mapstructure:"dialect"` // what the paths at its root speak: one of the dialects above
}

// Log is the form of the lines on standard error.
type Log struct {
	Level     string        `mapstructure:"level"`      // debug, info, warn or error
	Format    string        `mapstructure:"format"`     // json or console
	SlowQuery time.Duration `mapstructure:"slow_query"` // time of a query that has a line; 0 is none
}

// leastTTL is the shortest time to live of a source: aging stays rarer than announcing.
const leastTTL = time.Second

// Hash fixes the canonical block hash.
type Hash struct {
	Seed uint64 `mapstructure:"seed"` // XXH3-64 seed; the same in every process that exchanges hashes
}

// Source is one subscription known from the start, with the fields of
// POST /register.
type Source struct {
	Endpoint       string `mapstructure:"endpoint"`        // PUB socket of the engine: tcp://host:port or ipc://path
	Discover       string `mapstructure:"discover"`        // HTTP server of the engine, which is asked for endpoints; "" where they are given
	ReplayEndpoint string `mapstructure:"replay_endpoint"` // its ROUTER socket, "" when it has none
	// SnapshotEndpoint is the engine's ROUTER socket for snapshots of its cache, "" when it has none.
	SnapshotEndpoint string                   `mapstructure:"snapshot_endpoint"`
	Type             string                   `mapstructure:"type"` // vLLM, SGLang, Mooncake, Standard or LMCache
	ModelName        string                   `mapstructure:"modelname"`
	LoraName         string                   `mapstructure:"lora_name"`      // "" is the base model
	TenantID         string                   `mapstructure:"tenant_id"`      // "" is DefaultTenant
	InstanceID       string                   `mapstructure:"instance_id"`    // the name answers give; several ranks may share it
	BlockSize        int                      `mapstructure:"block_size"`     // tokens a block
	DPRank           int                      `mapstructure:"dp_rank"`        // data-parallel rank, 0 where there is one
	AdditionalSalt   string                   `mapstructure:"additionalsalt"` // salt of blocks whose events carry none
	TTL              time.Duration            `mapstructure:"ttl"`            // as Index.TTL, for this source
	MediaTTL         map[string]time.Duration // of single media, by the names engines give them; in files a map under ttl
	Aliases          []string                 `mapstructure:"aliases"`         // further names of the model in queries
	Serves           []string                 `mapstructure:"serves"`          // instances a pool is bound to; none is all
	Copies           string                   `mapstructure:"copies"`          // as Stream.Copies, for this source; "" is that
	Reports          string                   `mapstructure:"reports"`         // incremental or full: what a store of a block that the engine has means; "" is what its events show
	Owned            string                   `mapstructure:"owned"`           // Count or drop: blocks of the engine's cache runner; "" is Count
	Clear            string                   `mapstructure:"clear"`           // All or device: what an engine's clear takes; "" is All
	MayAnnounce      []string                 `mapstructure:"may_announce"`    // tenants its events may name besides its own
	HashProfile      HashProfile              `mapstructure:"hash_profile"`    // how the engine names its blocks
	Sequence         string                   `mapstructure:"sequence"`        // own or shared: what the publisher numbers; "" is the rule of its type
	Events           string                   `mapstructure:"events"`          // none for an engine that publishes no events, else ""
	CapacityBlocks   int                      `mapstructure:"capacity_blocks"` // room of the engine's cache, with Events none
	Approximate      string                   `mapstructure:"approximate"`     // Count: expected blocks count as held, with Events none; else ""
}

// HashProfile says how an engine names its blocks; the zero value is not known.
type HashProfile struct {
	Strategy        string `mapstructure:"strategy"`
	Algorithm       string `mapstructure:"algorithm"`
	PythonHashSeed  string `mapstructure:"python_hash_seed"` // the exact text: "0" is not "00"
	IndexProjection string `mapstructure:"index_projection"`
	RootDigest      string `mapstructure:"root_digest"` // lower-case hexadecimal; "" is any
	ExtraKeys       string `mapstructure:"extra_keys"`  // "" is untagged
}

// Key is the identity of a subscription as answers print it: instance|tenant|rank.
func (s Source) Key() string {
	return s.InstanceID + "|" + s.withTenant().TenantID + "|" + strconv.Itoa(s.DPRank)
}

// withTenant returns the source with its tenant written out.
func (s Source) withTenant() Source {
	if s.TenantID == "" {
		s.TenantID = DefaultTenant
	}
	return s
}

// Stream rules what happens between a socket and the index. All of it is per
// source unless it says otherwise.
type Stream struct {
	StaleAfter         time.Duration `mapstructure:"stale_after"`          // silence (no batch, no transport life) after which a source is stale
	Queue              int           `mapstructure:"queue"`                // batches that may wait between socket and index; reading stops there
	QueueBytesTotal    int64         `mapstructure:"queue_bytes_total"`    // bytes those batches may take over all sources; reading stops there
	OnUnrecoverableGap string        `mapstructure:"on_unrecoverable_gap"` // keep or Drop
	Copies             string        `mapstructure:"copies"`               // Count or Set
}

// Index rules how long blocks are kept.
type Index struct {
	TTL           time.Duration `mapstructure:"ttl"`             // how long a block stays after its last announcement; 0 is until it is removed
	MaxBytes      int64         `mapstructure:"max_bytes"`       // bytes of one deployment's index; beyond it new blocks are refused and answers say so; AutoSize is half of the memory, 0 no bound
	MaxBytesTotal int64         `mapstructure:"max_bytes_total"` // the same for all indexes together; AutoSize is half of the memory, 0 no bound
	GhostBytes    int64         `mapstructure:"ghost_bytes"`     // bytes for blocks that no instance holds any more and events may still name; 0 is none
	LocalHashes   bool          `mapstructure:"local_hashes"`    // keep the local hash of every block, for GET /dump
}

// Pool bounds the memory of pools, which announce objects instead of blocks.
type Pool struct {
	Completeness string `mapstructure:"completeness"` // All or Any
	MaxBytes     int64  `mapstructure:"max_bytes"`    // bytes for the objects of one pool; beyond it new ones are refused
}

// Snapshot is what the server keeps on disk of its indexes, for its next start.
type Snapshot struct {
	Dir      string        `mapstructure:"dir"`      // directory of the files; "" keeps none
	Interval time.Duration `mapstructure:"interval"` // pause between snapshots; 0 writes one at the end alone
	Keep     int           `mapstructure:"keep"`     // how many stay
	KeyFile  string        `mapstructure:"key_file"` // key that seals salts; "" leaves out what has a salt
}

// Ready rules when routers may rely on the answers.
type Ready struct {
	MinSources int `mapstructure:"min_sources"` // sources that must be synced
}

// Journal is the record of what was applied. It holds prompts.
type Journal struct {
	Dir      string `mapstructure:"dir"`       // directory of its files; "" is no record
	MaxBytes int64  `mapstructure:"max_bytes"` // bytes of all files; the oldest go first
	KeyFile  string `mapstructure:"key_file"`  // key that seals the files; "" leaves them plain

	RingBytes int64 `mapstructure:"ring_bytes"` // bytes of the newest part that stays in memory, for each source; 0 keeps none
}

// Metrics rules what /metrics has.
type Metrics struct {
	PerSource string `mapstructure:"per_source"` // Auto, Always or Never: series of single sources
}

// Tracing is where traces of queries go.
type Tracing struct {
	Endpoint    string  `mapstructure:"endpoint"`     // URL of a collector of OTLP over HTTP; "" makes no traces
	Sample      float64 `mapstructure:"sample"`       // part of the queries without a traceparent that are traced
	HeadersFile string  `mapstructure:"headers_file"` // file of headers for the collector; "" is none
	CACert      string  `mapstructure:"cacert"`       // file of the authorities of its certificate; "" is those of the system
}

// DynamoDialect is what the Dynamo dialect has beyond its listener.
type DynamoDialect struct {
	Peers              []string      `mapstructure:"peers"`                 // base URLs to recover from at the start, in this order
	MinInitialWorkers  int           `mapstructure:"min_initial_workers"`   // instances there must be before its listener answers
	CompareInterval    time.Duration `mapstructure:"compare_interval"`      // between comparisons with the peers; 0 is none
	AccessLog          string        `mapstructure:"access_log"`            // file of one JSON line a request; "" is none
	TraceIDHeader      string        `mapstructure:"trace_id_header"`       // the header those lines repeat
	AccessLogLocalTime bool          `mapstructure:"access_log_local_time"` // local time in them instead of UTC
	TestEndpoints      bool          `mapstructure:"test_endpoints"`        // POST /test/pause_listener and /test/resume_listener
}

// SGLangDialect is what sgl-router asks over gRPC.
type SGLangDialect struct {
	Model string `mapstructure:"model"` // the model of the router; "" answers for all
}

// Limits bounds what one peer can make the server do.
type Limits struct {
	MaxBody          int64         `mapstructure:"max_body"`           // bytes of one HTTP request body; more is 413
	MaxTokenID       int           `mapstructure:"max_token_id"`       // largest token id of queries and events; 0 is no bound
	MaxTokens        int           `mapstructure:"max_tokens"`         // token ids or hashes in one query; more is 400
	MaxQueries       int           `mapstructure:"max_queries"`        // queries worked on at once; 0 is four for each processor
	QueryWait        time.Duration `mapstructure:"query_wait"`         // how long others wait; longer is 503
	MaxSources       int           `mapstructure:"max_sources"`        // subscriptions, configured and registered together
	MaxTenantSources int           `mapstructure:"max_tenant_sources"` // subscriptions that clients register for one tenant; 0 is no bound
	MaxPayload       int64         `mapstructure:"max_payload"`        // bytes of one message from an engine
	ReadTimeout      time.Duration `mapstructure:"read_timeout"`       // from the first byte of an HTTP request to its last
	IdleTimeout      time.Duration `mapstructure:"idle_timeout"`       // how long a kept-alive HTTP connection may wait for its next request, and a client take nothing of its answer

	Memory                int64 `mapstructure:"memory"`                  // bytes of bodies and answers in flight; AutoSize is by the memory, 0 no bound
	MaxContexts           int   `mapstructure:"max_contexts"`            // adapters and salts of one deployment; 0 is no bound
	MaxConnections        int   `mapstructure:"max_connections"`         // open connections of all listeners, see server.Connections; 0 is no bound
	ConnectionsPerAddress int   `mapstructure:"connections_per_address"` // the same of one address; AutoCount is a quarter of MaxConnections
	ClientRequests        int   `mapstructure:"client_requests"`         // requests of one client a second; more is 429; 0 is no bound
	ClientBytes           int64 `mapstructure:"client_bytes"`            // bytes of its bodies a second
	ClientChanges         int   `mapstructure:"client_changes"`          // its registrations and other changes a minute
	MaxWatches            int   `mapstructure:"max_watches"`             // open calls of Watch and RoutedStream; 0 is no bound
}

// Register bounds what clients register.
type Register struct {
	Allow []string `mapstructure:"allow"` // rules of events/reach for the endpoints that clients name
}

// TLS is that of the listeners. Files are read again when they change.
type TLS struct {
	Cert              string `mapstructure:"cert"`                // file of the certificate, with those between it and the authority; "" serves without TLS
	Key               string `mapstructure:"key"`                 // file of its key
	ClientCA          string `mapstructure:"client_ca"`           // file of the authorities of clients; "" asks for no certificate
	RequireClientCert bool   `mapstructure:"require_client_cert"` // refuse connections without one
}

// Auth says which client may ask what.
type Auth struct {
	File      string   `mapstructure:"file"`      // tokens and certificates with their roles, see conductor/access; "" is none
	Anonymous []string `mapstructure:"anonymous"` // roles of clients without credentials
	Loopback  []string `mapstructure:"loopback"`  // those of such clients on the same machine
}

// Peer is what the server shows to peers.
type Peer struct {
	CACert    string `mapstructure:"cacert"`     // file of the authorities of peers; "" is those of the system
	Cert      string `mapstructure:"cert"`       // file of the certificate the server shows
	Key       string `mapstructure:"key"`        // file of its key
	TokenFile string `mapstructure:"token_file"` // file of the token the server sends
}

// Reload says when the settings are read again, besides SIGHUP and POST /admin/reload.
type Reload struct {
	Watch bool `mapstructure:"watch"` // when the file changes
}

// UI is the operators' page and what it shows.
type UI struct {
	Enabled       bool `mapstructure:"enabled"`        // /ui and the stream behind it
	RecentQueries bool `mapstructure:"recent_queries"` // keep token ids of some queries while a page looks
}

// Discovery finds sources.
type Discovery struct {
	TokenFile  string `mapstructure:"token_file"`  // bearer token for engines of sources with discover; "" sends none
	SourcesDir string `mapstructure:"sources_dir"` // folder of files with further sources; "" watches none
}

// Store is the Valkey or Redis that replicas share.
type Store struct {
	URL                  string        `mapstructure:"url"`                    // redis:// or rediss:// with user, host and database; "" is none
	Addresses            []string      `mapstructure:"addresses"`              // further nodes of a cluster, or further Sentinels
	Master               string        `mapstructure:"master"`                 // name by which Sentinels know the store; "" is no Sentinels
	Cluster              bool          `mapstructure:"cluster"`                // the store is a cluster
	Name                 string        `mapstructure:"name"`                   // of this deployment among those that share the store
	PasswordFile         string        `mapstructure:"password_file"`          // file of the password; "" is that of the URL
	SentinelPasswordFile string        `mapstructure:"sentinel_password_file"` // file of the password of Sentinels; "" is none
	CACert               string        `mapstructure:"cacert"`                 // file of the authorities of the store; "" is those of the system
	Cert                 string        `mapstructure:"cert"`                   // file of the certificate shown to the store
	Key                  string        `mapstructure:"key"`                    // file of its key
	Advertise            string        `mapstructure:"advertise"`              // URL where other replicas reach this one; "" is the host's name and the first port
	Weight               int64         `mapstructure:"weight"`                 // share of this replica, against those of others
	ShelfInterval        time.Duration `mapstructure:"shelf_interval"`         // age from which a snapshot in the store is written again; 0 writes none
	ShelfBytes           int64         `mapstructure:"shelf_bytes"`            // of the snapshots of all deployments together
}

// Cluster is how the replicas of a store share the work.
type Cluster struct {
	Mode   string `mapstructure:"mode"`   // Replicas or Shards
	Owners int64  `mapstructure:"owners"` // replicas that serve each shard
}

// AutoCount is a number that is not set: a block size that the engine or its first events tell, or a bound that
// follows another one.
const AutoCount = math.MinInt32

// Learns reports whether settings of the source come from its engine.
func (s *Source) Learns() bool { return s.Discover != "" || s.BlockSize == AutoCount }

// Privacy is what users of one tenant learn of each other.
type Privacy struct {
	SaltedOnly bool `mapstructure:"salted_only"` // queries without a cache salt match nothing
}

// Shutdown is how the server leaves.
type Shutdown struct {
	Drain time.Duration `mapstructure:"drain"` // how long listeners go on after SIGTERM, while /ready is 503
}

// Expected bounds what routers report of where they send prompts.
type Expected struct {
	MaxBytes int64 `mapstructure:"max_bytes"` // bytes for reports and their blocks; beyond it the oldest leave
}

// Feedback is what reports of requests lead to.
type Feedback struct {
	MaxError int `mapstructure:"max_error"` // percent of reported tokens that may be wrong; 0 is no bound
}

// Doctor bounds the findings about a source.
type Doctor struct {
	SilentAfter time.Duration `mapstructure:"silent_after"` // silence of a source that is asked for after which that is a finding
}

// Default returns the settings of a server that was told nothing.
func Default() Config {
	return Config{
		// The ports routers of the two dialects call by default.
		Listeners: []Listener{{":13333", Conductor}, {":8090", Dynamo}},
		Log: Log{
			Level:  "info", // one line for each change of a source's state, none for each event
			Format: "json", // logs are usually collected by programs
		},
		Hash: Hash{
			Seed: 1337, // the seed of Dynamo and of standardized publishers
		},
		Stream: Stream{
			StaleAfter:         30 * time.Second, // longer than engines stall while they compile or load weights
			Queue:              16384,            // room for all of vLLM's replay ring of 10,000 batches, and for what arrives meanwhile
			QueueBytesTotal:    256 << 20,        // half of it holds two full queues, or 128 KiB for each of 1,000 sources
			OnUnrecoverableGap: keep,             // a wrong hit costs one prefill, an emptied index costs thousands
			Copies:             Count,            // SGLang and offloading connectors announce a block once for each copy
		},
		Expected: Expected{
			MaxBytes: 64 << 20, // 100,000 prompts with 47 new blocks each, so 10,000 a second for 10 s
		},
		Doctor: Doctor{
			SilentAfter: 5 * time.Minute, // longer than the pauses of a fleet with little traffic
		},
		Index: Index{
			MaxBytesTotal: AutoSize,  // a server that runs out of memory is killed and loses everything
			GhostBytes:    128 << 20, // some 3 million blocks, more than a pool usually lags behind its engines
			LocalHashes:   true,      // without it a peer notices too late that it cannot recover from this server
		},
		Pool: Pool{
			Completeness: All,       // an engine cannot use a block that lacks one worker's part
			MaxBytes:     512 << 20, // some two million objects
		},
		Discovery: Discovery{
			TokenFile:  "", // engines without --api-key need no token
			SourcesDir: "", // most fleets name their sources in the settings or register them
		},
		Store: Store{
			Name:   "default",
			Weight: 100,

			ShelfInterval: time.Minute, // engines can replay minutes, so a snapshot should be younger
			ShelfBytes:    1 << 30,     // 60 M blocks, which fit into a small store
		},
		Cluster: Cluster{
			Mode:   Replicas,
			Owners: 2, // if one dies, the other answers at once
		},
		Snapshot: Snapshot{
			Interval: time.Minute, // engines can replay minutes, so a snapshot should be younger
			Keep:     2,           // if the newest is damaged, there is one before it
		},
		Journal: Journal{
			MaxBytes: 1 << 30, // hours of a small fleet, and little for a disk
		},
		Metrics: Metrics{
			PerSource: Auto, // hundreds of sources can be looked at one by one, thousands cannot
		},
		Tracing: Tracing{
			Sample: 0.01, // enough to see each second, at hardly any cost
		},
		Dynamo: DynamoDialect{
			CompareInterval: time.Minute,  // differences are rare, and a second comparison confirms them a minute later
			TraceIDHeader:   "x-trace-id", // the header that Dynamo uses
		},
		Limits: Limits{
			MaxBody:     16 << 20,               // a million token ids of six digits are 7 MB of JSON; twice that, with room for spaces
			MaxTokens:   2 << 20,                // twice the longest usual context, and about what max_body holds
			QueryWait:   100 * time.Millisecond, // longer than a burst; after that a router does better without an answer
			MaxSources:  10_000,                 // 1,250 nodes of eight ranks
			MaxPayload:  32 << 20,               // the announcement of a million-token prompt with hashes and tokens is about 6 MB
			ReadTimeout: 30 * time.Second,       // max_body at 5 Mbit/s
			IdleTimeout: 2 * time.Minute,        // load balancers usually close after 60 s, and should close first

			Memory:                AutoSize,  // leaves the rest to the indexes and queues
			MaxContexts:           16_384,    // a salt for each user of a fleet; some 5 MB
			MaxConnections:        16_384,    // 10,000 half-open connections still leave room for routers
			ConnectionsPerAddress: AutoCount, // leaves room for other addresses, and is enough for most proxies
			MaxWatches:            1024,      // each asks at most ten times a second, which together takes a quarter of a CPU
		},
		Auth: Auth{
			Anonymous: []string{Auto}, // what routers and engines need; nothing once there are credentials
			Loopback:  []string{Auto}, // what operators need; nothing once there are credentials
		},
		Register: Register{Allow: []string{"default"}}, // private and public addresses, but not link-local, multicast or cloud-metadata ones
		UI: UI{
			Enabled:       true, // it costs nothing until a browser opens it
			RecentQueries: true, // an explanation needs the prompt
		},
		Shutdown: Shutdown{Drain: 5 * time.Second}, // a load balancer that checks every second notices in time
	}
}
