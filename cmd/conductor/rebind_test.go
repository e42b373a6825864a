package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// Names by which a server is asked at a loopback address, in the forms that clients write them.
var (
	foreignNames = []string{"rebind.example", "Rebind.Example.:1", "localhost.rebind.example", "127.0.0.1.rebind.example:1", "host:1",
		"192.0.2.1:1", "0.0.0.0:1", "[2001:db8::1]:1"}
	ownNames = []string{"127.0.0.1:1", "127.9.9.9", "localhost", "LOCALHOST.:1", "[::1]:1", "[::ffff:127.0.0.1]", "Conductor.example:1"}
)

// rawAsk sends one request as it is written and returns the status of its answer, and the answer with its headers.
func rawAsk(t *testing.T, address, request string) (status int, answer string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	must.Succeed(t, err)
	defer c.Close()
	_, err = c.Write([]byte(request))
	must.Succeed(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must.Succeed(t, err)
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return resp.StatusCode, "" // it has no end
	}
	var text strings.Builder
	resp.Write(&text)
	return resp.StatusCode, text.String()
}

// TestRebinding asks every route of every listener by the names that a web page may have, as HTTP/1 writes them in Host
// and in the target, and as HTTP/2 does.
func TestRebinding(t *testing.T) {
	t.Parallel()
	for _, root := range []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo} {
		for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
			t.Run(root+" "+listen, func(t *testing.T) {
				t.Parallel()
				p := serveProcess(t, "auth: {hosts: [conductor.example]}\ndynamo: {test_endpoints: true}\n", listen+"="+root)
				address := "127.0.0.1:" + p.url[strings.LastIndexByte(p.url, ':')+1:]
				refused := func(status int, answer string) bool {
					return status == http.StatusForbidden && strings.Contains(answer, "foreign_host") &&
						strings.Contains(answer, "auth.hosts")
				}
				for _, route := range append(routesOf(root), unknownRoutes[0], unknownRoutes[1]) {
					path := strings.NewReplacer(":service", "s", ":method", "m", ":profile", "none", "*file", "none", "*page", "none",
						"*id", "none").Replace(route.Path)
					if route.Method == http.MethodHead || path == "/admin/reload" {
						continue // GET says as much
					}
					ask := func(target, host string) (int, string) {
						return rawAsk(t, address, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
							"Content-Length: 2\r\nConnection: close\r\n\r\n{}", route.Method, target, host))
					}
					for _, name := range foreignNames {
						absolute := "http://" + name + path
						for _, asked := range [][2]string{{path, name}, {absolute, name}, {absolute, "localhost"}} {
							if status, answer := ask(asked[0], asked[1]); !refused(status, answer) {
								t.Errorf("%s %s as %s: %d %.300s", route.Method, asked[0], asked[1], status, answer)
							}
						}
					}
					for i, name := range ownNames {
						if i > 1 && path != "/health" && path != "/services" {
							break // the name is looked at alike on every route
						}
						for _, asked := range [][2]string{{path, name}, {"http://" + name + path, "rebind.example"}} {
							if status, answer := ask(asked[0], asked[1]); refused(status, answer) || status == http.StatusBadRequest &&
								!strings.Contains(answer, "reason") && root != config.Dynamo {
								t.Errorf("%s %s as %s: %d %.300s", route.Method, asked[0], asked[1], status, answer)
							}
						}
					}
				}
				// What comes before the routes, in net/http and in the router, tells a page no more.
				for _, line := range []string{"OPTIONS *", "GET http:services", "GET /docs", "GET /services/", "POST /query/",
					"GET //services"} {
					request := line + " HTTP/1.1\r\nHost: rebind.example\r\nConnection: close\r\n\r\n"
					if status, answer := rawAsk(t, address, request); !refused(status, answer) {
						t.Errorf("%s: %d %.300s", line, status, answer)
					}
				}
				for line, to := range map[string]string{
					"GET /docs": "301 /docs/", "GET /services/?detail=1": "200 ", "HEAD /docs": "307 /docs/", "GET //services": "200 ",
					"POST /query/?detail=1": "400 ", "GET /query/": "405 ", "GET //docs": "404 ", "GET /nothing/": "404 ",
				} {
					status, answer := rawAsk(t, address, line+" HTTP/1.0\r\n\r\n")
					_, location, _ := strings.Cut(answer, "\r\nLocation: ")
					location, _, _ = strings.Cut(location, "\r\n")
					if got := fmt.Sprint(status, " ", location); root == config.Conductor && got != to {
						t.Errorf("%s leads to %s, want %s", line, got, to)
					}
				}
				if status, answer := rawAsk(t, address, "GET /health HTTP/1.0\r\n\r\n"); status != http.StatusOK {
					t.Errorf("a probe of HTTP/1.0: %d %s", status, answer)
				}

				var protocols http.Protocols
				protocols.SetUnencryptedHTTP2(true)
				h2 := http.Client{Transport: &http.Transport{Protocols: &protocols, DisableKeepAlives: true}}
				for name, want := range map[string]int{"rebind.example": 403, "conductor.example": 200, "[::1]:7": 200, "Localhost": 200} {
					req, err := http.NewRequest("GET", "http://"+address+"/health", nil)
					must.Succeed(t, err)
					req.Host = name
					resp, err := h2.Do(req)
					must.Succeed(t, err)
					resp.Body.Close()
					if resp.StatusCode != want || resp.ProtoMajor != 2 {
						t.Errorf("HTTP/%d as %s: %d", resp.ProtoMajor, name, resp.StatusCode)
					}
				}
			})
		}
	}
}

