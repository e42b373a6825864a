package access

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/must"
)

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// TestPipesAreRefused reads pipes that nobody writes to in place of files that are watched.
func TestPipesAreRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.Succeed(t, syscall.Mkfifo(pipe, 0o600))
	_, credentials := LoadCredentials(pipe)
	_, certificates := LoadCertificates(ServerFiles{Cert: pipe, Key: pipe})
	for _, err := range []error{credentials, certificates} {
		if err == nil || !strings.Contains(err.Error(), pipe+" is no regular file") {
			t.Errorf("a pipe: %v", err)
		}
	}
}

// TestParseCredentialsMistakes holds that all mistakes are reported with entry and field.
func TestParseCredentialsMistakes(t *testing.T) {
	_, err := ParseCredentials("c.yaml", []byte(fmt.Sprintf(`
tokens:
  - {name: a, sha256: %[1]s, roles: [query], tenants: [x]}
  - {name: a, sha256: %[2]s, roles: [query], tenants: [x]}
  - {name: c, sha256: %[1]s, roles: [query], tenants: [x]}
  - {name: d, sha256: secret, roles: [query], tenants: [x]}
  - {name: e, sha256: %[3]s, roles: [root], tenants: [x]}
  - {name: f, sha256: %[3]s, roles: [], tenants: [x]}
  - {name: g, sha256: %[3]s, roles: [query]}
  - {name: h, sha256: %[3]s, roles: [query], tenants: ["*", x]}
  - {name: i, sha256: %[3]s, roles: [query], tenants: [x], subject: y}
  - {sha256: %[3]s, roles: [query], tenants: [x]}
certificates:
  - {name: k, roles: [query], tenants: [x]}
  - {name: l, subject: s, roles: [query], tenants: [x], sha256: %[3]s}
`, digest("1"), digest("2"), digest("3"))))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`c.yaml:4:12: tokens[1].name: "a" is taken`, "c.yaml:5:23: tokens[2].sha256: another entry", "tokens[3].sha256: must be 64",
		`tokens[4].roles[0]: "root" is no role`, "tokens[5].roles: is required",
		"c.yaml:9:5: tokens[6].tenants: is required", `tokens[7].tenants: "*"`, "tokens[8].subject: only", "tokens[9].name: is required",
		"certificates[0].subject: is required", "certificates[1].sha256: only",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Error("the error repeats what should have been a digest")
	}
	for _, text := range []string{"", "# nobody"} {
		if _, err := ParseCredentials("c.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "tokens: []") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestCredentialsOfWrongKinds holds that a value of the wrong kind, or an unknown key, hides no other mistake, also behind an alias
// or a merge, and that every line has a place, a path and words of people.
func TestCredentialsOfWrongKinds(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		_, err := ParseCredentials("c.yaml", []byte(strings.ReplaceAll(text, "SUM", digest("1"))))
		if err == nil {
			t.Fatalf("%s: no error", text)
		}
		if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", text, err, strings.Join(want, "\n"))
		}
		for _, word := range []string{"!!", "access.", "[]string", "struct", "s3cret", "%!"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: says %s: %v", text, word, err)
			}
		}
	}
	f("token: []", `c.yaml:1:1: token: unknown key; did you mean "tokens"?`)
	f("[]", "c.yaml:1:1: must be a map of keys, not a list")
	f("tokens: s3cret\ncertificates: {}",
		"c.yaml:1:9: tokens: must be a list, not a text", "c.yaml:2:15: certificates: must be a list, not a map")
	f("tokens: [s3cret, [], ~]", "c.yaml:1:10: tokens[0]: must be a map of keys, not a text",
		"c.yaml:1:18: tokens[1]: must be a map of keys, not a list",
		"c.yaml:1:22: tokens[2].sha256: is required; conductor token makes an entry",
		"c.yaml:1:22: tokens[2].name: is required",
		"c.yaml:1:22: tokens[2].roles: is required; the roles are query, register, metrics, peer, admin",
		`c.yaml:1:22: tokens[2].tenants: is required; ["*"] is every tenant`)
	f(`tokens:
- {name: [s3cret], sha256: {}, roles: query, tenants: s3cret, weight: 1.5, rolls: []}
- {name: b, sha256: SUM, roles: [[], query, ~], tenants: [{}, ""], weight: 2000}
- {name: b, sha256: SUM, roles: [qury], tenants: [x], weight: -1}
certificates:
- {name: !!binary czNjcmV0, subject: {}, roles: {}, tenants: true, weight: s3cret}`,
		"c.yaml:2:10: tokens[0].name: must be text, not a list",
		"c.yaml:2:28: tokens[0].sha256: must be text, not a map",
		"c.yaml:2:39: tokens[0].roles: must be a list, not a text",
		"c.yaml:2:55: tokens[0].tenants: must be a list, not a text",
		"c.yaml:2:71: tokens[0].weight: must be a whole number, not a fraction",
		`c.yaml:2:76: tokens[0].rolls: unknown key; did you mean "roles"?`,
		"c.yaml:3:95: tokens[1].roles[0]: must be text, not a list",
		`c.yaml:3:106: tokens[1].roles[2]: "" is no role; the roles are query, register, metrics, peer, admin`,
		"c.yaml:3:120: tokens[1].tenants[0]: must be text, not a map",
		"c.yaml:3:124: tokens[1].tenants[1]: a tenant has no name",
		"c.yaml:3:137: tokens[1].weight: must be 1 to 1000; leave it out for 1",
		`c.yaml:4:10: tokens[2].name: "b" is taken by another entry`,
		"c.yaml:4:21: tokens[2].sha256: another entry has the same token",
		`c.yaml:4:95: tokens[2].roles[0]: "qury" is no role; the roles are query, register, metrics, peer, admin`,
		"c.yaml:4:124: tokens[2].weight: must be 1 to 1000; leave it out for 1",
		"c.yaml:6:10: certificates[0].name: must be text, not a value of another type",
		"c.yaml:6:38: certificates[0].subject: must be text, not a map",
		"c.yaml:6:49: certificates[0].roles: must be a list, not a map",
		"c.yaml:6:62: certificates[0].tenants: must be a list, not a truth value",
		"c.yaml:6:76: certificates[0].weight: must be a whole number, not a text")
	f("tokens:\n- &a {name: a, sha256: SUM, roles: &r [king], tenants: [x], rolls: 1}\n- {<<: *a, name: b}\n- {roles: *r, <<: *a}",
		`c.yaml:2:13: tokens[2].name: "a" is taken by another entry`,
		"c.yaml:2:24: tokens[1].sha256: another entry has the same token",
		"c.yaml:2:24: tokens[2].sha256: another entry has the same token",
		`c.yaml:2:101: tokens[0].roles[0]: "king" is no role; the roles are query, register, metrics, peer, admin`,
		`c.yaml:2:101: tokens[1].roles[0]: "king" is no role; the roles are query, register, metrics, peer, admin`,
		`c.yaml:2:101: tokens[2].roles[0]: "king" is no role; the roles are query, register, metrics, peer, admin`,
		`c.yaml:2:122: tokens[0].rolls: unknown key; did you mean "roles"?`,
		`c.yaml:2:122: tokens[1].rolls: unknown key; did you mean "roles"?`,
		`c.yaml:2:122: tokens[2].rolls: unknown key; did you mean "roles"?`)
	f("tokens: [{name: a, token: s3cret, roles: [query], tenants: [x]}]",
		"c.yaml:1:10: tokens[0].sha256: is required; conductor token makes an entry",
		"c.yaml:1:20: tokens[0].token: unknown key; write its sha256; conductor token makes an entry")
	f("tokens: &a [*a]", "c.yaml:1:9: tokens[0]: must be a map of keys, not a list")
	f("tokens: [&a {<<: *a, name: a, sha256: SUM, roles: [query], tenants: [x]}]",
		"c.yaml:1:18: tokens[0]: << merges a map into itself")
	const star = ": no valid YAML: did not find expected alphabetic or numeric character" +
		`; put a text that begins with * in quotes, as in "*"`
	f("tokens: [{tenants: [*]}]", "c.yaml:1"+star)
	f("tokens:\n- name: a\n  tenants: [*]\n", "c.yaml:3"+star)
	f("tokens: [\n  {", "c.yaml:3: no valid YAML: did not find expected node content")
	f("tokens: []\n---\ntokens: []", "c.yaml:2:1: a second YAML document follows the first; a file holds one")
}

