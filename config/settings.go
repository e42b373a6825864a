package config

import "time"

// This file is the table of all settings: the walk in walk.go reads it, and this very text is part of
// the program. A field of a section is one setting, and it is all there is to write for one:
//
//   - its comment is the description, in the help of the flag, the reference and the printed settings;
//     a second paragraph that begins with "Default:" says why the default is what it is
//   - yaml is its name in a file; the variable is CONDUCTOR_SECTION_NAME, and the flag --section-name
//     unless flag says otherwise
//   - default is its default, and min its least value, both written as in a file
//   - words are the values of a text that is one of a few; kind is how other texts are written; see kindOf
//   - start makes it one of the dozen of conductor config init, which shows this example
//   - auto means that the word auto is a value too, and reload that a running server takes a change over

// Config is everything a server needs to know before it starts. Settings are printed in its order, under the names of
// their groups; a group ends where the next one begins.
type Config struct {
	// addresses to listen on, and the dialect of each
	//
	// Default: routers of the two dialects call these ports
	Listeners []Listener `yaml:"listeners" flag:"listen" default:":13333=conductor,:8090=dynamo"`

	Snapshot Snapshot `yaml:"snapshot" group:"What most servers set"`
	Ready    Ready    `yaml:"ready"`
	Auth     Auth     `yaml:"auth"`
	TLS      TLS      `yaml:"tls"`
	Register Register `yaml:"register"`
	Index    Index    `yaml:"index"`
	Log      Log      `yaml:"log"`

	Dynamo  DynamoDialect `yaml:"dynamo" group:"Several servers"`
	Store   Store         `yaml:"store"`
	Cluster Cluster       `yaml:"cluster"`
	Peer    Peer          `yaml:"peer"`

	Stream    Stream    `yaml:"stream" group:"Engines and caches"`
	Pool      Pool      `yaml:"pool"`
	Discovery Discovery `yaml:"discovery"`
	Hash      Hash      `yaml:"hash"`

	Limits   Limits        `yaml:"limits" group:"Clients"`
	Privacy  Privacy       `yaml:"privacy"`
	Feedback Feedback      `yaml:"feedback"`
	SGLang   SGLangDialect `yaml:"sglang"`

	UI      UI      `yaml:"ui" group:"Looking inside"`
	Tracing Tracing `yaml:"tracing"`
	Journal Journal `yaml:"journal"`

	Reload   Reload   `yaml:"reload" group:"The process"`
	Shutdown Shutdown `yaml:"shutdown"`

	Sources []Source `yaml:"sources"`
}

// Snapshot is what the server keeps on disk of its indexes, for its next start.
type Snapshot struct {
	// directory of snapshots and registrations, from which the next start is warm; empty keeps nothing. Set it in
	// production, another one for each server
	Dir string `yaml:"dir" start:"/var/lib/conductor/snapshots"`

	// pause between snapshots on disk, and age from which one in the store is written again. Lower it to lose less in
	// a crash, raise it to write less; 0 writes only one on disk, at the end, and none in the store
	//
	// Default: engines can replay minutes, so a snapshot should be younger
	Interval time.Duration `yaml:"interval" default:"1m"`

	// file of a key (32 bytes or 64 hexadecimal digits) that seals salts in snapshots. Set it if engines use salts:
	// without it, sources and blocks with a salt are in no snapshot
	KeyFile string `yaml:"key_file"`
}

// Ready rules when routers may rely on the answers.
type Ready struct {
	// sources that must be synced before /ready is 200, whether configured or registered. Set it to most of your
	// fleet, so that a restarted server gets no queries too early; 0 waits only for configured sources
	MinSources int `yaml:"min_sources" reload:"yes" start:"6"`
}

