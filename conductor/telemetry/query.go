package telemetry

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
)

// inquiry is a query as its transport has it.
type inquiry struct {
	verb          string // of HTTP; "" for a call of gRPC
	route         string // path of the router, or /package.Service/Method
	parent, state string // traceparent and tracestate of the caller
	start         time.Time
}

// spanName returns the name of the server span: verb and path, or Service/Method.
func (q *inquiry) spanName() string {
	if q.verb == "" {
		return strings.TrimPrefix(q.route, "/")
	}
	return q.verb + " " + q.route
}

// Query is a query with a clock.
type Query struct {
	inquiry
	Clock *stage.Clock
	span  span // the zero value: not sampled
}

// beginQuery gives a query a clock if a trace or the log of slow queries needs one. Else it returns nil.
func (w *Watch) beginQuery(ctx context.Context, of inquiry) *Query {
	span := w.tracer.start(ctx, &of)
	if !span.sampled() && w.slow.least.Load() == 0 {
		return nil
	}
	start := of.start
	q := &Query{inquiry: of, span: span, Clock: stage.Start(func() time.Duration { return time.Since(start) })}
	if span.sampled() {
		q.Clock.Trace = span.SpanContext().TraceID().String()
	}
	return q
}

// End sends the spans of a query, and logs it if it was slow. status is one of HTTP, or a code of
// gRPC.
func (w *Watch) End(q *Query, status int) {
	parts, took := q.Clock.End()
	if q.span.sampled() {
		q.span.endSpan(q, &parts, took, status)
	}
	w.slow.logIfSlow(q, &parts, took, status)
}

// beginRequest is beginQuery for a request over HTTP.
func (w *Watch) beginRequest(g *gin.Context, r *route, start time.Time) *Query {
	of := inquiry{verb: g.Request.Method, route: r.path, start: start}
	if w.tracer != nil {
		of.parent, of.state = g.Request.Header.Get("Traceparent"), g.Request.Header.Get("Tracestate")
	}
	q := w.beginQuery(g.Request.Context(), of)
	if q != nil {
		g.Set(server.ClockKey, q.Clock)
	}
	return q
}

// BeginCall is beginQuery for a call of gRPC, whose metadata ctx has. A nil Watch watches no call.
func (w *Watch) BeginCall(ctx context.Context, method string, start time.Time) *Query {
	if w == nil {
		return nil
	}
	of := inquiry{route: method, start: start}
	if w.tracer != nil {
		of.parent, of.state = firstOf(ctx, "traceparent"), firstOf(ctx, "tracestate")
	}
	return w.beginQuery(ctx, of)
}

// firstOf returns the first value of metadata, "" if there is none.
func firstOf(ctx context.Context, name string) string {
	if all := metadata.ValueFromIncomingContext(ctx, name); len(all) > 0 {
		return all[0]
	}
	return ""
}

// attributes returns what a span says of the transport, by the names of OpenTelemetry.
func (q *Query) attributes(status int) []attribute.KeyValue {
	if q.verb == "" {
		service, method, _ := strings.Cut(q.spanName(), "/")
		return []attribute.KeyValue{
			attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", method),
			attribute.Int("rpc.grpc.status_code", status),
		}
	}
	return []attribute.KeyValue{attribute.String("http.route", q.route), attribute.Int("http.response.status_code", status)}
}

// failure returns why a query is an error of the server, "" if it is none.
func (q *Query) failure(status int) string {
	if q.verb != "" {
		if status < http.StatusInternalServerError {
			return ""
		}
		return http.StatusText(status)
	}
	switch code := grpccodes.Code(status); code {
	case grpccodes.Unknown, grpccodes.DeadlineExceeded, grpccodes.Unimplemented, grpccodes.Internal, grpccodes.Unavailable,
		grpccodes.DataLoss:
		return code.String()
	}
	return ""
}
