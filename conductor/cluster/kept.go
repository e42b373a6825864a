package cluster

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// keptConnections is how many idle connections are kept to each replica, keptIdle for how long.
	keptConnections = 256
	keptIdle        = 30 * time.Second
	// Most requests leave in one write.
	requestBuffer, answerBuffer = 64 << 10, 16 << 10
	// maxHeader bounds the bytes that are read before the body of an answer: those of its header and of
	// 1xx answers before it. Replicas send less than 1 KiB.
	maxHeader = 64 << 10
	// earlyAnswer is how long an answer may take, body included, after the request could not be sent.
	earlyAnswer = time.Second
)

// Kept sends requests over connections that it keeps. The goroutine that asks writes the request and
// reads the answer itself, and after RoundTrip no goroutine reads the body: an http.Transport
// hands both to goroutines of its own, and each handing over costs a query on its way a wake-up (see
// docs/benchmarks/cluster.md).
//
// Requests must be safe to send twice: one that meets a connection which the replica has closed is
// sent again. It is safe for concurrent use.
type Kept struct {
	tls  *tls.Config
	keep time.Duration // keptIdle

	mu     sync.Mutex
	idle   map[string][]*keptConn // by scheme and address, the latest at the end; guarded by mu
	sweeps bool                   // sweep is to come; guarded by mu
}

// keptConn is one connection.
type keptConn struct {
	net.Conn
	to    string // key of Kept.idle
	in    *bufio.Reader
	left  *io.LimitedReader // what in may still read
	out   *bufio.Writer
	used  bool      // it has brought an answer
	since time.Time // when it became idle
}

// NewKept returns a Kept without connections. c is for replicas with an https URL.
func NewKept(c *tls.Config) *Kept {
	return &Kept{tls: c, keep: keptIdle, idle: make(map[string][]*keptConn)}
}

// RoundTrip implements http.RoundTripper.
func (k *Kept) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	c, err := k.take(r)
	if err != nil {
		return nil, err
	}
	answer, err := k.ask(c, r)
	if err == nil || !c.used || c.left.N < maxHeader || r.GetBody == nil || r.Context().Err() != nil {
		return answer, err
	}
	k.drop(c.to) // the replica has closed this one, most likely all of them
	again := *r
	if again.Body, err = r.GetBody(); err != nil {
		return nil, err
	}
	defer again.Body.Close()
	if c, err = k.dial(r.Context(), c.to, r); err != nil {
		return nil, err
	}
	return k.ask(c, &again)
}

// ask sends a request over a connection, which it closes after an error.
func (k *Kept) ask(c *keptConn, r *http.Request) (answer *http.Response, err error) {
	// A deadline in the past ends what reads or writes.
	stop := context.AfterFunc(r.Context(), func() { c.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if err != nil {
			stop()
			c.Close()
			if ended := r.Context().Err(); ended != nil {
				err = ended
			}
		}
	}()
	sent := r.Write(c.out)
	if sent == nil {
		sent = c.out.Flush()
	}
	if sent != nil { // a replica may answer and close the connection before it has read the whole body
		c.SetReadDeadline(time.Now().Add(earlyAnswer))
		if err = r.Context().Err(); err != nil {
			return nil, err
		}
	}
	if answer, err = c.readHeader(r); err != nil {
		return nil, cmp.Or(sent, err)
	}
	answer.Body = &keptBody{ReadCloser: answer.Body, end: func(whole bool) {
		if stop() && whole && sent == nil && !answer.Close && c.in.Buffered() == 0 {
			k.put(c)
		} else {
			c.Close()
		}
	}}
	return answer, nil
}

// readHeader reads an answer up to its body.
func (c *keptConn) readHeader(r *http.Request) (answer *http.Response, err error) {
	c.left.N = maxHeader
	for answer == nil || answer.StatusCode/100 == 1 {
		if answer, err = http.ReadResponse(c.in, r); err != nil {
			if c.left.N == 0 {
				err = fmt.Errorf("the header of the answer is larger than %d bytes", maxHeader)
			}
			return nil, err
		}
		if answer.StatusCode == http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("the answer is %s", answer.Status)
		}
	}
	c.left.N = math.MaxInt64
	return answer, nil
}

// keptBody gives the connection of an answer back once the answer was read.
type keptBody struct {
	io.ReadCloser
	end func(whole bool) // nil once called
}

func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.end != nil {
		b.end(err == io.EOF)
		b.end = nil
	}
	return n, err
}

// Close closes the connection of an answer that was not read to its end.
func (b *keptBody) Close() error {
	if b.end != nil {
		b.end(false)
		b.end = nil
	}
	return nil
}

// take returns an idle connection, or a new one.
func (k *Kept) take(r *http.Request) (*keptConn, error) {
	port := r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	to := r.URL.Scheme + "://" + net.JoinHostPort(r.URL.Hostname(), port)
	k.mu.Lock()
	if all := k.idle[to]; len(all) > 0 {
		c := all[len(all)-1]
		k.idle[to] = all[:len(all)-1]
		k.mu.Unlock()
		return c, nil
	}
	k.mu.Unlock()
	return k.dial(r.Context(), to, r)
}

// dial opens a connection.
func (k *Kept) dial(ctx context.Context, to string, r *http.Request) (*keptConn, error) {
	scheme := r.URL.Scheme
	if scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("the scheme of a replica is %q, not http or https", scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, shunning)
	defer cancel()
	dialer := net.Dialer{KeepAlive: 15 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", to[len(scheme)+len("://"):])
	if err != nil {
		return nil, err
	}
	if scheme == "https" {
		c := k.tls.Clone()
		if c.ServerName == "" {
			c.ServerName = r.URL.Hostname()
		}
		secure := tls.Client(conn, c)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = secure
	}
	left := &io.LimitedReader{R: conn, N: maxHeader}
	return &keptConn{Conn: conn, to: to, left: left, in: bufio.NewReaderSize(left, answerBuffer), out: bufio.NewWriterSize(conn, requestBuffer)}, nil
}

// put keeps a connection that has brought a whole answer.
func (k *Kept) put(c *keptConn) {
	c.used, c.since = true, time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.idle[c.to]) >= keptConnections {
		c.Close()
		return
	}
	k.idle[c.to] = append(k.idle[c.to], c)
	k.sweepLater()
}

// sweepLater sweeps in a while, if connections are idle. k.mu is held.
func (k *Kept) sweepLater() {
	if !k.sweeps && len(k.idle) > 0 {
		k.sweeps = true
		time.AfterFunc(k.keep, k.sweep)
	}
}

// sweep closes connections that were idle for long.
func (k *Kept) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for to, all := range k.idle {
		n := 0
		for n < len(all) && now.Sub(all[n].since) >= k.keep {
			all[n].Close()
			n++
		}
		if k.idle[to] = append([]*keptConn(nil), all[n:]...); n == len(all) {
			delete(k.idle, to)
		}
	}
	k.sweeps = false
	k.sweepLater()
}

// drop closes the idle connections to one address.
func (k *Kept) drop(to string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.idle[to] {
		c.Close()
	}
	delete(k.idle, to)
}

// CloseIdleConnections closes the connections that no request uses.
func (k *Kept) CloseIdleConnections() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for to, all := range k.idle {
		for _, c := range all {
			c.Close()
		}
		delete(k.idle, to)
	}
}