// Auth says which client may ask what.
type Auth struct {
	// file of tokens and certificates with their roles and tenants (conductor token makes entries); empty lets all
	// clients query and register. Set it if anybody else can reach the port
	File string `yaml:"file" reload:"yes" start:"/etc/conductor/auth.yaml"`

	// roles of clients without credentials: query, register, metrics, peer, admin, none. auto is query and register,
	// or none if there is an auth.file
	//
	// Default: what routers and engines need; nothing once there are credentials
	Anonymous []string `yaml:"anonymous" kind:"roles" default:"auto" reload:"yes"`

	// further roles of clients without credentials on this machine; auto is admin, or none if there is an auth.file
	//
	// Default: what operators need; nothing once there are credentials
	Loopback []string `yaml:"loopback" kind:"roles" default:"auto" reload:"yes"`

	// names besides localhost, 127.0.0.0/8 and ::1, without port, by which clients without credentials may ask at a
	// loopback address. Add what a proxy on this machine passes on as Host; other names are refused with 403
	//
	// Default: a web page can point its own domain at this machine
	Hosts []string `yaml:"hosts" kind:"hosts" reload:"yes"`
}

// TLS is that of the listeners. Its files are read again when they change.
type TLS struct {
	// file of the listeners' certificate, in PEM form; empty serves without TLS. Set it if the network between
	// routers and server is not trusted. It is read again when it changes
	Cert string `yaml:"cert" start:"/etc/conductor/tls.crt"`

	// file of that certificate's key
	Key string `yaml:"key" start:"/etc/conductor/tls.key"`

	// file of the authorities that sign clients' certificates; empty asks clients for none. Set it if clients show
	// certificates instead of tokens
	ClientCA string `yaml:"client_ca"`

	// refuse connections without a client certificate, those of load balancers that check /ready included. Set it if
	// nobody without one may even ask for /ready
	RequireClientCert bool `yaml:"require_client_cert"`
}

// Register bounds what clients register.
type Register struct {
	// endpoints that clients may register: default, tcp://network:ports, ipc:///path/, bind:tcp://*:ports. Narrow it
	// to the networks of your engines; add a rule for sockets, which default does not have
	//
	// Default: private and public addresses, but not link-local, multicast or cloud-metadata ones, and no sockets
	Allow []string `yaml:"allow" kind:"rules" default:"default" reload:"yes" start:"[tcp://10.0.0.0/8]"`
}

// Index rules how long blocks are kept, and in how much memory.
type Index struct {
	// bytes that all indexes together may take; beyond it new blocks are refused and answers get shorter. auto is
	// half of the available memory: the container's limit, or the machine's memory if there is none. Lower it if
	// other programs need the memory; 0 is no bound
	//
	// Default: a server that runs out of memory is killed and loses everything
	MaxBytesTotal int64 `yaml:"max_bytes_total" auto:"yes" default:"auto" start:"24GiB"`

	// bytes that the index of one tenant, model and block size may take; beyond it new blocks are refused. Set it so
	// that one tenant cannot use up everybody's memory; auto is half of the available memory, 0 no bound
	MaxBytes int64 `yaml:"max_bytes" auto:"yes"`

	// bytes for blocks that no instance holds any more, but that a pool or a lower tier may still name. Raise it if
	// the finding lost_names comes; 0 keeps none
	//
	// Default: some 3 million blocks, more than a pool usually lags behind its engines
	GhostBytes int64 `yaml:"ghost_bytes" default:"128MiB"`

	// keep what GET /dump needs, and so peers of the Dynamo dialect. false saves up to 8 bytes a block: choose it if
	// you use adapters, salts or another seed, and no server reads dumps of this one
	//
	// Default: without it a peer notices too late that it cannot recover from this server
	LocalHashes bool `yaml:"local_hashes" default:"true"`
}

// Log is the form of the lines on standard error.
type Log struct {
	// json for programs; choose console if people read the log
	//
	// Default: logs are usually collected by programs
	Format string `yaml:"format" words:"json|console" default:"json" start:"console"`

	// write lines of this level and worse. Lower it to debug, which adds a line for each replay and connection, while
	// you look into one engine; raise it to warn to see problems alone
	//
	// Default: one line for each change of a source's state, none for each event
	Level string `yaml:"level" words:"debug|info|warn|error" default:"info" reload:"yes"`

	// log each query that takes this long or longer, with the time of each stage, at most two lines a second. Lower
	// it to see more of them, while you look into latency; 0 logs none
	SlowQuery time.Duration `yaml:"slow_query" reload:"yes"`
}

