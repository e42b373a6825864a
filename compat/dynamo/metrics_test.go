package dynamo

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// TestMetrics holds names, types, labels and values of the series.
func TestMetrics(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		f := func(name, want string) {
			t.Helper()
			if got := s.metric(name); got != want {
				t.Errorf("%s\n got %s\nwant %s", name, got, want)
			}
		}
		applied := func(counts map[string]int) string {
			var out strings.Builder
			for _, kind := range []string{"cleared", "removed", "stored"} {
				for _, status := range []string{"allocation_failed", "block_not_found", "capacity_exhausted", "indexer_invariant_violation",
					"invalid_block", "ok", "ownership_degree_overflow", "parent_block_not_found", "unsupported_residency_domain"} {
					fmt.Fprintf(&out, "dynamo_kvrouter_kv_cache_events_applied{event_type=%q,status=%q} %d\n", kind, status,
						counts[kind+" "+status])
				}
			}
			return out.String()
		}
		// Everything that is no answer to a request is there from the start.
		f("dynamo_kvindexer", "dynamo_kvindexer_listeners{status=\"active\"} 0\ndynamo_kvindexer_listeners{status=\"failed\"} 0\n"+
			"dynamo_kvindexer_listeners{status=\"paused\"} 0\ndynamo_kvindexer_listeners{status=\"pending\"} 0\n"+
			"dynamo_kvindexer_models 0\ndynamo_kvindexer_workers 0\n")
		f("dynamo_kvrouter_kv_cache_events_applied", applied(nil))
		f("dynamo_kvrouter_kv_cache_event_warnings", "dynamo_kvrouter_kv_cache_event_warnings{warning_kind=\"duplicate_store\"} 0\n")
		f("dynamo_kvrouter_ckf",
			"dynamo_kvrouter_ckf_mutation_total{outcome=\"capacity_exhausted\"} "+
				"0\ndynamo_kvrouter_ckf_mutation_total{outcome=\"unknown_remove\"} 0\n")
		f("# TYPE dynamo_kvrouter",
			"# TYPE dynamo_kvrouter_ckf_mutation_total counter\n# TYPE dynamo_kvrouter_kv_cache_event_warnings counter\n# TYPE "+
				"dynamo_kvrouter_kv_cache_events_applied counter\n")

		s.register(1, 0, "")
		s.register(1, 1, "")
		s.do("POST", "/register", newRegistration("instance_id", "2", "endpoint", `"inproc://never"`, "model_name", `"n"`), 201, done)
		s.publish(1, 0, stored("GPU", 1, 2), stored("GPU", 1, 2), removed("GPU", 9), stored("CPU", 3, 3), stored("GPU", 7, 7))
		s.publish(1, 1, map[string]any{"type": "AllBlocksCleared"})
		s.send("POST", "/query", ask(promptOf(1), ""))
		s.send("POST", "/dynamo/v1/query", `{"token_ids":[1],"model_name":"x"}`)
		s.send("POST", "/query", "{")
		s.send("GET", "/query", "")
		s.send("HEAD", "/health", "")
		s.send("GET", "/nothing", "")
		s.send("BREW", "/nothing", "")
		s.send("POST", "/metrics", "")
		synctest.Wait()
		f("dynamo_kvindexer_requests_total",
			`dynamo_kvindexer_requests_total{endpoint="/health",method="HEAD"} 1`+"\n"+
				`dynamo_kvindexer_requests_total{endpoint="/query",method="GET"} 1`+"\n"+
				`dynamo_kvindexer_requests_total{endpoint="/query",method="POST"} 3`+"\n"+
				`dynamo_kvindexer_requests_total{endpoint="/register",method="POST"} 3`+"\n"+
				`dynamo_kvindexer_requests_total{endpoint="unknown",method="GET"} 1`+"\n"+
				`dynamo_kvindexer_requests_total{endpoint="unknown",method="other"} 1`+"\n")
		f("dynamo_kvindexer_errors_total", `dynamo_kvindexer_errors_total{endpoint="/query",status_class="4xx"} 3`+"\n"+
			`dynamo_kvindexer_errors_total{endpoint="unknown",status_class="4xx"} 2`+"\n")
		f("dynamo_kvindexer_request_duration_seconds_count", `dynamo_kvindexer_request_duration_seconds_count{endpoint="/health"} 1`+"\n"+
			`dynamo_kvindexer_request_duration_seconds_count{endpoint="/query"} 4`+"\n"+
			`dynamo_kvindexer_request_duration_seconds_count{endpoint="/register"} 3`+"\n"+
			`dynamo_kvindexer_request_duration_seconds_count{endpoint="unknown"} 2`+"\n")
		var buckets []string
		for line := range strings.Lines(s.metric(`dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/health"`)) {
			_, le, _ := strings.Cut(line, `le="`)
			le, _, _ = strings.Cut(le, `"`)
			buckets = append(buckets, le)
		}
		if got := strings.Join(
			buckets, " "); got != "0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 0.2048 0.4096 0.8192 "+
			"1.6384 3.2768 6.5536 13.1072 26.2144 52.4288 +Inf" {
			t.Errorf("buckets %s", got)
		}
		f("dynamo_kvindexer_listeners",
			"dynamo_kvindexer_listeners{status=\"active\"} 2\ndynamo_kvindexer_listeners{status=\"failed\"} 1\n"+
				"dynamo_kvindexer_listeners{status=\"paused\"} 0\ndynamo_kvindexer_listeners{status=\"pending\"} 0\n")
		f("dynamo_kvindexer_models", "dynamo_kvindexer_models 2\n")
		f("dynamo_kvindexer_workers", "dynamo_kvindexer_workers 2\n")
		f("dynamo_kvrouter_kv_cache_events_applied", applied(map[string]int{
			"stored ok": 2, "stored parent_block_not_found": 1, "removed block_not_found": 1, "cleared ok": 1,
		}))
		f("dynamo_kvrouter_kv_cache_event_warnings", "dynamo_kvrouter_kv_cache_event_warnings{warning_kind=\"duplicate_store\"} 1\n")
		if !strings.Contains(s.metric("conductor_sources"), `conductor_sources{state="failed"} 1`) {
			t.Error("our own series are not beside theirs")
		}
	})
}
