package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/conductor/integrations/envoy/pick"
)

// fakeChooser always chooses one endpoint.
type fakeChooser struct {
	ready   atomic.Bool
	running atomic.Bool
}

func (c *fakeChooser) Pick(context.Context, *pick.Request) (pick.Flight, error) {
	if !c.running.Load() {
		return nil, errors.New("asked while it does not run")
	}
	return fakeFlight{}, nil
}

func (c *fakeChooser) Run(ctx context.Context) {
	c.running.Store(true)
	<-ctx.Done()
	c.running.Store(false)
}

func (c *fakeChooser) Ready() bool { return c.ready.Load() }

type fakeFlight struct{}

func (fakeFlight) Choice() *pick.Choice { return &pick.Choice{Endpoints: []string{"1.2.3.4:5"}} }
func (fakeFlight) Answered(string, int) {}
func (fakeFlight) FirstToken()          {}
func (fakeFlight) Usage(int, int)       {}
func (fakeFlight) End()                 {}

// environment is one of a map.
func environment(of map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := of[name]
		return v, ok
	}
}

func TestSettings(t *testing.T) {
	s, err := parseSettings([]string{"--conductor", "http://c:1", "--max-body=1MiB", "--weights", "1, 0,2.5"},
		environment(map[string]string{
			"CONDUCTOR_PICKER_MAX_BODY": "2MiB", "CONDUCTOR_PICKER_MAX_HELD": "4GiB", "CONDUCTOR_PICKER_PATIENCE": "1s",
			"CONDUCTOR_PICKER_DEBUG_HEADER": "true", "CONDUCTOR_PICKER_OWN_HEADERS": "x-a, x-b", "CONDUCTOR_PICKER_LOG_LEVEL": "warn",
		}), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(s.conductor, " ", s.maxBody, s.maxHeld, s.weights, s.patience, s.debugHeader, s.ownHeaders, s.logLevel)
	if want := "http://c:1 1048576 4294967296 [1 0 2.5] 1s true [x-a x-b] warn"; got != want {
		t.Errorf("settings %s, want %s", got, want)
	}
}

func TestWrongSettings(t *testing.T) {
	f := func(want string, env map[string]string, args ...string) {
		t.Helper()
		if want != "no --conductor" {
			args = append([]string{"--conductor", "http://c:1"}, args...)
		}
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, environment(env), newChooser, &stdout, &stderr)
		if code != 2 || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want %q", args, code, stderr.String(), want)
		}
	}
	f("no --conductor", nil)
	f(`invalid --conductor "c:1"`, nil, "--conductor", "c:1")
	f(`invalid --tokenizer "ftp://x"`, nil, "--tokenizer", "ftp://x")
	f("--tokenizer-render needs --tokenizer", nil, "--tokenizer-render")
	f(`invalid value "much" for flag -max-body: want a number of bytes`, nil, "--max-body", "much")
	f(`invalid value "9223372036854775807GiB"`, nil, "--max-body", "9223372036854775807GiB")
	f(`invalid value "-1" for flag -max-held`, nil, "--max-held", "-1")
	f(`invalid --max-body 0`, nil, "--max-body", "0")
	f(`invalid --max-body 2147483648: want at most 1 GiB`, nil, "--max-body", "2GiB")
	f(`invalid --patience 0s: want more than 0`, nil, "--patience", "0s")
	f(`invalid --fallbacks -1`, nil, "--fallbacks", "-1")
	f(`invalid --patience -1s`, nil, "--patience", "-1s")
	for _, weights := range []string{"1,2", "1,2,3,4", "0,0,0", "1,-1,1", "NaN,1,1", "Inf,1,1", "a,b,c", ""} {
		f(`want three numbers`, nil, "--weights", weights)
	}
	f(`invalid value "loud" for flag -log-level`, nil, "--log-level", "loud")
	f("--tls-cert and --tls-key belong together", nil, "--tls-cert", "x")
	f("--tls-self-signed and --tls-cert exclude", nil, "--tls-cert", "x", "--tls-key", "y", "--tls-self-signed")
	f("--max-waiting needs --scrape-every", nil, "--max-waiting", "5")
	f(`unexpected argument "serve"`, nil, "serve")
	f("flag provided but not defined: -nonsense", nil, "--nonsense")
	f(`invalid value "soon" of CONDUCTOR_PICKER_PATIENCE`, map[string]string{"CONDUCTOR_PICKER_PATIENCE": "soon"})
}

