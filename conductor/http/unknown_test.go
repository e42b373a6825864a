package http_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestUnknownFields makes requests with mistyped fields: warnings name them, a counter
// counts them, and ?strict=1 refuses them.
func TestUnknownFields(t *testing.T) {
	s := newServer(t)
	f := func(path, body string, status int, want ...string) {
		t.Helper()
		rec := s.do("POST", path, body)
		var got struct {
			Warnings      []string
			Reason, Field string
		}
		must.Succeed(t, json.Unmarshal(rec.Body.Bytes(), &got))
		if status == 400 {
			got.Warnings = []string{got.Reason, got.Field}
		}
		if rec.Code != status || !reflect.DeepEqual(got.Warnings, want) {
			t.Errorf("%s %s: %d %s, want %d %q", path, body, rec.Code, rec.Body, status, want)
		}
	}
	registration := func(more string) string {
		return `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"a","block_size":2,"dp_rank":0` + more + `}`
	}
	query := func(more string) string { return `{"model":"m","block_size":2,"token_ids":[1,2]` + more + `}` }

	f("/register?strict=1", registration(`,"replay_endpiont":"tcp://127.0.0.1:2"`), 400, "unknown_field", "replay_endpiont")
	if rec := s.do("GET", "/services", ""); !strings.Contains(rec.Body.String(), `"count":0`) {
		t.Errorf("a refused registration changed something: %s", rec.Body)
	}
	f("/register", registration(`,"replay_endpiont":"tcp://127.0.0.1:2","Tenant":"blue","x":[{"y":1}]`), 200,
		"unknown field replay_endpiont; did you mean replay_endpoint?", "unknown field Tenant; did you mean tenant_id?", "unknown field x")
	f("/register?strict=1", registration(`,"lora_id":null,"cache_group":0`), 200)

	f("/query", query(`,"tenant":"blue"`), 200)
	f("/query?detail=1", query(`,"tenant":"blue"`), 200, "unknown field tenant; did you mean tenant_id?")
	f("/query?detail=1", query(`,"instance_id":"a","sallt":"blue"`), 200, "unknown field sallt")
	f("/query?detail=1", query(`,"model":"none","lora_id":1`), 400, "duplicate", "model")
	f("/query?detail=1&strict=1", query(`,"lora_id":1,"lora_id":2`), 200)
	f("/query?detail=1", `{"model":"none","block_size":2,"token_ids":[1,2],"salt":"x"}`, 200,
		"unknown field salt; did you mean cache_salt?",
		`model "none" is not registered for tenant "default"; these models are: "m"`)
	f("/query?strict=1", query(`,"tenant":"blue"`), 400, "unknown_field", "tenant")
	f("/query?strict=2", query(``), 400, "invalid_value", "strict")
	f("/query_by_hash?strict=1", `{"model":"m","block_size":2,"seq_hashes":[1],"token_ids":[1]}`, 400, "unknown_field", "token_ids")
	f("/query_batch?detail=1", `{"model":"m","block_size":2,"queries":[{"token_ids":[1,2],"tenant":"b"},3,{"token_ids":[1,2]}],"tpo":1}`,
		200,
		"unknown field queries[0].tenant; did you mean tenant_id?", "unknown field tpo; did you mean top?")
	f("/query_batch?strict=1", `{"model":"m","block_size":2,"queries":[{"token_ids":[1,2],"tenant":"b"}]}`, 400, "unknown_field",
		"queries[0].tenant")

	many := strings.Builder{}
	for i := range 20 {
		fmt.Fprintf(&many, `,"%d%s":0`, i, strings.Repeat("ü", 80))
	}
	rec := s.do("POST", "/query?detail=1", query(many.String()))
	if n := strings.Count(rec.Body.String(), "unknown field "); n != 8 || !strings.Contains(rec.Body.String(), `"12 more unknown fields"`) {
		t.Errorf("%d warnings: %s", n, rec.Body)
	}

	rec = s.do("GET", "/metrics", "")
	const total = "conductor_unknown_fields_total 33\n"
	if !strings.Contains(rec.Body.String(), total) {
		t.Errorf("want %s in %s", total, rec.Body)
	}
}