// TestCredentialsStayReadable reads files as people have them, with anchors, merges of merges and numbers for names.
func TestCredentialsStayReadable(t *testing.T) {
	c, err := ParseCredentials("c.yaml", []byte(fmt.Sprintf(`
tokens:
- &a {name: 7, sha256: %s, roles: &r [query], tenants: &t [12, x], weight: }
- &b {<<: *a, name: true, sha256: %s}
- {<<: [*b], sha256: %s, name: 2024-01-01}
certificates: [{name: c, subject: 1.5, roles: *r, tenants: *t}]
`, digest("1"), digest("2"), digest("3"))))
	must.Succeed(t, err)
	for token, name := range map[string]string{"1": "7", "2": "true", "3": "2024-01-01"} {
		got := c.byToken(token)
		if got == nil || got.Name != name || !slices.Equal(got.Tenants, []string{"12", "x"}) || got.Roles != Query {
			t.Errorf("token %s: %+v", token, got)
		}
	}
	if got := c.certificates["1.5"]; got == nil || got.Name != "c" {
		t.Errorf("the certificate: %+v", got)
	}
}

// TestRulesFitRoutes holds that open routes need no role and all others need one.
func TestRulesFitRoutes(t *testing.T) {
	for route, r := range rules {
		if r.open == (r.role != 0) || r.open && (r.whole || r.change) {
			t.Errorf("%s: %+v", route, r)
		}
		asks := route == "POST /admin/explain" // as a query does
		if strings.HasPrefix(route, "POST") && r.role != Query && !r.change && !asks {
			t.Errorf("%s changes something, and web pages may ask for it", route)
		}
	}
	for _, prefix := range append(slices.Clone(prefixes), "") {
		if r, known := ruleOf(http.MethodHead, prefix+"/dump"); !known || r.role != Peer {
			t.Errorf("HEAD %s/dump: %+v", prefix, r)
		}
	}
	if _, known := ruleOf("GET", "/admin/new"); known {
		t.Error("a path without a rule has one")
	}
}