// TestRebindingChangesNothing lets a page of a rebound domain, and pages of other origins, try what a page would do: list the
// engines and unregister them.
func TestRebindingChangesNothing(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "auth: {hosts: [conductor.example]}\n")
	address := strings.TrimPrefix(p.url, "http://")
	ask := func(method, path, host, headers, body string) (int, string) {
		return rawAsk(t, address, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
			"%sConnection: close\r\n\r\n%s", method, path, host, len(body), headers, body))
	}
	engine := `{"endpoint":"tcp://127.0.0.1:` + gone(t) + `","type":"vLLM","modelname":"m","instance_id":"e","block_size":16,"dp_rank":0}`
	post(t, p.url+"/register", engine, 200)
	for _, by := range [][2]string{
		{"rebind.example", "Origin: http://rebind.example\r\nSec-Fetch-Site: same-origin\r\n"}, {"rebind.example", ""},
		{address, "Origin: http://rebind.example\r\n"}, {address, "Origin: http://rebind.example\r\nSec-Fetch-Site: same-origin\r\n"},
		{address, "Origin: null\r\n"}, {address, "Origin: null\r\nSec-Fetch-Site: same-origin\r\n"},
		{address, "Origin: http://localhost:1\r\n"},
		{"", "Origin: null\r\n"}, {address, "Sec-Fetch-Site: cross-site\r\n"}, {"conductor.example", "Origin: http://rebind.example\r\n"},
	} {
		for _, change := range [][3]string{
			{"POST", "/unregister", `{"instance_id":"e","dp_rank":0}`},
			{"POST", "/conductor/v1/unregister", `{"instance_id":"e","dp_rank":0}`},
			{"POST", "/dynamo/v1/unregister", `{"instance_id":"e","model_name":"m"}`},
			{"POST", "/register", strings.ReplaceAll(engine, `"e"`, `"x"`)},
			{"POST", "/routed", `{}`}, {"DELETE", "/routed/x", ""}, {"POST", "/feedback", `{}`}, {"POST", "/lmcache/events", `{}`},
			{"POST", "/admin/reload", `{}`}, {"POST", "/dynamo/v1/register_peer", `{"url":"http://127.0.0.1:1"}`},
			{"POST", "/grpc/kvconductor.v1.Conductor/Routed", `x`},
		} {
			if status, answer := ask(change[0], change[1], by[0], by[1], change[2]); status != http.StatusForbidden {
				t.Errorf("%s %s as %q with %q: %d %s", change[0], change[1], by[0], by[1], status, answer)
			}
		}
	}
	if _, answer := get(p.url + "/services"); !strings.Contains(answer, `"count":1,`) || !strings.Contains(answer, `"InstanceID":"e"`) {
		t.Errorf("the engines are %s", answer)
	}
	if status, answer := ask("POST", "/unregister", "conductor.example", "Origin: https://conductor.example\r\n",
		`{"instance_id":"e","dp_rank":0}`); status != http.StatusOK {
		t.Errorf("a page of the server's own name: %d %s", status, answer)
	}
	if _, metrics := get(p.url + "/metrics"); !strings.Contains(metrics, `conductor_requests_refused_total{reason="foreign_host"}`) {
		t.Error("no metric counts the refused names")
	}
	if out, err := command("services", "--server", p.url).CombinedOutput(); err != nil {
		t.Errorf("conductor services: %s, %v", out, err)
	}
}

