package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Flags(fs)
	must.Succeed(t, fs.Parse(args))
	return fs
}

// TestDefaults holds the documented default of every setting, as it is printed.
func TestDefaults(t *testing.T) {
	c := Default()
	var seen []string
	f := func(path, want string) {
		t.Helper()
		i := slices.IndexFunc(settings, func(s setting) bool { return s.path == path })
		if i < 0 {
			t.Fatalf("no setting %s", path)
		}
		if got := settings[i].format(&c); got != want {
			t.Errorf("%s = %s, want %s", path, got, want)
		}
		seen = append(seen, path)
	}
	f("log.level", "info")
	f("log.format", "json")
	f("hash.seed", "1337")
	f("stream.stale_after", "30s")
	f("stream.queue_bytes_total", "256MiB")
	f("stream.copies", "count")
	f("index.max_bytes", "0")
	f("index.max_bytes_total", "auto")
	f("index.ghost_bytes", "128MiB")
	f("pool.completeness", "all")
	f("pool.max_bytes", "512MiB")
	f("journal.dir", "")
	f("journal.max_bytes", "1GiB")
	f("journal.key_file", "")
	f("journal.ring_bytes", "0")
	f("snapshot.dir", "")
	f("snapshot.interval", "1m")
	f("snapshot.key_file", "")
	f("ready.min_sources", "0")
	f("log.slow_query", "0s")
	f("tracing.endpoint", "")
	f("tracing.sample", "0.01")
	f("tracing.headers_file", "")
	f("dynamo.peers", "")
	f("dynamo.min_initial_workers", "0")
	f("feedback.max_error", "0")
	f("index.local_hashes", "true")
	f("dynamo.access_log", "")
	f("dynamo.trace_id_header", "x-trace-id")
	f("dynamo.access_log_local_time", "false")
	f("dynamo.test_endpoints", "false")
	f("limits.max_body", "16MiB")
	f("limits.max_tokens", "2097152")
	f("limits.max_token_id", "0")
	f("privacy.salted_only", "false")
	f("reload.watch", "false")
	f("discovery.token_file", "")
	f("store.url", "")
	f("store.addresses", "")
	f("store.master", "")
	f("store.cluster", "false")
	f("store.name", "default")
	f("store.password_file", "")
	f("store.sentinel_password_file", "")
	f("store.cacert", "")
	f("store.cert", "")
	f("store.key", "")
	f("store.advertise", "")
	f("store.weight", "100")
	f("store.shelf_bytes", "1GiB")
	f("cluster.mode", "replicas")
	f("cluster.owners", "2")
	f("discovery.sources_dir", "")
	f("limits.query_wait", "100ms")
	f("limits.max_sources", "10000")
	f("limits.max_tenant_sources", "0")
	f("limits.max_payload", "32MiB")
	f("limits.idle_timeout", "2m")
	f("limits.memory", "auto")
	f("limits.max_contexts", "16384")
	f("limits.connections_per_address", "auto")
	f("limits.client_requests", "0")
	f("limits.client_bytes", "0")
	f("limits.client_changes", "0")
	f("sglang.model", "")
	f("tls.cert", "")
	f("tls.key", "")
	f("tls.client_ca", "")
	f("tls.require_client_cert", "false")
	f("auth.file", "")
	f("auth.anonymous", "auto")
	f("auth.loopback", "auto")
	f("auth.hosts", "")
	f("peer.cacert", "")
	f("peer.cert", "")
	f("peer.key", "")
	f("peer.token_file", "")
	f("shutdown.drain", "5s")
	f("ui.enabled", "true")
	f("ui.recent_queries", "true")
	f("register.allow", "default")
	for _, k := range settings {
		if !slices.Contains(seen, k.path) {
			t.Errorf("%s has no documented default", k.path)
		}
	}
	if got := formatValue(c.Listeners); got != ":13333=conductor,:8090=dynamo" {
		t.Errorf("listeners = %s", got)
	}
	if len(c.Sources) != 0 {
		t.Errorf("sources = %v", c.Sources)
	}
	if err := validate(&c); err != nil {
		t.Errorf("the defaults are invalid: %v", err)
	}
	d, err := Load(Options{})
	if err != nil || len(d.Warnings) > 0 || d.File != "" || !reflect.DeepEqual(d.Config, c) {
		t.Errorf("loading nothing: %+v, %v", d, err)
	}
}

