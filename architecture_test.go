//go:build !race

// Nothing here runs side by side, and the race detector makes it five times slower.

package kvconductor_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "example.com/conductor"

// A room is one row of the table in ARCHITECTURE.md. It holds for a directory
// and everything below it that has no row of its own.
type room struct {
	dir      string
	rooms    []string // packages it may import next to its own; "x/..." is x and all below it
	modules  []string // modules from outside it may import; nil is none
	anything bool     // any module
	not      []string // packages of the standard library it must not know
	noClock  bool     // time is an argument: nothing here asks what time it is
	tests    bool     // only tests import it
}

var (
	httpOrJSON = []string{"encoding/json", "net/http"}
	logging    = []string{"log", "log/slog"}
	gin        = "github.com/gin-gonic/gin"
	msgpack    = "github.com/vmihailenco/msgpack/v5"
	prometheus = "github.com/prometheus/client_golang"
	promModel  = "github.com/prometheus/client_model"
	promText   = "github.com/prometheus/common"
	zerolog    = "github.com/rs/zerolog"
	zmq4       = "github.com/go-zeromq/zmq4"
	xxh3       = "github.com/zeebo/xxh3"
	compress   = "github.com/klauspost/compress"
	ristretto  = "github.com/dgraph-io/ristretto/v2"
	grpc       = "google.golang.org/grpc"
	protobuf   = "google.golang.org/protobuf"
	redis      = "github.com/redis/go-redis/v9"
)

