package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
)

// pipes is a listener whose connections are in memory.
type pipes struct {
	fresh chan net.Conn
	done  chan struct{}
	close func()
}

func newPipes() *pipes {
	p := &pipes{fresh: make(chan net.Conn), done: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.done) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.fresh:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close()
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// dial connects from an address, and returns once the server has taken the connection in or closed it.
func (p *pipes) dial(from string) net.Conn {
	client, server := net.Pipe()
	p.fresh <- pipe{server, from}
	synctest.Wait()
	return client
}

// pipe is the server's end of a connection.
type pipe struct {
	net.Conn
	from string
}

func (p pipe) CloseWrite() error { return nil }

func (p pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(p.from), Port: 4711} }

// servePipes serves a handler on a listener in memory, over TLS if cfg says how.
func servePipes(t *testing.T, h http.HandlerFunc, cfg *tls.Config, log zerolog.Logger) (*Servers, *pipes) {
	t.Helper()
	s, p := preparePipes(h, cfg, log)
	must.Succeed(t, s.servePorts(s.ports))
	return s, p
}

// preparePipes returns the servers of servePipes, which serve nothing yet.
func preparePipes(h http.HandlerFunc, cfg *tls.Config, log zerolog.Logger) (*Servers, *pipes) {
	s, p := NewServers([]Listener{{Dialect: "d"}}, Timeouts{Read: 30 * time.Second, Idle: 2 * time.Minute}, log), newPipes()
	s.ports[0].bound = p
	s.Handler = func(string) http.Handler { return h }
	s.TLS = cfg
	return s, p
}

// stop ends the servers of servePipes.
func (s *Servers) stop() {
	s.ports[0].server.Close()
	<-s.failed
}

// What a client of HTTP/2 sends.
const (
	preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	ping     = "\x00\x00\x08\x06\x00\x00\x00\x00\x0001234567"
	// GET / for the authority h, in a header block that ends, and the first byte of that in one that goes on.
	getH2 = "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41\x01h"
	half  = "\x00\x00\x01\x01\x01\x00\x00\x00\x01\x82"
)

// TestSilentConnectionsEnd opens connections that never ask for anything. Each is closed when the time of a
// request header is over, whatever else it sends. One that has asked may be idle for longer, and
// what it sends without asking again does not keep it longer.
func TestSilentConnectionsEnd(t *testing.T) {
	files := httptest.NewUnstartedServer(nil)
	files.StartTLS()
	pair := files.TLS.Certificates
	files.Close()
	const get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
	for _, test := range []struct {
		name, sends, again string // again is sent each second
		tls                bool
		want               time.Duration
	}{
		{"nothing", "", "", false, headerTimeout},
		{"half a header", "GET / HTTP/1.1\r\nHo", "", false, headerTimeout},
		{"a header in pieces", "GET / HTTP/1.1\r\nHo", "a", false, headerTimeout},
		{"half a preface", preface[:8], "", false, headerTimeout},
		{"a preface", preface, "", false, headerTimeout},
		{"settings", preface + settings, "", false, headerTimeout},
		{"more and more settings", preface + settings, settings, false, headerTimeout},
		{"pings", preface + settings, ping, false, headerTimeout},
		{"half a header block", preface + settings + half, "", false, headerTimeout},
		{"no handshake", "\x16", "", true, headerTimeout},
		{"a handshake, then nothing", "", "", true, headerTimeout},
		{"a handshake, then a preface and pings", preface + settings, ping, true, headerTimeout},
		{"a request", get, "", false, 2 * time.Minute},
		{"a request, then half a header", get + "GET /", "", false, headerTimeout},
		{"a request over HTTP/2", preface + settings + getH2, "", false, 2 * time.Minute},
		{
			"a request over HTTP/2, then half a header block",
			preface + settings + getH2 + strings.Replace(half, "\x01\x82", "\x03\x82", 1), "", false, 2 * time.Minute,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cfg *tls.Config
				if test.tls {
					cfg = &tls.Config{Certificates: pair, NextProtos: []string{"h2", "http/1.1"}}
				}
				s, p := servePipes(t, func(http.ResponseWriter, *http.Request) {}, cfg, zerolog.Nop())
				defer s.stop()
				began, c := time.Now(), p.dial("192.0.2.1")
				defer c.Close()
				if test.tls && test.sends != "\x16" {
					over := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
					must.Succeed(t, over.Handshake())
					c = over
				}
				var sender sync.WaitGroup
				sender.Go(func() {
					_, err := io.WriteString(c, test.sends)
					for test.again != "" && err == nil {
						time.Sleep(time.Second)
						_, err = io.WriteString(c, test.again)
					}
				})
				io.Copy(io.Discard, c)
				got := time.Since(began)
				sender.Wait()
				if isSilent := test.want == headerTimeout; isSilent && got > test.want || !isSilent &&
					(got < test.want || got > test.want+10*time.Second) {
					t.Errorf("closed after %v, want %v", got, test.want)
				}
			})
		})
	}
}

