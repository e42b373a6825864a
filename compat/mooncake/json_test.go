package mooncake

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/internal/must"
)

// doJSON makes the request of a step in JSON and compares the answer byte by byte.
func (s *testServer) doJSON(on *gin.Engine, at *step, query string) {
	s.t.Helper()
	if at.JSONAnswer == "" {
		return
	}
	body := []byte(at.JSONBody)
	if at.Hashes > 0 {
		body = hashesInJSON(s.t, at)
	}
	method, path, _ := strings.Cut(at.Request, " ")
	rec := send(on, method, path+query, body)
	want := "application/json"
	if at.JSONAnswer[0] != '{' {
		want = "text/plain; charset=utf-8"
	}
	if got := rec.Header().Get("Content-Type"); got != want {
		s.t.Errorf("%s %s: an answer of type %q, want %q", at.Request, at.JSONBody, got, want)
	}
	if rec.Code != at.Status || rec.Body.String() != at.JSONAnswer {
		s.t.Errorf("%s %s\n got %d %q\nwant %d %q", at.Request, at.JSONBody, rec.Code, rec.Body, at.Status, at.JSONAnswer)
	}
}

// hashesInJSON gives a body the seq hashes of the prompt's first blocks, which no
// double holds.
func hashesInJSON(t testing.TB, at *step) []byte {
	t.Helper()
	var hashes struct {
		All []uint64 `msgpack:"seq_hashes"`
	}
	must.Succeed(t, msgpack.Unmarshal(withHashes(t, at.Body, at.Hashes), &hashes))
	list, err := json.Marshal(hashes.All)
	must.Succeed(t, err)
	body := strings.Replace(at.JSONBody, `"seq_hashes":[]`, `"seq_hashes":`+string(list), 1)
	if body == at.JSONBody {
		t.Fatalf("%s: no room for hashes", body)
	}
	return []byte(body)
}

// TestErrorsInJSON makes every request of testdata/json_errors.json on both kinds of
// listener and checks that nothing comes of it.
func TestErrorsInJSON(t *testing.T) {
	var steps []step
	load(t, "json_errors.json", &steps)
	if len(steps) < 300 {
		t.Fatalf("only %d requests", len(steps))
	}
	inBubble(t, func(t *testing.T, s *testServer) {
		for i := range steps {
			s.doJSON(s.plain, &steps[i], "")
			s.doJSON(s.mixed, &steps[i], "?dialect=v2")
		}
		for _, body := range []string{"{\"model\":\"\xff\"}", "{\"\xc0\x80\":1}"} { // not UTF-8
			s.doJSON(s.plain, &step{Request: "POST /query", JSONBody: body, Status: 400,
				JSONAnswer: `{"error":"Invalid JSON object","reason":"invalid_json"}`}, "")
			s.doJSON(s.plain, &step{Request: "POST /register", JSONBody: body, Status: 400, JSONAnswer: "Invalid JSON\n"}, "")
		}
		if all := s.conductor.Registrations(); len(all) != 0 {
			t.Errorf("refused, and registered: %v", all)
		}
		if all := s.conductor.For(conductor.Reader{}).Inspect().Contexts(); len(all) != 0 {
			t.Errorf("refused, and created: %v", all)
		}
	})
}

// TestLimitsInJSON meets limits of our own, whose errors have a reason.
func TestLimitsInJSON(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		f := func(body map[string]any, status int, want string) {
			t.Helper()
			text, err := json.Marshal(body)
			must.Succeed(t, err)
			if rec := send(s.plain, "POST", "/register", text); rec.Code != status || rec.Body.String() != want {
				t.Errorf("%d %q, want %d %q", rec.Code, rec.Body, status, want)
			}
		}
		for rank := range 8 {
			f(source("a", rank), 200, "{\"status\":\"registered successfully\",\"instance_id\":\"a\"}\n")
		}
		f(source("late", 0), http.StatusServiceUnavailable, `{"error":"`+ingest.ErrTooManySources.Error()+`","reason":"limit"}`)
		long := source("late", 0)
		long["modelname"] = strings.Repeat("x", 1<<14)
		f(long, http.StatusRequestEntityTooLarge, `{"error":"request body exceeds limits.max_body of 16384 bytes","reason":"too_large"}`)
		s.conductor.Close()
		f(source("late", 0), 400, `{"error":"manager stopped","reason":"invalid_registration"}`)
	})
}

// TestNegotiateJSON asks a listener of the published dialect in all it speaks.
func TestNegotiateJSON(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		const body = `{"model":"m","block_size":16,"token_ids":[]}`
		f := func(target, body, contentType, want string) {
			t.Helper()
			if rec := send(s.mixed, "POST", target, []byte(body), "Content-Type", contentType); rec.Body.String() != want {
				t.Errorf("%s: %d %q, want %q", target, rec.Code, rec.Body, want)
			}
		}
		f("/query", body, "", "{}")
		f("/query?dialect=", body, "", "{}")
		f("/query?dialect=v2", body, "", "{\"instances\":{}}\n")
		f("/query?detail=1&dialect=v2", body, "application/json", "{\"instances\":{}}\n")
		f("/query?dialect=v2", string(packed(t, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{}})), msgpackType,
			"\x81\xa9instances\x80")
		f("/query?dialect=v3", body, "", `{"error":"dialect must be v2, got \"v3\"","reason":"invalid_value","field":"dialect"}`)
		f("/query_batch?dialect=v2", `{"queries":[]}`, "", `{"answers":[]}`) // a path that the published dialect alone has
		f("/nothing?dialect=v3", body, "", `{"error":"no such path: /nothing","reason":"not_found"}`)
		f("/nothing?dialect=v2", body, "", "no such path: /nothing\n")
		f("/services?dialect=v2", body, "", "Method not allowed\n")
		if rec := send(s.mixed, "GET", "/services?dialect=v2", nil, "Accept",
			msgpackType); rec.Header().Get("Content-Type") != msgpackType {
			t.Errorf("msgpack is accepted and %q comes", rec.Header().Get("Content-Type"))
		}
	})
}

// FuzzJSON sends arbitrary text to every path that takes a body: none may panic, each
// answer is JSON or a line, and a body that is not a JSON object is refused.
func FuzzJSON(f *testing.F) {
	var steps []step
	load(f, "json_errors.json", &steps)
	paths := []string{"/query", "/query_by_hash", "/unregister", "/register"}
	for i := range steps {
		if i%5 == 0 && steps[i].JSONBody != "" {
			f.Add(i, []byte(steps[i].JSONBody))
		}
	}
	s := newServer(f)
	f.Fuzz(func(t *testing.T, which int, body []byte) {
		path := paths[uint(which)%uint(len(paths))]
		rec := send(s.plain, "POST", path, body)
		if text := rec.Body.Bytes(); text[0] == '{' && !json.Valid(text) || text[0] != '{' && text[len(text)-1] != '\n' {
			t.Errorf("%s %q: answer %q", path, body, text)
		}
		var object map[string]json.RawMessage
		switch err := json.NewDecoder(bytes.NewReader(body)).Decode(&object); {
		case rec.Code == 200 && (err != nil || object == nil):
			t.Errorf("%s %q: 200 for what is no object: %v", path, body, err)
		case rec.Code != 200 && rec.Code != 400 && rec.Code != 404 && rec.Code != 413 && rec.Code != 500 && rec.Code != 503:
			t.Errorf("%s %q: status %d", path, body, rec.Code)
		}
	})
}
