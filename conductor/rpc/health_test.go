package rpc

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthWatch is an open watch of the health.
type healthWatch struct {
	grpc.ServerStream
	ctx  context.Context
	end  context.CancelFunc
	mu   sync.Mutex
	seen []string // guarded by mu
	err  error    // of a watch that has ended; guarded by mu
}

func (w *healthWatch) Context() context.Context { return w.ctx }

func (w *healthWatch) Send(m *grpc_health_v1.HealthCheckResponse) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, m.Status.String())
	return nil
}

// state returns what the client of a watch has seen, and the code of its end.
func (w *healthWatch) state() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(strings.Join(w.seen, " "), " ", status.Code(w.err))
}

// watchHealth opens a watch of a client.
func watchHealth(h *health, flow, service string) *healthWatch {
	w := new(healthWatch)
	w.ctx, w.end = context.WithCancel(context.Background())
	w.ctx = &arrival{Context: w.ctx, flow: flow}
	go func() {
		err := h.Watch(&grpc_health_v1.HealthCheckRequest{Service: service}, w)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}()
	synctest.Wait()
	return w
}

// TestHealthWatches holds that watches see each change within a pause, that one client has a quarter of them, and that one
// look a pause is for all.
func TestHealthWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ready atomic.Bool
		var looks atomic.Int64
		stopping := make(chan struct{})
		services := map[string]grpc.ServiceInfo{"known": {}}
		h := newHealth(func() bool { looks.Add(1); return ready.Load() }, func() map[string]grpc.ServiceInfo { return services }, stopping)
		var all []*healthWatch
		for range quarter(maxHealthWatches) {
			all = append(all, watchHealth(h, "a", "known"))
		}
		if got := watchHealth(h, "a", "").state(); got != " ResourceExhausted" {
			t.Errorf("one more: %q", got)
		}
		other, unknown := watchHealth(h, "b", ""), watchHealth(h, "b", "unknown")
		ready.Store(true)
		looks.Store(0)
		time.Sleep(10 * healthPause)
		if n := looks.Load(); n < 9 || n > 11 {
			t.Errorf("the server was looked at %d times in %s", n, 10*healthPause)
		}
		if got := all[0].state() + "," + other.state() + "," + unknown.state(); got != "NOT_SERVING SERVING OK,NOT_SERVING SERVING OK,"+
			"SERVICE_UNKNOWN OK" {
			t.Errorf("after a change: %q", got)
		}
		all[0].end()
		if got := all[0].state(); !strings.HasSuffix(got, codes.Canceled.String()) && !strings.HasSuffix(got, codes.Unknown.String()) {
			t.Errorf("a watch whose client has left: %q", got)
		}
		if got := watchHealth(h, "a", "").state(); got != "SERVING OK" {
			t.Errorf("in its place: %q", got)
		}
		close(stopping)
		if got := other.state(); !strings.HasSuffix(got, "Unknown") { // the server makes it UNAVAILABLE
			t.Errorf("a watch of a server that leaves: %q", got)
		}
	})
}
