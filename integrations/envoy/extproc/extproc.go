// Package extproc speaks the Endpoint Picker Protocol 1.0 of the Gateway API Inference Extension: it is an external processor
// (ext_proc) that tells Envoy, or a gateway that speaks the same protocol, which engine a request goes to.
//
// The data plane opens one gRPC stream for each HTTP request and sends what comes by: headers, body and trailers of the request,
// then those of the response. One goroutine reads the stream and answers, in this order:
//
//	              FULL_DUPLEX_STREAMED            BUFFERED
//	headers    -> hold                            -> continue, without headers that only the picker may set
//	body       -> hold, up to Options.MaxBody     -> pick; endpoint
//	last piece -> pick; endpoint, then the body
//	trailers   -> pass on                         -> pass on
//	response   -> pass on, and tell the Flight what came
//
// A request without a body is picked for at its headers, and in FULL_DUPLEX_STREAMED so is one for another protocol, such as WebSocket.
//
// The modes of request and response come from ProtocolConfiguration in the stream's first message; a data plane that sends none is taken
// to use FULL_DUPLEX_STREAMED, which the protocol demands. The response may have any mode but GRPC. In NONE its headers count as the
// first token, because nothing after them is seen.
//
// A stream holds its request's body, at most Options.MaxBody, until the engine is chosen, and 2 KiB of its response. What all streams
// hold together is bounded by Options.MaxHeld. A larger body is passed on as it comes, and of it only the model is read.
package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/conductor/integrations/envoy/guard"
	"example.com/conductor/integrations/envoy/pick"
)

// Names of the Endpoint Picker Protocol.
const (
	EndpointHeader  = "x-gateway-destination-endpoint" // header of the request, and key of the metadata
	subsetKey       = EndpointHeader + "-subset"
	servedKey       = EndpointHeader + "-served"
	metadataNS      = "envoy.lb"
	subsetNS        = "envoy.lb.subset_hint"
	WhyHeader       = "x-conductor-picker"       // header of the response that says how the engine was chosen
	DebugHeader     = "x-conductor-picker-debug" // header of the request that asks for it with "1"
	requestIDHeader = "x-request-id"
)

// OwnHeaders are removed from requests, because engines and the data plane act on them and only the picker may set them.
var OwnHeaders = []string{
	EndpointHeader, subsetKey, servedKey, WhyHeader, DebugHeader,
	"x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports",
	"x-data-parallel-host-port", "x-data-parallel-rank",
}

// Options are how a Server works. The zero value of a field takes its default.
type Options struct {
	// MaxBody is how many bytes of a request's body are read to choose its engine, 8 MiB by default. The engine of a larger body is
	// chosen without it.
	MaxBody int
	// MaxHeld bounds the bytes that all streams hold of requests' bodies together, 1 GiB by default. A request that would go beyond is
	// treated as if its body were larger than MaxBody.
	MaxHeld int64
	// OwnHeaders are removed from requests, beside those that this package knows.
	OwnHeaders []string
	// Debug lets clients ask how an engine was chosen.
	Debug bool

	Log      zerolog.Logger
	Tracer   trace.Tracer          // none by default
	Registry prometheus.Registerer // of metrics; none by default
}

// Server is the gRPC service envoy.service.ext_proc.v3.ExternalProcessor.
type Server struct {
	extproc.UnimplementedExternalProcessorServer
	o       Options
	picker  pick.Picker
	own     map[string]bool // lower-case names of headers that only the picker may set
	metrics *metrics

	streams  atomic.Int64
	held     atomic.Int64 // bytes of bodies that wait for their engine
	lastLine atomic.Int64 // second of the last decision that was logged
}

// New returns a Server that asks picker where requests go.
func New(picker pick.Picker, o Options) *Server {
	if o.MaxBody == 0 {
		o.MaxBody = 8 << 20
	}
	if o.MaxHeld == 0 {
		o.MaxHeld = 1 << 30
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	s := &Server{o: o, picker: picker, own: map[string]bool{}}
	s.metrics = newMetrics(o.Registry, &s.streams, &s.held)
	for _, name := range append(OwnHeaders, o.OwnHeaders...) {
		s.own[strings.ToLower(name)] = true
	}
	return s
}

// errRefused ends a stream in which the picker has sent the client an answer of its own.
var errRefused = errors.New("refused")

// Process handles one HTTP request, from its headers until the response has ended or somebody left.
func (s *Server) Process(rpc extproc.ExternalProcessor_ProcessServer) (err error) {
	s.streams.Add(1)
	defer s.streams.Add(-1)
	// One request must not take the others with it.
	defer func() {
		if p := (*guard.Panic)(nil); errors.As(err, &p) {
			s.metrics.panics.Inc()
			s.o.Log.Error().Interface("panic", p.Value).Bytes("stack", p.Stack).Msg("a request's stream has failed, others go on")
			err = status.Error(codes.Internal, "the picker failed")
		}
	}()
	defer guard.Recover(&err)
	x := &stream{server: s, rpc: rpc}
	defer x.end()
	for {
		m, err := rpc.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = x.handle(m)
		}
		switch {
		case err == nil:
		case errors.Is(err, errRefused):
			return nil
		case rpc.Context().Err() != nil:
			return status.FromContextError(rpc.Context().Err()).Err()
		default:
			return err
		}
	}
}

// logDue reports whether the next decision is to be logged, which is so once a second.
func (s *Server) logDue(now time.Time) bool {
	last := s.lastLine.Load()
	return now.Unix() != last && s.lastLine.CompareAndSwap(last, now.Unix())
}

// outcomeOf names how Pick ended, for metrics.
func outcomeOf(ctx context.Context, err error) string {
	var refusal *pick.Refusal
	switch {
	case err == nil:
		return "picked"
	case errors.As(err, &refusal):
		return fmt.Sprintf("refused_%d", refusal.Status)
	case ctx.Err() != nil:
		return "canceled"
	default:
		return "failed"
	}
}

// metrics are what the server counts.
type metrics struct {
	requests  *prometheus.CounterVec
	unread    prometheus.Counter
	panics    prometheus.Counter
	pickTimes prometheus.Histogram
}

func newMetrics(to prometheus.Registerer, streams, held *atomic.Int64) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_picker_streams_total",
			Help: "Requests by what the picker answered: picked, refused_<status>, canceled, failed.",
		}, []string{"outcome"}),
		unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conductor_picker_unread_bodies_total",
			Help: "Requests whose engine was chosen without their body, because it was larger than a bound.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conductor_picker_panics_total",
			Help: "Requests that failed because of a defect in the picker.",
		}),
		pickTimes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "conductor_picker_pick_seconds",
			Help:    "Time to choose an engine, once the request is complete.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
		}),
	}
	if to != nil {
		to.MustRegister(m.requests, m.unread, m.panics, m.pickTimes,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "conductor_picker_open_streams", Help: "Requests under way, until the end of their response.",
			}, func() float64 { return float64(streams.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "conductor_picker_held_bytes", Help: "Bytes of requests' bodies that are held until their engine is chosen.",
			}, func() float64 { return float64(held.Load()) }))
	}
	return m
}
