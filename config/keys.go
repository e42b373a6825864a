package config

import (
	"reflect"
	"strings"
	"time"
)

// A key is one scalar setting.
type key struct {
	path  string            // section.name, in files
	flag  string            // --name, on the command line
	kind  kind              // how its value is written
	min   int64             // least legal value of a number, in its own unit (ns, bytes); 0 for text
	help  string            // meaning and unit, one line
	field func(*Config) any // pointer to where the value lives
}

// env is the environment variable that sets the key.
func (k key) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.path, ".", "_"))
}

// value reads the key from a config.
func (k key) value(c *Config) any { return reflect.ValueOf(k.field(c)).Elem().Interface() }

// show renders the key's value in a config.
func (k key) show(c *Config) string { return k.kind.show(k.value(c)) }

// keys lists every scalar setting, in the order in which they are printed.
var keys = []key{
	{"log.level", "log-level", choice("debug", "info", "warn", "error"), 0,
		"least severe line that is written", func(c *Config) any { return &c.Log.Level }},
	{"log.format", "log-format", choice("json", "console"), 0,
		"one JSON object a line, or text for people", func(c *Config) any { return &c.Log.Format }},

	{"hash.seed", "hash-seed", seed(), 0,
		"XXH3-64 seed of the canonical block hash", func(c *Config) any { return &c.Hash.Seed }},
	{"hash.memo_bytes", "hash-memo-bytes", size(), 0,
		"bytes for digests of hash profiles that are kept to be found again, at least 1MiB; 0 keeps none", func(c *Config) any { return &c.Hash.MemoBytes }},

	{"stream.stale_after", "stale-after", duration(), int64(time.Millisecond),
		"silence after which a source is stale", func(c *Config) any { return &c.Stream.StaleAfter }},
	{"stream.heartbeat", "heartbeat", duration(), 0,
		"silence after which a publisher is asked for a sign of life, 0 for never", func(c *Config) any { return &c.Stream.Heartbeat }},
	{"stream.replay_timeout", "replay-timeout", duration(), int64(time.Millisecond),
		"silence after which a replay request is repeated or given up", func(c *Config) any { return &c.Stream.ReplayTimeout }},
	{"stream.replay_concurrency", "replay-concurrency", count(), 1,
		"replays in flight over all sources", func(c *Config) any { return &c.Stream.ReplayConcurrency }},
	{"stream.queue", "queue", count(), 1,
		"batches a source may have waiting for the index before it is not read", func(c *Config) any { return &c.Stream.Queue }},
	{"stream.queue_bytes", "queue-bytes", size(), 1,
		"bytes those batches may hold before it is not read; at least limits.max_payload", func(c *Config) any { return &c.Stream.QueueBytes }},
	{"stream.queue_bytes_total", "queue-bytes-total", size(), 1,
		"bytes waiting batches may take over all sources, half of them for replays; at most a quarter of the cgroup's memory limit; no source takes what others need", func(c *Config) any { return &c.Stream.QueueBytesTotal }},
	{"stream.on_unrecoverable_gap", "on-unrecoverable-gap", choice(Keep, Drop), 0,
		"what happens to a source's blocks after events that are lost for good", func(c *Config) any { return &c.Stream.OnUnrecoverableGap }},
	{"stream.copies", "copies", choice(Count, Set), 0,
		"whether a block leaves with its last copy or at the first removal", func(c *Config) any { return &c.Stream.Copies }},

	{"index.ttl", "index-ttl", duration(), 0,
		"time a block stays after its last announcement, for publishers that announce no removals; 0 is for ever", func(c *Config) any { return &c.Index.TTL }},
	{"index.max_bytes", "index-max-bytes", size(), 0,
		"bytes one index may take before new blocks are refused; 0 is no bound", func(c *Config) any { return &c.Index.MaxBytes }},

	{"index.recall_bytes", "index-recall-bytes", size(), 0,
		"bytes to remember what engine hashes meant whose blocks nobody holds any more; 0 is not to", func(c *Config) any { return &c.Index.RecallBytes }},

	{"pool.completeness", "pool-completeness", choice(All, Any), 0,
		"whether a block of a pool counts with all objects such blocks consist of, or with any", func(c *Config) any { return &c.Pool.Completeness }},
	{"pool.max_bytes", "pool-max-bytes", size(), 1 << 20,
		"bytes for the objects of one pool before new ones are refused", func(c *Config) any { return &c.Pool.MaxBytes }},

	{"doctor.silent_after", "doctor-silent-after", duration(), int64(time.Second),
		"silence of a source that is asked for after which that is a finding", func(c *Config) any { return &c.Doctor.SilentAfter }},

	{"journal.dir", "journal-dir", text(), 0,
		"directory of the record of raw frames for conductor replay, which holds users' tokens; empty is no record", func(c *Config) any { return &c.Journal.Dir }},
	{"journal.max_bytes", "journal-max-bytes", size(), 8 << 20,
		"bytes the record may take before its oldest part goes", func(c *Config) any { return &c.Journal.MaxBytes }},

	{"memory.limit", "memory-limit", choice(Auto, Off), 0,
		"memory limit of the Go runtime: what the cgroup leaves to it, or none; GOMEMLIMIT wins", func(c *Config) any { return &c.Memory.Limit }},

	{"dynamo.peers", "peers", urls(), 0,
		"base URLs of indexers of the Dynamo dialect to recover from at the start, comma-separated, asked in this order", func(c *Config) any { return &c.Dynamo.Peers }},
	{"dynamo.min_initial_workers", "min-initial-workers", count(), 0,
		"instances there must be before the Dynamo dialect answers (also " + envMinWorkers + ")", func(c *Config) any { return &c.Dynamo.MinInitialWorkers }},
	{"dynamo.recovered_ttl", "recovered-ttl", duration(), 0,
		"time blocks recovered from a peer stay for workers that nobody registers; 0 is for ever", func(c *Config) any { return &c.Dynamo.RecoveredTTL }},
	{"dynamo.dump", "dump", truth(), 0,
		"keep what GET /dump and so peers need: 8 bytes a block and a table entry under adapters and salts", func(c *Config) any { return &c.Dynamo.Dump }},
	{"dynamo.access_log", "access-log", text(), 0,
		"file of one JSON line for each request of the Dynamo dialect; empty is none", func(c *Config) any { return &c.Dynamo.AccessLog }},
	{"dynamo.trace_id_header", "trace-id-header", header(), 0,
		"request header that is copied into the access log", func(c *Config) any { return &c.Dynamo.TraceIDHeader }},
	{"dynamo.access_log_local_time", "access-log-local-time", truth(), 0,
		"local time in the access log instead of UTC", func(c *Config) any { return &c.Dynamo.AccessLogLocalTime }},
	{"dynamo.test_endpoints", "test-endpoints", truth(), 0,
		"let clients of the Dynamo dialect pause and resume subscriptions, for tests (also " + envTestEndpoints + ")", func(c *Config) any { return &c.Dynamo.TestEndpoints }},

	{"limits.max_body", "max-body", size(), 1,
		"bytes of one HTTP request body", func(c *Config) any { return &c.Limits.MaxBody }},
	{"limits.max_tokens", "max-tokens", count(), 1,
		"token ids or hashes in one query", func(c *Config) any { return &c.Limits.MaxTokens }},
	{"limits.max_queries", "max-queries", count(), 0,
		"queries that are worked on at once, over all listeners; 0 is four for each processor", func(c *Config) any { return &c.Limits.MaxQueries }},
	{"limits.query_wait", "query-wait", duration(), 0,
		"time a query beyond those waits before it is refused with 503", func(c *Config) any { return &c.Limits.QueryWait }},
	{"limits.max_sources", "max-sources", count(), 1,
		"subscriptions, configured and registered together", func(c *Config) any { return &c.Limits.MaxSources }},
	{"limits.max_orphans", "max-orphans", count(), 0,
		"blocks of one source that may wait for their parent", func(c *Config) any { return &c.Limits.MaxOrphans }},
	{"limits.max_payload", "max-payload", size(), 1,
		"bytes of one message from an engine", func(c *Config) any { return &c.Limits.MaxPayload }},
	{"limits.read_timeout", "read-timeout", duration(), int64(time.Millisecond),
		"time an HTTP request may take to arrive", func(c *Config) any { return &c.Limits.ReadTimeout }},
	{"limits.idle_timeout", "idle-timeout", duration(), int64(time.Millisecond),
		"time a kept-alive HTTP connection may wait for its next request, and a client may take for 64 KB of its answer", func(c *Config) any { return &c.Limits.IdleTimeout }},
	{"limits.shutdown_timeout", "shutdown-timeout", duration(), int64(time.Millisecond),
		"time requests in flight may take after SIGTERM", func(c *Config) any { return &c.Limits.ShutdownTimeout }},
}

