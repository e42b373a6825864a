package wire

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
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
	f(stored("extra_keys", arr{arr{"ad", digest}, arr{"ad", digest}}, "lora_id", 1), `lora="ad" lora_id=1 `+one)
	// What the event has no blocks for, and fewer entries than blocks.
	f(stored("extra_keys", arr{nil, arr{digest}}), "")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}, arr{arr{digest, 0}}}), one)
	// Nil is no item, and the label of a salt is none in any block.
	f(stored("extra_keys", arr{arr{}}), "")
	f(stored("extra_keys", arr{arr{nil, nil}}), "")
	f(stored("extra_keys", arr{arr{"dynamo-cache-salt:s"}}, "parent_block_hash", nil, "cache_salt", "t"), `salt="t"`)
	// Infos win, also those of nothing.
	f(stored("extra_keys", arr{arr{arr{"img", 0}}}, "block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}), "items=[[42]]")
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}, "extra_keys", arr{arr{arr{"img", 0}}}), "items=[[42]]")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}}, "block_mm_infos", arr{nil}), "")
	f(stored("extra_keys", arr{arr{arr{digest, 0}}}, "block_mm_infos", nil), one)
	// They list the images alone.
	f(stored("extra_keys", arr{arr{arr{"img", 0}, digest, arr{"img", 1, 2}}}, "block_mm_infos",
		arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}),
		"items=[[42 "+numberOf(t, arr{"img", 1, 2})+"]]")
	f(stored("extra_keys", arr{arr{true}}, "block_mm_infos", arr{nil}), "items=[["+numberOf(t, true)+"]]")
	f(stored("extra_keys", arr{arr{true}}, "mm_keys", arr{}), "items=[["+numberOf(t, true)+"]]")
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", -1}}}}), "items=[[18446744073709551615]]")
	f(stored("block_mm_infos", arr{obj{"mm_objects", nil}}), "")
	f(stored("block_mm_infos", arr{obj{}}), "")
	f(stored("block_mm_infos", arr{}), "")
	f(stored("block_mm_infos", arr{obj{"mm_objects", arr{obj{"mm_hash", 42}}}}, "mm_keys", nil), "items=[[42]]")
	f(stored("mm_keys", arr{arr{}}), "")
	f(stored("mm_keys", arr{arr{obj{"hash", "opaque-renderer-image-0"}, obj{"hash", digest}}}), "items=[["+number+" 14437604544409538977]]")

	f(stored("mm_keys", arr{arr{nil}}), "")

	// An info or an object of another form is an item itself, by all that it says.
	for _, info := range []any{"x", 7, obj{"x", 7}, obj{"mm_objects", 7}} {
		f(stored("block_mm_infos", arr{info}), "items=[["+numberOf(t, info)+"]]")
	}
	for _, object := range []any{obj{"offsets", arr{}}, obj{"mm_hash", "x"}, obj{"hash", []byte(digest)}, 42, "x", arr{7}} {
		f(stored("block_mm_infos", arr{obj{"mm_objects", arr{object}}}), "items=[["+numberOf(t, object)+"]]")
		f(stored("mm_keys", arr{arr{object}}), "items=[["+numberOf(t, object)+"]]")
	}
	for _, infos := range []any{"x", 7, obj{}} {
		if got := decodeOne(t, stored("block_mm_infos", infos)); got != bad {
			t.Errorf("%v: %s", infos, got)
		}
	}
	// Without tokens there is nothing to tell apart.
	if got := decodeOne(t, obj{"type", "BlockStored", "block_hashes", arr{1}, "extra_keys",
		arr{arr{arr{digest, 0}}}}); strings.Contains(got, "items") {
		t.Errorf("a store without tokens: %s", got)
	}
}

// numberOf returns the number of an item that is no text. The encoder's form is canonical: it
// writes no map, and its numbers are as short as they can be.
func numberOf(t *testing.T, item any) string {
	t.Helper()
	return strconv.FormatUint(xxh3.Hash(pack(t, item)), 10)
}

