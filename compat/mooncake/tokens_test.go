package mooncake

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/body"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// TestTokenLists reads lists of token ids of every width, in bins, in lists and in
// JSON, whole and cut, and holds them to what was written.
func TestTokenLists(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := new(body.Request)
	ask := func(codec body.Codec, src []byte) ([]uint32, error) {
		d := &handlers{cfg: Config{MaxTokens: 1 << 10, Codec: codec}}
		r.Src = src
		a, err := d.asked(r)
		if err != nil {
			return nil, err
		}
		if err := a.numbers(a.field("token_ids")); err != nil {
			return nil, err
		}
		return a.Tokens, nil
	}
	for round := range 3000 {
		want := make([]uint32, rng.IntN(40))
		signed := make([]int64, len(want))
		e := body.Encoder{Codec: body.Msgpack}
		e.Map(1)
		e.Name("token_ids")
		e.List(len(want))
		packed := e.Out
		bytes := []byte{}
		for i := range want {
			want[i] = rng.Uint32() >> rng.IntN(32)
			if signed[i] = int64(int32(want[i])); round%2 == 0 {
				signed[i] &= 1<<31 - 1
				want[i] = uint32(signed[i])
			}
			bytes = binary.LittleEndian.AppendUint32(bytes, want[i])
			switch rng.IntN(4) {
			case 0:
				packed = binary.BigEndian.AppendUint64(append(packed, 0xd3), uint64(signed[i]))
			case 1:
				packed = binary.BigEndian.AppendUint32(append(packed, 0xd2), want[i])
			default:
				one, err := msgpack.Marshal(signed[i])
				must.Succeed(t, err)
				packed = append(packed, one...)
			}
		}
		bin, err := msgpack.Marshal(map[string]any{"token_ids": bytes})
		must.Succeed(t, err)
		text, err := json.Marshal(map[string]any{"token_ids": signed})
		must.Succeed(t, err)
		for i, src := range [][]byte{packed, bin, text} {
			codec := body.Msgpack
			if i == 2 {
				codec = body.JSON
			}
			if got, err := ask(codec, src); err != nil || !slices.Equal(got, want) {
				t.Fatalf("round %d: %x: %d %v, want %d", round, src, got, err, want)
			}
		}
		for cut := range packed {
			if _, err := ask(body.Msgpack, packed[:cut]); err == nil {
				t.Fatalf("round %d: %x is read", round, packed[:cut])
			}
		}
	}
	f := func(elements []any, index int, reason string) {
		t.Helper()
		_, err := ask(body.Msgpack, packed(t, map[string]any{"token_ids": elements}))
		if e, ok := err.(*failure); !ok || e.index != index || e.reason != reason || e.field != "token_ids" {
			t.Errorf("%v: %+v, want %s at %d", elements, err, reason, index)
		}
	}
	f([]any{1, 2, "x", -1 << 40}, 2, "invalid_type")
	f([]any{1, 1 << 31, 3}, 1, "out_of_range")
	f([]any{1, 70000, 70000, 70000, 70000, uint64(1) << 63}, 5, "out_of_range")
	f([]any{1, []int{2}, nil, 3, 4, 5, 6}, 1, "invalid_type")
	f([]any{1.5, 2, 3, 4, 5, 6}, 0, "invalid_type")
}

// TestTokensTwice reads bodies that give the field twice: the faults of both count, and the
// numbers of the last.
func TestTokensTwice(t *testing.T) {
	d := &handlers{cfg: Config{MaxTokens: 20, Codec: body.Msgpack}}
	long := make([]int, 20)
	for i := range long {
		long[i] = 1000 * i
	}
	values := []any{
		[]int{}, []int{7}, long, append(long, 1), []byte{1, 0, 0, 0}, []byte{1}, "text", []any{1, 2, 3, 4, 5, 6, 7, 8, -1, 9},
		[]any{"x"},
	}
	ask := func(of ...any) (string, *failure) {
		e := body.Encoder{Codec: body.Msgpack}
		e.Map(len(of))
		for _, v := range of {
			e.Name("token_ids")
			e.Raw(packed(t, v))
		}
		a, err := d.asked(&body.Request{Src: e.Out})
		if err != nil {
			t.Fatal(err)
		}
		for i := range a.members {
			if err := a.take(&a.members[i]); err != nil {
				return "", err
			}
		}
		return fmt.Sprint(a.Tokens), nil
	}
	for _, first := range values {
		for _, second := range values {
			want, wantErr := ask(first)
			if wantErr == nil {
				want, wantErr = ask(second)
			}
			if got, err := ask(first, second); got != want || !reflect.DeepEqual(err, wantErr) {
				t.Errorf("%v, %v: %s %v, want %s %v", first, second, got, err, want, wantErr)
			}
		}
	}
}

// asked reads the body of a query.
func (d *handlers) asked(r *body.Request) (*asked, error) {
	f, err := d.parse(r, byTokens.shape, false)
	return &asked{fields: f, r: r, prompt: byTokens}, err
}

// TestNumbersDoNotAllocate holds that reading JSON costs the same memory however many
// numbers there are, negative hashes among them, and whichever are none of 64 bits.
func TestNumbersDoNotAllocate(t *testing.T) {
	for _, element := range []string{"-6148914691236517205", "6148914691236517205", "-0", "1.5", "-99999999999999999999"} {
		allocations := func(n int) float64 {
			d := &handlers{cfg: Config{MaxTokens: n + 1}}
			r := new(body.Request)
			r.Src, r.Hashes = []byte(`{"seq_hashes":[1`+strings.Repeat(","+element, n)+`]}`), make([]uint64, 0, n+1)
			return alloctest.PerRun(20, func() {
				_, err := d.parse(r, byHashes.shape, false)
				must.Succeed(t, err)
			})
		}
		if few, many := allocations(10), allocations(10_000); many > few+2 { // a buffer that is new, now and then
			t.Errorf("%s: %v allocations for 10 numbers, %v for 10000", element, few, many)
		}
	}
}

// BenchmarkTokens reads a query of 8,192 token ids.
func BenchmarkTokens(b *testing.B) {
	const n = 8192
	list := make([]uint32, n)
	var bytes []byte
	for i := range list {
		list[i] = 50_000 + uint32(i)*2654435761>>3%100_000
		bytes = binary.LittleEndian.AppendUint32(bytes, list[i])
	}
	run := func(name string, src []byte, codec body.Codec) {
		d := &handlers{cfg: Config{MaxTokens: n, Codec: codec}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				r := body.Get()
				r.Src = src
				a, err := d.asked(r)
				if err != nil || a.numbers(a.field("token_ids")) != nil || len(a.Tokens) != n {
					b.Fatal(err, len(a.Tokens))
				}
				r.Release()
			}
		})
	}
	marshal := func(marshal func(any) ([]byte, error), ids any) []byte {
		src, err := marshal(map[string]any{"model": "m", "block_size": 16, "token_ids": ids})
		must.Succeed(b, err)
		return src
	}
	run("bin", marshal(msgpack.Marshal, bytes), body.Msgpack)
	run("list", marshal(msgpack.Marshal, list), body.Msgpack)
	run("json", marshal(json.Marshal, list), body.JSON)
}
