package dynamo

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/prompt"
	"example.com/conductor/internal/alloctest"
)

// compareNumbers reads an array, behind which there may be anything, as token ids and as
// hashes, in the ways of the decoder and in that of the standard library.
func compareNumbers(t *testing.T, text []byte) {
	t.Helper()
	// Hashes are what fits either of two types; the library reads one at a time.
	var all []json.RawMessage
	array := json.NewDecoder(bytes.NewReader(text)).Decode(&all) == nil && all != nil
	fitTokens, fitHashes := array, array
	var wantTokens []uint32
	var wantHashes []uint64
	for _, raw := range all {
		token, err := strconv.ParseUint(string(raw), 10, 32)
		fitTokens = fitTokens && err == nil
		wantTokens = append(wantTokens, uint32(token))
		hash, err := strconv.ParseUint(string(raw), 10, 64)
		if err != nil {
			signed, err := strconv.ParseInt(string(raw), 10, 64)
			fitHashes = fitHashes && err == nil && signed != 0
			hash = uint64(signed)
		}
		wantHashes = append(wantHashes, hash)
	}
	// Faults behind a whole list do not matter here.
	read := func(m member) (*body.Request, error) {
		r := &body.Request{Src: append([]byte(`{"`+m.name+`":`), text...)}
		if array {
			r.Src = append(r.Src[:len(r.Src)-len(text)+length(text)], '}')
		}
		if why := decode(r, 1<<20, "", m); why != nil {
			return r, errors.New(why.text)
		}
		return r, nil
	}
	if r, err := read(tokens); (err == nil) != fitTokens || fitTokens && !slices.Equal(r.Tokens, wantTokens) {
		t.Errorf("tokens %q: %d %v, want %d %t", text, r.Tokens, err, wantTokens, fitTokens)
	}
	if r, err := read(blockHashes); (err == nil) != fitHashes || fitHashes && !slices.Equal(r.Hashes, wantHashes) {
		t.Errorf("hashes %q: %d %v, want %d %t", text, r.Hashes, err, wantHashes, fitHashes)
	}
}

// length returns where the value ends that text begins with.
func length(text []byte) int {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(new(json.RawMessage)); err != nil {
		return len(text)
	}
	return int(d.InputOffset())
}

// FuzzNumbersInArrays compares them for arbitrary text.
func FuzzNumbersInArrays(f *testing.F) {
	for _, text := range []string{`[1,22,333,4444,55555,666666,7777777,88888888,999999999,4294967295]`, `[ 1 , 2]x`,
		`[-1,18446744073709551615]`, `[1,-0]`, `[1,1.0,1e0,01,null,"x",[1]]`, `[]`, `null`} {
		f.Add([]byte(text))
	}
	f.Add(append(append([]byte("[1"), bytes.Repeat([]byte(",123456"), 40)...), ']'))
	f.Fuzz(func(t *testing.T, text []byte) { compareNumbers(t, text) })
}

