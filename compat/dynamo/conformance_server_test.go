package dynamo_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	kvconductor "example.com/conductor"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
)

// target is the server under test.
type target struct {
	kind    string              // "ours" or "dynamo"
	shared  string              // base URL of a running one
	command conformance.Command // starts one with flags, empty if there is none
}

// underTest finds out which server the environment names.
func underTest(t *testing.T) *target {
	u := &target{shared: strings.TrimRight(os.Getenv("DYNAMO_CONFORMANCE_URL"), "/")}
	u.command.Line = strings.Fields(os.Getenv("DYNAMO_CONFORMANCE_COMMAND"))
	if u.shared == "" && len(u.command.Line) == 0 {
		u.kind, u.shared = conformance.Ours, startServer(t)
		u.command = conformance.Build(t, "dynamo-kv-indexer") // a name that takes Dynamo's flags alone
	}
	u.command.Env = []string{"DYN_KV_INDEXER_TEST_ENDPOINTS=1"}
	if u.kind == "" {
		u.kind = conformance.KindOf(t, u.url(t), "dynamo")
	}
	return u
}

// url returns the address of a server without flags of its own.
func (u *target) url(t *testing.T) string {
	if u.shared == "" {
		return u.start(t, nil, nil)
	}
	return u.shared
}

// startServer starts our server in this process, on a port of its own.
func startServer(t *testing.T) string {
	c := conformance.Conductor(t, conductor.Options{KeepClientHashes: true})
	d := dynamo.New(dynamo.Config{Conductor: c, MaxTokens: 1 << 21, TestEndpoints: true, Log: zerolog.Nop()})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.Meter(), d)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 16 << 20, MaxTokens: 1 << 21, Version: "test"}, OpenAPI: kvconductor.OpenAPI,
		Gatherer: registry, Log: zerolog.Nop(),
	}
	r := admin.New(c, opts)
	d.MountRoot(r)
	conductorhttp.Mount(r.Group("/conductor/v1"), c, opts.Dialect)
	d.Mount(r.Group("/dynamo/v1"))
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

// start runs a server on a free port until the test ends.
func (u *target) start(t *testing.T, flags, env []string) string {
	t.Helper()
	return u.command.Start(t, "/health", func(port int) ([]string, []string) {
		return append([]string{"--port", fmt.Sprint(port)}, flags...), env
	})
}

// fakePeer serves a document as its dump, after something else has happened.
type fakePeer struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newFakePeer(t *testing.T, status int, document string, before func()) *fakePeer {
	p := &fakePeer{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/admin/") { // of our own protocol, which Dynamo's peers do not know
			http.NotFound(w, r)
			return
		}
		p.mu.Lock()
		p.paths = append(p.paths, r.Method+" "+r.URL.Path)
		p.mu.Unlock()
		if r.URL.Path != "/dump" {
			http.NotFound(w, r)
			return
		}
		before()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, document)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *fakePeer) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.paths, "\n")
}
