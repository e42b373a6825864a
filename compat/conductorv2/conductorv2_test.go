package conductorv2

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/conductor"
)

func packed(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func source(instance string, rank int) map[string]any {
	return map[string]any{
		"endpoint": fmt.Sprintf("tcp://%s:%d", instance, rank+1), "type": "vLLM", "modelname": "m", "instance_id": instance,
		"block_size": blockSize, "dp_rank": rank,
	}
}

// TestNegotiate asks a listener of the JSON dialect in both.
func TestNegotiate(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server) {
		f := func(method, path, accept, contentType, want string) {
			t.Helper()
			body := []byte(`{"model":"m","block_size":16,"token_ids":[]}`)
			if strings.Contains(contentType, "msgpack") {
				body = packed(t, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{}})
			}
			rec := send(s.mixed, method, path, body, "Accept", accept, "Content-Type", contentType)
			if got, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";"); rec.Code != 200 || got != want {
				t.Errorf("%s %s accepting %q, sending %q: %d %q, want 200 %q: %s", method, path, accept, contentType, rec.Code, got, want, rec.Body)
			}
		}
		const json = "application/json"
		for _, path := range []string{"/services", "/global_view", "/health"} {
			f("GET", path, "", "", json)
			f("GET", path, "*/*", "", json)
			f("GET", path, ContentType, "", ContentType)
			f("GET", path, "text/html, application/msgpack;q=0.5", "", ContentType)
			f("GET", path, "", ContentType, ContentType)
		}
		f("POST", "/query", "", "", json)
		f("POST", "/query", "", json, json)
		f("POST", "/query", ContentType, json, json) // the body says what is spoken
		f("POST", "/query", "", ContentType, ContentType)
		f("POST", "/query", json, ContentType+"; charset=utf-8", ContentType)
	})
}

// TestAnswersOfBothDialects registers in one and asks in the other.
func TestAnswersOfBothDialects(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server) {
		if rec := send(s.mixed, "POST", "/register", packed(t, source("a", 0)), "Content-Type", ContentType); rec.Code != 200 {
			t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
		}
		rec := send(s.mixed, "POST", "/query", []byte(`{"model":"m","block_size":16,"token_ids":[]}`))
		if want := `{"default":{"a":{"longest_matched":0,"GPU":0,"CPU":0,"DISK":0,"DP":{"0":0},"rank_matches":{"0":{"gpu":0,"cpu":0,"disk":0}}}}}`; rec.Body.String() != want {
			t.Errorf("JSON: %s, want %s", rec.Body, want)
		}
		// What only JSON can say is another registration.
		rec = send(s.mixed, "POST", "/register", []byte(`{"endpoint":"tcp://s:1","type":"vLLM","modelname":"m","instance_id":"s","block_size":16,"dp_rank":0,"additionalsalt":"x"}`))
		if rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
		s.refuses(source("s", 0), 400, "conflicting registration for service key: s|default|0", "invalid_registration")
	})
}

// refuses makes a registration that is refused with an error and a reason.
func (s *server) refuses(body map[string]any, status int, text, reason string) {
	s.t.Helper()
	rec := send(s.alone, "POST", "/register", packed(s.t, body), "Content-Type", ContentType)
	var got map[string]string
	if err := msgpack.Unmarshal(rec.Body.Bytes(), &got); err != nil {
		s.t.Fatal(err)
	}
	if rec.Code != status || got["error"] != text || got["reason"] != reason {
		s.t.Errorf("%v: %d %v, want %d %q %q", body, rec.Code, got, status, text, reason)
	}
}

// TestLimits meets limits.max_sources and limits.max_body, and a Conductor that ends.
func TestLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server) {
		for i := range 8 {
			if err := s.conductor.Register(conductor.Registration{
				Endpoint: fmt.Sprintf("tcp://a:%d", i+1), Type: "vLLM", Model: "m", Instance: "a", BlockSize: blockSize, Rank: i,
			}, conductor.RegisterOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.refuses(source("late", 0), http.StatusServiceUnavailable, conductor.ErrTooManySources.Error(), "limit")
		long := source("late", 0)
		long["modelname"] = strings.Repeat("x", 1<<14)
		s.refuses(long, http.StatusRequestEntityTooLarge, "request body exceeds limits.max_body of 16384 bytes", "too_large")
		s.conductor.Close()
		s.refuses(source("late", 0), 400, "manager stopped", "invalid_registration")
	})
}

// TestAppend compares what is packed with a decoder that others wrote, where lengths
// and numbers take more bytes.
func TestAppend(t *testing.T) {
	f := func(got []byte, want any) {
		t.Helper()
		if w := packed(t, want); !bytes.Equal(got, w) {
			t.Errorf("%.20x, want %.20x of %.40v", got, w, want)
		}
	}
	for _, n := range []int{0, 1, 31, 32, 255, 256, 65535, 65536} {
		f(appendText(nil, strings.Repeat("x", n)), strings.Repeat("x", n))
		list, want := appendList(nil, n), make([]any, n)
		for range n {
			list = appendNil(list)
		}
		f(list, want)
		m := appendMap(nil, n)
		if got, rest, ok := readHead(m); !ok || got.kind != dict || got.n != n || len(rest) != 0 {
			t.Errorf("a map of %d: %+v %x %t", n, got, rest, ok)
		}
	}
	for _, n := range []int{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<63 - 1} {
		if got, rest, ok := read(appendInt(nil, n), 0); !ok || got.kind != integer || got.bits != uint64(n) || got.neg || len(rest) != 0 {
			t.Errorf("%d: %+v %x %t", n, got, rest, ok)
		}
		var v uint64
		if err := msgpack.Unmarshal(appendInt(nil, n), &v); err != nil || v != uint64(n) {
			t.Errorf("%d is read as %d: %v", n, v, err)
		}
	}
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
		rec := send(s.alone, "POST", path, body, "Content-Type", ContentType)
		v, rest, ok := read(rec.Body.Bytes(), maxDepth)
		if !ok || v.kind != dict || len(rest) != 0 {
			t.Errorf("%s %x: answer %x", path, body, rec.Body.Bytes())
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
