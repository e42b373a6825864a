package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Both processes run as they do for an operator, over real sockets, and every figure
// is there. That every answer is what it must be is the bench's own to say.
func TestBenchQuery(t *testing.T) {
	t.Parallel()
	profile := filepath.Join(t.TempDir(), "cpu.pprof")
	f := func(args ...string) map[string]any {
		t.Helper()
		cmd := command(t, append([]string{"bench", "query", "--tokens", "300", "--workers", "12", "--holders", "3", "--blocks", "500",
			"--connections", "3", "--duration", "150ms", "--json", "--quiet"}, args...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		for _, key := range []string{
			"requests_per_sec", "p50_us", "p99_us", "server_cpu_us_per_request", "allocs_per_request", "client_cpu_us_per_request",
			"requests", "answers_checked", "request_bytes", "answer_bytes", "working_set_bytes", "index_bytes", "prompts",
		} {
			if n, ok := got[key].(float64); !ok || n <= 0 {
				t.Errorf("%q: %s is %v", args, key, got[key])
			}
		}
		return got
	}
	got := f("--baseline", "--reading", "--profile", profile)
	if base, ok := got["baseline"].(map[string]any); !ok || base["requests_per_sec"].(float64) <= 0 ||
		got["baseline_ratio"].(float64) <= 0 || got["baseline_cpu_ratio"].(float64) <= 0 {
		t.Errorf("no baseline in %v", got)
	}
	if read, ok := got["reading"].(map[string]any); !ok || read["requests_per_sec"].(float64) <= 0 ||
		read["answer_bytes"] != got["answer_bytes"] || got["reading_cpu_ratio"].(float64) <= 0 {
		t.Errorf("reading alone is not as it should be in %v", got)
	}
	if got["blocks"] != 504.0 || got["memberships"] != 1512.0 || got["instances"] != 12.0 || got["codec"] != "json" {
		t.Errorf("got %v", got)
	}
	if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
		t.Errorf("no profile: %v", err)
	}
	f("--codec", "json-b64")
	f("--codec", "msgpack-bin", "--hit", "0")
	f("--codec", "grpc-hashes", "--other", "json-hashes")
	f("--codec", "grpc-router", "--other", "grpc-tokens")
	f("--other", "json-routed")
	f("--codec", "json-candidates", "--other", "json-answer-list")
	if paced, ok := f("--load", "0.5", "--batches", "200", "--snapshot")["paced"].(map[string]any); !ok ||
		paced["requests"].(float64) <= 0 ||
		paced["p999_to_p50"].(float64) < 1 || paced["batches_per_sec"].(float64) <= 0 {
		t.Errorf("requests at their own times: %v", paced)
	}
	if got := f("--codec", "msgpack-bin-expected", "--other", "msgpack-bin-routed", "--reports", "300", "--new-tokens",
		"64"); got["expected"].(map[string]any)["bytes"].(float64) <= 0 {
		t.Errorf("got %v", got)
	}
	if got := f("--changes", "1000"); got["changes_per_sec"].(float64) <= 0 {
		t.Errorf("got %v", got)
	}
	f("--codec", "msgpack-array", "--hit", "1")
	if got := f("--http2", "--baseline", "--reading"); got["http2"] != true || got["baseline"] == nil || got["reading"] == nil {
		t.Errorf("got %v", got)
	}
}

func TestBenchQueryRefuses(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if _, err := runBench(t, append([]string{"query", "--conductor", os.Args[0]}, args...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %q", args, err, want)
		}
	}
	f(`codec is "xml"`, "--codec", "xml")
	f("holders is 9", "--workers", "8", "--holders", "9")
	f("hit is 2", "--hit", "2")
	f("hit is NaN", "--hit", "NaN")
	f("tokens is 0", "--tokens", "0")
	f("block size is -1", "--block-size", "-1")
	f("connections is 0", "--connections", "0")
	f("duration must be above zero", "--duration", "-1s")
}

// A body that the server refuses before its end is reported in the words of the server.
func TestBenchQueryOfTooMuch(t *testing.T) {
	t.Parallel()
	out, err := command(t, "bench", "query", "--tokens", "3000000", "--workers", "1", "--holders", "1", "--blocks", "1", "--hit", "0.0001",
		"--quiet").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "limits.max_body") {
		t.Errorf("%v: %s", err, out)
	}
}