// TestLayersPrecedence sets every setting in every subset of file, environment and flags.
func TestLayersPrecedence(t *testing.T) {
	// What the three say, file first; a choice of two words needs only differ from
	// the layer below it.
	says := func(k setting) [3]string {
		switch {
		case len(k.kind.words) > 3:
			return [3]string{k.kind.words[0], k.kind.words[2], k.kind.words[3]}
		case k.kind.words != nil:
			return [3]string{k.kind.words[1], k.kind.words[0], k.kind.words[1]}
		case k.kind.word == "duration":
			return [3]string{"11s", "12s", "13s"}
		case strings.HasPrefix(k.kind.word, "bytes"):
			return [3]string{"96MiB", "97MiB", "98MiB"}
		case k.kind.word == "string":
			return [3]string{"file", "env", "flag"}
		case k.kind.word == "bool":
			return [3]string{"false", "true", "false"}
		case k.path == "store.url":
			return [3]string{"redis://file", "rediss://env:1", "redis://flag/2"}
		case k.kind.word == "addresses":
			return [3]string{"file:1", "env:2", "flag:3,flag:4"}
		case k.kind.word == "url":
			return [3]string{"http://file", "https://env:1", "http://flag/path"}
		case k.kind.word == "ratio":
			return [3]string{"0.5", "0", "1"}
		case k.kind.word == "rules":
			return [3]string{"tcp://10.0.0.0/8", "default", "default,ipc:///run/"}
		case k.kind.word == "roles":
			return [3]string{"query", "none", "metrics,peer"}
		case k.path == "auth.hosts":
			return [3]string{"file.example", "env", "flag,10.0.0.1"}
		case k.kind.list:
			return [3]string{"http://file", "http://env", "http://flag,https://flag/2"}
		}
		return [3]string{"11", "12", "13"}
	}
	for _, k := range settings {
		said := says(k)
		section, name, _ := strings.Cut(k.path, ".")
		file := write(t, "c.yaml", "stream: {queue_bytes_total: 256MiB}\n")
		switch section {
		case "stream":
			file = write(t, "c.yaml", "limits: {max_payload: 1KiB}\n")
		case "cluster":
			file = write(t, "c.yaml", "store: {url: 'redis://a'}\n")
		}
		rest, err := os.ReadFile(file)
		must.Succeed(t, err)
		full := write(t, "full.yaml", section+":\n  "+name+": "+said[0]+"\n"+string(rest))
		def := Default()
		for subset := range 8 {
			o := Options{File: file}
			want, place := k.format(&def), ""
			if subset&1 != 0 {
				o.File, want, place = full, said[0], full+":2:"
			}
			if subset&2 != 0 {
				o.Env, want, place = []string{k.env() + "=" + said[1]}, said[1], "env "+k.env()
			}
			if subset&4 != 0 {
				o.Flags, want, place = flags(t, "--"+k.flag+"="+said[2]), said[2], "flag --"+k.flag
			}
			d, err := Load(o)
			if err != nil {
				t.Errorf("%s subset %d: %v", k.path, subset, err)
				continue
			}
			if got := k.format(&d.Config); got != want || !strings.HasPrefix(d.Place(k.path), place) {
				t.Errorf("%s subset %d = %s from %q, want %s from %q", k.path, subset, got, d.Place(k.path), want, place)
			}
		}
	}
}

