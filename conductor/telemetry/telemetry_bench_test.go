package telemetry

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
)

// BenchmarkMiddleware is a query that enters each stage, the hashing in eight pieces: without the
// middleware, watched, sampled out, traced to a collector, and measured for the log of slow queries.
// Collector and export are part of the figure of traced queries.
func BenchmarkMiddleware(b *testing.B) {
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer sink.Close()
	f := func(name string, sample float64, slow time.Duration, watched bool) {
		b.Run(name, func(b *testing.B) {
			var tracer *Tracer
			if sample >= 0 {
				var err error
				if tracer, err = NewTracer(TracerConfig{Endpoint: sink.URL, Sample: sample, Log: zerolog.Nop()}); err != nil {
					b.Fatal(err)
				}
				defer tracer.Close(context.Background())
			}
			w := New(tracer, zerolog.Nop())
			w.SetSlow(slow)
			r := gin.New()
			if watched {
				r.Use(w.Middleware)
			}
			r.POST("/query", func(g *gin.Context) {
				clock := server.ClockOf(g)
				clock.Enter(stage.Admit)
				clock.Enter(stage.Parse)
				for range 8 {
					clock.Enter(stage.Match)
					clock.Enter(stage.Hash)
				}
				clock.Enter(stage.Match)
				clock.Answered("default", "model", 8192)
				clock.Enter(stage.Encode)
				clock.Enter(stage.Send)
			})
			req, rec := httptest.NewRequest(http.MethodPost, "/query", nil), httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				r.ServeHTTP(rec, req)
			}
			if tracer != nil && sample > 0 {
				b.ReportMetric(float64(tracer.sending.lost.Load())/float64(b.N), "lost/op")
			}
		})
	}
	f("none", -1, 0, false)
	f("watched", -1, 0, true)
	f("sampled-out", 0, 0, true)
	f("1-percent", 0.01, 0, true)
	f("traced", 1, 0, true)
	f("slow", -1, time.Hour, true)
}
