package streams

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/vmihailenco/msgpack/v5"
)

// encode returns records as a recording script writes them.
func encode(t *testing.T, values ...any) []byte {
	t.Helper()
	var out []byte
	for _, v := range values {
		b, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

type list = []any

// recorded is one of everything.
var recorded = list{
	list{-1, list{1, 2}},
	list{3, list{list{"S", list{7, 8}, nil, list{1, 2}}, list{"S", list{9}, 8, list{uint64(1) << 63}}}},
	list{0, list{list{"R", list{8}}, list{"S", list{8, 7}, nil, list{}, "CPU"}, list{"R", list{7}, "CPU"}}},
	list{1, list{}},
	list{1, list{list{"S", list{8}, nil, list{1, 2}, "", 1, "sliding_window", 17},
		list{"S", list{}, 8, list{3}, "", 1, "sliding_window", 17},
		list{"R", list{8}, "", 1}}},
}

func hashes(n ...uint64) []uint64 {
	for i := range n {
		n[i] = spreadHash(n[i])
	}
	return n
}

func locals(n ...uint64) []uint64 {
	for i := range n {
		n[i] = spreadLocal(n[i])
	}
	return n
}

// TestRead requires that records come back as they were written, plain and compressed.
func TestRead(t *testing.T) {
	want := []Record{
		{Engine: -1, Prompt: locals(1, 2)},
		{Engine: 3, Events: []Event{
			{Hashes: hashes(7, 8), Locals: locals(1, 2)},
			{Hashes: hashes(9), HasParent: true, Parent: spreadHash(8), Locals: locals(1 << 63)},
		}},
		{Engine: 0, Events: []Event{
			{Removed: true, Hashes: hashes(8)},
			{Hashes: hashes(8, 7), Locals: []uint64{}, Medium: "CPU"},
			{Removed: true, Hashes: hashes(7), Medium: "CPU"},
		}},
		{Engine: 1},
		{Engine: 1, Events: []Event{
			{Hashes: hashes(8), Locals: locals(1, 2), Group: 1, Kind: "sliding_window", Window: 17},
			{Hashes: []uint64{}, HasParent: true, Parent: spreadHash(8), Locals: locals(3), Group: 1, Kind: "sliding_window", Window: 17},
			{Removed: true, Hashes: hashes(8), Group: 1},
		}},
	}
	plain := encode(t, recorded...)
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string][]byte{"plain": plain, "zstd": z.EncodeAll(plain, nil)} {
		var got []Record
		for r, err := range readRecords(bytes.NewReader(file)) {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got = append(got, r)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// TestReadRefusesDamage requires that the reader refuses a damaged recording, and says where the damage is.
func TestReadRefusesDamage(t *testing.T) {
	good := encode(t, recorded[:2]...)
	f := func(file []byte, want ...string) {
		t.Helper()
		var failed error
		n := 0
		for _, err := range readRecords(bytes.NewReader(file)) {
			if failed != nil {
				t.Fatalf("a record follows the error %v", failed)
			}
			if failed = err; err == nil {
				n++
			}
		}
		if failed == nil {
			t.Fatalf("%q is accepted, %d records", file, n)
		}
		for _, w := range want {
			if !strings.Contains(failed.Error(), w) {
				t.Errorf("the error %q does not say %q", failed, w)
			}
		}
	}
	after := func(v ...any) []byte { return append(bytes.Clone(good), encode(t, v...)...) }
	f(nil, "no records")
	f([]byte(zstdMagic), "damaged")
	f([]byte("garbage"), "record 0, which begins at byte 0", "at byte 1")
	f(good[:len(good)-1], "record 1, which begins at byte 5,", "at byte 33", "EOF")
	f(after("text"), "record 2, which begins at byte 34", "at byte 35")
	f(after(list{1}), "record 2", "1 elements, want 2")
	f(after(list{-2, list{}}), "record 2", "engine is -2")
	f(after(list{1 << 16, list{}}), "record 2", "engine is 65536")
	f(after(list{0, list{list{"C"}}}), "record 2", "event 0", `"C" with 1 elements`)
	f(after(list{0, list{list{"S", list{1}, nil}}}), "event 0", `"S" with 3 elements`)
	f(after(list{0, list{list{"R", list{}}}}), "event 0", "no hashes")
	f(after(list{0, list{list{"R", list{1}}, list{"S", list{1, 2}, nil, list{1}}}}), "event 1", "2 hashes and 1 local hashes")
	f(after(list{0, list{list{"S", list{1, 2}, nil, list{1}, "", 1, "mamba", 0}}}), "event 0", "2 hashes and 1 local hashes")
	f(after(list{0, list{list{"R", list{1}, "", -1}}}), "event 0", "the group", "-1")
	f(after(list{0, list{list{"S", list{1}, "p", list{1}}}}), "event 0", "the parent")
	f(after(list{-1, list{"x"}}), "record 2", "the prompt")
	f(append(bytes.Clone(good), 0x92, 0xff, 0xdd, 0xff, 0xff, 0xff, 0xff, 1), "record 2", "the prompt", "EOF")
}

// TestTokens requires that a block's tokens are those that a recording's other readers make.
func TestTokens(t *testing.T) {
	local := uint64(0x0123456789abcdef)
	got := AppendTokens([]uint32{5}, local)
	if len(got) != 1+BlockSize || got[0] != 5 {
		t.Fatalf("%d tokens appended: %v", len(got)-1, got)
	}
	for k, token := range got[1:] {
		if want := uint32(local>>(4*k)%150_001) + uint32(k); token != want {
			t.Errorf("token %d is %d, want %d", k, token, want)
		}
	}
}

// FuzzRead requires that no input makes the reader fail in another way than by an error.
func FuzzRead(f *testing.F) {
	for _, v := range recorded {
		b, err := msgpack.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(zstdMagic))
	f.Fuzz(func(t *testing.T, file []byte) {
		for r, err := range readRecords(bytes.NewReader(file)) {
			if err == nil && (r.Engine < -1 || r.Engine >= mostEngines) {
				t.Fatalf("engine %d", r.Engine)
			}
		}
	})
}