// guarded is a router with one route of each kind.
func guarded(p Policy) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(New(p, zerolog.Nop()).Check)
	answer := func(g *gin.Context) {
		c := Of(g)
		g.String(http.StatusOK, "%s|%s|%s", c.Name, c.Roles, strings.Join(c.Tenants, ","))
	}
	r.POST("/query", answer)
	r.POST("/register", answer)
	r.GET("/health", answer)
	r.GET("/metrics", answer)
	r.GET("/ui", answer)
	r.GET("/new", answer)
	return r
}

// TestFlows asks as several clients. Those of one tenant are one flow from wherever they ask, and no
// two tenants are: the queue of queries (server.Admission) shares its slots between flows.
func TestFlows(t *testing.T) {
	var text strings.Builder
	for name, tenants := range map[string]string{"a": "x", "a2": "x", "b": "y", "router": "x, y"} {
		fmt.Fprintf(&text, "  - {name: %s, sha256: %s, roles: [query], tenants: [%s]}\n", name, digest(name), tenants)
	}
	known, err := ParseCredentials("c.yaml", []byte("tokens:\n"+text.String()))
	must.Succeed(t, err)
	flow := func(p Policy, token, address string) (f bounds.Flow) {
		r := gin.New()
		r.Use(New(p, zerolog.Nop()).Check)
		r.POST("/query", func(g *gin.Context) { f = server.FlowOf(g) })
		q := httptest.NewRequest("POST", "/query", nil)
		q.RemoteAddr = address
		q.Header.Set("Authorization", "Bearer "+token)
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if r.ServeHTTP(w, q); w.Code != http.StatusOK {
			t.Errorf("client %s: %d %s", token, w.Code, w.Body)
		}
		return f
	}
	p := Policy{Credentials: known}
	if a, again := flow(p, "a", "192.0.2.1:1"), flow(p, "a2", "192.0.2.2:1"); a != again {
		t.Errorf("two clients of tenant x are %v and %v", a, again)
	}
	if a, b := flow(p, "a", "192.0.2.1:1"), flow(p, "b", "192.0.2.1:1"); a.Name == b.Name {
		t.Errorf("tenants x and y are both %v", a)
	}
	if a, router := flow(p, "a", "192.0.2.1:1"), flow(p, "router", "192.0.2.1:1"); a.Name == router.Name {
		t.Errorf("tenant x and a client of both are %v", a)
	}
	open := Policy{Anonymous: Query}
	if one, two := flow(open, "", "192.0.2.1:1"), flow(open, "", "198.51.100.1:1"); one.Name == two.Name {
		t.Errorf("two networks without credentials are both %v", one)
	}
}

