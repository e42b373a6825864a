package http_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
)

const (
	lmcacheSource = `{"endpoint":"push:","type":"LMCache","modelname":"m","instance_id":"n","block_size":2,"dp_rank":0}`
	lmcacheBatch  = `{"instance_id":"n","incarnation":1,"seq":1,"event_type":"store","tier":"l1","backend":"dram","entries":[{"key":{"chunk_hash_hex":"01","model_name":"m","kv_rank":0},"token_ids":[1,2],"token_offset":0}]}`
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
	if rec := s.do("POST", "/lmcache/events", `{"batches":[`+lmcacheBatch+`]}`); rec.Body.String() != `{"applied":1,"duplicates":0,"stale":0}` {
		t.Errorf("once more: %s", rec.Body)
	}
}