func TestUsageAndVersion(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--version"}, environment(nil), newChooser, &stdout, &stderr)
	if code != 0 || stdout.String() != "dev\n" {
		t.Errorf("version: exit %d, %q", code, stdout.String())
	}
	stdout.Reset()
	code = run(t.Context(), []string{"--help"}, environment(nil), newChooser, &stdout, &stderr)
	if code != 0 || !strings.Contains(stdout.String(), "-conductor URL") {
		t.Errorf("help: exit %d, %q", code, stdout.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr %q", stderr.String())
	}
}

// TestCannotServe has what only shows when the program starts.
func TestCannotServe(t *testing.T) {
	fake := func(*settings, prometheus.Registerer, zerolog.Logger) (chooser, error) { return &fakeChooser{}, nil }
	f := func(want string, env map[string]string, args ...string) {
		t.Helper()
		var stderr bytes.Buffer
		args = append([]string{"--conductor", "http://c:1", "--listen", "127.0.0.1:0", "--admin", ""}, args...)
		code := run(t.Context(), args, environment(env), fake, io.Discard, &stderr)
		if code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit %d, %q, want %q", args, code, stderr.String(), want)
		}
	}
	f("--listen", nil, "--listen", "nowhere")
	f("--admin", nil, "--admin", "nowhere")
	f("no-such-file", nil, "--tls-cert", "no-such-file", "--tls-key", "no-such-file")
	f("only http/protobuf is known", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
}

// TestTracer sends a span to a collector that the environment names.
func TestTracer(t *testing.T) {
	got := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- r.URL.Path + " " + string(body)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	tracer, flush, err := newTracer(t.Context(), os.LookupEnv, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "pick")
	span.End()
	flush()
	if sent := <-got; !strings.HasPrefix(sent, "/v1/traces ") || !strings.Contains(sent, "conductor-picker") {
		t.Errorf("the collector got %q", sent)
	}
	for name, value := range map[string]string{
		"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "",
	} {
		env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}
		env[name] = value
		if tracer, _, err := newTracer(t.Context(), environment(env), zerolog.Nop()); tracer != nil || err != nil {
			t.Errorf("%s %q: a tracer (%v)", name, value, err)
		}
	}
}

// TestConductorGetsTheTrace holds that Conductor is asked in msgpack, and within the trace of the request.
func TestConductorGetsTheTrace(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	got := make(chan http.Header, 1)
	conductor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/conductor/v1/instances":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: instances\ndata: %s\n\n",
				`{"instances":[{"instance_id":"e","model":"m","block_size":4,"address":"http://10.0.0.1:8000"}]}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case "/conductor/v1/candidates":
			got <- r.Header
		}
	}))
	defer conductor.Close()
	_, s := newFlags()
	s.conductor, s.othersEvery = conductor.URL, 0
	c, err := newChooser(s, prometheus.NewRegistry(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { c.Run(ctx) })
	defer work.Wait()
	defer stop()
	for !c.Ready() {
		<-time.After(time.Millisecond)
	}
	f, err := c.Pick(ctx, &pick.Request{Method: "POST", Path: "/v1/completions", Traceparent: trace,
		Body: []byte(`{"model":"m","prompt":[1,2,3,4,5]}`)})
	if err != nil {
		t.Fatal(err)
	}
	f.End()
	if h := <-got; h.Get("Traceparent") != trace || h.Get("Content-Type") != "application/msgpack" {
		t.Errorf("Conductor gets %v", h)
	}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// addressOf waits for the line with a message, and returns its address.
func (b *lockedBuffer) addressOf(t *testing.T, message string) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		b.mu.Lock()
		lines := strings.Split(b.buf.String(), "\n")
		b.mu.Unlock()
		for _, line := range lines {
			var l struct{ Message, Address string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Message == message {
				return l.Address
			}
		}
	}
	t.Fatalf("no line %q in %s", message, b.buf.String())
	return ""
}

// TestServe runs the program with a fake chooser: requests, metrics, health, and an end that waits for a request under way.
func TestServe(t *testing.T) {
	c := &fakeChooser{}
	ctx, stop := context.WithCancel(t.Context())
	var log lockedBuffer
	ended := make(chan int, 1)
	go func() {
		args := []string{"--conductor", "http://c:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain", "1h"}
		ended <- run(ctx, args, environment(nil),
			func(*settings, prometheus.Registerer, zerolog.Logger) (chooser, error) { return c, nil }, io.Discard, &log)
	}()
	admin := "http://" + log.addressOf(t, "metrics and health over HTTP")
	get := func(path string, wantCode int, want string) {
		t.Helper()
		r, err := http.Get(admin + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != wantCode || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s (%v), want %d %s", path, r.StatusCode, body, err, wantCode, want)
		}
	}
	get("/healthz", 200, "ok")
	get("/readyz", 503, "no engine")
	c.ready.Store(true)
	get("/readyz", 200, "ok")

	conn, err := grpc.NewClient(log.addressOf(t, "the picker takes requests"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for !c.running.Load() {
		<-time.After(time.Millisecond)
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{
			EndOfStream: true, Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":path", RawValue: []byte("/x")}}},
		},
	}}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || answer.GetDynamicMetadata() == nil {
		t.Fatalf("answer %v: %v", answer, err)
	}
	get("/metrics", 200, `conductor_picker_streams_total{outcome="picked"} 1`)
	get("/metrics", 200, `conductor_picker_build_info{version="dev"} 1`)

	stop()
	log.addressOf(t, "the picker waits for answers under way, then ends")
	if !c.running.Load() {
		t.Error("the chooser has ended before the request under way")
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != 0 || c.running.Load() {
		t.Errorf("exit %d, the chooser runs: %t", code, c.running.Load())
	}
}
