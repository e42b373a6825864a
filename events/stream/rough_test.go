package stream_test

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
)

var kills = flag.Int("stream.kills", 6, "how often TestInteropKilledPublisher kills")

// A publisher is killed at random moments, in mid-batch and in mid-replay, and comes
// back on the same ports with an empty cache. What is left is what the last life
// holds.
func TestInteropKilledPublisher(t *testing.T) {
	python := python(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	p := startPublisher(t, python, "--layout", "B", "--life", "1")
	c := subscribe(t, stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		BackoffMin: 10 * time.Millisecond, ReplayTimeout: time.Second,
	})
	before := runtime.NumGoroutine()
	connects := uint64(0)
	for life := 2; life <= *kills+1; life++ {
		for range 20 {
			if _, err := io.WriteString(p.in, "publish 200\n"); err != nil {
				t.Fatal(err)
			}
		}
		// Now and then it is followed to some point, else it may die unseen.
		if rng.IntN(4) > 0 {
			st := c.until("this life is connected to", func(st stream.Status) bool { return st.Connected && st.Reconnects >= connects })
			connects = st.Reconnects + 1
		}
		<-time.After(time.Duration(rng.IntN(60)) * time.Millisecond)
		p.kill()
		p = p.again(python, "--layout", "B", "--life", fmt.Sprint(life))
	}
	last := p.do("publish 50")
	st := c.until("the last life is followed", func(st stream.Status) bool {
		return st.State == stream.Synced && st.HasSeq && st.LastSeq == last
	})
	c.wantBlocks(blocks("", uint64(*kills+1), 0, last))
	if n := runtime.NumGoroutine(); n > before+4 {
		t.Errorf("%d goroutines, %d before the first kill", n, before)
	}
	t.Logf("%d kills: %d epochs, %d restarts, %d gaps, %d replayed batches, %d reconnects", *kills, st.Epoch, st.Restarts, st.Gaps, st.Replayed, st.Reconnects)
}

// A publisher floods a subscriber that applies a tenth of it: what waits is bounded,
// the state says so, the engine is not held up, and after the flood nothing is
// missing.
func TestInteropFlood(t *testing.T) {
	const batches, perBatch = 4000, 64
	p := startPublisher(t, python(t), "--layout", "B", "--ring", "100000")
	brake := time.NewTicker(3200 * time.Microsecond) // of a batch: 20,000 events a second
	defer brake.Stop()
	released := make(chan struct{})
	cfg := stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		Queue: 200, QueueBytes: 4 << 20,
		Decode: func(payload []byte) (events.Batch, error) {
			select {
			case <-brake.C:
			case <-released:
			}
			return wire.Decode(payload, wire.DefaultLimits)
		},
	}
	c := subscribe(t, cfg)
	first := p.do("publish 1")
	c.untilAt(stream.Synced, 1, first)

	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, began := heap(), time.Now()
	last := p.do(fmt.Sprintf("flood %d", batches))
	took := time.Since(began)
	st := c.s.Status()
	if st.State == stream.Synced || st.Dropped[events.Overflow] == 0 {
		t.Errorf("in the flood: %s at %d of %d, dropped %v", st.State, st.LastSeq, last, st.Dropped)
	}
	// Live and replayed batches are bounded separately; the rest is what was applied.
	c.mu.Lock()
	applied := len(c.blocks)
	c.mu.Unlock()
	if grown, most := int64(heap()-before), int64(2*cfg.QueueBytes+100*applied+(8<<20)); grown > most {
		t.Errorf("the heap grew by %d bytes, at most %d expected", grown, most)
	}
	close(released)
	// The last batches may have been dropped unseen: one more shows that.
	last = p.do("publish 1")
	st = c.untilAt(stream.Synced, 1, last)
	want := blocks("", 1, 0, 0)
	maps.Copy(want, blocks("", 1, last, last))
	for seq := first + 1; seq < last; seq++ {
		for i := range uint64(perBatch) {
			want[1<<40+1<<32+seq*perBatch+i] = true
		}
	}
	c.wantBlocks(want)
	t.Logf("%.0f events/s published against 20,000 applied: %d batches dropped and replayed, %d gaps", batches*perBatch/took.Seconds(), st.Dropped[events.Overflow], st.Gaps)
}
