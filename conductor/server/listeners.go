// Package server is the part of HTTP that all dialects share. It knows no field of any request or answer.
//
//	connection --Connections--> http.Server --streams--> paced --> Dialects --choose--> handler of a dialect
//
// Connections bounds how many are open, and closes those that ask for nothing. streams reserves memory for what HTTP/2 keeps
// of a request until its answer is taken. paced cuts off clients that do not read their answers. Dialects chooses the dialect
// by the path, and the codec by the headers. Budget reserves memory for the body while it is read, and for the answer.
// Admission lets a query in once its body is there, and Lists a list. AccessLog writes a line.
//
// Invariants:
//
//  1. No client costs memory or a goroutine for longer than its timeout without having asked for something:
//     a connection has to bring a whole request header, a body has to come, an answer has to be read.
//  2. The bytes of all bodies and answers at once stay within Budget, unless its bound is 0, which is none. What a handler
//     reads through Held counts too. A request counts itself until its body is there; then 64 KiB of it are free, so that
//     usual queries hold nothing while they wait and are worked on. Over HTTP/2 a request counts itself once more, by address,
//     from its header until its stream is closed.
//  3. A query waits in Admission or runs; /health and /ready never wait.
//  4. A shutdown cuts no request: Drain lets clients part, and Shutdown waits for the requests in flight, up to its timeout.
//
// Concurrency: all methods are safe for concurrent use; a gin.Context belongs to its request. Cost: a query
// allocates as much as the same request to net/http alone (TestQueriesAllocateWhatNetHTTPDoes); over HTTP/2 two goroutines
// wait for the end of its stream.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// Listener is one port.
type Listener struct {
	Address string
	Dialect string // at the root
	Late    bool   // closed until everything is settled
}

// Timeouts bound how long a client may keep a connection.
type Timeouts struct {
	Read time.Duration // of a request, from its first byte to its last
	Idle time.Duration // between two requests, and for one piece of an answer
}

// Servers are the servers of all listeners. Its methods are called by one goroutine.
type Servers struct {
	// Handler returns the handler of a listener by the dialect at its root. Set it before Run.
	Handler func(dialect string) http.Handler
	// Special returns the server of a dialect that is not HTTP, nil if Handler serves it. It may be
	// nil. Its server does TLS itself. Set it before Run.
	Special func(dialect string) Server
	// TLS has the certificates of all listeners; nil serves without TLS. Set it before Run.
	TLS *tls.Config
	// Connections bounds those that are open.
	Connections Connections
	// Budget counts requests over HTTP/2 until their answers are taken; nil is no bound. Set it before Run.
	Budget *Budget

	timeouts Timeouts
	log      zerolog.Logger
	ports    []*port
	failed   chan error
	draining atomic.Bool
	busy     *busy
}

// Server serves the connections of one listener. *http.Server is one.
type Server interface {
	Serve(net.Listener) error
	// Shutdown ends the server once the requests in flight have ended. It returns an error if ctx
	// ends first; Close cuts them off then.
	Shutdown(ctx context.Context) error
	Close() error
}

// port is one listener.
type port struct {
	Listener
	bound  net.Listener // nil while the port is closed
	server Server       // nil until the port is served
	chosen bool         // the system chose the port: it stays the same while the port is closed
	letGo  func()       // ends the hold on a closed port, nil if there is none
}

// NewServers returns the servers of some listeners. It opens no port.
func NewServers(all []Listener, timeouts Timeouts, log zerolog.Logger) *Servers {
	s := &Servers{busy: newBusy(), timeouts: timeouts, log: log, failed: make(chan error, len(all))}
	s.Connections.Log = log
	for _, l := range all {
		s.ports = append(s.ports, &port{Listener: l})
	}
	return s
}

// Bind takes all ports, or none of them.
func (s *Servers) Bind() error { return bindPorts(s.ports) }

