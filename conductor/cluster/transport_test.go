package cluster

import (
	"bytes"
	"context"
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

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/internal/must"
)

// carrier is a Forwarder of a test.
func carrier() *Forwarder {
	return NewForwarder(ForwarderConfig{Me: "me", To: NewTransport(), Failed: func() {}, Timeout: time.Minute, Log: zerolog.Nop()})
}

// carry sends a message to a replica and returns its answer.
func carry(ctx context.Context, f *Forwarder, url string, message []byte) (answer string, err error) {
	to := &conductor.UnservedError{Serving: []conductor.ReplicaAddress{{ID: "other", URL: url}}}
	err = f.Carry(ctx, "", "/", "text/plain", message, to, func(resp *http.Response, _ conductor.ReplicaAddress) error {
		text, err := io.ReadAll(resp.Body)
		answer = resp.Status + " " + string(text)
		return err
	})
	return answer, err
}

// countingReplica answers with the length of a body, or waits until the client is gone if the body says so. It
// counts its connections.
func countingReplica(t *testing.T) (s *httptest.Server, opened *atomic.Int64, waiting chan struct{}) {
	t.Helper()
	opened, waiting = new(atomic.Int64), make(chan struct{})
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if string(text) == "wait" {
			waiting <- struct{}{}
			<-r.Context().Done()
			return
		}
		if _, given := r.Header[idempotencyKey]; given || r.ContentLength != int64(len(text)) || r.Header.Get("Accept-Encoding") != "" {
			err = fmt.Errorf("%d bytes, %v", r.ContentLength, r.Header)
		}
		fmt.Fprint(w, len(text), err)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, opened, waiting
}

// TestForwardsShareAConnection holds that one connection carries one request after another, and that one
// which the other side has closed costs no request.
func TestForwardsShareAConnection(t *testing.T) {
	s, opened, _ := countingReplica(t)
	to := carrier()
	f := func(n int, want int64) {
		t.Helper()
		if got, err := carry(t.Context(), to, s.URL, make([]byte, n)); err != nil || got != fmt.Sprint("200 OK ", n, nil) {
			t.Errorf("%d bytes: %q, %v", n, got, err)
		}
		if got := opened.Load(); got != want {
			t.Errorf("%d bytes: %d connections, want %d", n, got, want)
		}
	}
	f(0, 1)
	f(10, 1)
	f(3<<20, 1)
	s.CloseClientConnections()
	f(7, 2)
	f(8, 2)
}

// TestForwardEndsWithItsClient ends a request that waits. Others go on.
func TestForwardEndsWithItsClient(t *testing.T) {
	s, _, waiting := countingReplica(t)
	to := carrier()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := carry(ctx, to, s.URL, []byte("wait"))
		ended <- err
	}()
	<-waiting
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v", err)
	}
	if got, err := carry(t.Context(), to, s.URL, []byte("abc")); err != nil || got != "200 OK 3 <nil>" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestForwardsAtOnce holds that requests at once get the answers to their own bodies.
func TestForwardsAtOnce(t *testing.T) {
	s, _, _ := countingReplica(t)
	to := carrier()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				n := 1000*i + j
				if got, err := carry(t.Context(), to, s.URL, make([]byte, n)); err != nil || got != fmt.Sprint("200 OK ", n, nil) {
					t.Errorf("%d bytes: %q, %v", n, got, err)
				}
			}
		})
	}
	all.Wait()
}

// rawReplica lets answer speak on each connection, and closes the connection then.
func rawReplica(t *testing.T, answer func(net.Conn)) (url string) {
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

// TestForwardCopiesItsBody lets a replica answer before it has read the body. Once the answer is there, the
// bytes are another request's, and none of that is sent.
func TestForwardCopiesItsBody(t *testing.T) {
	rest := make(chan []byte)
	url := rawReplica(t, func(c net.Conn) {
		first := make([]byte, 100)
		n, _ := c.Read(first)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		text, _ := io.ReadAll(c) // until the sender gives up
		rest <- append(first[:n], text...)
	})
	src := bytes.Repeat([]byte("a"), 16<<20)
	g, _ := gin.CreateTestContext(httptest.NewRecorder())
	g.Request = httptest.NewRequestWithContext(t.Context(), "POST", "/query", http.NoBody)
	here := &mountedForwarder{carrier(), Mounted{Prefix: "/conductor/v1"}}
	to := &conductor.UnservedError{Serving: []conductor.ReplicaAddress{{ID: "other", URL: url}}}
	if answer, err := here.Ask(g, src, to); err != nil || string(answer) != "ok" {
		t.Fatalf("%q, %v", answer, err)
	}
	for i := range src {
		src[i] = '!'
	}
	if text := <-rest; bytes.Contains(text, []byte("!")) {
		t.Error("the bytes of another request were sent")
	}
}

// TestForwardRefusals holds that what cannot be reached, or speaks no HTTP that a replica speaks, is
// an error.
func TestForwardRefusals(t *testing.T) {
	for name, answer := range map[string]string{
		"no HTTP":     "SSH-2.0\r\n\r\n",
		"a long head": "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 128<<10) + "\r\n\r\n",
		"an upgrade":  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
	} {
		url := rawReplica(t, func(c net.Conn) {
			c.Read(make([]byte, 1<<10))
			io.WriteString(c, answer)
			io.Copy(io.Discard, c)
		})
		if got, err := carry(t.Context(), carrier(), url, []byte("abc")); !errors.Is(err, forward.ErrReplicas) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:1", "ftp://127.0.0.1"} {
		if got, err := carry(t.Context(), carrier(), url, []byte("abc")); !errors.Is(err, forward.ErrReplicas) {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
}
