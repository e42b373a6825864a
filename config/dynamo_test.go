package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// TestDynamoEnvironment covers Dynamo's own variables and what wins over them.
func TestDynamoEnvironment(t *testing.T) {
	file := write(t, "c.yaml", "dynamo: {min_initial_workers: 3, test_endpoints: false}\n")
	f := func(env []string, args []string, workers int, tests bool, problem string) {
		t.Helper()
		d, err := Load(Options{File: file, Env: env, Flags: flags(t, args...)})
		said := ""
		if err != nil {
			said = err.Error()
		}
		if said != problem || len(d.Warnings) > 0 {
			t.Errorf("%v: error %q, warnings %v, want %q", env, said, d.Warnings, problem)
		}
		if c := d.Config.Dynamo; err == nil && (c.MinInitialWorkers != workers || c.TestEndpoints != tests) {
			t.Errorf("%v %v: %d workers, test endpoints %t", env, args, c.MinInitialWorkers, c.TestEndpoints)
		}
	}
	f(nil, nil, 3, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=5"}, nil, 5, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=0"}, nil, 0, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=+07"}, nil, 7, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS="}, nil, 3, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=5", "CONDUCTOR_DYNAMO_MIN_INITIAL_WORKERS=6"}, nil, 6, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=5", "CONDUCTOR_DYNAMO_MIN_INITIAL_WORKERS=6"},
		[]string{"--min-initial-workers=7"}, 7, false, "")
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=x"}, nil, 0, false,
		`DYN_ROUTER_MIN_INITIAL_WORKERS must be a non-negative integer, got "x": invalid digit found in string`)
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=-1"}, nil, 0, false,
		`DYN_ROUTER_MIN_INITIAL_WORKERS must be a non-negative integer, got "-1": invalid digit found in string`)
	f([]string{"DYN_ROUTER_MIN_INITIAL_WORKERS=18446744073709551616"}, nil, 0, false,
		`DYN_ROUTER_MIN_INITIAL_WORKERS must be a non-negative integer, got "18446744073709551616": number too large to fit in target type`)

	for _, yes := range []string{"1", "true", "Yes", " ON "} {
		f([]string{"DYN_KV_INDEXER_TEST_ENDPOINTS=" + yes}, nil, 3, true, "")
	}
	for _, no := range []string{"", "0", "false", "2", "y"} {
		f([]string{"DYN_KV_INDEXER_TEST_ENDPOINTS=" + no}, nil, 3, false, "")
	}
	f([]string{"DYN_KV_INDEXER_TEST_ENDPOINTS=1", "CONDUCTOR_DYNAMO_TEST_ENDPOINTS=off"}, nil, 3, false, "")
	f(nil, []string{"--test-endpoints"}, 3, true, "")
	f([]string{"CONDUCTOR_DYNAMO_TEST_ENDPOINTS=on"}, []string{"--test-endpoints=false"}, 3, false, "")
}

// TestDynamoListener lays --port over what each layer says of listeners.
func TestDynamoListener(t *testing.T) {
	f := func(file string, env, args []string, alone bool, want, problem string) {
		t.Helper()
		name := write(t, "c.yaml", file)
		d, err := Load(Options{File: name, Env: env, Flags: flags(t, args...), Dynamo: DynamoServer{Address: "0.0.0.0:9", Alone: alone}})
		if problem != "" {
			if err == nil || err.Error() != problem {
				t.Errorf("%s %v %v: error %v, want %q", file, env, args, err, problem)
			}
			return
		}
		if err != nil || formatValue(d.Config.Listeners) != want {
			t.Errorf("%s %v %v: %s, %v, want %s", file, env, args, formatValue(d.Config.Listeners), err, want)
			return
		}
		last := len(d.Config.Listeners) - 1
		if at := d.Place("listeners[" + string(rune('0'+last)) + "]"); at != "flag --port" {
			t.Errorf("%s: placed at %q", file, at)
		}
	}
	f("", nil, nil, false, ":13333=conductor,0.0.0.0:9=dynamo", "")
	f("", nil, nil, true, "0.0.0.0:9=dynamo", "")
	f("http_server_port: 3\n", nil, nil, false, ":3=conductor,0.0.0.0:9=dynamo", "")
	f("http_server_port: 3\n", nil, nil, true, "0.0.0.0:9=dynamo", "")
	f("listeners: [{address: ':1', dialect: dynamo}, {address: ':2'}, {address: ':3', dialect: dynamo}]\n", nil, nil, false,
		":2=conductor,0.0.0.0:9=dynamo", "")
	f("", []string{"CONDUCTOR_LISTENERS=:4=dynamo,:5"}, nil, false, ":5=conductor,0.0.0.0:9=dynamo", "")
	f("", []string{"CONDUCTOR_LISTENERS=:4=dynamo,:5"}, nil, true, "0.0.0.0:9=dynamo", "")
	f("", nil, []string{"--listen=:5"}, false, ":5=conductor,0.0.0.0:9=dynamo", "")
	f("", nil, []string{"--listen=:5,:4=dynamo"}, false, "",
		"flag --port: listeners: --listen says where the dynamo dialect listens; keep one of the two")
	f("", nil, []string{"--listen=0.0.0.0:9"}, false, "",
		`flag --port: listeners[1]: the same address "0.0.0.0:9" as listeners[0] (flag --listen)`)
}

