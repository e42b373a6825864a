package ingest

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// snapshotOf1M returns a snapshot of 1 M blocks of 16 tokens in prompts of 200 blocks. Half
// of them share their first 100. 5 % of the blocks have a second copy, and 1 in 100 prompts begins
// with a block that is evicted.
func snapshotOf1M(blocks int) []string {
	const block, depth = 16, 200
	r := streamtest.Recorder{BlockSize: block}
	rng := rand.New(rand.NewPCG(1, 2))
	gpu := streamtest.Scope{Medium: "GPU"}
	var system []uint64
	for n := 0; n < blocks; {
		var parent uint64
		long := depth
		if len(system) > 0 && rng.IntN(2) == 0 {
			parent, long = system[rng.IntN(len(system))], depth/2
		}
		hashes, tokens := make([]uint64, long), make([]uint32, long*block)
		for i := range hashes {
			hashes[i] = rng.Uint64() | 1
		}
		for i := range tokens {
			tokens[i] = rng.Uint32N(128_000)
		}
		r.RecordStore(gpu, parent, hashes, tokens)
		r.RecordStore(gpu, 0, hashes[:long/20], nil)
		if rng.IntN(100) == 0 {
			r.RecordRemoval(gpu, hashes[long/2:long/2+1]...)
		}
		system = append(system, hashes[long/2])
		n += long
	}
	return r.SnapshotParts(1.5, 0)
}

// BenchmarkEngineSnapshot measures the way of a snapshot of 1 M blocks from its last byte to
// answers: checks, decoding, and the index. conductor.Options are those of serve.
func BenchmarkEngineSnapshot(b *testing.B) {
	parts, bytes := snapshotOf1M(1_000_000), 0
	for _, p := range parts {
		bytes += len(p)
	}
	var took time.Duration
	for range b.N {
		var net timedNetwork
		p := net.PublisherAt("tcp://e:1")
		p.ID, p.Parts = events.PublisherID{1}, parts
		synced := make(chan struct{}, 1)
		c := newServer(serverOptions{GhostBytes: 64 << 20, RemovalsBytes: 1 << 20, Stream: stream.Config{Transport: &net}})
		open := c.sources.open
		c.sources.open = func(r registration.Registration, static bool, j *tape.Recorder, on func(stream.State, string)) Feed {
			return open(r, static, j, func(s stream.State, reason string) {
				on(s, reason)
				if s == stream.Synced {
					synced <- struct{}{}
				}
			})
		}
		p.PublishToRing("")
		must.Succeed(b, c.Register(registration.Registration{
			Endpoint: "tcp://e:1", SnapshotEndpoint: "tcp://e:1/snapshot", Type: registration.TypeVLLM, Model: "m", Instance: "i",
			BlockSize: 16,
		}, RegisterOptions{AnyEndpoint: true}))
		<-synced
		took += time.Since(net.sent)
		if s := c.Services()[0]; s.Blocks < 990_000 || s.Snapshots != 1 {
			b.Fatalf("%+v", s)
		}
		c.Close()
	}
	b.ReportMetric(took.Seconds()/float64(b.N), "s/snapshot")
	b.ReportMetric(float64(bytes)/1e6, "MB/snapshot")
}

// timedNetwork notes when a snapshot was there.
type timedNetwork struct {
	streamtest.Network
	sent time.Time
}

func (n *timedNetwork) Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error) {
	all, err := n.Network.Snapshot(ctx, endpoint, limit, progress)
	n.sent = time.Now()
	return all, err
}
