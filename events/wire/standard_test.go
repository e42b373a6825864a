package wire

import (
	"math"
	"testing"
)

func TestDecodeStandardizedEvent(t *testing.T) {
	f := func(ev obj, want string) {
		t.Helper()
		if got := decodeOne(t, ev); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	envelope := func(kind string, more ...any) obj {
		return append(obj{"event_id", 42, "timestamp", 1739145600000, "event_type", kind, "model_name", "llama-3.1-8b",
			"block_size", 64, "additional_salt", nil, "lora_name", nil, "tenant_id", "default", "backend_id", "worker-0",
			"medium", "gpu", "dp_rank", 0}, more...)
	}
	const tail = ` envelope id=42 model="llama-3.1-8b" tenant="default" backend="worker-0" rank=0`
	f(envelope("stored", "seq_hashes", arr{1234567890, 9876543210, 1122334455}, "base_block_idx", 5, "parent_hash", 9999999999, "token_ids",
		nil),
		"stored 00000000499602d2 000000024cb016ea 0000000042e576f7 parent=00000002540be3ff bs=64 base=5 medium=\"gpu\""+tail)
	f(envelope("removed", "seq_hashes", arr{1122334455}, "base_block_idx", 7), "removed 0000000042e576f7 bs=64 base=7 medium=\"gpu\""+tail)
	f(envelope("cleared"), "cleared bs=64 medium=\"gpu\""+tail)

	// Least and nil envelopes; the standard's names win, the engines' fill in.
	f(obj{"event_type", "stored", "seq_hashes", arr{1}}, "stored 0000000000000001 envelope")
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "model_name", nil, "tenant_id", nil, "backend_id", nil, "dp_rank", nil, "event_id",
		nil,
		"block_size", nil, "medium", nil, "base_block_idx", nil, "parent_hash", nil, "object_key", nil, "group_id", nil, "timestamp", nil},
		"stored 0000000000000001 envelope")
	f(obj{"event_type", "stored", "tenant_id", "", "dp_rank", -1, "seq_hashes", arr{1}}, `stored 0000000000000001 envelope tenant=""`)
	f(obj{"event_type", "stored", "type", "BlockStored", "block_hashes", arr{-1}, "seq_hashes", arr{2}, "parent_block_hash", -3,
		"parent_hash", 4},
		"stored 0000000000000002 parent=0000000000000004 envelope")
	f(obj{"event_type", "stored", "block_hashes", arr{-1}, "parent_block_hash", -3},
		"stored ffffffffffffffff parent=fffffffffffffffd envelope")
	f(obj{"event_type", "stored", "block_hashes", arr{-1}, "seq_hashes", arr{}}, "stored ffffffffffffffff envelope")
	f(obj{"event_type", "removed", "object_key", "k"}, `removed envelope object="k"`)
	f(obj{"event_type", "removed", "seq_hashes", nil}, "removed envelope")
	f(obj{"event_type", "stored", "seq_hashes", arr{uint64(math.MaxUint64)}, "event_id", uint64(math.MaxUint64), "dp_rank", 3},
		"stored ffffffffffffffff envelope id=18446744073709551615 rank=3")

	// The Mooncake master's second generation: a stamped envelope.
	f(obj{"event_id", 7, "event_type", "removed", "type", "BlockRemoved", "model_name", "m", "block_size", 16, "additional_salt", "w8a8",
		"lora_name", "ad",
		"tenant_id", "t", "backend_id", "pool-a", "group_id", nil, "medium", "cpu", "dp_rank", 0, "object_key", "k", "seq_hashes", arr{},
		"block_hashes", arr{}},
		`removed bs=16 medium="cpu" lora="ad" salt="w8a8" envelope id=7 model="m" tenant="t" backend="pool-a" rank=0 object="k"`)
	// Its third: parts of the object key.
	f(obj{"event_id", 8, "event_type", "stored", "type", "BlockStored", "model_name", "m", "block_size", 16, "tenant_id", "t", "backend_id",
		"pool-a",
		"group_id", "group:2", "medium", "disk", "dp_rank", 1, "object_key", "m@tp_rank:0@group:2@0b", "connector_block_hash",
		"aabb1e0b2e028ef071cb",
		"cache_prefix", "", "tp_rank", 0, "head_or_tp_rank", nil, "pcp_rank", 0, "dcp_rank", 0, "pp_rank", 0, "layer_id", nil,
		"seq_hashes", arr{2164874634404590027}, "block_hashes", arr{2164874634404590027}, "base_block_idx", nil, "parent_hash", nil,
		"parent_block_hash", nil, "token_ids", nil},
		`stored 1e0b2e028ef071cb bs=16 medium="disk" group=2 envelope id=8 model="m" tenant="t" backend="pool-a" rank=1 `+
			`object="m@tp_rank:0@group:2@0b" connector="aabb1e0b2e028ef071cb"`)

	group := func(id any, want string) {
		t.Helper()
		f(obj{"event_type", "removed", "seq_hashes", arr{1}, "group_id", id}, "removed 0000000000000001"+want+" envelope")
	}
	group("0", " group=0")
	group("17", " group=17")
	group("group:3", " group=3")
	group(4, " group=4")
	for _, id := range []any{nil, "", "group:", "-1", "+1", "1x", "1234567890", "sglang-hicache:e3b0", "group:group:1"} {
		group(id, "")
	}
	f(obj{"event_type", "removed", "seq_hashes", arr{1}, "group_id", "5", "group_idx", 1}, "removed 0000000000000001 group=1 envelope")
}