// DynamoDialect is what the Dynamo dialect has beyond its listener.
type DynamoDialect struct {
	// other servers from which this one copies blocks at its start, in this order, and with which it compares blocks
	// later: base URLs, comma-separated. Set it if you run several servers. One that is this server itself is skipped
	Peers []string `yaml:"peers" kind:"urls" flag:"peers" start:"[http://conductor-2:8090]"`

	// instances that must be registered before the Dynamo dialect answers (also DYN_ROUTER_MIN_INITIAL_WORKERS).
	// Raise it to keep routers waiting while a fleet starts
	MinInitialWorkers int `yaml:"min_initial_workers" flag:"min-initial-workers"`

	// file of one JSON line for each request of the Dynamo dialect; empty writes none. Set it if your tools read the
	// log of Dynamo's indexer
	AccessLog string `yaml:"access_log" flag:"access-log"`

	// request header that is copied into the access log; change it if your routers send another
	//
	// Default: the header that Dynamo uses
	TraceIDHeader string `yaml:"trace_id_header" kind:"header" default:"x-trace-id" flag:"trace-id-header"`

	// local time in the access log instead of UTC, for tools that expect it
	AccessLogLocalTime bool `yaml:"access_log_local_time" flag:"access-log-local-time"`

	// let clients of the Dynamo dialect pause and resume subscriptions, for tests only (also
	// DYN_KV_INDEXER_TEST_ENDPOINTS)
	TestEndpoints bool `yaml:"test_endpoints" flag:"test-endpoints"`
}

// Store is the Valkey or Redis that replicas share.
type Store struct {
	// Valkey or Redis that replicas share, as redis:// or rediss:// with user, host and database; empty uses none.
	// Set it if replicas are to share registrations and snapshots
	URL string `yaml:"url" kind:"store" flag:"store" start:"rediss://conductor@valkey:6379"`

	// further nodes of a cluster, or further Sentinels, as host:port
	Addresses []string `yaml:"addresses" kind:"addresses"`

	// name by which Sentinels know the store; store.url and store.addresses are then Sentinels
	Master string `yaml:"master"`

	// whether the store is a cluster; set it for Valkey Cluster, Redis Cluster and their managed kinds
	Cluster bool `yaml:"cluster"`

	// name of this group of replicas in the store; give two groups in one store different names
	Name string `yaml:"name" kind:"filled" default:"default"`

	// file of the store's password, read for each connection; empty uses the one in store.url
	PasswordFile string `yaml:"password_file"`

	// file of the Sentinels' password; empty sends none
	SentinelPasswordFile string `yaml:"sentinel_password_file"`

	// file of the authorities that sign the store's certificate, for rediss://; empty uses those of the system
	CACert string `yaml:"cacert"`

	// file of the certificate that this server shows to the store
	Cert string `yaml:"cert"`

	// file of that certificate's key
	Key string `yaml:"key"`

	// base URL at which other replicas reach this server; empty is the host's name and the port of the first HTTP
	// listener. Set it if they cannot resolve that name
	Advertise string `yaml:"advertise" kind:"url"`

	// bytes that all snapshots in the store may take; beyond it the oldest go. Raise it, and the store's memory, for
	// more than 60 M blocks
	//
	// Default: 60 M blocks, which fit into a small store
	ShelfBytes int64 `yaml:"shelf_bytes" default:"1GiB" min:"1"`

	// share of the work that this replica takes with cluster.mode shards, relative to the others' weights; raise it
	// on larger machines
	Weight int `yaml:"weight" default:"100" min:"1"`
}

