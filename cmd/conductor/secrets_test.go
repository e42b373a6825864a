package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"example.com/conductor/cmd/internal/clitest"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// salts are the secrets that those who register, operators and other replicas are meant to see, on the routes about
// registrations and blocks. All other secrets are for nobody.
var salts = []string{"s3cret-salt", "s3cret-asked"}

// showsSalts has those routes.
var showsSalts = map[string]bool{
	"/services": true, "/global_view": true, "/admin/snapshot": true, "/admin/source": true, "/admin/events": true,
	"/admin/queries": true, "/admin/prefixes": true, "/admin/explain": true,
}

// leaks returns the planted secrets that a text has, as they are or as a header carries them.
func leaks(text string) (all []string) {
	for part := range strings.SplitSeq(text, "s3cret-") {
		if len(all) > 0 || len(part) < len(text) {
			name, _, _ := strings.Cut(part, "@")
			all = append(all, "s3cret-"+name[:min(len(name), 40)])
		}
	}
	if len(all) > 0 {
		all = all[1:] // what was before the first one
	}
	for _, credentials := range []string{"reader:s3cret-peer", "s3cret-user:", ":s3cret-store", "reader:s3cret-trace"} {
		if code := base64.StdEncoding.EncodeToString([]byte(credentials)); strings.Contains(text, code) {
			all = append(all, code)
		}
	}
	if strings.Contains(text, "7331733173") {
		all = append(all, "hash.seed")
	}
	return all
}