// ask makes a request over a connection, and returns its status, 0 if the connection is closed.
func ask(c net.Conn, path string) int {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// isOpen reports whether the server has kept a connection that has no answer on its way.
func isOpen(c net.Conn) bool {
	c.SetReadDeadline(time.Now())
	defer c.SetReadDeadline(time.Time{})
	_, err := c.Read(make([]byte, 1))
	return err != nil && strings.Contains(err.Error(), "timeout")
}

// TestStrangersMakeRoom reaches both bounds with connections that ask for nothing, or only for what everyone may
// have. The oldest of them makes room for each new connection, and those with a request that was admitted stay.
func TestStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		s, p := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/query" {
				Admits(PeerOf(r.Context()))
			}
		}, nil, zerolog.New(log))
		defer s.stop()
		s.Connections.SetBounds(8, 3)
		states := func(want string, all ...net.Conn) {
			t.Helper()
			got := ""
			for _, c := range all {
				if isOpen(c) {
					got += "+"
				} else {
					got += "-"
				}
			}
			if got != want {
				t.Errorf("connections are %s, want %s\n%s", got, want, log)
			}
		}
		counts := func(want string) {
			t.Helper()
			metrics := make(chan prometheus.Metric, 1+len(reasons))
			s.Connections.Collect(metrics)
			<-metrics // conductor_connections
			got := ""
			for range reasons {
				var m dto.Metric
				must.Succeed(t, (<-metrics).Write(&m))
				got += fmt.Sprint(m.GetCounter().GetValue())
			}
			if got != want {
				t.Errorf("counts are %s, want %s", got, want)
			}
		}
		var a []net.Conn // of one address
		for range 3 {
			a = append(a, p.dial("192.0.2.1"))
		}
		if ask(a[0], "/health") != 200 {
			t.Error("no answer")
		}
		a = append(a, p.dial("192.0.2.1"))
		states("-+++", a...)
		counts("0100")
		if ask(a[1], "/query") != 200 || ask(a[3], "/query") != 200 {
			t.Error("no answer")
		}
		a = append(a, p.dial("192.0.2.1"))
		states("-+-++", a...)
		if ask(a[4], "/query") != 200 {
			t.Error("no answer")
		}
		a = append(a, p.dial("192.0.2.1"))
		states("-+-++-", a...)
		counts("1200")

		var b []net.Conn // of many
		for i := range 6 {
			b = append(b, p.dial(fmt.Sprintf("192.0.2.%d", 10+i)))
		}
		states("-+-++-", a...)
		states("-+++++", b...)
		counts("1201")
		for i := 1; i < 6; i++ {
			if ask(b[i], "/query") != 200 {
				t.Errorf("%d has no answer", i)
			}
		}
		refused := p.dial("192.0.2.99")
		states("-", refused)
		counts("1211")
		a[1].Close()
		synctest.Wait()
		if c := p.dial("192.0.2.99"); ask(c, "/query") != 200 {
			t.Error("no slot, although one is free")
		}
		if n := strings.Count(log.String(), `"level":"warn"`); n != len(reasons) {
			t.Errorf("%d lines, want one for each reason\n%s", n, log)
		}
		if len(s.Connections.neighbours) != 7 || s.Connections.open != 8 || s.Connections.strangers.Len() != 0 {
			t.Errorf("%d addresses, %d connections, %d strangers", len(s.Connections.neighbours), s.Connections.open,
				s.Connections.strangers.Len())
		}
		for _, c := range append(a, b...) {
			c.Close()
		}
	})
}

// TestOneConnectionPerAddress lets one make room for the next.
func TestOneConnectionPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := servePipes(t, func(http.ResponseWriter, *http.Request) {}, nil, zerolog.Nop())
		defer s.stop()
		s.Connections.SetBounds(0, 1)
		for range 5 {
			if ask(p.dial("2001:db8::1"), "/") != 200 {
				t.Error("no answer")
			}
		}
		if n := s.Connections.neighbours["2001:db8::/64"]; n == nil || n.open != 1 || n.strangers.Len() != 1 {
			t.Errorf("%+v", n)
		}
	})
}

// TestAddressesOfOthersDoNothing tells of requests over connections that no Servers has accepted.
func TestAddressesOfOthersDoNothing(t *testing.T) {
	for _, from := range []net.Addr{nil, new(net.TCPAddr), PeerOf(context.Background())} {
		Asks(from)
		Admits(from)
	}
}
