package cluster

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// BenchmarkReady looks at a shard that settles, next to 2,000 sources of 100 models, or of its own. Its
// last source is not followed yet.
func BenchmarkReady(b *testing.B) {
	for _, models := range []int{100, 1} {
		b.Run(fmt.Sprintf("models=%d", models), func(b *testing.B) {
			engines := new(streamtest.Network)
			co := conductor.New(conductor.Options{
				Log: zerolog.Nop(), Transport: func(registration.Registration, bool) stream.Transport { return engines },
			})
			defer co.Close()
			sources := make([]registration.Registration, 2001)
			for i := range sources {
				sources[i] = registration.Registration{
					Instance: fmt.Sprintf("e%d", i), Tenant: scope.DefaultTenant, Model: fmt.Sprintf("m%d", i%models),
					Endpoint: fmt.Sprintf("tcp://e%d:1", i), Type: registration.TypeVLLM, BlockSize: 16,
				}
				if i < len(sources)-1 {
					must.Succeed(b, co.For(conductor.Reader{}).Register(sources[i], ingest.RegisterOptions{AnyEndpoint: true}))
				}
			}
			c := &Cluster{cfg: Config{Conductor: co}}
			rows := c.rowsOf(sources, nil)
			c.chart.Store(&chart{rows: rows})
			c.held = map[scope.Shard]*heldShard{{Tenant: scope.DefaultTenant, Model: "m0"}: {holding: holding{phase: Bringing},
				brought: true}}
			b.ReportAllocs()
			for b.Loop() {
				if c.anySettled() {
					b.Fatal("a shard has settled without its last source")
				}
			}
		})
	}
}
