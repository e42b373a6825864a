package http_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	kvconductor "example.com/conductor"
	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/docs"
	conductorhttp "example.com/conductor/conductor/http"
	conductorserver "example.com/conductor/conductor/server"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// server is the dialect on an engine, with a Conductor whose sources are dead
// endpoints, and the document its answers are held against.
type server struct {
	t      *testing.T
	engine *gin.Engine
	slots  *conductorserver.Admission
	hub    *watch.Hub
	doc    *apitest.Document
}

// newServer returns a server; change may change its options.
func newServer(t *testing.T, change ...func(*conductor.Conductor, *admin.Options)) *server {
	t.Helper()
	return newServerAt(t, time.Now, change...)
}

// newServerAt is newServer with a clock.
func newServerAt(t *testing.T, now func() time.Time, change ...func(*conductor.Conductor, *admin.Options)) *server {
	t.Helper()
	registry := prometheus.NewRegistry()
	admission := conductorserver.NewAdmission(1, 0)
	j, err := tape.Create(tape.Options{Memory: 1 << 16})
	must.Succeed(t, err)
	c := conductor.New(conductor.Options{
		HashSeed: 1337, MaxSources: 3, ExpectedBytes: 1 << 20, Tape: j, Now: now, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: zmq.Transport{}},
	})
	t.Cleanup(c.Close)
	registry.MustRegister(c.Meter())
	hub := watch.New(watch.Config{Conductor: c, Version: "test", Viewers: 1, KeepQueries: true})
	t.Cleanup(hub.Close)
	settings := func() (string, []admin.Setting) {
		return "conductor.yaml", []admin.Setting{{Path: "log.level", Value: "debug", Default: "info", Changed: true}}
	}
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 4096, MaxTokens: 64, Admission: admission, Version: "test"}, Watch: hub,
		Settings: settings, OpenAPI: kvconductor.OpenAPI, Page: ui.New(), Home: true, Docs: docs.New(kvconductor.Documents),
		Gatherer: registry, Log: zerolog.Nop(),
	}
	for _, f := range change {
		f(c, &opts)
	}
	engine := admin.New(c, opts)
	conductorhttp.Mount(engine, c, opts.Dialect)
	return &server{t: t, engine: engine, slots: admission, hub: hub, doc: apitest.Load(t)}
}

// do makes a request and holds the answer against the document.
func (s *server) do(method, path, body string) *httptest.ResponseRecorder {
	s.t.Helper()
	return s.send(method, path, body, "")
}

// send is do, of a body in a coding.
func (s *server) send(method, path, body, coding string) *httptest.ResponseRecorder {
	s.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	if strings.HasPrefix(path, "/metrics") || strings.HasPrefix(path, "/openapi") ||
		(strings.HasPrefix(path, ui.Root) || strings.HasPrefix(path, docs.Root)) && rec.Code == 200 {
		s.doc.Find(s.t, req) // text, described as such
	} else {
		s.doc.CheckAnswer(s.t, req, rec)
	}
	return rec
}

// TestRoutesAreDescribed compares the routes with openapi.yaml, both ways. Those of
// the Dynamo dialect are its own test's.
func TestRoutesAreDescribed(t *testing.T) {
	s := newServer(t)
	s.doc.CompareRoutes(t, s.engine.Routes(), func(path string) bool { return !strings.HasPrefix(path, "/dynamo/v1/") })
}

