package wire

import (
	"bytes"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
)

// obj is a map with its keys in the order given, repeats included.
type obj []any

func (o obj) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := enc.EncodeMapLen(len(o) / 2); err != nil {
		return err
	}
	for _, v := range o {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

type arr = []any

// raw inserts bytes given as hex.
func raw(s string) msgpack.RawMessage {
	p, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return p
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var w bytes.Buffer
	enc := msgpack.NewEncoder(&w)
	enc.UseCompactInts(true)
	must.Succeed(t, enc.Encode(v))
	return w.Bytes()
}

// decodeOne decodes a batch of the event between two clears and returns the
// lines that are not theirs, so that every case also shows that siblings live.
func decodeOne(t testing.TB, ev any) string {
	t.Helper()
	clear := arr{"AllBlocksCleared"}
	b, err := Decode(pack(t, arr{1.5, arr{clear, ev, clear}, 0}), DefaultLimits)
	if err != nil {
		t.Fatalf("%v: %v", ev, err)
	}
	lines := strings.Split(render(b), "\n")
	if len(lines) != 4 {
		t.Fatalf("%v: not every element is accounted for:\n%s", ev, render(b))
	}
	if b.Dropped != nil {
		lines = append(lines[:1], lines[3], lines[1], lines[2])
	} else {
		lines = append(lines[:1], lines[2], lines[1], lines[3])
	}
	if lines[0] != "batch time=1.5 rank=0" || lines[2] != "cleared" || lines[3] != "cleared" {
		t.Fatalf("%v: siblings are lost:\n%s", ev, render(b))
	}
	return lines[1]
}

// stored is a map store with more keys.
func stored(more ...any) obj {
	return append(obj{"type", "BlockStored", "block_hashes", arr{1}, "parent_block_hash", nil,
		"token_ids", arr{7, 8}, "block_size", 2}, more...)
}

const (
	bad     = "dropped bad_event=1"
	unknown = "dropped unknown_type=1"
	large   = "dropped too_large=1"
	plain   = "stored 0000000000000001 tokens=7,8 bs=2"
)

func TestMalformedEvents(t *testing.T) {
	f := func(ev any, want string) {
		t.Helper()
		if got := decodeOne(t, ev); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	// No event at all.
	f(arr{}, bad)
	f(obj{}, bad)
	f(nil, bad)
	f(7, bad)
	f("BlockStored", bad)
	f(1.5, bad)
	f(raw("d6ff00000000"), bad)
	f(raw("c403010203"), bad)

	// Tags.
	f(arr{5}, bad)
	f(arr{nil, arr{1}}, bad)
	f(arr{arr{"BlockStored"}}, bad)
	f(arr{[]byte("AllBlocksCleared")}, bad)
	f(obj{"block_hashes", arr{1}}, bad)
	f(obj{"type", 7}, bad)
	f(obj{"type", nil, "block_hashes", arr{1}}, bad)
	f(obj{"type", "BlockStored", 7, 8, "block_hashes", arr{1}}, bad)
	f(obj{nil, 1, "type", "AllBlocksCleared"}, bad)
	f(arr{"BlockInactive", arr{1}}, unknown)
	f(arr{"blockstored", arr{1}, nil, arr{1}, 1}, unknown)
	f(obj{"type", "BlockUpdated", "block_hashes", "of another kind"}, unknown)
	f(obj{"event_type", "promoted", "seq_hashes", arr{1}}, unknown)
	f(obj{"type", "BlockStored", "event_type", "promoted", "seq_hashes", arr{1}}, unknown)
	f(obj{"type", "BlockStored", "event_type", "removed", "seq_hashes", arr{1}}, bad)
	f(arr{"BlockUpdateEvent", "key"}, unknown)
	f(arr{"BlockUpdateEvent", "key", arr{arr{"memory", "x"}}}, unknown)

	// Too few elements, no hashes.
	f(arr{"BlockStored"}, bad)
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}}, bad)
	f(arr{"BlockRemoved"}, bad)
	f(obj{"type", "BlockStored", "token_ids", arr{1}}, bad)
	f(obj{"type", "BlockRemoved"}, bad)
	f(obj{"event_type", "removed", "base_block_idx", 1}, bad)

	// Hashes.
	f(arr{"BlockStored", "ab", nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", 1, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{1.0}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{float32(1)}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{[]byte{}}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{""}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{nil}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{true}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{1, arr{2}}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{obj{"h", 1}}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockStored", arr{raw("d6ff00000000")}, nil, arr{7, 8}, 2}, bad)
	f(arr{"BlockRemoved", arr{1.0}}, bad)
	f(stored("block_hashes", obj{}), bad)
	f(stored("parent_block_hash", 1.0), bad)
	f(stored("parent_block_hash", []byte{}), bad)
	f(stored("parent_block_hash", ""), bad)
	f(stored("parent_block_hash", false), bad)
	f(stored("parent_block_hash", arr{1}), bad)
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1, 2}, "remaining_copy_counts", arr{1}}, bad)
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "remaining_copy_counts", arr{-1}}, bad)

	// Scalars.
	f(stored("token_ids", "7,8"), bad)
	f(stored("token_ids", []byte{7, 0, 0, 0}), bad)
	f(stored("token_ids", 7), bad)
	f(stored("block_size", -1), bad)
	f(stored("block_size", 16.0), bad)
	f(stored("block_size", uint64(1)<<40), bad)
	f(stored("medium", 7), bad)
	f(stored("medium", raw("a2ff00")), bad)
	f(stored("lora_name", false), bad)
	f(stored("group_idx", -1), bad)
	f(stored("group_idx", "0"), bad)
	f(stored("kv_cache_spec_kind", 1), bad)
	f(stored("cache_salt", 42), bad)
	f(stored("metadata", "x"), bad)
	f(stored("metadata", obj{7, 8}), bad)
	f(stored("extra_keys", "text"), bad)
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, 7}, bad)
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "event_id", "x"}, bad)
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "dp_rank", "0"}, bad)
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "tenant_id", 7}, bad)
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "base_block_idx", -1}, bad)
}

