package admin_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	kvconductor "example.com/conductor"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/docs"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/apitest"
)

// listener is the engine of a listener with the Conductor dialect, and the document its answers are held against. The
// sources of its Conductor are dead endpoints.
type listener struct {
	t      *testing.T
	engine *gin.Engine
	doc    *apitest.Document
}

// newListener returns a listener; change may change its options.
func newListener(t *testing.T, change ...func(*conductor.Conductor, *admin.Options)) *listener {
	t.Helper()
	c := conductor.New(conductor.Options{
		HashSeed: 1337, ExpectedBytes: 1 << 20, Log: zerolog.Nop(), Stream: stream.Config{Transport: zmq.Transport{}},
	})
	t.Cleanup(c.Close)
	hub := watch.New(watch.Config{Conductor: c, Version: "test", Viewers: 1, KeepQueries: true})
	t.Cleanup(hub.Close)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 4096, MaxTokens: 64, Version: "test"},
		Watch:   hub, OpenAPI: kvconductor.OpenAPI, Page: ui.New(), Home: true, Docs: docs.New(kvconductor.Documents),
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	for _, f := range change {
		f(c, &opts)
	}
	engine := admin.New(c, opts)
	conductorhttp.Mount(engine, c, opts.Dialect)
	return &listener{t: t, engine: engine, doc: apitest.Load(t)}
}

// do makes a request and holds the answer against the document.
func (l *listener) do(method, path, body string) *httptest.ResponseRecorder {
	l.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	l.engine.ServeHTTP(rec, req)
	l.doc.CheckAnswer(l.t, req, rec)
	return rec
}
