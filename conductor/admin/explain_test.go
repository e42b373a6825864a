package admin_test

import (
	"os"
	"strings"
	"testing"

	"example.com/conductor/conductor/inspect"

	kvconductor "example.com/conductor"
	"example.com/conductor/internal/must"
)

// TestReasonsAreDocumented looks for every reason in openapi.yaml and in the table for operators.
func TestReasonsAreDocumented(t *testing.T) {
	table, err := os.ReadFile("../../docs/reading-answers.md")
	must.Succeed(t, err)
	api := string(kvconductor.OpenAPI)
	enum := api[strings.Index(api, "enum: [removed,"):]
	enum, _, _ = strings.Cut(enum, "]")
	words := strings.Split(strings.TrimPrefix(enum, "enum: ["), ", ")
	if all := inspect.Reasons(); len(words) != len(all) {
		t.Errorf("openapi.yaml has %d reasons, the code has %d", len(words), len(all))
	}
	for i, r := range inspect.Reasons() {
		if i < len(words) && words[i] != string(r) {
			t.Errorf("openapi.yaml has %s in the place of %s", words[i], r)
		}
		if !strings.Contains(string(table), "`"+string(r)+"`") {
			t.Errorf("docs/reading-answers.md lacks %s", r)
		}
	}
}

// TestExplainErrors makes requests that /admin/explain refuses: the error names field and index.
func TestExplainErrors(t *testing.T) {
	s := newListener(t)
	f := func(body, want string) {
		t.Helper()
		if rec := s.do("POST", "/admin/explain", body); rec.Code != 400 || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", body, rec.Code, rec.Body, want)
		}
	}
	f(`{"block_size":16,"token_ids":[1]}`, `"field":"model"`)
	f(`{"model":"m","token_ids":[1]}`, `"field":"block_size"`)
	f(`{"model":"m","block_size":16}`, `"field":"token_ids"`)
	f(`{"model":"m","block_size":16,"token_ids":[1,2,"x"]}`, `"field":"token_ids","index":2`)
	f(`{"model":"m","block_size":16,"token_ids":[1],"instance_id":5}`, `"field":"instance_id"`)
}

// TestExplainVerdict asks about a prompt of less than one block: no rank lacks a block, and none holds the prompt.
func TestExplainVerdict(t *testing.T) {
	s := newListener(t)
	s.do("POST", "/register",
		`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"a","block_size":16,"dp_rank":0}`)
	for body, want := range map[string]string{
		`{"model":"m","block_size":16,"token_ids":[1,2]}`: `"blocks":0,"verdict":{"kind":"too_short",` +
			`"text":"The prompt is shorter than one block: it has 2 tokens, and a block has 16."}`,
		`{"model":"m","block_size":16,"token_ids":[` + strings.Repeat("1,", 15) +
			`1]}`: `"verdict":{"kind":"none","text":"No instance holds the first block of the prompt."}`,
		`{"model":"m2","block_size":16,"token_ids":[` + strings.Repeat("1,", 15) +
			`1]}`: `"verdict":{"kind":"no_instance","text":"Model \"m2\" is not registered`,
	} {
		if rec := s.do("POST", "/admin/explain", body); !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %s lacks %s", body, rec.Body, want)
		}
	}
	api := string(kvconductor.OpenAPI)
	for _, kind := range inspect.Verdicts() {
		if !strings.Contains(api, "`"+string(kind)+"`: ") {
			t.Errorf("openapi.yaml does not explain the verdict %s", kind)
		}
	}
}