// TestDynamoWorkers lays workers over sources: they are checked against the rest
// and each alone, but for the endpoint.
func TestDynamoWorkers(t *testing.T) {
	t.Chdir(t.TempDir())
	file := write(t, "c.yaml",
		"sources: [{endpoint: 'tcp://h:1', type: vLLM, modelname: m, instance_id: '1', block_size: 16}]\nlimits: {max_sources: 3}\n")
	worker := Source{Registration: registration.Registration{
		Endpoint: "inproc://x", Type: "vLLM", Model: "m", Instance: "2", BlockSize: 16, Rank: 1,
	}}
	other := worker
	other.Instance, other.Tenant, other.Endpoint = "3", "blue", "tcp://*:0"
	d, err := Load(Options{File: file, Dynamo: DynamoServer{Workers: []Source{worker, other}}})
	var keys []string
	for _, s := range d.Config.Sources {
		keys = append(keys, s.Key().String())
	}
	if err != nil || !slices.Equal(keys, []string{"1|default|0", "2|default|1", "3|blue|1"}) || d.Place("sources[1]") != "flag --workers" {
		t.Errorf("%v at %q, %v", keys, d.Place("sources[1]"), err)
	}

	same, none, more := worker, worker, worker
	same.Instance, same.Rank = "1", 0
	none.Model = ""
	more.Instance = "4"
	_, err = Load(Options{File: file, Dynamo: DynamoServer{Workers: []Source{same, none, more}}})
	want := file + `:1:1: sources: 4 are more than the 3 allowed by limits.max_sources (` + file + `:2:23)
flag --workers: sources[1]: the same instance, tenant and rank "1|default|0" as sources[0] (` + file + `:1:11)
flag --workers: sources[2].modelname: is required`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestDynamoPortKeepsOtherListeners: what could not be read of a listener that stays is reported once, wherever it stood.
func TestDynamoPortKeepsOtherListeners(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, list := range []string{
		`[{address: [1]}, {address: ":8090", dialect: dynamo}]`,
		`[{address: ":8090", dialect: dynamo}, {address: [1]}]`,
	} {
		_, err := Load(Options{File: write(t, "c.yaml", "listeners: "+list+"\n"), Dynamo: DynamoServer{Address: ":9"}})
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), ".address: ") {
			t.Errorf("%s: got\n%v", list, err)
		}
	}
}

// TestDynamoFlags holds that the flags of Dynamo's own command are those of keys.
func TestDynamoFlags(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	DynamoFlags(fs)
	must.Succeed(t, fs.Parse([]string{"--peers", "http://a/", "--access-log-local-time", "--access-log=x.log", "--trace-id-header", "a b"}))
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if !slices.Equal(names, []string{"access-log", "access-log-local-time", "peers", "trace-id-header"}) {
		t.Errorf("flags %v", names)
	}
	d, err := Load(Options{Flags: fs})
	if err == nil || err.Error() != `flag --trace-id-header: dynamo.trace_id_header: invalid HTTP header name "a b"` {
		t.Errorf("%v", err)
	}
	if c := d.Config.Dynamo; !slices.Equal(c.Peers, []string{"http://a/"}) || !c.AccessLogLocalTime || c.AccessLog != "x.log" {
		t.Errorf("%+v", c)
	}
}
