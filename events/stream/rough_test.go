package stream_test

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

var (
	kills = flag.Int("stream.kills", 6, "how often TestInteropKilledPublisher kills")
	flood = flag.Int("stream.flood", 2500, "batches that each publisher of TestInteropFloodWithoutReplay publishes")
)

// A publisher is killed at random moments, in mid-batch and in mid-replay, and comes
// back on the same ports with an empty cache. At the end only the blocks of the last
// life are held.
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
	c.until(fmt.Sprintf("no more goroutines than %d before the first kill, and 4", before), func(stream.Status) bool {
		return runtime.NumGoroutine() <= before+4
	})
	t.Logf("%d kills: %d epochs, %d restarts, %d gaps, %d replayed batches, %d reconnects", *kills, st.Epoch, st.Restarts, st.Gaps,
		st.Replayed, st.Reconnects)
}

// brake holds a decoder up: until it is released a batch takes 3.2 ms, and only some come through, however
// long the publisher takes.
type brake struct {
	tick     *time.Ticker
	left     atomic.Int64
	released chan struct{}
	release  func()
}

func newBrake(t *testing.T, most int) *brake {
	b := &brake{tick: time.NewTicker(3200 * time.Microsecond), released: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.released) })
	b.left.Store(int64(most))
	t.Cleanup(b.tick.Stop)
	return b
}

func (b *brake) decode(payload []byte) (events.Batch, error) {
	tick := b.tick.C
	if b.left.Add(-1) < 0 {
		tick = nil
	}
	select {
	case <-tick:
	case <-b.released:
	}
	return wire.Decode(payload, wire.DefaultLimits)
}

// flooded returns the blocks of a life's flood of batches from..to, to included.
func flooded(life, from, to, perBatch uint64) map[uint64]bool {
	m := make(map[uint64]bool)
	for seq := from; seq <= to; seq++ {
		for i := range perBatch {
			m[life<<40+1<<32+seq*64+i] = true
		}
	}
	return m
}

// A publisher floods a subscriber that applies a small part of it: what waits is bounded,
// the engine is not held up, its socket drops what its high-water mark of 1,000 does
// not hold, and after the flood nothing is missing.
func TestInteropFlood(t *testing.T) {
	const batches, perBatch = 4000, 64
	p := startPublisher(t, python(t), "--layout", "B", "--ring", "100000")
	b := newBrake(t, batches/16) // 20,000 events a second
	cfg := stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		Queue: 200, QueueBytes: 4 << 20, Decode: b.decode,
	}
	c := subscribe(t, cfg)
	t.Cleanup(b.release)
	first := p.do("publish 1")
	c.untilAt(stream.Synced, 1, first)

	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, began := heap(), time.Now()
	last := p.do(fmt.Sprintf("flood %d %d", batches, perBatch))
	took := time.Since(began)
	st := c.until("batches wait", func(st stream.Status) bool { return st.Queued > 0 })
	if st.LastSeq == last || st.Queued > 2*cfg.Queue || st.QueuedBytes > 2*cfg.QueueBytes {
		t.Errorf("in the flood: %s at %d of %d, %d batches of %d bytes wait", st.State, st.LastSeq, last, st.Queued, st.QueuedBytes)
	}
	// Live and replayed batches are bounded separately; the rest is what was applied.
	c.mu.Lock()
	applied := len(c.blocks)
	c.mu.Unlock()
	if grown, most := int64(heap()-before), int64(2*cfg.QueueBytes+100*applied+(8<<20)); grown > most {
		t.Errorf("the heap grew by %d bytes, at most %d expected", grown, most)
	}
	b.release()
	// The last batches may have been dropped unseen: a batch that arrives shows that.
	end, looks := last, 0
	st = c.until("the flood is over", func(st stream.Status) bool {
		if st.State == stream.Synced && st.LastSeq == end && end > last {
			return true
		}
		if looks++; looks%50 == 1 {
			end = p.do("publish 1")
		}
		return false
	})
	want := blocks("", 1, 0, first)
	maps.Copy(want, flooded(1, first+1, last, perBatch))
	maps.Copy(want, blocks("", 1, last+1, end))
	c.wantBlocks(want)
	if st.Restarts != 0 || len(st.Dropped) != 0 {
		t.Errorf("status is %+v", st)
	}
	t.Logf("%.0f events/s published against 20,000 applied: %d gaps, %d batches replayed", batches*perBatch/took.Seconds(), st.Gaps,
		st.Replayed)
}

// Sixteen publishers without a replay endpoint, whose sockets queue 100,000 messages
// as those of vLLM, flood subscribers that apply a fraction of it. Nothing is lost,
// and what waits is bounded, at each source and over all of them.
func TestInteropFloodWithoutReplay(t *testing.T) {
	const publishers, perBatch = 16, 4
	python := python(t)
	var all [publishers]*publisher
	for i := range all {
		all[i] = launchPublisher(t, python, "--hwm", "100000", "--xpub", "--life", fmt.Sprint(i+1))
	}
	b := newBrake(t, publishers**flood/8)
	const live, message = 128 << 10, 2 << 10 // all batches that wait, and more than one
	memory := payload.NewMemory(2 * live)
	cfg := stream.Config{Queue: 200, QueueBytes: 64 << 10, Memory: memory}
	var most, sum atomic.Int64 // bytes that waited at a source, and at all
	var subs [publishers]*subscriber
	for i, p := range all {
		p.await()
		cfg := cfg
		cfg.Endpoint, cfg.Transport = "tcp://127.0.0.1:"+p.live, zmq.Transport{Memory: memory}
		var self atomic.Pointer[stream.Stream]
		cfg.Decode = func(payload []byte) (events.Batch, error) {
			if s := self.Load(); s != nil {
				st := s.Status()
				most.Store(max(most.Load(), int64(st.QueuedBytes)))
				waiting, _ := memory.Used()
				if sum.Store(max(sum.Load(), waiting)); waiting > live+publishers*message {
					t.Errorf("%d bytes wait at all sources", waiting)
				}
				if st.Queued > cfg.Queue || st.QueuedBytes > cfg.QueueBytes {
					t.Errorf("%d batches of %d bytes wait", st.Queued, st.QueuedBytes)
				}
			}
			return b.decode(payload)
		}
		subs[i] = subscribe(t, cfg)
		self.Store(subs[i].s)
		p.do("subscriber")
	}
	t.Cleanup(b.release)
	began := time.Now()
	for _, p := range all {
		p.send(fmt.Sprintf("flood %d %d", *flood, perBatch))
	}
	for _, p := range all {
		p.last()
	}
	took := time.Since(began)
	behind := 0
	for _, c := range subs {
		behind += *flood - int(c.s.Status().LastSeq)
	}
	if behind < publishers**flood/2 {
		t.Errorf("only %d of %d batches wait after the flood: the subscribers are too fast", behind, publishers**flood)
	}
	b.release()
	for i, c := range subs {
		st := c.untilAt(stream.Synced, 1, uint64(*flood-1))
		if st.Gaps != 0 || st.Reconnects != 0 || len(st.Dropped) != 0 {
			t.Errorf("publisher %d: %+v", i, st)
		}
		c.wantBlocks(flooded(uint64(i+1), 0, uint64(*flood-1), perBatch))
	}
	t.Logf("%d batches published in %v, %d of them before they were read; at most %d bytes waited at a source, %d at all",
		publishers**flood, took, behind, most.Load(), sum.Load())
}
