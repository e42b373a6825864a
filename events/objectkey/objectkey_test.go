package objectkey

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/internal/alloctest"
)

const (
	digest  = "c9d58ba695280d69aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb1e0b2e028ef071cb"
	low     = uint64(0x1e0b2e028ef071cb)
	first   = uint64(0xc9d58ba695280d69)
	halfHex = "00112233445566771e0b2e028ef071cb" // 16 bytes, as of xxhash
)

func TestParse(t *testing.T) {
	f := func(text string, want Key) {
		t.Helper()
		want.Axes = want.Shard.axesOf()
		got, err := Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got != want {
			t.Errorf("%q:\n got %+v\nwant %+v", text, got, want)
		}
	}
	key := func(p Publisher, hash uint64, digest string, set func(*Key)) Key {
		k := blankKey(p)
		k.Hash, k.Digest = hash, digest
		set(&k)
		return k
	}

	// vLLM
	f("m@tp_rank:3@pcp0@dcp1@pp_rank:2@"+digest, key(VLLM, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.TP, k.PCP, k.DCP, k.PP = "m", "m", 3, 0, 1, 2
	}))
	f("pre@org/m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:7@"+digest, key(VLLM, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.TP, k.PCP, k.DCP, k.PP, k.Group = "pre@org/m", "org/m", 0, 0, 0, 0, 7
	}))
	vllm := func(text, namespace, model, digest string, hash uint64, set func(*Key)) {
		t.Helper()
		f(text, key(VLLM, hash, digest, func(k *Key) {
			k.Namespace, k.Model = namespace, model
			set(k)
		}))
	}
	vllm("m@tp_rank:1@group:0@"+halfHex, "m", "m", halfHex, low, func(k *Key) { k.TP, k.Group = 1, 0 })
	vllm("a@b@m@tp_rank:1@group:0@0B", "a@b@m", "m", "0B", 11, func(k *Key) { k.TP, k.Group = 1, 0 })
	vllm("m@tp_rank:0@group:2@0b", "m", "m", "0b", 11, func(k *Key) { k.TP, k.Group = 0, 2 })
	vllm("m@tp_rank:0@"+digest+digest, "m", "m", digest+digest, low, func(k *Key) { k.TP = 0 }) // hybrid
	vllm("pre@m@tp_rank:0@pp_rank:1@"+digest, "pre@m", "m", digest, low, func(k *Key) { k.TP, k.PP = 0, 1 })
	vllm("m@tp_rank:0@pp_rank:1@group:0@"+digest, "m", "m", digest, low, func(k *Key) { k.TP, k.PP, k.Group = 0, 1, 0 })
	vllm("qwen:8b@tp_rank:0@"+digest, "qwen:8b", "qwen:8b", digest, low, func(k *Key) { k.TP = 0 })

	// vLLM with a namespace of the store behind the model
	shared := "org/m@store_tp:4@store_pp:2@store_format:attention_head_major@store_schema:0f3a"
	vllm(shared+"@tp_rank:1@pcp0@dcp0@pp_rank:0@group:3@"+digest, shared, "org/m", digest, low, func(k *Key) {
		k.TP, k.PCP, k.DCP, k.PP, k.Group = 1, 0, 0, 0, 3
	})
	vllm("blue@"+shared+"@tp_rank:1@group:0@"+digest, "blue@"+shared, "org/m", digest, low, func(k *Key) { k.TP, k.Group = 1, 0 })
	vllm("a:1@m@newer:x.y-Z@tp_rank:0@"+digest, "a:1@m@newer:x.y-Z", "m", digest, low, func(k *Key) { k.TP = 0 })
	vllm("m@store_pp:1@tp_rank:0@pp_rank:0@"+digest, "m@store_pp:1", "m", digest, low, func(k *Key) { k.TP, k.PP = 0, 0 })

	// Parts that we do not know, among the ranks or behind them
	vllm("m@tp_rank:0@ep_rank:3@group:1@region:layer.4:conv@"+digest, "m", "m", digest, low, func(k *Key) {
		k.TP, k.Group, k.Further = 0, 1, hashPart("ep_rank:3")+hashPart("region:layer.4:conv")
	})
	vllm("m@store_pp:1@pcp0@cp2@tp_rank:0@group:1@"+digest, "m@store_pp:1", "m", digest, low, func(k *Key) {
		k.PCP, k.TP, k.Group, k.Further = 0, 0, 1, hashPart("cp2")
	})

	// vLLM-Ascend
	f("m@pcp1@dcp2@head_or_tp_rank:3@pp_rank:4@"+digest, key(Ascend, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.PCP, k.DCP, k.Head, k.PP = "m", "m", 1, 2, 3, 4
	}))
	f("m@pcp0@dcp0@head_or_tp_rank:0@"+digest+"@31", key(Ascend, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.PCP, k.DCP, k.Head, k.Layer = "m", "m", 0, 0, 0, 31
	}))
	f("m@tp_rank:1@pp_rank:0@"+digest, key(Ascend, low, digest, func(k *Key) { k.Namespace, k.Model, k.TP, k.PP = "m", "m", 1, 0 }))
	f("m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:kv@cache_family:default@"+digest, key(Ascend, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.PCP, k.DCP, k.Head, k.PP, k.Group, k.Family = "m", "m", 0, 0, 0, 0, 0, "default"
	}))
	f("m@dcp:3@head_or_tp_rank:1@group:0@cache_role:kv@cache_family:c4@layer_id:9@"+digest, key(Ascend, low, digest, func(k *Key) {
		k.Namespace, k.Model, k.DCP, k.Head, k.Group, k.Family, k.Layer = "m", "m", 3, 1, 0, "c4", 9
	}))
	f("m@"+digest+"@2", key(Ascend, low, digest, func(k *Key) { k.Model, k.Worker = "m", 2 }))
	f("m@1@"+digest+"@2", key(Ascend, low, digest, func(k *Key) { k.Model, k.Group, k.Worker = "m", 1, 2 }))
	f("m@1234567890123456@0", key(Ascend, 0x1234567890123456, "1234567890123456", func(k *Key) { k.Model, k.Worker = "m", 0 }))

	// SGLang
	f(digest+"_1_k", key(SGLang, first, digest, func(k *Key) { k.TP, k.Part = 1, Keys }))
	f(digest+"_1_v", key(SGLang, first, digest, func(k *Key) { k.TP, k.Part = 1, values }))
	f("org-m_"+digest+"_0_3_v", key(SGLang, first, digest, func(k *Key) { k.Namespace, k.TP, k.PP, k.Part = "org-m", 0, 3, values }))
	f("tag_org-m_"+digest+"_0_3_k", key(SGLang, first, digest, func(k *Key) { k.Namespace, k.TP, k.PP, k.Part = "tag_org-m", 0, 3, Keys }))
	f(digest+"__k", key(SGLang, first, digest, func(k *Key) { k.Part = Keys }))
	f(digest+"_k", key(SGLang, first, digest, func(k *Key) { k.Part = Keys }))
	f("a@b_"+digest+"_0_k", key(SGLang, first, digest, func(k *Key) { k.Namespace, k.TP, k.Part = "a@b", 0, Keys }))
	f("50%_"+digest+"_0_k", key(SGLang, first, digest, func(k *Key) { k.Namespace, k.TP, k.Part = "50%", 0, Keys }))
	f(strings.Repeat("0", 64)+"_"+digest+"_0_k", key(SGLang, first, digest, func(k *Key) {
		k.Namespace, k.TP, k.Part = strings.Repeat("0", 64), 0, Keys
	}))

	// LMCache
	f("vllm@m@4@3@"+digest, key(LMCache, low, digest, func(k *Key) { k.Namespace, k.Model, k.World, k.Worker = "vllm", "m", 4, 3 }))
	f("vllm@m@4@3@5f3@bfloat16", key(LMCache, 0x5f3, "5f3", func(k *Key) {
		k.Namespace, k.Model, k.World, k.Worker, k.DType = "vllm", "m", 4, 3, "bfloat16"
	}))
	f("vllm@m@4@3@5f3@17", key(LMCache, 0x5f3, "5f3", func(k *Key) {
		k.Namespace, k.Model, k.World, k.Worker, k.Layer = "vllm", "m", 4, 3, 17
	}))
	f("vllm@org/m@1@0@-1@half@0@user%bob@tier%gold", key(LMCache, ^uint64(0), "-1", func(k *Key) {
		k.Namespace, k.Model, k.World, k.Worker, k.DType, k.Layer, k.Tags = "vllm", "org/m", 1, 0, "half", 0, "user%bob@tier%gold"
	}))
	f("m@2@1@"+digest+"@fp8_e4m3", key(LMCache, low, digest, func(k *Key) { k.Model, k.World, k.Worker, k.DType = "m", 2, 1, "fp8_e4m3" }))
	f("m@2@1@ab@half@user%a_"+digest+"_0_k", key(LMCache, 0xab, "ab", func(k *Key) {
		k.Model, k.World, k.Worker, k.DType, k.Tags = "m", 2, 1, "half", "user%a_"+digest+"_0_k"
	}))
	f("m@2@1@ab@half@5", key(LMCache, 0xab, "ab", func(k *Key) { k.Model, k.World, k.Worker, k.DType, k.Layer = "m", 2, 1, "half", 5 }))
	f("m@2@1@3@5", key(LMCache, 5, "5", func(k *Key) { k.Namespace, k.Model, k.World, k.Worker = "m", "2", 1, 3 })) // a dtype tells

	// Numbers
	f("42", key(Plain, 42, "42", func(*Key) {}))
	f("18446744073709551615", key(Plain, ^uint64(0), "18446744073709551615", func(*Key) {}))
	f("0x1e0b2e028ef071cb", key(Plain, low, "0x1e0b2e028ef071cb", func(*Key) {}))
}

