package check

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestSecondPicker kills one of two pickers: the other one is asked about all requests, also before a health check has found out. Without
// retry_policy half of them would go without a picker until then, and fail in full duplex, where Envoy cannot go on without an answer.
func TestSecondPicker(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			const elsewhere = "203.0.113.1:1"
			other := &env{t: t, picker: &picker{flights: map[string]*flight{}}}
			other.picker.follow(to(elsewhere))
			other.ready.Store(true)
			other.startPicker(settings{})
			e := start(t, v, settings{edit: func(b bootstrap) {
				endpoint := at(b.cluster("picker"), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint")
				port := at(endpoint, "address", "socket_address", "port_value")
				b.setEndpoints("picker", fmt.Sprintf("127.0.0.1:%d", port), other.address)
				check := at(b.cluster("picker"), "health_checks", 0).(map[string]any)
				check["interval"], check["no_traffic_interval"] = "600s", "600s"
			}})
			named := func() string { // the endpoint of the picker that was asked, "" for none
				a, path := e.post("{}")
				if a.status != http.StatusOK {
					t.Fatalf("answer %s", a)
				}
				for _, engine := range []*engine{e.a, e.b} {
					if got := engine.got(path); got != nil {
						return got.header.Get("X-Gateway-Destination-Endpoint")
					}
				}
				return ""
			}
			until(t, func() string {
				if a, b := named(), named(); min(a, b) != min(e.a.address, elsewhere) || max(a, b) != max(e.a.address, elsewhere) {
					return fmt.Sprintf("the pickers named %q and %q", a, b)
				}
				return ""
			})
			other.stop()
			asked := 0
			for range 40 {
				if named() == e.a.address {
					asked++
				}
			}
			if asked < 40 {
				t.Errorf("the picker was asked about %d of 40 requests", asked)
			}
		})
	}
}

// TestIdleConnections holds that Envoy closes connections to engines before these do, because a request that an engine gets at that
// moment is lost.
func TestIdleConnections(t *testing.T) {
	e := start(t, variants[0], settings{})
	a, _ := e.post("{}")
	wantServed(t, a, e.a)
	until(t, func() string {
		stats, err := e.fromAdmin("/stats?filter=cluster.engines.upstream_cx_idle_timeout")
		if err != nil {
			return err.Error()
		}
		if stats != "cluster.engines.upstream_cx_idle_timeout: 1\n" {
			return "Envoy has not closed the connection: " + stats
		}
		return ""
	})
}

// TestDeadEngineWithoutPicker holds that Envoy alone finds the engine that lives, although the dead one has fewer requests and is
// balanced to first.
func TestDeadEngineWithoutPicker(t *testing.T) {
	e := start(t, variants[0], settings{edit: func(b bootstrap) { delete(b.cluster("engines"), "outlier_detection") }})
	e.ready.Store(false)
	e.stop()
	e.b.kill()
	ctx, leave := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	defer hanging.Wait()
	defer leave()
	for range 4 {
		hanging.Go(func() { e.do(e.newRequest(ctx, e.path(), strings.NewReader("{}"), "X-Sim", "hang")) })
	}
	until(t, func() string { return wantZero(4 - e.a.hanging.Load()) })
	failed := 0
	for range 200 {
		if a, _ := e.post("{}"); a.status != http.StatusOK {
			failed++
		}
	}
	if failed > 0 {
		t.Errorf("%d of 200 requests failed", failed)
	}
}

func wantZero(n int64) string {
	if n != 0 {
		return fmt.Sprintf("%d requests are missing", n)
	}
	return ""
}
