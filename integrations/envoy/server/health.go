package server

import (
	"context"
	"sync"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// watchEvery is how often a watched status is looked at.
const watchEvery = time.Second

// health answers the gRPC health checking protocol. "liveness" is well as long as the process answers. "readiness", the external
// processor and "", the server as a whole, are well if the picker can choose engines.
type health struct {
	healthpb.UnimplementedHealthServer
	ready    func() bool
	stopping chan struct{}
	once     sync.Once
}

func newHealth(ready func() bool) *health {
	if ready == nil {
		ready = func() bool { return true }
	}
	return &health{ready: ready, stopping: make(chan struct{})}
}

// stop makes the picker unready for good, and ends watches.
func (h *health) stop() { h.once.Do(func() { close(h.stopping) }) }

func (h *health) of(service string) healthpb.HealthCheckResponse_ServingStatus {
	switch service {
	case "liveness":
		return healthpb.HealthCheckResponse_SERVING
	case "", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName:
		select {
		case <-h.stopping:
			return healthpb.HealthCheckResponse_NOT_SERVING
		default:
		}
		if h.ready() {
			return healthpb.HealthCheckResponse_SERVING
		}
		return healthpb.HealthCheckResponse_NOT_SERVING
	default:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
}

func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s := h.of(r.GetService())
	if s == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", r.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: s}, nil
}

func (h *health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	all := map[string]*healthpb.HealthCheckResponse{}
	for _, service := range []string{"", "liveness", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName} {
		all[service] = &healthpb.HealthCheckResponse{Status: h.of(service)}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

func (h *health) Watch(r *healthpb.HealthCheckRequest, to grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	sent := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now := h.of(r.GetService()); now != sent {
			if err := to.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-h.stopping:
			// A graceful stop waits for every stream, so that a watch has to end by itself.
			_ = to.Send(&healthpb.HealthCheckResponse{Status: h.of(r.GetService())})
			return status.Error(codes.Unavailable, "the picker stops")
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		case <-ticker.C:
		}
	}
}
