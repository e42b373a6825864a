package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	kvconductor "example.com/conductor"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
)

// advised finds a header to send in an answer, or the codec to use.
var advised = regexp.MustCompile(`(Content-(?:Type|Encoding))(?:: | must be )([a-z/]+)|this path reads (\w+) alone`)

// TestRequestsThatAreNearlyRight asks every listener as clients do that have a header, an encoding or a path a little wrong: they
// are answered, or learn what to send.
func TestRequestsThatAreNearlyRight(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	t.Cleanup(c.Close)
	guard := access.New(access.Policy{Anonymous: access.Admin}, zerolog.Nop())
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 4096, MaxTokens: 64}, OpenAPI: kvconductor.OpenAPI,
		Gatherer: prometheus.NewRegistry(), Guard: guard.Check, Budget: server.NewBudget(1 << 20), Lists: server.NewLists(),
		Log: zerolog.Nop(),
	}
	d := dynamo.New(dynamo.Config{Conductor: c, MaxTokens: 64, Log: zerolog.Nop()})
	listeners := make(map[string]http.Handler)
	for _, root := range []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo} {
		listeners[root] = dialectHandler(root, c, d, opts)
	}
	const (
		text     = `{"model":"m","model_name":"m","block_size":16,"token_ids":[]}`
		plain    = `{"model":"m","block_size":16,"token_ids":[]}`
		packed   = "\x83\xa5model\xa1m\xaablock_size\x10\xa9token_ids\x90"
		bom      = "\xef\xbb\xbf"
		inJSON   = "Content-Type: application/json"
		asForm   = "Content-Type: application/x-www-form-urlencoded"
		asPacked = "Content-Type: application/msgpack"
	)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fmt.Fprint(z, plain)
	z.Close()
	wide := "\xff\xfe"
	for _, unit := range utf16.Encode([]rune(plain)) {
		wide += string([]byte{byte(unit), byte(unit >> 8)})
	}
	f := func(roots, request, body, headers string, status int, want string) {
		t.Helper()
		for root := range strings.FieldsSeq(roots) {
			method, path, _ := strings.Cut(request, " ")
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			for line := range strings.SplitSeq(headers, "; ") {
				name, value, _ := strings.Cut(line, ": ")
				r.Header.Set(name, value)
			}
			rec := httptest.NewRecorder()
			listeners[root].ServeHTTP(rec, r)
			if rec.Code != status || !strings.Contains(rec.Body.String(), want) {
				t.Errorf("%s: %s with %q as %q: %d %q, want %d %q", root, request, body, headers, rec.Code, rec.Body, status, want)
			}
		}
	}
	const every, first, others, jsons = "conductor conductor-msgpack conductor-json-v2 dynamo", "conductor",
		"conductor conductor-msgpack conductor-json-v2", "conductor conductor-json-v2"

	// Media types.
	for _, kind := range []string{"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"} {
		f("conductor conductor-msgpack", "POST /query", packed, "Content-Type: "+kind, 200, "instances")
		f(every, "POST /conductor/v1/query", packed, "Content-Type: "+kind, 200, "instances")
		f(first, "POST /query", plain, inJSON+"; Accept: "+kind, 200, "\x80")
		f(first, "POST /routed", packed, "Content-Type: "+kind, 400, "instance_id is required")
	}
	f(jsons, "POST /query", plain, "Content-Type: text/json", 200, "{")
	f(jsons, "POST /query", plain, asForm, 200, "{")
	f(jsons, "POST /query", plain, "Content-Type: application/json;charset=utf-16", 200, "{")
	f("conductor-msgpack", "POST /query", plain, inJSON, 400, "Content-Type must be application/msgpack")
	f("dynamo", "POST /query", packed, "Content-Type: application/x-msgpack", 415, "Content-Type: application/json")
	f(every, "POST /dynamo/v1/query", text, asForm, 415, "Content-Type: application/json")

	// Encodings, with and without the header that belongs to them.
	f(jsons, "POST /query", bom+plain, inJSON, 200, "{")
	f("dynamo", "POST /query", bom+text, inJSON, 404, "no indexer for model=m")
	f(every, "POST /register", bom, inJSON, 400, "")
	f(every, "POST /admin/explain", bom+"{}", inJSON, 400, "required")
	f(first, "POST /query", packed, inJSON, 400, "Content-Type: application/msgpack")
	f(every, "POST /conductor/v1/query", packed, inJSON, 400, "Content-Type: application/msgpack")
	f(every, "POST /conductor/v1/query_batch", packed, inJSON, 400, "msgpack; this path reads JSON alone")
	f("conductor-json-v2 dynamo", "POST /query", packed, inJSON, 400, "msgpack; this path reads JSON alone")
	f("conductor-json-v2", "POST /query", packed, asPacked, 400, "msgpack; this path reads JSON alone")
	for body, want := range map[string]string{
		zipped.String(): "Content-Encoding: gzip", wide: "UTF-16; send it in UTF-8",
		"model=m&block_size=16": "it looks like a form; send JSON",
	} {
		f("conductor conductor-json-v2 dynamo", "POST /query", body, inJSON, 400, want)
		f(every, "POST /conductor/v1/query", body, inJSON, 400, want)
	}
	f(first, "POST /query", plain, asPacked, 400, "Content-Type: application/json")
	f(every, "POST /conductor/v1/query", plain, asPacked, 400, "Content-Type: application/json")
	f("conductor-msgpack", "POST /query", plain, asPacked, 400, "JSON; this path reads msgpack alone")
	f(every, "POST /conductor/v1/query", plain, inJSON+"; Content-Encoding: gzip", 400, "leave Content-Encoding out")
	f(every, "POST /conductor/v1/query", plain, inJSON+"; Content-Encoding: zstd", 400, "leave Content-Encoding out")
	f(every, "POST /conductor/v1/query", plain, inJSON+"; Content-Encoding: deflate", 415, "gzip and zstd are")
	f(every, "POST /conductor/v1/query", zipped.String(), inJSON+"; Content-Encoding: gzip", 200, "{}")
	f(every, "POST /conductor/v1/query", plain+"\n"+plain, inJSON, 400, "one object is expected")
	f(every, "POST /conductor/v1/query", "", inJSON, 400, "request body is empty")
	f(every, "POST /conductor/v1/query", "["+plain+"]", inJSON, 400, "request body must be a JSON object")

	// Who does what an answer says is served.
	codings := map[string]string{"gzip": zipped.String(), "JSON": plain, "msgpack": packed}
	paths := strings.Fields("/query /query_by_hash /register /unregister /query_batch /routed /feedback " +
		"/conductor/v1/query /conductor/v1/query_batch /conductor/v1/routed /conductor/v1/unregister /dynamo/v1/query /admin/explain")
	for root, h := range listeners {
		for _, path := range paths {
			for name, src := range codings {
				for _, kind := range []string{"application/json", "application/msgpack"} {
					headers, advice := http.Header{"Content-Type": {kind}}, ""
					for range 4 {
						r := httptest.NewRequest("POST", path, strings.NewReader(src))
						r.Header = headers.Clone()
						rec := httptest.NewRecorder()
						h.ServeHTTP(rec, r)
						advice = ""
						if m := advised.FindStringSubmatch(rec.Body.String()); m != nil {
							advice = m[0]
							if m[1] != "" {
								headers.Set(m[1], m[2])
							} else {
								src = codings[m[3]]
								headers.Set("Content-Type", "application/"+strings.ToLower(m[3]))
							}
						}
						if advice == "" {
							break
						}
					}
					if advice != "" {
						t.Errorf("%s: %s with %s as %s: %q has been done", root, path, name, kind, advice)
					}
				}
			}
		}
	}

	// Paths and methods.
	for _, path := range []string{"/query/", "//query", "/query//", "/conductor/v1/query/", "/conductor//v1/query"} {
		f(jsons, "POST "+path, plain, inJSON, 200, "{")
	}
	f("conductor-msgpack", "POST /query/", packed, asPacked, 200, "instances")
	f(others, "POST /dynamo/v1/query/", text, inJSON, 404, "no indexer for model=m")
	f(others, "GET /ready/", "", "", 200, "ready")
	f("dynamo", "POST /query/", text, inJSON, 404, "")
	f(first, "POST /Query", plain, inJSON, 404, "did you mean POST /query?")
	f(first, "POST /v1/query", plain, inJSON, 404, "did you mean POST /query?")
	f(first, "GET /query/", "", "", 405, "Method not allowed: /query takes POST")
	f(first, "PUT /services", "", "", 405, "Method not allowed: /services takes GET")
}
