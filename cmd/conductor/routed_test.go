package main

import (
	"encoding/json"
	"strings"
	"testing"

	"kvconductor/internal/must"
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
		if got, answer := askAs(t, method, p.url+path, token, "application/json", with(more)); got != status || !strings.Contains(answer, want) {
			t.Errorf("%s %s %v as %s: %d %s, want %d %s", method, path, more, token, got, answer, status, want)
		}
	}
	check(0)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "b", "instance_id": "engine-b"}, 403, "forbidden")
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-b"}, 404, `"known":["engine-a"]`)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a2", "instance_id": "engine-b"}, 404, `"known":[]`)
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-a", "request_id": "same"}, 204, "")
	f("POST", "/register", "all-a", map[string]any{"endpoint": "tcp://127.0.0.1:1", "type": "vLLM", "modelname": "m", "instance_id": "engine-b", "dp_rank": 0, "tenant_id": "a"}, 200, "")
	f("POST", "/routed", "all-a", map[string]any{"tenant_id": "a", "instance_id": "engine-b"}, 200, "a|0 is connecting")
	check(0)
	f("POST", "/routed", "query-b", map[string]any{"tenant_id": "b", "instance_id": "engine-b", "request_id": "same"}, 204, "")
	check(8 * recordedBlock)
	f("DELETE", "/routed/same?tenant_id=b", "all-a", nil, 403, "forbidden")
	f("DELETE", "/routed/same?tenant_id=a", "all-a", nil, 204, "")
	check(8 * recordedBlock)
	f("DELETE", "/routed/same?tenant_id=b", "query-b", nil, 204, "")
	check(0)
}
