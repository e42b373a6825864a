package http_test

import (
	"bytes"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/internal/must"
)

// compress is text in a coding, in one piece.
func compress(t testing.TB, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	default:
		return text
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, w.Close())
	return b.String()
}

// post sends a body in a coding to a path.
func (s *server) post(path, coding, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("POST", path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	return rec
}

// TestCompressedBodies holds that a compressed body is answered as it is plain, errors included.
func TestCompressedBodies(t *testing.T) {
	s := newServer(t)
	f := func(path, body string) {
		t.Helper()
		want := s.post(path, "", body)
		for header, coding := range map[string]string{"gzip": "gzip", "x-gzip": "gzip", "GZip": "gzip", " zstd": "zstd", "identity": "",
			"": ""} {
			got := s.post(path, header, compress(t, coding, body))
			if header == "" {
				req := httptest.NewRequest("POST", path, strings.NewReader(body))
				req.Header["Content-Encoding"] = []string{""}
				got = httptest.NewRecorder()
				s.engine.ServeHTTP(got, req)
			}
			if got.Code != want.Code || got.Body.String() != want.Body.String() {
				t.Errorf("%s %s in %q: %d %s, want %d %s", path, body, header, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
	f("/register", `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"a","block_size":4,"dp_rank":0}`)
	f("/query", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`)
	f("/query", `{"model":"m","block_size":4,"token_ids":[1,2,-3,4]}`)
	f("/query", `{"model":"m","block_size":4,"token_ids":[`+strings.Repeat("1,", 64)+`1]}`)
	f("/query", `{"model":"m","block_size":4,"token_ids":[`)
	f("/query_by_hash", `{"model":"m","block_size":4,"seq_hashes":[1,2]}`)
	f("/query", "")
	f("/query", "\xff")
	if rec := s.post("/query", "zstd", compress(t, "zstd", `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`)); rec.Body.Len() < 20 {
		t.Errorf("a registered instance has no row: %s", rec.Body)
	}
}

// TestCodingFaults compares the errors of bodies that cannot be decoded.
func TestCodingFaults(t *testing.T) {
	s := newServer(t)
	f := func(coding, body string, status int, reason, text string) {
		t.Helper()
		rec := s.post("/query", coding, body)
		if rec.Code != status || !strings.Contains(rec.Body.String(), `"reason":"`+reason+`"`) ||
			!strings.Contains(rec.Body.String(), text) {
			t.Errorf("%s: %d %s, want %d, %s, %q", coding, rec.Code, rec.Body, status, reason, text)
		}
		want := ""
		if status == nethttp.StatusUnsupportedMediaType {
			want = "gzip, zstd"
		}
		if got := rec.Header().Get("Accept-Encoding"); got != want {
			t.Errorf("%s: Accept-Encoding %q, want %q", coding, got, want)
		}
	}
	const query = `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`
	for _, coding := range []string{"gzip", "zstd"} {
		whole := compress(t, coding, query)
		for n := 1; n < len(whole); n++ {
			f(coding, whole[:n], 400, "invalid_json", "content encoding "+coding+": ")
		}
		for n := 1; n < 12; n++ {
			f(coding, whole+"{}garbage, more"[:n], 400, "invalid_json", "content encoding "+coding+": ")
		}
		f(coding, query, 400, "invalid_json", "content encoding "+coding+": ")
		broken := []byte(whole)
		broken[len(broken)-3] ^= 1 // the checksum
		f(coding, string(broken), 400, "invalid_json", "content encoding "+coding+": ")
		// Two bodies, one after the other, are not a JSON object.
		f(coding, whole+whole, 400, "invalid_json", "after top-level value")
		f(coding, compress(t, coding, strings.Repeat(" ", 4097)), 413, "too_large", "limits.max_body of 4096 bytes")
	}
	f("gzip", "", 400, "invalid_json", "content encoding gzip: unexpected EOF")
	f("br", query, 415, "unsupported_encoding", `content encoding \"br\" is not supported`)
	f("deflate", query, 415, "unsupported_encoding", "gzip and zstd")
	f("gzip, zstd", query, 400, "invalid_json", "several codings")
	f("gzip,gzip", query, 400, "invalid_json", "several codings")
	f("g zip", query, 400, "invalid_json", "no name of a coding")
	f("\xffgzip", query, 400, "invalid_json", "no name of a coding")
	req := httptest.NewRequest("POST", "/query", strings.NewReader(query))
	req.Header["Content-Encoding"] = []string{"gzip", "zstd"}
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), "several codings") {
		t.Errorf("two headers: %d %s", rec.Code, rec.Body)
	}

	// Much that is nothing: empty members and frames, beyond the limit on the wire.
	f("gzip", strings.Repeat(compress(t, "gzip", ""), 400), 413, "too_large", "4096")
	f("zstd", strings.Repeat("\x50\x2a\x4d\x18\x00\x00\x00\x00", 600), 413, "too_large", "4096")
	f("zstd", "\x50\x2a\x4d\x18\xff\xff\xff\xff"+strings.Repeat("x", 5000), 413, "too_large", "4096")
	// A frame that may refer back further than a window may reach.
	f("zstd", "\x28\xb5\x2f\xfd\x00\x70\x01\x00\x00", 400, "invalid_json", "window")
}

// TestCompressedBodyCostsItsLimit holds that a small body of much text costs what the limit allows, however
// often it comes.
func TestCompressedBodyCostsItsLimit(t *testing.T) {
	s := newServer(t)
	const size = 8 << 20
	for _, coding := range []string{"gzip", "zstd"} {
		var b bytes.Buffer
		var w io.WriteCloser = gzip.NewWriter(&b)
		if coding == "zstd" {
			w, _ = zstd.NewWriter(&b, zstd.WithWindowSize(64<<10))
		}
		zeros := make([]byte, 1<<20)
		for range size / len(zeros) {
			w.Write(zeros)
		}
		w.Close()
		bomb := b.String()[:min(b.Len(), 4096)]
		var before, after runtime.MemStats
		s.post("/query", coding, bomb) // fills the pool
		runtime.ReadMemStats(&before)
		const times = 20
		for range times {
			if rec := s.post("/query", coding, bomb); rec.Code != 413 || !strings.Contains(rec.Body.String(), `"too_large"`) {
				t.Fatalf("%s: %d %s", coding, rec.Code, rec.Body)
			}
		}
		runtime.ReadMemStats(&after)
		// Not even one of them was decoded, nor a window allocated for each.
		if took := after.TotalAlloc - before.TotalAlloc; took > times*(1<<20) {
			t.Errorf("%s: %d bytes allocated for %d bodies of %d, which are %d decoded", coding, took, times, len(bomb), size)
		}
	}
}

// TestPlainBodiesCostNothing holds that a body in no coding is left as it is.
func TestPlainBodiesCostNothing(t *testing.T) {
	s := newServer(t)
	plain := s.post("/query", "", `{"model":"m","block_size":4,"token_ids":[1]}`)
	if plain.Code != 200 || plain.Header().Get("Accept-Encoding") != "" {
		t.Errorf("%d %v", plain.Code, plain.Header())
	}
	// An answer before the body is read: the coding does not matter.
	if rec := s.post("/nowhere", "br", "x"); rec.Code != 404 {
		t.Errorf("a path that is none: %d %s", rec.Code, rec.Body)
	}
}

// FuzzCodings sends anything as a compressed body: what the decoder of the library makes
// of it in one piece is answered as it is plain, and what it refuses is 400.
func FuzzCodings(f *testing.F) {
	const query = `{"model":"m","block_size":4,"token_ids":[1,2,3,4]}`
	for _, coding := range []string{"gzip", "zstd"} {
		whole := compress(f, coding, query)
		f.Add(coding == "zstd", []byte(whole))
		f.Add(coding == "zstd", []byte(whole[:len(whole)/2]))
		f.Add(coding == "zstd", []byte(whole+whole))
		f.Add(coding == "zstd", []byte(whole+"x"))
	}
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 4096, MaxTokens: 64}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	s := &server{engine: admin.New(c, opts)}
	conductorhttp.Mount(s.engine, c, opts.Dialect)
	f.Fuzz(func(t *testing.T, zstandard bool, body []byte) {
		var plain []byte
		var err error
		coding := "gzip"
		if zstandard {
			coding = "zstd"
			d, _ := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderMaxMemory(16<<20))
			defer d.Close()
			plain, err = d.DecodeAll(body, nil)
		} else {
			var r *gzip.Reader
			if r, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
				plain, err = io.ReadAll(io.LimitReader(r, 1<<20))
			}
		}
		got := s.post("/query", coding, string(body))
		if err != nil {
			if got.Code != 400 && got.Code != 413 {
				t.Errorf("%s %q is refused with %v: %d %s", coding, body, err, got.Code, got.Body)
			}
			return
		}
		if len(body) > 4096 || len(plain) > 4096 {
			if got.Code != 413 && got.Code != 400 {
				t.Errorf("%s of %d bytes: %d", coding, len(plain), got.Code)
			}
			return
		}
		if want := s.post("/query", "", string(plain)); got.Code != want.Code || got.Body.String() != want.Body.String() {
			t.Errorf("%s %q: %d %s, plain %d %s", coding, body, got.Code, got.Body, want.Code, want.Body)
		}
	})
}
