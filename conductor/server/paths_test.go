package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// TestTidyPaths holds which paths mean a route, and what is said about those that mean none.
func TestTidyPaths(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	seen := func(g *gin.Context) { g.String(200, g.Request.Method+" "+g.FullPath()+" "+g.Request.URL.RawQuery) }
	for _, path := range []string{"/query", "/conductor/v1/query", "/dynamo/v1/query", "/routed"} {
		r.POST(path, seen)
	}
	r.DELETE("/routed/*id", seen)
	for _, path := range []string{"/services", "/ui", "/ui/*file", "/docs/", "/debug/:profile"} {
		r.GET(path, seen)
	}
	Dialects{{Refuse: func(g *gin.Context, _ body.Codec, why *Refusal) { g.String(why.Status, why.Text) }}}.MountRoot(r)
	h := TidyPaths(r, r.Routes())
	f := func(method, target, want string) {
		t.Helper()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(method, target, http.NoBody))
		if got := rec.Body.String(); got != want {
			t.Errorf("%s %s: %q, want %q", method, target, got, want)
		}
	}
	f("POST", "/query", "POST /query ")
	f("POST", "/query/", "POST /query ")
	f("POST", "/query/?detail=1", "POST /query detail=1")
	f("POST", "//query", "POST /query ")
	f("POST", "/conductor//v1/query//", "POST /conductor/v1/query ")
	f("GET", "/services/", "GET /services ")
	f("GET", "/query/", "Method not allowed")
	// A path that means something with its slash keeps it.
	f("GET", "/docs/", "GET /docs/ ")
	f("GET", "/ui/", "GET /ui/*file ")
	f("GET", "/ui/a/", "GET /ui/*file ")
	f("DELETE", "/routed/a/", "DELETE /routed/*id ")
	f("GET", "/debug/heap/", "no such path: /debug/heap/")
	// What is no route is answered with the one that was meant.
	f("POST", "/Query", "no such path: /Query; did you mean POST /query?")
	f("POST", "/qurey", "no such path: /qurey; did you mean POST /query?")
	f("POST", "/v1/query", "no such path: /v1/query; did you mean POST /query?")
	f("POST", "/conductor/v2/query/", "no such path: /conductor/v2/query/; did you mean POST /query?")
	f("POST", "/api/conductor/v1/query", "no such path: /api/conductor/v1/query; did you mean POST /conductor/v1/query?")
	f("GET", "/service", "no such path: /service; did you mean GET /services?")
	f("GET", "/nothing", "no such path: /nothing")
	f("GET", "//", "no such path: //")
}
