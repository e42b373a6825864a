package wire

import (
	"strings"
	"testing"
)

func TestDecodeSalt(t *testing.T) {
	f := func(ev obj, want string) {
		t.Helper()
		got, ok := strings.CutPrefix(decodeOne(t, ev), plain)
		if got = strings.TrimSpace(got); !ok || got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	const x = " items=[[16929150178197425425]]" // "x", which is no salt where another field names one
	f(stored("cache_salt", "s"), `salt="s"`)
	f(stored("cache_salt", ""), "")
	f(stored("cache_salt", nil), "")
	f(stored("metadata", obj{"session_id", "x", "cache_salt", "s"}), `salt="s"`)
	f(stored("metadata", nil), "")
	f(stored("additional_salt", "s"), `salt="s"`)
	f(stored("additional_salt", ""), `salt=""`)
	f(stored("extra_keys", arr{arr{"x"}}, "additional_salt", "c", "metadata", obj{"cache_salt", "b"}, "cache_salt", "a"), `salt="a"`+x)
	f(stored("extra_keys", arr{arr{"x"}}, "additional_salt", "c", "metadata", obj{"cache_salt", "b"}), `salt="b"`+x)
	f(stored("extra_keys", arr{arr{"x"}}, "additional_salt", "c"), `salt="c"`+x)

	f(stored("extra_keys", arr{arr{"s"}}), `salt="s"`)
	f(stored("extra_keys", arr{arr{"s"}, nil}), `salt="s"`)
	f(stored("extra_keys", arr{arr{"s"}, arr{}}), `salt="s"`)
	f(stored("extra_keys", arr{nil, arr{"s"}}), "")
	f(stored("extra_keys", nil), "")
	f(stored("extra_keys", arr{}), "")
	f(stored("extra_keys", arr{arr{}}), "")
	f(stored("extra_keys", arr{arr{""}}), "items=[[3244421341483603138]]")
	f(stored("extra_keys", arr{arr{arr{"imgA", -2}}}), "items=[[7305794723096569703]]")
	f(stored("extra_keys", arr{arr{[]byte("digest of an embedding")}}), "items=[[6171523832416022894]]")
	f(stored("extra_keys", arr{arr{arr{"imgA", -2}, "s", []byte("digest")}}), `salt="s" items=[[7305794723096569703 17346918240923981150]]`)
	f(stored("extra_keys", arr{arr{7, 1.5, true, nil, obj{}}}),
		"items=[[5502495245947142431 7715946029497977153 10301841813671556584 17176629001025232421]]")
	// Dynamo's label, wherever it is.
	f(stored("extra_keys", arr{arr{"dynamo-cache-salt:s", "x"}}), `salt="s"`+x)
	f(stored("extra_keys", arr{arr{"dynamo-cache-salt:s"}, arr{"dynamo-cache-salt:s"}}), `salt="s"`)
	f(stored("extra_keys", arr{arr{"x", "dynamo-cache-salt:", "dynamo-cache-salt:ad"}}, "lora_name", "ad"), `lora="ad" salt="ad"`+x)
	f(stored("extra_keys", arr{arr{"dynamo-cache-salt:"}}), "")
	f(stored("extra_keys", arr{arr{"dynamo-cache-salt:s"}}, "cache_salt", "t"), `salt="t"`)
	// The adapter's name, before or after the keys, once.
	f(stored("lora_name", "ad", "extra_keys", arr{arr{"ad"}}), `lora="ad"`)
	f(stored("extra_keys", arr{arr{"ad"}}, "lora_name", "ad"), `lora="ad"`)
	f(stored("lora_name", "ad", "extra_keys", arr{arr{"ad", "s"}, arr{"ad"}}), `lora="ad" salt="s"`)
	f(stored("lora_name", "ad", "extra_keys", arr{arr{"ad", "ad"}, arr{"ad"}}), `lora="ad"`)
	f(stored("lora_name", "ad", "extra_keys", arr{arr{"ad", "ad"}}), `lora="ad" salt="ad"`)
	// What every block has is no salt. It may be an adapter that the event does not name, or an image.
	const ad, img = " items=[[16022430158178189381]]", " items=[[10616190782678107496]]"
	f(stored("extra_keys", arr{arr{"ad"}, arr{"ad"}}), strings.TrimSpace(ad))
	f(stored("extra_keys", arr{arr{"ad"}, arr{"img", "ad"}, arr{"ad"}}), strings.TrimSpace(ad))
	f(stored("extra_keys", arr{arr{"ad"}, arr{"ad"}, nil}), strings.TrimSpace(ad))
	f(stored("extra_keys", arr{arr{"ad", "s"}, arr{"ad"}}), `salt="s"`+ad)
	f(stored("extra_keys", arr{arr{"img", "s"}}), `salt="s"`+img)

	// A block with a parent is not the first of its chain.
	if got := decodeOne(t, stored("parent_block_hash", 5, "extra_keys", arr{arr{"img"}})); strings.Contains(got, "salt") {
		t.Errorf("a block in mid-chain has a salt: %s", got)
	}
	if got := decodeOne(t, stored("base_block_idx", 3, "extra_keys", arr{arr{"img"}})); strings.Contains(got, "salt") {
		t.Errorf("a block at depth 3 has a salt: %s", got)
	}
	if got := decodeOne(t, obj{"type", "BlockRemoved", "block_hashes", arr{1}, "extra_keys", arr{arr{"s"}}}); strings.Contains(got,
		"salt") {
		t.Errorf("a removal has a salt from extra keys: %s", got)
	}
	if got := decodeOne(t, stored("extra_keys", arr{arr{raw("a2ff00")}})); got != bad {
		t.Errorf("a salt that is no UTF-8: %s", got)
	}
}
