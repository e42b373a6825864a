package hash

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"example.com/conductor/internal/must"
)

// A second way to every digest, written for reading: values as trees, each encoder
// one function over all kinds of them.

// tuple is a Python tuple; the other values are []byte, string, int32 and nil.
type tuple []any

// slowCBOR returns v as canonical CBOR.
func slowCBOR(v any) []byte {
	head := func(major byte, n uint64) []byte {
		be := binary.BigEndian.AppendUint64(nil, n)
		switch {
		case n < 24:
			return []byte{major<<5 + byte(n)}
		case n < 1<<8:
			return append([]byte{major<<5 + 24}, be[7:]...)
		case n < 1<<16:
			return append([]byte{major<<5 + 25}, be[6:]...)
		case n < 1<<32:
			return append([]byte{major<<5 + 26}, be[4:]...)
		}
		return append([]byte{major<<5 + 27}, be...)
	}
	switch v := v.(type) {
	case nil:
		return []byte{0xf6}
	case int32:
		if v < 0 {
			return head(1, uint64(-1-int64(v)))
		}
		return head(0, uint64(v))
	case []byte:
		return append(head(2, uint64(len(v))), v...)
	case string:
		return append(head(3, uint64(len(v))), v...)
	case tuple:
		out := head(4, uint64(len(v)))
		for _, e := range v {
			out = append(out, slowCBOR(e)...)
		}
		return out
	}
	panic("not a value of blocks")
}

// piece is some of a pickle: what one write of CPython's pickler adds.
type piece struct {
	data   string
	object bool // a value begins before it, where a frame may end
	alone  bool // it is in no frame
}

// pieces returns the writes of v.
func pieces(v any) []piece {
	memo := piece{data: "\x94"}
	le := func(n uint64, size int) string { return string(binary.LittleEndian.AppendUint64(nil, n)[:size]) }
	switch v := v.(type) {
	case nil:
		return []piece{{"N", true, false}}
	case int32:
		switch {
		case v >= 0 && v < 1<<8:
			return []piece{{"K" + le(uint64(v), 1), true, false}}
		case v >= 0 && v < 1<<16:
			return []piece{{"M" + le(uint64(v), 2), true, false}}
		}
		return []piece{{"J" + le(uint64(uint32(v)), 4), true, false}}
	case []byte:
		return []piece{{"C" + le(uint64(len(v)), 1) + string(v), true, false}, memo}
	case string:
		head := "\x8c" + le(uint64(len(v)), 1)
		if len(v) > 255 {
			head = "X" + le(uint64(len(v)), 4)
		}
		return []piece{{head + v, true, len(v) >= 65536}, memo}
	case tuple:
		out := []piece{{"", true, false}}
		if len(v) > 3 {
			out = append(out, piece{data: "("})
		}
		for _, e := range v {
			out = append(out, pieces(e)...)
		}
		if len(v) > 3 {
			return append(out, piece{data: "t"}, memo)
		}
		return append(out, piece{data: "\x85\x86\x87"[len(v)-1 : len(v)]}, memo)
	}
	panic("not a value of blocks")
}

// slowPickle returns v as pickle protocol 5.
func slowPickle(v any) []byte {
	out := []byte{0x80, 5}
	var frame []byte
	end := func() {
		if len(frame) >= 4 {
			out = binary.LittleEndian.AppendUint64(append(out, 0x95), uint64(len(frame)))
		}
		out = append(out, frame...)
		frame = nil
	}
	for _, p := range append(pieces(v), piece{data: "."}) {
		if p.object && len(frame) >= 65536 {
			end()
		}
		if p.alone {
			end()
			out = append(out, p.data...)
		} else {
			frame = append(frame, p.data...)
		}
	}
	end()
	return out
}