// TestListenerPrecedence does the same for listeners, which are replaced whole.
func TestListenerPrecedence(t *testing.T) {
	ours := write(t, "c.yaml", "listeners: [{address: ':1'}, {address: ':2', dialect: dynamo}]\n")
	theirs := write(t, "c.json", `{"http_server_port": 3}`)
	f := func(file string, env []string, args []string, want string) {
		t.Helper()
		d, err := Load(Options{File: file, Env: env, Flags: flags(t, args...)})
		must.Report(t, err)
		if got := formatValue(d.Config.Listeners); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	env := []string{"CONDUCTOR_LISTENERS=:4=dynamo, :5"}
	f("", nil, nil, ":13333=conductor,:8090=dynamo")
	f(ours, nil, nil, ":1=conductor,:2=dynamo")
	f(theirs, nil, nil, ":3=conductor")
	f(ours, env, nil, ":4=dynamo,:5=conductor")
	f(theirs, env, nil, ":4=dynamo,:5=conductor")
	f(theirs, env, []string{"--listen", ":6"}, ":6=conductor")
	f("", nil, []string{"--listen", ":6=Dynamo", "--listen=[::1]:7"}, ":6=dynamo,[::1]:7=conductor")
	f("", nil, []string{"--listen", ":6=dynamo,:7"}, ":6=dynamo,:7=conductor")
}

// TestEveryLayerIsReported holds that one run tells all mistakes of all layers.
func TestEveryLayerIsReported(t *testing.T) {
	t.Chdir(t.TempDir())
	must.Succeed(t, os.WriteFile("c.yaml", []byte("log: {level: loud}\nstream: {stale_after: 7}\n"), 0o644))
	d, err := Load(Options{
		Env: []string{
			"CONDUCTOR_STREAM_STALE_AFTER=30", "CONDUCTOR_LISTENERS=:1=carrier,nowhere,13333", "CONDUCTOR_LIMITS_MAX_BODY=0",
			"CONDUCTOR_LOG_LEVL=info", "CONDUCTOR_HASH_SEED=", "CONDUCTOR_SEED=7", "CONDUCTOR_PYTHON=python3", "OTHER=1",
			"CONDUCTOR_SERVICE_HOST=10.0.0.9", "CONDUCTOR_SERVICE_PORT_HTTP=13333", "CONDUCTOR_PORT=tcp://10.0.0.9:13333",
			"CONDUCTOR_PORT_13333_TCP_ADDR=10.0.0.9", "CONDUCTOR_BLUE_SERVICE_HOST=10.0.0.8",
			"CONDUCTOR_SERVER=10.0.0.9", "CONDUCTOR_TOKEN_FILE=a.token", "CONDUCTOR_WAIT=0s", "CONDUCTOR_IMAGE=conductor:local",
			"CONDUCTOR_LAB_IMAGE=conductor-lab:local", "CONDUCTOR_BINARY=bin/conductor", "CONDUCTOR_SERVR=10.0.0.9",
			"CONDUCTOR_TOKEN=secret", "CONDUCTOR_LISTEN=:1", "CONDUCTOR_MAX_SOURCES=7", "CONDUCTOR_MAX=7", "CONDUCTOR_X=1",
		},
		Flags: flags(t, "--config=c.yaml", "--hash-seed=x", "--copies=sets", "--snapshot-interval", "5", "--max-sources=0"),
	})
	got, _ := say(d, err)
	want := `warning: env CONDUCTOR_LISTEN: unknown variable; did you mean "CONDUCTOR_LISTENERS"?
warning: env CONDUCTOR_LOG_LEVL: unknown variable; did you mean "CONDUCTOR_LOG_LEVEL"?
warning: env CONDUCTOR_MAX: unknown variable
warning: env CONDUCTOR_MAX_SOURCES: unknown variable; did you mean "CONDUCTOR_LIMITS_MAX_SOURCES"?
warning: env CONDUCTOR_SEED: has no effect; CONDUCTOR_HASH_SEED sets the hash seed
warning: env CONDUCTOR_SERVR: unknown variable; did you mean "CONDUCTOR_SERVER"?
warning: env CONDUCTOR_TOKEN: unknown variable; did you mean "CONDUCTOR_TOKEN_FILE"?
warning: env CONDUCTOR_X: unknown variable
c.yaml:1:14: log.level: "loud" is none of debug, info, warn, error
c.yaml:2:23: stream.stale_after: 7 has no unit; write "7s" if seconds are meant
env CONDUCTOR_LIMITS_MAX_BODY: limits.max_body: 0 is too small; the least is 1
env CONDUCTOR_LISTENERS: listeners: ":1=carrier": dialect "carrier" is none of conductor, conductor-msgpack, conductor-json-v2, dynamo, grpc
env CONDUCTOR_LISTENERS: listeners: "nowhere" is no host:port: missing port in address
env CONDUCTOR_LISTENERS: listeners: "13333" is a port alone: put a host before it, as in "127.0.0.1:13333"
env CONDUCTOR_STREAM_STALE_AFTER: stream.stale_after: 30 has no unit; write "30s" if seconds are meant
flag --snapshot-interval: snapshot.interval: 5 has no unit; write "5s" if seconds are meant
flag --copies: stream.copies: "sets" is none of count, set; did you mean "set"?
flag --hash-seed: hash.seed: "x" is no whole number
flag --max-sources: limits.max_sources: 0 is too small; the least is 1
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestLogLevelFromEnvironment holds Mooncake's rule: any case, unknown is INFO.
func TestLogLevelFromEnvironment(t *testing.T) {
	f := func(value, want string, warnings int) {
		t.Helper()
		d, err := Load(Options{Env: []string{"CONDUCTOR_LOG_LEVEL=" + value}})
		if err != nil || d.Config.Log.Level != want || len(d.Warnings) != warnings {
			t.Errorf("%q: level %s, warnings %v, error %v", value, d.Config.Log.Level, d.Warnings, err)
		}
	}
	f("DEBUG", "debug", 0)
	f("Info", "info", 0)
	f("WARN", "warn", 0)
	f(" error ", "error", 0)
	f("", "info", 0)
	f("TRACE", "info", 1)
}

// TestFileDiscovery covers --config, CONDUCTOR_CONFIG_PATH and the usual file.
func TestFileDiscovery(t *testing.T) {
	theirs := `{"kvevent_instance": {}, "http_server_port": `
	usual := write(t, ".mooncake/conductor_config.json", theirs+"1}")
	home := "HOME=" + filepath.Dir(filepath.Dir(usual))
	named := write(t, "named", theirs+"2}") // no extension: told by its content
	asked := write(t, "asked.YML", "http_server_port: 3\n")
	gone := filepath.Join(t.TempDir(), "gone.json")

	f := func(o Options, file, listeners, warning, problem string) {
		t.Helper()
		d, err := Load(o)
		said := ""
		if err != nil {
			said = err.Error()
		}
		warned := ""
		for _, w := range d.Warnings {
			warned += w.Error()
		}
		if d.File != file || formatValue(d.Config.Listeners) != listeners || warned != warning || said != problem {
			t.Errorf("file %q, listeners %s, warnings %q, error %q", d.File, formatValue(d.Config.Listeners), warned, said)
		}
	}
	defaults := formatValue(Default().Listeners)
	f(Options{}, "", defaults, "", "")
	f(Options{Env: []string{home}}, usual, ":1=conductor", "", "")
	f(Options{Env: []string{"HOME=" + filepath.Dir(gone)}}, "", defaults, "", "")
	f(Options{Env: []string{home, "CONDUCTOR_CONFIG_PATH=" + named}}, named, ":2=conductor", "", "")
	f(Options{Env: []string{home, "CONDUCTOR_CONFIG_PATH="}}, usual, ":1=conductor", "", "")
	f(Options{Env: []string{home, "CONDUCTOR_CONFIG_PATH=" + named}, Flags: flags(t, "--config", asked)}, asked, ":3=conductor", "", "")
	f(Options{Env: []string{home, "CONDUCTOR_CONFIG_PATH=" + gone}}, "", defaults,
		"env CONDUCTOR_CONFIG_PATH: \""+gone+"\" does not exist; serving without a file", "")
	f(Options{Env: []string{home}, File: gone}, "", defaults, "", gone+": no such file")
	f(Options{File: filepath.Dir(gone)}, "", defaults, "", filepath.Dir(gone)+": cannot read \""+filepath.Dir(gone)+"\": is a directory")
}

// validate returns the broken rules of a config that was built in code. Those of single settings are not among them, as
// Load checks each when it reads it.
func validate(c *Config) error {
	l := newLoader()
	l.reportComplaints(c.complaints())
	return l.errs.err()
}

// TestValidateBuiltConfig holds that a config built in code is checked by the same rules.
func TestValidateBuiltConfig(t *testing.T) {
	c := Default()
	c.Listeners = nil
	c.Stream.QueueBytesTotal = c.Limits.MaxPayload
	c.Limits.MaxSources = 1
	one := Source{Registration: registration.Registration{Endpoint: "tcp://h:1", Type: "vLLM", Model: "m", Instance: "a", BlockSize: 16}}
	same := one
	same.Tenant = "default"
	other := Source{Registration: registration.Registration{Endpoint: "h:1", Rank: -1, BlockSize: 16, Type: "x", Model: "m", Instance: "b"}}
	c.Sources = []Source{one, same, other}
	want := `listeners: no listener; without one nobody can ask
stream.queue_bytes_total: too small to hold two messages of the size allowed by limits.max_payload
sources[1]: the same instance, tenant and rank "a|default|0" as sources[0]
sources[2].type: must be vLLM, SGLang, Mooncake, Standard or LMCache, got "x"
sources[2].dp_rank: must not be negative, got -1
sources[2].endpoint: "h:1" has no scheme: want tcp://host:port or ipc://path; write "tcp://h:1"
sources: 3 are more than the 1 allowed by limits.max_sources`
	if err := validate(&c); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestLoadChecksSingleSettings holds that a value which parses as its type, but is none that the setting may have, is refused.
func TestLoadChecksSingleSettings(t *testing.T) {
	_, err := Load(Options{
		Env:   []string{"CONDUCTOR_CLUSTER_MODE=some", "CONDUCTOR_LIMITS_MAX_CONTEXTS=-1", "CONDUCTOR_STREAM_STALE_AFTER=-1s"},
		Flags: flags(t, "--log-level=loud"),
	})
	want := `env CONDUCTOR_CLUSTER_MODE: cluster.mode: "some" is none of replicas, shards
env CONDUCTOR_LIMITS_MAX_CONTEXTS: limits.max_contexts: -1 is too small; the least is 0
env CONDUCTOR_STREAM_STALE_AFTER: stream.stale_after: -1s is too small; the least is 1ms
flag --log-level: log.level: "loud" is none of debug, info, warn, error`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestKindParse(t *testing.T) {
	f := func(k kind, in, want string) {
		t.Helper()
		v, err := k.parse(in)
		got := ""
		if err != nil {
			got = "error"
		} else {
			got = formatValue(v)
		}
		if got != want {
			t.Errorf("%s %q = %q (%v), want %q", k.word, in, got, err, want)
		}
	}
	f(durationKind(), "90s", "1m30s")
	f(durationKind(), "1h0m0s", "1h")
	f(durationKind(), "60m", "1h")
	f(durationKind(), "20m", "20m")
	f(durationKind(), "10s", "10s")
	f(durationKind(), "0", "error")
	f(durationKind(), "1e3", "error")
	f(durationKind(), "30 s", "error")
	f(durationKind(), "", "error")
	f(sizeKind(), "0", "0")
	f(sizeKind(), "1024", "1KiB")
	f(sizeKind(), "1025B", "1025")
	f(sizeKind(), "2048 MiB", "2GiB")
	f(sizeKind(), "8191PiB", "error")
	f(sizeKind(), "9007199254740991KiB", "9007199254740991KiB")
	f(sizeKind(), "9007199254740992KiB", "error")
	f(sizeKind(), "99999999999999999999", "error")
	f(sizeKind(), "-1", "error")
	f(sizeKind(), "1.5MiB", "error")
	f(countKind(), "+7", "7")
	f(countKind(), "-0", "0")
	f(countKind(), "2147483647", "2147483647")
	f(countKind(), "2147483648", "error")
	f(countKind(), "007", "error")
	f(countKind(), " 7", "error")
	f(seedKind(), "0xffffffffffffffff", "18446744073709551615")
	f(seedKind(), "18446744073709551616", "error")
	f(seedKind(), "-1", "error")
	f(wordKind("a", "b"), "A", "a")
	f(wordKind("a", "b"), "c", "error")
	f(boolKind(), "Yes", "true")
	f(boolKind(), "1", "true")
	f(boolKind(), "OFF", "false")
	f(boolKind(), "2", "error")
	f(boolKind(), "", "error")
	f(textKinds["header"], "X-Trace-ID", "X-Trace-ID")
	f(textKinds["header"], "a b", "error")
	f(textKinds["header"], "a:b", "error")
	f(textKinds["header"], "", "error")
	f(textKinds["urls"], " http://a:1/ ,, https://[::1]:2/dynamo/v1,", "http://a:1/,https://[::1]:2/dynamo/v1")
	f(textKinds["urls"], ",", "")
	f(textKinds["urls"], "http://a,b:1", "error")
	f(textKinds["urls"], "ftp://a", "error")
	f(textKinds["urls"], "a:8090", "error")
	f(textKinds["urls"], "http://", "error")
	f(textKinds["urls"], "http://:8090", "error")
	f(textKinds["urls"], "http://a b", "error")
	f(textKinds["urls"], "http://a?x", "error")
	f(textKinds["urls"], "http://a/#x", "error")
}

// TestFlagsSpeakForThemselves holds that usage shows default, type and meaning.
func TestFlagsSpeakForThemselves(t *testing.T) {
	usage := flags(t).FlagUsages()
	for _, want := range []string{"--config file", "--listen address=dialect", "(default :13333=conductor,:8090=dynamo)",
		"--access-log-local-time", "--peers urls", "--stale-after duration", "(default 30s)",
		"--max-body bytes", "(default 16MiB)", "--copies count|set"} {
		if !strings.Contains(usage, want) {
			t.Errorf("usage lacks %q:\n%s", want, usage)
		}
	}
}

// TestMistakesAreBounded reads files with very many mistakes of one sort: beyond a thousand the rest is not read.
func TestMistakesAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"texts":     "sources: [" + strings.Repeat("x,", 200_000) + "]",
		"rules":     "sources: [" + strings.Repeat("{block_size: 16},", 50_000) + "]",
		"empty":     "sources: [" + strings.Repeat("{},", 200_000) + "]",
		"unknown":   "sources: [" + strings.Repeat("{a: 1},", 100_000) + "]",
		"listeners": "listeners: [" + strings.Repeat("{a: 1},", 100_000) + "]",
		"profiles":  "sources: [" + strings.Repeat("{hash_profile: {}},", 50_000) + "]",
		"peers":     "dynamo: {peers: [" + strings.Repeat("x,", 200_000) + "]}",
		"ttl":       "sources: [{ttl: {" + strings.Repeat("? [] : 1,", 100_000) + "}}]",
		"long":      "x: &x " + strings.Repeat("a:b@", 1<<19) + "\nsources: [" + strings.Repeat("{type: *x},", 900) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoader()
			_, err := l.load("c.yaml", []byte(text), nil, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			said := err.Error()
			if n := strings.Count(said, "\n"); n > 1000 || len(said) > 1<<20 || name != "rules" && len(l.origins) > 20_000 {
				t.Errorf("%d lines, %d bytes, %d origins: …%s", n, len(said), len(l.origins), said[max(0, len(said)-300):])
			}
		})
	}
}
