package wire

import (
	"math"
	"strings"
	"testing"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

func TestDecodeBatch(t *testing.T) {
	f := func(batch any, want string) {
		t.Helper()
		b, err := Decode(pack(t, batch), DefaultLimits)
		got := render(b)
		if err != nil {
			got = string(ReasonOf(err)) + ": " + err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%v:\ngot  %s\nwant %s", batch, got, want)
		}
	}
	clear := arr{"AllBlocksCleared"}
	f(arr{1.5, arr{clear}}, "batch time=1.5 rank=-1\ncleared")
	f(arr{1.5, arr{clear}, nil}, "batch time=1.5 rank=-1\ncleared")
	f(arr{1.5, arr{clear}, 300}, "batch time=1.5 rank=300\ncleared")
	f(arr{1.5, arr{clear}, -1}, "batch time=1.5 rank=-1\ncleared")
	f(arr{1.5, arr{clear}, 1, "later", arr{obj{}}}, "batch time=1.5 rank=1\ncleared")
	f(arr{float32(0.5), nil, 1}, "batch time=0.5 rank=1")
	f(arr{1500, arr{}, 1}, "batch time=1.5 rank=1")
	f(arr{-1500, arr{}, 1}, "batch time=-1.5 rank=1")
	f(arr{nil, arr{}, 1}, "batch time=0 rank=1")
	f(arr{math.NaN(), arr{}, 1}, "batch time=0 rank=1")
	f(arr{math.Inf(1), arr{}, 1}, "batch time=0 rank=1")
	f(obj{"events", arr{clear}}, "batch time=0 rank=-1\ncleared")
	f(obj{"attn_dp_rank", 2, "x", arr{}, "events", arr{clear}, "ts", 2.5}, "batch time=2.5 rank=2\ncleared")
	f(obj{"events", nil, "dp_rank", 4}, "batch time=0 rank=4")
	f(arr{1.5, arr{5, clear, arr{"New"}, arr{}, clear}, 0},
		"batch time=1.5 rank=0\ncleared\ncleared\ndropped bad_event=2\ndropped unknown_type=1")

	f(arr{}, "bad_payload: cannot decode batch at byte 1: a batch has at least 2 elements, not 0")
	f(arr{1.5}, "bad_payload: ")
	f(obj{}, "bad_payload: ")
	f(nil, "bad_payload: cannot decode batch at byte 1: a batch is an array or a map, not nil")
	f("x", "bad_payload: ")
	f(7, "bad_payload: ")
	f(arr{"1.5", arr{}, 0}, "bad_payload: ")
	f(arr{true, arr{}, 0}, "bad_payload: ")
	f(arr{1.5, "x", 0}, "bad_payload: ")
	f(arr{1.5, obj{}, 0}, "bad_payload: ")
	f(arr{1.5, arr{}, "0"}, "bad_payload: ")
	f(arr{1.5, arr{}, 0.0}, "bad_payload: ")
	f(arr{1.5, arr{}, uint64(1) << 31}, "bad_payload: ")
	f(obj{"ts", 1.5}, "bad_payload: ")
	f(obj{7, 1.5, "events", arr{}}, "bad_payload: ")
	f(obj{"events", arr{}, "events", arr{}}, "bad_payload: ")
	f(raw("c1"), "bad_payload: cannot decode batch at byte 0: byte 0xc1 is not msgpack")
	f(raw("92c091c1"), "bad_payload: ")
	f(raw("92c09191c1"), "bad_payload: ")
	f(raw("92c09181a178c1"), "bad_payload: ")
	if _, err := Decode(nil, DefaultLimits); ReasonOf(err) != events.BadPayload {
		t.Errorf("empty payload: %v", err)
	}
}

// A dropped event leaves nothing of itself in the slot its successor takes.
func TestSlotsAreClean(t *testing.T) {
	broken := stored("medium", "GPU", "cache_salt", "s", "dp_rank", 3, "object_key", "k", "group_idx", 5, "lora_name", "ad", "extra_keys",
		"bad")
	b, err := Decode(pack(t, arr{1.5, arr{broken, obj{"type", "BlockStored", "block_hashes", arr{1}}}, 0}), DefaultLimits)
	if err != nil || b.Dropped[events.BadEvent] != 1 || len(b.Events) != 1 {
		t.Fatalf("%v: %s", err, render(b))
	}
	if got := renderEvent(&b.Events[0]); got != "stored 0000000000000001" {
		t.Errorf("got %s", got)
	}
}

// Events share backing arrays, but none can write into another's part.
func TestSharedArraysAreCut(t *testing.T) {
	b, err := Decode(pack(t, storm(8)), DefaultLimits)
	must.Succeed(t, err)
	want := render(b)
	for i := range b.Events {
		_ = append(b.Events[i].Hashes, 1)
		_ = append(b.Events[i].Tokens, 1)
	}
	if got := render(b); got != want {
		t.Errorf("appending to one event changed another:\n%s\nwant\n%s", got, want)
	}
}
