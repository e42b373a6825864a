package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// countedConn notes how many bytes each write to a connection has. It fails the writes
// that broken says.
type countedConn struct {
	*net.TCPConn
	mu     sync.Mutex
	sizes  []int
	broken func(write int) error
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.sizes = append(c.sizes, len(p))
	n := len(c.sizes)
	c.mu.Unlock()
	if c.broken != nil {
		if err := c.broken(n); err != nil {
			sent, _ := c.TCPConn.Write(p[:len(p)/2])
			return sent, err
		}
	}
	return c.TCPConn.Write(p)
}

// take returns the sizes of the writes so far, and forgets them.
func (c *countedConn) take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sizes := c.sizes
	c.sizes = nil
	return sizes
}

// countedListener hands out countedConns, and shows them.
type countedListener struct {
	net.Listener
	broken   func(write int) error
	accepted chan *countedConn
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counted := &countedConn{TCPConn: c.(*net.TCPConn), broken: l.broken}
	l.accepted <- counted
	return counted, nil
}

// serveJoined serves a handler as serve does, and returns a client's connection and the
// server's.
func serveJoined(t *testing.T, h http.Handler, broken func(write int) error) (client net.Conn, server *countedConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	counted := &countedListener{Listener: l, broken: broken, accepted: make(chan *countedConn, 1)}
	s := NewServer(h, Timeouts{Read: time.Minute, Idle: time.Minute})
	go s.Serve(Joined(counted))
	t.Cleanup(func() { s.Close() })
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, <-counted.accepted
}

// filler returns size bytes.
func filler(size int) string { return strings.Repeat("0123456789", size/10+1)[:size] }

// TestAnswersAreWrittenAtOnce asks for answers of several sizes over one connection.
func TestAnswersAreWrittenAtOnce(t *testing.T) {
	client, server := serveJoined(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var size int
		fmt.Sscanf(r.URL.Path, "/%d", &size)
		w.Header().Set("Content-Length", fmt.Sprint(size))
		n, err := io.WriteString(w, filler(size))
		if n != size || err != nil {
			t.Errorf("wrote %d of %d bytes: %v", n, size, err)
		}
	}), nil)
	answers := bufio.NewReader(client)
	for _, test := range []struct{ size, writes int }{
		{0, 1}, {100, 1}, {4 << 10, 2}, {16 << 10, 1}, {30 << 10, 1}, {60 << 10, 2}, {200 << 10, 8}, {16 << 10, 1},
	} {
		fmt.Fprintf(client, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", test.size)
		resp, err := http.ReadResponse(answers, nil)
		must.Succeed(t, err)
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != filler(test.size) {
			t.Fatalf("an answer of %d bytes has %d: %v", test.size, len(body), err)
		}
		if sizes := server.take(); len(sizes) > test.writes {
			t.Errorf("an answer of %d bytes is sent in writes of %d bytes, want %d at most", test.size, sizes, test.writes)
		}
	}
}

// TestStreamsAreFlushed holds that a handler that goes on sees its client read what it has
// flushed.
func TestStreamsAreFlushed(t *testing.T) {
	read := make(chan struct{})
	client, _ := serveJoined(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			io.WriteString(w, filler(5000))
			w.(http.Flusher).Flush()
			<-read
		}
	}), nil)
	fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	must.Succeed(t, err)
	for range 3 {
		piece := make([]byte, 5000)
		if _, err := io.ReadFull(resp.Body, piece); err != nil || string(piece) != filler(5000) {
			t.Fatalf("%q: %v", piece, err)
		}
		read <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q: %v", rest, err)
	}
}

// TestBrokenAnswersEndTheConnection lets a write fail half way. The client would read what
// follows as the rest of the answer.
func TestBrokenAnswersEndTheConnection(t *testing.T) {
	failed := errors.New("too slow")
	const size = 16 << 10
	for broken := 1; broken <= 2; broken++ {
		told := make(chan error, 3)
		client, _ := serveJoined(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, err := io.WriteString(w, filler(size))
			told <- err
		}), func(write int) error {
			if write == broken {
				return failed
			}
			return nil
		})
		for path := range 3 {
			fmt.Fprintf(client, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", path)
		}
		all, _ := io.ReadAll(client)
		if n := strings.Count(string(all), "HTTP/1.1 200 OK"); n != broken {
			t.Errorf("%d answers begin although number %d breaks off", n, broken)
		}
		if whole := (broken - 1) * size; len(all) < whole+size/2 || len(all) > whole+size {
			t.Errorf("%d bytes although answer %d breaks off half way", len(all), broken)
		}
		for answer := 1; answer <= broken; answer++ {
			if err := <-told; (answer == broken) != errors.Is(err, failed) {
				t.Errorf("the handler of answer %d gets %v, number %d breaks off", answer, err, broken)
			}
		}
	}
}
