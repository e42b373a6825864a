package wire

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/events"
)

// TestTrailingElements holds that elements which a later build appended to an event of
// any length, or to the batch, cost nothing.
func TestTrailingElements(t *testing.T) {
	appended := []any{nil, true, 7, -7, 1.5, "future", []byte("future"), arr{nil}, obj{"future", 1}}
	full := arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, nil, nil, arr{nil}, 0, "full_attention", nil}
	for _, n := range []int{5, 7, 9, 10, 12} { // vLLM's and SGLang's; the 6 of 2025 know no medium
		want := decodeOne(t, full[:n:n])
		for _, v := range appended {
			ev := append(full[:n:n], v)
			got := decodeOne(t, ev)
			switch {
			case n == 5: // lora_id, of any type
				got = strings.TrimSuffix(got, " lora_id=7")
			case n == 7 && v == "future":
				got = strings.Replace(got, ` lora="future"`, "", 1)
			case n == 9 && v == 7:
				got = strings.Replace(got, " group=7", "", 1)
			case (n == 9 || n == 10) && v == "future":
				got = strings.Replace(got, " kind=future", "", 1)
			}
			if got != want {
				t.Errorf("%d elements and %v:\ngot  %s\nwant %s", n, v, got, want)
			}
		}
	}
	// A medium says where a block is: one that cannot be read is not the device.
	if got := decodeOne(t, arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, 7}); got != bad {
		t.Errorf("a medium that is a number: %s", got)
	}
	for _, v := range appended {
		for _, ev := range []arr{{"BlockRemoved", arr{1}, nil}, {"BlockRemoved", arr{1}, nil, nil},
			{"BlockRemoved", arr{1}, nil, 0, nil, nil}} {
			got := decodeOne(t, append(ev, v))
			if got, _, _ = strings.Cut(got, " group="); !strings.HasPrefix(got, "removed 0000000000000001") {
				t.Errorf("%v and %v: %s", ev, v, got)
			}
		}
		for _, ev := range []arr{{"AllBlocksCleared"}, {"RemoveAllEvent"}} {
			if got := decodeOne(t, append(ev, v)); got != "cleared" {
				t.Errorf("%v and %v: %s", ev, v, got)
			}
		}
		if got := decodeOne(t, arr{"TierBlocksCleared", "CPU", v}); got != `cleared medium="CPU"` {
			t.Errorf("a clear of the host and %v: %s", v, got)
		}
		store := arr{"BlockStoreEvent", "key", arr{}, "", 2, arr{1}, nil, arr{7, 8}}
		if got, want := decodeOne(t, append(store, v)), decodeOne(t, store); got != want {
			t.Errorf("an obsolete store and %v:\ngot  %s\nwant %s", v, got, want)
		}
		b, err := Decode(pack(t, arr{1.5, arr{stored()}, 0, v, v}), DefaultLimits)
		if err != nil || len(b.Events) != 1 {
			t.Errorf("a batch and %v: %v", v, err)
		}
	}
}

// TestUnknownTypes holds that a type which no publisher known here uses costs itself alone, and
// that the batch names it.
func TestUnknownTypes(t *testing.T) {
	f := func(want []string, list ...any) {
		t.Helper()
		all := arr{arr{"BlockRemoved", arr{1}}}
		for _, ev := range list {
			all = append(all, ev, stored())
		}
		b, err := Decode(pack(t, arr{1.5, all, 0}), DefaultLimits)
		if err != nil || len(b.Events) != 1+len(list) || b.Dropped[events.UnknownType] != len(list) || b.Note != "" {
			t.Fatalf("%v: %v, %s", list, err, render(b))
		}
		if !slices.Equal(b.Unknown, want) {
			t.Errorf("%v: named %q, want %q", list, b.Unknown, want)
		}
	}
	f(nil)
	f([]string{"BlockInactive"}, arr{"BlockInactive", arr{1}})
	f([]string{"BlockInactive", "BlockMoved"}, arr{"BlockInactive", arr{1}}, obj{"block_hashes", 7, "type", "BlockMoved"},
		arr{"BlockInactive"})
	f([]string{"promoted"}, obj{"type", "BlockStored", "event_type", "promoted", "seq_hashes", arr{1}})
	f([]string{"BlockUpdateEvent"}, arr{"BlockUpdateEvent", "key", arr{}})
	f([]string{""}, arr{""})
	f([]string{strings.Repeat("x", 64)}, arr{strings.Repeat("x", 65)}, obj{"type", strings.Repeat("x", 1<<16)})
	deep := any(1)
	for range 2 * DefaultLimits.MaxDepth {
		deep = arr{deep}
	}
	f([]string{"Deep"}, arr{"Deep", deep}, obj{"type", "Deep", "x", deep})
	var many arr
	var names []string
	for i := range 3 * events.MaxUnknown {
		name := fmt.Sprint("Block", i)
		many = append(many, arr{name})
		names = append(names, name)
	}
	f(names[:events.MaxUnknown], many...)
}

