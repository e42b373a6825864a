package prompt

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// TestDigits reads lists of every mixture of widths, from any place in the text, into
// buffers of any length.
func TestDigits(t *testing.T) {
	testDigits[uint32](t, 9)
	testDigits[uint64](t, 19)
}

func testDigits[T uint32 | uint64](t *testing.T, most int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 20_000 {
		n, spaces := rng.IntN(100), rng.IntN(3)
		want := []T{}
		text := []byte(strings.Repeat("x", rng.IntN(9)))
		at := len(text)
		widest := 1 + rng.IntN(most)
		for range n {
			limit := uint64(1)
			for range 1 + rng.IntN(widest) {
				limit *= 10
			}
			v := rng.Uint64N(limit)
			want = append(want, T(v))
			text = append(text, ',')
			if spaces == 1 || spaces == 2 && rng.IntN(8) == 0 {
				text = append(text, ' ')
			}
			text = strconv.AppendUint(text, v, 10)
		}
		end := len(text)
		text = append(text, ']')
		limit := 3 + rng.IntN(120)
		got, next := Digits(append(make([]T, 0, rng.IntN(140)+3), 7, 7, 7), text, at, limit)
		if len(want) > limit-3 {
			want, end = want[:limit-3], next
		}
		if next != end || !slices.Equal(got[3:], want) {
			t.Fatalf("round %d: %s: %d of %d at %d, want %d at %d", round, text, got[3:], len(text), next, want, end)
		}
		if round%4 == 0 && n > 0 {
			spoilt(t, text, at, rng)
		}
	}
}

// spoilt holds that what is read of a list with a few wrong bytes, one behind the other,
// is what is right before them.
func spoilt(t *testing.T, text []byte, at int, rng *rand.Rand) {
	t.Helper()
	text = slices.Clone(text)
	for i, n := at+rng.IntN(len(text)-at), 1+rng.IntN(3); n > 0 && i < len(text); i, n = i+1, n-1 {
		text[i] = "0 ,]-.ex\x00\xff9"[rng.IntN(11)]
	}
	got, next := Digits([]uint32{}, text, at, 1000)
	if next > at && (next >= len(text) || text[next] != ',' && text[next] != ']') {
		t.Fatalf("%q: stops at %d, which is not behind an element", text, next)
	}
	var want []uint32
	if err := json.Unmarshal(append(append([]byte("[0"), text[at:next]...), ']'), &want); err != nil {
		t.Fatalf("%q: takes %q: %v", text, text[at:next], err)
	}
	if !slices.Equal(got, want[1:]) {
		t.Fatalf("%q: %d, want %d", text, got, want[1:])
	}
}

// FuzzSkip holds what is a value against encoding/json and UTF-8.
func FuzzSkip(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-2.5e+3,true,false,null,"x\u00e9\n"],"b":{}}`, `[]`, `""`, `"0123456789abcdef\\\"é"`, `-0.0E-1`, `01`, `1.`, `tru`, `{"a"}`, `{"a":1,}`,
		"\"a\tb\"", "\"\xff\"", `"\ud800"`, `"\u12g4"`, `"\`, `[1,]`, `[1 2]`, "\"1234567\x1f\"", "\"1234567\x7f\"",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		at, ok := Skip(text, Space(text, 0), MaxDepth)
		whole := ok && Space(text, at) == len(text)
		if want := json.Valid(text) && utf8.Valid(text); whole != want {
			t.Fatalf("%q: %t, want %t", text, whole, want)
		}
		if at > len(text) {
			t.Fatalf("%q: stops at %d", text, at)
		}
	})
}

func TestBase64(t *testing.T) {
	for n := range 40 {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(i*37 + n)
		}
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding} {
			got, err := Base64([]uint32{5}, []byte(encoding.EncodeToString(raw)))
			if n%4 != 0 {
				if !errors.Is(err, ErrWords) || len(got) != 1 {
					t.Errorf("%d bytes: %d, %v", n, got, err)
				}
				continue
			}
			if err != nil || !slices.Equal(got, Words([]uint32{5}, raw)) || len(got) != 1+n/4 {
				t.Errorf("%d bytes: %d, %v", n, got, err)
			}
			for i, v := range got[1:] {
				if v != binary.LittleEndian.Uint32(raw[4*i:]) {
					t.Errorf("%d bytes: word %d is %#x", n, i, v)
				}
			}
		}
	}
	for _, text := range []string{"=", "A", "AAAA=", "AAAAAA=", "AAAAAB==", "AAAA\nAA", "AAAAAA\r", "____AA", "AA AAAA"} {
		if got, err := Base64(nil, []byte(text)); !errors.Is(err, ErrBase64) || len(got) != 0 {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

// TestBase64Mutated compares texts with a few wrong characters with encoding/base64,
// which also steps over line ends.
func TestBase64Mutated(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var right int
	for range 50_000 {
		raw := make([]byte, 4*rng.IntN(40))
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		text := []byte(padded.EncodeToString(raw))
		for range rng.IntN(3) {
			if len(text) > 0 {
				text[rng.IntN(len(text))] = "AZaz09+/=-_ \n\r\x00\x80\xff\""[rng.IntN(18)]
			}
		}
		encoding := unpadded
		if bytes.HasSuffix(text, []byte("=")) {
			encoding = padded
		}
		want, err := encoding.DecodeString(string(text))
		whole := err == nil && len(want)%4 == 0 && !bytes.ContainsAny(text, "\r\n")
		list, err := Base64([]uint32{5}, text)
		if whole != (err == nil) {
			t.Fatalf("%q: %v", text, err)
		}
		if whole {
			right++
			if !slices.Equal(list, Words([]uint32{5}, want)) {
				t.Fatalf("%q: %x, want %x", text, list, want)
			}
		}
	}
	if right < 10_000 {
		t.Fatalf("only %d texts are right", right)
	}
}

// TestRead reads bodies whose length is told, not told, or a lie.
func TestRead(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	for _, n := range []int{0, 1, 511, 512, 513, 100_000, KeepBytes, KeepBytes + 1, len(whole)} {
		for _, size := range []int64{-1, 0, 1, int64(n) - 1, int64(n), int64(n) + 1, 1 << 40} {
			got, err := Read(make([]byte, 0, 100), bytes.NewReader(whole[:n]), size)
			if err != nil || !bytes.Equal(got, whole[:n]) {
				t.Fatalf("%d bytes, said to be %d: %d, %v", n, size, len(got), err)
			}
			if most := max(2*n, KeepBytes) + KeepBytes/2; cap(got) > most {
				t.Errorf("%d bytes, said to be %d: room for %d", n, size, cap(got))
			}
		}
	}
	broken := fmt.Errorf("broken")
	if got, err := Read(nil, io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(broken)), 2); string(got) != "ab" || !errors.Is(err, broken) {
		t.Errorf("%q %v", got, err)
	}
	if n := testing.AllocsPerRun(10, func() { whole, _ = Read(whole[:0], strings.NewReader("abc"), 3) }); n > 1 { // the reader
		t.Errorf("%v allocations with a buffer that is long enough", n)
	}
}

func TestKept(t *testing.T) {
	if got := Kept(make([]byte, 5, 10), 10); cap(got) != 10 || len(got) != 0 {
		t.Error(len(got), cap(got))
	}
	if got := Kept(make([]byte, 5, 11), 10); got != nil {
		t.Error("a giant buffer is kept")
	}
}
