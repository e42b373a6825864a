package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitingDial holds how long the first connection waits for a server, that it says so, and that
// later ones do not wait.
func TestWaitingDial(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unknown := &net.DNSError{Name: "nowhere", IsNotFound: true}
	f := func(listensAfter time.Duration, otherwise error, wantErr error, wantTook time.Duration, wantTold int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var told []string
			p := &patience{within: 10 * time.Second, tell: func(address string) { told = append(told, address) }}
			dial := p.waitingDial(func(context.Context, string, string) (net.Conn, error) {
				if time.Since(began) >= listensAfter {
					return nil, nil
				}
				return nil, otherwise
			})
			_, err := dial(t.Context(), "tcp", "127.0.0.1:13333")
			if took := time.Since(began); !errors.Is(err, wantErr) || took != wantTook || len(told) != wantTold ||
				slices.ContainsFunc(told, func(at string) bool { return at != "127.0.0.1:13333" }) {
				t.Errorf("listens after %s: %v after %s, told %q", listensAfter, err, took, told)
			}
			listensAfter, began = time.Hour, time.Now()
			if _, err := dial(t.Context(), "tcp", "127.0.0.1:13333"); err == nil || time.Since(began) != 0 {
				t.Errorf("listens after %s: the next connection: %v after %s", listensAfter, err, time.Since(began))
			}
		})
	}
	f(0, refused, nil, 0, 0)
	f(3*time.Second, refused, nil, 3*time.Second, 1)
	f(time.Hour, refused, refused, 10*time.Second, 1)
	f(time.Hour, unknown, unknown, 0, 0)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := &patience{within: time.Hour, tell: func(string) {}}
		began := time.Now()
		_, err := p.waitingDial(func(context.Context, string, string) (net.Conn, error) { return nil, refused })(ctx, "tcp", "a:1")
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) != time.Second {
			t.Errorf("interrupted: %v after %s", err, time.Since(began))
		}
	})
}
