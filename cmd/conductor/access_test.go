package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	kvconductor "example.com/conductor"
	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/docs"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// Roles that may call the routes, by method and path without the prefix of a dialect. "open" is
// answered without credentials. "*" behind a role says that a client of one tenant is refused.
// This is a copy of the rules of the server on purpose: a route that is not here fails the test.
var matrix = map[string]string{
	"GET /": "open", "GET /health": "open", "GET /ready": "open", "GET /openapi.yaml": "open", "GET /ui": "open", "GET /ui/*file": "open",
	"GET /docs": "open", "GET /docs/*page": "open",
	"POST /query": "query", "POST /query_by_hash": "query", "POST /query_batch": "query", "POST /query_tiered_by_hash": "query",
	"POST /candidates": "query", "GET /instances": "query",
	"POST /grpc/:service/:method": "query",
	"GET /services":               "query", "GET /workers": "query", "POST /feedback": "query", "POST /routed": "query",
	"DELETE /routed/*id": "query", "POST /lmcache/events": "register", "GET /admin/prefixes": "admin", "GET /admin/stats": "admin",
	"GET /admin/source": "admin", "GET /admin/live": "admin", "GET /admin/queries": "admin", "GET /admin/drain": "admin",
	"GET /admin/cluster": "admin",
	"POST /register":     "register", "POST /unregister": "register", "POST /test/pause_listener": "register",
	"POST /test/resume_listener": "register",
	"GET /metrics":               "metrics*",
	"GET /dump":                  "peer", "GET /admin/digest": "peer", "GET /admin/snapshot": "peer*",
	"GET /global_view": "admin", "GET /admin/events": "admin", "POST /admin/explain": "admin", "GET /admin/check": "admin*",
	"GET /admin/settings": "admin*",
	"GET /peers":          "admin*", "POST /register_peer": "admin*", "POST /deregister_peer": "admin*", "POST /reopen_logs": "admin*",
	"POST /admin/reload":        "admin*",
	"GET /debug/pprof/:profile": "admin*",
}

