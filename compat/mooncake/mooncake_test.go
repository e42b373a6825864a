package mooncake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

func packed(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	must.Succeed(t, err)
	return b
}

func source(instance string, rank int) map[string]any {
	return map[string]any{
		"endpoint": fmt.Sprintf("tcp://%s:%d", instance, rank+1), "type": "vLLM", "modelname": "m", "instance_id": instance,
		"block_size": blockSize, "dp_rank": rank,
	}
}

// TestNegotiateDialectAndCodec asks a listener of the JSON dialect in both.
func TestNegotiateDialectAndCodec(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		f := func(method, path, accept, contentType, want string) {
			t.Helper()
			body := []byte(`{"model":"m","block_size":16,"token_ids":[]}`)
			if strings.Contains(strings.ToLower(contentType), "msgpack") {
				body = packed(t, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{}})
			}
			rec := send(s.mixed, method, path, body, "Accept", accept, "Content-Type", contentType)
			if got, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";"); rec.Code != 200 || got != want {
				t.Errorf("%s %s accepting %q, sending %q: %d %q, want 200 %q: %s", method, path, accept, contentType, rec.Code, got, want,
					rec.Body)
			}
		}
		for _, path := range []string{"/services", "/global_view", "/health"} {
			f("GET", path, "", "", jsonType)
			f("GET", path, "*/*", "", jsonType)
			f("GET", path, msgpackType, "", msgpackType)
			f("GET", path, "text/html, application/msgpack;q=0.5", "", msgpackType)
			f("GET", path, "", msgpackType, msgpackType)
			f("GET", path, jsonType+", "+msgpackType+";q=0", "", jsonType)
			f("GET", path, "Application/MsgPack", "", msgpackType)
		}
		f("POST", "/query", "", "", jsonType)
		f("POST", "/query", "", jsonType, jsonType)
		f("POST", "/query", "", msgpackType, msgpackType)
		f("POST", "/query", "", msgpackType+"; charset=utf-8", msgpackType)
		// Accept says what the answer is written in, the body where it leaves both.
		f("POST", "/query", msgpackType, jsonType, msgpackType)
		f("POST", "/query", jsonType, msgpackType, jsonType)
		f("POST", "/query", jsonType+", text/plain, */*", msgpackType, msgpackType)
		f("POST", "/query", "text/html", jsonType, jsonType)
		f("POST", "/query", "text/html", msgpackType, msgpackType)
		f("POST", "/query", jsonType+";q=0.5, "+msgpackType, jsonType, msgpackType)
		f("POST", "/query", jsonType+", "+msgpackType+"; Q=0.9", msgpackType, jsonType)
		f("POST", "/query", "application/*;q=0.1, "+jsonType+";q=0", jsonType, msgpackType)
		f("POST", "/query", msgpackType+"; q = 0.1, "+jsonType+";q=0.5", msgpackType, jsonType)
		f("POST", "/query", msgpackType+";q=NaN, "+jsonType+";q=0.5", msgpackType, jsonType)
		f("POST", "/query", "", "Application/MsgPack", msgpackType)
		f("POST", "/query?dialect=v2", msgpackType, jsonType, msgpackType)
	})
}

// TestErrorsAreTranscoded meets a server without slots and a body that is too large.
func TestErrorsAreTranscoded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		must.Succeed(t, s.slots.Enter(t.Context(), bounds.Flow{}))
		f := func(body string, status int, reason string) *httptest.ResponseRecorder {
			t.Helper()
			rec := send(s.mixed, "POST", "/query", []byte(body), "Accept", msgpackType)
			got, _ := unpacked(rec.Body.Bytes()).(map[string]any)
			if rec.Code != status || got["reason"] != reason || rec.Header().Get("Content-Type") != msgpackType {
				t.Errorf("%d %v, want %d %s", rec.Code, got, status, reason)
			}
			return rec
		}
		if rec := f(`{"model":"m","block_size":16,"token_ids":[]}`, 503, "busy"); rec.Header().Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		f(strings.Repeat(" ", 1<<15), 413, "too_large")
		s.slots.Leave(bounds.Flow{})
	})
}

// TestNotInDialect sends msgpack to a path that the published dialect alone has.
func TestNotInDialect(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		rec := send(s.mixed, "POST", "/query_batch", packed(t, map[string]any{"queries": []any{}}), "Content-Type", msgpackType)
		want := map[string]any{
			"error": "/query_batch is not in this dialect: Content-Type must be application/json", "reason": "unsupported_content_type",
		}
		if got := unpacked(rec.Body.Bytes()); rec.Code != 400 || !reflect.DeepEqual(got, want) {
			t.Errorf("%d %v", rec.Code, got)
		}
	})
}

// TestAcceptPublished compares what the published dialect answers in both codecs.
func TestAcceptPublished(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		for i := range 3 {
			for rank := range 2 {
				if rec := send(s.mixed, "POST", "/register", packed(t, source(fmt.Sprintf("i%d", i), rank)), "Content-Type",
					msgpackType); rec.Code != 200 {
					t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
				}
			}
		}
		synctest.Wait() // until the sources have come to rest: their states are answered
		for _, body := range []string{
			`{"model":"m","block_size":16,"token_ids":[1,2]}`,
			`{"model":"m","block_size":16,"token_ids":[1,-2]}`,
			`{"queries":[{"model":"m","block_size":16,"token_ids":[]},{}]}`,
			`{`,
		} {
			path := "/query?detail=1"
			if strings.Contains(body, "queries") {
				path = "/query_batch"
			}
			plain := send(s.mixed, "POST", path, []byte(body))
			coded := send(s.mixed, "POST", path, []byte(body), "Accept", msgpackType)
			var want, got any
			must.Succeed(t, json.Unmarshal(plain.Body.Bytes(), &want))
			text, err := json.Marshal(unpacked(coded.Body.Bytes()))
			if err == nil {
				err = json.Unmarshal(text, &got)
			}
			if err != nil || plain.Code != coded.Code || !reflect.DeepEqual(got, want) ||
				coded.Header().Get("Content-Length") != strconv.Itoa(coded.Body.Len()) {
				t.Errorf("%s: %d %v %v, in JSON %d %v", body, coded.Code, got, err, plain.Code, want)
			}
		}
	})
}

