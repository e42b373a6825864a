package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/config"
)

// servers are the HTTP servers of all listeners.
type servers struct {
	limits  config.Limits
	log     zerolog.Logger
	handler func(dialect string) http.Handler // of the dialect at the root
	ports   []port
	failed  chan error
}

// port is one listener.
type port struct {
	config.Listener
	bound  net.Listener // nil while nobody can connect
	server *http.Server // nil until it is served
}

func newServers(all []config.Listener, limits config.Limits, log zerolog.Logger) *servers {
	s := &servers{limits: limits, log: log, failed: make(chan error, len(all))}
	for _, l := range all {
		s.ports = append(s.ports, port{Listener: l})
	}
	return s
}

// bind takes the ports of some dialects that are not bound, or none of them.
func (s *servers) bind(dialects ...string) error {
	var fresh []*port
	for i := range s.ports {
		p := &s.ports[i]
		if p.bound != nil || !slices.Contains(dialects, p.Dialect) {
			continue
		}
		var err error
		if p.bound, err = net.Listen("tcp", p.Address); err != nil {
			p.bound = nil
			for _, b := range fresh {
				b.bound.Close()
				b.bound = nil
			}
			if errors.Is(err, syscall.EADDRINUSE) {
				err = errors.New("the port is in use")
			}
			return fmt.Errorf("cannot listen on %s for the %s dialect: %w", p.Address, p.Dialect, err)
		}
		fresh = append(fresh, p)
	}
	return nil
}

// unbind gives back the ports of some dialects that are bound and not served.
func (s *servers) unbind(dialects ...string) {
	for i := range s.ports {
		p := &s.ports[i]
		if p.bound != nil && p.server == nil && slices.Contains(dialects, p.Dialect) {
			p.bound.Close()
			p.bound = nil
		}
	}
}

// start serves the ports of some dialects.
func (s *servers) start(dialects ...string) error {
	if err := s.bind(dialects...); err != nil {
		return err
	}
	for i := range s.ports {
		p := &s.ports[i]
		if !slices.Contains(dialects, p.Dialect) {
			continue
		}
		p.server = newServer(s.handler(p.Dialect), s.limits)
		s.log.Info().Str("address", p.bound.Addr().String()).Str("dialect", p.Dialect).Msg("listening")
		go func() { s.failed <- p.server.Serve(joinedListener{p.bound}) }()
	}
	return nil
}

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

// newServer serves HTTP/1.1 and, to clients who begin with it, HTTP/2 without TLS.
func newServer(h http.Handler, limits config.Limits) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:     paced(h, limits.IdleTimeout),
		ReadTimeout: limits.ReadTimeout,
		IdleTimeout: limits.IdleTimeout,
		Protocols:   protocols,
		ConnContext: withJoinedConn,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
			// A peer that is gone holds streams whose answers nobody reads.
			SendPingTimeout:  limits.IdleTimeout,
			WriteByteTimeout: limits.IdleTimeout,
		},
	}
}

// run serves until ctx ends or a server fails. Where settling takes time, the ports
// of the Dynamo dialect are closed until settle reports that all is there: to its
// clients, one that refuses is one that is not ready.
func (s *servers) run(ctx context.Context, settle func(context.Context) bool, takesTime bool) error {
	if takesTime {
		s.unbind(config.Dynamo) // it was free a moment ago, that was the question
	}
	if err := s.start(config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2); err != nil {
		return err
	}
	settling, abandon := context.WithCancel(ctx)
	settled := make(chan bool, 1)
	go func() { settled <- settle(settling) }()
	defer func() {
		abandon()
		if settled != nil {
			<-settled
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return fmt.Errorf("HTTP server: %w", err)
		case all := <-settled:
			settled = nil
			if !all {
				return nil // told to stop
			}
			if err := s.start(config.Dynamo); err != nil {
				return err
			}
		}
	}
}

// shutdown lets requests in flight end, up to a timeout.
func (s *servers) shutdown(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, p := range s.ports {
		if p.server == nil {
			continue
		}
		if err := p.server.Shutdown(ctx); err != nil {
			s.log.Warn().Err(err).Msg("requests were cut off")
			p.server.Close()
		}
	}
}
