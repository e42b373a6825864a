package wire

import (
	"strings"
	"testing"
)

// TestDecodeBareDigest holds which bare strings of 64 hex digits are salts, which are
// images, and which of the salts are counted as ambiguous.
func TestDecodeBareDigest(t *testing.T) {
	const (
		salt  = `salt="` + digest + `"`
		image = "[" + number + "]"
	)
	// array is a store of two blocks with the first n elements of the newest layout.
	array := func(n int, parent any, lora any, keys ...any) arr {
		return arr{"BlockStored", arr{1, 2}, parent, arr{7, 8, 9, 10}, 2, nil, "GPU", lora, keys, 0, "full_attention", nil}[:n]
	}
	mapped := func(parent any, lora any, keys ...any) obj {
		return obj{"type", "BlockStored", "block_hashes", arr{1, 2}, "parent_block_hash", parent, "token_ids", arr{7, 8, 9, 10},
			"block_size", 2, "lora_name", lora, "extra_keys", keys}
	}
	f := func(ev any, want string, ambiguous int) {
		t.Helper()
		b, err := Decode(pack(t, arr{1.5, arr{ev}, 0}), DefaultLimits)
		if err != nil || len(b.Events) != 1 {
			t.Fatalf("%v: %v %s", ev, err, render(b))
		}
		e := &b.Events[0]
		e.Kind, e.Hashes, e.HasParent, e.Tokens, e.BlockSize, e.Medium, e.Group, e.GroupKind = 0, nil, false, nil, 0, "", -1, ""
		got := strings.TrimSpace(strings.TrimPrefix(renderEvent(e), "unknown"))
		if got != want || b.Ambiguous != ambiguous {
			t.Errorf("%v:\ngot  %s, %d ambiguous\nwant %s, %d ambiguous", ev, got, b.Ambiguous, want, ambiguous)
		}
	}
	one, other := arr{digest}, arr{strings.Repeat("f", 64)}
	// A form of another release than 0.17 and 0.18: the first block's last string is a salt.
	f(mapped(nil, nil, one, nil), salt, 0)
	f(array(10, nil, nil, one, nil), salt, 0)
	f(array(12, nil, nil, one, nil), salt, 0)
	f(mapped(nil, "ad", arr{"ad", digest}, arr{"ad"}), `lora="ad" `+salt, 0)
	f(mapped(nil, digest, arr{digest, digest}, nil), `lora="`+digest+`" `+salt, 0)
	f(mapped(nil, digest, arr{digest}, arr{digest}), `lora="`+digest+`"`, 0)
	f(mapped(nil, nil, arr{arr{"img", 1}, digest}, nil), salt+" items=[[10616190782678107496] []]", 0)
	f(mapped(nil, nil, arr{digest, []byte("embedding")}, nil), salt+" items=[[348005956801000903] []]", 0)
	// Their form: the event has to show what the string is.
	f(array(9, nil, nil, one, nil), salt, 1)
	f(array(9, nil, nil, one, other), salt+" items=[[] [18446744073709551615]]", 1)
	f(array(9, nil, nil, one, one), "items=["+image+" "+image+"]", 0)
	f(array(9, nil, nil, nil, one), "items=[[] "+image+"]", 0)
	f(array(9, 5, nil, one, nil), "items=["+image+" []]", 0)
	f(array(9, nil, nil, append(one, "s"), one), `salt="s" items=[`+image+" "+image+"]", 0)
	f(array(9, nil, nil, append(other, digest), other), salt+" items=[[18446744073709551615] [18446744073709551615]]", 1)
	f(array(9, nil, "ad", arr{"ad", digest}, arr{"ad"}), `lora="ad" `+salt, 1)
	f(array(9, nil, "ad", arr{"ad", digest}, arr{"ad", digest}), `lora="ad" items=[`+image+" "+image+"]", 0)
	f(array(9, nil, digest, one, one), `lora="`+digest+`"`, 0)
	f(array(9, nil, nil, arr{"s"}, nil), `salt="s"`, 0)
	// Parent 0 may be none.
	f(mapped(0, nil, one, nil), salt, 0)
	f(array(9, 0, nil, one, one), "items=["+image+" "+image+"]", 0)
	// Behind the first block of a prompt there is no salt in any form.
	f(mapped(5, nil, one, nil), "items=["+image+" []]", 0)
	// Infos list the items, and Dynamo labels its salts.
	f(append(mapped(nil, nil, one, nil), "block_mm_infos", arr{nil, nil}), "", 0)
}

// TestDecodeOffsets holds which events show that an engine is neither vLLM 0.17 nor 0.18.
func TestDecodeOffsets(t *testing.T) {
	f := func(ev any, want bool) {
		t.Helper()
		b, err := Decode(pack(t, arr{1.5, arr{ev}, 0}), DefaultLimits)
		if err != nil || b.Offsets != want {
			t.Errorf("%v: offsets %v, error %v", ev, b.Offsets, err)
		}
	}
	nine := func(keys ...any) arr { return arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil, "GPU", nil, keys} }
	f(arr{"AllBlocksCleared"}, false)
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2}, false)
	f(nine(arr{digest}), false)
	f(nine(arr{arr{digest}}), false)
	f(nine(arr{arr{digest, 0}}), true)
	f(nine(arr{arr{"img", -3}}), true)
	f(append(nine(arr{digest}), 0), true)
	f(append(nine(arr{digest}), nil), true)
	f(append(nine(arr{digest}), arr{nil}), false) // Dynamo's infos
	f(arr{"BlockRemoved", arr{1}, "GPU"}, false)
	f(arr{"BlockRemoved", arr{1}, "GPU", 0}, true)
	f(stored(), true)
	f(obj{"type", "AllBlocksCleared"}, true)
	f(obj{"type", "Unheard"}, false)
}

// TestDecodeAdapterID holds when an event has an adapter that it does not name.
func TestDecodeAdapterID(t *testing.T) {
	f := func(ev any, want string) {
		t.Helper()
		got, ok := strings.CutPrefix(decodeOne(t, ev), plain)
		if got = strings.TrimSpace(got); !ok || got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", ev, got, want)
		}
	}
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, 3}, "lora_id=3")
	f(arr{"BlockStored", arr{1}, nil, arr{7, 8}, 2, nil}, "")
	f(stored("lora_id", 3), "lora_id=3")
	f(stored("lora_id", uint64(1)<<63), "lora_id=9223372036854775808")
	f(stored("lora_id", 3, "lora_id", nil), "")
	f(stored("lora_id", 0), "")
	f(stored("lora_id", -1), "")
	f(stored("lora_id", "3"), "")
	f(stored("lora_id", arr{3}), "")
	f(stored("lora_id", 3, "lora_name", "ad"), `lora="ad" lora_id=3`)
	f(stored("lora_id", 3, "extra_keys", arr{arr{"ad"}}), `lora="ad" lora_id=3`)
	f(stored("lora_id", 3, "extra_keys", arr{arr{"ad"}, nil}), `lora_id=3 salt="ad"`)
}