// TestSecretsAreShownToNobody plants a secret in every setting and field that may have one, lets what they are for fail,
// asks every route as every role, and looks for them in the answers, the log and the output of commands.
func TestSecretsAreShownToNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	var authorized atomic.Bool
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, given := r.BasicAuth(); given && user == "reader" && password == "s3cret-peer" {
			authorized.Store(true)
		}
		w.Header().Set("Location", "http://reader:s3cret-location@127.0.0.1:1/?token=s3cret-location")
		w.WriteHeader(http.StatusFound)
	}))
	t.Cleanup(peer.Close)
	host := strings.TrimPrefix(peer.URL, "http://")
	roles := []string{"query", "register", "metrics", "peer", "admin"}
	var entries []string
	for _, r := range roles {
		entries = append(entries, "s3cret-token-"+r+" "+r+" '*'")
	}
	credentials := credentialsFile(t, entries...)
	text, err := os.ReadFile(credentials)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(credentials, []byte(strings.ReplaceAll(string(text), "name: s3cret-token-", "name: role-")), 0o600))
	settings := func(sample string) string {
		return "auth: {file: " + credentials + "}\nlog: {level: debug}\nhash: {seed: 7331733173}\n" +
			"dynamo: {test_endpoints: true, peers: ['http://reader:s3cret-peer@" + host + "', 'http://s3cret-user@127.0.0.1:1', " +
			"'http://reader:s3cret-away@127.0.0.1:1/base']}\n" +
			"store: {url: 'redis://:s3cret-store@127.0.0.1:1/0', advertise: 'http://reader:s3cret-advertise@127.0.0.1:2'}\n" +
			"tracing: {endpoint: 'http://reader:s3cret-trace@127.0.0.1:1/traces', sample: " + sample + ", headers_file: " +
			file("headers", "Authorization: Bearer s3cret-header\n") + "}\n" +
			"snapshot: {dir: " + dir + "/snapshots, key_file: " + file("key", strings.Repeat("5e", 32)) + "}\n" +
			"discovery: {token_file: " + file("engines", "s3cret-engine\n") + "}\n" +
			"sources:\n  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: a, block_size: 16, " +
			"additionalsalt: s3cret-salt}\n" +
			"  - {discover: 'http://127.0.0.1:1', instance_id: b, dp_rank: 0}\n"
	}
	p := serveProcess(t, settings("1"))

	bodies := map[string][]string{
		"/register": {
			`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"a","block_size":16,"dp_rank":0,` +
				`"additionalsalt":"x"}`,
			`{"endpoint":"http://reader:s3cret-endpoint@h:1","type":"vLLM","modelname":"m","instance_id":"c","block_size":16,"dp_rank":0}`,
			`{"endpoint":"tcp://reader:s3cret-endpoint@h:1","type":"vLLM","modelname":"m","instance_id":"c","block_size":16,"dp_rank":0}`,
			`{"discover":"http://reader:s3cret-discover@h:1","instance_id":"c"}`,
			`{"discover":"http://h:1?key=s3cret-discover","instance_id":"c"}`,
		},
		"/register_peer":   {`{"url":"http://reader:s3cret-late@127.0.0.1:1"}`, `{"url":"reader:s3cret-late@h"}`},
		"/deregister_peer": {`{"url":"http://reader:s3cret-unknown@h"}`},
		"/query":           {`{"model":"m","block_size":16,"token_ids":[1],"cache_salt":"s3cret-asked"}`},
		"/query_batch":     {`{"queries":[{"model":"m","block_size":16,"token_ids":[1],"cache_salt":"s3cret-asked"}]}`},
		"/routed": {`{"model":"m","block_size":16,"token_ids":[1],"cache_salt":"s3cret-asked","instance_id":"a","request_id":"r"}`,
			`{"model":"m","block_size":16,"token_ids":[1],"cache_salt":"s3cret-asked","instance_id":"none"}`},
		"/admin/explain": {`{"model":"m","block_size":16,"token_ids":[1],"cache_salt":"s3cret-asked"}`},
	}
	calls := 0
	check := func(what, text, route string, role string) {
		t.Helper()
		for _, leak := range leaks(text) {
			salt := strings.HasPrefix(leak, salts[0]) || strings.HasPrefix(leak, salts[1])
			switch {
			case salt && showsSalts[route] && slices.Contains([]string{"register", "peer", "admin"}, role):
			case leak == "hash.seed" && (route == "/admin/digest" || route == "/admin/snapshot") && (role == "peer" || role == "admin"):
				// replicas compare theirs
			default:
				t.Errorf("%s shows %s: %.1500s", what, leak, text)
				return
			}
		}
	}
	ask := func(round string, roles ...string) {
		for _, route := range routesOf(config.Conductor) {
			path := strings.TrimPrefix(strings.TrimPrefix(route.Path, "/conductor/v1"), "/dynamo/v1")
			if strings.HasPrefix(path, "/docs") || strings.HasPrefix(path, "/ui") ||
				strings.HasPrefix(path, "/debug") || route.Method == "HEAD" {
				continue
			}
			for _, role := range roles {
				token := ""
				if role != "" {
					token = "s3cret-token-" + role
				}
				all := append([]string{"{}"}, bodies[path]...)
				for _, query := range []string{"", "?detail=1", "?fleet=1", "?key=s3cret-parameter", "?source=a%7Cdefault%7C0"} {
					for _, body := range all {
						if len(all) > 1 && query != "" && query != "?detail=1" ||
							query != "" && role != "register" && role != "admin" || path == "/admin/reload" && query != "" {
							continue
						}
						status, answer := askAs(t, route.Method, p.url+route.Path+query, token, "application/json", []byte(body))
						what := fmt.Sprintf("%s: %s %s%s as %q: %d", round, route.Method, route.Path, query, role, status)
						check(what, answer, path, role)
						calls++
					}
				}
			}
		}
	}
	ask("first", append([]string{""}, roles...)...)
	eventually(t, "no peer is known to be away", func() (string, bool) {
		_, answer := askAs(t, "GET", p.url+"/dynamo/v1/peers?detail=1", "s3cret-token-admin", "", nil)
		return answer, authorized.Load() && strings.Count(answer, "***@127.0.0.1:1") >= 2 && strings.Contains(answer, `"state":"failed"`)
	})
	must.Succeed(t, os.WriteFile(p.cmd.Args[3], []byte(strings.ReplaceAll(settings("0.5"), "s3cret-away", "s3cret-later")), 0o600))
	ask("second", "", "register", "admin")
	if calls < 800 {
		t.Errorf("%d calls", calls)
	}
	if status, _ := askAs(t, "GET", p.url+"/services", "s3cret-wrong", "", nil); status != http.StatusUnauthorized {
		t.Error(status)
	}

	// Commands. config show is left out: what it prints is a settings file, for those who may read the one it read.
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "admin.token"), []byte("s3cret-token-admin"), 0o600))
	bad := strings.NewReplacer("http://reader:s3cret-peer@", "ftp://reader:s3cret-peer@", "127.0.0.1:1/base", "127.0.0.1:port/base",
		"redis://:s3cret-store@", "redis://:s3cret-store@${HOST}", "2'}", "2?x=s3cret-parameter'}").Replace(settings("1"))
	for _, args := range [][]string{
		{"config", "check", p.cmd.Args[3]}, {"config", "check", file("bad.yaml", bad)},
		{"config", "check", file("worse.yaml", "dynamo: {peers: ['http://reader:s3cr s3cret-peer@h', 'http://s3cret-user@']}\n"+
			"limits: {max_body: 'http://reader:s3cret-peer@h'}\n")},
		{"config", "diff", "--server", p.url}, {"services", "--server", p.url}, {"services", "--fleet", "--server", p.url},
		{"doctor", "--server", p.url}, {"top", "--once", "--server", p.url}, {"health", "--ready", "--server", p.url},
		{"services", "--server", "http://reader:s3cret-server@127.0.0.1:1"}, {"services", "--server", "http://s3cret-server@h:port"},
		{"services", "--server", "http://h?token=s3cret-server"},
	} {
		if args[len(args)-1] == p.url {
			args = append(args, "--token-file", filepath.Join(dir, "admin.token"))
		}
		_, out, errs := runCLI(args...)
		check(fmt.Sprintf("%q", args), out+errs, "", "")
	}
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.cmd.Wait()
	for line := range strings.Lines(p.log()) {
		check("the log", line, "", "")
	}
	if !strings.Contains(p.log(), "a peer gave no whole snapshot") && !strings.Contains(p.log(), "a peer is not up yet") {
		t.Errorf("nothing has failed: %s", p.log())
	}
}

