package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestEndlessPeersAreGivenUp starts a server whose first two peers send dumps that never end: one of sources that do not
// exist, one of blocks. It gives both up, says why, and recovers from the third.
func TestEndlessPeersAreGivenUp(t *testing.T) {
	t.Parallel()
	const line = `{"key":"m:default","block_size":16,"event":{"worker_id":%d,"storage_tier":"device","residency_domain":"worker",` +
		`"event":{"event_id":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":%d,"tokens_hash":%[2]d,` +
		`"mm_extra_info":null}]}},"dp_rank":0}}}` + "\n"
	peer := func(next func(i int) string, end int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/dump" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/x-ndjson")
			for i := 1; end == 0 || i <= end; i++ {
				if _, err := io.WriteString(w, next(i)); err != nil {
					return
				}
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	invents := peer(func(i int) string { return fmt.Sprintf(line, i, 7) }, 0)
	floods := peer(func(i int) string { return fmt.Sprintf(line, 5, i) }, 0)
	honest := peer(func(i int) string { return fmt.Sprintf(line, 5, i) }, 3)
	p := serveProcess(t, fmt.Sprintf("dynamo: {peers: [%q, %q, %q]}\nlimits: {max_sources: 20}\nindex: {max_bytes_total: 1MiB}\n"+
		"shutdown: {drain: 0s}\n"+
		"sources:\n  - {endpoint: 'tcp://127.0.0.1:9', type: vLLM, modelname: m, instance_id: '5', block_size: 16}\n", invents, floods,
		honest))
	eventually(t, "it does not recover from the third", func() (string, bool) {
		_, text := get(p.url + "/services")
		return text + p.log(), strings.Contains(text, `"Blocks":3,`) && strings.Contains(p.log(), "recovered from a peer")
	})
	eventually(t, "/ready says that it recovers", func() (string, bool) { // its engine is not there, so it stays 503
		_, text := get(p.url + "/ready")
		return text, strings.Contains(text, `"recovering":false`)
	})
	if n := strings.Count(p.log(), "unregistered"); n > 0 {
		t.Errorf("%d lines about sources that a peer made up", n)
	}
	for _, want := range []string{"more than 20 sources", "for each byte of index.max_bytes_total", "recovered from a peer"} {
		if n := strings.Count(p.log(), want); n != 1 {
			t.Errorf("%d lines have %q: %s", n, want, p.log())
		}
	}
}
