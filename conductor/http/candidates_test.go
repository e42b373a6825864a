package http_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// candidatesAnswer is an answer of POST /candidates.
type candidatesAnswer struct {
	ID         string
	Model      string
	Lora       string `json:"lora_name"`
	BlockSize  int    `json:"block_size"`
	Candidates map[string]struct {
		Address, State string
		Longest        int `json:"longest_matched"`
		Expected       int
		Ranks          map[string]map[string]int `json:"rank_matches"`
	}
}

func (s *server) candidates(body string) (a candidatesAnswer) {
	s.t.Helper()
	rec := s.do("POST", "/candidates", body)
	must.Succeed(s.t, json.Unmarshal(rec.Body.Bytes(), &a))
	if rec.Code != 200 {
		s.t.Fatalf("%s: %d %s", body, rec.Code, rec.Body)
	}
	return a
}

// newCandidatesServer returns a server with two engines without events at two addresses, which list an adapter.
func newCandidatesServer(t *testing.T) *server {
	now := time.Now()
	s := newServerAt(t, func() time.Time { return now })
	for _, name := range []string{"a", "b"} {
		body := fmt.Sprintf(`{"type":"Standard","events":"none","capacity_blocks":9,"modelname":"m","instance_id":%q,"block_size":4,`+
			`"dp_rank":0,"address":"http://%s:8000","adapters":["sql"]}`, name, name)
		if rec := s.do("POST", "/register", body); rec.Code != 200 {
			t.Fatal(rec.Body)
		}
	}
	return s
}

// TestCandidates asks where a prompt may go, reports by the id of the answer, and sees the report. Each answer fits openapi.yaml.
func TestCandidates(t *testing.T) {
	s := newCandidatesServer(t)
	const prompt = `,"token_ids":[` + eight + `]}`
	a := s.candidates(`{"model":"m"` + prompt)
	if row := a.Candidates["a"]; a.ID == "" || a.Model != "m" || a.Lora != "" || a.BlockSize != 4 || len(a.Candidates) != 2 ||
		row.Address != "http://a:8000" || row.State != "approximate" || row.Longest != 0 || row.Expected != 0 {
		t.Errorf("%+v", a)
	}
	report := func(more string, status int, want string) {
		t.Helper()
		rec := s.do("POST", "/routed", `{"answer_id":"`+a.ID+`"`+more+`}`)
		if rec.Code != status || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %s", more, rec.Code, rec.Body)
		}
	}
	report(`,"instance_id":"b","request_id":"r"`, 204, "")
	if got := s.candidates(`{"model":"m"` + prompt).Candidates; got["a"].Expected != 0 || got["b"].Expected != 8 ||
		got["b"].Ranks["0"]["expected"] != 8 {
		t.Errorf("after a report by id: %+v", got)
	}
	if rec := s.do("DELETE", "/routed/r", ""); rec.Code != 204 {
		t.Errorf("take back: %d %s", rec.Code, rec.Body)
	}
	if got := s.candidates(`{"model":"m"` + prompt).Candidates["b"].Expected; got != 0 {
		t.Errorf("after taking it back %d tokens are expected", got)
	}

	// An adapter's name is its model, and reports by id are about the adapter too.
	a = s.candidates(`{"model":"sql"` + prompt)
	if a.Model != "m" || a.Lora != "sql" {
		t.Errorf("%+v", a)
	}
	report(`,"instance_id":"a","tenant_id":"default"`, 204, "")
	if got := s.candidates(`{"model":"m","lora_name":"sql"` + prompt).Candidates["a"].Expected; got != 8 {
		t.Errorf("%d tokens are expected under the adapter", got)
	}
	if got := s.candidates(`{"model":"m"` + prompt).Candidates["a"].Expected; got != 0 {
		t.Errorf("%d tokens are expected without the adapter", got)
	}

	// Limits of rows are those of queries, and hashes are prompts too.
	if got := s.candidates(`{"model":"sql","top":1` + prompt).Candidates; len(got) != 1 || got["a"].Expected != 8 {
		t.Errorf("the first row: %+v", got)
	}
	if got := s.candidates(`{"model":"m","seq_hashes":[1,2]}`); got.ID == "" || len(got.Candidates) != 2 {
		t.Errorf("by hashes: %+v", got)
	}

	// Each error names the field and, where there are some, the known names.
	f := func(path, body string, status int, want string) {
		t.Helper()
		if rec := s.do("POST", path, body); rec.Code != status || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %s, want %d %s", body, rec.Code, rec.Body, status, want)
		}
	}
	f("/candidates", `{"model":"x"`+prompt, 404, `"reason":"unknown_model","field":"model","known":["m"]`)
	f("/candidates", `{"model":"m","tenant_id":"t"`+prompt, 404, `"reason":"unknown_model","field":"model","known":[]`)
	f("/candidates", `{"model":"m","block_size":16`+prompt, 400, `"reason":"unknown_block_size","field":"block_size","known":["4"]`)
	f("/candidates", `{"model":"m","block_size":0`+prompt, 400, `"field":"block_size"`)
	f("/candidates", `{"model":"m","instance_id":"nope"`+prompt, 404, `"reason":"not_found","field":"instance_id","known":["a","b"]`)
	f("/candidates", `{"model":"m"}`, 400, `"reason":"missing","field":"token_ids"`)
	report(`,"instance_id":"c"`, 404, `"reason":"not_found","field":"instance_id","known":["a","b"]`)
	report(`,"instance_id":"a","token_ids":[1]`, 400, `"reason":"conflict","field":"token_ids"`)
	report(`,"instance_id":"a","tenant_id":"other"`, 404, `"reason":"unknown_answer","field":"answer_id"`)
	report(`,"dp_rank":0`, 400, `"reason":"missing","field":"instance_id"`)
	for _, id := range []string{"0", "ffffffffffffffff", "no number", "-1"} {
		a.ID = id
		report(`,"instance_id":"a"`, 404, `"reason":"unknown_answer","field":"answer_id"`)
	}
	f("/routed", `{"answer_id":"","instance_id":"a"}`, 400, `"field":"answer_id"`)
	f("/routed", `{"answer_id":7,"instance_id":"a"}`, 400, `"reason":"invalid_type","field":"answer_id"`)

	// A list of reports may have both kinds.
	id := s.candidates(`{"model":"m"` + prompt).ID
	f("/routed", `{"instance_id":"b","prompts":[{"answer_id":"`+id+`"},{"answer_id":"1"},`+
		`{"model":"m","block_size":4,"token_ids":[1,2,3,4]}]}`, 200, `{"kept":2,"errors":[{"prompt":1,`)

	// A second block size has to be named.
	s.do("POST", "/register", `{"type":"Standard","events":"none","capacity_blocks":9,"modelname":"m","instance_id":"a","block_size":8,`+
		`"dp_rank":0,"replace":true}`)
	f("/candidates", `{"model":"m"`+prompt, 400, `"reason":"unknown_block_size","field":"block_size","known":["4","8"]`)
	if a := s.candidates(`{"model":"m","block_size":8` + prompt); a.BlockSize != 8 || len(a.Candidates) != 1 ||
		a.Candidates["a"].Address != "" {
		t.Errorf("%+v", a)
	}
}