func TestDecodeToleratesShapes(t *testing.T) {
	f := func(ev any, want string) {
		t.Helper()
		if got := decodeOne(t, ev); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	f(stored(), plain)

	// Every length of the arrays, and what later builds may append.
	array := arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2}
	f(array, plain)
	for _, v := range []any{0, nil, nil, nil, nil, nil, nil, nil, "future", arr{arr{}}, obj{"a", 1}} {
		array = append(array, v)
		f(array, plain)
	}
	full := arr{"BlockStored", arr{1}, 5, arr{7, 8}, 2, 3, "CPU", "ad", arr{nil}, 4, "mamba", 128}
	f(full, `stored 0000000000000001 parent=0000000000000005 tokens=7,8 bs=2 medium="CPU" group=4 kind=mamba `+
		`window=128 lora="ad" lora_id=3`)
	f(append(full, "LOCAL", "x"), `stored 0000000000000001 parent=0000000000000005 tokens=7,8 bs=2 medium="CPU" group=4 kind=mamba `+
		`window=128 lora="ad" lora_id=3`)
	f(append(full, "REMOTE", "x"), "dropped foreign=1")
	f(stored("locality", "LOCAL"), plain)
	f(stored("locality", nil), plain)
	f(stored("locality", ""), plain)
	f(stored("locality", "REMOTE"), "dropped foreign=1")
	f(stored("locality", "local", "locality", "LOCAL"), "dropped foreign=1")
	f(stored("locality", 1), bad)
	f(stored("kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 512), plain+" kind=sliding_window window=512")
	for _, v := range []any{nil, -1, "512", 1.5, arr{512}} { // a hint, which costs nothing
		f(stored("kv_cache_spec_sliding_window", v), plain)
	}
	f(stored("ownership", nil), plain)
	f(stored("ownership", "fs"), plain)
	f(stored("ownership", "kvcr"), plain+" owned")
	f(stored("ownership", "kvcr", "ownership", nil), plain)
	f(stored("ownership", 7), bad)
	f(stored("ownership", "kvcr", "locality", "REMOTE"), "dropped foreign=1")
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "medium", "CPU", "ownership", "kvcr"},
		`removed 0000000000000001 medium="CPU" owned`)
	f(obj{"event_type", "stored", "seq_hashes", arr{1}, "ownership", "kvcr", "session_id", "s"}, "stored 0000000000000001 envelope")
	f(stored("session_id", "s"), plain)
	f(stored("session_id", nil), plain)
	f(stored("metadata", obj{"session_id", "s", "cache_salt", nil}), plain)
	f(stored("metadata", obj{"session_id", nil}), plain)
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "session_id", "s"}, "removed 0000000000000001")

	// Stores that name no block, or no size.
	f(stored("block_hashes", arr{}), "stored tokens=7,8 bs=2")
	f(stored("block_hashes", arr{}, "extra_keys", arr{arr{"salt"}}), `stored tokens=7,8 bs=2 salt="salt"`)
	f(stored("block_hashes", arr{}, "extra_keys", arr{}), "stored tokens=7,8 bs=2")
	f(stored("block_size", 0, "token_ids", arr{}), "stored 0000000000000001")
	f(stored("block_size", 0, "token_ids", nil), "stored 0000000000000001")
	f(arr{"BlockStored", arr{}, nil, arr{7, 8}, 2}, "stored tokens=7,8 bs=2")
	f(arr{"BlockStored", arr{1}, nil, arr{}, 0}, "stored 0000000000000001")
	f(obj{"type", "BlockStored", "token_ids", arr{7, 8}, "block_size", 2}, bad)
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "locality", "REMOTE"}, "dropped foreign=1")
	f(obj{"type", "AllBlocksCleared", "locality", "REMOTE"}, "cleared")
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, nil, nil, nil, "mamba", 128}, plain+" kind=mamba window=128")
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, "GPU", arr{"part"}, nil, arr{nil}, 4, "mamba"},
		plain+` medium="GPU" group=4 kind=mamba`)
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, nil, obj{"session_id", "s", "cache_salt", nil}}, plain)
	f(arr{"BlockRemoved", arr{1}}, "removed 0000000000000001")
	f(arr{"BlockRemoved", arr{1}, "disk", 2, "future", arr{}}, `removed 0000000000000001 medium="disk" group=2 kind=future`)
	f(arr{"BlockRemoved", arr{1}, "disk", 2, "mamba", 128, "REMOTE"}, "dropped foreign=1")
	f(arr{"BlockRemoved", arr{1}, "disk", 2, 128, "mamba", 1}, `removed 0000000000000001 medium="disk" group=2`)
	f(arr{"BlockRemoved", nil}, "removed")
	f(arr{"AllBlocksCleared", nil, arr{1}}, "cleared")
	f(arr{"AllBlocksCleared", "CPU"}, `cleared medium="CPU"`) // ATOM's
	f(arr{"AllBlocksCleared", "gpu", nil}, `cleared medium="gpu"`)
	f(arr{"AllBlocksCleared", "future"}, "cleared") // no medium, so it says something else
	f(arr{"AllBlocksCleared", 7}, "cleared")
	f(arr{"AllBlocksCleared", "kvcr"}, "cleared owned") // Dynamo's
	f(obj{"type", "AllBlocksCleared", "ownership", "kvcr"}, "cleared owned")
	f(obj{"type", "AllBlocksCleared", "ownership", "fs"}, "cleared")
	f(obj{"type", "TierBlocksCleared", "medium", "CPU", "ownership", "kvcr"}, `cleared medium="CPU" owned`)

	// Blocks that move, ATOM's.
	moved := func(more ...any) arr { return append(arr{"BlockTransferred", arr{1, 2}, "GPU", "CPU"}, more...) }
	const two12 = "moved 0000000000000001 0000000000000002 "
	f(moved(), two12+`from="GPU" medium="CPU"`)
	f(moved(nil), two12+`from="GPU" medium="CPU"`)
	f(moved(3), two12+`from="GPU" medium="CPU" group=3`)
	f(moved(nil, "future", arr{1}), two12+`from="GPU" medium="CPU"`)
	f(moved("x"), two12+`from="GPU" medium="CPU"`)
	f(arr{"BlockTransferred", arr{1}, nil, "DISK", nil}, `moved 0000000000000001 from="" medium="DISK"`)
	f(arr{"BlockTransferred", arr{1}, "REMOTE", nil, nil}, `moved 0000000000000001 from="REMOTE"`)
	f(arr{"BlockTransferred", arr{}, "GPU", "CPU"}, `moved from="GPU" medium="CPU"`)
	f(arr{"BlockTransferred", arr{1}, "GPU"}, bad)
	f(arr{"BlockTransferred", arr{1}}, bad)
	f(arr{"BlockTransferred", 1, "GPU", "CPU"}, bad)
	f(arr{"BlockTransferred", arr{1}, 1, "CPU"}, bad)
	f(arr{"BlockTransferred", arr{1}, "GPU", 1}, bad)
	f(obj{"type", "BlockTransferred", "block_hashes", arr{1, 2}, "from_medium", "GPU", "to_medium", "CPU", "group_idx", 3},
		two12+`from="GPU" medium="CPU" group=3`)
	f(obj{"to_medium", nil, "from_medium", "CPU", "block_hashes", arr{1}, "type", "BlockTransferred", "token_ids", arr{1}, "medium", "x",
		"parent_block_hash", 4, "remaining_copy_counts", arr{1}, "object_key", "k"}, `moved 0000000000000001 from="CPU"`)
	f(obj{"type", "BlockTransferred", "block_hashes", arr{1}, "from_medium", "GPU"}, bad)
	f(obj{"type", "BlockTransferred", "block_hashes", arr{1}, "to_medium", "CPU"}, bad)
	f(obj{"type", "BlockTransferred", "object_key", "k", "from_medium", "GPU", "to_medium", "CPU"}, bad)
	f(obj{"type", "BlockTransferred", "event_type", "stored", "block_hashes", arr{1}, "from_medium", "GPU", "to_medium", "CPU"}, bad)
	f(obj{"type", "BlockTransferred", "block_hashes", arr{1}, "from_medium", "GPU", "to_medium", "CPU", "locality", "REMOTE"},
		"dropped foreign=1")
	f(stored("from_medium", "GPU", "to_medium", "CPU"), plain)

	f(arr{"TierBlocksCleared", "CPU", arr{1}}, `cleared medium="CPU"`)
	f(obj{"type", "TierBlocksCleared", "medium", "DISK"}, `cleared medium="DISK"`)
	f(arr{"TierBlocksCleared"}, bad)
	f(arr{"TierBlocksCleared", nil}, bad)
	f(obj{"type", "TierBlocksCleared"}, bad)

	// Hashes of every width and sort; 0 is one.
	f(obj{"type", "BlockRemoved", "block_hashes", arr{
		0, 127, 128, 1 << 15, 1 << 31, uint64(1) << 63, uint64(math.MaxUint64), -1, -33, -1 << 15, -1 << 31, math.MinInt64,
		raw("d005"), raw("d300000000000000ff"),
	}}, "removed 0000000000000000 000000000000007f 0000000000000080 0000000000008000 0000000080000000 8000000000000000 ffffffffffffffff"+
		" ffffffffffffffff ffffffffffffffdf ffffffffffff8000 ffffffff80000000 8000000000000000 0000000000000005 00000000000000ff")
	f(arr{"BlockRemoved", arr{[]byte{1, 2, 3}, []byte{1, 2, 3, 4, 5, 6, 7, 8}, []byte{9, 1, 2, 3, 4, 5, 6, 7, 8}, raw("a3fffe00")}},
		"removed 0000000000010203 0102030405060708 0102030405060708 0000000000fffe00")
	f(stored("parent_block_hash", 0), "stored 0000000000000001 parent=0000000000000000 tokens=7,8 bs=2")
	f(stored("parent_block_hash", make([]byte, 8)), "stored 0000000000000001 parent=0000000000000000 tokens=7,8 bs=2")
	f(stored("parent_block_hash", make([]byte, 32)), "stored 0000000000000001 parent=0000000000000000 tokens=7,8 bs=2")
	f(stored("parent_block_hash", -1), "stored 0000000000000001 parent=ffffffffffffffff tokens=7,8 bs=2")
	f(stored("parent_block_hash", -2), "stored 0000000000000001 parent=fffffffffffffffe tokens=7,8 bs=2")
	f(stored("block_hashes", nil), "stored tokens=7,8 bs=2")

	// Tokens.
	f(stored("token_ids", arr{0, 255, 256, 65536, uint32(math.MaxUint32), -1, math.MinInt32}),
		"stored 0000000000000001 tokens=0,255,256,65536,4294967295,4294967295,2147483648 bs=2")
	f(stored("token_ids", arr{1, "x"}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{"x", arr{arr{}}}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{nil}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{arr{1, 2}}), "stored 0000000000000001 tokens=1,2 bigram bs=2")
	f(stored("token_ids", arr{arr{1, 2}, arr{2, 300}, arr{300, 70000}}), "stored 0000000000000001 tokens=1,2,300,70000 bigram bs=2")
	f(stored("token_ids", arr{arr{1, 2}, arr{3, 4}}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{arr{1, 2}, 3}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{1, arr{1, 2}}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{arr{1, 2, 3}}), "stored 0000000000000001 bs=2")
	f(stored("token_ids", arr{arr{1, "x"}}), "stored 0000000000000001 bs=2")

	// Look-ahead tokens.
	ahead := func(blocks, size int, tokens, lists any, more ...any) obj {
		hashes := arr{}
		for i := range blocks {
			hashes = append(hashes, i+1)
		}
		return append(obj{"type", "BlockStored", "block_hashes", hashes, "token_ids", tokens, "block_size", size, "lookahead_token_ids",
			lists}, more...)
	}
	const two = "stored 0000000000000001 0000000000000002 "
	f(ahead(1, 2, arr{7, 8}, arr{arr{9}}), "stored 0000000000000001 tokens=7,8,9 ahead=1 bs=2")
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{9}, arr{11}}), two+"tokens=7,8,9,10,11 ahead=1 bs=2")
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{9, 10, 11, 12}, arr{11, 12, 13, 70000}}), two+"tokens=7,8,9,10,11,12,13,70000 ahead=4 bs=2")
	// before the tokens
	f(append(obj{"lookahead_token_ids", arr{arr{9}}}, ahead(1, 2, arr{7, 8}, nil)[:8]...),
		"stored 0000000000000001 tokens=7,8,9 ahead=1 bs=2")
	f(ahead(1, 2, arr{7, 8}, nil), plain)
	f(ahead(1, 2, arr{7, 8}, arr{}), plain)
	f(ahead(1, 2, arr{7, 8}, arr{arr{}}), plain)
	f(ahead(1, 2, arr{7, 8, 9, 10}, arr{arr{11}}), "stored 0000000000000001 ahead=1 bs=2") // a block is left out
	f(ahead(1, 2, nil, arr{arr{11}}), "stored 0000000000000001 ahead=1 bs=2")
	f(ahead(1, 2, arr{7, "x"}, arr{arr{11}}), "stored 0000000000000001 ahead=1 bs=2")
	f(ahead(0, 0, nil, arr{}), "stored")
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{8}, arr{11}}), "dropped bad_event=1")                 // contradicts the tokens
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{9, 10, 11}, arr{12, 13, 14}}), "dropped bad_event=1") // contradict each other
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{9}, arr{11, 12}}), "dropped bad_event=1")             // of two lengths
	f(ahead(2, 2, arr{7, 8, 9, 10}, arr{arr{9}}), "dropped bad_event=1")                          // of another number of blocks
	f(ahead(1, 2, arr{7, 8}, arr{arr{"x"}}), "dropped bad_event=1")
	f(ahead(1, 2, arr{7, 8}, arr{nil}), "dropped bad_event=1")
	f(ahead(1, 2, arr{7, 8}, 9), "dropped bad_event=1")
	f(ahead(1, 2, arr{arr{7, 8}, arr{8, 9}}, arr{arr{9}}), "dropped bad_event=1") // pairs have theirs
	f(ahead(1, 2, arr{7, 8}, arr{slices.Repeat(arr{1}, 64)}), "dropped too_large=1")
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "lookahead_token_ids", arr{arr{9}}}, "removed 0000000000000001")

	// Keys: any order, unknown ones of any shape, the last of a repeated one.
	f(obj{"block_size", 2, "token_ids", arr{7, 8}, "block_hashes", arr{1}, "type", "BlockStored"}, plain)
	f(stored("future", obj{7, arr{obj{nil, 1.5}}}, "", nil, "x", raw("c70501aabbccddee"), "y", raw("d8010102030405060708090a0b0c0d0e0f10")),
		plain)
	f(stored("block_hashes", arr{2, 3}, "parent_block_hash", 9, "parent_block_hash", nil, "token_ids", nil),
		"stored 0000000000000002 0000000000000003 bs=2")
	f(stored("medium", nil, "lora_name", nil, "group_idx", nil, "block_size", nil), "stored 0000000000000001 tokens=7,8")
	f(stored("medium", "", "lora_name", ""), plain+` lora=""`)
	f(obj{"type", "BlockRemoved", "block_hashes", arr{1}, "token_ids", arr{1}, "parent_block_hash", 4}, "removed 0000000000000001")
	f(obj{"type", "AllBlocksCleared", "medium", "CPU", "block_hashes", arr{1}}, `cleared medium="CPU"`)
	f(stored("seq_hashes", arr{5}, "parent_hash", 6), "stored 0000000000000001 parent=0000000000000006 tokens=7,8 bs=2")
}
