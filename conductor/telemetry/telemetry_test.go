package telemetry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"example.com/conductor/internal/must"
)

// stuck is an exporter whose collector never answers.
type stuck struct{ until chan struct{} }

func (e stuck) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	select {
	case <-e.until:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (stuck) Shutdown(context.Context) error { return nil }

// TestSpansBeyondBoundAreLost ends more spans than may wait, while the collector is stuck: none of
// them waits for it, and each beyond the bound counts.
func TestSpansBeyondBoundAreLost(t *testing.T) {
	e := stuck{make(chan struct{})}
	s := newSending(e)
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s)).Tracer("")
	for range maxSpans + 100 {
		_, span := tracer.Start(context.Background(), "x")
		span.End()
	}
	if n := s.lost.Load(); n != 100 {
		t.Errorf("%d spans lost, want 100", n)
	}
	close(e.until)
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if n := s.sent.Load() + s.failed.Load(); n != maxSpans {
		t.Errorf("%d spans sent, want %d", n, maxSpans)
	}
}

// TestRedirectsAreNotFollowed lets the collector send spans elsewhere: nobody but itself gets them, or the credentials.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server is sent spans, with the key %q", r.Header.Get("X-Api-Key"))
	}))
	defer elsewhere.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		asked := false
		collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get("X-Api-Key") == "secret"
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		}))
		headers := map[string]string{"X-Api-Key": "secret"}
		tracer, err := NewTracer(TracerConfig{Endpoint: collector.URL, Headers: headers, Log: zerolog.Nop()})
		must.Succeed(t, err)
		_, span := tracer.tracer.Start(context.Background(), "x")
		span.End()
		if err := tracer.Close(context.Background()); !asked {
			t.Errorf("the collector was not asked: %v", err)
		}
		if n := tracer.sending.failed.Load(); n != 1 {
			t.Errorf("%d spans count as failed, want 1", n)
		}
		collector.Close()
	}
}

// TestSampling holds which queries are traced: the caller decides, else the ratio.
func TestSampling(t *testing.T) {
	const id = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	f := func(header string, sample float64, want bool) {
		t.Helper()
		if _, got := (&Tracer{sample: sample}).sampled(t.Context(), &inquiry{parent: header}); got != want {
			t.Errorf("%q at %v: %t", header, sample, got)
		}
	}
	f("", 0, false)
	f("", 1, true)
	f(id+"01", 0, true)
	f(id+"00", 1, false)
	f("nonsense", 0, false)
	f("nonsense", 1, true)
	f("00-00000000000000000000000000000000-00f067aa0ba902b7-01", 0, false)
}

// TestSlowLogIsBounded observes slow queries at one moment.
func TestSlowLogIsBounded(t *testing.T) {
	var lines counter
	w := New(nil, zerolog.New(&lines))
	w.SetSlow(time.Millisecond)
	q := w.beginQuery(t.Context(), inquiry{verb: http.MethodPost, route: "/query", start: time.Now()})
	parts, _ := q.Clock.End()
	for range 100 {
		w.slow.logIfSlow(q, &parts, time.Millisecond, http.StatusOK)
		w.slow.logIfSlow(q, &parts, time.Millisecond-1, http.StatusOK)
	}
	if lines != slowBurst {
		t.Errorf("%d lines, want %d", lines, slowBurst)
	}
}

// counter counts writes.
type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c++
	return len(b), nil
}
