package sim

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// front is one of several servers that answer alike.
type front struct {
	*httptest.Server
	queries atomic.Int64
	// refuses decides whether query n finds no replica.
	refuses func(n int64) bool
}

// newFront returns a front of a server.
func newFront(t *testing.T, s *server) *front {
	t.Helper()
	behind, err := url.Parse(s.f.Server)
	must.Succeed(t, err)
	to, f := httputil.NewSingleHostReverseProxy(behind), &front{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/query" {
			if n := f.queries.Add(1); f.refuses != nil && f.refuses(n) {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"error":"no replica serves the model","reason":"unserved"}`)
				return
			}
		}
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// TestServersTakeTurns runs a fleet against three servers: one is closed, and one has no answer for a
// while. No query is lost, and the report tells when none was answered.
func TestServersTakeTurns(t *testing.T) {
	c := testConfig(t, 200)
	c.Clients, c.Stage = 1, NewStage()
	s := start(t, c)
	one, other, closed := newFront(t, s), newFront(t, s), newFront(t, s)
	other.refuses = func(n int64) bool { return n > 20 && n <= 30 }
	closed.Close()
	all, err := NewServers(one.URL, closed.URL+"/", other.URL)
	must.Succeed(t, err)
	s.f.Servers = all
	quiet := make(chan error, 1)
	go func() {
		if err := c.Stage.Await(t.Context(), 1); err != nil {
			quiet <- err
			return
		}
		quiet <- c.Stage.Quiet(t.Context(), 2*time.Minute, func() error {
			holds := c.Stage.Holds()
			s.f.mu.Lock()
			defer s.f.mu.Unlock()
			for _, k := range s.f.ranks {
				// The engine counts copies on the device too.
				if device, host, disk := k.engine.Blocks(); holds[k.key].Device > device || holds[k.key].Host != host ||
					holds[k.key].Disk != disk {
					return fmt.Errorf("%s holds %v, told %v", k.key, Blocks{device, host, disk}, holds[k.key])
				}
			}
			return nil
		})
	}()
	r := run(t, s)
	must.Report(t, <-quiet)
	if err := r.Err(); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(r.Wrong, "\n"))
	}
	if r.Answers.Unserved != 10 || len(r.Outages) == 0 {
		t.Errorf("%d queries unserved in %v", r.Answers.Unserved, r.Outages)
	}
	for _, o := range r.Outages {
		if !o.Began.Before(o.Ended) || o.Queries == 0 {
			t.Errorf("outage %+v", o)
		}
	}
	if one.queries.Load() == 0 || other.queries.Load() == 0 || all.Retried() == 0 {
		t.Errorf("%d and %d queries, %d retried", one.queries.Load(), other.queries.Load(), all.Retried())
	}
	all.Remove(one.URL)
	all.Remove(closed.URL)
	if left := all.well(); len(left) != 1 || left[0].String() != other.URL {
		t.Errorf("left: %v", left)
	}
}

// TestUnservedEndsNoRun holds that a model without a replica ends no run, unlike other failures.
func TestUnservedEndsNoRun(t *testing.T) {
	c := testConfig(t, 60)
	c.Clients, c.Audit = 1, 0
	s := start(t, c)
	f := newFront(t, s)
	// The first query is that which waits for the registrations.
	f.refuses = func(n int64) bool { return n > 1 && n <= 2*giveUp }
	all, err := NewServers(f.URL)
	must.Succeed(t, err)
	s.f.Servers = all
	r := run(t, s)
	if err := r.Err(); err != nil || r.Answers.Unserved != 2*giveUp-1 {
		t.Errorf("%v, answers %+v", err, r.Answers)
	}
	f.refuses = nil
	s = start(t, c)
	s.refuse = http.StatusServiceUnavailable
	if _, err := s.f.run(t.Context()); err == nil || !slices.Contains(strings.Fields(err.Error()), "503:") {
		t.Errorf("other failures: %v", err)
	}
}
