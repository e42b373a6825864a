package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"example.com/conductor/bounds"
)

// healthPause lies between two looks at the health for those who watch it.
const healthPause = time.Second

// maxHealthWatches is how many watches of the health are open at once over all connections, because anybody may open them. One
// client has a quarter of them: a load balancer holds one for each of its connections.
const maxHealthWatches = 4096

// errTooManyHealthWatches refuses a watch beyond maxHealthWatches, or a quarter of it for one client.
var errTooManyHealthWatches = status.Error(codes.ResourceExhausted, "too many open watches of the health")

// health tells what /ready tells, of the server as a whole and of each of its services.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready    func() bool
	services func() map[string]grpc.ServiceInfo
	stopping <-chan struct{}
	watches  *bounds.Slots

	mu      sync.Mutex
	open    int                                              // watches; guarded by mu
	looking bool                                             // look runs; guarded by mu
	last    grpc_health_v1.HealthCheckResponse_ServingStatus // that watches see; guarded by mu
	changed chan struct{}                                    // closed when last changes; guarded by mu
}

func newHealth(ready func() bool, services func() map[string]grpc.ServiceInfo, stopping <-chan struct{}) *health {
	return &health{ready: ready, services: services, stopping: stopping, changed: make(chan struct{}),
		watches: bounds.NewSlots(maxHealthWatches, quarter(maxHealthWatches))}
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

// look looks at the state for all watches, until none is open.
func (h *health) look() {
	pace := time.NewTicker(healthPause)
	defer pace.Stop()
	for h.update() {
		select {
		case <-pace.C:
		case <-h.stopping:
			return
		}
	}
}

// update tells watches of a change. It reports false if there are none.
func (h *health) update() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looking = h.open > 0; !h.looking {
		return false
	}
	if now := h.state(); now != h.last {
		h.last = now
		close(h.changed)
		h.changed = make(chan struct{})
	}
	return true
}

// enterWatch counts a watch. The first one sets look going.
func (h *health) enterWatch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open++; !h.looking {
		h.looking, h.last = true, h.state()
		go h.look()
	}
}

func (h *health) leaveWatch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// watched returns the state that watches see, and what is closed when it changes.
func (h *health) watched() (grpc_health_v1.HealthCheckResponse_ServingStatus, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last, h.changed
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
	flow := bounds.Flow{Name: arrivalOf(stream.Context()).flow}
	if h.watches.TryEnter(flow) != nil {
		return errTooManyHealthWatches
	}
	defer h.watches.Leave(flow)
	h.enterWatch()
	defer h.leaveWatch()
	known, told := h.knows(r.Service), grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		now, changed := h.watched()
		if !known {
			now, changed = grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN, nil
		}
		if now != told {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-h.stopping:
			return errStopping
		}
	}
}