func TestParseAside(t *testing.T) {
	for _, text := range []string{
		digest + "_0_draft_k", digest + "_0_1_draft_v", "tag_" + digest + "_0_temporal", digest + "_0_conv_2", digest + "_0_swa",
		digest + "__indexer", digest + "__draft_k", "sglang_mooncake_store_warmup_key0123456789abcdef",
		"m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:state@cache_family:default@" + digest,
	} {
		if _, err := Parse(text); err != ErrAside {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		k, err := Parse(text)
		var bad *Error
		if !errors.As(err, &bad) {
			t.Errorf("%q: %v, read as %+v", text, err, k)
		} else if bad.Key != text || !strings.Contains(bad.Want, want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v, want one that names %q", text, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", " 42", "+42", "4x", "18446744073709551616", "0x", "0x1ffffffffffffffff", "0xg", digest,
		"e3b0_0_k"} {
		f(text, "u64")
	}

	f("m@tp_rank:0@", "hex digits")
	f("m@tp_rank:0@abc", "even number")
	f("m@tp_rank:0@xy", "even number")
	f("m@tp_rank:0@"+digest+"@x", "layer")
	f("m@tp_rank:0@foo@"+digest, "layer")
	f("m@tp_rank:0@foo:@"+digest, "parts like")
	f("m@tp_rank:0@Foo:1@"+digest, "parts like")
	f("m@tp_rank:0@cafe1@"+digest, "layer") // would do as a hash
	f("m@store_pp:1@tp_rank:x@"+digest, "once")
	f("@store_pp:1@tp_rank:0@"+digest, "model")
	f("m@@tp_rank:0@"+digest, "model")
	f("@tp_rank:0@"+digest, "model")
	f("@m@tp_rank:0@"+digest, "model")
	f("m@tp_rank:0@tp_rank:1@"+digest, "once")
	f("m@tp_rank:0@head_or_tp_rank:1@"+digest, "one of")
	f("m@tp_rank:00@pp_rank:0@"+digest, "once")
	f("m@tp_rank:2147483648@pp_rank:0@"+digest, "once")
	f("m@tp_rank:-1@pp_rank:0@"+digest, "once")
	f("m@head_or_tp_rank:0@layer_id:1@"+digest+"@2", "once")
	f("m@tp_rank:0@cache_role:@"+digest, "once")
	f("m@tp_rank:0@group:full@"+digest, "once")

	f("m@"+digest, "model@hash@rank")
	f("m@abcd@1", "16 hex digits")
	f("m@"+digest+"@x", "model@hash@rank")
	f("m@g@"+digest+"@1", "model@group@hash@rank")
	f("@"+digest+"@1", "model@hash@rank")
	f("@0@"+digest+"@1", "model@hash@rank")

	f(digest+"_", "behind the page hash")
	f(digest+"_x", "behind the page hash")
	f(digest+"__v", "behind the page hash")
	f(digest+"_01_k", "behind the page hash")
	f(digest+"_0_1_2_k", "behind the page hash")
	f(digest+"_0_K", "behind the page hash")
	f(digest+"_0_dra-ft", "behind the page hash")
	f("_"+digest+"_0_k", "namespace")
	f("m@"+digest+"_0_k", "namespace")
	f("a"+digest+"_0_k", "u64")

	f("vllm@m@4@3@", "fmt@model@world@worker@hash")
	f("vllm@m@x@3@ab", "world")
	f("vllm@m@4@3@-", "hash")
	f("vllm@m@4@3@ab@half@0@1", "layer")
	f("vllm@m@4@3@ab@0@half", "layer")
	f("vllm@@4@3@ab", "model")
	f("a@b%c", "LMCache")
	f("m@4@3@ab@k%v", "dtype")
	f("m@4@3@ab@half@1@2@3@4", "layer")
}

func TestDigest(t *testing.T) {
	f := func(text, digits string, hash uint64) {
		t.Helper()
		d, h, err := Digest(text)
		if d != digits || h != hash || (err == nil) != (digits != "") {
			t.Errorf("%q: %q %x, %v", text, d, h, err)
		}
	}
	f(digest, digest, low)
	f("0x"+digest, digest, low)
	f("1E0B2e028ef071cb", "1E0B2e028ef071cb", low)
	f("0b2e028ef071cb", "", 0)
	f("11e0b2e028ef071cb", "", 0)
	f(digest[:63]+"g", "", 0)
	f("", "", 0)
}

func TestKeyNamesModel(t *testing.T) {
	f := func(text, model string, want bool) {
		t.Helper()
		k, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if k.NamesModel(model) != want {
			t.Errorf("%q names %q: %v", text, model, !want)
		}
	}
	f("pre@org/m@tp_rank:0@"+digest, "org/m", true)
	f("pre@org/m@tp_rank:0@"+digest, "pre", false)
	f("org/m@store_pp:1@store_format:x@tp_rank:0@"+digest, "org/m", true)
	f("pre@org/m@store_pp:1@store_format:x@tp_rank:0@"+digest, "org/m", true)
	f("pre@org/m@store_pp:1@store_format:x@tp_rank:0@"+digest, "pre", false)
	f("pre@org/m@store_pp:1@store_format:x@tp_rank:0@"+digest, "m", false)
	f("org/m@v2@tp_rank:0@"+digest, "org/m@v2", true) // names may have an @
	f("pre@org/m@v2@store_pp:1@tp_rank:0@"+digest, "org/m@v2", true)
	f("pre@qwen:8b@tp_rank:0@"+digest, "qwen:8b", true) // and look like a part of a namespace
	f("pre@qwen:8b@store_pp:1@tp_rank:0@"+digest, "qwen:8b", true)
	f("m@"+digest+"@0", "m", true)
	f("org-m_"+digest+"_0_k", "org/m", true)
	f("tag_org-m_"+digest+"_0_k", "org/m", true)
	f("tag-org-m_"+digest+"_0_k", "org/m", false)
	f("org-m2_"+digest+"_0_k", "org/m", false)
	f("tag_"+digest+"_0_k", "org/m", false)
	f(digest+"_0_k", "", false)
	f("tag_"+digest+"_0_k", "", false)
	f("42", "", false)
}

func TestParseAllocatesNothing(t *testing.T) {
	for _, text := range samples() {
		if n := alloctest.PerRun(100, func() { _, _ = Parse(text) }); n != 0 {
			t.Errorf("%q: %v allocations", text, n)
		}
	}
}

func samples() []string {
	return []string{
		"pre@org/model@tp_rank:3@pcp0@dcp1@pp_rank:2@group:0@" + digest,
		"m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:kv@cache_family:default@" + digest,
		"m@pcp0@dcp0@head_or_tp_rank:0@" + digest + "@31",
		"m@0@" + digest + "@1",
		"pre@org/model@store_tp:4@store_pp:1@store_format:x@tp_rank:3@pcp0@dcp1@pp_rank:2@group:0@ep_rank:1@" + digest,
		"tag_org-model_" + digest + "_0_3_v",
		digest + "__k",
		digest + "_0_draft_k",
		"vllm@org/model@4@3@" + digest + "@bfloat16@7@user%bob",
		"org/model@4@3@" + digest + "@bfloat16",
		"18446744073709551615",
	}
}

func BenchmarkParse(b *testing.B) {
	for _, text := range []string{samples()[0], samples()[1], samples()[5], samples()[8], "42"} {
		k, err := Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(k.Publisher.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(text)
			}
		})
	}
}

