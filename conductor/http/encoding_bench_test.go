package http_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
)

// BenchmarkCodings reads a prompt of 8,192 tokens, and nothing else, as it comes and
// decoded.
func BenchmarkCodings(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var text strings.Builder
	for range 8192 {
		fmt.Fprintf(&text, ",%d", r.IntN(150_000))
	}
	prompt := `{"token_ids":[1` + text.String() + `]}`
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	engine := admin.New(c, admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	})
	engine.POST("/", func(g *gin.Context) {
		if n, err := io.Copy(io.Discard, g.Request.Body); err != nil || n != int64(len(prompt)) {
			b.Fatalf("%d bytes, %v", n, err)
		}
	})
	for _, coding := range []string{"", "gzip", "zstd"} {
		body := compress(b, coding, prompt)
		b.Run("coding="+coding, func(b *testing.B) {
			b.SetBytes(int64(len(prompt)))
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest("POST", "/", strings.NewReader(body))
				if coding != "" {
					req.Header.Set("Content-Encoding", coding)
				}
				engine.ServeHTTP(httptest.NewRecorder(), req)
			}
			b.ReportMetric(float64(len(body)), "sent-bytes")
		})
	}
}