// TestDefaultDeny holds that a route without a rule is refused to every client.
func TestDefaultDeny(t *testing.T) {
	w := httptest.NewRecorder()
	guarded(Policy{Anonymous: Admin}).ServeHTTP(w, httptest.NewRequest("GET", "/new", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("status %d", w.Code)
	}
}

// reached returns a request as if it had reached the server at an address.
func reached(r *http.Request, at string) *http.Request {
	addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(addr)))
}

// TestForwardedAddressesCountForNothing asks from another machine with the headers that proxies set.
func TestForwardedAddressesCountForNothing(t *testing.T) {
	h := guarded(Policy{Anonymous: Query, Loopback: Admin})
	for address, want := range map[string]int{"203.0.113.9:4711": 403, "127.0.0.1:4711": 200, "[::1]:4711": 200,
		"[::ffff:127.0.0.1]:1": 200, "": 403, "localhost:1": 403} {
		r := reached(httptest.NewRequest("GET", "/metrics", nil), "127.0.0.1:13333")
		r.RemoteAddr = address
		for _, name := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "True-Client-Ip", "X-Client-Ip"} {
			r.Header.Set(name, "127.0.0.1")
		}
		r.Host = "127.0.0.1"
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: %d, want %d", address, w.Code, want)
		}
	}
}

// TestPageIsOpenWhereClientsHaveCredentials asks for the page as browsers do, without a token.
func TestPageIsOpenWhereClientsHaveCredentials(t *testing.T) {
	known, err := ParseCredentials("c.yaml", []byte("tokens: [{name: a, sha256: "+digest("token")+", roles: [query], tenants: [x]}]"))
	must.Succeed(t, err)
	f := func(p Policy, address string, want int) {
		t.Helper()
		r := reached(httptest.NewRequest("GET", "/ui", nil), "127.0.0.1:13333")
		r.RemoteAddr, r.Host = address, "localhost"
		w := httptest.NewRecorder()
		if guarded(p).ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d, want %d", address, w.Code, want)
		}
	}
	f(Policy{Anonymous: Query, Loopback: Admin}, "127.0.0.1:1", 200)
	f(Policy{Anonymous: Query, Loopback: Admin}, "203.0.113.9:1", 403)
	f(Policy{Anonymous: Admin}, "203.0.113.9:1", 200)
	f(Policy{Credentials: known}, "203.0.113.9:1", 200)
	f(Policy{Credentials: known}, "127.0.0.1:1", 200)
}