// TestNumbersInArrays compares both ways of reading elements with the standard
// library, for every length of digits, valid and not.
func TestNumbersInArrays(t *testing.T) {
	f := func(text string) {
		t.Helper()
		compareNumbers(t, []byte(text))
	}
	f(`[]`)
	f(` [ ] `)
	f(`[0]`)
	f(`[0,0]`)
	f(`[1,2 ,3, 4,  5]`)
	f(`[1,00]`)
	f(`[1,4294967295,4294967296]`)
	f(`[1,-1,2]`)
	f(`[1,-0]`)
	f(`[1,18446744073709551615,3]`)
	f(`[1,18446744073709551616,3]`)
	f(`[1,-9223372036854775808]`)
	f(`[1,-9223372036854775809]`)
	f(`[1,1.0]`)
	f(`[1,1e0]`)
	f(`[1,"2"]`)
	f(`[1,null]`)
	f(`[1,2`)
	f(`[1,`)
	f(`[1,,2]`)
	f(`[,1]`)
	f(`[1;2]`)
	f(`[1,2,]`)
	for digits := 1; digits <= 21; digits++ {
		for _, first := range "019" {
			f(`[7,` + string(first) + strings.Repeat("9", digits-1) + `,8]`)
			f(`[7,` + string(first) + strings.Repeat("0", digits-1) + `]`)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		var b strings.Builder
		b.WriteByte('[')
		for i := range rng.IntN(8) {
			if i > 0 {
				b.WriteString([]string{",", ", ", " ,", "\n,"}[rng.IntN(4)])
			}
			b.WriteString(strconv.FormatUint(rng.Uint64()>>rng.IntN(64), 10))
			if rng.IntN(50) == 0 {
				b.WriteByte("-.e0 "[rng.IntN(5)])
			}
		}
		b.WriteByte(']')
		f(b.String())
	}
}

// TestGiantBodiesAreNotKept holds that a request leaves to the next one no more memory
// than most requests need.
func TestGiantBodiesAreNotKept(t *testing.T) {
	read := func(n int) *body.Request {
		r := &body.Request{Src: promptBody(n)}
		var name string
		if why := decode(r, n, "QueryRequest", tokens, model(&name)); why != nil || len(r.Tokens) != n {
			t.Fatalf("%d tokens of %d: %v", len(r.Tokens), n, why)
		}
		r.Src = bytes.Replace(r.Src, []byte("token_ids"), []byte("block_hashes"), 1)
		if why := decode(r, n, "QueryByHashRequest", blockHashes, model(&name)); why != nil || len(r.Hashes) != n {
			t.Fatalf("%d hashes of %d: %v", len(r.Hashes), n, why)
		}
		r.Reset()
		return r
	}
	if r := read(2 * prompt.KeepNumbers); r.Src != nil || r.Tokens != nil || r.Hashes != nil {
		t.Errorf("%d bytes, %d tokens and %d hashes are kept", cap(r.Src), cap(r.Tokens), cap(r.Hashes))
	}
	if r := read(1 << 16); r.Src == nil || r.Tokens == nil || r.Hashes == nil {
		t.Error("the buffers of a usual prompt are not kept")
	}
}

// promptBody is a query of n tokens of up to six digits.
func promptBody(n int) []byte {
	b := []byte(`{"model_name":"m","token_ids":[`)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(rng.IntN(150_000)), 10)
	}
	return append(b, `]}`...)
}

// TestTokensDoNotAllocate holds that what a body costs does not depend on its
// tokens.
func TestTokensDoNotAllocate(t *testing.T) {
	r := &body.Request{Tokens: make([]uint32, 0, 10_000)}
	allocations := func(n int) float64 {
		r.Src = promptBody(n)
		return alloctest.PerRun(20, func() {
			var name string
			if why := decode(r, 10_000, "QueryRequest", model(&name), tokens); why != nil || len(r.Tokens) != n {
				t.Fatalf("%d tokens: %v", len(r.Tokens), why)
			}
		})
	}
	if few, many := allocations(10), allocations(10_000); few != many || few > 10 {
		t.Errorf("%v allocations for 10 tokens, %v for 10000", few, many)
	}
}

func BenchmarkDecode(b *testing.B) {
	r := &body.Request{Src: promptBody(8192)}
	b.SetBytes(int64(len(r.Src)))
	b.ReportAllocs()
	for b.Loop() {
		var name string
		if why := decode(r, 8192, "QueryRequest", model(&name), tokens); why != nil {
			b.Fatal(why)
		}
	}
}

func TestNumericIDs(t *testing.T) {
	f := func(id, want string) {
		t.Helper()
		if got := string(appendID(nil, id)); got != want {
			t.Errorf("%q is printed as %s, want %s", id, got, want)
		}
	}
	f("0", "0")
	f("7", "7")
	f("18446744073709551615", "18446744073709551615")
	f("18446744073709551616", `"18446744073709551616"`)
	f("007", `"007"`)
	f("+1", `"+1"`)
	f("-1", `"-1"`)
	f("1_0", `"1_0"`)
	f("", `""`)
	f("node \"a\"\n<é>\x7f", `"node \"a\"\n<é>`+"\x7f"+`"`)
	ids := []string{"b", "10", "9", "a", "18446744073709551615", "01"}
	slices.SortFunc(ids, compareIDs)
	if got := strings.Join(ids, " "); got != "9 10 18446744073709551615 01 a b" {
		t.Errorf("sorted: %s", got)
	}
}
