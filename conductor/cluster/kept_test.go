package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvconductor/internal/must"
)

// keptServer answers with the length of a body, and counts its connections.
func keptServer(t *testing.T, secure bool) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	opened := new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ends":
			w.Header().Set("Connection", "close")
		case "/waits":
			io.Copy(io.Discard, r.Body) // the server looks for the end of the connection from then on
			<-r.Context().Done()
			return
		case "/large":
			w.Write(make([]byte, 1<<20))
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, opened
}

// asked sends a body of n bytes and returns what the answer says.
func asked(ctx context.Context, k *Kept, url string, n int) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(make([]byte, n)))
	if err != nil {
		return "", err
	}
	answer, err := k.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// TestKeptConnections holds that one connection serves one request after another, and that a
// connection which the other side closes, at once or while it is idle, costs no request.
func TestKeptConnections(t *testing.T) {
	s, opened := keptServer(t, false)
	k := NewKept(nil)
	f := func(path string, n int, want int64) {
		t.Helper()
		if got, err := asked(t.Context(), k, s.URL+path, n); err != nil || got != fmt.Sprint(n, nil) {
			t.Errorf("%s with %d bytes: %q, %v", path, n, got, err)
		}
		if got := opened.Load(); got != want {
			t.Errorf("%s with %d bytes: %d connections, want %d", path, n, got, want)
		}
	}
	f("/", 0, 1)
	f("/", 10, 1)
	f("/", 3<<20, 1)
	f("/ends", 5, 1)
	f("/", 1, 2)
	s.CloseClientConnections()
	f("/", 7, 3)
	k.CloseIdleConnections()
	f("/", 2, 4)
}

// TestKeptUnreadAnswer holds that a connection whose answer was not read serves no other request.
func TestKeptUnreadAnswer(t *testing.T) {
	s, opened := keptServer(t, false)
	k := NewKept(nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/large", strings.NewReader("x"))
	must.Succeed(t, err)
	answer, err := k.RoundTrip(r)
	must.Succeed(t, err)
	io.ReadFull(answer.Body, make([]byte, 100))
	answer.Body.Close()
	if _, err := asked(t.Context(), k, s.URL, 3); err != nil || opened.Load() != 2 {
		t.Errorf("%v, %d connections, want 2", err, opened.Load())
	}
}

// TestKeptCancel holds that the end of a context ends a request that waits, and no other.
func TestKeptCancel(t *testing.T) {
	s, opened := keptServer(t, false)
	k := NewKept(nil)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		before := opened.Load()
		go func() {
			_, err := asked(ctx, k, s.URL+"/waits", 3)
			ended <- err
		}()
		for opened.Load() == before {
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the request ended with %v", err)
		}
	}
	if got, err := asked(t.Context(), k, s.URL, 3); err != nil || got != "3 <nil>" {
		t.Errorf("%q, %v", got, err)
	}
}