// TestAnswersFitTheDocument makes every kind of request and holds each answer,
// error bodies included, against openapi.yaml.
func TestAnswersFitTheDocument(t *testing.T) {
	s := newServer(t)
	f := func(method, path, body string, status int) {
		t.Helper()
		if rec := s.do(method, path, body); rec.Code != status {
			t.Errorf("%s %s %s: status %d, want %d: %s", method, path, body, rec.Code, status, rec.Body)
		}
	}
	registration := func(instance, more string) string {
		return fmt.Sprintf(`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":%q,"block_size":16,"dp_rank":0%s}`,
			instance, more)
	}
	long := `{"model":"m","block_size":16,"token_ids":[` + strings.Repeat("1,", 4096) + `1]}`
	many := `{"model":"m","block_size":16,"token_ids":[` + strings.Repeat("1,", 64) + `1]}`

	f("POST", "/register", registration("a", ""), 200)
	f("POST", "/register", registration("a", ""), 200)
	f("POST", "/register", registration("a", `,"lora_name":"x"`), 409)
	f("POST", "/register", registration("b", `,"tenant_id":null,"replay_endpoint":"ipc:///x","ttl":{"STORAGE":"1h"}`), 200)
	profile := func(seed string) string {
		return `,"hash_profile":{"strategy":"vllm_v1","algorithm":"sha256","python_hash_seed":` + seed + `,"index_projection":"low64_be"}`
	}
	f("POST", "/register", registration("c", `,"additionalsalt":"s","ttl":"1h"`+profile(`"0"`)), 200)
	f("POST", "/register", registration("a", `,"replace":true`+profile(`"1"`)), 409)
	f("POST", "/register", registration("a", profile(`0`)), 400)
	f("POST", "/register", registration("a", profile(`"0","seed":"0"`)), 400)
	f("POST", "/register", registration("d", ""), 503)
	f("POST", "/register", `{}`, 400)
	f("POST", "/register", long, 413)
	f("POST", "/unregister", `{"instance_id":"nobody","dp_rank":0}`, 404)
	f("POST", "/unregister", `{"instance_id":"nobody"}`, 400)
	f("POST", "/unregister", fmt.Sprintf(`{"instance_id":"%0257d","dp_rank":0}`, 0), 400)
	f("POST", "/unregister", fmt.Sprintf(`{"instance_id":"a","tenant_id":"%0257d","dp_rank":0}`, 0), 400)
	f("POST", "/unregister", long, 413)
	f("POST", "/query", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 200)
	f("POST", "/query?detail=1", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 200)
	f("POST", "/query", `{"model":"m","block_size":16,"token_ids":[1,2],"instance_id":"ghost"}`, 200)
	f("POST", "/query", `{"model":"none","block_size":16,"token_ids":[1,2]}`, 200)
	f("POST", "/query", many, 400)
	f("POST", "/query", long, 413)
	f("POST", "/query_by_hash", `{"model":"m","block_size":16,"seq_hashes":[1,18446744073709551615]}`, 200)
	f("POST", "/query_by_hash", `{"model":"m","block_size":16,"seq_hashes":{}}`, 400)
	f("POST", "/query_by_hash", long, 413)
	for _, path := range []string{"/register", "/unregister", "/query", "/query_by_hash", "/admin/explain"} {
		if rec := s.send("POST", path, "{}", "br"); rec.Code != 415 {
			t.Errorf("%s in another coding: %d %s", path, rec.Code, rec.Body)
		}
	}
	must.Succeed(t, s.slots.Enter(t.Context(), bounds.Flow{}))
	f("POST", "/query", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 503)
	f("POST", "/query_by_hash", `{"model":"m","block_size":16,"seq_hashes":[1]}`, 503)
	f("POST", "/admin/explain", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 503)
	f("GET", "/ready", "", 200)
	s.slots.Leave(bounds.Flow{})
	f("POST", "/routed", `{"model":"m","block_size":16,"token_ids":[9,9],"instance_id":"a"}`, 200)
	f("GET", "/services", "", 200)
	f("GET", "/services?fleet=1", "", 404)
	f("GET", "/services?fleet=x", "", 400)
	f("GET", "/global_view", "", 200)
	f("GET", "/global_view?limit=all", "", 400)
	f("GET", "/health", "", 200)
	f("GET", "/ready", "", 200)
	f("GET", "/metrics", "", 200)
	f("GET", "/openapi.yaml", "", 200)
	f("GET", "/ui", "", 200)
	f("GET", "/ui/app.js", "", 200)
	f("GET", "/ui/none.js", "", 404)
	f("GET", "/docs/ui", "", 200)
	f("GET", "/docs/none", "", 404)
	f("GET", "/admin/check", "", 200)
	f("GET", "/admin/events?source=a%7Cdefault%7C0", "", 200)
	f("GET", "/admin/events?source=a%7Cdefault%7C0&from=0&to=18446744073709551615&limit=10000", "", 416)
	f("GET", "/admin/events?source=a%7Cdefault%7C0&epoch=2", "", 416)
	f("GET", "/admin/events?source=ghost%7Cdefault%7C0", "", 404)
	for _, query := range []string{"", "source=", "source=a&from=x", "source=a&from=-1", "source=a&from=18446744073709551616",
		"source=a&to=1.5", "source=a&epoch=0", "source=a&limit=0",
		"source=a&limit=10001", "source=a&from=2&to=1"} {
		f("GET", "/admin/events?"+query, "", 400)
	}
	f("POST", "/admin/explain", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 200)
	f("POST", "/admin/explain?detail=1", `{"model":"none","block_size":16,"token_ids_b64":"AQAAAA==","top":1}`, 200)
	f("POST", "/admin/explain?strict=1", `{"model":"none","block_size":16,"token_ids":[1],"min_matched":1}`, 400)
	f("POST", "/admin/explain", `{"model":"m","block_size":16}`, 400)
	f("POST", "/admin/explain", `{"model":"m","block_size":16,"token_ids":[1,-1]}`, 400)
	f("POST", "/admin/explain", many, 400)
	f("POST", "/admin/explain", long, 413)
	f("GET", "/admin/digest", "", 200)
	f("GET", "/admin/digest?source=a%7Cdefault%7C0", "", 200)
	f("GET", "/admin/digest?source=x", "", 404)
	f("GET", "/admin/stats", "", 200)
	f("GET", "/admin/stats?top=1", "", 200)
	f("GET", "/admin/stats?top=-1", "", 400)
	f("GET", "/admin/queries", "", 200)
	f("GET", "/admin/live?feed=2", "", 400)
	viewer, err := s.hub.Join(nil, false)
	must.Succeed(t, err)
	f("GET", "/admin/live", "", 503)
	f("POST", "/query", `{"model":"m","block_size":16,"token_ids":[1,2]}`, 200)
	queries := s.do("GET", "/admin/queries", "")
	_, id, _ := strings.Cut(queries.Body.String(), `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	f("POST", "/admin/explain", `{"recent":"`+id+`"}`, 200)
	f("POST", "/admin/explain", `{"recent":"`+id+`","block_size":1,"model":"m"}`, 200)
	f("POST", "/admin/explain", `{"recent":"`+id+`","token_ids":[1]}`, 400)
	f("POST", "/admin/explain", `{"recent":"`+id+`","block_size":0}`, 400)
	prefix := func(name, more string) string {
		return `{"prefix":"` + name + `","model":"m","block_size":16` + more + `}`
	}
	f("POST", "/admin/explain", prefix("1", ""), 400)
	f("POST", "/admin/explain", prefix("x", ""), 400)
	f("POST", "/admin/explain", prefix("1", `,"token_ids":[1]`), 400)
	f("POST", "/admin/explain", prefix("1", `,"recent":"`+id+`"`), 400)
	f("POST", "/admin/explain", `{"prefix":"1","model":"m"}`, 400)
	s.hub.Leave(viewer)
	f("POST", "/admin/explain", `{"recent":"`+id+`"}`, 400)
	f("GET", "/admin/prefixes", "", 200)
	f("GET", "/admin/prefixes?top=1", "", 200)
	f("GET", "/admin/prefixes?top=-1", "", 400)
	f("GET", "/admin/cluster", "", 200)
	f("GET", "/admin/source", "", 400)
	f("GET", "/admin/source?source=a|default|0", "", 200)
	f("GET", "/admin/source?source=nil|default|0", "", 404)
	f("GET", "/admin/settings", "", 200)
	f("GET", "/admin/drain", "", 400)
	f("GET", "/admin/drain?instance=a", "", 200)
	f("GET", "/admin/drain?instance=nil", "", 404)
	f("POST", "/feedback", `{"instance_id":"a","matched_tokens":32,"cached_tokens":16,"medium":"GPU"}`, 200)
	f("POST", "/feedback", `{"instance_id":"nil","matched_tokens":32,"cached_tokens":16}`, 404)
	f("POST", "/feedback", `{"instance_id":"a","matched_tokens":-1,"cached_tokens":16}`, 400)
	f("POST", "/feedback", `{"instance_id":"a","matched_tokens":1}`, 400)
	if reports := s.do("GET", "/admin/prefixes", "").Body.String(); !strings.Contains(reports,
		`"feedback":[{"tenant_id":"default","instance_id":"a","medium":"GPU","reports":1,"precision":0.5,"recall":1}]`) {
		t.Error(reports)
	}
	f("GET", "/admin/prefixes", "", 200)
	f("POST", "/grpc/kvconductor.v1.Conductor/Query", "", 404)
	f("POST", "/unregister", `{"instance_id":"b","dp_rank":0}`, 200)
	f("POST", "/register",
		`{"events":"none","capacity_blocks":8,"approximate":"count","type":"Standard","modelname":"m","instance_id":"u","block_size":2}`,
		200)
	f("POST", "/register",
		`{"events":"none","capacity_blocks":8,"type":"Standard","modelname":"m","instance_id":"u","block_size":2,"dp_rank":0}`, 409)
	f("POST", "/routed", `{"model":"m","block_size":2,"token_ids":[1,2],"instance_id":"u"}`, 204)
	f("POST", "/register", `{"events":"some","capacity_blocks":8,"type":"Standard","modelname":"m","instance_id":"u2","block_size":2}`, 400)
	f("POST", "/register", `{"events":"none","type":"Standard","modelname":"m","instance_id":"u2","block_size":2}`, 400)
	f("POST", "/register",
		`{"events":"none","capacity_blocks":8,"endpoint":"tcp://127.0.0.1:1","type":"Standard","modelname":"m","instance_id":"u2",`+
			`"block_size":2}`, 400)
	f("GET", "/services", "", 200)
	f("POST", "/query?detail=1", `{"model":"m","block_size":2,"token_ids":[1,2],"instance_id":"u"}`, 200)
	f("POST", "/admin/explain", `{"model":"m","block_size":2,"token_ids":[1,2],"instance_id":"u"}`, 200)
	f("POST", "/unregister", `{"instance_id":"u","dp_rank":0}`, 200)
	f("POST", "/register",
		`{"endpoint":"push:","type":"lmcache","modelname":"m","instance_id":"n","block_size":2,"dp_rank":0,"sequence":"own",`+
			`"serves":["a"]}`, 200)
	f("POST", "/register",
		`{"endpoint":"push:","type":"LMCache","modelname":"m","instance_id":"n","block_size":2,"dp_rank":0,"sequence":"shared"}`, 400)
	f("POST", "/register", `{"endpoint":"push:","type":"vLLM","modelname":"m","instance_id":"n2","block_size":2,"dp_rank":0}`, 400)
	f("POST", "/register",
		`{"endpoint":"push:","replay_endpoint":"tcp://a:1","type":"LMCache","modelname":"m","instance_id":"n2","block_size":2,"dp_rank":0}`,
		400)
	f("POST", "/register",
		`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"n2","block_size":2,"dp_rank":0,"sequence":"each"}`,
		400)
	f("POST", "/lmcache/events",
		`{"batches":[{"instance_id":"n","incarnation":1,"seq":1,"event_type":"store","tier":"l1","backend":"dram",`+
			`"entries":[{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"token_ids":[1,2],"token_offset":0},`+
			`{"key":{"chunk_hash_hex":"02","model_name":"x","kv_rank":0}}]}]}`, 200)
	f("POST", "/lmcache/events", `{"batches":[]}`, 200)
	f("POST", "/lmcache/events",
		`{"batches":[{"instance_id":"n"},{"instance_id":"n","incarnation":1,"seq":0,"event_type":"store","tier":"l1"},`+
			`{"instance_id":5},{"instance_id":"n","incarnation":1,"seq":2,"event_type":"store","tier":"l1","backend":"dram",`+
			`"entries":[{"key":{"chunk_hash_hex":"z","model_name":"m","kv_rank":0}}]}]}`, 200)
	f("POST", "/lmcache/events", `{"batches":{}}`, 400)
	f("POST", "/lmcache/events", `{}`, 400)
	f("POST", "/lmcache/events", `[`, 400)
	f("POST", "/lmcache/events", long, 413)
	f("GET", "/services", "", 200)
	s.hub.Close()
	f("GET", "/admin/live", "", 503)
	f("GET", "/admin/stats", "", 200)
}

// FuzzBodies sends arbitrary bodies to every POST endpoint: none may panic, hang
// or answer anything but 200 or a described error.
func FuzzBodies(f *testing.F) {
	paths := []string{
		"/query", "/query_by_hash", "/unregister", "/register", "/admin/explain", "/lmcache/events", "/routed", "/routed?strict=1",
	}
	const packed = 7 // from this path on bodies are msgpack
	f.Add(0, []byte(`{"model":"m","block_size":16,"token_ids":[1,2,3]}`))
	f.Add(0, []byte(`{"model":"m","block_size":16,"token_ids":[1,-2,3.5,1e3,null,"x",[1]]}`))
	f.Add(1, []byte(`{"model":"m","block_size":16,"seq_hashes":[-1],"block_hash":[18446744073709551615]}`))
	f.Add(2, []byte(`{"instance_id":"a","dp_rank":0,"tenant_id":null}`))
	f.Add(3, []byte(`{"endpoint":"ipc://x","type":"vLLM","modelname":"m","instance_id":"a","block_size":1,"dp_rank":0}`))
	f.Add(3, []byte(`{"endpoint":"ipc://x","type":"vLLM","modelname":"m","instance_id":"a","block_size":1,"dp_rank":0,`+
		`"hash_profile":{"strategy":"vllm_v1","algorithm":"sha256","python_hash_seed":"0","index_projection":"low64_be",`+
		`"root_digest":""}}`))
	f.Add(3, []byte(`{"endpoint":"ipc://x","type":"vLLM","modelname":"m","instance_id":"a","block_size":1,"dp_rank":0,`+
		`"ttl":{"CPU":"1h", "STORAGE" : "0s","":null}}`))
	f.Add(6, []byte(`{"model":"m","block_size":1,"token_ids":[1,2],"instance_id":"a","dp_rank":0,"ttl":"2s","request_id":"r"}`))
	f.Add(6, []byte(`{"prompts":[{"token_ids":[1]},{"seq_hashes":[1],"ttl":0.5}, {"dp_rank":-1}],"model":"m","block_size":1,`+
		`"instance_id":"a"}`))
	for _, body := range []map[string]any{
		{
			"model": "m", "block_size": 1, "token_ids": []int{1, 1 << 20}, "instance_id": "a", "dp_rank": nil, "ttl": 0.5,
			"request_id": "r", "other": map[string]any{"a": []any{1}},
		},
		{"model": "m", "block_size": 1, "token_ids": make([]byte, 9), "instance_id": "a", "ttl": "2s"},
		{
			"prompts": []any{
				map[string]any{"token_ids": []int{1}, "topp": 1}, map[string]any{"seq_hashes": make([]byte, 16), "hash": "engine"}, 7,
			},
			"model": "m", "block_size": 1, "instance_id": "a",
		},
	} {
		text, err := msgpack.Marshal(body)
		must.Succeed(f, err)
		f.Add(packed, text)
	}
	f.Add(0, []byte("{\"model\":\"\xff\",\"block_size\":16,\"token_ids\":[]}"))
	c := conductor.New(conductor.Options{MaxSources: 1, Log: zerolog.Nop(), Stream: stream.Config{Transport: zmq.Transport{}}})
	f.Cleanup(c.Close)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 16, MaxTokens: 1 << 10}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	engine := admin.New(c, opts)
	conductorhttp.Mount(engine, c, opts.Dialect)
	rec := httptest.NewRecorder() // so that there is something to report
	engine.ServeHTTP(rec,
		httptest.NewRequest(nethttp.MethodPost, "/register",
			strings.NewReader(`{"events":"none","capacity_blocks":8,"type":"Standard","modelname":"m","instance_id":"a","block_size":1}`)))
	if rec.Code != 200 {
		f.Fatal(rec.Code, rec.Body)
	}
	f.Fuzz(func(t *testing.T, which int, body []byte) {
		at := int(uint(which) % uint(len(paths)))
		path := paths[at]
		rec, req := httptest.NewRecorder(), httptest.NewRequest(nethttp.MethodPost, path, bytes.NewReader(body))
		if req.Header.Set("Accept", "application/json"); at >= packed {
			req.Header.Set("Content-Type", "application/msgpack")
		}
		engine.ServeHTTP(rec, req)
		switch rec.Code {
		case 200, 204:
			if at < packed && !json.Valid(body) {
				t.Errorf("%s accepts %q", path, body)
			}
		case 400, 404, 409, 413, 503:
			var e struct{ Error, Reason string }
			if json.Unmarshal(rec.Body.Bytes(), &e) != nil || e.Error == "" || e.Reason == "" {
				t.Errorf("%s %q: %d without a reason: %s", path, body, rec.Code, rec.Body)
			}
		default:
			t.Errorf("%s %q: status %d: %s", path, body, rec.Code, rec.Body)
		}
	})
}
