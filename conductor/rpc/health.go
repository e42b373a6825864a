package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthPause is how often a watch of the health looks.
const healthPause = time.Second

// health tells what /ready tells, of the server as a whole and of each of its services.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready    func() bool
	services func() map[string]grpc.ServiceInfo
	stopping <-chan struct{}

	mu   sync.Mutex
	at   time.Time                                        // of last; guarded by mu
	last grpc_health_v1.HealthCheckResponse_ServingStatus // that watches see; guarded by mu
}

// state returns whether the server is ready.
func (h *health) state() grpc_health_v1.HealthCheckResponse_ServingStatus {
	select {
	case <-h.stopping:
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	default:
	}
	if h.ready == nil || h.ready() {
		return grpc_health_v1.HealthCheckResponse_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING
}

// watched is state for watches, however many there are: looked up twice in a pause.
func (h *health) watched() grpc_health_v1.HealthCheckResponse_ServingStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > healthPause/2 {
		h.at, h.last = time.Now(), h.state()
	}
	return h.last
}

// knows reports whether there is a service; "" is the server.
func (h *health) knows(service string) bool {
	_, known := h.services()[service]
	return known || service == ""
}

// Check implements grpc_health_v1.HealthServer.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if !h.knows(r.Service) {
		return nil, status.Error(codes.NotFound, "there is no such service")
	}
	return &grpc_health_v1.HealthCheckResponse{Status: h.state()}, nil
}

// List implements grpc_health_v1.HealthServer.
func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	all, now := make(map[string]*grpc_health_v1.HealthCheckResponse), h.state()
	all[""] = &grpc_health_v1.HealthCheckResponse{Status: now}
	for name := range h.services() {
		all[name] = &grpc_health_v1.HealthCheckResponse{Status: now}
	}
	return &grpc_health_v1.HealthListResponse{Statuses: all}, nil
}

// Watch implements grpc_health_v1.HealthServer.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	pace := time.NewTicker(healthPause)
	defer pace.Stop()
	told := grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		now := grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
		if h.knows(r.Service) {
			now = h.watched()
		}
		if now != told {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-pace.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-h.stopping:
			return errStopping
		}
	}
}
