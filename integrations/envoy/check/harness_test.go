// Package check runs the picker's side of the endpoint picker protocol against the real Envoy, configured by deploy/envoy.yaml.
// ENVOY_BIN names Envoy's program; without it every test is skipped. `make envoy-check` installs Envoy and sets it.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/integrations/envoy/extproc"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/integrations/envoy/server"
	"example.com/conductor/internal/must"
)

// patience is how long a test waits for what has to come. It is long, because only a test that fails waits for all of it.
const patience = 30 * time.Second

// until polls until done returns "", and fails with what it returned last.
func until(t *testing.T, done func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		last := done()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(last)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// refusing returns an address that refuses connections. The test holds its port, so no other program can listen there.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// listen listens on an address. If another program uses its port for a moment, as the end of a connection, it waits.
func listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	until(t, func() string {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return err.Error()
		}
		return ""
	})
	return l
}

// bootstrap is deploy/envoy.yaml, to be changed by a test.
type bootstrap map[string]any

// at walks down maps by name and lists by index.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(map[string]any)[step]
		case int:
			v = v.([]any)[step]
		}
	}
	return v
}

func (b bootstrap) listener() map[string]any {
	return at(map[string]any(b), "static_resources", "listeners", 0).(map[string]any)
}

func (b bootstrap) cluster(name string) map[string]any {
	for _, c := range at(map[string]any(b), "static_resources", "clusters").([]any) {
		if at(c, "name") == name {
			return c.(map[string]any)
		}
	}
	panic("no cluster " + name)
}

// manager is the HTTP connection manager.
func (b bootstrap) manager() map[string]any {
	return at(b.listener(), "filter_chains", 0, "filters", 0, "typed_config").(map[string]any)
}

func (b bootstrap) filter(name string) map[string]any {
	for _, f := range b.manager()["http_filters"].([]any) {
		if at(f, "name") == name {
			return at(f, "typed_config").(map[string]any)
		}
	}
	panic("no filter " + name)
}

func (b bootstrap) setEndpoints(cluster string, addresses ...string) {
	var endpoints []any
	for _, a := range addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			panic(err)
		}
		n, _ := strconv.Atoi(port)
		endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{
			"address": map[string]any{"socket_address": map[string]any{"address": host, "port_value": n}},
		}})
	}
	b.cluster(cluster)["load_assignment"] = map[string]any{
		"cluster_name": cluster, "endpoints": []any{map[string]any{"lb_endpoints": endpoints}},
	}
}

// variant is a way to configure Envoy.
type variant struct {
	name  string
	apply func(bootstrap)
}

// variants are the file as it is, and what gateways make of it.
var variants = []variant{
	{"buffered", func(bootstrap) {}},
	{"full duplex", fullDuplex},
	{"full duplex and header", func(b bootstrap) {
		fullDuplex(b)
		byHeader(b)
	}},
}

// byHeader has Envoy take the endpoint from the header in place of the metadata.
func byHeader(b bootstrap) {
	policy := at(b.cluster("engines"), "load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config")
	policy.(map[string]any)["override_host_sources"] = []any{map[string]any{"header": "x-gateway-destination-endpoint"}}
}

func fullDuplex(b bootstrap) {
	b.filter("envoy.filters.http.ext_proc")["processing_mode"] = map[string]any{
		"request_header_mode": "SEND", "request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND",
		"response_header_mode": "SEND", "response_body_mode": "FULL_DUPLEX_STREAMED", "response_trailer_mode": "SEND",
	}
	// The picker has to remove by itself what came from outside.
	filters := b.manager()["http_filters"].([]any)
	b.manager()["http_filters"] = filters[1:]
}