// TestAnswersOfBothDialects registers in one and asks in the other.
func TestAnswersOfBothDialects(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		if rec := send(s.mixed, "POST", "/register", packed(t, source("a", 0)), "Content-Type", msgpackType); rec.Code != 200 {
			t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
		}
		rec := send(s.mixed, "POST", "/query", []byte(`{"model":"m","block_size":16,"token_ids":[]}`))
		if want := `{"default":{"a":{"longest_matched":0,"GPU":0,"CPU":0,"DISK":0,"DP":{"0":0},"rank_matches":{"0":{"gpu":0,"cpu":0,` +
			`"disk":0}}}}}`; rec.Body.String() != want {
			t.Errorf("JSON: %s, want %s", rec.Body, want)
		}
		// What only JSON can say is another registration.
		rec = send(s.mixed, "POST", "/register",
			[]byte(`{"endpoint":"tcp://s:1","type":"vLLM","modelname":"m","instance_id":"s","block_size":16,"dp_rank":0,`+
				`"additionalsalt":"x"}`))
		if rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
		s.refuses(source("s", 0), 400, "conflicting registration for service key: s|default|0", "invalid_registration")
	})
}

// refuses makes a registration that is refused with an error and a reason.
func (s *testServer) refuses(body map[string]any, status int, text, reason string) {
	s.t.Helper()
	rec := send(s.alone, "POST", "/register", packed(s.t, body), "Content-Type", msgpackType)
	var got map[string]string
	must.Succeed(s.t, msgpack.Unmarshal(rec.Body.Bytes(), &got))
	if rec.Code != status || got["error"] != text || got["reason"] != reason {
		s.t.Errorf("%v: %d %v, want %d %q %q", body, rec.Code, got, status, text, reason)
	}
}

// TestUnregisterOfNoName unregisters what can have no name, which is answered before anything is noted of it.
func TestUnregisterOfNoName(t *testing.T) {
	s := newServer(t)
	rec := send(s.alone, "POST", "/unregister", packed(t, map[string]any{"instance_id": strings.Repeat("x", 257), "dp_rank": 0}),
		"Content-Type", msgpackType)
	want := map[string]any{"error": "instance_id must have at most 256 bytes, got 257", "reason": "out_of_range", "field": "instance_id"}
	if got := unpacked(rec.Body.Bytes()); rec.Code != http.StatusBadRequest || !reflect.DeepEqual(got, any(want)) {
		t.Errorf("%d %v, want %v", rec.Code, got, want)
	}
}

// TestLimitsAreReported meets limits.max_sources and limits.max_body, and a Conductor that ends.
func TestLimitsAreReported(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		for i := range 8 {
			if err := s.conductor.Register(registration.Registration{
				Endpoint: fmt.Sprintf("tcp://a:%d", i+1), Type: "vLLM", Model: "m", Instance: "a", BlockSize: blockSize, Rank: i,
			}, ingest.RegisterOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.refuses(source("late", 0), http.StatusServiceUnavailable, ingest.ErrTooManySources.Error(), "limit")
		long := source("late", 0)
		long["modelname"] = strings.Repeat("x", 1<<14)
		s.refuses(long, http.StatusRequestEntityTooLarge, "request body exceeds limits.max_body of 16384 bytes", "too_large")
		s.conductor.Close()
		s.refuses(source("late", 0), 400, "manager stopped", "invalid_registration")
	})
}

// FuzzBodies sends arbitrary bodies to every path that takes one: none may panic, or
// be answered with anything but 200 or an error that has a reason.
func FuzzBodies(f *testing.F) {
	var steps []step
	load(f, "errors.json", &steps)
	paths := []string{"/query", "/query_by_hash", "/unregister", "/register"}
	for i := range steps {
		if i%7 == 0 && steps[i].Body != nil {
			f.Add(i, []byte(steps[i].Body))
		}
	}
	f.Add(0, packed(f, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{1, -2, 1 << 20}}))
	s := newServer(f)
	f.Fuzz(func(t *testing.T, which int, body []byte) {
		path := paths[uint(which)%uint(len(paths))]
		rec := send(s.alone, "POST", path, body, "Content-Type", msgpackType)
		var answer map[string]any
		raw := bytes.NewReader(rec.Body.Bytes())
		if err := msgpack.NewDecoder(raw).Decode(&answer); err != nil || raw.Len() != 0 {
			t.Errorf("%s %x: answer %x: %v", path, body, rec.Body.Bytes(), err)
		}
		switch rec.Code {
		case 200, 404, 413, 500, 503:
		case 400:
			if !bytes.Contains(rec.Body.Bytes(), []byte("reason")) {
				t.Errorf("%s %x: 400 without a reason: %x", path, body, rec.Body.Bytes())
			}
		default:
			t.Errorf("%s %x: status %d", path, body, rec.Code)
		}
	})
}
