package dynamo

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	kvconductor "example.com/conductor"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
)

// testServer is a listener of the dialect, over a Conductor whose publishers are in
// this process.
type testServer struct {
	t         testing.TB
	conductor *conductor.Conductor
	dialect   *Dialect
	handler   http.Handler
	network   *streamtest.Network
}

func newServer(t testing.TB, cfg Config) *testServer {
	t.Helper()
	return newServerOn(t, cfg, newNetwork(), nil)
}

// newServerOn is one on another's network. What publishers send waits until gate is
// closed, if there is one.
func newServerOn(t testing.TB, cfg Config, n *streamtest.Network, gate <-chan struct{}) *testServer {
	t.Helper()
	c := conductor.New(conductor.Options{
		HashSeed: 1337, KeepClientHashes: true, MaxSources: 64, MaxOrphans: 1 << 16, Log: zerolog.Nop(), Gate: gate,
		Stream: stream.Config{Transport: n},
	})
	t.Cleanup(c.Close)
	cfg.Conductor, cfg.Log = c, zerolog.Nop()
	cfg.Admission = server.NewAdmission(1, time.Minute) // one, so that a slot that is not given back shows
	if cfg.MaxTokens == 0 {
		cfg.MaxTokens = 1 << 21
	}
	d := New(cfg)
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.Meter(), d, d.replica)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16, Version: "test"}, OpenAPI: kvconductor.OpenAPI,
		Gatherer: registry, Log: zerolog.Nop(),
	}
	r := admin.New(c, opts)
	d.MountRoot(r)
	conductorhttp.Mount(r.Group("/conductor/v1"), c, opts.Dialect)
	d.Mount(r.Group("/dynamo/v1"))
	return &testServer{t: t, conductor: c, dialect: d, handler: r, network: n}
}

// send makes a request. A body makes it JSON.
func (s *testServer) send(method, path, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, req)
	return rec
}

// do makes a request and compares status and body.
func (s *testServer) do(method, path, body string, status int, want string) {
	s.t.Helper()
	if rec := s.send(method, path, body); rec.Code != status || rec.Body.String() != want {
		s.t.Errorf("%s %s %.200s\n got %d %.1000s\nwant %d %s", method, path, body, rec.Code, rec.Body, status, want)
	}
}

const done = `{"status":"ok"}`

// register registers a rank of an instance for model m and block size 4, at an
// endpoint that publish knows.
func (s *testServer) register(id, rank int, more string) {
	s.t.Helper()
	s.do("POST", "/register", fmt.Sprintf(`{"instance_id":%d,"dp_rank":%d,"endpoint":%q,"model_name":"m","block_size":4%s}`,
		id, rank, endpointOf(id, rank), more), 201, done)
}

func endpointOf(id, rank int) string { return fmt.Sprintf("inproc://%d/%d", id, rank) }

// publish sends events of a rank and waits until they are applied. Only inside of
// a synctest bubble.
func (s *testServer) publish(id, rank int, events ...any) {
	synctest.Wait()
	s.network.PublisherAt(endpointOf(id, rank)).Publish(streamtest.EncodeBatch(1.5, nil, events...))
	synctest.Wait()
}

// stored is an event about blocks of 4 tokens, counted from 1 in this prompt: block
// i has the tokens 4i-3..4i.
func stored(medium string, from, to int, more ...string) map[string]any {
	e := map[string]any{"type": "BlockStored", "block_size": 4, "medium": medium, "parent_block_hash": nil}
	first := 1000
	for i := 0; i+1 < len(more); i += 2 { // engines hash adapter and salt
		first += map[string]int{"lora_name": 1000, "cache_salt": 2000}[more[i]]
	}
	var hashes []int
	var tokens []int
	for i := from; i <= to; i++ {
		hashes = append(hashes, first+i)
		tokens = append(tokens, 4*i-3, 4*i-2, 4*i-1, 4*i)
	}
	if from > 1 {
		e["parent_block_hash"] = first + from - 1
	}
	e["block_hashes"], e["token_ids"] = hashes, tokens
	for i := 0; i+1 < len(more); i += 2 {
		e[more[i]] = more[i+1]
	}
	return e
}

func removed(medium string, blocks ...int) map[string]any {
	for i := range blocks {
		blocks[i] += 1000
	}
	return map[string]any{"type": "BlockRemoved", "block_hashes": blocks, "medium": medium}
}

// promptOf is the first blocks of the prompt of stored, as a JSON array.
func promptOf(blocks int) string {
	var b strings.Builder
	for i := 1; i <= 4*blocks; i++ {
		fmt.Fprintf(&b, ",%d", i)
	}
	return "[" + strings.TrimPrefix(b.String(), ",") + "]"
}

// newNetwork returns a network that connects to every endpoint without "never" in it.
func newNetwork() *streamtest.Network {
	return &streamtest.Network{Prepare: func(endpoint string, p *streamtest.Publisher) {
		if strings.Contains(endpoint, "never") {
			p.OnSubscribe = func(context.Context) error { return permanent{} }
		}
	}}
}

type permanent struct{}

func (permanent) Error() string   { return "this endpoint never works" }
func (permanent) Permanent() bool { return true }

// metric returns the lines of /metrics that begin with a name.
func (s *testServer) metric(name string) string {
	var out bytes.Buffer
	for line := range strings.Lines(s.send("GET", "/metrics", "").Body.String()) {
		if strings.HasPrefix(line, name) {
			out.WriteString(line)
		}
	}
	return out.String()
}