// instrument lets tests set subset hints and see the metadata, and lets trailers through.
func instrument(b bootstrap) {
	rule := func(header, encoding, kind string) map[string]any {
		value := map[string]any{"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset", "type": kind}
		if encoding != "" {
			value["encode"] = encoding
		}
		return map[string]any{"header": header, "on_header_present": value, "remove": true}
	}
	hints := map[string]any{"name": "envoy.filters.http.header_to_metadata", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
		"request_rules": []any{
			rule("x-test-subset", "", "STRING"),
			rule("x-test-subset-value", "BASE64", "PROTOBUF_VALUE"),
		},
	}}
	b.manager()["http_filters"] = append([]any{hints}, b.manager()["http_filters"].([]any)...)
	route := at(b.manager(), "route_config", "virtual_hosts", 0, "routes", 0).(map[string]any)
	route["request_headers_to_add"] = []any{map[string]any{"header": map[string]any{
		"key": "x-test-metadata", "value": "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint)%",
	}}}
	b.manager()["http_protocol_options"] = map[string]any{"enable_trailers": true}
	options := at(b.cluster("engines"), "typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
	at(options, "explicit_http_config", "http_protocol_options").(map[string]any)["enable_trailers"] = true
}

// flight is a request as the picker saw it.
type flight struct {
	request pick.Request
	choice  *pick.Choice

	mu     sync.Mutex
	events []string
}

func (f *flight) note(format string, of ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf(format, of...))
}

func (f *flight) told() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.events, ", ")
}

func (f *flight) Choice() *pick.Choice                 { return f.choice }
func (f *flight) Answered(endpoint string, status int) { f.note("answered %s %d", endpoint, status) }
func (f *flight) FirstToken()                          { f.note("first token") }
func (f *flight) Usage(prompt, cached int)             { f.note("usage %d %d", prompt, cached) }
func (f *flight) End()                                 { f.note("end") }

// rule chooses an engine.
type rule func(*pick.Request) (*pick.Choice, error)

// to is the rule that always names these endpoints.
func to(endpoints ...string) rule {
	return func(*pick.Request) (*pick.Choice, error) {
		return &pick.Choice{Endpoints: endpoints, Why: "the test says so"}, nil
	}
}

// picker follows the test's rule, and keeps flights by their path, which tests make unique.
type picker struct {
	rule    atomic.Pointer[rule]
	mu      sync.Mutex
	flights map[string]*flight
}

func (p *picker) follow(r rule) { p.rule.Store(&r) }

func (p *picker) Pick(_ context.Context, r *pick.Request) (pick.Flight, error) {
	f := &flight{request: *r}
	p.mu.Lock()
	p.flights[r.Path] = f
	p.mu.Unlock()
	choice, err := (*p.rule.Load())(r)
	if err != nil {
		return nil, err
	}
	f.choice = choice
	return f, nil
}

// of returns the flight of a path, nil if there is none.
func (p *picker) of(path string) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flights[path]
}

// env is an Envoy, a picker and two engines.
type env struct {
	t        *testing.T
	url      string // of Envoy
	admin    string // of Envoy's administration
	envoy    int    // process id
	picker   *picker
	address  string // of the picker
	stop     func() // kills the picker
	ready    atomic.Bool
	a, b     *engine
	requests atomic.Int64
	client   *http.Client

	fullDuplex bool // the picker gets requests in FULL_DUPLEX_STREAMED
}

type settings struct {
	picker extproc.Options
	server server.Options
	edit   func(bootstrap)
	hosts  []string // of the cluster, beside the engines

	started func(*env) // is called when the engines serve, before the rest is started

	// external starts a picker outside of this process, for the engines of the env, and returns its address. The settings of the picker
	// do not count then.
	external func(*env) string
}

