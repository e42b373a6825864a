package wire

import (
	"math"
	"testing"
)

func TestStandardized(t *testing.T) {
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
	f(envelope("stored", "seq_hashes", arr{1234567890, 9876543210, 1122334455}, "base_block_idx", 5, "parent_hash", 9999999999, "token_ids", nil),
		"stored 00000000499602d2 000000024cb016ea 0000000042e576f7 parent=00000002540be3ff bs=64 base=5 medium=\"gpu\""+tail)
	f(envelope("removed", "seq_hashes", arr{1122334455}, "base_block_idx", 7), "removed 0000000042e576f7 bs=64 base=7 medium=\"gpu\""+tail)
	f(envelope("cleared"), "cleared bs=64 medium=\"gpu\""+tail)

	// Least and nil envelopes; the standard's names win, the engines' fill in.
	f(obj{"event_type", "stored", "seq_hashes", arr{1}}, "stored 0000000000000001 envelope")
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "model_name", nil, "tenant_id", nil, "backend_id", nil, "dp_rank", nil, "event_id", nil,
		"block_size", nil, "medium", nil, "base_block_idx", nil, "parent_hash", nil, "object_key", nil, "group_id", nil, "timestamp", nil},
		"stored 0000000000000001 envelope")
	f(obj{"event_type", "stored", "tenant_id", "", "dp_rank", -1, "seq_hashes", arr{1}}, `stored 0000000000000001 envelope tenant=""`)
	f(obj{"event_type", "stored", "type", "BlockStored", "block_hashes", arr{-1}, "seq_hashes", arr{2}, "parent_block_hash", -3, "parent_hash", 4},
		"stored 0000000000000002 parent=0000000000000004 envelope")
	f(obj{"event_type", "stored", "block_hashes", arr{-1}, "parent_block_hash", -3}, "stored ffffffffffffffff parent=fffffffffffffffd envelope")
	f(obj{"event_type", "stored", "block_hashes", arr{-1}, "seq_hashes", arr{}}, "stored ffffffffffffffff envelope")
	f(obj{"event_type", "removed", "object_key", "k"}, `removed envelope object="k"`)
	f(obj{"event_type", "removed", "seq_hashes", nil}, "removed envelope")
	f(obj{"event_type", "stored", "seq_hashes", arr{uint64(math.MaxUint64)}, "event_id", uint64(math.MaxUint64), "dp_rank", 3},
		"stored ffffffffffffffff envelope id=18446744073709551615 rank=3")

	// The Mooncake master's second generation: a stamped envelope.
	f(obj{"event_id", 7, "event_type", "removed", "type", "BlockRemoved", "model_name", "m", "block_size", 16, "additional_salt", "w8a8", "lora_name", "ad",
		"tenant_id", "t", "backend_id", "pool-a", "group_id", nil, "medium", "cpu", "dp_rank", 0, "object_key", "k", "seq_hashes", arr{}, "block_hashes", arr{}},
		`removed bs=16 medium="cpu" lora="ad" salt="w8a8" envelope id=7 model="m" tenant="t" backend="pool-a" rank=0 object="k"`)
	// Its third: parts of the object key.
	f(obj{"event_id", 8, "event_type", "stored", "type", "BlockStored", "model_name", "m", "block_size", 16, "tenant_id", "t", "backend_id", "pool-a",
		"group_id", "group:2", "medium", "disk", "dp_rank", 1, "object_key", "m@tp_rank:0@group:2@0b", "connector_block_hash", "aabb1e0b2e028ef071cb",
		"cache_prefix", "", "tp_rank", 0, "head_or_tp_rank", nil, "pcp_rank", 0, "dcp_rank", 0, "pp_rank", 0, "layer_id", nil,
		"seq_hashes", arr{2164874634404590027}, "block_hashes", arr{2164874634404590027}, "base_block_idx", nil, "parent_hash", nil, "parent_block_hash", nil, "token_ids", nil},
		`stored 1e0b2e028ef071cb bs=16 medium="disk" group=2 envelope id=8 model="m" tenant="t" backend="pool-a" rank=1 object="m@tp_rank:0@group:2@0b"`)

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
