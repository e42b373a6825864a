package telemetry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/redact"
)

// TracerConfig says where traces go.
type TracerConfig struct {
	// Endpoint is the URL of a collector that takes OTLP over HTTP. A URL without a path means
	// the usual one, /v1/traces.
	Endpoint string
	// Sample is the part of the queries that have a trace, 0 to 1. A query with a traceparent is
	// traced if and only if the caller's span is sampled.
	Sample float64
	// Headers go to the collector with each batch, such as its credentials.
	Headers map[string]string
	// Version is that of the server.
	Version string
	Log     zerolog.Logger
}

const (
	// maxSpans bounds the spans that wait for the collector: some 4 MB, and 20 s of 1 % of 1,400
	// queries a second.
	maxSpans = 2048
	// exportPause is how long spans wait for others to be sent with them.
	exportPause = 2 * time.Second
	// exportTimeout bounds one attempt to send a batch, its repetitions included.
	exportTimeout = 5 * time.Second
)

// retries are those of a batch, for as long as exportTimeout lets them.
var retries = otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second / 2, MaxInterval: 2 * time.Second,
	MaxElapsedTime: exportTimeout}

// Tracer makes the spans of queries and sends them. A nil Tracer samples nothing.
type Tracer struct {
	tracer   trace.Tracer
	provider *sdktrace.TracerProvider
	sample   float64
	sending  *sending
}

// handled is how errors of the OpenTelemetry library reach the log: its handler is one for the
// process.
var handled sync.Once

// NewTracer starts to send spans to a collector. It does not ask whether one is there.
func NewTracer(c TracerConfig) (*Tracer, error) {
	to, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, redact.Error(err)
	}
	if to.Path == "" || to.Path == "/" {
		to.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(to.String()),
		otlptracehttp.WithHeaders(c.Headers), otlptracehttp.WithRetry(retries), otlptracehttp.WithHTTPClient(&http.Client{
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			Timeout:   exportTimeout,
			// The headers are for the collector alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}))
	if err != nil {
		return nil, err
	}
	handled.Do(func() {
		lines := bounds.NewRates(1/time.Minute.Seconds(), 1)
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			if lines.Spend("", 1, time.Now()) == nil {
				c.Log.Warn().Err(redact.Error(err)).Msg("traces do not reach the collector")
			}
		}))
	})
	t := &Tracer{sample: c.Sample, sending: newSending(exporter)}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // sampled has decided
		sdktrace.WithSpanProcessor(t.sending),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "conductor"),
			attribute.String("service.version", c.Version))),
	)
	t.tracer = t.provider.Tracer("kvconductor")
	return t, nil
}

// Close sends what waits, for at most as long as ctx lasts. Later spans are lost.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("the last traces did not reach the collector: %w", redact.Error(err))
	}
	return nil
}

// span is that of one query, with the context that its stages hang from.
type span struct {
	trace.Span
	ctx    context.Context
	tracer *Tracer
}

func (s *span) sampled() bool { return s.tracer != nil }

// start begins the span of a query, or returns the zero value if it is not sampled.
func (t *Tracer) start(ctx context.Context, q *inquiry) span {
	if t == nil {
		return span{}
	}
	ctx, sampled := t.sampled(ctx, q)
	if !sampled {
		return span{}
	}
	ctx, s := t.tracer.Start(ctx, q.spanName(), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(q.start))
	return span{s, ctx, t}
}

// sampled reports whether a query is traced, and returns a context with the caller's span if there
// is one. It costs queries that are not traced no allocation, as the library would.
func (t *Tracer) sampled(ctx context.Context, q *inquiry) (context.Context, bool) {
	if q.parent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": q.parent, "tracestate": q.state})
		if caller := trace.SpanContextFromContext(ctx); caller.IsValid() {
			return ctx, caller.IsSampled()
		}
	}
	return ctx, rand.Float64() < t.sample
}

// endSpan ends the span, with one span below it for each stage.
func (s *span) endSpan(q *Query, parts *[stage.Count]stage.Part, took time.Duration, status int) {
	for i := range stage.Count {
		if p := &parts[i]; p.Entered {
			_, child := s.tracer.tracer.Start(s.ctx, i.String(), trace.WithTimestamp(q.start.Add(p.From)))
			child.End(trace.WithTimestamp(q.start.Add(p.From + p.Spent)))
		}
	}
	s.SetAttributes(q.attributes(status)...)
	s.SetAttributes(
		attribute.String("conductor.tenant", q.Clock.Tenant), attribute.String("conductor.model", q.Clock.Model),
		attribute.Int("conductor.queries", q.Clock.Queries), attribute.Int("conductor.tokens", q.Clock.Tokens),
	)
	if text := q.failure(status); text != "" {
		s.SetStatus(codes.Error, text)
	}
	s.End(trace.WithTimestamp(q.start.Add(took)))
}
