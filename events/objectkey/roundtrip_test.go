package objectkey

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// write puts a key into the text of its form, from the grammars and not from
// the code that reads them.
//
// Keys do not keep the text of parts that nobody knows, so none is written.
func write(k *Key) string {
	var b strings.Builder
	number := func(format string, n int32) {
		if n >= 0 {
			fmt.Fprintf(&b, format, n)
		}
	}
	word := func(format, s string) {
		if s != "" {
			fmt.Fprintf(&b, format, s)
		}
	}
	switch k.Publisher {
	case Plain:
		b.WriteString(k.Digest)
	case VLLM, Ascend:
		if k.Worker >= 0 {
			b.WriteString(k.Model)
			number("@%d", k.Group)
			fmt.Fprintf(&b, "@%s@%d", k.Digest, k.Worker)
			break
		}
		b.WriteString(k.Namespace)
		number("@tp_rank:%d", k.TP)
		number("@pcp%d", k.PCP)
		number("@dcp%d", k.DCP)
		number("@head_or_tp_rank:%d", k.Head)
		number("@pp_rank:%d", k.PP)
		number("@group:%d", k.Group)
		word("@cache_role:kv@cache_family:%s", k.Family)
		word("@%s", k.Digest)
		number("@%d", k.Layer)
	case SGLang:
		word("%s_", k.Namespace)
		b.WriteString(k.Digest)
		number("_%d", k.TP)
		number("_%d", k.PP)
		if k.TP < 0 && k.Part == Keys {
			b.WriteString("_")
		}
		b.WriteString([]string{"", "_k", "_v"}[k.Part])
	case LMCache:
		word("%s@", k.Namespace)
		fmt.Fprintf(&b, "%s@%d@%d@%s", k.Model, k.World, k.Worker, k.Digest)
		word("@%s", k.DType)
		number("@%d", k.Layer)
		word("@%s", k.Tags)
	}
	return b.String()
}

// some makes a key at random, in any form.
func some(r *rand.Rand) Key {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	maybe := func(to *int32) {
		if r.IntN(2) == 0 {
			*to = r.Int32() >> r.IntN(31)
		}
	}
	always := func(to *int32) { *to = r.Int32() >> r.IntN(31) }
	hex := func(digits int) string {
		b := make([]byte, digits)
		for i := range b {
			b[i] = "0123456789abcdef"[r.IntN(16)]
		}
		return string(b)
	}
	model := func() string {
		return pick("m", "org/model", "qwen:8b", "a_b-c.d", "0123", "abcd", "tp_rank", "模型")
	}
	k := blankKey(Publisher(r.IntN(len(publishers))))
	last := func(s string) uint64 {
		if len(s) > 16 {
			s = s[len(s)-16:]
		}
		var h uint64
		if _, err := fmt.Sscanf(s, "%x", &h); err != nil {
			panic(err)
		}
		return h
	}
	switch k.Publisher {
	case Plain:
		k.Hash = r.Uint64() >> r.IntN(64)
		k.Digest = fmt.Sprintf(pick("%d", "0x%x"), k.Hash)
	case VLLM:
		k.Model = model()
		prefix := pick("", "pre@", "a@b@")
		if k.Model == "qwen:8b" { // which behind a prefix looks like a part of a namespace
			prefix = ""
		}
		k.Namespace = prefix + k.Model + pick("", "@store_pp:1@store_format:tp_shared_mqa", "@newer:x.y")
		always(&k.TP)
		if r.IntN(2) == 0 {
			always(&k.PCP)
			always(&k.DCP)
			always(&k.PP)
			maybe(&k.Group)
		} else {
			always(&k.Group)
		}
		k.Digest = hex(2 + 2*r.IntN(64))
		k.Hash = last(k.Digest)
	case Ascend:
		k.Model = model()
		k.Digest = hex(16 + 2*r.IntN(64))
		k.Hash = last(k.Digest)
		switch r.IntN(4) {
		case 0:
			k.Namespace = k.Model
			always(&k.TP)
			always(&k.PP)
		case 1:
			always(&k.Worker)
			maybe(&k.Group)
		default:
			k.Namespace = k.Model
			always(&k.PCP)
			always(&k.DCP)
			always(&k.Head)
			maybe(&k.PP)
			maybe(&k.Layer)
			if r.IntN(2) == 0 {
				always(&k.Group)
				k.Family = pick("default", "c1", "mixed")
			}
		}
	case SGLang:
		k.Namespace = pick("", "tag", "tag_org-model", "a@b", "_", "k", strings.Repeat("a", 64))
		k.Digest = hex(64)
		if _, err := fmt.Sscanf(k.Digest[:16], "%x", &k.Hash); err != nil {
			panic(err)
		}
		if k.Part = Keys; r.IntN(3) > 0 {
			always(&k.TP)
			maybe(&k.PP)
			k.Part = []Part{Keys, values}[r.IntN(2)]
		}
	case LMCache:
		k.Model, k.Namespace = model(), pick("", "vllm", "huggingface")
		always(&k.World)
		always(&k.Worker)
		k.Hash = r.Uint64() >> r.IntN(64)
		if k.Digest = fmt.Sprintf("%x", k.Hash); r.IntN(3) == 0 {
			k.Digest, k.Hash = "-"+k.Digest, -k.Hash
		}
		if k.Namespace == "" || r.IntN(2) == 0 {
			k.DType = pick("half", "bfloat16", "float", "double", "fp8", "fp8_e5m2", "uint8")
		}
		maybe(&k.Layer)
		k.Tags = pick("", "user%bob", "a%b@c%d", "a%_"+digest+"_0_k", "a%")
	}
	k.Axes = k.Shard.axesOf()
	return k
}

func TestRoundTrip(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	seen := make(map[string]Key)
	for range 50_000 {
		want := some(r)
		text := write(&want)
		got, err := Parse(text)
		if err != nil || got != want {
			t.Fatalf("seed %d: %q: %v\n got %+v\nwant %+v", seed, text, err, got, want)
		}
		if before, ok := seen[text]; ok && before != want {
			t.Fatalf("seed %d: %q is two keys:\n%+v\n%+v", seed, text, before, want)
		}
		seen[text] = want
	}
}

// FuzzParse holds the rules of any text: no panic, an error that is one of
// two, and a key that reads the same when it is written again.
func FuzzParse(f *testing.F) {
	for _, text := range samples() {
		f.Add(text)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		k := some(r)
		f.Add(write(&k))
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := Parse(text)
		if err != nil {
			if bad, ok := err.(*Error); k != (Key{}) || err != ErrAside && (!ok || bad.Key != text || bad.Want == "") {
				t.Fatalf("%q: %v beside %+v", text, err, k)
			}
			return
		}
		if k.Digest == "" || !strings.Contains(text, k.Digest) || !strings.Contains(text, k.Model) || k.Axes != k.Shard.axesOf() {
			t.Fatalf("%q: %+v", text, k)
		}
		known := k
		known.Further = 0
		known.Axes = known.Shard.axesOf()
		again, err := Parse(write(&known))
		if err != nil || again != known {
			t.Fatalf("%q, then %q: %v\n got %+v\nwant %+v", text, write(&known), err, again, known)
		}
	})
}
