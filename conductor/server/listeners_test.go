package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/proctest"
)

// TestLatePortKeepsItsAddress binds a late listener whose port the system chooses. Others know its
// address before it is served: it refuses connections until everything is settled, no one
// else gets it meanwhile, and it is served there afterwards.
func TestLatePortKeepsItsAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0", "localhost:0"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			s := NewServers([]Listener{{Address: address, Dialect: "late", Late: true}}, Timeouts{Read: time.Minute, Idle: time.Minute},
				zerolog.Nop())
			if err := s.Bind(); err != nil && address == "[::1]:0" {
				must.Skip(t, "no IPv6: "+err.Error())
			} else {
				must.Succeed(t, err)
			}
			defer s.Unbind()
			s.Handler = func(string) http.Handler { return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}) }
			at := s.Address(0)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			served := make(chan error, 1)
			settled := make(chan struct{})
			go func() { served <- s.Run(ctx, settled) }()
			proctest.Eventually(t, "the port stays open", func() (string, bool) { // until Run has closed it
				c, err := net.Dial("tcp", at)
				if err == nil {
					c.Close()
				}
				return fmt.Sprint(err), errors.Is(err, syscall.ECONNREFUSED)
			})
			if l, err := net.Listen("tcp", at); err == nil {
				l.Close()
				t.Error("another one gets the port")
			}
			close(settled)
			client := &http.Client{Transport: new(http.Transport)}
			defer client.CloseIdleConnections()
			for answered := false; !answered && t.Context().Err() == nil; {
				resp, err := client.Get("http://" + at)
				if answered = err == nil; answered {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				} else if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Fatal(err)
				}
				select {
				case err := <-served:
					t.Fatalf("the server ended: %v", err)
				case <-time.After(time.Millisecond):
				}
			}
			stop()
			must.Succeed(t, <-served)
			s.Shutdown(time.Second)
		})
	}
}

// TestQuietShutdown holds that the end of a server without requests tells of none that were cut off,
// whether its listener has noticed that it is closed or not.
func TestQuietShutdown(t *testing.T) {
	t.Parallel()
	for range 200 {
		log := new(bytes.Buffer)
		s := NewServers([]Listener{{Address: "127.0.0.1:0", Dialect: "d"}}, Timeouts{Read: time.Minute, Idle: time.Minute},
			zerolog.New(log).Level(zerolog.WarnLevel))
		must.Succeed(t, s.Bind())
		s.Handler = func(string) http.Handler { return http.NotFoundHandler() }
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Run(ctx, nil) }()
		resp, err := http.Get("http://" + s.Address(0)) // Serve has its listener
		must.Succeed(t, err)
		resp.Body.Close()
		stop()
		must.Succeed(t, <-served)
		s.Shutdown(time.Minute)
		if log.Len() > 0 {
			t.Fatalf("the log has %s", log)
		}
	}
}
