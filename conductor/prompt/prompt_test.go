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
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"example.com/conductor/internal/alloctest"
)

// FuzzSkip compares what counts as a value with encoding/json and UTF-8.
func FuzzSkip(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-2.5e+3,true,false,null,"x\u00e9\n"],"b":{}}`, `[]`, `""`, `"0123456789abcdef\\\"é"`, `-0.0E-1`, `01`, `1.`, `tru`,
		`{"a"}`, `{"a":1,}`,
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
		if got, err := Base64(nil, []byte(text)); !errors.Is(err, errBase64) || len(got) != 0 {
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

// TestReadAnnouncedLengths reads bodies whose length is announced, unknown, or a lie.
func TestReadAnnouncedLengths(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789abcdef"), KeepBytes/8)
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
	if got, err := Read(nil, io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(broken)), 2); string(got) != "ab" ||
		!errors.Is(err, broken) {
		t.Errorf("%q %v", got, err)
	}
	if n := alloctest.PerRun(10, func() { whole, _ = Read(whole[:0], strings.NewReader("abc"), 3) }); n > 1 { // the reader
		t.Errorf("%v allocations with a buffer that is long enough", n)
	}
}

func TestKeptDropsLargeBuffers(t *testing.T) {
	if got := Kept(make([]byte, 5, 10), 10); cap(got) != 10 || len(got) != 0 {
		t.Error(len(got), cap(got))
	}
	if got := Kept(make([]byte, 5, 11), 10); got != nil {
		t.Error("a giant buffer is kept")
	}
}
