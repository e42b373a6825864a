package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/conductor/telemetry"
)

// Metrics counts the calls of all servers. It is a stats.Handler and a prometheus.Collector.
type Metrics struct {
	calls  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	timing *telemetry.Watch // nil: queries are neither traced nor logged
	// refused counts messages that were not waited for, or not taken, by reason.
	refused *prometheus.CounterVec

	mu      sync.RWMutex
	methods map[string]methodKind // by name; guarded by mu
}

// methodKind is what a method takes and gives.
type methodKind struct {
	stream bool // not one message of each side
	long   bool // the client may send several messages
	brief  bool // between two messages of a long call there is no more time than for one
}

// NewMetrics returns a Metrics. timing traces and logs unary calls of clients that have a role; nil
// does neither.
func NewMetrics(timing *telemetry.Watch) *Metrics {
	return &Metrics{
		timing:  timing,
		methods: make(map[string]methodKind),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_grpc_messages_refused_total",
			Help: "Messages of gRPC that were refused before they had fully arrived, by reason: memory (limits.memory), size " +
				"(limits.max_body), late (a message has 30 s), tiny_frames (they take more memory than the message); unread counts " +
				"streams whose clients took no message for limits.idle_timeout.",
		}, []string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_grpc_requests_total",
			Help: "Calls of gRPC that have ended, by method and code. Methods that the server lacks are not counted.",
		}, []string{"rpc", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "conductor_grpc_request_seconds", Help: "Time from the header of a gRPC call to its answer, by method; without streams.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16),
		}, []string{"rpc"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.calls.Describe(ch)
	m.took.Describe(ch)
	m.refused.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.calls.Collect(ch)
	m.took.Collect(ch)
	m.refused.Collect(ch)
}

// know adds a method of a server.
func (m *Metrics) know(method string, kind methodKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.methods[method] = kind
}

// kindOf returns what a method takes and gives. known reports whether a server has it.
func (m *Metrics) kindOf(method string) (kind methodKind, known bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	kind, known = m.methods[method]
	return kind, known
}

// call is a call in progress. One goroutine uses it at a time.
type call struct {
	method string
	stream bool
	begun  time.Time
	held   func()           // gives back the memory of the answer; nil without
	comes  *arrival         // of its messages
	query  *telemetry.Query // nil: not watched
}

type callKey struct{}

// countRefused counts a call that the tap has refused.
func (m *Metrics) countRefused(method string, code codes.Code) {
	m.calls.WithLabelValues(method, code.String()).Inc()
}

// reserveAnswer reserves memory for an answer until it is sent.
func (m *Metrics) reserveAnswer(ctx context.Context, b *server.Budget, flow string, bytes int) error {
	release, err := b.Reserve(flow, int64(bytes))
	if err != nil {
		return statusOf(err)
	}
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.held = release
	} else {
		release()
	}
	return nil
}

// TagRPC implements stats.Handler.
func (m *Metrics) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	kind, known := m.kindOf(info.FullMethodName)
	c := &call{method: info.FullMethodName, stream: kind.stream, begun: time.Now(), comes: arrivalOf(ctx)}
	ctx = context.WithValue(ctx, callKey{}, c)
	if !known || kind.stream || access.CallerOf(ctx).Open() {
		return ctx
	}
	if c.query = m.timing.BeginCall(ctx, c.method, c.begun); c.query != nil {
		ctx = stage.With(ctx, c.query.Clock)
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (m *Metrics) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	c := ctx.Value(callKey{}).(*call)
	if c.held != nil {
		c.held()
	}
	if c.comes != nil {
		c.comes.close()
	}
	code := status.Code(end.Error)
	m.calls.WithLabelValues(c.method, code.String()).Inc()
	took := time.Since(c.begun).Seconds()
	switch observer := m.took.WithLabelValues; {
	case c.stream:
	case c.query != nil && c.query.Clock.Trace != "":
		observer(c.method).(prometheus.ExemplarObserver).ObserveWithExemplar(took, prometheus.Labels{stage.TraceLabel: c.query.Clock.Trace})
	default:
		observer(c.method).Observe(took)
	}
	if c.query != nil {
		m.timing.End(c.query, int(code))
	}
}

// TagConn implements stats.Handler.
func (m *Metrics) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (m *Metrics) HandleConn(context.Context, stats.ConnStats) {}