// Cluster is how the replicas of a store share the work.
type Cluster struct {
	// replicas: every replica follows every source. shards: each follows the sources of its share of the models, and
	// sends other queries on, for fleets that one machine cannot follow
	Mode string `yaml:"mode" words:"replicas|shards" default:"replicas"`

	// replicas that serve each model with cluster.mode shards; busy models get more. Raise it to survive more
	// failures; each costs as much as the first
	//
	// Default: if one dies, the other answers at once
	Owners int `yaml:"owners" default:"2" min:"1"`
}

// Peer is what the server shows to other replicas.
type Peer struct {
	// file of the authorities that sign the certificates of other replicas; empty uses those of the system
	CACert string `yaml:"cacert"`

	// file of the certificate that this server shows to other replicas
	Cert string `yaml:"cert"`

	// file of that certificate's key
	Key string `yaml:"key"`

	// file of the token that this server sends to other replicas; it needs the role peer there. All replicas of a store need
	// the same one, because they ask nothing of a replica that does not prove that it knows it. Further lines are
	// tokens that prove as much, while you replace the token
	TokenFile string `yaml:"token_file"`
}

// Stream rules what happens between the socket of a source and the index.
type Stream struct {
	// time without a connection to an engine, or a sign of life over it, after which its source is stale; lower it to
	// notice dead engines sooner, raise it if engines stall longer than this
	//
	// Default: longer than engines stall while they compile or load weights
	StaleAfter time.Duration `yaml:"stale_after" default:"30s" min:"1ms" flag:"stale-after"`

	// bytes that queued batches of all sources may take, half of them for replays, and at most a quarter of the
	// available memory. Raise it if sources back up in bursts and there is memory; lower it on a small machine
	//
	// Default: half of it holds two full queues, or 128 KiB for each of 1,000 sources
	QueueBytesTotal int64 `yaml:"queue_bytes_total" default:"256MiB" min:"1" flag:"queue-bytes-total"`

	// how to read a block that is stored twice: count needs as many removals as stores, set forgets the block at the
	// first removal. Choose set for publishers that repeat stores but not removals
	//
	// Default: SGLang and offloading connectors announce a block once for each copy
	Copies string `yaml:"copies" words:"count|set" default:"count" flag:"copies"`
}

// Pool is for caches below the engines, which announce objects instead of blocks.
type Pool struct {
	// when a block of a pool counts: all if all its objects are there, any if one is. Choose any if your store keeps
	// a whole block as one object
	//
	// Default: an engine cannot use a block that lacks one worker's part
	Completeness string `yaml:"completeness" words:"all|any" default:"all"`

	// bytes that the objects of one pool may take; beyond it new objects are refused. Raise it for a larger store: an
	// object takes some 200 bytes
	//
	// Default: some two million objects
	MaxBytes int64 `yaml:"max_bytes" default:"512MiB" min:"1MiB"`
}

// Discovery finds sources.
type Discovery struct {
	// file of the bearer token for engines of configured sources with discover. Set it if they run with --api-key;
	// engines that clients register never get it
	//
	// Default: engines without --api-key need no token
	TokenFile string `yaml:"token_file"`

	// folder of YAML files with sources, followed as files come, change and go; empty watches none. Set it if a tool
	// writes a file for each engine
	//
	// Default: most fleets name their sources in the settings or register them
	SourcesDir string `yaml:"sources_dir" flag:"sources-dir"`
}

// Hash fixes the hash that names blocks.
type Hash struct {
	// seed of the hash that names blocks (XXH3-64); all servers and clients that exchange hashes need the same one.
	// Change it only if your publishers use another. random draws another at each start, which keeps clients from
	// forging hashes, but then replicas and clients that hash cannot work with this server
	//
	// Default: the seed of Dynamo and of standardized publishers
	Seed uint64 `yaml:"seed" default:"1337"`
}

