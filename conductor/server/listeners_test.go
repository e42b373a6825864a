package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/internal/must"
)

// TestLatePortKeepsItsAddress binds a late listener whose port the system chooses. Others know its
// address before it is served: it refuses connections until everything is settled, no one
// else gets it meanwhile, and it is served there afterwards.
func TestLatePortKeepsItsAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0", "localhost:0"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			s := NewServers([]Listener{{Address: address, Dialect: "late", Late: true}}, Timeouts{Read: time.Minute, Idle: time.Minute}, zerolog.Nop())
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
			settling, settled := make(chan bool), make(chan bool)
			go func() {
				served <- s.Run(ctx, func(context.Context) bool { settling <- true; return <-settled }, true)
			}()
			<-settling
			if c, err := net.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("before everything is settled: %v %v", c, err)
			}
			if l, err := net.Listen("tcp", at); err == nil {
				l.Close()
				t.Error("another one gets the port")
			}
			settled <- true
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