// TestKeyID holds that spelling enters no identity of an object, and all else does.
func TestKeyID(t *testing.T) {
	id := func(text string, group int32) string {
		k := must(t, text)
		k.SetGroup(group)
		return string(k.AppendID(nil))
	}
	same := func(a, b string) {
		t.Helper()
		if id(a, -1) != id(b, 3) {
			t.Errorf("%s and %s differ", a, b)
		}
	}
	same("m@tp_rank:0@4d", "m@tp_rank:0@4D")
	same("m@pcp0@dcp0@tp_rank:0@4d", "m@dcp0@tp_rank:0@pcp0@4d")
	same("m@head_or_tp_rank:0@4d", "m@head_or_tp_rank:0@cache_role:kv@4d")
	same(digest+"_0_k", strings.ToUpper(digest)+"_0_k")
	known := make(map[string]string)
	for _, text := range []string{
		"m@tp_rank:0@4d", "M@tp_rank:0@4d", "p@m@tp_rank:0@4d", "m@tp_rank:1@4d", "m@tp_rank:0@4e", "m@tp_rank:0@014d",
		"m@tp_rank:0@group:0@4d", "m@tp_rank:0@group:3@4d",
		"m@tp_rank:0@pcp0@4d", "m@tp_rank:0@dcp0@4d", "m@tp_rank:0@pp_rank:0@4d", "m@head_or_tp_rank:0@4d", "m@head_or_tp_rank:0@4d@0",
		"m@head_or_tp_rank:0@cache_family:f@4d",
		"m@store_pp:1@tp_rank:0@4d", "m@store_pp:2@tp_rank:0@4d", "p@m@store_pp:1@tp_rank:0@4d",
		"m@tp_rank:0@store_pp:1@4d", "m@tp_rank:0@ep1@4d",
		digest + "_0_k", digest + "_0_v", digest + "_0_0_k", digest + "__k", "n_" + digest + "_0_k",
		"f@m@2@0@4d@half", "f@m@2@1@4d@half", "f@m@3@0@4d@half", "f@m@2@0@-4d@half", "f@m@2@0@4d@float", "f@m@2@0@4d@half@k%v",
	} {
		if other, twice := known[id(text, 3)]; twice {
			t.Errorf("%s and %s are one", text, other)
		}
		known[id(text, 3)] = text
	}
}