// findKey returns the row of a path.
func findKey(path string) (key, bool) {
	for _, k := range keys {
		if k.path == path {
			return k, true
		}
	}
	return key{}, false
}

// sectionKeys returns the names under a section, in table order; nil when there
// is no such section.
func sectionKeys(section string) (names []string) {
	for _, k := range keys {
		if name, ok := strings.CutPrefix(k.path, section+"."); ok {
			names = append(names, name)
		}
	}
	return names
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

const sourceTTL = "ttl"

// A sourceField is one key of an entry of sources or kvevent_instance.
type sourceField struct {
	name     string
	kind     kind
	nullable bool // null means not given, as in the body of POST /register
	field    func(*Source) any
}

var sourceTypes = choice("vLLM", "SGLang", "Mooncake", "Standard")

var sourceFields = []sourceField{
	{"endpoint", text(), false, func(s *Source) any { return &s.Endpoint }},
	{"replay_endpoint", text(), true, func(s *Source) any { return &s.ReplayEndpoint }},
	{"type", sourceTypes, false, func(s *Source) any { return &s.Type }},
	{"modelname", text(), false, func(s *Source) any { return &s.ModelName }},
	{"lora_name", text(), true, func(s *Source) any { return &s.LoraName }},
	{"tenant_id", text(), true, func(s *Source) any { return &s.TenantID }},
	{"instance_id", text(), false, func(s *Source) any { return &s.InstanceID }},
	{"block_size", count(), false, func(s *Source) any { return &s.BlockSize }},
	{"dp_rank", count(), false, func(s *Source) any { return &s.DPRank }},
	{"additionalsalt", text(), true, func(s *Source) any { return &s.AdditionalSalt }},
	{sourceTTL, duration(), true, func(s *Source) any { return &s.TTL }}, // or a map of them: Source.MediaTTL
	{"serves", texts(), true, func(s *Source) any { return &s.Serves }},
	{"copies", choice(Count, Set), true, func(s *Source) any { return &s.Copies }},
	{"owned", choice(Count, Drop), true, func(s *Source) any { return &s.Owned }},
	{"clear", choice(All, Device), true, func(s *Source) any { return &s.Clear }},
	{"may_announce", texts(), true, func(s *Source) any { return &s.MayAnnounce }},
}