// TestNamesOfLoopback asks by the names that a browser sends, at a loopback address and at another one. A web page's owner
// can point a domain of his at this machine, and none of the names of loopback.
func TestNamesOfLoopback(t *testing.T) {
	h := guarded(Policy{Anonymous: Query, Loopback: Admin, Hosts: []string{"Conductor.Example.", "proxy", "[2001:db8::1]"}})
	ask := func(method, path, host, at, from string, header ...string) (int, string) {
		r := reached(httptest.NewRequest(method, path, nil), at)
		r.RemoteAddr, r.Host = from, host
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const here, there = "127.0.0.1:13333", "192.0.2.1:13333"
	for name, who := range map[string]string{
		"127.0.0.1:13333": "local", "127.0.0.1": "local", "127.255.3.4:1": "local", "127.0.0.1.:1": "local", "[::1]:13333": "local",
		"[::1]": "local", "[0:0:0:0:0:0:0:1]:1": "local", "[::ffff:127.0.0.1]:1": "local", "localhost": "local", "LOCALHOST:1": "local",
		"localhost.:1": "local", "": "local",
		"conductor.example": "named", "CONDUCTOR.example.:80": "named", "proxy:13333": "named", "[2001:DB8::1]:443": "named",
		"rebind.example": "", "rebind.example:13333": "", "rebind.example.:13333": "", "127.0.0.1.rebind.example": "",
		"localhost.rebind.example": "", "a.localhost": "", "xlocalhost": "", "localhost..": "", "conductor-0:13333": "", "192.0.2.1": "",
		"0.0.0.0:13333": "", "[::]:13333": "", "128.0.0.1": "", "a.conductor.example": "", "conductor.example.net": "", "null": "",
		"rebind.example@127.0.0.1": "", "127.0.0.1, rebind.example": "", "[::1]rebind.example": "", "[::1": "", "::1:13333": "",
		"[]": "", ":13333": "",
	} {
		for _, target := range []string{"GET /health", "GET /metrics", "POST /query", "POST /register", "GET /new", "GET /nowhere"} {
			method, path, _ := strings.Cut(target, " ")
			want, elsewhere := map[string]int{"/health": 200, "/query": 200, "/new": 403, "/nowhere": 404}[path], 0
			if elsewhere = want; want == 0 {
				if want, elsewhere = 403, 403; who == "local" {
					want = 200
				}
			}
			if who == "" {
				want = 403
			}
			status, answer := ask(method, path, name, here, "127.0.0.1:4711")
			foreign := strings.Contains(answer, "foreign_host") && strings.Contains(answer, "auth.hosts")
			if status != want || foreign != (who == "") {
				t.Errorf("%s as %q: %d %s, want %d", target, name, status, answer, want)
			}
			if status, _ := ask(method, path, name, there, "192.0.2.7:4711"); status != elsewhere {
				t.Errorf("%s as %q from elsewhere: %d, want %d", target, name, status, elsewhere)
			}
		}
	}
	// A sidecar hands clients of others to the server at the address that they asked.
	if status, _ := ask("GET", "/metrics", "localhost", there, "127.0.0.6:4711"); status != 403 {
		t.Errorf("a client of a sidecar: %d", status)
	}

	change := func(host, at, from string, want int, header ...string) {
		t.Helper()
		if status, answer := ask("POST", "/register", host, at, from, header...); status != want {
			t.Errorf("%s with %q: %d %s", host, header, status, answer)
		}
	}
	const local = "127.0.0.1:4711"
	h = guarded(Policy{Anonymous: Query | Register, Loopback: Admin, Hosts: []string{"conductor.example"}})
	for _, site := range []string{"", "same-origin", "none"} { // a proxy may have put another Host
		change("127.0.0.1:13333", here, local, 403, "Origin", "http://rebind.example:13333", "Sec-Fetch-Site", site)
		change("127.0.0.1:13333", here, local, 403, "Origin", "null", "Sec-Fetch-Site", site)
		change("", here, local, 403, "Origin", "null", "Sec-Fetch-Site", site)
		change("", here, local, 403, "Origin", "file://", "Sec-Fetch-Site", site)
		change("127.0.0.1:13333", here, local, 403, "Origin", "http://127.0.0.1:13333", "Origin", "null", "Sec-Fetch-Site", site)
		change("rebind.example", there, "192.0.2.7:4711", 403, "Origin", "http://rebind.example", "Sec-Fetch-Site", site)
		change("127.0.0.1:13333", here, local, 200, "Origin", "http://127.0.0.1:13333", "Sec-Fetch-Site", site)
		change("conductor.example", here, local, 200, "Origin", "https://conductor.example", "Sec-Fetch-Site", site)
		change("192.0.2.1:13333", there, "192.0.2.7:4711", 200, "Origin", "http://192.0.2.1:13333", "Sec-Fetch-Site", site)
	}
	change("localhost:13333", here, local, 403, "Origin", "http://localhost:3000")
	change("localhost:13333", here, local, 403, "Sec-Fetch-Site", "cross-site")
	change("localhost:13333", here, local, 200)
	change("rebind.example", there, "192.0.2.7:4711", 200) // no browser asks so
}

// TestNamesWithCredentials asks by a name that the server does not know. A page does not know the token, and without roles
// for clients without one it learns nothing.
func TestNamesWithCredentials(t *testing.T) {
	known, err := ParseCredentials("c.yaml", []byte("tokens: [{name: a, sha256: "+digest("token")+", roles: [query], tenants: [x]}]"))
	must.Succeed(t, err)
	ask := func(p Policy, method, path, token string) int {
		r := reached(httptest.NewRequest(method, path, nil), "127.0.0.1:13333")
		r.RemoteAddr, r.Host = "127.0.0.1:4711", "conductor.example"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		guarded(p).ServeHTTP(w, r)
		return w.Code
	}
	closed, open := Policy{Credentials: known}, Policy{Credentials: known, Anonymous: Query}
	for _, f := range []struct {
		p                   Policy
		method, path, token string
		want                int
	}{
		{closed, "POST", "/query", "token", 200}, {closed, "POST", "/query", "", 401}, {closed, "GET", "/health", "", 200},
		{closed, "GET", "/ui", "", 200}, {open, "POST", "/query", "token", 200}, {open, "POST", "/query", "", 403},
		{open, "GET", "/health", "", 403}, {open, "POST", "/query", "wrong", 401},
		{Policy{Anonymous: Query}, "POST", "/query", "token", 403},
	} {
		if got := ask(f.p, f.method, f.path, f.token); got != f.want {
			t.Errorf("%s %s with %q: %d, want %d", f.method, f.path, f.token, got, f.want)
		}
	}
}

// TestAttemptsOfOneNetwork guesses from addresses of one IPv6 network, which one machine has.
func TestAttemptsOfOneNetwork(t *testing.T) {
	known, err := ParseCredentials("c.yaml", []byte("tokens: [{name: a, sha256: "+digest("token")+", roles: [query], tenants: [x]}]"))
	must.Succeed(t, err)
	h := guarded(Policy{Credentials: known})
	ask := func(address, token string) int {
		r := httptest.NewRequest("POST", "/query", nil)
		r.RemoteAddr = address
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	last := 0
	for i := range attemptsAtOnce + 1 {
		last = ask(fmt.Sprintf("[2001:db8::%x:1]:4711", i), "wrong")
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the last of many addresses: %d", last)
	}
	if got := ask("[2001:db8::1]:4711", "token"); got != http.StatusOK {
		t.Errorf("a client of the network with a token: %d", got)
	}
	if got := ask("[2001:db8::1]:4711", strings.Repeat("token", maxToken)); got != http.StatusTooManyRequests {
		t.Errorf("a token longer than any: %d", got)
	}
	if got := ask("[2001:db8:0:1::1]:4711", "wrong"); got != http.StatusUnauthorized {
		t.Errorf("another network: %d", got)
	}
}

// FuzzGuard sends arbitrary headers. None gives a client more than it has, and none stops the
// process.
func FuzzGuard(f *testing.F) {
	known, err := ParseCredentials("c.yaml", []byte("tokens: [{name: a, sha256: "+digest("token")+", roles: [query], tenants: [x]}]"))
	must.Succeed(f, err)
	for _, seed := range []string{"", "Bearer token", "bearer token", "Bearer", "Bearer  token ", "Basic dG9rZW4=", "Bearer tok\x00en",
		"Bearer token, Bearer token"} {
		f.Add(seed, "application/json", "", "203.0.113.9:1")
	}
	f.Fuzz(func(t *testing.T, authorization, contentType, origin, address string) {
		h := guarded(Policy{Credentials: known})
		for _, target := range []string{"POST /query", "POST /register", "GET /metrics"} {
			method, path, _ := strings.Cut(target, " ")
			r := httptest.NewRequest(method, path, nil)
			r.RemoteAddr = address
			r.Header.Set("Authorization", authorization)
			r.Header.Set("Content-Type", contentType)
			r.Header.Set("Origin", origin)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			scheme, text, _ := strings.Cut(authorization, " ")
			right := strings.EqualFold(scheme, "Bearer") && strings.TrimSpace(text) == "token"
			if w.Code == http.StatusOK && (!right || path != "/query") {
				t.Errorf("%s with %q: %d", target, authorization, w.Code)
			}
			if strings.Contains(w.Body.String(), "token") && w.Code != http.StatusUnauthorized {
				t.Errorf("the answer repeats the token: %s", w.Body)
			}
		}
	})
}

// FuzzParseCredentials reads arbitrary files.
func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte("tokens: [{name: a, sha256: " + digest("token") + ", roles: [query], tenants: [x]}]"))
	f.Add([]byte("certificates: [{name: a, subject: s, roles: [admin], tenants: ['*']}]"))
	f.Add([]byte("tokens: &a [*a]"))
	f.Add([]byte("tokens: [&a {<<: *a, name: 1, rolls: }, *a, {<<: [*a]}, [], text]\ncertificates: *a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseCredentials("c.yaml", text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "c.yaml") {
					t.Errorf("no place in %q", line)
				}
			}
			return
		}
		for _, known := range c.tokens {
			if known.client.Name == "" || known.client.Roles == 0 || known.client.Tenants != nil && len(known.client.Tenants) == 0 {
				t.Errorf("an entry without a name, a role or a tenant: %+v", known.client)
			}
		}
		if c.byToken("") != nil && !bytes.Contains(text, []byte(digest(""))) {
			t.Error("the empty token is known")
		}
	})
}

