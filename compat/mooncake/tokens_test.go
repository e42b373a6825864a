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

	"kvconductor/conductor"
	"kvconductor/internal/must"
)

// TestTokenLists reads lists of token ids of every width, in bins, in lists and in
// JSON, whole and cut, and holds them to what was written.
func TestTokenLists(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := New(Config{MaxTokens: 1 << 10})
	r := &exchange{most: 1 << 10}
	ask := func(form Form, body []byte) ([]uint32, error) {
		r.form, r.Src = form, body
		if err := r.parse(false); err != nil {
			return nil, err
		}
		var q conductor.Query
		if err := d.tokens(r, tokenIDs(r), &q); err != nil {
			return nil, err
		}
		return q.Tokens, nil
	}
	for round := range 3000 {
		want := make([]uint32, rng.IntN(40))
		signed := make([]int64, len(want))
		packed := appendList(appendText(appendMap(nil, 1), "token_ids"), len(want))
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
		for i, body := range [][]byte{packed, bin, text} {
			form := Msgpack
			if i == 2 {
				form = JSON
			}
			if got, err := ask(form, body); err != nil || !slices.Equal(got, want) {
				t.Fatalf("round %d: %x: %d %v, want %d", round, body, got, err, want)
			}
		}
		for cut := range packed {
			if _, err := ask(Msgpack, packed[:cut]); err == nil {
				t.Fatalf("round %d: %x is read", round, packed[:cut])
			}
		}
	}
	f := func(elements []any, index int, reason string) {
		t.Helper()
		body, err := msgpack.Marshal(map[string]any{"token_ids": elements})
		must.Succeed(t, err)
		_, err = ask(Msgpack, body)
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

// TestTokensTwice reads bodies that give the field twice: both are looked at, the last
// counts, whichever of them was read ahead.
func TestTokensTwice(t *testing.T) {
	d := New(Config{MaxTokens: 20})
	long := make([]int, 20)
	for i := range long {
		long[i] = 1000 * i
	}
	values := []any{[]int{}, []int{7}, long, append(long, 1), []byte{1, 0, 0, 0}, "text", []any{1, 2, 3, 4, 5, 6, 7, 8, -1, 9}}
	body := func(of ...any) []byte {
		b := appendMap(nil, len(of))
		for _, v := range of {
			b = append(appendText(b, "token_ids"), packed(t, v)...)
		}
		return b
	}
	ask := func(r *exchange, at int) (string, *failure) {
		var q conductor.Query
		err := d.tokens(r, &r.entries[at].value, &q)
		return fmt.Sprint(q.Tokens), err
	}
	for _, first := range values {
		for _, second := range values {
			both := &exchange{most: d.cfg.MaxTokens}
			must.Succeed(t, both.parsePacked(body(first, second)))
			for at, v := range []any{first, second} {
				alone := new(exchange) // which reads nothing ahead
				must.Succeed(t, alone.parsePacked(body(v)))
				got, err := ask(both, at)
				want, wantErr := ask(alone, 0)
				if got != want || !reflect.DeepEqual(err, wantErr) {
					t.Errorf("%v, %v: the %dth is %s %v, want %s %v", first, second, at, got, err, want, wantErr)
				}
			}
		}
	}
	r := &exchange{most: d.cfg.MaxTokens}
	if err := r.parsePacked(body(long)); err != nil || r.ahead.n < 17 {
		t.Errorf("%d of 20 elements are read ahead: %v", r.ahead.n, err)
	}
}

// TestNumbersDoNotAllocate holds that reading JSON costs the same memory however many
// numbers there are, negative hashes among them, and whichever are none of 64 bits.
func TestNumbersDoNotAllocate(t *testing.T) {
	for _, element := range []string{"-6148914691236517205", "6148914691236517205", "-0", "1.5", "-99999999999999999999"} {
		allocations := func(n int) float64 {
			r := &exchange{form: JSON, most: n + 1}
			r.Src, r.Hashes = []byte(`{"seq_hashes":[1`+strings.Repeat(","+element, n)+`]}`), make([]uint64, 0, n+1)
			return testing.AllocsPerRun(20, func() {
				must.Succeed(t, r.parse(false))
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
	d := New(Config{MaxTokens: n})
	run := func(name string, body []byte, form Form) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				r := exchanges.Get().(*exchange)
				r.most, r.form, r.Src = n, form, body
				err := r.parse(false)
				var q conductor.Query
				if err != nil || d.tokens(r, tokenIDs(r), &q) != nil || len(q.Tokens) != n {
					b.Fatal(err, len(q.Tokens))
				}
				r.release()
			}
		})
	}
	marshal := func(marshal func(any) ([]byte, error), ids any) []byte {
		body, err := marshal(map[string]any{"model": "m", "block_size": 16, "token_ids": ids})
		must.Succeed(b, err)
		return body
	}
	run("bin", marshal(msgpack.Marshal, bytes), Msgpack)
	run("list", marshal(msgpack.Marshal, list), Msgpack)
	run("json", marshal(json.Marshal, list), JSON)
}

func tokenIDs(r *exchange) *value {
	f := r.fields()
	return f.field("token_ids")
}