// TestBadTokens holds that numbers which are no token ids cost a store, and nothing but a store.
func TestBadTokens(t *testing.T) {
	const bad = "dropped bad_token=1"
	f := func(tokens any, want string) {
		t.Helper()
		if got := decodeOne(t, stored("token_ids", tokens)); got != want {
			t.Errorf("a map with %v:\ngot  %s\nwant %s", tokens, got, want)
		}
		if got := decodeOne(t, arr{"BlockStored", arr{1}, nil, tokens, 2}); got != want {
			t.Errorf("an array with %v:\ngot  %s\nwant %s", tokens, got, want)
		}
		removed := "removed 0000000000000001"
		if got := decodeOne(t, obj{"type", "BlockRemoved", "token_ids", tokens, "block_hashes", arr{1}}); got != removed {
			t.Errorf("a removal with %v: %s", tokens, got)
		}
		if got := decodeOne(t, obj{"type", "AllBlocksCleared", "token_ids", tokens}); got != "cleared" {
			t.Errorf("a clear with %v: %s", tokens, got)
		}
		if got := decodeOne(t, stored("token_ids", tokens, "token_ids", arr{7, 8})); got != plain {
			t.Errorf("tokens after %v: %s", tokens, got)
		}
	}
	f(arr{1, uint64(1) << 32}, bad)
	f(arr{uint64(math.MaxUint64), 1}, bad)
	f(arr{1, math.MinInt32 - 1}, bad)
	f(arr{1.0}, bad)
	f(arr{1, math.NaN()}, bad)
	f(arr{arr{1, uint64(1) << 32}}, bad)
	f(arr{arr{1, 2}, arr{2.0, 3}}, bad)
	for n := range 40 { // at any place of a chunk that is read at once
		list := slices.Repeat(arr{70000}, 40)
		list[n] = uint64(1) << 32
		f(list, bad)
	}
	// Anything but a number is an engine's way to say that it has no token there.
	f(arr{1, "x"}, "stored 0000000000000001 bs=2")
	f(arr{"x", uint64(1) << 32}, "stored 0000000000000001 bs=2")
	f(arr{nil}, "stored 0000000000000001 bs=2")
	f(arr{math.MaxUint32, -1}, "stored 0000000000000001 tokens=4294967295,4294967295 bs=2")

	standard := obj{"event_type", "stored", "seq_hashes", arr{1}, "token_ids", arr{uint64(1) << 32}}
	if got := decodeOne(t, standard); got != bad {
		t.Errorf("a standardized store: %s", got)
	}
	ahead := obj{"type", "BlockStored", "block_hashes", arr{1}, "token_ids", arr{7, 8}, "block_size", 2, "lookahead_token_ids",
		arr{arr{uint64(1) << 32}}}
	if got := decodeOne(t, ahead); got != bad {
		t.Errorf("look-ahead tokens: %s", got)
	}
	obsolete := arr{"BlockStoreEvent", "key", arr{}, "", 2, arr{1}, nil, arr{uint64(1) << 32}}
	if got := decodeOne(t, obsolete); got != bad {
		t.Errorf("an obsolete store: %s", got)
	}
}

// TestLongNames holds that names which tell owners of blocks apart have a bound, and kinds of groups cost
// nothing beyond it.
func TestLongNames(t *testing.T) {
	f := func(key string, n int, want string) {
		t.Helper()
		ev := obj{"event_type", "stored", "seq_hashes", arr{1}, key, strings.Repeat("n", n)}
		if got := decodeOne(t, ev); !strings.HasPrefix(got, want) {
			t.Errorf("%s of %d bytes: %s", key, n, got)
		}
	}
	for _, key := range []string{"model_name", "tenant_id", "backend_id"} {
		f(key, maxName, "stored")
		f(key, maxName+1, large)
	}
	f("lora_name", maxName+1, "stored")
	f("additional_salt", maxName+1, "stored")
	if got := decodeOne(t, stored("kv_cache_spec_kind", strings.Repeat("k", 100))); got != plain+" kind="+strings.Repeat("k", 64) {
		t.Errorf("a long kind: %s", got)
	}
}
