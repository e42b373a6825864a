package config

import (
	"reflect"
	"strings"
	"time"
)

// A key is one scalar setting. Its value lives in the member of Config that the path
// names by mapstructure tags.
type key struct {
	path string // section.name, in files
	flag string // --name, on the command line
	kind kind   // how its value is written
	min  int64  // least legal value of a number, in its own unit (ns, bytes); 0 for text
	help string // meaning and unit, one line
}

// env is the environment variable that sets the key.
func (k key) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.path, ".", "_"))
}

// value reads the key from a config.
func (k key) value(c *Config) any {
	section, name, _ := strings.Cut(k.path, ".")
	return member(member(reflect.ValueOf(c).Elem(), section), name).Interface()
}

// show renders the key's value in a config.
func (k key) show(c *Config) string { return show(k.value(c)) }

// member returns the member of a struct that files call name.
func member(of reflect.Value, name string) reflect.Value {
	for i := range of.NumField() {
		if of.Type().Field(i).Tag.Get("mapstructure") == name {
			return of.Field(i)
		}
	}
	panic("BUG: " + of.Type().String() + " has no member for the key " + name)
}

// keys lists every scalar setting, in the order in which they are printed.
var keys = []key{
	{"log.level", "log-level", choice("debug", "info", "warn", "error"), 0, "write lines of this level and worse. debug adds a line for each replay and connection: set it while you look into one engine"},
	{"log.format", "log-format", choice("json", "console"), 0, "json for programs, console for people"},
	{"log.slow_query", "log-slow-query", duration(), 0, "log each query that takes this long or longer, with the time of each stage, at most two lines a second; lower it to see more; 0 logs none"},

	{"hash.seed", "hash-seed", seed(), 0, "seed of the hash that names blocks (XXH3-64); all servers and clients that exchange hashes need the same one. random draws another at each start, which keeps clients from forging hashes, but then replicas and clients that hash cannot work with this server"},

	{"stream.stale_after", "stale-after", duration(), int64(time.Millisecond), "time without a connection to an engine, or a sign of life over it, after which its source is stale; lower it to notice dead engines sooner, raise it if engines stall longer than this"},
	{"stream.queue", "queue", count(), 1, "batches that may queue for one source; beyond this Conductor stops reading its socket, and the publisher buffers. Raise it if engines publish in long bursts"},
	{"stream.queue_bytes_total", "queue-bytes-total", size(), 1, "bytes that queued batches of all sources may take, half of them for replays, and at most a quarter of the available memory. Raise it if sources back up in bursts and there is memory; lower it on a small machine"},
	{"stream.on_unrecoverable_gap", "on-unrecoverable-gap", choice(keep, drop), 0, "what to do with a source's blocks when events are lost for good: keep them, so that some hits may be wrong, or drop them, so that it has no hits until the engine announces blocks again"},
	{"stream.copies", "copies", choice(Count, Set), 0, "how to read a block that is stored twice: count needs as many removals as stores, set forgets the block at the first removal. Choose set for publishers that repeat stores but not removals"},

	{"index.ttl", "index-ttl", duration(), 0, "time after which a block is forgotten unless it is announced again, for publishers that announce no removals; 0 keeps blocks until they are removed. Prefer the field ttl of single sources, because this one holds for all"},
	{"index.max_bytes", "index-max-bytes", sizeOrAuto(), AutoSize, "bytes that the index of one tenant, model and block size may take; beyond it new blocks are refused. Set it so that one tenant cannot use up everybody's memory; auto is half of the available memory, 0 no bound"},
	{"index.max_bytes_total", "index-max-bytes-total", sizeOrAuto(), AutoSize, "bytes that all indexes together may take; beyond it new blocks are refused and answers get shorter. auto is half of the available memory: the container's limit, or the machine's memory if there is none. Lower it if other programs need the memory; 0 is no bound"},
	{"index.ghost_bytes", "index-ghost-bytes", size(), 0, "bytes for blocks that no instance holds any more, but that a pool or a lower tier may still name. Raise it if the finding lost_names comes; 0 keeps none"},
	{"index.local_hashes", "index-local-hashes", truth(), 0, "keep what GET /dump needs, and so peers of the Dynamo dialect; false saves up to 8 bytes a block"},

	{"pool.completeness", "pool-completeness", choice(All, Any), 0, "when a block of a pool counts: all if all its objects are there, any if one is. Choose any if your store keeps a whole block as one object"},
	{"pool.max_bytes", "pool-max-bytes", size(), 1 << 20, "bytes that the objects of one pool may take; beyond it new objects are refused. Raise it for a larger store: an object takes some 200 bytes"},

	{"expected.max_bytes", "expected-max-bytes", size(), 1 << 20, "bytes for what routers report by POST /routed, of all tenants; beyond it the oldest report of the tenant with the most bytes leaves. Raise it if conductor_expected_bytes stays close to it"},

	{"feedback.max_error", "feedback-max-error", count(), 0, "percent of the tokens of reports to /feedback that may be wrong; beyond it the instance has a finding and starts over from a replay. Lower it to start over sooner, but not below what is usual in your fleet, or engines replay for nothing; 0 only counts"},

	{"doctor.silent_after", "doctor-silent-after", duration(), int64(time.Second), "time without events, while queries ask for the model, after which a source has the finding silent; other findings are checked every quarter of it. Raise it for engines with long pauses"},

	{"snapshot.dir", "snapshot-dir", text(), 0, "directory of snapshots and registrations, from which the next start is warm; empty keeps nothing. One server a directory"},
	{"snapshot.interval", "snapshot-interval", duration(), 0, "pause between snapshots; lower it to lose less in a crash, raise it to write less; 0 writes only one, at the end"},
	{"snapshot.keep", "snapshot-keep", count(), 1, "snapshots that stay in the directory; raise it to have more to fall back on, each takes 16 to 18 bytes a block"},
	{"snapshot.key_file", "snapshot-key-file", text(), 0, "file of a key (32 bytes or 64 hexadecimal digits) that seals salts in snapshots; without it, sources and blocks with a salt are in no snapshot"},

	{"ready.min_sources", "ready-min-sources", count(), 0, "sources that must be synced before /ready is 200, whether configured or registered. Set it to most of your fleet, so that a restarted server gets no queries too early; 0 waits only for configured sources"},

	{"journal.dir", "journal-dir", text(), 0, "directory of a record of all events, for conductor replay. It has users' tokens; empty records nothing"},
	{"journal.max_bytes", "journal-max-bytes", size(), 8 << 20, "bytes that this record may take; beyond it the oldest part goes. Raise it to look back further"},
	{"journal.key_file", "journal-key-file", text(), 0, "file of a 32-byte key that seals the record; empty leaves it readable"},
	{"journal.ring_bytes", "journal-ring-bytes", size(), 0, "bytes of the newest batches of each source that stay in memory for /admin/events, users' tokens included. Raise it to look back further; 0 keeps none"},

	{"metrics.per_source", "metrics-per-source", choice(Auto, Always, Never), 0, "which sources have series of their own: auto all while there are up to 500, and beyond that those with a problem; always all; never only those with a problem"},
	{"tracing.endpoint", "tracing-endpoint", urlOrNone(), 0, "URL of a collector that takes traces as OTLP over HTTP, such as http://collector:4318; empty sends none"},
	{"tracing.sample", "tracing-sample", ratio(), 0, "share of the queries that are traced, 0 to 1; raise it to see rare ones. If a query has a traceparent, its caller decides instead"},
	{"tracing.headers_file", "tracing-headers-file", text(), 0, "file of headers for the collector, such as its credentials, as lines of name: value"},
	{"tracing.cacert", "tracing-cacert", text(), 0, "file of the authorities that sign the collector's certificate; empty uses those of the system"},

	{"dynamo.peers", "peers", urls(), 0, "other servers from which this one copies blocks at its start, in this order, and with which it compares blocks later: base URLs, comma-separated. One that is this server itself is skipped"},
	{"dynamo.min_initial_workers", "min-initial-workers", count(), 0, "instances that must be registered before the Dynamo dialect answers (also " + envMinWorkers + "). Raise it to keep routers waiting while a fleet starts"},
	{"dynamo.compare_interval", "compare-interval", duration(), 0, "pause between comparisons of blocks with peers; lower it to find differences sooner; 0 does not compare"},
	{"dynamo.access_log", "access-log", text(), 0, "file of one JSON line for each request of the Dynamo dialect; empty writes none"},
	{"dynamo.trace_id_header", "trace-id-header", header(), 0, "request header that is copied into the access log"},
	{"dynamo.access_log_local_time", "access-log-local-time", truth(), 0, "local time in the access log instead of UTC"},
	{"dynamo.test_endpoints", "test-endpoints", truth(), 0, "let clients of the Dynamo dialect pause and resume subscriptions, for tests only (also " + envTestEndpoints + ")"},

	{"sglang.model", "sglang-model", text(), 0, "model of the sgl-router that asks over gRPC; empty answers for the engines of all models"},

	{"limits.max_body", "max-body", size(), 1, "bytes of one request body over HTTP, or message over gRPC; more is 413. Raise it for longer prompts"},
	{"limits.max_tokens", "max-tokens", count(), 1, "token ids or hashes in one query; more is 400. Raise it for longer prompts"},
	{"limits.max_token_id", "max-token-id", count(), 0, "largest token id that is accepted: the size of the model's vocabulary less one. Set it to leave fewer ways to forge hashes; 0 is no bound"},
	{"limits.max_queries", "max-queries", count(), 0, "queries that are worked on at once, over all listeners; further ones wait for limits.query_wait. 0 allows four per CPU: queries are CPU-bound, so more would only make each of them slower"},
	{"limits.query_wait", "query-wait", duration(), 0, "time that a query may wait for a place before it is refused with 503; raise it if your routers would rather wait than go without"},
	{"limits.max_sources", "max-sources", count(), 1, "sources, configured and registered together; more registrations are 503. Raise it for a larger fleet; each source costs two sockets"},
	{"limits.max_tenant_sources", "max-tenant-sources", count(), 0, "sources that clients may register for one tenant; more is 503. Set it if tenants do not trust each other; 0 is no bound"},
	{"limits.max_payload", "max-payload", size(), 1, "bytes of one message from an engine; a larger one is left out, and its source becomes partial. Raise it if the reason batch_too_large comes"},
	{"limits.read_timeout", "read-timeout", duration(), int64(time.Millisecond), "time in which an HTTP request must have arrived; raise it for slow clients with long prompts"},
	{"limits.idle_timeout", "idle-timeout", duration(), int64(time.Millisecond), "time that a kept connection may wait for its next request, and that a client may take for 64 KB of its answer. Keep it longer than the idle timeout of your load balancer"},
	{"limits.memory", "limit-memory", sizeOrAuto(), AutoSize, "bytes that request bodies and answers in flight may take; more is 503. auto is an eighth of the available memory, at most 512MiB; 0 is no bound"},
	{"limits.max_contexts", "max-contexts", count(), 0, "adapters and salts with blocks in one tenant, model and block size, with names of 256 bytes on average; beyond it new ones are refused. Raise it if you use a salt per user and have more users; 0 is no bound"},
	{"limits.max_connections", "max-connections", count(), 0, "open connections of all listeners; beyond it a new one takes the place of the oldest whose client was not let in yet. Raise it for very many clients; 0 is no bound"},
	{"limits.connections_per_address", "connections-per-address", countOrAuto(), 0, "open connections of one address. Raise it if clients come through a proxy or an ingress, because they then share its address; auto is a quarter of max_connections, 0 no bound"},
	{"limits.client_requests", "client-requests", count(), 0, "requests of one client a second; more is 429. Set it if you do not control all clients, well above what a router of yours sends; 0 is no bound"},
	{"limits.client_bytes", "client-bytes", size(), 0, "bytes of request bodies of one client a second; more is 429. Set it for the same reason: one long prompt costs as much as many short ones; 0 is no bound"},
	{"limits.client_changes", "client-changes", count(), 0, "registrations and other changes of one client a minute; more is 429. Set it if clients that you do not control may register; 0 is no bound"},
	{"limits.max_watches", "max-watches", count(), 0, "open calls of Watch and RoutedStream over gRPC; more are RESOURCE_EXHAUSTED. Raise it if you have more routers; 0 is no bound"},
	{"tls.cert", "tls-cert", text(), 0, "file of the listeners' certificate, in PEM form; empty serves without TLS. It is read again when it changes"},
	{"tls.key", "tls-key", text(), 0, "file of that certificate's key"},
	{"tls.client_ca", "tls-client-ca", text(), 0, "file of the authorities that sign clients' certificates; empty asks clients for none"},
	{"tls.require_client_cert", "tls-require-client-cert", truth(), 0, "refuse connections without a client certificate, those of load balancers that check /ready included"},
	{"auth.file", "auth-file", text(), 0, "file of tokens and certificates with their roles and tenants (conductor token makes entries); empty lets all clients query and register"},
	{"auth.anonymous", "auth-anonymous", roles(), 0, "roles of clients without credentials: query, register, metrics, peer, admin, none. auto is query and register, or none if there is an auth.file"},
	{"auth.loopback", "auth-loopback", roles(), 0, "further roles of clients without credentials on this machine; auto is admin, or none if there is an auth.file"},
	{"peer.cacert", "peer-cacert", text(), 0, "file of the authorities that sign the certificates of other replicas; empty uses those of the system"},
	{"peer.cert", "peer-cert", text(), 0, "file of the certificate that this server shows to other replicas"},
	{"peer.key", "peer-key", text(), 0, "file of that certificate's key"},
	{"peer.token_file", "peer-token-file", text(), 0, "file of the token that this server sends to other replicas; it needs the role peer there"},
	{"privacy.salted_only", "salted-only", truth(), 0, "answer queries without a cache salt with no match, because unsalted blocks tell which prompts other users asked"},
	{"discovery.token_file", "discovery-token-file", text(), 0, "file of the bearer token for engines of configured sources with discover; engines that clients register never get it"},
	{"discovery.sources_dir", "sources-dir", text(), 0, "folder of YAML files with sources, followed as files come, change and go; empty watches none"},
	{"store.url", "store", storeURL(), 0, "Valkey or Redis that replicas share, as redis:// or rediss:// with user, host and database; empty uses none"},
	{"store.addresses", "store-addresses", addresses(), 0, "further nodes of a cluster, or further Sentinels, as host:port"},
	{"store.master", "store-master", text(), 0, "name by which Sentinels know the store; store.url and store.addresses are then Sentinels"},
	{"store.cluster", "store-cluster", truth(), 0, "whether the store is a cluster"},
	{"store.name", "store-name", filled(), 0, "name of this fleet in the store; give two fleets in one store different names"},
	{"store.password_file", "store-password-file", text(), 0, "file of the store's password, read for each connection; empty uses the one in store.url"},
	{"store.sentinel_password_file", "store-sentinel-password-file", text(), 0, "file of the Sentinels' password; empty sends none"},
	{"store.cacert", "store-cacert", text(), 0, "file of the authorities that sign the store's certificate, for rediss://; empty uses those of the system"},
	{"store.cert", "store-cert", text(), 0, "file of the certificate that this server shows to the store"},
	{"store.key", "store-key", text(), 0, "file of that certificate's key"},
	{"store.advertise", "store-advertise", urlOrNone(), 0, "base URL at which other replicas reach this server; empty is the host's name and the port of the first HTTP listener. Set it if they cannot resolve that name"},
	{"store.shelf_interval", "store-shelf-interval", duration(), 0, "age from which a deployment's snapshot in the store is written again; lower it to lose less if all replicas fail, raise it to write less; 0 writes none"},
	{"store.shelf_bytes", "store-shelf-bytes", size(), 1, "bytes that all snapshots in the store may take; beyond it the oldest go. Raise it, and the store's memory, for more than 60 M blocks"},
	{"store.weight", "store-weight", count(), 1, "share of the work that this replica takes with cluster.mode shards, relative to the others' weights; raise it on larger machines"},
	{"cluster.mode", "cluster-mode", choice(Replicas, Shards), 0, "replicas: every replica follows every source. shards: each follows the sources of its share of the models, and sends other queries on, for fleets that one machine cannot follow"},
	{"cluster.owners", "cluster-owners", count(), 1, "replicas that serve each model with cluster.mode shards; busy models get more. Raise it to survive more failures; each costs as much as the first"},
	{"reload.watch", "reload-watch", truth(), 0, "read the settings file again when it changes, as SIGHUP and POST /admin/reload do. Set it if a tool writes the file, such as a mounted ConfigMap"},
	{"register.allow", "register-allow", rules(), 0, "endpoints that clients may register: default, tcp://network:ports, ipc:///path/, bind:tcp://*:ports. Narrow it to the networks of your engines"},
	{"ui.enabled", "ui", truth(), 0, "serve the operator's page at /ui, its documents at /docs, and its stream at /admin/live"},
	{"ui.recent_queries", "ui-recent-queries", truth(), 0, "keep the token ids of some queries in memory while the page is open, so that it can explain them: at most 64 queries, 1 MiB and five minutes"},
	{"shutdown.drain", "shutdown-drain", duration(), 0, "time that the server goes on answering after SIGTERM, with /ready at 503, so that load balancers notice. Raise it if yours asks more rarely; 0 stops at once, and so does a second signal"},
}

