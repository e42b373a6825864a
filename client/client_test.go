package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestRetries holds which answers are asked for again.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		status, calls int
		retries       int
	}{{503, 3, 2}, {503, 1, 0}, {400, 1, 2}, {401, 1, 2}, {429, 1, 2}, {500, 1, 2}, {200, 1, 2}} {
		var calls atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			w.WriteHeader(c.status)
			if c.status != 200 {
				fmt.Fprint(w, `{"error":"no","reason":"busy"}`)
			} else {
				fmt.Fprint(w, `{}`)
			}
		}))
		defer s.Close()
		client, err := New(s.URL, WithRetries(c.retries))
		must.Succeed(t, err)
		client.pause = time.Millisecond
		_, err = client.Query(t.Context(), Query{})
		var refused *Error
		if int(calls.Load()) != c.calls || (c.status == 200) == errors.As(err, &refused) || c.status != 200 &&
			(refused.Status != c.status || refused.Reason != "busy") {
			t.Errorf("%+v: %d calls, %v", c, calls.Load(), err)
		}
	}
}

// TestDeadline holds that a client does not wait for a retry beyond the deadline.
func TestDeadline(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(503)
	}))
	defer s.Close()
	client, err := New(s.URL)
	must.Succeed(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	begun := time.Now()
	_, err = client.Query(ctx, Query{})
	var refused *Error
	if !errors.As(err, &refused) || refused.RetryAfter != time.Hour || !refused.Temporary() || time.Since(begun) > 30*time.Second {
		t.Errorf("after %s: %v", time.Since(begun), err)
	}
}

// TestRetryAfter holds that a client waits as long as the server says, without a deadline up to a
// minute.
func TestRetryAfter(t *testing.T) {
	after, calls := "1", 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 2 {
			fmt.Fprint(w, `{}`)
			return
		}
		w.Header().Set("Retry-After", after)
		w.WriteHeader(503)
	}))
	defer s.Close()
	client, err := New(s.URL)
	must.Succeed(t, err)
	begun := time.Now()
	if _, err := client.Query(t.Context(), Query{}); err != nil || calls != 2 || time.Since(begun) < time.Second {
		t.Errorf("%d calls in %s: %v", calls, time.Since(begun), err)
	}
	after, calls = "61", 0
	if _, err := client.Query(t.Context(), Query{}); err == nil || calls != 1 {
		t.Errorf("%d calls: %v", calls, err)
	}
}

// TestConnections holds that answers of every kind leave the connection open for the next request.
func TestConnections(t *testing.T) {
	var connections, calls atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%2 == 0 {
			w.WriteHeader(400)
		}
		fmt.Fprint(w, `{"error":"no"}`+strings.Repeat(" ", 1<<20))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	client, err := New(s.URL)
	must.Succeed(t, err)
	for range 10 {
		if _, err := client.Query(t.Context(), Query{}); err == nil {
			t.Error("an error was read as rows")
		}
	}
	// A busy machine may be late to put a connection back, so that another one is opened.
	if calls.Load() != 10 || connections.Load() > 5 {
		t.Errorf("%d requests came on %d connections", calls.Load(), connections.Load())
	}
}

// TestBrokenConnections holds that a connection that ends is asked again, and a redirect is not
// followed with the token.
func TestBrokenConnections(t *testing.T) {
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("the header is %q", r.Header.Get("Authorization"))
		}
		if calls.Add(1) < 3 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{}`)
	}))
	defer s.Close()
	client, err := New(s.URL, WithToken("secret"))
	must.Succeed(t, err)
	client.pause = time.Millisecond
	if rows, err := client.Query(t.Context(), Query{}); err != nil || len(rows) != 0 || rows.Longest() != nil {
		t.Errorf("%v, %v", rows, err)
	}
	away := httptest.NewServer(http.RedirectHandler(s.URL, http.StatusTemporaryRedirect))
	defer away.Close()
	client, err = New(away.URL, WithToken("secret"))
	must.Succeed(t, err)
	if _, err := client.Query(t.Context(), Query{}); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("a redirect: %v", err)
	}
}

// TestLaterServers holds that fields of later servers do no harm, and that wrong ones are named.
func TestLaterServers(t *testing.T) {
	answer := `{"default":{"a":{"longest_matched":32,"GPU":16,"NVME":32,"new":{"x":1},"newer":"y","DP":{"0":16},` +
		`"rank_matches":{"10":{"gpu":16,"cpu":16,"disk":32,"more":1},"2":{"gpu":0,"cpu":0,"disk":0}}}}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, answer) }))
	defer s.Close()
	client, err := New(s.URL)
	must.Succeed(t, err)
	rows, err := client.Query(t.Context(), Query{})
	must.Succeed(t, err)
	if r := rows.Longest(); r.Longest != 32 || r.Media["NVME"] != 32 || len(r.Media) != 2 ||
		fmt.Sprint(r.Ranks) != "[{2 0 0 0 0} {10 16 16 32 0}]" {
		t.Errorf("%+v", r)
	}
	answer = `{"default":{"a":{"longest_matched":"x"}}}`
	if _, err := client.Query(t.Context(), Query{}); err == nil || !strings.Contains(err.Error(), "longest_matched") {
		t.Errorf("a wrong field: %v", err)
	}
	for _, base := range []string{"", "conductor:1", "ftp://x", "http://", "http://%zz", "http://x?y", "http://x#y", " http://x"} {
		if _, err := New(base); err == nil {
			t.Errorf("%q is a base URL", base)
		}
	}
}

// TestTransport holds that a transport can be wrapped, and that the HTTP client which was given is not changed by it.
func TestTransport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{}`) }))
	defer s.Close()
	given, sent := new(http.Client), 0
	client, err := New(s.URL, WithHTTPClient(given), WithTransport(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			sent++
			return inner.RoundTrip(r)
		})
	}))
	must.Succeed(t, err)
	if _, err := client.Query(t.Context(), Query{}); err != nil || sent != 1 || given.Transport != nil {
		t.Errorf("%d requests went through the transport with %v, and the given client has %v", sent, err, given.Transport)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
