package http_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

const (
	lmcacheSource = `{"endpoint":"push:","type":"LMCache","modelname":"m","instance_id":"n","block_size":2,"dp_rank":0}`
	lmcacheBatch  = `{"instance_id":"n","incarnation":1,"seq":1,"event_type":"store","tier":"l1","backend":"dram",` +
		`"entries":[{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"token_ids":[1,2],"token_offset":0}]}`
)

// A request that ends before its batches are applied is answered 503, and can be made once more.
func TestLMCacheRequestThatEnds(t *testing.T) {
	s := newServer(t)
	s.do("POST", "/register", lmcacheSource)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	req := httptest.NewRequestWithContext(ctx, "POST", "/lmcache/events", strings.NewReader(`{"batches":[`+lmcacheBatch+`]}`))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	s.doc.CheckAnswer(t, req, rec)
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" || !strings.Contains(rec.Body.String(), `"reason":"busy"`) {
		t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	if rec := s.do("POST", "/lmcache/events",
		`{"batches":[`+lmcacheBatch+`]}`); rec.Body.String() != `{"applied":1,"duplicates":0,"stale":0}` {
		t.Errorf("once more: %s", rec.Body)
	}
}

// What has no effect is counted by reason.
func TestLMCacheRefusalsAreCounted(t *testing.T) {
	s := newServer(t)
	s.do("POST", "/register", lmcacheSource)
	counted := func(part, reason string, want int) {
		t.Helper()
		series := fmt.Sprintf("conductor_lmcache_refused_total{part=%q,reason=%q} %d\n", part, reason, want)
		if metrics := s.do("GET", "/metrics", "").Body.String(); !strings.Contains(metrics, series) {
			t.Errorf("the metrics lack %s: %v", series, regexp.MustCompile("conductor_lmcache_refused.*").FindAllString(metrics, -1))
		}
	}
	counted("request", "invalid_json", 0)
	counted("batch", "missing", 0)
	f := func(body string, status int, part, reason string, want int) {
		t.Helper()
		if rec := s.do("POST", "/lmcache/events", body); rec.Code != status {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
		counted(part, reason, want)
	}
	one := func(was, is string) string { return `{"batches":[` + strings.Replace(lmcacheBatch, was, is, 1) + `]}` }
	f(`{"batches":[`, 400, "request", "invalid_json", 1)
	f(`{"batches":{}}`, 400, "request", "invalid_type", 1)
	f(`{}`, 400, "request", "missing", 1)
	f(one(`"tier":"l1",`, ``), 200, "batch", "missing", 1)
	f(one(`"seq":1`, `"seq":"1"`), 200, "batch", "invalid_type", 1)
	f(one(`"seq":1`, `"seq":0`), 200, "batch", "out_of_range", 1)
	f(one(`"l1"`, `"l7"`), 200, "batch", "invalid_value", 1)
	f(one(`"01"`, `"x"`), 200, "entry", "invalid_value", 1)
	f(one(`"kv_rank":0`, `"rank":0`), 200, "entry", "missing", 1) // also of a batch that is there
	f(`{"batches":[7,`+lmcacheBatch+`,7]}`, 200, "batch", "invalid_type", 3)
}

// A source that LMCache calls needs no rank, and has 0 then. Other endpoints need one.
func TestRankOfPushIsOptional(t *testing.T) {
	s := newServer(t)
	rankless := strings.Replace(lmcacheSource, `,"dp_rank":0`, "", 1)
	for _, registration := range []string{rankless, lmcacheSource} {
		if rec := s.do("POST", "/register", registration); rec.Code != 200 {
			t.Errorf("%s: %d %s", registration, rec.Code, rec.Body)
		}
	}
	if services := s.do("GET", "/services", "").Body.String(); strings.Count(services, `"InstanceID":"n"`) != 1 ||
		!strings.Contains(services, `"DPRank":0`) {
		t.Errorf("the services are %s", services)
	}
	if rec := s.do("POST", "/register", strings.Replace(rankless, "push:", "tcp://127.0.0.1:1", 1)); rec.Code != 400 ||
		!strings.Contains(rec.Body.String(), `"field":"dp_rank"`) {
		t.Errorf("without a rank: %d %s", rec.Code, rec.Body)
	}
	if rec := s.do("POST", "/register", strings.Replace(lmcacheSource, `"dp_rank":0`, `"dp_rank":-1`, 1)); rec.Code != 400 {
		t.Errorf("with a rank below 0: %d %s", rec.Code, rec.Body)
	}
}