// start starts everything, and stops it with the test.
func start(t *testing.T, v variant, s settings) *env {
	t.Helper()
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		must.Skip(t, "ENVOY_BIN is not set")
	}
	e := &env{t: t, picker: &picker{flights: map[string]*flight{}}, a: newEngine(t, "a"), b: newEngine(t, "b")}
	e.ready.Store(true)
	e.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	t.Cleanup(e.client.CloseIdleConnections)
	e.picker.follow(to(e.a.address))
	if s.started != nil {
		s.started(e)
	}
	if s.external != nil {
		e.address = s.external(e)
	} else {
		e.startPicker(s)
	}

	text, err := os.ReadFile("../deploy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := bootstrap{}
	if err := yaml.Unmarshal(text, (*map[string]any)(&b)); err != nil {
		t.Fatal(err)
	}
	v.apply(b)
	instrument(b)
	mode := at(b.filter("envoy.filters.http.ext_proc"), "processing_mode", "request_body_mode")
	e.fullDuplex = mode == "FULL_DUPLEX_STREAMED"
	check := at(b.cluster("picker"), "health_checks", 0).(map[string]any)
	check["interval"], check["no_traffic_interval"] = "0.05s", "0.05s"
	// The machine may be slow, which must not decide a test.
	check["timeout"], b.cluster("picker")["connect_timeout"], b.cluster("engines")["connect_timeout"] = "60s", "60s", "60s"
	b.filter("envoy.filters.http.ext_proc")["message_timeout"] = "60s"
	b.setEndpoints("picker", e.address)
	b.setEndpoints("engines", append(s.hosts, e.a.address, e.b.address)...)
	b.listener()["address"] = map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	b["admin"] = map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}}
	if s.edit != nil {
		s.edit(b)
	}
	e.startEnvoy(program, b)
	return e
}

// startPicker listens where the picker did before, if it did.
func (e *env) startPicker(s settings) {
	e.t.Helper()
	where := e.address
	if where == "" {
		where = "127.0.0.1:0"
	}
	l := listen(e.t, where)
	e.address = l.Addr().String()
	if s.server.Ready == nil {
		s.server.Ready = e.ready.Load
	}
	s.picker.Log = zerolog.New(zerolog.NewTestWriter(e.t)).Level(zerolog.WarnLevel)
	srv := server.New(extproc.New(e.picker, s.picker), s.server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	e.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		srv.Stop(ctx)
		<-served
	})
	e.t.Cleanup(e.stop)
}

func (e *env) startEnvoy(program string, b bootstrap) {
	t := e.t
	t.Helper()
	dir := t.TempDir()
	text, err := yaml.Marshal(map[string]any(b))
	if err != nil {
		t.Fatal(err)
	}
	file, adminFile, logFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin"), filepath.Join(dir, "log")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	level := os.Getenv("ENVOY_LOG")
	if level == "" {
		level = "warn"
	}
	cmd := exec.Command(program, "-c", file, "--concurrency", "1", "--disable-hot-restart", "--admin-address-path", adminFile, "-l", level)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.envoy = cmd.Process.Pid
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			text, _ := os.ReadFile(logFile)
			t.Logf("Envoy's log:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	until(t, func() string {
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("Envoy has ended: %v", err)
		default:
		}
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err.Error()
		}
		e.admin = "http://" + string(admin)
		if body, err := e.fromAdmin("/ready"); err != nil || body != "LIVE\n" {
			return fmt.Sprintf("Envoy is %q: %v", body, err)
		}
		body, err := e.fromAdmin("/listeners?format=json")
		if err != nil {
			return err.Error()
		}
		var listeners struct {
			Statuses []struct {
				Address struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if err := json.Unmarshal([]byte(body), &listeners); err != nil || len(listeners.Statuses) != 1 ||
			listeners.Statuses[0].Address.Socket.Port == 0 {
			return "no listener: " + body
		}
		e.url = fmt.Sprintf("http://127.0.0.1:%d", listeners.Statuses[0].Address.Socket.Port)
		return ""
	})
}

func (e *env) fromAdmin(path string) (string, error) {
	r, err := http.Get(e.admin + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

// path returns one that no other request has.
func (e *env) path() string { return fmt.Sprintf("/v1/completions?n=%d", e.requests.Add(1)) }

// answer is what a client got.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of the request or of its body
}

func (a answer) String() string { return fmt.Sprintf("%d %.300q (%v)", a.status, a.body, a.err) }

// do sends a request and reads the whole answer.
func (e *env) do(r *http.Request) answer {
	response, err := e.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, response.Trailer, string(body), err}
}

// post sends a body, and returns the answer and the path that it was sent to.
func (e *env) post(body string, headers ...string) (answer, string) {
	e.t.Helper()
	path := e.path()
	return e.do(e.newRequest(e.t.Context(), path, strings.NewReader(body), headers...)), path
}

