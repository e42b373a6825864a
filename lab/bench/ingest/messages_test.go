package ingest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/bench/streams"
)

// record writes a recording of values and returns its name.
func record(t *testing.T, values ...any) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "recording")
	f, err := os.Create(name)
	must.Succeed(t, err)
	defer f.Close()
	e := msgpack.NewEncoder(f)
	for _, v := range values {
		must.Succeed(t, e.Encode(v))
	}
	return name
}

// A recorded batch is read back as it was announced, and its copies differ in hashes and in how prompts begin.
func TestRecordedBatches(t *testing.T) {
	name := record(t,
		[]any{0, []any{[]any{"S", []int{1, 2}, nil, []int{11, 12}}}},
		[]any{-1, []int{11, 12}},
		[]any{1, []any{[]any{"S", []int{1}, nil, []int{11}}}},
		[]any{0, []any{[]any{"S", []int{3}, 2, []int{13}}, []any{"R", []int{3}}, []any{"R", []int{2}}}},
		[]any{1, []any{[]any{"S", []int{4}, nil, []int{}, "CPU"}}},
	)
	load := Recorded{Stream: name}
	r, err := load.readStream(func(engine, engines int) bool { return engine == 0 && engines == 2 })
	must.Succeed(t, err)
	if r.engines != 2 || len(r.messages) != 4 || len(r.held[0]) != 1 || len(r.held[1]) != 2 || r.messages[1].payload != nil {
		t.Fatalf("%d engines, %d batches, %d and %d blocks held", r.engines, len(r.messages), len(r.held[0]), len(r.held[1]))
	}
	at := time.Now()
	decode := func(m *recordedBatch, salt uint64) events.Batch {
		t.Helper()
		b, err := wire.Decode(m.appendPayload(nil, salt, at), wire.DefaultLimits)
		must.Succeed(t, err)
		if len(b.Dropped) > 0 || b.Time != float64(at.UnixNano())/1e9 || b.Rank != 0 {
			t.Errorf("dropped %v at %v of rank %d", b.Dropped, b.Time, b.Rank)
		}
		return b
	}
	first, second := decode(&r.messages[0], 0), decode(&r.messages[2], 0)
	stored, next, removed := first.Events[0], second.Events[0], second.Events[1:]
	if stored.HasParent || len(stored.Tokens) != 2*streams.BlockSize || stored.Tokens[0] != firstRoot || !next.HasParent ||
		next.Parent != stored.Hashes[1] {
		t.Errorf("stored %+v and %+v", stored, next)
	}
	var gone []uint64 // the decoder may have joined the events
	for _, e := range removed {
		gone = append(gone, e.Hashes...)
	}
	if len(removed) == 0 || removed[0].Kind != events.Removed || !slices.Equal(gone, []uint64{next.Hashes[0], stored.Hashes[1]}) {
		t.Errorf("removed %+v", removed)
	}
	if _, is := r.held[0][heldBlock{hash: stored.Hashes[0]}]; !is {
		t.Error("the engine does not hold its first block")
	}
	for b := range r.held[1] {
		if b.lower == (b.hash == stored.Hashes[0]) {
			t.Errorf("engine 1 holds %+v", b)
		}
	}
	other, after := decode(&r.messages[0], 3).Events[0], decode(&r.messages[2], 3).Events[0]
	if other.Hashes[0] != saltHash(stored.Hashes[0], 3) || other.Hashes[0] == stored.Hashes[0] || after.Parent != other.Hashes[1] {
		t.Errorf("a copy has the hashes %x behind %x", after.Hashes, other.Hashes)
	}
	if other.Tokens[0] != firstRoot+3 || !slices.Equal(other.Tokens[1:], stored.Tokens[1:]) || !slices.Equal(after.Tokens, next.Tokens) {
		t.Error("a copy has other tokens than its prompts begin with")
	}

	load.Batches = 0
	load.Stream = record(t, []any{0, []any{
		[]any{"S", []int{1, 2}, nil, []int{11, 12}, "", 0, "full_attention", 0},
		[]any{"S", []int{2}, nil, []int{11, 12}, "", 1, "sliding_window", 17},
		[]any{"R", []int{2}, "", 1},
	}})
	groups, err := load.readStream(func(int, int) bool { return true })
	must.Succeed(t, err)
	batch := decode(&groups.messages[0], 0)
	window, removed := batch.Events[1], batch.Events[2:]
	if window.Group != 1 || window.GroupKind != "sliding_window" || window.Window != 17 || len(window.Tokens) != 2*streams.BlockSize ||
		len(window.Hashes) != 1 || len(removed) != 1 || removed[0].Group != 1 {
		t.Errorf("of a second group: %+v, %+v", window, removed)
	}
	if len(groups.held[0]) != 2 {
		t.Errorf("%d blocks held of the first group", len(groups.held[0]))
	}

	load = Recorded{Stream: name, Batches: 2}
	r, err = load.readStream(func(int, int) bool { return false })
	must.Succeed(t, err)
	if len(r.messages) != 2 || len(r.held[0]) != 2 {
		t.Errorf("%d batches, %d blocks held", len(r.messages), len(r.held[0]))
	}
	load.Batches = 5
	if _, err = load.readStream(func(int, int) bool { return false }); err == nil {
		t.Error("more batches than the recording has are sent")
	}
}

// Markers of all publishers are different blocks that begin a prompt.
func TestMarkers(t *testing.T) {
	seen := make(map[uint64]bool)
	for p := range 20 {
		for n := range 20 {
			b, err := wire.Decode(markerBatch(p, n, nil).appendPayload(nil, 0, time.Now()), wire.DefaultLimits)
			must.Succeed(t, err)
			e := b.Events[0]
			h, tokens := markerOf(p, n)
			if len(e.Hashes) != 1 || e.Hashes[0] != h || seen[h] || e.HasParent || len(e.Tokens) != len(tokens) ||
				e.Tokens[1] != uint32(p) || e.Tokens[2] != uint32(n) {
				t.Fatalf("marker %d of publisher %d: %+v", n, p, e)
			}
			seen[h] = true
		}
	}
}