var table = []room{
	{dir: "."},
	// What compares routes and answers with openapi.yaml.
	{dir: "internal/apitest", tests: true, rooms: []string{".", "internal/must"},
		modules: []string{"github.com/getkin/kin-openapi", gin}},
	// The allocations of a function in a test.
	{dir: "internal/alloctest", tests: true},
	// Processes whose wall clock a test moves.
	{dir: "internal/clocktest", tests: true, rooms: []string{"internal/must"}},
	// Addresses for servers that tests, the demo and the benches start.
	{dir: "internal/freeport"},
	// What ends a test at an error.
	{dir: "internal/must", tests: true},
	{dir: "tiers", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},

	// Places, bytes and rates that clients share.
	{
		dir: "bounds", modules: []string{"golang.org/x/time/rate"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}),
		noClock: true,
	},
	// Keys that seal files: the journal and snapshots read the same form.
	{dir: "keyfile", not: slices.Concat(httpOrJSON, logging, []string{"net"}), noClock: true},

	{dir: "events", rooms: []string{"tiers"}, not: slices.Concat(httpOrJSON, logging)},
	{dir: "events/wire", rooms: []string{"tiers", "events"}, modules: []string{msgpack, xxh3},
		not: slices.Concat(httpOrJSON, logging, []string{"net"}), noClock: true},
	{dir: "events/payload", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	{dir: "events/stream", rooms: []string{"bounds", "tiers", "events", "events/wire", "events/payload"}, modules: []string{xxh3},
		not: slices.Concat(httpOrJSON, logging, []string{"net"})},
	// The network of the tests: it stays below the stream, which uses it.
	{dir: "events/stream/streamtest", tests: true, rooms: []string{"events", "events/payload"}, modules: []string{msgpack},
		not: slices.Concat(httpOrJSON, logging, []string{"net"}), noClock: true},
	{dir: "events/tape", rooms: []string{"events/payload", "keyfile"}, not: slices.Concat(httpOrJSON, logging, []string{"net"})},
	{dir: "events/relay", rooms: []string{"tiers", "events", "events/tape", "events/payload", "events/stream",
		"events/wire", "events/zmq"},
		modules: []string{msgpack}, not: slices.Concat(httpOrJSON, logging)},
	// Rules for endpoints, as values: the configuration checks them, sockets obey them.
	{dir: "events/reach", not: slices.Concat(httpOrJSON, logging, []string{"os"}), noClock: true},
	{dir: "events/objectkey", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	{dir: "events/zmq", rooms: []string{"tiers", "events", "events/payload", "events/reach"}, modules: []string{zmq4},
		not: slices.Concat(httpOrJSON, logging)},

	{dir: "index", modules: []string{xxh3}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	{dir: "index/hash", modules: []string{xxh3, ristretto}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},

	{dir: "conductor", rooms: []string{"events/...", "index/...", "spelling", "tiers"},
		modules: []string{prometheus, promModel, zerolog, xxh3, ristretto},
		not:     []string{"flag", "net/http", "os"}},
	// What the tests of the application and of dialects run their scripts with.
	{dir: "conductor/scripttest", tests: true},
	// Names of contexts, as values: every room of the application compares them, none may add to them.
	{dir: "conductor/scope", rooms: []string{"events"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Which parts of a table have changed, for those who keep it.
	{dir: "conductor/kept", rooms: []string{"events/tape"}, not: slices.Concat(httpOrJSON, logging, []string{"net",
		"os"}), noClock: true},
	// Moments as numbers, on a clock that nobody sets.
	{dir: "conductor/steady", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"})},
	// Bad input that names its field.
	{dir: "conductor/invalid", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Explanations, as values: the application fills them, dialects show them.
	{dir: "conductor/inspect", rooms: []string{"conductor/doctor", "conductor/registration", "events/stream", "tiers"},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// What a source is, as a value: its fields, their faults and their forms.
	{dir: "conductor/registration", rooms: []string{"conductor/doctor", "conductor/invalid", "conductor/pool", "conductor/scope",
		"events/reach", "events/tape", "events/zmq", "index", "index/hash", "redact", "tiers"},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Deployments with their indexes, and as much of sources as queries need.
	{dir: "conductor/catalog", rooms: []string{"conductor/doctor", "conductor/expect", "conductor/kept", "conductor/lifetime",
		"conductor/names", "conductor/normalize", "conductor/prefixes", "conductor/registration", "conductor/scope", "conductor/steady",
		"events", "events/stream", "index", "index/hash", "tiers"}, modules: []string{zerolog}, not: append([]string{"os"}, httpOrJSON...)},
	// What operators see of sources, as values, and the metrics that follow.
	{dir: "conductor/status", rooms: []string{"conductor/catalog", "conductor/doctor", "conductor/match", "conductor/registration",
		"conductor/scope", "events", "events/stream", "tiers"}, modules: []string{prometheus},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// What a snapshot says of sources, deployments and holders, as values.
	{dir: "conductor/image", rooms: []string{"conductor/names", "conductor/normalize", "conductor/registration", "conductor/scope",
		"events", "events/stream", "events/tape"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Streams in, changes of indexes out: sources, what they hold, and copies of it.
	{dir: "conductor/ingest", rooms: []string{"conductor/catalog", "conductor/doctor", "conductor/expect", "conductor/image",
		"conductor/inspect", "conductor/invalid", "conductor/kept", "conductor/lmcache", "conductor/names", "conductor/normalize",
		"conductor/pool", "conductor/registration", "conductor/scope", "conductor/statelog", "conductor/status", "conductor/steady",
		"events/...", "index/...", "tiers"},
		modules: []string{zerolog, xxh3}, not: append([]string{"flag", "os"}, httpOrJSON...)},
	// Sources, indexes and queries in, numbers and series out.
	{dir: "conductor/meter", rooms: []string{"conductor/catalog", "conductor/expect", "conductor/explain", "conductor/ingest",
		"conductor/lmcache", "conductor/match", "conductor/registration", "conductor/scope", "conductor/status", "events/payload",
		"events/tape", "index", "index/hash"}, modules: []string{prometheus},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Reports of what instances found in, how right answers were out.
	{dir: "conductor/feedback", rooms: []string{"conductor/catalog", "conductor/doctor", "conductor/invalid", "conductor/registration",
		"conductor/status", "tiers"}, modules: []string{prometheus, zerolog},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Records of a tape in, the Conductor that wrote them out.
	{dir: "conductor/replay", rooms: []string{"conductor", "events", "events/objectkey", "events/stream", "events/tape", "events/wire",
		"index"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Questions of people in, explanations out.
	{dir: "conductor/explain", rooms: []string{"conductor/catalog", "conductor/doctor", "conductor/ingest", "conductor/inspect",
		"conductor/lifetime", "conductor/lmcache", "conductor/match", "conductor/names", "conductor/prefixes", "conductor/registration",
		"conductor/scope", "events", "events/stream", "events/zmq", "index", "index/hash", "tiers"},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Queries in, answers out.
	{dir: "conductor/answers", rooms: []string{"conductor/steady"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"})},
	{dir: "conductor/match", rooms: []string{"conductor/answers", "conductor/catalog", "conductor/expect",
		"conductor/invalid", "conductor/lifetime",
		"conductor/names", "conductor/prefixes", "conductor/registration", "conductor/scope", "conductor/stage", "events/stream", "index",
		"index/hash", "tiers"}, modules: []string{prometheus, promModel}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}),
		noClock: true},
	// Observations in, findings out: pure, so that no check changes what it looks at.
	// Changes of state in, lines of the log out.
	{dir: "conductor/statelog", rooms: []string{"events/stream"}, modules: []string{zerolog},
		not: slices.Concat(httpOrJSON, []string{"net", "os"})},
	{dir: "conductor/doctor", rooms: []string{"conductor/scope", "events", "index/hash", "tiers"},
		not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// Objects of a store in, blocks that appear and vanish out: pure, the caller moves them in an index.
	{dir: "conductor/lifetime", rooms: []string{"conductor/steady"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}),
		noClock: true},
	{dir: "conductor/prefixes", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	{dir: "conductor/pool", rooms: []string{"conductor/doctor", "conductor/scope", "events", "events/objectkey", "tiers"},
		modules: []string{xxh3}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// What instances of LMCache report in, batches of events out: the receivers apply them.
	{dir: "conductor/lmcache", modules: []string{msgpack, xxh3, "github.com/zeebo/blake3"},
		not: slices.Concat(logging, []string{"net", "net/http", "os"}), noClock: true},
	// Batches in, changes out: pure, so that no rule of a publisher depends on what an index holds.
	{dir: "conductor/normalize", rooms: []string{"conductor/doctor", "conductor/scope", "events", "index/hash", "tiers"},
		modules: []string{xxh3}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os", "sync"}), noClock: true},
	{dir: "conductor/prompt", modules: []string{"golang.org/x/sys"}, not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}),
		noClock: true},
	{dir: "conductor/body", rooms: []string{"conductor/prompt"}, not: append([]string{"net", "os"}, logging...), noClock: true},
	// Engines' HTTP servers in, registrations out.
	{dir: "conductor/discovery",
		rooms:   []string{"conductor", "conductor/kept", "conductor/normalize", "events", "events/tape", "events/reach", "events/stream"},
		modules: []string{prometheus, zerolog}, not: []string{"flag"}},
	// Values and errors of handlers in, statuses and bodies out.
	{dir: "conductor/reply", rooms: []string{"conductor", "conductor/body", "conductor/server"}, modules: []string{gin, msgpack},
		not: slices.Concat(logging, []string{"flag", "net", "os"}), noClock: true},
	// The Conductor dialect: what routers and engines use.
	{dir: "conductor/http", rooms: []string{"bounds", "conductor", "conductor/forward", "conductor/access",
		"conductor/body", "conductor/discovery",
		"conductor/membership",
		"conductor/lmcache", "conductor/prompt", "conductor/reply", "conductor/scope", "conductor/server", "conductor/stage", "events"},
		modules: []string{gin, msgpack, prometheus}, not: slices.Concat(logging, []string{"flag", "os"})},
	// What every listener has, and /admin: what operators and other replicas use.
	{dir: "conductor/admin", rooms: []string{"conductor", "conductor/access", "conductor/body", "conductor/cluster",
		"conductor/discovery", "conductor/docs", "conductor/doctor", "conductor/http", "conductor/prefixes", "conductor/reply",
		"conductor/scope", "conductor/server", "conductor/statelog", "conductor/ui", "conductor/watch", "events/tape", "history",
		"history/peer"},
		modules: []string{gin, prometheus, promModel, promText, zerolog}, not: []string{"flag", "os"}},

	// The files of the operator's page: they hold no data and know nothing of the server.
	{dir: "conductor/ui", not: slices.Concat(logging, []string{"encoding/json", "net", "os"})},

	// The documents as pages, in the style of the operator's page. It knows nothing of the server either.
	{dir: "conductor/docs", rooms: []string{"conductor/ui"}, modules: []string{"github.com/yuin/goldmark"},
		not: slices.Concat(logging, []string{"encoding/json", "net", "os"})},

	// Who may ask what: the middleware of all routers, and the files that it reads.
	{dir: "conductor/access", rooms: []string{"bounds", "conductor", "conductor/forward", "conductor/body", "conductor/scope",
		"conductor/server",
		"conductor/stage", "yamlfile"}, modules: []string{gin, prometheus, zerolog, "go.yaml.in/yaml/v3"},
		not: []string{"flag"}},

	// How long requests spend where, as values: the query path enters stages, the room below reads them.
	{dir: "conductor/stage", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// The only room that knows OpenTelemetry.
	{dir: "conductor/telemetry", rooms: []string{"bounds", "conductor/server", "conductor/stage"},
		modules: []string{gin, grpc, prometheus, zerolog, "go.opentelemetry.io/otel"},
		not:     []string{"flag", "os"}},

	// Requests that other replicas answer: what dialects see of it.
	{dir: "conductor/forward", rooms: []string{"conductor"}, modules: []string{gin},
		not:     slices.Concat(httpOrJSON, logging, []string{"net", "os"}),
		noClock: true},

	{dir: "conductor/server", rooms: []string{"events/stream", "bounds", "conductor", "conductor/forward",
		"conductor/body", "conductor/stage"},
		modules: []string{gin, prometheus, zerolog, compress}, not: []string{"flag", "os"}},

	// What dialects share of gRPC, and the service of our own. The generated code of api/ knows nothing of us.
	{dir: "api", modules: []string{grpc, protobuf}},
	{dir: "conductor/rpc", rooms: []string{"bounds", "api/kvconductor/v1", "conductor", "conductor/forward", "conductor/access",
		"conductor/body",
		"conductor/server", "conductor/stage", "conductor/telemetry", "tiers"},
		modules: []string{gin, grpc, protobuf, "google.golang.org/genproto/googleapis/rpc", prometheus, zerolog},
		not:     []string{"flag", "os"}},
	// Which shards this replica serves, and queries for those of others sent on.
	{dir: "conductor/cluster",
		rooms: []string{"conductor", "conductor/forward", "conductor/access", "conductor/body", "conductor/cluster/placement",
			"conductor/membership", "conductor/scope", "conductor/server", "events/stream"}, modules: []string{gin, prometheus, zerolog},
		not: []string{"flag", "os"}},
	// Which replicas own which shards: pure, so that every replica computes the same.
	{dir: "conductor/cluster/placement", not: slices.Concat(httpOrJSON, logging, []string{"net", "os", "math/rand", "math/rand/v2"}),
		noClock: true},
	// What operators look at: it knows no route, and what a snapshot or a replica says is a value that it is given.
	{dir: "conductor/watch", rooms: []string{"conductor", "conductor/body", "conductor/doctor", "conductor/scope", "events",
		"events/stream", "tiers"},
		modules: []string{prometheus}, not: []string{"flag", "net", "net/http", "os"}},

	// Valkey or Redis: connection and names of keys. Rooms that share something through it write their own scripts.
	{dir: "store", modules: []string{redis}, not: slices.Concat(httpOrJSON, logging)},
	// What starts a store in tests.
	{dir: "internal/redistest", tests: true, rooms: []string{"internal/freeport", "internal/must"}, modules: []string{redis}},
	// Who shares the store, and whether it is there.
	{dir: "conductor/membership", rooms: []string{"conductor", "conductor/discovery", "conductor/kept", "events/tape", "store"},
		modules: []string{redis, prometheus, zerolog}, not: []string{"flag", "net/http", "os"}},

	// Snapshots as bytes: written, read, sealed. A recovery asks the places below in order.
	{dir: "history", rooms: []string{"conductor", "conductor/kept", "conductor/scope", "events/tape", "index", "keyfile"},
		modules: []string{zerolog},
		not:     []string{"flag", "net/http", "os"}},
	// Places for snapshots: a directory of the server's own, its peers, the store. None knows another one.
	{dir: "history/file", rooms: []string{"conductor", "conductor/kept", "events/tape", "history"},
		modules: []string{prometheus, zerolog},
		not:     []string{"flag", "net/http"}},
	{dir: "history/peer", rooms: []string{"conductor", "conductor/doctor", "conductor/scope", "history"},
		modules: []string{prometheus, zerolog},
		not:     []string{"flag"}},
	{dir: "history/store", rooms: []string{"conductor", "conductor/membership", "conductor/scope", "history", "store"},
		modules: []string{redis, prometheus, zerolog}, not: []string{"flag", "os"}},
	// Two snapshots compared, block by block.
	{dir: "history/diff", rooms: []string{"conductor", "conductor/scope", "history", "index/hash", "tiers"}, modules: []string{zerolog},
		not: []string{"flag", "net/http", "os"}},
	// Servers with blocks, for the tests of snapshots.
	{dir: "history/historytest", tests: true, rooms: []string{"conductor", "events/stream/...", "internal/must"},
		modules: []string{zerolog}},

	{dir: "compat/dynamo", rooms: []string{"conductor", "conductor/forward", "conductor/access", "conductor/body", "conductor/prompt",
		"conductor/server",
		"history/peer", "tiers"}, modules: []string{gin, prometheus, zerolog}, not: []string{"flag", "os"}},
	{dir: "client", modules: []string{msgpack}, not: []string{"flag", "os"}},
	// The same over gRPC, apart, so that clients over HTTP do not link it.
	{dir: "client/rpc", rooms: []string{"api/kvconductor/v1", "client"}, modules: []string{grpc}, not: []string{"flag", "os"}},
	// Code to copy: it knows what authors of routers know.
	{dir: "examples/router", rooms: []string{"client"}, modules: []string{"golang.org/x/net"}},
	{dir: "compat/sglang", rooms: []string{"api/kvindexer/v1", "conductor", "conductor/access"}, modules: []string{grpc},
		not: []string{"flag", "os", "net/http"}},
	{dir: "compat/mooncake", rooms: []string{"conductor", "conductor/forward", "conductor/access", "conductor/body", "conductor/prompt",
		"conductor/server",
		"tiers"}, modules: []string{gin}, not: []string{"flag", "os"}},
	// What the tests of dialects run their scripts with.
	{dir: "compat/internal", tests: true, rooms: []string{"conductor", "conductor/scripttest", "events/...", "internal/freeport",
		"internal/must"}, modules: []string{msgpack, zmq4, zerolog}},

	// viper, and what viper itself is made of.
	// Which word was meant, for settings and for fields of requests.
	{dir: "spelling", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},
	// The sources of a file are registrations: one table has their fields, and their rules are those of every registration.
	{dir: "redact", not: slices.Concat(httpOrJSON, logging, []string{"net", "os"}), noClock: true},

	// Files that people write, with the place of each mistake: those of settings and of credentials are read by one rule.
	{dir: "yamlfile", modules: []string{"go.yaml.in/yaml/v3"}, not: append([]string{"net", "net/http", "os"}, logging...), noClock: true},

	{dir: "config", rooms: []string{"conductor/registration", "conductor/scope", "events/reach", "spelling", "yamlfile"},
		modules: []string{"github.com/spf13/viper", "github.com/spf13/pflag", "go.yaml.in/yaml/v3"}, not: []string{"net/http"}},

	// What checks the files in deploy/. It is a module of its own.
	{dir: "deploy", anything: true},
	// The plug-in for llm-d's picker is a module of its own, and so is what declares llm-d's interface.
	{dir: "integrations/llmd", rooms: []string{"client"}, modules: []string{"github.com/llm-d/llm-d-router"}},
	// The endpoint picker for Envoy is a module of its own.
	{dir: "integrations/envoy", rooms: []string{"client", "integrations/envoy/..."}, anything: true},
	// It is compared with other policies over the fleets of the lab.
	{dir: "integrations/envoy/demo", rooms: []string{"client", "integrations/envoy/pick", "lab/demo", "lab/sim"}, anything: true},
	{dir: "integrations/envoy/cmd/picker-demo", rooms: []string{"integrations/envoy/demo", "lab/demo"}, anything: true},
	// Limit, headroom and account of the memory of a process.
	{dir: "internal/memory", rooms: []string{"conductor/meter", "events/payload"}, anything: true},
	// What tests need that start programs, and that read documents.
	{dir: "internal/proctest", tests: true},
	{dir: "internal/doctest", tests: true, rooms: []string{"internal/must"}},
	// Single requests to a server.
	{dir: "internal/request"},

	{dir: "cmd/conductor", rooms: []string{".", "api/...", "client/...", "cmd/internal/cli", "compat/...", "conductor/...", "config",
		"events/...", "history/...", "index/...", "internal/memory", "keyfile", "spelling", "store", "tiers"}, anything: true},
	// What the commands of both programs share.
	{dir: "cmd/internal/cli", rooms: []string{"conductor/access", "config", "internal/request", "spelling"}, anything: true},
	{dir: "cmd/internal/clitest", tests: true, rooms: []string{"cmd/internal/cli", "config"}, anything: true},
	{dir: "cmd/conductor-lab", rooms: []string{"cmd/internal/cli", "conductor/access", "conductor/ui", "lab/..."}, anything: true},

	// What simulates, measures and compares. The fleet knows no room of the product, so that it cannot share their mistakes.
	{dir: "lab", rooms: []string{"internal/request"}, anything: true},
	// Servers in processes of their own, and fleets that work with them.
	{dir: "lab/demo", rooms: []string{"client", "examples/router", "internal/freeport", "internal/request", "lab/harness",
		"lab/sim/..."}},
	// Placements of servers, at the costs that were measured.
	{dir: "lab/sim/shards", rooms: []string{"conductor/cluster/placement"}},
	// The bench measures rooms and borrows the fleet's reading of traces.
	{dir: "lab/bench/index", rooms: []string{"lab/bench/streams", "lab/sim/workload", "lab/harness", "events/...", "index/...", "tiers"},
		anything: true},
	{dir: "lab/bench/ingest", rooms: []string{"internal/freeport", "lab/bench/streams", "lab/harness", "conductor", "events/..."},
		anything: true},
	{dir: "lab/bench/cluster", rooms: []string{"lab/bench/ingest", "lab/bench/recovery", "lab/harness", "lab/sim/...",
		"internal/freeport",
		"internal/request", "store"}, anything: true},
	{dir: "lab/bench/footprint", rooms: []string{"lab/bench/ingest", "lab/harness", "internal/request"}, anything: true},
	{dir: "lab/bench/recovery", rooms: []string{"lab/bench/ingest", "lab/harness", "internal/freeport", "events/zmq"}, anything: true},
	{dir: "lab/bench/query", rooms: []string{"api/...", "conductor", "config", "events/...", "internal/freeport", "internal/memory",
		"internal/request", "lab/harness"}, anything: true},
	{dir: "lab/soak", rooms: []string{"internal/memory", "conductor", "events/payload", "events/stream", "index/hash", "tiers"},
		anything: true},
}

// TestImportTable holds every package to its row; a package without a row
// is an undecided room.
func TestImportTable(t *testing.T) {
	packages := 0
	for _, name := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		packages++
		row, ok := rowOf(path.Dir(name))
		if !ok {
			t.Errorf("%s: its directory has no row in the table", name)
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if reason := row.forbids(imported); reason != "" {
				t.Errorf("%s: imports %q: %s", set.Position(spec.Pos()), imported, reason)
			}
		}
		if row.noClock {
			for _, call := range calls(file, "time", "Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick",
				"Sleep") {
				t.Errorf("%s: asks the clock; time is an argument here", set.Position(call.Pos()))
			}
		}
	}
	if packages < 10 {
		t.Errorf("only %d files were looked at", packages)
	}
}

// TestServerLinksNoLab holds that nothing the server is made of imports what simulates and measures.
func TestServerLinksNoLab(t *testing.T) {
	imports := map[string][]string{} // by directory, those of the repository
	for _, name := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if dir, ours := strings.CutPrefix(imported, module+"/"); ours {
				imports[path.Dir(name)] = append(imports[path.Dir(name)], dir)
			}
		}
	}
	linked := map[string]string{"cmd/conductor": ""} // by whom
	for next := []string{"cmd/conductor"}; len(next) > 0; next = next[1:] {
		for _, dir := range imports[next[0]] {
			if _, known := linked[dir]; !known {
				linked[dir] = next[0]
				next = append(next, dir)
			}
		}
	}
	for dir, by := range linked {
		if within(dir, "lab") || within(dir, "cmd/conductor-lab") {
			t.Errorf("the server links %s: %s imports it", dir, by)
		}
	}
	if len(linked) < 30 || linked["index"] == "" {
		t.Errorf("the server links %d packages only", len(linked))
	}
}

// TestImportTableForbids holds that the table refuses what it is there to refuse.
func TestImportTableForbids(t *testing.T) {
	f := func(dir, imported string, allowed bool) {
		t.Helper()
		row, ok := rowOf(dir)
		if !ok {
			t.Fatalf("%s has no row", dir)
		}
		if reason := row.forbids(imported); (reason == "") != allowed {
			t.Errorf("%s imports %s: %q", dir, imported, reason)
		}
	}
	f("tiers", "strings", true)
	f("tiers", "example.com/conductor/index", false)
	f("index/hash", "github.com/zeebo/xxh3", true)
	f("index/hash", "github.com/dgraph-io/ristretto/v2", true)
	f("index/hash", "example.com/conductor/index", false)
	f("index", "github.com/dgraph-io/ristretto/v2", false)
	f("index", "example.com/conductor/index/hash", true)
	f("index", "github.com/rs/zerolog", false)
	f("index", "encoding/json", false)
	f("events/wire", "example.com/conductor/events", true)
	f("events/wire", "example.com/conductor/events/zmq", false)
	f("events/stream", "example.com/conductor/events/wire", true)
	f("events/zmq", "example.com/conductor/events/stream", false)
	f("events/stream", "example.com/conductor/events/stream/streamtest", false)
	f("conductor", "example.com/conductor/events/stream/streamtest", false)
	f("compat/dynamo", "example.com/conductor/compat/internal/conformance", false)
	f("compat/internal", "example.com/conductor/conductor/scripttest", true)
	f("conductor", "example.com/conductor/events/tape", true)
	f("events/tape", "example.com/conductor/events/stream", false)
	f("conductor", "example.com/conductor/events/objectkey", true)
	f("events/objectkey", "example.com/conductor/events/wire", false)
	f("events", "example.com/conductor/conductor", false)
	f("conductor", "example.com/conductor/config", false)
	f("conductor", "example.com/conductor/conductor/http", true) // a cycle, which the compiler refuses
	f("conductor/http", "example.com/conductor/compat/dynamo", false)
	f("conductor/http", "example.com/conductor/conductor/admin", false)
	f("conductor/http", "example.com/conductor/conductor/watch", false)
	f("conductor/admin", "example.com/conductor/conductor/http", true)
	f("compat/dynamo", "example.com/conductor/compat/mooncake", false)
	f("compat/dynamo", "example.com/conductor/index", false)
	f("conductor/scope", "example.com/conductor/conductor", false)
	f("conductor/scope", "example.com/conductor/index", false)
	f("conductor/doctor", "example.com/conductor/index", false)
	f("conductor/pool", "example.com/conductor/index", false)
	f("conductor/normalize", "example.com/conductor/index", false)
	f("conductor/normalize", "example.com/conductor/conductor", false)
	f("conductor/doctor", "example.com/conductor/conductor", false)
	f("conductor/cluster/placement", "example.com/conductor/conductor/scope", false)
	f("conductor/cluster/placement", "math/rand/v2", false)
	f("config", "example.com/conductor/conductor", false)
	f("config", "example.com/conductor/index/hash", false)
	f("config", "github.com/spf13/viper", true)
	f("config", "github.com/spf13/viperish", false)
	f("lab/sim", "example.com/conductor/index", false)
	f("lab/sim", "example.com/conductor/examples/router", false)
	f("client", "example.com/conductor/conductor", false)
	f("client", "google.golang.org/grpc", false)
	f("client/rpc", "example.com/conductor/conductor/rpc", false)
	f("examples/router", "example.com/conductor/conductor", false)
	f("lab/bench/index", "example.com/conductor/index", true)
	f("lab/bench/index", "example.com/conductor/conductor", false)
	f("lab/sim", "example.com/conductor/lab/sim/truth", true)
	f("cmd/conductor", "example.com/conductor/index", true)
	f("cmd/conductor", "example.com/conductor/lab/sim", false)
	f("cmd/conductor-lab", "example.com/conductor/lab/demo", true)
	f("cmd/conductor-lab", "example.com/conductor/index", false)
	f("lab/sim", "example.com/conductor/conductor", false)
	f("conductor/rpc", "google.golang.org/grpc/codes", true)
	f("conductor/rpc", "example.com/conductor/compat/sglang", false)
	f("compat/sglang", "example.com/conductor/conductor/rpc", false)
	f("conductor", "google.golang.org/grpc", false)
	if row, ok := rowOf("util"); ok {
		t.Errorf("util is in room %q", row.dir)
	}
}

// rowOf returns the row of the longest directory that holds dir.
func rowOf(dir string) (best room, ok bool) {
	for _, row := range table {
		if within(dir, row.dir) && len(row.dir) >= len(best.dir) {
			best, ok = row, true
		}
	}
	return best, ok
}

// within reports whether dir is room or below it; below "." is nothing.
func within(dir, room string) bool { return dir == room || strings.HasPrefix(dir, room+"/") }

// valuesOfConductor are rooms whose types the application's own functions take and return, so whatever may import
// conductor may import them.
var valuesOfConductor = []string{"conductor/catalog", "conductor/explain", "conductor/feedback", "conductor/image",
	"conductor/ingest", "conductor/inspect", "conductor/invalid", "conductor/match", "conductor/meter", "conductor/registration",
	"conductor/scope", "conductor/status"}

// forbids says why the room may not import a package, "" if it may.
func (r room) forbids(imported string) string {
	if imported == module {
		imported = module + "/."
	}
	if dir, ours := strings.CutPrefix(imported, module+"/"); ours {
		if to, ok := rowOf(dir); ok && to.tests && !r.tests {
			return "only tests may import " + to.dir
		}
		if within(dir, r.dir) || dir == "spelling" || dir == "redact" { // messages are written everywhere, and they know only words
			return ""
		}
		if slices.Contains(r.rooms, "conductor") && slices.Contains(valuesOfConductor, dir) {
			return ""
		}
		for _, allowed := range r.rooms {
			if parent, all := strings.CutSuffix(allowed, "/..."); dir == allowed || all && within(dir, parent) {
				return ""
			}
		}
		return "the room " + r.dir + " may not know it"
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		if slices.Contains(r.not, imported) {
			return "the room " + r.dir + " must not know it"
		}
		return ""
	}
	for _, m := range r.modules {
		if within(imported, m) {
			return ""
		}
	}
	if r.anything {
		return ""
	}
	return "not among the modules of the room " + r.dir
}

// TestDependencies holds that every direct dependency has its line in
// DEPENDENCIES.md, and that no line outlives its dependency.
func TestDependencies(t *testing.T) {
	text := string(read(t, "DEPENDENCIES.md"))
	mod := string(read(t, "go.mod")) + string(read(t, "integrations/envoy/go.mod"))
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1) {
		rows[m[1]] = true
		if !strings.Contains(mod, m[1]+" v") {
			t.Errorf("DEPENDENCIES.md names %s, go.mod does not", m[1])
		}
	}
	direct := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+) v\S+$`)
	for _, m := range direct.FindAllStringSubmatch(mod, -1) {
		if !rows[m[1]] && m[1] != module {
			t.Errorf("go.mod requires %s, DEPENDENCIES.md has no line for it", m[1])
		}
	}
	if len(rows) < 5 {
		t.Errorf("%d lines read from DEPENDENCIES.md", len(rows))
	}
}

// TestFileLengths holds that a file is one idea. Files that protoc writes are left out.
func TestFileLengths(t *testing.T) {
	const most = 800
	for _, name := range goFiles(t) {
		if n := bytes.Count(read(t, name), []byte("\n")); n > most && !strings.HasSuffix(name, ".pb.go") {
			t.Errorf("%s has %d lines; the most is %d", name, n, most)
		}
	}
}

// machinePath finds a path that exists on one machine only. The names are put
// together here so that this file does not hold them.
var machinePath = regexp.MustCompile(`(?:^|[^A-Za-z0-9._/-])/(?:` + strings.Join([]string{
	"work/", "farm/", "root/", "home/[a-z]+/", "Users/[A-Za-z]+/", "tmp/(?:ref|out|bash|go-build)",
}, "|") + `)`)

// TestNoMachinePaths holds that nothing in the repository names the machine
// of its author.
func TestNoMachinePaths(t *testing.T) {
	for _, name := range files(t) {
		data := read(t, name)
		if bytes.IndexByte(data, 0) >= 0 || strings.Contains(name, "testdata/fuzz/") {
			continue
		}
		for i, line := range strings.Split(string(data), "\n") {
			if found := machinePath.FindString(line); found != "" {
				t.Errorf("%s:%d: names a path of a machine: %q", name, i+1, found)
			}
		}
	}
	for text, want := range map[string]bool{
		"see /" + "work/main": true, "\"/" + "root/x\"": true, "/" + "home/ann/x": true, "ipc:///tmp/kv.sock": false,
		"https://example.org/work/1": false, "net/work/x": false, "~/.mooncake": false,
	} {
		if machinePath.MatchString(text) != want {
			t.Errorf("%q: want %t", text, want)
		}
	}
}

// TestNoSleepInTests holds that tests wait for a condition or advance a clock.
// In files that use testing/synctest, where sleeping is advancing the clock, it
// is allowed.
func TestNoSleepInTests(t *testing.T) {
	for _, name := range goFiles(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		if slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			continue
		}
		for _, call := range calls(file, "time", "Sleep") {
			t.Errorf("%s: time.Sleep in a test; use a ticker with a deadline, a channel, or a clock", set.Position(call.Pos()))
		}
	}
}

// TestShortenedTestsRunInFull holds that make test runs without the race detector each test that is shorter
// under it.
func TestShortenedTestsRunInFull(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name, separators string) []string {
		m := regexp.MustCompile(`(?m)^` + name + ` := (.*)$`).FindSubmatch(makefile)
		if m == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.FieldsFunc(string(m[1]), func(r rune) bool { return strings.ContainsRune(separators, r) })
	}
	whole, tests, of := variable("NOT_UNDER_RACE", " "), variable("NOT_UNDER_RACE_TESTS", "|"), variable("NOT_UNDER_RACE_OF", " ")
	for _, name := range goFiles(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		in := "./" + path.Dir(name)
		if in == "./." || slices.Contains(whole, in) {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			shorter := bytes.HasPrefix(text, []byte("//go:build !race\n")) && strings.HasPrefix(fn.Name.Name, "Test")
			ast.Inspect(fn, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				shorter = shorter || ok && sel.Sel.Name == "PoisonsReleased"
				return true
			})
			if shorter && (!slices.Contains(tests, fn.Name.Name) || !slices.Contains(of, in)) {
				t.Errorf("%s: make test does not run %s without the race detector: see NOT_UNDER_RACE in the Makefile", name, fn.Name.Name)
			}
		}
	}
}

// calls returns the calls in a file of functions of an imported package.
func calls(file *ast.File, imported string, names ...string) (out []*ast.CallExpr) {
	local := ""
	for _, spec := range file.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == imported {
			local = path.Base(imported)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "" {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(names, sel.Sel.Name) {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == local {
					out = append(out, call)
				}
			}
		}
		return true
	})
	return out
}

// files lists the files that are, or are about to be, in the repository: by git
// where this is a checkout, else by walking.
func files(t *testing.T) (out []string) {
	t.Helper()
	list, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err == nil && len(list) > 0 {
		for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
				out = append(out, name)
			}
		}
	} else {
		err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (name == ".git" || name == "bin" || name == "dist") {
				return fs.SkipDir
			}
			if d.Type().IsRegular() {
				out = append(out, filepath.ToSlash(name))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(out, "go.mod") {
		t.Fatalf("%d files and no go.mod; this is not the repository", len(out))
	}
	return out
}

func goFiles(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(files(t), func(name string) bool {
		return !strings.HasSuffix(name, ".go") || strings.Contains("/"+name, "/testdata/")
	})
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
