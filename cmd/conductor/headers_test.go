package main

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	kvconductor "example.com/conductor"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
)

// FuzzHeaders asks every listener with arbitrary values of the headers that the server reads. Each
// request is answered, in the codec that the answer names.
func FuzzHeaders(f *testing.F) {
	f.Add("application/json", "", "", "", "", "")
	f.Add("application/msgpack", "application/json;q=0.5, */*;q=0.1", "gzip", "https://a.example", "cross-site", "bytes=0-1")
	f.Add("text/plain; charset=utf-8", "application/x-ndjson, application/msgpack;q=x", "zstd, gzip", "null", "same-origin", "bytes=-")
	f.Add("application/json; charset=\"", "*/*;q=1e-400,;;,=;q", "\x00", "://", "none", "\t")
	gin.SetMode(gin.ReleaseMode)
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	f.Cleanup(c.Close)
	guard := access.New(access.Policy{Anonymous: access.Admin}, zerolog.Nop())
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 4096, MaxTokens: 64}, OpenAPI: kvconductor.OpenAPI,
		Gatherer: prometheus.NewRegistry(), Guard: guard.Check, Budget: server.NewBudget(1 << 20), Lists: server.NewLists(),
		Log: zerolog.Nop(),
	}
	d := dynamo.New(dynamo.Config{Conductor: c, TestEndpoints: true, MaxTokens: 64, Log: zerolog.Nop()})
	listeners := make(map[string]http.Handler)
	for _, root := range []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo} {
		listeners[root] = dialectHandler(root, c, d, opts)
	}
	f.Fuzz(func(t *testing.T, contentType, accept, coding, origin, site, other string) {
		for root, h := range listeners {
			for _, target := range []string{"POST /query", "POST /query_by_hash", "POST /unregister", "POST /admin/explain",
				"POST /dynamo/v1/query", "GET /conductor/v1/services", "GET /dynamo/v1/dump", "GET /admin/digest"} {
				method, path, _ := strings.Cut(target, " ")
				r := httptest.NewRequest(method, path, strings.NewReader("{}"))
				for name, value := range map[string]string{
					"Content-Type": contentType, "Accept": accept, "Content-Encoding": coding, "Origin": origin, "Sec-Fetch-Site": site,
					"Range": other, "X-Trace-Id": other,
				} {
					if value != "" {
						r.Header.Set(name, value)
					}
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				kind, _, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
				var answer any
				switch {
				case w.Code == http.StatusInternalServerError || err != nil:
					t.Errorf("%s: %s: %d %v %s", root, target, w.Code, err, w.Body)
				case kind == "application/json":
					err = json.Unmarshal(w.Body.Bytes(), &answer)
				case kind == "application/msgpack":
					err = msgpack.Unmarshal(w.Body.Bytes(), &answer)
				}
				if err != nil {
					t.Errorf("%s: %s: %s: %v: %q", root, target, kind, err, w.Body)
				}
			}
		}
	})
}

// TestHeadersAreFuzzed: the workers that go test starts for FuzzHeaders, which are this program again, run its first seed.
func TestHeadersAreFuzzed(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.fuzz=^FuzzHeaders$", "-test.fuzztime=1x", "-test.parallel=1",
		"-test.fuzzcachedir="+t.TempDir())
	cmd.Env = []string{"HOME=" + os.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), ": 1/4 completed") {
		t.Errorf("%v: %s", err, out)
	}
}
