package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDigitsOfEveryWidth reads lists of every mixture of widths, from any place in the text, into
// buffers of any length.
func TestDigitsOfEveryWidth(t *testing.T) {
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

// spoilt requires that of a list with a few wrong bytes, one behind the other, exactly the
// elements before them are read.
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

// same fails if Digits reads a text otherwise than without vector instructions.
func same(t *testing.T, text []byte, at, room, limit int) {
	t.Helper()
	memory := make([]uint32, room+16)
	got, next := Digits(memory[:0:room], text, at, limit)
	for i, v := range memory[min(room, limit):] {
		if v != 0 {
			t.Fatalf("%q from %d, room for %d, at most %d: wrote %d elements behind the room", text, at, room, limit, i+1)
		}
	}
	want, end := elements(make([]uint32, 0, room), text, at, limit, false)
	if next != end || !slices.Equal(got, want) {
		t.Fatalf("%q from %d, room for %d, at most %d: %d up to %d, want %d up to %d", text, at, room, limit, got, next, want, end)
	}
}

// FuzzDigits compares both ways to read elements on text that begins at any byte.
func FuzzDigits(f *testing.F) {
	row := strings.Repeat(",12345, 678901,2, 3,0", 20)
	for _, tail := range []string{
		"]", "", ",", ", ", ",  1]", ", \t1]", ",-1]", ",1.5]", ",1e5]", ",01]", ",00]", ",1234567]", ",12345678]", ",123456789]",
		",1234567890]", ",12345678901234567890]", ",,1]", ", ,1]", ",1 ,2]", ",1\n,2]", ",null]", ",\"1\"]", ",\xff1]", ",\x8c1]", ",1;2]",
		"}", ",0 1]", ",:0]", ",/1]",
	} {
		for _, cut := range []int{len(row), 64, 63, 50, 8, 0} {
			f.Add([]byte(row[:cut]+tail+row), uint8(0), uint16(1000))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, at uint8, limit uint16) {
		if int(at) > len(text) {
			return
		}
		same(t, text, int(at), int(limit)/2, int(limit))
		same(t, text, int(at), int(limit), int(limit))
	})
}

// TestDigitsAnyByte puts each byte at each place of a list.
func TestDigitsAnyByte(t *testing.T) {
	row := []byte("12345678" + strings.Repeat(",123456, 70,0,1234567", 12) + "]")
	for at := range row {
		text := slices.Clone(row)
		for c := range 256 {
			text[at] = byte(c)
			same(t, text, 8, 64, 60)
		}
		same(t, row[:at], min(8, at), 64, 60)
		same(t, row, at, 64, 60)
	}
}

// TestDigitsRoom reads crowded windows into lists of any length.
func TestDigitsRoom(t *testing.T) {
	text := []byte("1234567" + strings.Repeat(",1", 200) + "]")
	for room := range 150 {
		for limit := range 150 {
			same(t, text, 7, room, limit)
		}
	}
}

// TestDigitsWidths puts an element of each width at each place of a window, behind
// separators with and without a space.
func TestDigitsWidths(t *testing.T) {
	for width := 1; width <= 22; width++ {
		for _, first := range "019" {
			for at := range 2 * window {
				for _, separator := range []string{",", ", "} {
					text := "1234567" + strings.Repeat(",1", at/2) + separator + string(first) + strings.Repeat("7", width-1) +
						strings.Repeat(",23456", 30)
					same(t, []byte(text), 7, 200, 200)
				}
			}
		}
	}
}

// TestDigitsPrettyPrinted reads lists whose elements have other white space between them.
func TestDigitsPrettyPrinted(t *testing.T) {
	for _, separator := range []string{",\n", ",\n    ", " ,", ",\t", ",\r\n", ",  "} {
		for every := 1; every < 40; every++ {
			text := []byte("       7")
			for i := range 200 {
				if i%every == 0 {
					text = append(text, separator...)
				} else {
					text = append(text, ',')
				}
				text = strconv.AppendInt(text, int64(i)*7919%150_000, 10)
			}
			for at := range text {
				if text[at] == ',' {
					same(t, text, at, 300, 300)
				}
			}
		}
	}
}

// BenchmarkDigits reads a prompt with and without vector instructions.
func BenchmarkDigits(b *testing.B) {
	const n = 8192
	for _, separator := range []string{",", ", "} {
		text := []byte(`{"token_ids":[1`)
		at := len(text)
		for i := range uint32(n) {
			text = append(text, separator...)
			text = strconv.AppendUint(text, uint64((i+1)*2654435761>>3%150_000), 10)
		}
		text = append(text, "]}"...)
		for _, vectors := range []bool{false, true} {
			b.Run(fmt.Sprintf("separator=%q/vectors=%t", separator, vectors), func(b *testing.B) {
				list := make([]uint32, 0, n)
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					if got, _ := elements(list, text, at, n, vectors && hasVectors); len(got) != n {
						b.Fatal(len(got))
					}
				}
			})
		}
	}
}