// bindPorts binds those of some ports that are not bound yet. If some cannot be bound, it binds none of them, and names each.
func bindPorts(ports []*port) error {
	var fresh []*port
	var failed []error
	for _, p := range ports {
		if p.bound != nil {
			continue
		}
		p.releasePort()
		var err error
		if p.bound, err = net.Listen("tcp", p.Address); err != nil {
			p.bound = nil
			if errors.Is(err, syscall.EADDRINUSE) {
				err = errors.New("the port is in use")
			}
			failed = append(failed, fmt.Errorf("cannot listen on %s for the %s dialect: %w", p.Address, p.Dialect, err))
			continue
		}
		if _, number, _ := net.SplitHostPort(p.Address); number == "0" || number == "" {
			p.Address, p.chosen = p.bound.Addr().String(), true
		}
		fresh = append(fresh, p)
	}
	if len(failed) > 0 {
		unbindPorts(fresh)
	}
	return errors.Join(failed...)
}

// Address returns the address of a bound listener. A late one has the same when it is served.
func (s *Servers) Address(listener int) string { return s.ports[listener].bound.Addr().String() }

// Unbind gives back the ports that are bound and not served.
func (s *Servers) Unbind() {
	unbindPorts(s.ports)
	for _, p := range s.ports {
		p.releasePort()
	}
}

// releasePort ends the hold on a closed port.
func (p *port) releasePort() {
	if p.letGo != nil {
		p.letGo()
		p.letGo = nil
	}
}

// closeLatePorts closes the late ports until servePorts binds them again. Those that the system chose are held, because other
// servers know their addresses before they are served.
func (s *Servers) closeLatePorts() {
	for _, p := range s.selectPorts(true) {
		at := p.bound.Addr().(*net.TCPAddr)
		unbindPorts([]*port{p})
		if !p.chosen {
			continue
		}
		var err error
		if p.letGo, err = holdPort(at); err != nil {
			s.log.Debug().Err(err).Msg("a port cannot be held until it is served: another program may take it")
		}
	}
}

// unbindPorts closes those of some ports that are bound and not served.
func unbindPorts(ports []*port) {
	for _, p := range ports {
		if p.bound != nil && p.server == nil {
			p.bound.Close()
			p.bound = nil
		}
	}
}

// selectPorts returns the late ports, or all others.
func (s *Servers) selectPorts(late bool) (ports []*port) {
	for _, p := range s.ports {
		if p.Late == late {
			ports = append(ports, p)
		}
	}
	return ports
}

// servePorts binds some ports and serves them.
func (s *Servers) servePorts(ports []*port) error {
	if err := bindPorts(ports); err != nil {
		return err
	}
	for _, p := range ports {
		s.log.Info().Str("address", p.bound.Addr().String()).Str("dialect", p.Dialect).Msg("listening")
		bound := &boundedListener{p.bound, &s.Connections, s.timeouts.firstHeaderTimeout()}
		if s.Special != nil {
			p.server = s.Special(p.Dialect)
		}
		if p.server != nil {
			go func() { s.failed <- p.server.Serve(bound) }()
			continue
		}
		web := NewServer(s.closeOnDrain(s.Handler(p.Dialect)), s.timeouts)
		p.server = web
		web.Handler = boundStreams(web.Handler, s.Budget)
		web.ConnState = s.busy.noteState
		web.ErrorLog = stdlog.New(debugLines{s.log}, "", 0)
		if s.TLS == nil {
			go func() { s.failed <- web.Serve(Joined(bound)) }()
			continue
		}
		web.TLSConfig = s.TLS
		web.Protocols.SetHTTP2(true)
		web.Protocols.SetUnencryptedHTTP2(false)
		go func() { s.failed <- web.ServeTLS(bound, "", "") }()
	}
	return nil
}

// headerTimeout bounds how long a connection may be without a whole request header.
const headerTimeout = 10 * time.Second

