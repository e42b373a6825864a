package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// receiver takes traces as the OTLP specification has them.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	raw     bytes.Buffer  // bodies; guarded by mu
	spans   []*trace.Span // guarded by mu
	headers http.Header   // of the last request; guarded by mu
	path    string        // of the last request; guarded by mu
}

func newReceiver(t *testing.T) *receiver {
	r := new(receiver)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		must.Report(t, err)
		var export collector.ExportTraceServiceRequest
		must.Report(t, proto.Unmarshal(body, &export))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.raw.Write(body)
		r.headers, r.path = req.Header, req.URL.Path
		for _, of := range export.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				r.spans = append(r.spans, scope.Spans...)
			}
		}
		answer, err := proto.Marshal(new(collector.ExportTraceServiceResponse))
		must.Report(t, err)
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Write(answer)
	}))
	t.Cleanup(r.Close)
	return r
}

// trace returns the server span of a trace and the names of the spans below it.
func (r *receiver) trace(id string) (server *trace.Span, below []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if hex.EncodeToString(s.TraceId) == id && s.Kind == trace.Span_SPAN_KIND_SERVER {
			server = s
		}
	}
	for _, s := range r.spans {
		if server != nil && bytes.Equal(s.ParentSpanId, server.SpanId) {
			below = append(below, s.Name)
			if s.StartTimeUnixNano < server.StartTimeUnixNano || s.EndTimeUnixNano > server.EndTimeUnixNano ||
				s.EndTimeUnixNano < s.StartTimeUnixNano {
				below = append(below, "not within its parent")
			}
		}
	}
	slices.Sort(below)
	return server, below
}

// askTraced sends a request with a traceparent and returns the status.
func askTraced(t *testing.T, url, contentType, traceparent string, body []byte) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	must.Succeed(t, err)
	req.Header.Set("Content-Type", contentType)
	if traceparent != "" {
		req.Header.Set("traceparent", traceparent)
	}
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// stop ends a server by a signal and reports how long that took.
func stop(t *testing.T, p *process) {
	t.Helper()
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	must.Succeed(t, p.cmd.Wait())
}

const (
	tracedSalt   = "sel-de-guerande"
	tracedHeader = "kept-to-ourselves"
)