// slowChain returns the digests of a prompt under settings that are valid, with a
// look-ahead in tokens where the strategy is vLLM's.
func slowChain(s Settings, ahead int, lora, salt string, tokens []uint32, size int) [][]byte {
	sha := func(b []byte) []byte { h := sha256.Sum256(b); return h[:] }
	var out [][]byte
	if s.Strategy != StrategyVLLM {
		var parent []byte
		if salt != "" {
			parent = sha([]byte("sglang-cache-salt-v1\x00" + salt))
		}
		var units [][]byte
		for i, t := range tokens {
			unit := binary.LittleEndian.AppendUint32(nil, t)
			if s.Strategy == StrategySGLangBigram {
				if i+1 == len(tokens) {
					break
				}
				unit = binary.LittleEndian.AppendUint32(unit, tokens[i+1])
			}
			units = append(units, unit)
		}
		for ; size > 0 && len(units) >= size; units = units[size:] {
			parent = sha(append(parent, bytes.Join(units[:size], nil)...))
			out = append(out, parent)
		}
		return out
	}

	hash := func(v any) []byte {
		b := slowPickle(v)
		if strings.HasSuffix(s.Algorithm, "cbor") {
			b = slowCBOR(v)
		}
		if strings.HasPrefix(s.Algorithm, "xxhash") {
			h := xxh3.Hash128(b).Bytes()
			return h[:]
		}
		return sha(b)
	}
	extra := func(tag, text string) any {
		if s.ExtraKeys == ExtraKeysTagged {
			return tuple{tag, text}
		}
		return text
	}
	parent := hash(s.PythonHashSeed)
	for i := 0; size > 0 && (i+1)*size+ahead <= len(tokens); i++ {
		var block, extras tuple
		for _, t := range tokens[i*size : (i+1)*size] {
			block = append(block, int32(t))
		}
		if lora != "" {
			extras = append(extras, extra("lora", lora))
		}
		if salt != "" && i == 0 {
			extras = append(extras, extra("cache_salt", salt))
		}
		var third any
		if extras != nil {
			third = extras
		}
		if ahead > 0 {
			with := tuple{third} // and the look-ahead
			for _, t := range tokens[(i+1)*size : (i+1)*size+ahead] {
				with = append(with, int32(t))
			}
			third = with
		}
		parent = hash(tuple{parent, block, third})
		out = append(out, parent)
	}
	return out
}

// everyProfile is one of each kind.
func everyProfile() []Settings {
	out := []Settings{sglang(StrategySGLang), sglang(StrategySGLangBigram)}
	for _, a := range []string{AlgorithmSHA256CBOR, AlgorithmSHA256, AlgorithmXXHashCBOR, AlgorithmXXHash} {
		out = append(out, vllm(a, "0", ExtraKeysUntagged), vllm(a, "17", ExtraKeysTagged))
	}
	return out
}

// same compares a chain with the slow way, computing its blocks in the given order of
// questions.
func same(t *testing.T, s Settings, c *DigestChain, lora, salt string, tokens []uint32, size int, ask func(n int) int) {
	t.Helper()
	want := slowChain(s, c.profile.ahead, lora, salt, tokens, size)
	if c.Len() != len(want) {
		t.Fatalf("%+v, %d tokens of %d: %d blocks, want %d", s, len(tokens), size, c.Len(), len(want))
	}
	top := 0
	for range 2 * c.Len() {
		i := ask(c.Len())
		top = max(top, i+1)
		d := c.Digest(i)
		if !bytes.Equal(d[:c.profile.Size()], want[i]) {
			t.Fatalf("%+v, lora of %d, salt of %d, %d tokens of %d: block %d is %x, want %x", s, len(lora), len(salt), len(tokens),
				size, i, *d, want[i])
		}
		key := binary.BigEndian.Uint64(want[i])
		if s.Strategy == StrategyVLLM {
			key = binary.BigEndian.Uint64(want[i][len(want[i])-8:])
		}
		if c.At(i) != key {
			t.Fatalf("%+v: key %d, want %d", s, c.At(i), key)
		}
		if c.Computed() != top {
			t.Fatalf("%d digests computed, want %d", c.Computed(), top)
		}
	}
}

// randomTokens has tokens of every width in the same prompt.
func randomTokens(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32() >> rng.UintN(32)
		if rng.IntN(4) == 0 {
			tokens[i] = -tokens[i]
		}
	}
	return tokens
}

