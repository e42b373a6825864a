package body

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// write appends a value of maps, lists, text and numbers.
func write(e *Encoder, v any) {
	switch v := v.(type) {
	case nil:
		e.Null()
	case bool:
		e.True()
	case string:
		e.Text(v)
	case uint64:
		e.Uint(v)
	case int:
		e.Int(v)
	case []any:
		e.List(len(v))
		for _, element := range v {
			write(e, element)
		}
		e.EndList()
	case map[string]any:
		e.Map(len(v))
		for name, value := range v {
			e.Key(name)
			write(e, value)
		}
		e.EndMap()
	}
}

// TestEncoder compares answers in both codecs with what other decoders read, and in
// msgpack the bytes with those of another encoder.
func TestEncoder(t *testing.T) {
	f := func(v any) {
		t.Helper()
		inJSON, packed := Encoder{}, Encoder{Codec: Msgpack}
		write(&inJSON, v)
		write(&packed, v)
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := json.Compact(&text, inJSON.Out); err != nil || text.String() != string(inJSON.Out) {
			t.Fatalf("%s: %v", inJSON.Out, err)
		}
		var got, other any
		if err := json.Unmarshal(inJSON.Out, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(want, &other); err != nil || !reflect.DeepEqual(got, other) {
			t.Errorf("%s, want %s", inJSON.Out, want)
		}
		var b bytes.Buffer
		e := msgpack.NewEncoder(&b)
		e.UseCompactInts(true)
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
		if m, ok := v.(map[string]any); !ok || len(m) < 2 { // maps have no order
			if !bytes.Equal(packed.Out, b.Bytes()) {
				t.Errorf("%.20x, want %.20x of %.40v", packed.Out, b.Bytes(), v)
			}
		}
		var read any
		d := msgpack.NewDecoder(bytes.NewReader(packed.Out))
		if err := d.Decode(&read); err != nil || d.Buffered().(*bytes.Reader).Len() != 0 {
			t.Fatalf("%x: %v", packed.Out, err)
		}
		again, err := json.Marshal(read)
		if err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s %v, want %s", again, err, want)
		}
		if _, rest, ok := readHead(packed.Out); !ok || len(packed.Out) == len(rest) {
			t.Errorf("%x is not read", packed.Out)
		}
		if rest, ok := skipPacked(packed.Out, 1, 64); !ok || len(rest) != 0 {
			t.Errorf("%x: %x behind it, %t", packed.Out, rest, ok)
		}
	}
	for _, n := range []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536} {
		f(strings.Repeat("x", n))
		f(make([]any, n))
	}
	for _, n := range []uint64{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<63 - 1, math.MaxUint64} {
		f(n)
		f([]any{n, n})
	}
	for _, s := range []string{"plain <&> ~", "\"\\\x00\n\x7f", "é\u2028😀", strings.Repeat("é", 300), "{", "[", ":"} {
		f([]any{s, s, nil, true})
		f(map[string]any{s: s})
	}
	f(map[string]any{"a": map[string]any{}, "b": []any{[]any{}, map[string]any{"c": 1}}, "": nil})
	large := make(map[string]any)
	for i := range 70_000 {
		large[string(rune('a'+i%26))+strings.Repeat("x", i/26%40)+string(rune(0x4e00+i/1040))] = i
	}
	f(large)
}

// TestEncoderPairs holds that pairs encoded before may be the first, or follow others.
func TestEncoderPairs(t *testing.T) {
	f := func(codec Codec, raw, want string) {
		t.Helper()
		e := Encoder{Codec: codec}
		e.Map(3)
		e.Pairs([]byte(raw))
		e.IntField("c", 1)
		e.Pairs([]byte(raw))
		e.EndMap()
		if string(e.Out) != want {
			t.Errorf("%q, want %q", e.Out, want)
		}
	}
	f(JSON, `,"a":2`, `{"a":2,"c":1,"a":2}`)
	f(Msgpack, "\xa1a\x02", "\x83\xa1a\x02\xa1c\x01\xa1a\x02")
}

// FuzzScanPacked scans arbitrary bytes. What Scan accepts another decoder reads alike.
func FuzzScanPacked(f *testing.F) {
	shape := Shape{{Name: "t", Kind: Tokens(Token)}, {Name: "h", Kind: Hashes(Hash)}, {Name: "s"}}
	for _, v := range []any{
		map[string]any{"t": []int{1, -2, 1 << 20, 1 << 33}, "s": "x"}, map[string]any{"h": []any{uint64(1) << 63, -1, "x", nil, 1.5}},
		map[string]any{"t": []byte{1, 2, 3, 4, 5}, "h": make([]byte, 16)}, map[string]any{"u": map[string]any{"a": []any{[]any{}, true}}},
		[]int{1}, map[int]int{1: 2},
	} {
		b, err := msgpack.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		r := &Request{Src: src}
		members, end, fault := r.Scan(shape, Options{Codec: Msgpack, Limit: 100, Depth: 8, Every: 16})
		if len(r.Tokens) > 100 || len(r.Hashes) > 100 || len(members) > 16 {
			t.Fatalf("%x: %d tokens, %d hashes, %d members", src, len(r.Tokens), len(r.Hashes), len(members))
		}
		if fault != nil {
			return
		}
		d := msgpack.NewDecoder(bytes.NewReader(src[:end]))
		if n, err := d.DecodeMapLen(); err != nil || n != len(members) {
			t.Fatalf("%x: %d members, %d %v", src, len(members), n, err)
		}
		for i := range members {
			m := &members[i]
			if name, err := d.DecodeString(); err != nil || name != m.Name {
				t.Fatalf("%x: %q is %q, %v", src, m.Name, name, err)
			}
			raw, err := d.DecodeRaw()
			if Msgpack.Type(m.Raw) == Extension {
				return // the decoder knows some of them alone
			}
			if err != nil || !bytes.Equal(raw, m.Raw) {
				t.Fatalf("%x: %s is %x, want %x, %v", src, m.Name, m.Raw, raw, err)
			}
			switch Msgpack.Type(m.Raw) {
			case Integer:
				want, err := msgpack.NewDecoder(bytes.NewReader(raw)).DecodeInt64()
				if n, ok := Msgpack.Int(m.Raw); err != nil || ok && n != want {
					t.Fatalf("%x: %d, want %d, %v", raw, n, want, err)
				}
			case Text:
				if want, err := msgpack.NewDecoder(bytes.NewReader(raw)).DecodeString(); err != nil || string(Msgpack.Text(m.Raw)) != want {
					t.Fatalf("%x: want %q, %v", raw, want, err)
				}
			}
			if l := &m.List; m.Read && l.Bad < 0 && l.N <= 100 && Msgpack.Type(m.Raw) == Array {
				var want []any
				if err := msgpack.Unmarshal(raw, &want); err != nil || len(want) != l.N {
					t.Fatalf("%x: %d elements, want %d, %v", raw, l.N, len(want), err)
				}
			}
		}
	})
}