// rawServer lets answer speak on each connection, and closes the connection then.
func rawServer(t *testing.T, answer func(net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer(c)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestKeptRefusals holds that what cannot be reached, or speaks no HTTP, is an error.
func TestKeptRefusals(t *testing.T) {
	noHTTP := rawServer(t, func(c net.Conn) { io.WriteString(c, "SSH-2.0\r\n\r\n") })
	for _, url := range []string{"http://127.0.0.1:1", "ftp://127.0.0.1", noHTTP} {
		if got, err := asked(t.Context(), NewKept(nil), url, 3); err == nil {
			t.Errorf("%s answers %q", url, got)
		}
	}
}

// TestKeptLongHeaders holds that the headers of an answer, those of 1xx answers before it included, are
// read up to a bound. The replica that exceeds it is not asked again over another connection.
func TestKeptLongHeaders(t *testing.T) {
	for name, long := range map[string]string{
		"1xx answers": strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHeader/20) + "HTTP/1.1 200 OK\r\n",
		"fields":      "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxHeader/6+1),
		"one field":   "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxHeader) + "\r\n",
		"status":      "HTTP/1.1 200 " + strings.Repeat("b", maxHeader) + "\r\n",
	} {
		var opened atomic.Int64
		url := rawServer(t, func(c net.Conn) {
			opened.Add(1)
			in := bufio.NewReader(c)
			for _, head := range []string{"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n", long} {
				if r, err := http.ReadRequest(in); err != nil {
					return
				} else {
					io.Copy(io.Discard, r.Body)
				}
				io.WriteString(c, head+"Content-Length: 2\r\n\r\nok")
			}
			io.Copy(io.Discard, in)
		})
		k := NewKept(nil)
		if got, err := asked(t.Context(), k, url, 3); err != nil || got != "ok" {
			t.Errorf("%s: a small header: %q, %v", name, got, err)
		}
		if got, err := asked(t.Context(), k, url, 3); err == nil || !strings.Contains(err.Error(), "header") || opened.Load() != 1 {
			t.Errorf("%s: %q, %v, %d connections", name, got, err, opened.Load())
		}
	}
}

// TestKeptEarlyAnswer holds that the answer of a replica that closes the connection in the middle of a
// body is its answer. Without an answer the request fails.
func TestKeptEarlyAnswer(t *testing.T) {
	for text, want := range map[string]string{
		"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch":                         "413 much",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy": "503 busy",
		"": "",
	} {
		url := rawServer(t, func(c net.Conn) {
			c.Read(make([]byte, 100))
			io.WriteString(c, text)
		})
		k := NewKept(nil)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(make([]byte, 64<<20)))
		must.Succeed(t, err)
		answer, err := k.RoundTrip(r)
		if want == "" {
			if err == nil {
				t.Errorf("no answer is taken for %s", answer.Status)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if got := fmt.Sprintf("%d %s", answer.StatusCode, body); got != want {
			t.Errorf("the answer is %q, want %q", got, want)
		}
		if len(k.idle) != 0 {
			t.Errorf("%s: the connection is kept", want)
		}
	}
}

// TestKeptIdle holds that connections that become idle are closed although no request comes after, and
// that one which is in use meanwhile is not.
func TestKeptIdle(t *testing.T) {
	s, opened := keptServer(t, false)
	k := NewKept(nil)
	k.keep = 10 * time.Millisecond
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/large", strings.NewReader("x"))
	must.Succeed(t, err)
	using, err := k.RoundTrip(r)
	must.Succeed(t, err)
	for n := int64(2); n <= 3; n++ { // the second time after all were closed
		if got, err := asked(t.Context(), k, s.URL, 3); err != nil || got != "3 <nil>" || opened.Load() != n {
			t.Fatalf("%q, %v, %d connections", got, err, opened.Load())
		}
		tick, deadline := time.NewTicker(time.Millisecond), time.After(time.Minute)
		for idle := 1; idle > 0; {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatal("an idle connection is kept")
			}
			k.mu.Lock()
			idle = len(k.idle)
			k.mu.Unlock()
		}
		tick.Stop()
	}
	if n, err := io.Copy(io.Discard, using.Body); n != 1<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	using.Body.Close()
}

// TestKeptTLS holds that requests reach a server over TLS whose certificate is known, and no other.
func TestKeptTLS(t *testing.T) {
	s, opened := keptServer(t, true)
	s.Config.ErrorLog = nil
	known := x509.NewCertPool()
	known.AddCert(s.Certificate())
	k := NewKept(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: known})
	for range 2 {
		if got, err := asked(t.Context(), k, s.URL, 100_000); err != nil || got != "100000 <nil>" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if opened.Load() != 1 {
		t.Errorf("%d connections", opened.Load())
	}
	if _, err := asked(t.Context(), NewKept(&tls.Config{MinVersion: tls.VersionTLS12}), s.URL, 3); err == nil {
		t.Error("an unknown certificate is taken")
	}
}

// TestKeptAtOnce holds that requests at once get the answers to their own bodies.
func TestKeptAtOnce(t *testing.T) {
	s, opened := keptServer(t, false)
	k := NewKept(nil)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				n := 1000*i + j
				if got, err := asked(t.Context(), k, s.URL, n); err != nil || got != fmt.Sprint(n, nil) {
					t.Errorf("%d bytes: %q, %v", n, got, err)
				}
			}
		})
	}
	all.Wait()
	if got := opened.Load(); got > 8 {
		t.Errorf("%d connections for 8 clients", got)
	}
}
