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
	{"log.level", "log-level", choice("debug", "info", "warn", "error"), 0, "least severe line that is written"},
	{"log.format", "log-format", choice("json", "console"), 0, "one JSON object a line, or text for people"},
	{"log.slow_query", "log-slow-query", duration(), 0, "time from which a query has a line with its stages, at most two lines a second; 0 is none"},

	{"hash.seed", "hash-seed", seed(), 0, "XXH3-64 seed of the canonical block hash; random takes another one at each start, for servers whose hashes no other program compares"},

	{"stream.stale_after", "stale-after", duration(), int64(time.Millisecond), "silence after which a source is stale"},
	{"stream.queue", "queue", count(), 1, "batches a source may have waiting for the index before it is not read"},
	{"stream.queue_bytes_total", "queue-bytes-total", size(), 1, "bytes waiting batches may take over all sources, half of them for replays; at most a quarter of the memory that is available; no source takes what others need"},
	{"stream.on_unrecoverable_gap", "on-unrecoverable-gap", choice(keep, drop), 0, "what happens to a source's blocks after events that are lost for good"},
	{"stream.copies", "copies", choice(Count, Set), 0, "whether a block leaves with its last copy or at the first removal"},

	{"index.ttl", "index-ttl", duration(), 0, "time a block stays after its last announcement, for publishers that announce no removals; 0 is for ever"},
	{"index.max_bytes", "index-max-bytes", sizeOrAuto(), AutoSize, "bytes one index may take before new blocks are refused; auto is half of the memory that is available, 0 no bound"},
	{"index.max_bytes_total", "index-max-bytes-total", sizeOrAuto(), AutoSize, "bytes all indexes may take before new blocks are refused; auto is half of the memory that is available: the cgroup's limit, or the memory of the machine where there is none; 0 no bound"},
	{"index.ghost_bytes", "index-ghost-bytes", size(), 0, "bytes for blocks that no instance holds any more, and that a pool or a lower tier may still name; 0 keeps none"},
	{"index.local_hashes", "index-local-hashes", truth(), 0, "keep what GET /dump and so peers need: 8 bytes a block and a table entry under adapters and salts"},

	{"pool.completeness", "pool-completeness", choice(All, Any), 0, "whether a block of a pool counts with all objects such blocks consist of, or with any"},
	{"pool.max_bytes", "pool-max-bytes", size(), 1 << 20, "bytes for the objects of one pool before new ones are refused"},

	{"expected.max_bytes", "expected-max-bytes", size(), 1 << 20, "bytes for what routers report by POST /routed, all tenants together; beyond it the oldest report of the tenant with the most bytes leaves. Raise it if conductor_expected_bytes stays close to it"},

	{"feedback.max_error", "feedback-max-error", count(), 0, "percent of the tokens of reports to /feedback that may be wrong before an instance starts over and has a finding; 0 is no bound"},

	{"doctor.silent_after", "doctor-silent-after", duration(), int64(time.Second), "silence of a source that is asked for after which that is a finding"},

	{"snapshot.dir", "snapshot-dir", text(), 0, "directory of snapshots, which the next start loads; empty keeps none"},
	{"snapshot.interval", "snapshot-interval", duration(), 0, "pause between snapshots; 0 writes one at the end alone"},
	{"snapshot.keep", "snapshot-keep", count(), 1, "snapshots that stay"},
	{"snapshot.key_file", "snapshot-key-file", text(), 0, "file of a 32-byte key that seals salts in snapshots; without it sources and contexts with a salt are left out"},

	{"ready.min_sources", "ready-min-sources", count(), 0, "sources that must be synced before /ready says so, configured ones or not"},

	{"journal.dir", "journal-dir", text(), 0, "directory of the record of raw frames for conductor replay, which holds users' tokens; empty is no record"},
	{"journal.max_bytes", "journal-max-bytes", size(), 8 << 20, "bytes the record may take before its oldest part goes"},
	{"journal.key_file", "journal-key-file", text(), 0, "file of a 32-byte key that seals the record; empty leaves it plain"},
	{"journal.ring_bytes", "journal-ring-bytes", size(), 0, "bytes of the newest part of the record that stay in memory for each source, for /admin/events, tokens included; 0 keeps none"},

	{"metrics.per_source", "metrics-per-source", choice(Auto, Always, Never), 0, "whether /metrics has series of single sources; auto up to 500 sources, beyond them for those with a finding or not synced"},
	{"tracing.endpoint", "tracing-endpoint", urlOrNone(), 0, "URL of a collector that takes traces as OTLP over HTTP, such as http://collector:4318; empty makes none"},
	{"tracing.sample", "tracing-sample", ratio(), 0, "part of the queries that are traced, 0 to 1; for queries with a traceparent the caller decides"},
	{"tracing.headers_file", "tracing-headers-file", text(), 0, "file of headers for the collector, as lines of name: value"},
	{"tracing.cacert", "tracing-cacert", text(), 0, "file of the authorities that sign the collector's certificate; empty is those of the system"},

	{"dynamo.peers", "peers", urls(), 0, "base URLs of indexers of the Dynamo dialect to recover from at the start, comma-separated, asked in this order"},
	{"dynamo.min_initial_workers", "min-initial-workers", count(), 0, "instances there must be before the Dynamo dialect answers (also " + envMinWorkers + ")"},
	{"dynamo.compare_interval", "compare-interval", duration(), 0, "pause between comparisons of what this server and its peers hold; 0 is none"},
	{"dynamo.access_log", "access-log", text(), 0, "file of one JSON line for each request of the Dynamo dialect; empty is none"},
	{"dynamo.trace_id_header", "trace-id-header", header(), 0, "request header that is copied into the access log"},
	{"dynamo.access_log_local_time", "access-log-local-time", truth(), 0, "local time in the access log instead of UTC"},
	{"dynamo.test_endpoints", "test-endpoints", truth(), 0, "let clients of the Dynamo dialect pause and resume subscriptions, for tests (also " + envTestEndpoints + ")"},

	{"sglang.model", "sglang-model", text(), 0, "model of the router that calls kv_indexer.v1.KVIndexer; empty answers for the engines of all models"},

	{"limits.max_body", "max-body", size(), 1, "bytes of one request body over HTTP, or message over gRPC"},
	{"limits.max_tokens", "max-tokens", count(), 1, "token ids or hashes in one query"},
	{"limits.max_token_id", "max-token-id", count(), 0, "largest token id of queries and events, the model's vocabulary less one; others are refused; 0 is no bound"},
	{"limits.max_queries", "max-queries", count(), 0, "queries that are worked on at once, over all listeners; 0 is four for each processor"},
	{"limits.query_wait", "query-wait", duration(), 0, "time a query beyond those waits before it is refused with 503"},
	{"limits.max_sources", "max-sources", count(), 1, "subscriptions, configured and registered together"},
	{"limits.max_tenant_sources", "max-tenant-sources", count(), 0, "subscriptions that clients may register for one tenant; 0 is no bound"},
	{"limits.max_payload", "max-payload", size(), 1, "bytes of one message from an engine; a larger batch is left out, and its source is partial"},
	{"limits.read_timeout", "read-timeout", duration(), int64(time.Millisecond), "time an HTTP request may take to arrive"},
	{"limits.idle_timeout", "idle-timeout", duration(), int64(time.Millisecond), "time a kept-alive HTTP connection may wait for its next request, and a client may take for 64 KB of its answer"},
	{"limits.memory", "limit-memory", sizeOrAuto(), AutoSize, "bytes that request bodies and answers in flight may take, more is 503; auto is an eighth of the memory that is available, at most 512MiB; 0 is no bound"},
	{"limits.max_contexts", "max-contexts", count(), 0, "adapters and salts of one tenant, model and block size, whose names may have 256 bytes each on average; 0 is no bound"},
	{"limits.max_connections", "max-connections", count(), 0, "open connections of all listeners; beyond them the oldest without an admitted request is closed for a new one, and if there is none, the new one is; 0 is no bound"},
	{"limits.connections_per_address", "connections-per-address", countOrAuto(), 0, "open connections of one address, likewise; raise it for a proxy or an ingress, whose clients have one address together; auto is a quarter of max_connections, 0 no bound"},
	{"limits.client_requests", "client-requests", count(), 0, "requests of one client a second, more is 429; 0 is no bound"},
	{"limits.client_bytes", "client-bytes", size(), 0, "bytes of request bodies of one client a second, more is 429; 0 is no bound"},
	{"limits.client_changes", "client-changes", count(), 0, "registrations and other changes of one client a minute, more is 429; 0 is no bound"},
	{"limits.max_watches", "max-watches", count(), 0, "open calls of Watch and RoutedStream over gRPC, more are RESOURCE_EXHAUSTED; 0 is no bound"},
	{"tls.cert", "tls-cert", text(), 0, "file of the listeners' certificate, in PEM form; empty serves without TLS"},
	{"tls.key", "tls-key", text(), 0, "file of the key of that certificate"},
	{"tls.client_ca", "tls-client-ca", text(), 0, "file of the authorities that sign certificates of clients; empty asks for none"},
	{"tls.require_client_cert", "tls-require-client-cert", truth(), 0, "refuse connections without a client certificate"},
	{"auth.file", "auth-file", text(), 0, "file of tokens and certificates with their roles and tenants; empty is none"},
	{"auth.anonymous", "auth-anonymous", roles(), 0, "roles of clients without credentials: query, register, metrics, peer, admin, none; auto is query and register, or none with an auth.file"},
	{"auth.loopback", "auth-loopback", roles(), 0, "further roles of such clients on the same machine; auto is admin, or none with an auth.file"},
	{"peer.cacert", "peer-cacert", text(), 0, "file of the authorities that sign certificates of peers; empty is those of the system"},
	{"peer.cert", "peer-cert", text(), 0, "file of the certificate shown to peers"},
	{"peer.key", "peer-key", text(), 0, "file of the key of that certificate"},
	{"peer.token_file", "peer-token-file", text(), 0, "file of the token sent to peers"},
	{"privacy.salted_only", "salted-only", truth(), 0, "match nothing for queries without a cache salt: unsalted blocks tell which prompts others asked"},
	{"discovery.token_file", "discovery-token-file", text(), 0, "file with the bearer token for engines of sources with discover that want one; clients' engines get none"},
	{"discovery.sources_dir", "sources-dir", text(), 0, "folder of YAML files with sources, followed as files come, change and go; empty watches none"},
	{"store.url", "store", storeURL(), 0, "Valkey or Redis that the replicas of a deployment share: redis:// or rediss:// with user, host and database; empty is none"},
	{"store.addresses", "store-addresses", addresses(), 0, "further nodes of a cluster or further Sentinels, host:port"},
	{"store.master", "store-master", text(), 0, "name by which Sentinels know the store; store.url and store.addresses are Sentinels then"},
	{"store.cluster", "store-cluster", truth(), 0, "the store is a cluster"},
	{"store.name", "store-name", filled(), 0, "tells this deployment from others in one store"},
	{"store.password_file", "store-password-file", text(), 0, "file of the store's password, read for each connection; empty is that of store.url"},
	{"store.sentinel_password_file", "store-sentinel-password-file", text(), 0, "file of the password of Sentinels; empty is none"},
	{"store.cacert", "store-cacert", text(), 0, "file of the authorities that sign the certificate of a store at rediss://; empty is those of the system"},
	{"store.cert", "store-cert", text(), 0, "file of the certificate shown to the store"},
	{"store.key", "store-key", text(), 0, "file of the key of that certificate"},
	{"store.advertise", "store-advertise", urlOrNone(), 0, "base URL where other replicas reach this server; empty is the host's name and the port of the first listener over HTTP"},
	{"store.shelf_interval", "store-shelf-interval", duration(), 0, "age from which the snapshot of a deployment in the store is written again; 0 writes none"},
	{"store.shelf_bytes", "store-shelf-bytes", size(), 1, "bytes of the snapshots of all deployments in the store; the oldest go first"},
	{"store.weight", "store-weight", count(), 1, "share of the work that this replica takes, against the weights of others"},
	{"cluster.mode", "cluster-mode", choice(Replicas, Shards), 0, "replicas: every replica of the store follows every source; shards: each follows those of its share of the models, and sends other queries on"},
	{"cluster.owners", "cluster-owners", count(), 1, "replicas that serve each shard, a tenant's model, in mode shards; busy ones get more"},
	{"reload.watch", "reload-watch", truth(), 0, "read the settings file again when it changes, as SIGHUP and POST /admin/reload do"},
	{"register.allow", "register-allow", rules(), 0, "endpoints that clients may register: default, tcp://network:ports, ipc:///path/, bind:tcp://*:ports"},
	{"ui.enabled", "ui", truth(), 0, "serve the operators' page at /ui, and its stream at /admin/live"},
	{"ui.recent_queries", "ui-recent-queries", truth(), 0, "keep the token ids of some queries in memory while a page looks, at most 64 queries, 1 MiB and five minutes, for /admin/explain"},
	{"shutdown.drain", "shutdown-drain", duration(), 0, "time the server goes on answering after SIGTERM, with /ready at 503; 0 is none, and a second signal ends it"},
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
