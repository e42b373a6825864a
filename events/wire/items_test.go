package wire

import (
	"strings"
	"testing"
)

const (
	digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	number = "81985529216486895" // of it
)

func TestItemNumber(t *testing.T) {
	f := func(id string, want uint64) {
		t.Helper()
		if got := itemNumber([]byte(id)); got != want {
			t.Errorf("%q: got %d, want %d", id, got, want)
		}
	}
	f(digest, 0x0123456789abcdef)
	f(strings.ToUpper(digest), 0x0123456789abcdef)
	f("ffffffffffffffff"+strings.Repeat("0", 48), 1<<64-1)
	f("opaque-renderer-image-0", 14437604544409538977)
	if a, b := itemNumber([]byte(digest[:63])), itemNumber([]byte(digest[:63]+"g")); a == 0x0123456789abcdef || b == 0x0123456789abcdef {
		t.Errorf("63 digits give %x, 63 and a g %x", a, b)
	}
}

func TestDecodeItems(t *testing.T) {
	f := func(ev any, want string) {
		t.Helper()
		got, ok := strings.CutPrefix(decodeOne(t, ev), plain)
		if got = strings.TrimSpace(got); !ok || got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	one := "items=[[" + number + "]]"
	f(stored("extra_keys", arr{arr{digest}, arr{digest}}), one)
	f(stored("extra_keys", arr{arr{arr{digest, 0}}}), one)
	f(stored("extra_keys", arr{arr{arr{digest, -7}}}), one)
	f(stored("extra_keys", arr{arr{digest, "s"}}), `salt="s" `+one)
	f(stored("extra_keys", arr{arr{digest, "dynamo-cache-salt:s"}}), `salt="s" `+one)
	f(stored("extra_keys", arr{arr{digest, digest}, arr{digest}}), "items=[["+number+" "+number+"]]")
	f(stored("extra_keys", arr{arr{"ad", digest}, arr{"ad", digest}}, "lora_name", "ad"), `lora="ad" `+one)
	f(stored("extra_keys", arr{arr{"ad", digest}, arr{"ad", digest}}, "lora_id", 1), `lora="ad" `+one)
	// What the event has no blocks for, and fewer entries than blocks.
	f(stored("extra_keys", arr{nil, arr{digest}}), "")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}, arr{arr{digest, 0}}}), one)
	// No items.
	f(stored("extra_keys", arr{arr{arr{"", 0}}}), "")
	f(stored("extra_keys", arr{arr{arr{digest, "0"}, arr{digest, nil}, arr{digest}, arr{digest, 0, 1}, arr{7, 0}}}), "")
	f(stored("extra_keys", arr{arr{[]byte(digest), obj{digest, 0}}}), "")
	// Infos win, also those of nothing.
	f(stored("extra_keys", arr{arr{arr{"img", 0}}}, "block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}), "items=[[42]]")
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}, "extra_keys", arr{arr{arr{"img", 0}}}), "items=[[42]]")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}}, "block_mm_infos", arr{nil}), "")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}}, "block_mm_infos", nil), one)
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", -1}}}}), "items=[[18446744073709551615]]")
	f(stored("block_mm_infos", arr{obj{"mm_objects", nil}}), "")
	f(stored("block_mm_infos", arr{obj{"x", 7, "y", arr{}}}), "")
	f(stored("block_mm_infos", arr{}), "")
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}, "mm_keys", nil), "items=[[42]]")
	f(stored("block_mm_infos", arr{"x"}), "")
	f(stored("mm_keys", arr{arr{}}), "")
	f(stored("mm_keys", arr{arr{obj{"hash", "opaque-renderer-image-0"}, obj{"hash", digest}}}), "items=[["+number+" 14437604544409538977]]")

	// An info of an item without a number could hide that there is one.
	for _, info := range []any{
		arr{obj{"mm_objects", arr{obj{"offsets", arr{}}}}}, arr{obj{"mm_objects", arr{obj{"mm_hash", "x"}}}}, arr{obj{"mm_objects", arr{42}}},
		arr{obj{"mm_objects", 7}}, arr{arr{7}}, "x", 7,
	} {
		if got := decodeOne(t, stored("block_mm_infos", info)); got != bad {
			t.Errorf("%v: %s", info, got)
		}
	}
	// Without tokens there is nothing to tell apart.
	if got := decodeOne(t, obj{"type", "BlockStored", "block_hashes", arr{1}, "extra_keys", arr{arr{arr{digest, 0}}}}); strings.Contains(got, "items") {
		t.Errorf("a store without tokens: %s", got)
	}
}