// BenchmarkCheck is what a Guard costs a request: of a client without credentials on an open
// server, with one token of 1 and of 1,000, and with limits.
func BenchmarkCheck(b *testing.B) {
	for _, bench := range []struct {
		name    string
		entries int
		limits  Limits
	}{{"open", 0, Limits{}}, {"1 token", 1, Limits{}}, {"1000 tokens", 1000, Limits{}}, {"limits", 1,
		Limits{Requests: 1 << 30, Bytes: 1 << 40}}} {
		b.Run(bench.name, func(b *testing.B) {
			p := Policy{Anonymous: Query, Limits: bench.limits}
			if bench.entries > 0 {
				text := "tokens:\n"
				for i := range bench.entries {
					text += fmt.Sprintf("  - {name: n%d, sha256: %s, roles: [query], tenants: [a]}\n", i, digest(fmt.Sprint("secret", i)))
				}
				var err error
				p.Credentials, err = ParseCredentials("c.yaml", []byte(text))
				must.Succeed(b, err)
			}
			router := gin.New()
			router.Use(New(p, zerolog.Nop()).Check)
			router.POST("/query", func(*gin.Context) {})
			bare := gin.New()
			bare.POST("/query", func(*gin.Context) {})
			req := httptest.NewRequest("POST", "/query", nil)
			req.Header.Set("Content-Type", "application/json")
			if bench.entries > 0 {
				req.Header.Set("Authorization", "Bearer secret0")
			}
			w := httptest.NewRecorder()
			if router.ServeHTTP(w, req); w.Code != http.StatusOK {
				b.Fatal(w.Code, w.Body)
			}
			b.Run("with", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					router.ServeHTTP(w, req)
				}
			})
			b.Run("without", func(b *testing.B) {
				for b.Loop() {
					bare.ServeHTTP(w, req)
				}
			})
		})
	}
}