// TestRebindingOfCalls asks a listener of gRPC by the names that a web page may have.
func TestRebindingOfCalls(t *testing.T) {
	t.Parallel()
	_, address := grpcProcess(t, "auth: {hosts: [conductor.example]}\n")
	for name, fine := range map[string]bool{"rebind.example": false, "rebind.example.:1": false, "localhost.rebind.example": false,
		"192.0.2.1:1": false, "127.0.0.1": true, "[::1]:1": true, "LOCALHOST": true, "localhost.:1": true, "conductor.example:1": true} {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(name))
		must.Succeed(t, err)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(inTime(t), new(grpc_health_v1.HealthCheckRequest))
		if code := status.Code(err); (code == codes.OK) != fine || !fine && (code != codes.PermissionDenied ||
			!strings.Contains(err.Error(), "auth.hosts")) {
			t.Errorf("health as %s: %v", name, err)
		}
		_, err = pb.NewConductorClient(conn).Routed(inTime(t), new(pb.RoutedRequest))
		if code := status.Code(err); (code == codes.PermissionDenied) == fine {
			t.Errorf("a report as %s: %v", name, err)
		}
		conn.Close()
	}
}

// TestPageOfRebinding opens a server in a browser under a domain that leads to this machine, as a page of that domain would
// ask it, and under localhost, as an operator does.
func TestPageOfRebinding(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t, chromedp.Flag("host-resolver-rules", "MAP rebind.example 127.0.0.1"))
	p := serveProcess(t, "")
	post(t, p.url+"/register", `{"endpoint":"tcp://127.0.0.1:`+gone(t)+`","type":"vLLM","modelname":"m","instance_id":"e","block_size":16,`+
		`"dp_rank":0}`, 200)
	port := p.url[strings.LastIndexByte(p.url, ':'):]
	unregister := `fetch("/unregister", {method: "POST", headers: {"Content-Type": "application/json"}, ` +
		`body: '{"instance_id":"e","dp_rank":0}'}).then(r => r.status)`
	for name, status := range map[string]int{"rebind.example": 403, "localhost": 200} {
		tab := openTab(t, browser, "http://"+name+port+"/services", "light", 1000)
		text := js[string](tab, "document.body.innerText")
		if strings.Contains(text, "foreign_host") == (status == 200) || strings.Contains(text, `"InstanceID":"e"`) != (status == 200) {
			t.Errorf("%s shows %s", name, text)
		}
		if name == "localhost" {
			must.Succeed(t, chromedp.Do(tab.ctx, chromedp.Navigate("http://localhost"+port+"/docs/")))
			if title := js[string](tab, "document.querySelector('h1').innerText"); title == "" {
				t.Error("the documents have no title")
			}
		}
		if got := js[int](tab, unregister); got != status {
			t.Errorf("%s unregisters: %d", name, got)
		}
	}
}
