package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/memory"
	"example.com/conductor/internal/must"
)

// joined is a transport whose publishers are connected and say nothing.
type joined struct{}

func (joined) Subscribe(ctx context.Context, _ string) (stream.Subscription, error) {
	return quiet{ctx.Done()}, nil
}

func (joined) Replay(ctx context.Context, _ string, _ uint64) (stream.Subscription, error) {
	return quiet{ctx.Done()}, nil
}

type quiet struct{ closed <-chan struct{} }

func (q quiet) Recv() (payload.Message, error) {
	<-q.closed
	return payload.Message{}, errors.New("closed")
}

func (quiet) Close() error { return nil }

// BenchmarkScrape makes the answer of /metrics for fleets of eight ranks an instance, with the size in
// bytes and in series.
func BenchmarkScrape(b *testing.B) {
	for _, n := range []int{200, 2_000, 10_000} {
		c := conductor.New(conductor.Options{HashSeed: 1337, MaxSources: n, Log: zerolog.Nop(), Stream: stream.Config{Transport: joined{}}})
		for i := range n {
			must.Succeed(b, c.Register(registration.Registration{
				Endpoint: fmt.Sprintf("tcp://engine-%d:%d", i/8, 5557+i%8), Type: registration.TypeVLLM, Model: "llama",
				Instance: fmt.Sprintf("prefill-%d", i/8), BlockSize: 16, Rank: i % 8,
			}, ingest.RegisterOptions{Static: true, AnyEndpoint: true}))
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(c.Meter(), c.FeedbackTable(),
			c.Meter().ExpectedCollector(), c.Meter().AgesCollector(), memory.Collector{Meter: c.Meter()},
			dynamo.New(dynamo.Config{Conductor: c}))
		handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
		for _, mode := range scrapeModes {
			b.Run(fmt.Sprintf("sources=%d/%s", n, mode.name), func(b *testing.B) {
				mode.set(c)
				b.ReportAllocs()
				size, series := 0, 0
				for b.Loop() {
					rec := httptest.NewRecorder()
					handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
					size = rec.Body.Len()
				}
				families, err := registry.Gather()
				must.Succeed(b, err)
				for _, f := range families {
					series += len(f.Metric)
				}
				b.ReportMetric(float64(size), "B/scrape")
				b.ReportMetric(float64(series), "series")
			})
		}
		c.Close()
	}
}

// scrapeModes are the values of Tunables.SourceSeries.
var scrapeModes = []struct {
	name string
	set  func(*conductor.Conductor)
}{
	{"always", func(c *conductor.Conductor) {
		c.Tune(conductor.Tunables{MaxSources: 10_000, SourceSeries: status.SeriesAlways})
	}},
	{"auto", func(c *conductor.Conductor) { c.Tune(conductor.Tunables{MaxSources: 10_000}) }},
}