// Limits bounds what one peer can make the server do.
type Limits struct {
	// bytes of one request body over HTTP, or message over gRPC; more is 413. Raise it for longer prompts
	//
	// Default: a million token ids of six digits are 7 MB of JSON; twice that, with room for spaces
	MaxBody int64 `yaml:"max_body" default:"16MiB" min:"1" flag:"max-body"`

	// token ids or hashes in one query; more is 400. Raise it for longer prompts, with max_body
	//
	// Default: twice the longest usual context, and about what max_body holds
	MaxTokens int `yaml:"max_tokens" default:"2097152" min:"1" flag:"max-tokens"`

	// largest token id that is accepted: the size of the model's vocabulary less one. Set it to leave fewer ways to
	// forge hashes; 0 is no bound
	MaxTokenID int `yaml:"max_token_id" flag:"max-token-id" reload:"yes"`

	// time that a query may wait for a slot before it is refused with 503; raise it if your routers would rather
	// wait than go without
	//
	// Default: longer than a burst; after that a router does better without an answer
	QueryWait time.Duration `yaml:"query_wait" default:"100ms" flag:"query-wait" reload:"yes"`

	// sources, configured and registered together; more registrations are 503. An engine that has not told its block
	// size counts as one until its first events tell it. Raise it for a larger fleet; each source costs two sockets.
	// Where open files or memory are not enough for so many, fewer are allowed, and the log says at the start how many
	//
	// Default: 1,250 nodes of eight ranks
	MaxSources int `yaml:"max_sources" default:"10000" min:"1" flag:"max-sources" reload:"yes"`

	// sources that clients may register for one tenant; more is 503. Set it if tenants do not trust each other; 0 is
	// no bound
	MaxTenantSources int `yaml:"max_tenant_sources" flag:"max-tenant-sources" reload:"yes"`

	// bytes of one message from an engine; a larger one is left out, and its source becomes partial. Raise it if the
	// reason batch_too_large comes
	//
	// Default: the announcement of a million-token prompt with hashes and tokens is about 6 MB
	MaxPayload int64 `yaml:"max_payload" default:"32MiB" min:"1" flag:"max-payload"`

	// time that a kept connection may wait for its next request, and that a client may take for 64 KB of its answer.
	// Keep it longer than the idle timeout of your load balancer
	//
	// Default: load balancers usually close after 60 s, and should close first
	IdleTimeout time.Duration `yaml:"idle_timeout" default:"2m" min:"1ms" flag:"idle-timeout"`

	// bytes that request bodies and answers in flight may take; more is 503. A request takes at least 32 KiB of
	// them until its body has arrived, over HTTP/2 and gRPC until its answer is taken. Raise it if queries or answers are
	// many and large, and there is memory; auto is an eighth of the available memory, at most 512MiB; 0 is no bound
	//
	// Default: leaves the rest to the indexes and queues
	Memory int64 `yaml:"memory" auto:"yes" default:"auto" flag:"limit-memory" reload:"yes"`

	// adapters and salts with blocks in one tenant, model and block size, with names of 256 bytes on average; beyond
	// it new ones are refused. Raise it if you use a salt per user and have more users; 0 is no bound
	//
	// Default: a salt for each user of a fleet; some 5 MB
	MaxContexts int `yaml:"max_contexts" default:"16384" flag:"max-contexts"`

	// open connections of one address. Raise it if clients come through a proxy or an ingress, because they then
	// share its address; auto is a quarter of the 16,384 of all addresses, 0 no bound
	//
	// Default: leaves room for other addresses, and is enough for most proxies
	ConnectionsPerAddress int `yaml:"connections_per_address" auto:"yes" default:"auto" flag:"connections-per-address" reload:"yes"`

	// requests of one client a second; more is 429. Set it if you do not control all clients, well above what a
	// router of yours sends; 0 is no bound
	ClientRequests int `yaml:"client_requests" flag:"client-requests" reload:"yes"`

	// bytes of request bodies of one client a second; more is 429. Set it for the same reason: one long prompt costs
	// as much as many short ones; 0 is no bound
	ClientBytes int64 `yaml:"client_bytes" flag:"client-bytes" reload:"yes"`

	// registrations and other changes of one client a minute; more is 429. Set it if clients that you do not control
	// may register; 0 is no bound
	ClientChanges int `yaml:"client_changes" flag:"client-changes" reload:"yes"`
}