// firstHeaderTimeout returns how long a connection may take until its first request header is there, with TLS and the preface
// of HTTP/2 before it. We bound that ourselves, because net/http does so only for HTTP/1, and grpc only up to the preface.
func (t Timeouts) firstHeaderTimeout() time.Duration { return min(t.Read, headerTimeout) }

// What HTTP/2 adds to what one connection can take.
const (
	// A router sends all its requests over one connection: as many as those of a fleet's
	// busiest second that wait for each other.
	maxStreams = 256
	// A prompt of 8,192 tokens in one frame; a connection keeps so much for reading them.
	maxFrame = 64 << 10
	// Bytes of bodies a connection may send ahead of the handlers that read them, and
	// of one body: a link of 10 Gbit/s and 1 ms stays full.
	connWindow   = 2 << 20
	streamWindow = 1 << 20
)

// NewServer returns a server of HTTP/1.1 and of HTTP/2 without TLS. HTTP/2 is for clients
// that begin with it. Its listener is Joined.
func NewServer(h http.Handler, timeouts Timeouts) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: paced(h, timeouts.Idle),
		// OPTIONS * is for the handler too, which knows who may ask.
		DisableGeneralOptionsHandler: true,
		ReadTimeout:                  timeouts.Read,
		// Of the header, and of the TLS handshake before it.
		ReadHeaderTimeout: timeouts.firstHeaderTimeout(),
		IdleTimeout:       timeouts.Idle,
		Protocols:         protocols,
		ConnContext:       withConn,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
			// A peer that is gone holds streams and reads no answers.
			SendPingTimeout:  timeouts.Idle,
			WriteByteTimeout: timeouts.Idle,
		},
	}
}

// debugLines writes the lines of net/http, which are about single connections.
type debugLines struct{ log zerolog.Logger }

// Write implements io.Writer.
func (d debugLines) Write(line []byte) (int, error) {
	d.log.Debug().Msg(strings.TrimSpace(string(line)))
	return len(line), nil
}

// Run serves until ctx ends or a server fails. The late ports are closed until settled is: to clients of a late listener a
// refused connection means "not ready". With a nil settled they are served at once.
func (s *Servers) Run(ctx context.Context, settled <-chan struct{}) error {
	early := s.ports
	if settled != nil {
		early = s.selectPorts(false)
		s.closeLatePorts() // Bind has shown that they are free
	}
	if err := s.servePorts(early); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return fmt.Errorf("server: %w", err)
		case <-settled:
			settled = nil
			if err := s.servePorts(s.selectPorts(true)); err != nil {
				return err
			}
		}
	}
}

// Drain answers on until a duration has passed or ctx ends. Each answer over HTTP/1 is the last of
// its connection: so clients part before Shutdown closes connections, which could meet a request.
func (s *Servers) Drain(ctx context.Context, d time.Duration) {
	s.draining.Store(true)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Draining reports whether Drain has begun.
func (s *Servers) Draining() bool { return s.draining.Load() }

// closeOnDrain returns a handler that ends connections of HTTP/1 with their next answer while the servers drain. It is the
// outermost handler of a request.
func (s *Servers) closeOnDrain(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Asks(PeerOf(r.Context()))
		if r.ProtoMajor == 1 && s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// answering is how long requests of connections that are open may still come in Shutdown.
const answering = time.Second

// Shutdown takes no more connections, and lets requests in flight end, up to a timeout.
func (s *Servers) Shutdown(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s.draining.Store(true)
	for _, p := range s.ports {
		if p.server != nil {
			p.bound.Close()
		}
	}
	s.busy.awaitEmpty(ctx, min(answering, timeout/2)) // net/http drops requests that it reads from now on
	var ending sync.WaitGroup
	for _, p := range s.ports {
		if p.server == nil {
			continue
		}
		ending.Go(func() {
			// Serve may not have noticed yet that its listener is closed.
			if err := p.server.Shutdown(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
				s.log.Warn().Err(err).Str("address", p.Address).Msg("requests were cut off")
				p.server.Close()
			}
		})
	}
	ending.Wait()
}
