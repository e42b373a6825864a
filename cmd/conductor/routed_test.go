package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestForeignReports reports and takes back as a client of another tenant, also under an instance of the same name:
// no row of tenant b gets longer or shorter.
func TestForeignReports(t *testing.T) {
	t.Parallel()
	p, _ := twoTenants(t, "")
	prompt := map[string]any{"model": "m", "block_size": 16, "token_ids": recordedTokens(8), "expected": true}
	with := func(more map[string]any) []byte {
		all := make(map[string]any)
		for _, m := range []map[string]any{prompt, more} {
			for k, v := range m {
				all[k] = v
			}
		}
		return asJSON(all)
	}
	check := func(want int) {
		t.Helper()
		_, answer := askAs(t, "POST", p.url+"/query", "query-b", "application/json", with(map[string]any{"tenant_id": "b"}))
		var rows map[string]map[string]struct{ Expected int }
		if must.Succeed(t, json.Unmarshal([]byte(answer), &rows)); rows["b"]["engine-b"].Expected != want {
			t.Errorf("%s, want %d", answer, want)
		}
	}
	f := func(method, path, token string, more map[string]any, status int, want string) {
		t.Helper()
		if got, answer := askAs(t, method, p.url+path, token, "application/json", with(more)); got != status ||
			!strings.Contains(answer, want) {
			t.Errorf("%s %s %v as %s: %d %s, want %d %s", method, path, more, token, got, answer, status, want)
		}
	}
	check(0)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "b", "instance_id": "engine-b"}, 403, "forbidden")
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-b"}, 404, `"known":["engine-a"]`)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a2", "instance_id": "engine-b"}, 404, `"known":[]`)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-a", "request_id": "same", "ttl": "10m"}, 204, "")
	f("POST", "/register", "all-a", map[string]any{"endpoint": "tcp://127.0.0.1:1", "type": "vLLM", "modelname": "m",
		"instance_id": "engine-b", "dp_rank": 0, "tenant_id": "a"}, 200, "")
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-b"}, 200, "a|0 is connecting")
	check(0)
	f("POST", "/routed", "query-b", map[string]any{"tenant_id": "b", "instance_id": "engine-b", "request_id": "same", "ttl": "10m"},
		204, "")
	check(8 * recordedBlock)
	f("DELETE", "/routed/same?tenant_id=b", "all-a", nil, 403, "forbidden")
	f("DELETE", "/routed/same?tenant_id=a", "all-a", nil, 204, "")
	check(8 * recordedBlock)
	f("DELETE", "/routed/same?tenant_id=b", "query-b", nil, 204, "")
	check(0)
}

// TestRoutedOverSockets reports a prompt to an engine that publishes over a socket, lets it announce the prompt, and
// restarts it.
func TestRoutedOverSockets(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	p := serveProcess(t, fmt.Sprintf("sources:\n  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: engine, "+
		"block_size: 16}\n", engine.pub.Addr()))
	engine.publish(ruledStored(0, 2))
	engine.settled(p)
	query := string(asJSON(map[string]any{"model": "m", "block_size": 16, "token_ids": recordedTokens(8), "expected": true}))
	check := func(when, want string) {
		t.Helper()
		if answer := post(t, p.url+"/query", query, 200); !strings.Contains(answer, want) {
			t.Errorf("%s: %s, want %s", when, answer, want)
		}
	}
	check("before", `"longest_matched":32,"expected":32,`)
	report := map[string]any{"model": "m", "block_size": 16, "token_ids": recordedTokens(6), "instance_id": "engine", "dp_rank": 0,
		"ttl": "10m"}
	if answer := post(t, p.url+"/routed", string(asJSON(report)), 204); answer != "" {
		t.Errorf("%q", answer)
	}
	check("reported", `"longest_matched":32,"expected":96,`)
	tokens := strings.Trim(fmt.Sprint(recordedTokens(8)), "[]")
	status, out, errs := runCLI("query", "--server", p.url, "--model", "m", "--block-size", "16", "--tokens", tokens, "--expected")
	if columns := strings.Join(strings.Fields(out), " "); status != 0 || !strings.Contains(columns, "LONGEST EXPECTED GPU") ||
		!strings.Contains(columns, "engine 32 96 32") {
		t.Errorf("%d %s%s", status, out, errs)
	}
	engine.publish(ruledStored(2, 4))
	engine.settled(p)
	check("announced in part", `"longest_matched":64,"expected":96,`)
	engine.publish(ruledStored(4, 6))
	engine.settled(p)
	check("announced", `"longest_matched":96,"expected":96,`)
	engine.publish(ruledRemoved(5, 6))
	engine.settled(p)
	check("evicted", `"longest_matched":80,"expected":80,`)

	report["token_ids"] = recordedTokens(8)
	post(t, p.url+"/routed", string(asJSON(report)), 204)
	check("reported again", `"longest_matched":80,"expected":128,`)
	engine.seq = 0 // another process
	engine.publish(ruledStored(0, 1))
	eventually(t, "the restart was not noticed", func() (string, bool) {
		answer := post(t, p.url+"/query", query, 200)
		return answer, strings.Contains(answer, `"longest_matched":16,"expected":16,`)
	})
}