// sectionFields returns the fields of a section, in table order.
func sectionFields(section string) (out []field) {
	for _, k := range keys {
		if name, ok := strings.CutPrefix(k.path, section+"."); ok {
			out = append(out, field{name, k.kind, false})
		}
	}
	return out
}

// sections returns the names of all maps of scalars, in table order.
func sections() (names []string) {
	for _, k := range keys {
		name, _, _ := strings.Cut(k.path, ".")
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return names
}

// A field is one key of a map in a settings file. Its value lives in the member whose
// mapstructure tag is its name.
type field struct {
	name     string
	kind     kind // the zero kind for a value that is no scalar
	nullable bool // null means not given, as in the body of POST /register
}

const (
	sourceTTL   = "ttl"
	hashProfile = "hash_profile"
)

var dialects = choice(Conductor, ConductorMsgpack, ConductorJSONV2, Dynamo, GRPC)

var listenerFields = []field{{"address", text(), false}, {"dialect", dialects, false}}

var sourceTypes = choice("vLLM", "SGLang", "Mooncake", "Standard", "LMCache")

// sourceFields are those of an entry of sources or kvevent_instance.
var sourceFields = []field{
	{"endpoint", text(), false},
	{"discover", text(), true},
	{"replay_endpoint", text(), true},
	{"snapshot_endpoint", text(), true},
	{"type", sourceTypes, false},
	{"modelname", text(), false},
	{"lora_name", text(), true},
	{"tenant_id", text(), true},
	{"instance_id", text(), false},
	{"block_size", countOrAuto(), false},
	{"dp_rank", count(), false},
	{"additionalsalt", text(), true},
	{sourceTTL, duration(), true}, // or a map of them: Source.MediaTTL
	{"serves", texts(), true},
	{"aliases", texts(), true},
	{"copies", choice(Count, Set), true},
	{"reports", choice(incremental, full), true},
	{"owned", choice(Count, drop), true},
	{"clear", choice(All, device), true},
	{"may_announce", texts(), true},
	{"sequence", choice(own, shared), true},
	{"events", choice(none), true},
	{capacityBlocks, count(), true},
	{"approximate", choice(Count), true},
	{hashProfile, kind{}, true}, // read by readProfile
}

// profileFields are those of a hash_profile.
var profileFields = []field{
	{"strategy", filled(), false},
	{"algorithm", filled(), false},
	{"python_hash_seed", filled(), false},
	{"index_projection", filled(), false},
	{"root_digest", text(), true},
	{"extra_keys", text(), true},
}
