package wire

import (
	"bytes"
	"fmt"
	"testing"

	"example.com/conductor/events"
)

// TestCutBatch: a batch that is cut and put together again is the same, but for what names it alone.
func TestCutBatch(t *testing.T) {
	array, object := arr{"BlockRemoved", arr{1, 2}}, obj{"type", "BlockRemoved", "block_hashes", arr{3}, "medium", nil}
	f := func(batch, again any, n int, clear any) {
		t.Helper()
		frame, all, ok := CutBatch(pack(t, batch))
		if got := frame.Wrap(all...); !ok || len(all) != n || !bytes.Equal(got, pack(t, again)) {
			t.Errorf("%v is cut into %d events, and put together to %q", batch, len(all), got)
		}
		if got := frame.EncodeClear(""); !bytes.Equal(got, pack(t, clear)) {
			t.Errorf("a clear of the publisher of %v is %q", batch, got)
		}
	}
	for _, maps := range []bool{false, true} {
		b, err := Decode((Frame{maps: maps}).Wrap((Frame{maps: maps}).EncodeClear("CPU")), Limits{})
		if err != nil || len(b.Events) != 1 || b.Events[0].Kind != events.Cleared || b.Events[0].Medium != "CPU" {
			t.Errorf("a clear of a medium is read as %+v, %v", b.Events, err)
		}
	}
	arrayClear, objectClear := arr{"AllBlocksCleared"}, obj{"type", "AllBlocksCleared"}
	f(arr{1.5, arr{array, object}}, arr{1.5, arr{array, object}}, 2, arrayClear)
	f(arr{1.5, arr{object}, 3}, arr{1.5, arr{object}, 3}, 1, objectClear)
	f(arr{1.5, arr{object}, nil, "publisher", arr{7}}, arr{1.5, arr{object}, nil}, 1, objectClear)
	f(arr{7, nil}, arr{7, arr{}}, 0, arrayClear)
	long := bytes.Repeat([]byte("x"), 300)
	named := obj{"new", arr{long}, "ts", 1.5, "events", arr{array}, "dp_rank", 2}
	f(named, named, 1, arrayClear)
	var many arr
	for range 20 {
		many = append(many, array)
	}
	f(arr{1.5, many}, arr{1.5, many}, 20, arrayClear)

	if got := (Frame{}).Wrap(pack(t, array)); !bytes.Equal(got, pack(t, arr{0.0, arr{array}})) {
		t.Errorf("the zero frame makes %q", got)
	}
	whole := pack(t, arr{1.5, arr{array}, 3})
	for _, bad := range [][]byte{nil, {0xc0}, {7}, {0x90}, {0x91, 1}, {0x92, 1, 1}, whole[:len(whole)-1], whole[:5],
		pack(t, obj{"ts", 1.5}), pack(t, obj{1, 2, "events", arr{}})} {
		if _, all, ok := CutBatch(bad); ok || all != nil {
			t.Errorf("%q is cut into %q", bad, all)
		}
	}
}

// TestEncodeRemoval: the removal of some blocks of a stored event removes them from its place, in its form and with its
// hashes.
func TestEncodeRemoval(t *testing.T) {
	digest := bytes.Repeat([]byte{0xaa}, 32)
	stored := func(more ...any) arr {
		return append(arr{"BlockStored", arr{1, digest, 3}, nil, arr{1, 2, 3}, 1}, more...)
	}
	object := func(more ...any) obj {
		return append(obj{"type", "BlockStored", "token_ids", arr{1, 2, 3}, "block_hashes", arr{1, digest, 3}, "block_size", 1}, more...)
	}
	f := func(event, want any) {
		t.Helper()
		raw := pack(t, event)
		b, err := Decode(pack(t, arr{0.0, arr{event}}), DefaultLimits)
		if err != nil || len(b.Events) != 1 {
			t.Fatalf("%v: %v, %v", event, err, b.Dropped)
		}
		if got := EncodeRemoval(raw, &b.Events[0], []int{1, 2}); !bytes.Equal(got, pack(t, want)) {
			t.Errorf("the removal from %v is %q, not %q", event, got, pack(t, want))
		}
	}
	hashes := arr{digest, 3}
	f(stored(), arr{"BlockRemoved", hashes})
	f(stored(nil, "GPU"), arr{"BlockRemoved", hashes, "GPU"})
	f(stored(nil, "CPU", nil, nil, 200), arr{"BlockRemoved", hashes, "CPU", 200})
	f(stored(nil, nil, nil, nil, 0), arr{"BlockRemoved", hashes, nil, 0})
	f(object(), obj{"type", "BlockRemoved", "block_hashes", hashes, "medium", nil})
	f(object("medium", "GPU", "group_idx", 1, "ownership", "kvcr"),
		obj{"type", "BlockRemoved", "block_hashes", hashes, "medium", "GPU", "group_idx", 1, "ownership", "kvcr"})

	// The store of blocks that move, where they arrive.
	g := func(event, want any, size int, text string) {
		t.Helper()
		b, err := Decode(pack(t, arr{0.0, arr{event}}), DefaultLimits)
		if err != nil || len(b.Events) != 1 {
			t.Fatalf("%v: %v, %v", event, err, b.Dropped)
		}
		got := EncodeStore(pack(t, event), &b.Events[0], size)
		if !bytes.Equal(got, pack(t, want)) {
			t.Errorf("the store of %v is %q, not %q", event, got, pack(t, want))
		}
		if read := decodeOne(t, raw(fmt.Sprintf("%x", got))); read != text {
			t.Errorf("the store of %v reads %s, want %s", event, read, text)
		}
	}
	all := arr{1, digest, 3}
	const read = "stored 0000000000000001 aaaaaaaaaaaaaaaa 0000000000000003"
	g(arr{"BlockTransferred", all, "GPU", "CPU", nil}, arr{"BlockStored", all, nil, arr{}, 16, nil, "CPU"}, 16, read+` bs=16 medium="CPU"`)
	g(arr{"BlockTransferred", all, "CPU", nil, 0}, arr{"BlockStored", all, nil, arr{}, 0, nil, nil, nil, nil, 0}, 0, read+` group=0`)
	g(obj{"from_medium", "GPU", "to_medium", "CPU", "block_hashes", all, "type", "BlockTransferred", "group_idx", 2, "ownership", "kvcr"},
		obj{"type", "BlockStored", "block_hashes", all, "parent_block_hash", nil, "token_ids", arr{}, "block_size", 16, "lora_id", nil,
			"medium", "CPU", "group_idx", 2, "ownership", "kvcr"}, 16, read+` bs=16 medium="CPU" group=2 owned`)
	if got := EncodeStore(pack(t, arr{"BlockTransferred"}), &events.Event{}, 16); got != nil {
		t.Errorf("the store of no hashes is %q", got)
	}

	ev := events.Event{Hashes: []uint64{1, 2, 3}}
	for _, bad := range []any{nil, arr{"BlockStored"}, arr{"BlockStored", arr{1, 2}}, arr{"BlockStored", 3}, obj{"type", "BlockStored"}} {
		if got := EncodeRemoval(pack(t, bad), &ev, []int{1}); got != nil {
			t.Errorf("the removal from %v is %q", bad, got)
		}
	}
}
