package ingest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
)

// unresumable is a feed that panics when a second source resumes.
type unresumable struct {
	idle
	resumed, resyncs *atomic.Int32
}

func (f unresumable) ResumeBehind(stream.Mark) {
	if f.resumed.Add(1) == 2 {
		panic("BUG: of a test")
	}
}

func (f unresumable) Resync(string) { f.resyncs.Add(1) }

// A broken invariant where sources resume costs the snapshot: every source has its turn free, no block of the snapshot, and
// replays, also one that had resumed before.
func TestBrokenResume(t *testing.T) {
	gate := make(chan struct{})
	c := newServer(serverOptions{HashSeed: 1337, Log: zerolog.Nop(), Gate: gate})
	defer c.Close()
	var resumed, resyncs atomic.Int32
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
		return unresumable{idle{make(chan struct{})}, &resumed, &resyncs}
	})
	r := c.sources.Snapshots().Recover(0)
	for i := range 3 {
		reg := registration.Registration{Endpoint: fmt.Sprintf("tcp://e:%d", i+1), Type: registration.TypeVLLM, Model: "m",
			Instance: fmt.Sprint(i), BlockSize: 16, Tenant: "default"}
		must.Succeed(t, c.Register(reg, RegisterOptions{}))
		must.Succeed(t, r.Source(image.Source{Registration: reg, Mark: &Mark{Seq: 5}}))
		words := []uint64{uint64(i) + 1}
		must.Succeed(t, r.Stored(&Stored{
			Source: reg, Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16,
			Stretch: &index.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words,
		}))
	}
	if r.Blocks != 3 {
		t.Fatalf("%d blocks came back", r.Blocks)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Done does not fail")
			}
		}()
		r.Done()
	}()
	for _, s := range c.sources.All() {
		if !s.turn.TryLock() {
			t.Errorf("the turn of %s is held", s.Registration.Instance)
		}
		s.turn.Unlock()
	}
	r.Undo()
	for _, s := range c.sources.All() {
		if n := s.holdings.blocks(); n != 0 {
			t.Errorf("%s has %d blocks", s.Registration.Instance, n)
		}
	}
	if resyncs.Load() != 3 {
		t.Errorf("%d resyncs", resyncs.Load())
	}
	close(gate)
}