// TestTraces asks in each dialect with the context of a caller, and holds what a collector gets: a
// server span below the caller's, a span for each stage, and neither prompts nor salts nor
// credentials. The end of the server sends what waits.
func TestTraces(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	headers := filepath.Join(t.TempDir(), "headers")
	must.Succeed(t, os.WriteFile(headers, []byte("# of the collector\nX-Key: "+tracedHeader+"\n"), 0o600))
	e := newRuledEngine(t, "e", 0)
	p := serveProcess(t, "tracing: {endpoint: "+to.URL+", sample: 0, headers_file: "+headers+"}\nshutdown: {drain: 0s}\nsources:\n"+
		explainSource(e, "vLLM", "m", ", additionalsalt: "+tracedSalt))
	e.publish(ruledStored(0, 4))
	e.settled(p)

	tokens := recordedTokens(4)
	question := func(more map[string]any) map[string]any {
		q := map[string]any{"token_ids": tokens, "cache_salt": tracedSalt}
		for k, v := range more {
			q[k] = v
		}
		return q
	}
	inJSON := func(v any) []byte {
		text, err := json.Marshal(v)
		must.Succeed(t, err)
		return text
	}
	packed, err := msgpack.Marshal(question(map[string]any{"model": "m", "block_size": recordedBlock}))
	must.Succeed(t, err)
	batch := map[string]any{"model": "m", "block_size": recordedBlock, "queries": []any{question(nil), question(nil)}}
	of := question(map[string]any{"model": "m", "block_size": recordedBlock})
	var checks []func() // of what has arrived at the end
	for i, c := range []struct {
		path, contentType string
		body              []byte
		tokens, queries   int64
	}{
		{"/query", "application/json", inJSON(of), 4 * recordedBlock, 1},
		{"/conductor/v1/query_batch", "application/json", inJSON(batch), 8 * recordedBlock, 2},
		{"/query?dialect=v2", "application/json", inJSON(of), 4 * recordedBlock, 1},
		{"/query", "application/msgpack", packed, 4 * recordedBlock, 1},
		{"/dynamo/v1/query", "application/json", inJSON(question(map[string]any{"model_name": "m"})), 4 * recordedBlock, 1},
	} {
		id, parent := fmt.Sprintf("%031x%x", 0xabc, i+1), "00f067aa0ba902b7"
		if status := askTraced(t, p.url+c.path, c.contentType, "00-"+id+"-"+parent+"-01", c.body); status != 200 {
			t.Fatalf("%s: %d", c.path, status)
		}
		// The caller did not sample this one.
		askTraced(t, p.url+c.path, c.contentType, fmt.Sprintf("00-%031x%x-%s-00", 0xdef, i+1, parent), c.body)
		checks = append(checks, func() {
			server, below := to.trace(id)
			if server == nil {
				t.Errorf("%s: no server span of the trace %s", c.path, id)
				return
			}
			path, _, _ := strings.Cut(c.path, "?")
			if hex.EncodeToString(server.ParentSpanId) != parent || server.Name != "POST "+path {
				t.Errorf("%s: %q below %x", c.path, server.Name, server.ParentSpanId)
			}
			if want := []string{"admit", "encode", "hash", "match", "parse", "read", "send"}; !slices.Equal(below, want) {
				t.Errorf("%s: %v, want %v", c.path, below, want)
			}
			got := make(map[string]any)
			for _, a := range server.Attributes {
				if got[a.Key] = a.Value.GetStringValue(); got[a.Key] == "" {
					got[a.Key] = a.Value.GetIntValue()
				}
			}
			for key, want := range map[string]any{
				"conductor.model": "m", "conductor.tenant": "default", "conductor.tokens": c.tokens, "conductor.queries": c.queries,
				"http.route": path, "http.response.status_code": int64(200),
			} {
				if got[key] != want {
					t.Errorf("%s: %s = %v, want %v", c.path, key, got[key], want)
				}
			}
		})
	}
	if open := openMetrics(t, p.url); !regexp.MustCompile(`conductor_query_seconds_bucket\{by="tokens",le="[^"]+"\} [0-9]+ # `+
		`\{trace_id="0+abc[1-5]"\}`).MatchString(open) ||
		!regexp.MustCompile(`conductor_http_request_seconds_bucket\{[^}]+\} [0-9]+ # \{trace_id="0+abc[1-5]"\}`).MatchString(open) {
		t.Errorf("no exemplar: %s", open)
	}
	stop(t, p)
	for _, check := range checks {
		check()
	}

	to.mu.Lock()
	defer to.mu.Unlock()
	if to.path != "/v1/traces" || to.headers.Get("X-Key") != tracedHeader {
		t.Errorf("path %q, header %q", to.path, to.headers.Get("X-Key"))
	}
	numbers := string(inJSON(tokens[:4]))
	var binaries []byte
	for _, id := range tokens[:4] {
		binaries = binary.LittleEndian.AppendUint32(binaries, uint32(id))
	}
	for _, secret := range []string{tracedSalt, tracedHeader, strings.Trim(numbers, "[]"), string(binaries)} {
		if bytes.Contains(to.raw.Bytes(), []byte(secret)) {
			t.Errorf("traces have %q", secret)
		}
	}
	for _, s := range to.spans {
		if strings.Contains(hex.EncodeToString(s.TraceId), "def") {
			t.Error("a trace that the caller did not sample was sent")
		}
	}
}

