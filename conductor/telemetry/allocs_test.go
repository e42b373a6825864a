//go:build !race

package telemetry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
	"google.golang.org/grpc/metadata"

	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/alloctest"
)

// TestUnwatchedQueryAllocatesNothing holds the cost of a query that is neither traced nor measured
// for the log, with and without a tracer.
func TestUnwatchedQueryAllocatesNothing(t *testing.T) {
	tracer, err := NewTracer(TracerConfig{Endpoint: "http://127.0.0.1:1", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close(context.Background())
	for name, tr := range map[string]*Tracer{"off": nil, "sampled out": tracer} {
		w := New(tr, zerolog.Nop())
		allocs := func(use ...gin.HandlerFunc) float64 {
			r := gin.New()
			r.Use(use...)
			r.POST("/query", func(g *gin.Context) {
				if server.ClockOf(g) != nil {
					t.Errorf("%s: the query has a clock", name)
				}
				g.Status(http.StatusOK)
			})
			req, rec := httptest.NewRequest(http.MethodPost, "/query", nil), httptest.NewRecorder()
			return alloctest.PerRun(200, func() { r.ServeHTTP(rec, req) })
		}
		if with, without := allocs(w.Middleware), allocs(); with > without {
			t.Errorf("%s: %v allocations, %v without the middleware", name, with, without)
		}
		ctx, start := metadata.NewIncomingContext(t.Context(), metadata.Pairs(":authority", "a", "user-agent", "b")), time.Now()
		if n := alloctest.PerRun(200, func() {
			if w.BeginCall(ctx, "/p.S/Query", start) != nil {
				t.Errorf("%s: the call is watched", name)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations for a call of gRPC", name, n)
		}
	}
}
