package conductor

import (
	"runtime"
	"testing"
	"weak"

	"example.com/conductor/events"
)

// TestSilentSourceKeepsNoBatch holds that a source refers to nothing of the batches that it has applied: there are
// thousands of silent sources, and the memory of a batch is kilobytes.
func TestSilentSourceKeepsNoBatch(t *testing.T) {
	f := follow(t, Registration{Type: TypeVLLM, Endpoint: "ipc:///x", Model: "m", Instance: "i", BlockSize: pageSize})
	list, hashes, tokens := make([]events.Event, 3), make([]uint64, 8), make([]uint32, 8*pageSize)
	for i := range hashes {
		hashes[i] = uint64(i+1) << 40
	}
	list[0] = events.Event{Kind: events.Stored, Hashes: hashes, Tokens: tokens, Medium: "GPU", BaseBlock: -1, Group: -1}
	list[1] = events.Event{Kind: events.Removed, Hashes: hashes[6:], Medium: "GPU", BaseBlock: -1, Group: -1}
	list[2] = events.Event{Kind: events.Stored, Hashes: hashes[6:], Parent: hashes[5], HasParent: true, Medium: "CPU", BaseBlock: -1, Group: -1}
	kept := map[string]func() bool{
		"events": alive(weak.Make(&list[0])), "hashes": alive(weak.Make(&hashes[0])), "tokens": alive(weak.Make(&tokens[0])),
	}
	f.apply(events.Batch{Events: list, Rank: -1})
	if n := f.s.blocks(); n == 0 {
		t.Fatal("the batch stored no block")
	}
	list, hashes, tokens = nil, nil, nil
	runtime.GC()
	for what, there := range kept {
		if there() {
			t.Errorf("the %s of a batch that was applied are still referred to", what)
		}
	}
	runtime.KeepAlive(f)
}

func alive[T any](p weak.Pointer[T]) func() bool { return func() bool { return p.Value() != nil } }