// TestCandidatesSayWhatQueriesSay compares the rows of the same prompt.
func TestCandidatesSayWhatQueriesSay(t *testing.T) {
	s := newRoutedServer(t) // two ranks of an instance and another one, none of them synced
	s.do("POST", "/routed", `{"model":"m","block_size":4,"token_ids":[1,2,3,4,5],"instance_id":"a","dp_rank":1}`)
	a := s.candidates(`{"model":"n","block_size":4,"token_ids":[` + eight + `]}`)
	var rows map[string]map[string]struct {
		Longest  int `json:"longest_matched"`
		Expected int
		Ranks    map[string]map[string]int `json:"rank_matches"`
	}
	rec := s.do("POST", "/query?expected=1", `{"model":"m","block_size":4,"token_ids":[`+eight+`]}`)
	must.Succeed(t, json.Unmarshal(rec.Body.Bytes(), &rows))
	if len(a.Candidates) != 2 || a.Candidates["a"].Expected != 4 {
		t.Fatalf("%+v", a)
	}
	for name, c := range a.Candidates {
		if q := rows["default"][name]; c.Longest != q.Longest || c.Expected != q.Expected || !reflect.DeepEqual(c.Ranks, q.Ranks) ||
			c.State != "connecting" {
			t.Errorf("%s: %+v as a candidate, %+v in a query", name, c, q)
		}
	}

	// In msgpack, and from another replica, which does not have the answer.
	body, err := msgpack.Marshal(map[string]any{"model": "m", "token_ids": []uint32{1, 2, 3, 4}})
	must.Succeed(t, err)
	for _, forwarded := range []string{"", "r"} {
		req := httptest.NewRequest(nethttp.MethodPost, "/candidates", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/msgpack")
		req.Header.Set("Accept", "application/msgpack")
		if forwarded != "" {
			req.Header.Set(forward.ForwardedHeader, forwarded)
		}
		rec := httptest.NewRecorder()
		s.engine.ServeHTTP(rec, req)
		var got map[string]any
		must.Succeed(t, msgpack.Unmarshal(rec.Body.Bytes(), &got))
		if _, kept := got["id"]; kept != (forwarded == "") || len(got["candidates"].(map[string]any)) != 2 {
			t.Errorf("forwarded by %q: %v", forwarded, got)
		}
	}
}

// TestAnswersOfOtherTenants holds that a client can report answers of its own tenants alone.
func TestAnswersOfOtherTenants(t *testing.T) {
	var c *conductor.Conductor
	newServer(t, func(of *conductor.Conductor, _ *admin.Options) { c = of })
	must.Succeed(t, c.Register(registration.Registration{Type: registration.TypeStandard, Events: registration.EventsNone,
		CapacityBlocks: 9, Model: "m", Instance: "a", BlockSize: 4, Tenant: "blue"}, ingest.RegisterOptions{}))
	blue, red := c.For(conductor.Reader{Tenants: []string{"blue"}}), c.For(conductor.Reader{Tenants: []string{"red", "default"}})
	id := ""
	q := match.Query{Tenant: "blue", Model: "m", Tokens: []uint32{1, 2, 3, 4}, Keep: true}
	must.Succeed(t, conductor.Candidates(blue, &q, func(a *match.Answer, _ registration.Meaning) { id = match.FormatAnswerID(a.ID) }))
	for view, want := range map[string]conductor.View{"red": red, "blue": blue} {
		_, err := want.Routed(&match.Routed{AnswerID: id, Target: "a", Rank: match.AnyRank})
		if _, unknown := err.(*match.UnknownAnswerError); unknown != (view == "red") || !unknown && err != nil {
			t.Errorf("%s: %v", view, err)
		}
	}
}
