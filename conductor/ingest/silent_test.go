package ingest

import (
	"runtime"
	"testing"
	"weak"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// TestSilentSourceKeepsNoBatch holds that a source refers to nothing of the batches that it has applied: there are
// thousands of silent sources, and the memory of a batch is kilobytes.
func TestSilentSourceKeepsNoBatch(t *testing.T) {
	list, hashes, tokens, payload := make([]events.Event, 3), make([]uint64, 8), make([]uint32, 8*pageSize), make([]byte, 1000)
	for i := range hashes {
		hashes[i] = uint64(i+1) << 40
	}
	list[0] = events.Event{Kind: events.Stored, Hashes: hashes, Tokens: tokens, Medium: "GPU", BaseBlock: -1, Group: -1}
	list[1] = events.Event{Kind: events.Removed, Hashes: hashes[6:], Medium: "GPU", BaseBlock: -1, Group: -1}
	list[2] = events.Event{Kind: events.Stored, Hashes: hashes[6:], Parent: hashes[5], HasParent: true, Medium: "CPU", BaseBlock: -1,
		Group: -1}
	kept := map[string]func() bool{
		"events": alive(weak.Make(&list[0])), "hashes": alive(weak.Make(&hashes[0])), "tokens": alive(weak.Make(&tokens[0])),
		"payload": alive(weak.Make(&payload[0])),
	}
	c := newServer(serverOptions{HashSeed: 1337, Log: zerolog.Nop()})
	defer c.Close()
	f := &oneStep{applied: make(chan struct{}), closed: make(chan struct{})}
	f.step = stream.Step{Kind: stream.ApplyBatch, Batch: events.Batch{Events: list, Rank: -1}, Payload: payload, Epoch: 1}
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed { return f })
	must.Succeed(t, c.Register(registration.Registration{Type: registration.TypeVLLM, Endpoint: "ipc:///x", Model: "m", Instance: "i",
		BlockSize: pageSize}, RegisterOptions{}))
	<-f.applied
	if n := c.sources.All()[0].holdings.blocks(); n == 0 {
		t.Fatal("the batch stored no block")
	}
	list, hashes, tokens, payload = nil, nil, nil, nil
	runtime.GC()
	for what, there := range kept {
		if there() {
			t.Errorf("the %s of a batch that was applied are still referred to", what)
		}
	}
}

// oneStep is a feed that hands out a step, keeps nothing of it, and then waits.
type oneStep struct {
	loop
	step            stream.Step
	taken           bool
	applied, closed chan struct{}
}

func (o *oneStep) Next() (step stream.Step, ok bool) {
	if o.taken {
		close(o.applied)
		<-o.closed
		return stream.Step{}, false
	}
	step, o.step, o.taken = o.step, stream.Step{}, true
	return step, true
}

func (o *oneStep) Close() { close(o.closed) }

func alive[T any](p weak.Pointer[T]) func() bool { return func() bool { return p.Value() != nil } }
