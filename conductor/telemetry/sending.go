package telemetry

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

var descSpans = prometheus.NewDesc("conductor_trace_spans_total",
	"Spans of traces by what became of them: sent, lost because the queue was full, or failed at the collector.", []string{"result"}, nil)

// sending counts spans on their way to the collector. It lets maxSpans wait and drops more, so that
// the queue of the library, which does not say what it drops, is never full.
type sending struct {
	sdktrace.SpanProcessor // the library's, in batches
	exporter               sdktrace.SpanExporter
	waiting                atomic.Int64
	sent, lost, failed     atomic.Uint64
}

func newSending(exporter sdktrace.SpanExporter) *sending {
	s := &sending{exporter: exporter}
	s.SpanProcessor = sdktrace.NewBatchSpanProcessor(counted{s}, sdktrace.WithMaxQueueSize(maxSpans),
		sdktrace.WithMaxExportBatchSize(maxSpans/4),
		sdktrace.WithBatchTimeout(exportPause), sdktrace.WithExportTimeout(exportTimeout))
	return s
}

// OnEnd implements sdktrace.SpanProcessor. It never waits.
func (s *sending) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if s.waiting.Add(1) > maxSpans {
		s.waiting.Add(-1)
		s.lost.Add(1)
		return
	}
	s.SpanProcessor.OnEnd(span)
}

// counted is the exporter of a sending. It counts what it sends.
type counted struct{ *sending }

// ExportSpans implements sdktrace.SpanExporter.
func (c counted) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	n := len(spans)
	err := c.exporter.ExportSpans(ctx, spans)
	c.waiting.Add(-int64(n))
	if err != nil {
		c.failed.Add(uint64(n))
	} else {
		c.sent.Add(uint64(n))
	}
	return err
}

// Shutdown implements sdktrace.SpanExporter.
func (c counted) Shutdown(ctx context.Context) error { return c.exporter.Shutdown(ctx) }

func (s *sending) collect(ch chan<- prometheus.Metric) {
	for result, n := range map[string]*atomic.Uint64{"sent": &s.sent, "lost": &s.lost, "failed": &s.failed} {
		ch <- prometheus.MustNewConstMetric(descSpans, prometheus.CounterValue, float64(n.Load()), result)
	}
}