// TestDecodeOtherItems holds that whatever is in extra_keys tells a block from others, unless it
// is understood as something else.
func TestDecodeOtherItems(t *testing.T) {
	f := func(entry any, want ...string) {
		t.Helper()
		for _, ev := range []any{
			stored("parent_block_hash", 5, "extra_keys", arr{entry}),
			arr{"BlockStored", arr{1}, 5, arr{7, 8}, 2, nil, "GPU", nil, arr{entry}},
			arr{"BlockStored", arr{1}, 5, arr{7, 8}, 2, nil, "GPU", nil, arr{entry}, 0, "full_attention", nil},
			obj{"event_type", "stored", "seq_hashes", arr{1}, "parent_hash", 5, "token_ids", arr{7, 8}, "block_size", 2, "extra_keys",
				arr{entry}},
		} {
			if got := decodeOne(t, ev); !strings.Contains(got, "items=[["+strings.Join(want, " ")+"]]") {
				t.Errorf("%v:\n%s\nwant the items %s", ev, got, want)
			}
		}
	}
	embeds := bytes.Repeat([]byte{0x12}, 32)
	// As xxhash and msgpack of Python compute them.
	f(arr{embeds}, "15598240240360918167")
	f(arr{"adapter:image"}, "10085322896148937788")
	f(arr{obj{"type", "mm", "id", "x", "offset", 1}}, "9896534904475559098")
	f(arr{arr{"prompt_embeds", embeds}}, "991950352306348440")
	f(arr{embeds}, numberOf(t, embeds))
	f(arr{"ad:" + digest}, strconv.FormatUint(itemNumber([]byte("ad:"+digest)), 10))
	f(arr{arr{"ad:" + digest, -3}}, strconv.FormatUint(itemNumber([]byte("ad:"+digest)), 10))
	for _, item := range []any{
		0, 7, -1, 200, -200, 70000, -70000, int64(1) << 40, int64(-1) << 40, uint64(1)<<63 + 1, 1.0, -0.5, true, false, []byte{},
		make([]byte, 300),
		arr{}, arr{"", 0}, arr{"img"}, arr{"img", nil}, arr{"img", "0"}, arr{"img", 1.0}, arr{"img", 0, 1}, arr{7, 0}, arr{embeds, 0},
		arr{arr{arr{nil}}}, make(arr, 20), arr{strings.Repeat("x", 300), strings.Repeat("y", 70000)[:50000]}, obj{},
		obj{"id", arr{1, obj{1, nil}}},
		raw("d40512"), raw("c70305010203"), raw("d8010102030405060708090a0b0c0d0e0f10"),
	} {
		f(arr{item}, numberOf(t, item))
		switch item.(type) {
		case arr: // is the list
		default:
			f(item, numberOf(t, item)) // an entry that is no list is an item
		}
	}
	// However an encoder writes it.
	same := func(hexa, canonical string) {
		t.Helper()
		f(arr{raw(hexa)}, strconv.FormatUint(xxh3.Hash(raw(canonical)), 10))
	}
	for _, seven := range []string{"cc07", "cd0007", "ce00000007", "cf0000000000000007", "d007", "d10007", "d200000007",
		"d30000000000000007"} {
		same(seven, "07")
	}
	same("d3ffffffffffffffff", "ff")
	same("d3ffffffffffffff80", "d080")
	same("ca3fc00000", "cb3ff8000000000000")
	same("c50002abcd", "c402abcd")
	same("dc0001db00000001"+"61", "91a161")
	same("c900000001"+"05"+"12", "d40512")
	// The pairs of a map in any order, also deeper down.
	same("82"+"a162"+"02"+"a161"+"01", "82"+"a161"+"01"+"a162"+"02")
	same("91"+"de0002"+"02"+"c0"+"01"+"82"+"c3"+"c2"+"c2"+"c3", "91"+"82"+"01"+"82"+"c2"+"c3"+"c3"+"c2"+"02"+"c0")
	same("82"+"a161"+"02"+"a161"+"01", "82"+"a161"+"01"+"a161"+"02")

	// An int is no float, bytes are no text, and 1 is not [1].
	seen := make(map[string]any)
	for _, item := range []any{1, 1.0, true, "1", []byte("1"), arr{1}, obj{1, 1}} {
		got := decodeOne(t, stored("parent_block_hash", 5, "extra_keys", arr{arr{item}}))
		if other, twice := seen[got]; twice {
			t.Errorf("%v and %v are one item", item, other)
		}
		seen[got] = item
	}
}

// A block whose items are too large or too many costs itself.
func TestItemLimits(t *testing.T) {
	lim := DefaultLimits
	lim.MaxTokens = 100
	f := func(entry any, want string) {
		t.Helper()
		ev := obj{"type", "BlockStored", "block_hashes", arr{1, 2}, "token_ids", arr{7, 8}, "block_size", 1, "extra_keys", arr{nil, entry}}
		b, err := Decode(pack(t, arr{1.5, arr{ev, arr{"AllBlocksCleared"}}, 0}), lim)
		must.Succeed(t, err)
		got := strings.Contains(render(b), "items=")
		if kept := want == ""; got != kept || !kept && b.Dropped[events.Reason(want)] != 1 ||
			b.Events[len(b.Events)-1].Kind != events.Cleared {
			t.Errorf("%.60v: %.200s, want %q", entry, render(b), want)
		}
	}
	nest := func(n int) (v any) {
		for range n {
			v = obj{v, arr{v}}
		}
		return v
	}
	f(arr{make([]byte, maxItem-5)}, "")
	f(arr{make([]byte, maxItem)}, "too_large")
	f(arr{arr{make([]byte, maxItem/2), make([]byte, maxItem/2)}}, "too_large")
	f(arr{nest(7)}, "")
	f(arr{nest(8)}, "too_large")
	many := make(arr, 101)
	for i := range many {
		many[i] = i
	}
	f(many[1:], "")
	f(many, "too_large")
}