// routesOf returns the routes of the router of a listener.
func routesOf(root string) []gin.RouteInfo {
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	opts := admin.Options{
		OpenAPI: kvconductor.OpenAPI, Page: ui.New(), Docs: docs.New(kvconductor.Documents),
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	d := dynamo.New(dynamo.Config{Conductor: c, TestEndpoints: true, Log: zerolog.Nop()})
	return dialectRouter(root, c, d, opts).Routes()
}

// credentialsFile writes a file with a token for each name: the text of the token is its name.
func credentialsFile(t *testing.T, entries ...string) string {
	var b strings.Builder
	b.WriteString("tokens:\n")
	for _, e := range entries {
		name, rest, _ := strings.Cut(e, " ")
		roles, tenants, _ := strings.Cut(rest, " ")
		digest := sha256.Sum256([]byte(name))
		fmt.Fprintf(&b, "  - {name: %s, sha256: %s, roles: [%s], tenants: [%s]}\n", name, hex.EncodeToString(digest[:]), roles, tenants)
	}
	file := filepath.Join(t.TempDir(), "credentials.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(b.String()), 0o600))
	return file
}

// askAs makes a request with a token, and returns status and body.
func askAs(t *testing.T, method, url, token, contentType string, body []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	must.Succeed(t, err)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return resp.StatusCode, "" // it has no end
	}
	answer, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	return resp.StatusCode, string(answer)
}

// TestRolesOfRoutes holds every route of every router against the matrix, for a client of each
// role, of every tenant and of one, in JSON and in msgpack, and for clients without credentials.
func TestRolesOfRoutes(t *testing.T) {
	t.Parallel()
	roles := []string{"query", "register", "metrics", "peer", "admin"}
	var entries []string
	for _, r := range roles {
		entries = append(entries, r+" "+r+" '*'", r+"-b "+r+" b")
	}
	file := credentialsFile(t, entries...)
	for _, root := range []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo} {
		t.Run(root, func(t *testing.T) {
			t.Parallel()
			p := serveProcess(t, "auth: {file: "+file+"}\ndynamo: {test_endpoints: true}\n", "127.0.0.1:0="+root)
			calls := 0
			for _, route := range routesOf(root) {
				path := strings.TrimPrefix(strings.TrimPrefix(route.Path, "/conductor/v1"), "/dynamo/v1")
				rule, known := matrix[strings.Replace(route.Method, "HEAD", "GET", 1)+" "+path]
				if !known {
					t.Errorf("%s %s is in no line of the matrix", route.Method, route.Path)
					continue
				}
				role, whole := strings.CutSuffix(rule, "*")
				for _, token := range append([]string{"", "wrong"}, append(slices.Clone(roles), "query-b", "register-b", "metrics-b",
					"peer-b", "admin-b")...) {
					for _, kind := range []string{"application/json", "application/msgpack"} {
						has, oneTenant := strings.CutSuffix(token, "-b")
						want := 0 // the handler answers
						switch {
						case role == "open":
						case token == "" || token == "wrong":
							want = http.StatusUnauthorized
						case has != role && has != "admin", whole && oneTenant:
							want = http.StatusForbidden
						}
						if token == "wrong" && calls > 8 {
							continue // attempts are bounded, see TestWrongTokens
						}
						url := p.url + route.Path
						if route.Method == http.MethodDelete {
							url += "?tenant_id=b"
						}
						status, answer := askAs(t, route.Method, url, token, kind, []byte("{}"))
						calls++
						if refused := status == http.StatusUnauthorized || status == http.StatusForbidden; refused != (want != 0) ||
							want != 0 && status != want {
							t.Errorf("%s %s as %q in %s: %d %.200s, want %d", route.Method, route.Path, token, kind, status, answer, want)
						}
					}
				}
			}
			if calls < 200 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

// twoTenants is a server with an engine of the tenant a and one of the tenant b, which holds
// blocks that a salt belongs to.
func twoTenants(t *testing.T, more string) (*process, *ruledEngine) {
	secret := newRuledEngine(t, "engine-b", 0)
	other := newRuledEngine(t, "engine-a", 0)
	file := credentialsFile(t, "all-a query,register,peer,admin a,a2", "all-b query,register,peer,admin b", "query-b query b",
		"operator admin '*'")
	source := "  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: %s, tenant_id: %s, block_size: 16, additionalsalt: " +
		"registered-%s}\n"
	p := serveProcess(t, "auth: {file: "+file+"}\nsources:\n"+
		fmt.Sprintf(source, other.pub.Addr(), other.name, "a", "a")+fmt.Sprintf(source, secret.pub.Addr(), secret.name, "b", "b")+more)
	secret.publish(ruledStored(0, 4), ruledStored(4, 6, "cache_salt", "pepper", "parent_block_hash", nil))
	other.publish(ruledStored(0, 2))
	eventually(t, "the engines never settled", func() (string, bool) {
		_, answer := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		return answer, strings.Count(answer, `"LastSeq":0`) == 2
	})
	return p, secret
}

// TestForeignTenant asks as a client of tenant a for everything of tenant b. Nothing shows that b
// exists: the answers are those for a tenant that does not.
func TestForeignTenant(t *testing.T) {
	t.Parallel()
	p, _ := twoTenants(t, "dynamo: {test_endpoints: true}\n")
	tokens := recordedTokens(4 * recordedBlock)
	bodies := map[string]func(tenant string) map[string]any{
		"/query": func(x string) map[string]any {
			return map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "tenant_id": x}
		},
		"/query_by_hash": func(x string) map[string]any {
			return map[string]any{"model": "m", "block_size": 16, "seq_hashes": []uint64{1}, "tenant_id": x}
		},
		"/query_batch": func(x string) map[string]any {
			return map[string]any{"queries": []any{map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "tenant_id": x}}}
		},
		"/routed": func(x string) map[string]any {
			return map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "tenant_id": x, "instance_id": "engine-b",
				"request_id": "of-a"}
		},
		"/candidates": func(x string) map[string]any {
			return map[string]any{"model": "m", "token_ids": tokens, "tenant_id": x}
		},
		"/routed?answer": func(x string) map[string]any {
			return map[string]any{"answer_id": "7", "instance_id": "engine-b", "tenant_id": x}
		},
		"/routed?list": func(x string) map[string]any {
			return map[string]any{"prompts": []any{map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "tenant_id": x,
				"instance_id": "engine-b"}}}
		},
		"/feedback": func(x string) map[string]any {
			return map[string]any{"instance_id": "engine-b", "tenant_id": x, "matched_tokens": 1, "cached_tokens": 1}
		},
		"/admin/explain": func(x string) map[string]any {
			return map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "tenant_id": x}
		},
		"/register": func(x string) map[string]any {
			return map[string]any{"endpoint": "tcp://192.0.2.1:1", "type": "vLLM", "modelname": "m", "instance_id": "engine-b",
				"block_size": 16, "dp_rank": 0, "tenant_id": x}
		},
		"/unregister": func(x string) map[string]any {
			return map[string]any{"instance_id": "engine-b", "dp_rank": 0, "tenant_id": x}
		},
		"/dynamo/v1/query": func(x string) map[string]any {
			return map[string]any{"model_name": "m", "token_ids": tokens, "routing_group": x}
		},
		"/dynamo/v1/query_by_hash": func(x string) map[string]any {
			return map[string]any{"model_name": "m", "block_hashes": []int{1}, "routing_group": x}
		},
		"/dynamo/v1/query_tiered_by_hash": func(x string) map[string]any {
			return map[string]any{"model_name": "m", "block_hashes": []int{1}, "routing_group": x}
		},
		"/dynamo/v1/register": func(x string) map[string]any {
			return map[string]any{"instance_id": "engine-b", "endpoint": "tcp://192.0.2.1:1", "model_name": "m", "block_size": 16,
				"routing_group": x}
		},
		"/dynamo/v1/unregister": func(x string) map[string]any {
			return map[string]any{"instance_id": "engine-b", "model_name": "m", "routing_group": x}
		},
		"/dynamo/v1/test/pause_listener": func(x string) map[string]any {
			return map[string]any{"instance_id": map[string]string{"b": "engine-b", "z": "none"}[x]}
		},
		"/dynamo/v1/test/resume_listener": func(x string) map[string]any {
			return map[string]any{"instance_id": map[string]string{"b": "engine-b", "z": "none"}[x]}
		},
	}
	same := strings.NewReplacer(`"z"`, `"b"`, "=z", "=b", "none", "engine-b").Replace
	for path, body := range bodies {
		for _, kind := range []string{"application/json", "application/msgpack"} {
			encode := json.Marshal
			if kind == "application/msgpack" {
				if strings.HasPrefix(path, "/dynamo") || path == "/query_batch" || path == "/admin/explain" {
					continue // not in msgpack
				}
				encode = msgpack.Marshal
			}
			text := func(tenant string) []byte {
				b, err := encode(body(tenant))
				must.Succeed(t, err)
				return b
			}
			status, answer := askAs(t, "POST", p.url+path, "all-a", kind, text("b"))
			status2, answer2 := askAs(t, "POST", p.url+path, "all-a", kind, text("z"))
			if status != status2 || same(answer) != same(answer2) {
				t.Errorf("%s in %s tells tenants apart: %d %q, %d %q", path, kind, status, answer, status2, answer2)
			}
			if strings.Contains(answer, "longest_matched") || status == http.StatusOK && !strings.Contains(answer, "forbidden") {
				t.Errorf("%s in %s answers for another tenant: %d %q", path, kind, status, answer)
			}
		}
	}
	for _, path := range []string{"/services", "/instances", "/global_view", "/dynamo/v1/workers", "/dynamo/v1/dump", "/admin/digest",
		"/admin/prefixes", "/admin/stats", "/admin/stats?top=1", "/ready",
		"/services?dialect=v2", "/global_view?dialect=v2"} {
		for _, accept := range []string{"application/json", "application/msgpack"} {
			req, err := http.NewRequest("GET", p.url+path, nil)
			must.Succeed(t, err)
			req.Header.Set("Accept", accept)
			req.Header.Set("Authorization", "Bearer all-a")
			resp, err := http.DefaultClient.Do(req)
			must.Succeed(t, err)
			answer, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			must.Succeed(t, err)
			for _, secret := range []string{"engine-b", "registered-b", "pepper", `"b"`, ":b"} {
				if bytes.Contains(answer, []byte(secret)) {
					t.Errorf("%s as %s shows %s: %.400s", path, accept, secret, answer)
				}
			}
			if resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("engine-a")) && path != "/ready" &&
				path != "/dynamo/v1/dump" && path != "/admin/prefixes" {
				t.Errorf("%s as %s: %d %.200s", path, accept, resp.StatusCode, answer)
			}
		}
	}
	one, text := askAs(t, "GET", p.url+"/admin/events?source=engine-b|b|0", "all-a", "", nil)
	two, text2 := askAs(t, "GET", p.url+"/admin/events?source=engine-b|z|0", "all-a", "", nil)
	if one != two || strings.ReplaceAll(text2, "|z|", "|b|") != text {
		t.Errorf("/admin/events tells tenants apart: %d %s, %d %s", one, text, two, text2)
	}
	one, text = askAs(t, "GET", p.url+"/admin/drain?instance=engine-b", "all-a", "", nil)
	two, text2 = askAs(t, "GET", p.url+"/admin/drain?instance=none", "all-a", "", nil)
	if one != two || text != text2 {
		t.Errorf("/admin/drain tells instances apart: %d %s, %d %s", one, text, two, text2)
	}
	look := func(token string) *bufio.Reader {
		req, err := http.NewRequestWithContext(t.Context(), "GET", p.url+"/admin/live?feed=1", nil)
		must.Succeed(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return bufio.NewReader(resp.Body)
	}
	ofA, ofB := look("all-a"), look("all-b")
	read := func(from *bufio.Reader, until string) (text string) {
		for !strings.Contains(text, until) {
			line, err := from.ReadString('\n')
			must.Succeed(t, err)
			text += line
		}
		return text
	}
	read(ofA, `"version"`)
	read(ofB, `"version"`)
	askAs(t, "POST", p.url+"/query", "all-b", "application/json", asJSON(bodies["/query"]("b")))
	askAs(t, "POST", p.url+"/query", "all-a", "application/json", asJSON(bodies["/query"]("a")))
	_, id, _ := strings.Cut(read(ofB, "event: query\ndata: {")+read(ofB, "\n"), `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if text := read(ofA, "event: query\ndata: {") + read(ofA, `"gone"`); strings.Contains(text, "engine-b") ||
		strings.Contains(text, `"b"`) || strings.Contains(text, "registered-") {
		t.Errorf("the stream of a shows b: %s", text)
	}
	if status, answer := askAs(t, "POST", p.url+"/admin/explain", "all-b", "application/json",
		asJSON(map[string]any{"recent": id})); status != 200 || !strings.Contains(answer, "engine-b") {
		t.Errorf("a recent query: %d %s", status, answer)
	}
	one, text = askAs(t, "POST", p.url+"/admin/explain", "all-a", "application/json", asJSON(map[string]any{"recent": id}))
	two, text2 = askAs(t, "POST", p.url+"/admin/explain", "all-a", "application/json", asJSON(map[string]any{"recent": "none"}))
	if one != 400 || one != two || strings.ReplaceAll(text2, "none", id) != text {
		t.Errorf("/admin/explain tells queries apart: %d %s, %d %s", one, text, two, text2)
	}
	if _, answer := askAs(t, "GET", p.url+"/admin/queries", "all-a", "", nil); strings.Contains(answer, id) ||
		strings.Count(answer, `"id"`) != 1 {
		t.Errorf("/admin/queries: %s", answer)
	}
	for _, name := range []string{"engine-b", "of-nobody"} { // tenant a may use the name of an instance of tenant b
		body := asJSON(map[string]any{"instance_id": name, "endpoint": "tcp://192.0.2.1:1", "model_name": "m", "block_size": 32,
			"routing_group": "a2"})
		if status, answer := askAs(t, "POST", p.url+"/dynamo/v1/register", "all-a", "application/json",
			body); status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if _, answer := askAs(t, "POST", p.url+"/query", "query-b", "application/json",
		asJSON(bodies["/query"]("b"))); !strings.Contains(answer, "engine-b") {
		t.Errorf("the client of b gets %s", answer)
	}
}

func asJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// TestSecretsAreHidden looks for salts, endpoints and causes where a client may not see them.
func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	p, secret := twoTenants(t, "  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: dead, tenant_id: b, "+
		"block_size: 16}\n")
	eventually(t, "the dead source says nothing", func() (string, bool) {
		_, answer := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		return answer, strings.Contains(answer, "refused")
	})
	for _, path := range []string{"/services", "/services?dialect=v2", "/dynamo/v1/workers"} {
		_, answer := askAs(t, "GET", p.url+path, "query-b", "", nil)
		for _, hidden := range []string{secret.pub.Addr().String(), "127.0.0.1:1", "registered-b", "refused", "connect:"} {
			if strings.Contains(answer, hidden) {
				t.Errorf("%s shows %s: %s", path, hidden, answer)
			}
		}
	}
	if _, answer := askAs(t, "GET", p.url+"/global_view", "operator", "", nil); strings.Contains(answer, "pepper") ||
		!strings.Contains(answer, "redacted:") || !strings.Contains(answer, "registered-b") {
		t.Errorf("/global_view: %s", answer)
	}
	if log := p.log(); strings.Contains(log, "pepper") {
		t.Errorf("the log has the salt: %s", log)
	}
}

// TestWrongTokens guesses. A changed file counts without a restart, and one with a mistake changes nothing.
func TestWrongTokens(t *testing.T) {
	t.Parallel()
	file := credentialsFile(t, "old query '*'")
	p := serveProcess(t, "auth: {file: "+file+"}\n")
	if status, _ := askAs(t, "GET", p.url+"/services", "old", "", nil); status != 200 {
		t.Fatalf("status %d", status)
	}
	replace := func(text []byte) { // at once: an empty file is one without tokens
		t.Helper()
		must.Succeed(t, os.WriteFile(file+".new", text, 0o600))
		must.Succeed(t, os.Rename(file+".new", file))
	}
	replace([]byte("tokens: [{name: x, sha256: short}]"))
	eventually(t, "the mistake is not in the log", func() (string, bool) {
		log := p.log()
		return log, strings.Contains(log, "not replaced")
	})
	if status, _ := askAs(t, "GET", p.url+"/services", "old", "", nil); status != 200 {
		t.Errorf("a file with a mistake takes the token away: %d", status)
	}
	text, err := os.ReadFile(credentialsFile(t, "new query '*'"))
	must.Succeed(t, err)
	replace(text)
	eventually(t, "the new file is not read", func() (string, bool) {
		log := p.log()
		return log, strings.Contains(log, "credentials replaced")
	})
	if status, _ := askAs(t, "GET", p.url+"/services", "new", "", nil); status != 200 {
		t.Errorf("the new token is not known: %d", status)
	}
	seen := make(map[int]int)
	for range 30 {
		status, answer := askAs(t, "GET", p.url+"/services", "old", "", nil)
		if seen[status]++; strings.Contains(answer, "old") {
			t.Errorf("an answer repeats the token: %s", answer)
		}
	}
	if seen[401] < 5 || seen[429] < 10 || len(seen) != 2 {
		t.Errorf("statuses are %v", seen)
	}
	if status, _ := askAs(t, "GET", p.url+"/services", "new", "", nil); status != 200 {
		t.Errorf("a token that is in the file, from an address that guesses: %d", status)
	}
	if strings.Contains(p.log(), "sha256: short") {
		t.Error("the log has the entry")
	}
}

// TestGuessesLockNobodyOut guesses from the address that all clients of an ingress have. Clients with a token or a
// certificate are answered on every listener meanwhile, and those that guess are refused.
func TestGuessesLockNobodyOut(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	file := credentialsFile(t, "router query '*'", "scraper metrics '*'")
	known, err := os.ReadFile(file)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(file,
		append(known, "certificates: [{name: engine, subject: 'spiffe://fleet/engine', roles: [query], tenants: ['*']}]\n"...), 0o600))
	cert, key := ca.issue("server", 10, time.Now().Add(time.Hour))
	p, address := grpcProcess(t, fmt.Sprintf("tls: {cert: %s, key: %s, client_ca: %s}\nauth: {file: %s}\n", cert, key, ca.file, file),
		"--listen", "127.0.0.1:0=dynamo")
	root := strings.Replace(p.url, "http:", "https:", 1)
	lists := []string{root + "/services", root + "/conductor/v1/services", root + "/dynamo/v1/workers",
		"https://" + p.listener(t, "dynamo") + "/workers"}
	shows := func(name string) *http.Client { return ca.client(ca.issue(name, 20, time.Now().Add(time.Hour))) }
	bare, engine, stranger := ca.client("", ""), shows("engine"), shows("stranger")
	ask := func(c *http.Client, url, token string) int {
		t.Helper()
		req, err := http.NewRequest("GET", url, nil)
		must.Succeed(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := c.Do(req)
		must.Succeed(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	call := func(token string) codes.Code {
		pool := x509.NewCertPool()
		pool.AddCert(ca.cert)
		code, _ := codeOf(inTime(t), dialed(t, address, token, credentials.NewTLS(&tls.Config{RootCAs: pool})),
			pb.Conductor_Query_FullMethodName)
		return code
	}
	seen := make(map[int]int)
	for i := range 40 {
		seen[ask(bare, lists[i%len(lists)], fmt.Sprint("guess", i))]++
	}
	if seen[401] < 5 || seen[429] < 10 || len(seen) != 2 {
		t.Errorf("guesses: %v", seen)
	}
	for _, url := range lists {
		if got := ask(bare, url, "router"); got != 200 {
			t.Errorf("%s with a token: %d", url, got)
		}
		if got := ask(engine, url, ""); got != 200 {
			t.Errorf("%s with a certificate: %d", url, got)
		}
	}
	if got := ask(bare, root+"/metrics", "scraper"); got != 200 {
		t.Errorf("/metrics with a token: %d", got)
	}
	if got := call("router"); got == codes.ResourceExhausted || got == codes.Unauthenticated {
		t.Errorf("a call with a token: %s", got)
	}
	if got := call("guess"); got != codes.ResourceExhausted && got != codes.Unauthenticated {
		t.Errorf("a call with a wrong token: %s", got)
	}
	if got := ask(stranger, lists[0], ""); got != 429 && got != 401 {
		t.Errorf("with a certificate that is not known: %d", got)
	}
}

// TestAudit reads the log of registrations and calls of administration.
func TestAudit(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "router-a register,query a", "operator admin '*'")+"}\n")
	const body = `{"endpoint":"tcp://192.0.2.1:1","type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0,` +
		`"tenant_id":"a","additionalsalt":"pepper"}`
	for _, call := range []struct{ method, path, token, body string }{
		{"POST", "/register", "router-a", body}, {"POST", "/unregister", "router-a", `{"instance_id":"i","dp_rank":0,"tenant_id":"b"}`},
		{"POST", "/unregister", "router-a", `{"instance_id":"` + strings.Repeat("i", 257) + `","dp_rank":0,"tenant_id":"a"}`},
		{"POST", "/admin/reload", "router-a", "{}"},
		{"GET", "/dynamo/v1/dump", "", ""}, {"GET", "/admin/check", "operator", ""}, {"GET", "/services", "router-a", ""},
		{"POST", "/query", "router-a", "{}"},
	} {
		askAs(t, call.method, p.url+call.path, call.token, "application/json", []byte(call.body))
	}
	type line struct {
		Audit                                  bool
		Client, Address, Method, Path, Subject string
		Status                                 int
	}
	want := []line{
		{true, "router-a", "127.0.0.1", "POST", "/register", "i|a|0", 200}, {true, "router-a", "127.0.0.1", "POST", "/unregister", "i|b|0",
			403},
		{true, "router-a", "127.0.0.1", "POST", "/unregister", "", 400},
		{true, "router-a", "127.0.0.1", "POST", "/admin/reload", "", 403}, {true, "", "127.0.0.1", "GET", "/dynamo/v1/dump", "", 401},
		{true, "operator", "127.0.0.1", "GET", "/admin/check", "", 200},
	}
	eventually(t, "the audit log differs", func() (string, bool) {
		var got []line
		for text := range strings.Lines(p.log()) {
			var l line
			if json.Unmarshal([]byte(text), &l) == nil && l.Audit {
				got = append(got, l)
			}
		}
		return fmt.Sprintf("%+v", got), slices.Equal(got, want)
	})
	for _, secret := range []string{"pepper", "Bearer"} {
		if strings.Contains(p.log(), secret) {
			t.Errorf("the log has %s", secret)
		}
	}
	_, metrics := askAs(t, "GET", p.url+"/metrics", "operator", "", nil)
	for _, series := range []string{`conductor_audited_calls_total{result="done"} 2`, `conductor_audited_calls_total{result="refused"} 4`,
		`conductor_requests_refused_total{reason="unauthorized"} 1`} {
		if !strings.Contains(metrics, series) {
			t.Errorf("%s is not in the metrics", series)
		}
	}
}

// TestWebPages asks as web pages do.
func TestWebPages(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "")
	body := `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0}`
	for _, h := range []struct {
		name, value string
		status      int
	}{
		{"Content-Type", "text/plain", 415}, {"Content-Type", "application/x-www-form-urlencoded", 415},
		{"Content-Type", "Text/Plain; charset=utf-8", 415}, {"Origin", "https://evil.example", 403}, {"Sec-Fetch-Site", "cross-site", 403},
		{"Sec-Fetch-Site", "same-origin", 200},
	} {
		req, err := http.NewRequest("POST", p.url+"/register", strings.NewReader(body))
		must.Succeed(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(h.name, h.value)
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		resp.Body.Close()
		if resp.StatusCode != h.status {
			t.Errorf("%s: %s: %d, want %d", h.name, h.value, resp.StatusCode, h.status)
		}
	}
}

// untilRefused makes calls, sixteen at a time, until one has another result than fine. It counts
// the results. A slow machine makes more calls: a limit grants more the longer they take.
func untilRefused[T comparable](fine T, call func(i int) T) map[T]int {
	seen := make(map[T]int)
	for n := 0; seen[fine] == n; n += 16 {
		var results [16]T
		var wave sync.WaitGroup
		for i := range results {
			wave.Go(func() { results[i] = call(n + i) })
		}
		wave.Wait()
		for _, r := range results {
			seen[r]++
		}
	}
	return seen
}

// TestClientLimits sends more than a client may.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "a query,register a", "b query,register b")+
		"}\nlimits: {client_requests: 5, client_changes: 3, client_bytes: 100KiB, query_wait: 10m}\n")
	count := func(fine int, token, path, body string) map[int]int {
		return untilRefused(fine, func(i int) int {
			status, answer := askAs(t, "POST", p.url+path, token, "application/json", []byte(strings.ReplaceAll(body, "N", fmt.Sprint(i))))
			if status == http.StatusTooManyRequests && !strings.Contains(answer, "limits.client_") {
				t.Errorf("429 without a reason: %s", answer)
			}
			return status
		})
	}
	began := time.Now()
	unregister := `{"instance_id":"i-N","tenant_id":"a","dp_rank":0}`
	if seen := count(404, "a", "/unregister", unregister); seen[404] < 3 || seen[404] > 4+int(3*time.Since(began).Minutes()) ||
		seen[429] == 0 || len(seen) != 2 {
		t.Errorf("changes: %v", seen)
	}
	full := serveProcess(t, "limits: {max_tenant_sources: 2}\n")
	for i, want := range []int{200, 200, 503} {
		for _, tenant := range []string{"a", "b"} {
			answer := post(t, full.url+"/register",
				fmt.Sprintf(`{"endpoint":"tcp://192.0.2.1:1","type":"vLLM","modelname":"m","instance_id":"i-%d","block_size":16,`+
					`"dp_rank":0,"tenant_id":%q}`, i, tenant), want)
			if want == 503 && !strings.Contains(answer, "limits.max_tenant_sources allows 2") {
				t.Errorf("%s", answer)
			}
		}
	}
	query := `{"model":"m","block_size":16,"tenant_id":"b","token_ids":[1]}`
	if seen := count(200, "b", "/query", query); seen[200] < 5 || seen[429] == 0 || len(seen) != 2 {
		t.Errorf("the other tenant: %v", seen)
	}
}
