package mooncake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/conductor"
	"kvconductor/internal/must"
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
			s.doJSON(s.plain, &step{Request: "POST /query", JSONBody: body, Status: 400, JSONAnswer: `{"error":"Invalid JSON object","reason":"invalid_json"}`}, "")
			s.doJSON(s.plain, &step{Request: "POST /register", JSONBody: body, Status: 400, JSONAnswer: "Invalid JSON\n"}, "")
		}
		if all := s.conductor.Registrations(); len(all) != 0 {
			t.Errorf("refused, and registered: %v", all)
		}
		if all := s.conductor.Contexts(); len(all) != 0 {
			t.Errorf("refused, and created: %v", all)
		}
	})
}

// TestLimitsInJSON meets those of our own, which are told with a reason.
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
		f(source("late", 0), http.StatusServiceUnavailable, `{"error":"`+conductor.ErrTooManySources.Error()+`","reason":"limit"}`)
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
		f("/query?dialect=v2", string(packed(t, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{}})), ContentType, "\x81\xa9instances\x80")
		f("/query?dialect=v3", body, "", `{"error":"dialect must be v2, got \"v3\"","reason":"invalid_value","field":"dialect"}`)
		f("/nothing?dialect=v2", body, "", "no such path: /nothing\n")
		f("/services?dialect=v2", body, "", "Method not allowed\n")
		if rec := send(s.mixed, "GET", "/services?dialect=v2", nil, "Accept", ContentType); rec.Header().Get("Content-Type") != ContentType {
			t.Errorf("msgpack is accepted and %q comes", rec.Header().Get("Content-Type"))
		}
	})
}

// TestPackAnswer compares packed answers with what another decoder reads.
func TestPackAnswer(t *testing.T) {
	f := func(src, want string) {
		t.Helper()
		got, ok := packAnswer([]byte("x"), []byte(src))
		if !ok || want == "" {
			if ok || want != "" {
				t.Errorf("%.60q: %t, want %s", src, ok, want)
			}
			return
		}
		var v any
		d := msgpack.NewDecoder(bytes.NewReader(got[1:]))
		d.UseLooseInterfaceDecoding(true)
		if err := d.Decode(&v); err != nil || d.Buffered().(*bytes.Reader).Len() != 0 {
			t.Fatalf("%.60q: %x: %v", src, got, err)
		}
		if text, err := json.Marshal(v); err != nil || string(text) != want {
			t.Errorf("%.60q: %s %v, want %s", src, text, err, want)
		}
	}
	f(`{}`, `{}`)
	f(` { "b" : [ ] , "a" : [ 1 , -2 , [ { } ] , "" ] } `, `{"a":[1,-2,[{}],""],"b":[]}`)
	f(`{"a":[true,false,null,1.5,1e3,-0]}`, `{"a":[true,false,null,1.5,1000,0]}`)
	f(`{"n":[18446744073709551615,9223372036854775808,9223372036854775807,-9223372036854775808]}`,
		`{"n":[18446744073709551615,9223372036854775808,9223372036854775807,-9223372036854775808]}`)
	f(`{"\u0061":1,"b":{"x":1,"y":[2]},"c":"\"\\\ud83d\ude00\ud800"}`, `{"a":1,"b":{"x":1,"y":[2]},"c":"\"\\😀�"}`)
	f(`{} {}`, ``)
	f(`{"a":`, ``)
	for _, n := range []int{15, 16, 1 << 16} {
		list := `[1` + strings.Repeat(`,1`, n-1) + `]`
		f(`{"a":`+list+`}`, `{"a":`+list+`}`)
	}
	var pairs []string
	for i := range 200 {
		pairs = append(pairs, fmt.Sprintf(`"%03d":{"%03d":%d}`, i, i, i))
		f(`{`+strings.Join(pairs, ",")+`}`, `{`+strings.Join(pairs, ",")+`}`)
	}
}

// TestAppendJSON compares strings and numbers with what another decoder reads.
func TestAppendJSON(t *testing.T) {
	for _, want := range []any{
		"", "plain <&> ~", "\"\\\x00\n\x7f", "é\u2028😀", strings.Repeat("é", 300), float64(math.MaxUint32), nil,
		[]any{}, []any{"a", []any{nil}}, map[string]any{}, map[string]any{"a": map[string]any{"\n": "b"}, "c": []any{}},
	} {
		in := want
		if n, ok := want.(float64); ok {
			in = uint64(n)
		}
		text, rest := appendJSON([]byte("x"), append(packed(t, in), "rest"...))
		var got any
		if err := json.Unmarshal(text[1:], &got); err != nil || !reflect.DeepEqual(got, want) || string(rest) != "rest" {
			t.Errorf("%q: %s, %q behind it, %v", want, text, rest, err)
		}
	}
	if text, _ := appendJSON(nil, appendUint(nil, math.MaxUint64)); string(text) != "18446744073709551615" {
		t.Errorf("%s", text)
	}
}

// FuzzJSON sends arbitrary text to every path that takes a body: none may panic, each
// answer is JSON or a line, and what is no JSON object is refused.
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
