package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"example.com/conductor/internal/must"
)

// hostileText would clear the screen, add a line, a column and a colour, and turn the direction around.
const hostileText = "n\x1b[2J\n\u009b31m\tx\r\u202e\u2028\f\v\a\x00"

// hostileServer answers every request of a command with hostileText in each string.
func hostileServer(t *testing.T) (url string) {
	h := hostileText
	finding := map[string]any{"Code": "block_size_mismatch", "Message": h, "code": "block_size_mismatch", "text": h, "message": h}
	reason := map[string]any{"reason": h, "text": h, "certain": false}
	holder := map[string]any{"source": h, "state": h, "state_reason": h, "dp_rank": 0, "matched": 1, "findings": []any{finding},
		"media": []any{map[string]any{"medium": h, "matched": 1, "runs": [][2]int{{0, 1}}}},
		"end":   map[string]any{"block": 1, "tokens": [2]int{2, 4}, "reasons": []any{reason}}}
	answers := map[string]any{
		"/conductor/v1/services": map[string]any{
			"services": []any{
				map[string]any{"InstanceID": h, "TenantID": h, "Type": h, "ModelName": h, "LoraName": h, "State": "failed",
					"Reason": h, "LastError": h,
					"Endpoint": h, "ReplayEndpoint": h, "DroppedBy": map[string]any{h: 1}, "Findings": []any{finding},
					"DPRank": 0, "BlockSize": 1,
					"Expected":   map[string]any{"prompts": 1},
					"Registered": h, "Replicas": []any{map[string]any{"ID": h, "URL": h, "State": h}}},
			},
			"discovery": []any{map[string]any{"InstanceID": h, "TenantID": h, "URL": h, "LastError": h}},
			"lmcache": []any{map[string]any{"InstanceID": h, "Unclaimed": []any{map[string]any{"InstanceID": h, "ModelName": h,
				"Entries": 1}}}},
			"unclaimed": []any{map[string]any{"Endpoint": h, "Topic": h, "From": h, "Advice": h, "Messages": 1}},
		},
		"/admin/stats": map[string]any{"states": map[string]any{h: 1}, "sources": []any{map[string]any{"source": h, "instance_id": h,
			"tenant_id": h, "model_name": h, "state": h, "reason": h, "last_error": h, "findings": []any{finding}}}},
		"/admin/explain": map[string]any{"blocks": 2, "tokens": 4, "block_size": 2, "verdict": map[string]any{"kind": "x", "text": h},
			"instances": []any{map[string]any{"instance": h, "longest_matched": 2, "ranks": []any{holder}}}, "pools": []any{holder},
			"reasons": []any{reason}},
		"/conductor/v1/query": map[string]any{h: map[string]any{h: map[string]any{"longest_matched": 2, "GPU": 2,
			"DP":     map[string]any{"0": 2},
			"detail": map[string]any{"0": map[string]any{"state": h}}}}, "warnings": []string{h}},
		"/admin/cluster": map[string]any{"enabled": true, "mode": "shards",
			"replicas": []any{map[string]any{"id": h, "url": h, "state": h}},
			"shards": []any{map[string]any{"tenant_id": h, "model_name": h, "tenant": h, "model": h, "owners": []any{h}, "replicas": []any{
				map[string]any{"id": h, "url": h, "phase": h, "state": h}}}}},
		"/admin/reload": map[string]any{"result": h, "changed": []any{map[string]any{"setting": h, "path": h, "was": h, "is": h}},
			"errors": []string{h}, "warnings": []string{h}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusConflict)
			answer = map[string]any{"error": h, "reason": h, "field": h}
		}
		json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestPrintedNames lets every command that asks a server print hostile names: nothing acts on the terminal, and a table has
// the lines that it has with plain ones.
func TestPrintedNames(t *testing.T) {
	url := hostileServer(t)
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	must.Succeed(t, os.WriteFile(empty, nil, 0o600))
	for _, args := range [][]string{
		{"services"}, {"services", "--fleet"}, {"doctor"}, {"doctor", "--all"}, {"top", "--once"}, {"cluster"},
		{"health"}, {"health", "--ready"},
		{"explain", "--model", "m", "--block-size", "2", "--tokens", "1,2"},
		{"explain", "--model", "m", "--block-size", "2", "--tokens", "1,2", "--all"},
		{"query", "--model", "m", "--block-size", "2", "--tokens", "1,2"}, {"unregister", hostileText}, {"config", "diff"},
		{"register", hostileText, "--endpoint", "tcp://h:1", "--type", "vLLM", "--model", "m", "--block-size", "2"},
		{"dump", "--out", filepath.Join(t.TempDir(), "x")}, {"cluster", "shards"},
	} {
		for _, more := range []string{"", "--json"} {
			line := slices.Concat(args, []string{"--server", url})
			if more != "" {
				line = append(line, more)
			}
			_, out, errs := runCLI(line...)
			for _, r := range out + errs {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("%q prints %q:\n%q\n%q", line, r, out, errs)
					break
				}
			}
			if more == "" && strings.Contains("\n"+out+errs, "\n[2J") || strings.Contains("\n"+out+errs, "\n\u009b") {
				t.Errorf("%q: a name ends a line:\n%q", line, out+errs)
			}
		}
	}
	_, out, _ := runCLI("services", "--server", url)
	if lines := strings.Split(strings.TrimSpace(out), "\n\n"); len(lines) != 5 || strings.Count(lines[0], "\n") != 1 {
		t.Errorf("%q", lines)
	}
	_, out, _ = runCLI("query", "--model", "m", "--block-size", "2", "--tokens", "1,2", "--server", url, "--json")
	var answer map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer[hostileText] == nil {
		t.Errorf("%v: %q", err, out)
	}
}