func (e *env) newRequest(ctx context.Context, path string, body io.Reader, headers ...string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+path, body)
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// wantTold waits until the flight of a path has ended, and compares what it was told.
func (e *env) wantTold(path, want string) {
	e.t.Helper()
	until(e.t, func() string {
		f := e.picker.of(path)
		if f == nil {
			return "the picker was not asked for " + path
		}
		if told := f.told(); told != want {
			return fmt.Sprintf("the flight was told %q, want %q", told, want)
		}
		return ""
	})
}

// engine simulates an inference engine. A request says by its header x-sim how it answers; the engine's own mode wins.
type engine struct {
	name, address string
	server        *http.Server
	mode          atomic.Value                     // string: "" answers as asked
	tokenize      atomic.Pointer[http.HandlerFunc] // answers /tokenize; nil says that there is no such path
	hanging       atomic.Int64                     // requests that hang, until their client has left
	proceed       chan struct{}                    // lets a request with x-sim "steps" send its next event

	mu   sync.Mutex
	seen map[string]*seen // by path
}

// seen is a request as an engine got it.
type seen struct {
	header, trailer http.Header
	body            []byte
	err             error // of reading the body
}

func newEngine(t *testing.T, name string) *engine {
	t.Helper()
	e := &engine{name: name, seen: map[string]*seen{}, proceed: make(chan struct{})}
	e.mode.Store("")
	e.listen(t, "127.0.0.1:0")
	t.Cleanup(e.kill)
	return e
}

func (e *engine) listen(t *testing.T, address string) {
	t.Helper()
	l := listen(t, address)
	e.address = l.Addr().String()
	e.server = &http.Server{Handler: e}
	go func() { _ = e.server.Serve(l) }()
}

// kill closes the listener and every connection.
func (e *engine) kill() { _ = e.server.Close() }

// got returns the request of a path, nil if the engine has not got it.
func (e *engine) got(path string) *seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[path]
}

const usage = `{"prompt_tokens":64,"completion_tokens":3,"total_tokens":67,"prompt_tokens_details":{"cached_tokens":48}}`

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/tokenize" {
		if f := e.tokenize.Load(); f != nil {
			(*f)(w, r)
		} else {
			http.NotFound(w, r)
		}
		return
	}
	s := &seen{header: r.Header.Clone()}
	s.body, s.err = io.ReadAll(r.Body)
	s.trailer = r.Trailer
	e.mu.Lock()
	e.seen[r.URL.RequestURI()] = s
	e.mu.Unlock()
	w.Header().Set("X-Engine", e.name)

	how := e.mode.Load().(string)
	if how == "" {
		how = r.Header.Get("X-Sim")
	}
	if code, err := strconv.Atoi(how); err == nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"error":{"message":"simulated","code":%d}}`, code)
		return
	}
	flush := func(event string) {
		fmt.Fprintf(w, "data: %s\n\n", event)
		_ = http.NewResponseController(w).Flush()
	}
	switch how {
	case "hang":
		e.hanging.Add(1)
		defer e.hanging.Add(-1)
		<-r.Context().Done()
	case "reset": // before the headers
		panic(http.ErrAbortHandler)
	case "reset after a token":
		w.Header().Set("Content-Type", "text/event-stream")
		flush(`{"choices":[{"text":"one"}]}`)
		<-e.proceed
		panic(http.ErrAbortHandler)
	case "steps", "stream": // steps is slow: each event waits for the test
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			if how == "steps" {
				select {
				case <-e.proceed:
				case <-r.Context().Done():
					return
				}
			}
			flush(fmt.Sprintf(`{"choices":[{"text":"token %d"}],"usage":null}`, i))
		}
		flush(`{"choices":[],"usage":` + usage + `}`)
		flush("[DONE]")
	case "trailers":
		w.Header().Set("Trailer", "X-Took")
		_, _ = io.Copy(w, bytes.NewReader(s.body))
		w.Header().Set("X-Took", "3")
	case "echo":
		_, _ = w.Write(s.body)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"object":"text_completion","choices":[{"text":"hi"}],"usage":%s}`, usage)
	}
}