// openMetrics scrapes as Prometheus does, and holds that both forms name the same series.
func openMetrics(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url+"/metrics", nil)
	must.Succeed(t, err)
	req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer resp.Body.Close()
	open, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text") ||
		!bytes.HasSuffix(open, []byte("# EOF\n")) {
		t.Errorf("scraped %s", kind)
	}
	_, text := get(url + "/metrics")
	names := func(text string) (all []string) {
		for _, m := range regexp.MustCompile(`(?m)^([a-z_0-9]+)[{ ]`).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	if a, b := names(string(open)), names(text); !slices.Equal(a, b) {
		t.Errorf("OpenMetrics has other names than the text: %v, %v", a, b)
	}
	return string(open)
}

// TestTracesWithoutCollector asks while no collector is there, and while one never answers: queries
// are answered as ever, lost spans count, and the end of the server does not wait.
func TestTracesWithoutCollector(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer silent.Close()
	closed, err := freeport.Address()
	must.Succeed(t, err)
	for _, c := range []struct{ endpoint, result string }{{silent.Addr().String(), "lost"}, {closed, "failed"}} {
		p := serveProcess(t, "tracing: {endpoint: 'http://"+c.endpoint+"', sample: 1}\nshutdown: {drain: 0s}\n")
		begun := time.Now()
		for range 600 {
			if status := askTraced(t, p.url+"/query", "application/json", "",
				[]byte(`{"model":"m","block_size":16,"token_ids":[]}`)); status != 200 {
				t.Fatalf("%s: %d", c.endpoint, status)
			}
		}
		t.Logf("600 queries in %v", time.Since(begun))
		eventually(t, "no span was lost", func() (string, bool) {
			_, text := get(p.url + "/metrics")
			m := regexp.MustCompile(`conductor_trace_spans_total\{result="` + c.result + `"\} ([1-9].*)`).FindString(text)
			return text, m != ""
		})
		stop(t, p)
		// A server that waited until the last request was given up would not say this.
		if c.result == "lost" && !strings.Contains(p.log(), "the last traces did not reach the collector") {
			t.Errorf("the end waited for the collector: %s", p.log())
		}
	}
}

// TestSlowQueries logs each query as slow: names, counts and times, no more lines than the bound,
// and neither prompts nor salts.
func TestSlowQueries(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "e", 0)
	p := serveProcess(t, "log: {slow_query: 1ns}\nsources:\n"+explainSource(e, "vLLM", "m", ", additionalsalt: "+tracedSalt))
	e.publish(ruledStored(0, 4))
	e.settled(p)
	body, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "cache_salt": tracedSalt,
		"token_ids": recordedTokens(4)})
	must.Succeed(t, err)
	const asked = 200
	for range asked {
		post(t, p.url+"/query", string(body), 200)
	}
	_, text := get(p.url + "/metrics")
	if !strings.Contains(text, fmt.Sprintf("conductor_slow_queries_total %d\n", asked)) ||
		!regexp.MustCompile(`conductor_slow_queries_unlogged_total 1[0-9][0-9]\n`).MatchString(text) {
		t.Error(text)
	}
	var line struct {
		Route, Tenant, Model string
		Status               int
		Queries, Tokens      int
		Took                 float64            `json:"took_ms"`
		Stages               map[string]float64 `json:"stages_ms"`
	}
	eventually(t, "no line of a slow query", func() (string, bool) { return p.log(), strings.Contains(p.log(), "slow query") })
	lines := 0
	for one := range strings.Lines(p.log()) {
		if strings.Contains(one, "slow query") {
			lines++
			decode(t, one, &line)
			if strings.Contains(one, tracedSalt) || strings.Contains(one, "token_ids") {
				t.Errorf("the log has more than it may: %s", one)
			}
		}
	}
	if lines > asked/2 || line.Route != "/query" || line.Tenant != "default" || line.Model != "m" || line.Status != 200 ||
		line.Tokens != 4*recordedBlock || line.Queries != 1 || len(line.Stages) != 7 {
		t.Errorf("%d lines, the last %+v", lines, line)
	}
	sum := 0.0
	for _, ms := range line.Stages {
		sum += ms
	}
	if sum > line.Took+0.01 || sum < line.Took-0.01 {
		t.Errorf("stages take %v ms of %v", sum, line.Took)
	}
}