// One chain, used again for every profile and prompt, is what the slow way says.
func TestDigestsOfRandomPrompts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	text := func() string {
		lengths := []int{0, 0, 0, 1, 22, 23, 24, 255, 256, rng.IntN(300)}
		if rng.IntN(20) == 0 {
			lengths = []int{65535, 65536, 65530 + rng.IntN(12), 70000}
		}
		return strings.Repeat(string(rune('a'+rng.IntN(26))), lengths[rng.IntN(len(lengths))])
	}
	var c DigestChain
	for range 100 {
		for _, s := range everyProfile() {
			p, err := NewProfile(s)
			must.Succeed(t, err)
			lora, salt, size := text(), text(), rng.IntN(30)
			must.Succeed(t, c.SetProfile(p.WithAhead([]int{0, 0, 1, 2, 3, 8, 40}[rng.IntN(7)]), lora, salt))
			tokens := randomTokens(rng, rng.IntN(120))
			c.Reset(tokens, size)
			same(t, s, &c, lora, salt, tokens, size, rng.IntN)
			if c.Len() < 2 {
				continue
			}
			// A chain may be continued behind any block.
			from := 1 + rng.IntN(c.Len()-1)
			parent, want := *c.Digest(from - 1), *c.Digest(c.Len() - 1)
			c.ResetBehind(parent, tokens[from*size:], size)
			if got := *c.Digest(c.Len() - 1); got != want {
				t.Fatalf("%+v behind block %d: %x, want %x", s, from-1, got, want)
			}
		}
	}
}

// Blocks about as long as a frame of a pickle; other encodings know none.
func TestDigestsOfLongBlocks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	f := func(token uint32, size int, lora, salt string) {
		t.Helper()
		tokens := slices.Repeat([]uint32{token}, size+size/2)
		for _, s := range everyProfile() {
			if s.Algorithm != AlgorithmSHA256 && s.Algorithm != AlgorithmXXHash {
				continue
			}
			for _, ahead := range []int{0, 1, 5} {
				c := chainOf(t, s, "", "", size, tokens)
				must.Succeed(t, c.SetProfile(c.profile.WithAhead(ahead), lora, salt))
				c.Reset(tokens, size)
				same(t, s, c, lora, salt, tokens, size, rng.IntN)
			}
		}
	}
	for n := range 8 { // a frame is full at one value or another behind the tokens
		f(1<<16, 13096+n, "lora", "salt")
		f(1, 4, strings.Repeat("l", 65475+n*8), strings.Repeat("s", n))
	}
	f(1<<16, 13099, "", "")
	f(1<<16, 13100, "", "") // the last frame is as short as one can be
	f(1<<16, 13101, "", "")
	f(1<<16, 40000, "", "")
	f(1, 40000, "", strings.Repeat("s", 65536))
	f(1, 1, strings.Repeat("l", 65536), strings.Repeat("s", 65536))
}

func FuzzDigests(f *testing.F) {
	f.Add(uint8(0), "", "", []byte{1, 0, 0, 0, 2, 0, 0, 0}, 1)
	f.Add(uint8(5), "adapter-A", "tenant-salt", []byte("0123456789abcdefghijklmnopqrstuv"), 2)
	f.Add(uint8(9), "\xff", "", []byte(nil), -1)
	f.Fuzz(func(t *testing.T, kind uint8, lora, salt string, data []byte, size int) {
		all := everyProfile()
		s := all[int(kind)%len(all)]
		p, err := NewProfile(s)
		must.Succeed(t, err)
		c, err := p.NewDigestChain(lora, salt)
		if valid := utf8.ValidString(lora) && utf8.ValidString(salt); (err == nil) != valid {
			t.Fatalf("valid %v, error %v", valid, err)
		}
		if err != nil {
			return
		}
		var tokens []uint32
		for ; len(data) >= 4; data = data[4:] {
			tokens = append(tokens, binary.LittleEndian.Uint32(data))
		}
		c.Reset(tokens, size)
		at := 0
		same(t, s, c, lora, salt, tokens, size, func(n int) int { at++; return at % n })
	})
}