// TestCommandLinesShowNoPassword gives every command words and values of flags that it does not take, with a password in them.
func TestCommandLinesShowNoPassword(t *testing.T) {
	t.Setenv(config.EnvServer, "http://127.0.0.1:1")
	t.Chdir(t.TempDir())
	lines := 0
	f := func(args ...string) {
		t.Helper()
		lines++
		_, out, errs := runCLI(args...)
		if strings.Contains(out+errs, "s3cret") {
			t.Errorf("%q shows a password: %.500s", args, out+errs)
		}
	}
	words := []string{"http://reader:s3cret@127.0.0.1:1", "x://reader:s3cret@h", "reader:s3cret@h:1", "http://reader:s3 s3cret@h",
		"reader:s3 s3cret@h", "http://h?token=s3cret"}
	for _, c := range clitest.Commands(rootCommand()) {
		path := strings.Fields(c.CommandPath())[1:]
		if c.Name() == "init" {
			continue // it makes a file of that name
		}
		for _, word := range words {
			for n := 1; n <= 3; n++ {
				f(append(slices.Clone(path), slices.Repeat([]string{word}, n)...)...)
			}
			c.Flags().VisitAll(func(flag *pflag.Flag) {
				if flag.Value.Type() != "string" && flag.Name != "help" {
					f(append(slices.Clone(path), "--"+flag.Name+"="+word, "stray", "stray", "stray")...)
				}
			})
			f(append(slices.Clone(path), "--"+word)...)
		}
	}
	for _, word := range words {
		f(word)
		f("diff", word, "http://127.0.0.1:1")
		f("diff", "http://127.0.0.1:1", word, "--json")
		f("help", word)
	}
	if lines < 500 {
		t.Errorf("%d lines", lines)
	}
}