// Privacy is what users of one tenant learn of each other.
type Privacy struct {
	// answer queries without a cache salt with no match, because unsalted blocks tell which prompts other users
	// asked. Set it if users of one tenant must not learn of each other
	SaltedOnly bool `yaml:"salted_only" flag:"salted-only" reload:"yes"`
}

// Feedback is what reports of requests lead to.
type Feedback struct {
	// percent of the tokens of reports to /feedback that may be wrong; beyond it the instance has a finding and
	// starts over from a replay. Lower it to start over sooner, but not below what is usual in your fleet, or engines
	// replay for nothing; 0 only counts
	MaxError int `yaml:"max_error" reload:"yes"`
}

// SGLangDialect is what sgl-router asks over gRPC.
type SGLangDialect struct {
	// model of the sgl-router that asks over gRPC; empty answers for the engines of all models. Set it if engines of
	// several models are registered here
	Model string `yaml:"model"`
}

// UI is the page for operators and what it shows.
type UI struct {
	// serve the operator's page at /ui, its documents at /docs, and its stream at /admin/live. Switch it off if
	// nobody is to see them
	//
	// Default: it costs nothing until a browser opens it
	Enabled bool `yaml:"enabled" default:"true" flag:"ui"`

	// keep the token ids of some queries in memory while the page is open, so that it can explain them: at most 64
	// queries, 1 MiB and five minutes. Switch it off if operators must not see prompts
	//
	// Default: an explanation needs the prompt
	RecentQueries bool `yaml:"recent_queries" default:"true"`
}

// Tracing is where traces of queries go.
type Tracing struct {
	// URL of a collector that takes traces as OTLP over HTTP, such as http://collector:4318; empty sends none. The
	// authorities of https are those of the system, or of SSL_CERT_FILE
	Endpoint string `yaml:"endpoint" kind:"url"`

	// share of the queries that are traced, 0 to 1. Raise it to see rare ones, lower it if the collector has too
	// much. If a query has a traceparent, its caller decides instead
	//
	// Default: enough to see each second, at hardly any cost
	Sample float64 `yaml:"sample" default:"0.01"`

	// file of headers for the collector, such as its credentials, as lines of name: value
	HeadersFile string `yaml:"headers_file"`
}

// Journal is the record of the events that were applied. It holds prompts.
type Journal struct {
	// directory of a record of all events, for conductor replay; empty records nothing. Set it while you look into
	// wrong answers: it has users' tokens
	Dir string `yaml:"dir"`

	// bytes that this record may take; beyond it the oldest part goes. Raise it to look back further
	//
	// Default: hours of a small fleet, and little for a disk
	MaxBytes int64 `yaml:"max_bytes" default:"1GiB" min:"8MiB"`

	// file of a 32-byte key that seals the record; empty leaves it readable. Set it if the disk is not yours alone
	KeyFile string `yaml:"key_file"`

	// bytes of the newest batches of each source that stay in memory for /admin/events, users' tokens included. Raise
	// it to look back further; 0 keeps none
	RingBytes int64 `yaml:"ring_bytes"`
}

// Reload says when the settings are read again, besides SIGHUP and POST /admin/reload.
type Reload struct {
	// read the settings file again when it changes, as SIGHUP and POST /admin/reload do. Set it if a tool writes the
	// file, such as a mounted ConfigMap
	Watch bool `yaml:"watch"`
}

// Shutdown is how the server leaves.
type Shutdown struct {
	// time that the server goes on answering after SIGTERM, with /ready at 503, so that load balancers notice. Raise
	// it if yours asks more rarely; 0 stops at once, and so does a second signal
	//
	// Default: a load balancer that checks every second notices in time
	Drain time.Duration `yaml:"drain" default:"5s" reload:"yes"`
}