// The envelope and what the master adds to it are held to their types, whether or not
// anybody reads them; the event before and the one behind stay.
func TestStandardizedTypes(t *testing.T) {
	f := func(key string, v any, want string) {
		t.Helper()
		ev := obj{"event_type", "stored", "object_key", "k", "seq_hashes", arr{1}, key, v}
		if got := decodeOne(t, ev); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	const plain = `stored 0000000000000001 envelope object="k"`
	for _, key := range []string{"connector_block_hash", "cache_prefix", "object_key", "model_name", "additional_salt", "lora_name",
		"tenant_id", "backend_id", "medium"} {
		for _, v := range []any{7, -1, 1.5, true, []byte("k"), arr{"k"}, obj{"k", "k"}, raw("a2ff00")} {
			f(key, v, bad)
		}
	}
	for _, key := range []string{"event_id", "block_size", "base_block_idx"} {
		for _, v := range []any{-1, 1.5, true, "7", []byte("7"), arr{7}, obj{"k", 7}} {
			f(key, v, bad)
		}
	}
	for _, key := range []string{"tp_rank", "head_or_tp_rank", "pcp_rank", "dcp_rank", "pp_rank", "layer_id"} {
		for _, v := range []any{1.5, true, "x", "", []byte("7"), arr{7}, obj{"k", 7}} {
			f(key, v, bad)
		}
		for _, v := range []any{nil, 0, -1, 300, "12"} {
			f(key, v, plain)
		}
	}
	for _, v := range []any{"now", true, []byte("7"), arr{7}, obj{"k", 7}} {
		f("timestamp", v, bad)
	}
	for _, v := range []any{nil, -1, 1.5, 1739145600000, uint64(math.MaxUint64)} {
		f("timestamp", v, plain)
	}
	for _, v := range []any{5, "1", []byte{1}, obj{"k", 1}, arr{nil}, arr{1.5}, arr{arr{1}}} {
		f("seq_hashes", v, bad)
		f("block_hashes", v, bad)
	}
	for _, v := range []any{true, 1.5, arr{1}, obj{"k", 1}} {
		f("parent_hash", v, bad)
		f("parent_block_hash", v, bad)
		f("event_type", v, bad)
	}
	f("connector_block_hash", "0xAB", plain+` connector="0xAB"`)
	f("connector_block_hash", nil, plain)
	f("connector_block_hash", "", plain)

	// A hash alone names no object and no block.
	if got := decodeOne(t, obj{"event_type", "stored", "connector_block_hash", "ab"}); got != bad {
		t.Errorf("a connector's hash alone: %s", got)
	}
}

func TestDecodeObsoleteEvent(t *testing.T) {
	f := func(ev arr, want string) {
		t.Helper()
		if got := decodeOne(t, ev); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	store := func(at int, v any) arr {
		ev := arr{"BlockStoreEvent", "k", arr{arr{"memory", "a"}}, "m", 2, arr{1}, nil, arr{7, 8}}
		ev[at] = v
		return ev
	}
	const tail = ` medium="cpu" model="m" object="k"`
	const rest = " tokens=7,8 bs=2" + tail
	f(store(1, "k"), "stored 0000000000000001"+rest)
	f(append(store(1, "k"), arr{"later"}), "stored 0000000000000001"+rest)
	f(store(5, 1), "stored 0000000000000001"+rest)
	f(store(5, "1"), "stored 0000000000000001"+rest)
	f(store(5, arr{"1", 2, " 3,\n4\t"}), "stored 0000000000000001 0000000000000002 0000000000000003 0000000000000004"+rest)
	f(store(5, "0xfFfffffffffffffffffffff1"), "stored fffffffffffffff1"+rest)
	f(store(5, []byte{1, 2}), "stored 0000000000000102"+rest)
	f(store(6, ""), "stored 0000000000000001"+rest)
	f(store(6, 9), "stored 0000000000000001 parent=0000000000000009"+rest)
	f(store(6, "0x09"), "stored 0000000000000001 parent=0000000000000009"+rest)
	f(store(3, nil), `stored 0000000000000001 tokens=7,8 bs=2 medium="cpu" object="k"`)
	f(store(2, arr{arr{"disk", "a"}, arr{"memory"}}), "stored 0000000000000001"+rest)
	f(store(2, arr{arr{"local_disk"}}), `stored 0000000000000001 tokens=7,8 bs=2 medium="disk" model="m" object="k"`)
	f(store(2, arr{arr{}, arr{"tape"}}), "stored 0000000000000001"+rest)
	f(store(2, nil), "stored 0000000000000001"+rest)
	f(store(5, ""), "stored"+rest)
	f(arr{"RemoveAllEvent"}, "cleared")
	f(arr{"RemoveAllEvent", nil, arr{}}, "cleared")

	f(store(1, 7), bad)
	f(store(2, "memory"), bad)
	f(store(2, arr{"memory"}), bad)
	f(store(2, arr{arr{1}}), bad)
	f(store(3, 7), bad)
	f(store(4, -1), bad)
	f(store(7, 7), bad)
	f(arr{"BlockStoreEvent", "k"}, bad)
	f(arr{"BlockStoreEvent", nil, nil, nil, 2, nil, nil, arr{7, 8}}, bad) // neither key nor hash
	for _, at := range []int{5, 6} {
		for _, v := range []any{1.5, true, "x", "1;2", "-1", "0x", "0xg0000000000000001", "18446744073709551616", arr{nil}, arr{arr{1}},
			obj{"k", 1}} {
			f(store(at, v), bad)
		}
	}
	f(store(6, arr{1, 2}), bad)
}
