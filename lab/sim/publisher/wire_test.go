package publisher

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/truth"
)

// Tokens 1..4 and 5..8 under vLLM's sha256_cbor with seed "0", and tokens 1..4
// under SGLang's hash.
var (
	vllm = digest.New(digest.CBOR, "0")
	l0   = vllm.First([]uint32{1, 2, 3, 4})
	l1   = vllm.Next(l0, []uint32{5, 6, 7, 8})
	s0   = digest.New(digest.Page, "").First([]uint32{1, 2, 3, 4})
	p0   = digest.New(digest.Page, "").First([]uint32{1, 2}, 3)
)

// small returns a digest that every family's events name n.
func small(n uint64) (d digest.Digest) {
	binary.BigEndian.PutUint64(d[:], n)
	binary.BigEndian.PutUint64(d[24:], n)
	return d
}

func encode(t *testing.T, w Wire, rank, blockSize int, events ...engine.Event) []byte {
	t.Helper()
	e := newEncoder(Options{Wire: w, Rank: rank, BlockSize: blockSize})
	b, err := e.batch(time.Unix(1, 5e8), events)
	must.Succeed(t, err)
	return b
}

// TestWiresAgainstMsgspec compares with the bytes the engines' own encoder (msgspec)
// wrote for the same events at time 1.5.
func TestWiresAgainstMsgspec(t *testing.T) {
	f := func(name string, w Wire, blockSize int, want string, events ...engine.Event) {
		t.Helper()
		if got := hex.EncodeToString(encode(t, w, 0, blockSize, events...)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
	device := engine.Event{Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{l0}, Tokens: []uint32{1, 2, 3, 4}}
	removed := engine.Event{Kind: engine.Removed, Tier: truth.Device, Hashes: []digest.Digest{l0}}
	cleared := engine.Event{Kind: engine.Cleared}
	placeholder := engine.Event{Kind: engine.Stored, Tier: truth.Host, Hashes: []digest.Digest{l0}}

	f("map store", VLLMMap{}, 4,
		"93cb3ff8000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf1e0b2e028ef071cbb1706172656e745f"+
			"626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c"+
			"6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f6174"+
			"74656e74696f6e00",
		device)
	f("map remove and clear", VLLMMap{}, 4,
		"93cb3ff80000000000009284a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1e0b2e028ef071cba66d656469756d"+
			"a3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400",
		removed, cleared)
	f("map placeholder", VLLMMap{}, 4,
		"93cb3ff80000000000009189a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf1e0b2e028ef071cbb1706172656e745f"+
			"626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f"+
			"6e616d65c0a967726f75705f6964780000",
		placeholder)
	f("array of 7, two blocks", VLLMArray{Length: 7}, 4,
		"93cb3ff80000000000009197ab426c6f636b53746f72656492cf1e0b2e028ef071cbcfefad121d154ab2d6c098010203040506070804c0a347505500",
		engine.Event{Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{l0, l1}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}})
	f("array of 10, store and remove", VLLMArray{Length: 10}, 4,
		"93cb3ff8000000000000929aab426c6f636b53746f72656491cf1e0b2e028ef071cbc0940102030404c0a3475055c091c00094ac426c6f636b52656d"+
			"6f76656491cf1e0b2e028ef071cba34750550000",
		device, removed)
	f("SGLang map of pairs", SGLang{Map: true}, 2,
		"93cb3ff80000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391d3ede8ef26a097f0fdb1706172656e745f"+
			"626c6f636b5f68617368c0a9746f6b656e5f69647392920102920203aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055"+
			"00",
		engine.Event{Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{p0}, Tokens: []uint32{1, 2}, Ahead: []uint32{3}})
	f("SGLang arrays", SGLang{}, 4,
		"93cb3ff80000000000009297ab426c6f636b53746f72656491d3cf97adeedb59e05bc0940102030404c0a347505593ac426c6f636b52656d6f766564"+
			"91d3cf97adeedb59e05ba347505500",
		engine.Event{Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{s0}, Tokens: []uint32{1, 2, 3, 4}},
		engine.Event{Kind: engine.Removed, Tier: truth.Device, Hashes: []digest.Digest{s0}})
}

type object = map[string]any

// TestWiresAgainstReader decodes what was written with a generic reader and compares.
func TestWiresAgainstReader(t *testing.T) {
	f := func(name string, w Wire, ev engine.Event, want any) {
		t.Helper()
		d := msgpack.NewDecoder(bytes.NewReader(encode(t, w, 3, 2, ev)))
		d.UseLooseInterfaceDecoding(true)
		got, err := d.DecodeInterface()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if full := []any{1.5, []any{want}, int64(3)}; !reflect.DeepEqual(got, full) {
			t.Errorf("%s:\ngot  %#v\nwant %#v", name, got, full)
		}
	}
	store := func(tier truth.Tier) engine.Event {
		return engine.Event{
			Kind: engine.Stored, Tier: tier, Hashes: []digest.Digest{small(1 << 63), small(7)},
			Parent: small(5), HasParent: true, Tokens: []uint32{1, 300, 70_000, 4},
		}
	}
	below := func(tier truth.Tier) engine.Event { // one block, as all described ones below the device
		ev := store(tier)
		ev.Hashes, ev.Tokens = ev.Hashes[:1], ev.Tokens[:2]
		return ev
	}
	remove := func(tier truth.Tier) engine.Event {
		return engine.Event{Kind: engine.Removed, Tier: tier, Hashes: []digest.Digest{small(1 << 63), small(7)}}
	}
	placeholder := engine.Event{Kind: engine.Stored, Tier: truth.Disk, Hashes: []digest.Digest{small(9)}}
	cleared := engine.Event{Kind: engine.Cleared}
	unsigned := []any{uint64(1 << 63), int64(7)}
	signed := []any{int64(-1 << 63), int64(7)}
	tokens := []any{int64(1), uint64(300), uint64(70_000), int64(4)}

	f("map on disk", VLLMMap{}, below(truth.Disk), object{
		"type": "BlockStored", "block_hashes": unsigned[:1], "parent_block_hash": int64(5), "token_ids": tokens[:2],
		"block_size": int64(2), "lora_id": nil, "medium": "STORAGE", "lora_name": nil, "group_idx": int64(0),
		"kv_cache_spec_kind": "full_attention", "locality": "LOCAL",
	})
	report := store(truth.Device)
	report.Session = true
	f("map of a report", VLLMMap{}, report, object{
		"type": "BlockStored", "block_hashes": unsigned, "parent_block_hash": int64(5), "token_ids": tokens,
		"block_size": int64(2), "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": []any{nil, nil}, "group_idx": int64(0),
		"kv_cache_spec_kind": "full_attention", "session_id": "session",
	})
	f("map in host memory", VLLMMap{}, below(truth.Host), object{
		"type": "BlockStored", "block_hashes": unsigned[:1], "parent_block_hash": int64(5), "token_ids": tokens[:2],
		"block_size": int64(2), "lora_id": nil, "medium": "CPU", "lora_name": nil, "group_idx": int64(0),
		"kv_cache_spec_kind": "full_attention",
	})
	f("map placeholder on disk", VLLMMap{}, placeholder, object{
		"type": "BlockStored", "block_hashes": []any{int64(9)}, "parent_block_hash": nil, "token_ids": []any{},
		"block_size": int64(0), "lora_id": nil, "medium": "STORAGE", "lora_name": nil, "group_idx": int64(0),
		"locality": "LOCAL",
	})
	f("map removed", VLLMMap{}, remove(truth.Host), object{
		"type": "BlockRemoved", "block_hashes": unsigned, "medium": "CPU", "group_idx": int64(0),
	})

	array := []any{"BlockStored", unsigned, int64(5), tokens, int64(2), nil, "GPU", nil, []any{nil, nil}, int64(0), "full_attention", nil}
	for _, n := range []int{7, 8, 9, 10, 12} {
		f("array", VLLMArray{Length: n}, store(truth.Device), array[:n])
	}
	f("array of 12 on disk", VLLMArray{Length: 12}, below(truth.Disk),
		[]any{"BlockStored", unsigned[:1], int64(5), tokens[:2], int64(2), nil, "FS", nil, nil, int64(0), "full_attention", nil})
	f("array placeholder", VLLMArray{Length: 12}, placeholder,
		[]any{"BlockStored", []any{int64(9)}, nil, []any{}, int64(0), nil, "FS", nil, nil, int64(0), nil, nil})
	f("array removed, old", VLLMArray{Length: 8}, remove(truth.Device), []any{"BlockRemoved", unsigned, "GPU"})
	f("array removed, new", VLLMArray{Length: 10}, remove(truth.Device), []any{"BlockRemoved", unsigned, "GPU", int64(0)})
	f("array cleared", VLLMArray{Length: 8}, cleared, []any{"AllBlocksCleared"})
	f("own media", VLLMArray{Length: 8, Media: Media{"GPU", "cpu", "disk"}}, remove(truth.Host), []any{"BlockRemoved", unsigned, "cpu"})

	f("SGLang array", SGLang{}, store(truth.Host),
		[]any{"BlockStored", signed, int64(5), tokens, int64(2), nil, "CPU_PINNED"})
	f("SGLang cleared", SGLang{}, cleared, []any{"AllBlocksCleared"})
	f("SGLang map", SGLang{Map: true}, store(truth.Disk), object{
		"type": "BlockStored", "block_hashes": signed, "parent_block_hash": int64(5), "token_ids": tokens,
		"block_size": int64(2), "lora_id": nil, "medium": "DISK",
	})

	ahead := func(tier truth.Tier, ahead ...uint32) engine.Event {
		ev := store(tier)
		ev.Ahead = ahead
		return ev
	}
	f("map with a look-ahead", VLLMMap{}, ahead(truth.Device, 70_000, 4, 5, 6), object{
		"type": "BlockStored", "block_hashes": unsigned, "parent_block_hash": int64(5), "token_ids": tokens,
		"block_size": int64(2), "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": []any{nil, nil},
		"group_idx": int64(0), "kv_cache_spec_kind": "full_attention",
		"lookahead_token_ids": []any{[]any{uint64(70_000), int64(4)}, []any{int64(5), int64(6)}},
	})
	pairs := []any{
		[]any{int64(1), uint64(300)}, []any{uint64(300), uint64(70_000)},
		[]any{uint64(70_000), int64(4)}, []any{int64(4), int64(5)},
	}
	f("SGLang array of pairs", SGLang{}, ahead(truth.Disk, 70_000, 5),
		[]any{"BlockStored", signed, int64(5), pairs, int64(2), nil, "DISK"})
	f("SGLang map of pairs", SGLang{Map: true}, ahead(truth.Host, 70_000, 5), object{
		"type": "BlockStored", "block_hashes": signed, "parent_block_hash": int64(5), "token_ids": pairs,
		"block_size": int64(2), "lora_id": nil, "medium": "CPU_PINNED",
	})

	f("SGLang map removed", SGLang{Map: true}, remove(truth.Device), object{
		"type": "BlockRemoved", "block_hashes": signed, "medium": "GPU",
	})
	f("SGLang map cleared", SGLang{Map: true}, cleared, object{"type": "AllBlocksCleared"})
}

// TestWiresPublishWholeDigests: a digest is published whole.
func TestWiresPublishWholeDigests(t *testing.T) {
	b := encode(t, VLLMArray{Length: 8, Digests: true}, 0, 4,
		engine.Event{Kind: engine.Removed, Tier: truth.Device, Hashes: []digest.Digest{l0}})
	var batch []any
	must.Succeed(t, msgpack.Unmarshal(b, &batch))
	got := batch[1].([]any)[0].([]any)[1].([]any)[0].([]byte)
	if hex.EncodeToString(got) != "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb" {
		t.Errorf("digest %x", got)
	}
}

// TestNoLookAhead: no release of vLLM that wrote arrays had a look-ahead, and SGLang's
// pairs show one token of it.
func TestNoLookAhead(t *testing.T) {
	f := func(name string, w Wire, ahead ...uint32) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: a look-ahead of %d tokens was written", name, len(ahead))
			}
		}()
		encode(t, w, 0, 2, engine.Event{
			Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{small(1)}, Tokens: []uint32{1, 2}, Ahead: ahead,
		})
	}
	f("arrays", VLLMArray{Length: 12}, 3)
	f("pairs", SGLang{}, 3, 4)
}

// vLLM's connector describes each chunk in an event of its own.
func TestOffloadedBlocksComeApart(t *testing.T) {
	ev := engine.Event{Kind: engine.Stored, Tier: truth.Host, Hashes: []digest.Digest{small(1), small(2)},
		Parent: small(5), HasParent: true, Tokens: []uint32{1, 2, 3, 4}}
	all := offloadedApart(VLLMMap{}, &ev, 2)
	if len(all) != 2 || all[0].Parent != small(5) || all[1].Parent != small(1) || !reflect.DeepEqual(all[1].Tokens, []uint32{3, 4}) {
		t.Errorf("two blocks come as %+v", all)
	}
	ev.Tier = truth.Device
	if all := offloadedApart(VLLMMap{}, &ev, 2); len(all) != 1 {
		t.Errorf("two blocks on the device come as %+v", all)
	}
}
