package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// removal is vLLM's event of one block on the GPU.
func removal(hash any) obj {
	return obj{"type", "BlockRemoved", "block_hashes", arr{hash}, "medium", "GPU"}
}

// page is SGLang's event of one block of four tokens, which begin with first.
func page(hash, parent any, first int) arr {
	return arr{"BlockStored", arr{hash}, parent, arr{first, first + 1, first + 2, first + 3}, 4, nil, "GPU"}
}

// TestJoin holds which events are joined: those that a batch has are shown as blocks, those of one event between
// bars.
func TestJoin(t *testing.T) {
	const far = uint64(1) << 40
	digest := func(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }
	for _, c := range []struct {
		name string
		list arr
		want string
	}{
		{"removals", arr{removal(far), removal(far + 1), removal(far + 2)}, "removed 3 (3)"},
		{"removals as arrays", arr{arr{"BlockRemoved", arr{far}}, arr{"BlockRemoved", arr{far + 1}}}, "removed 2 (2)"},
		{"a negative hash is as wide", arr{removal(far), removal(-int64(far))}, "removed 2 (2)"},
		{"digests", arr{removal(digest(1)), removal(digest(2))}, "removed 2 (2)"},
		{"digests of other lengths", arr{removal(digest(1)), removal(digest(2)[:20])}, "removed 1 (1) | removed 1 (1)"},
		{"short digests", arr{removal([]byte{1, 2}), removal([]byte{3, 4})}, "removed 1 (1) | removed 1 (1)"},
		{"a hash of another width", arr{removal(far), removal(7)}, "removed 1 (1) | removed 1 (1)"},
		{"another medium", arr{removal(far), obj{"type", "BlockRemoved", "block_hashes", arr{far + 1}, "medium", "CPU"}},
			"removed 1 (1) | removed 1 (1)"},
		{"another key", arr{removal(far), append(removal(far+1), "group_idx", 1)}, "removed 1 (1) | removed 1 (1)"},
		{"a list", arr{removal(far), arr{"BlockRemoved", arr{far + 1, far + 2}}, removal(far + 3)},
			"removed 1 (1) | removed 2 (1) | removed 1 (1)"},
		{"a list of a list", arr{removal(far), removal(arr{far})}, "removed 1 (1); 1 dropped"},
		{"an unusable event between", arr{removal(far), arr{"BlockRemoved"}, removal(far + 1)}, "removed 1 (1) | removed 1 (1); 1 dropped"},
		{"copies that stay", arr{append(removal(far), "remaining_copy_counts", arr{1}),
			append(removal(far+1), "remaining_copy_counts", arr{1})},
			"removed 1 (1) | removed 1 (1)"},
		{"numbered events", arr{obj{"event_type", "removed", "event_id", 7, "seq_hashes", arr{far}},
			obj{"event_type", "removed", "event_id", 7, "seq_hashes", arr{far + 1}}},
			"removed 1 (1) | removed 1 (1)"},
		{"two lists of hashes", arr{append(removal(far), "block_hashes", arr{far}), append(removal(far), "block_hashes", arr{far + 1})},
			"removed 1 (1) | removed 1 (1)"},

		{"moves", arr{arr{"BlockTransferred", arr{far}, "GPU", "CPU", nil}, arr{"BlockTransferred", arr{far + 1}, "GPU", "CPU", nil}},
			"moved 2 (2)"},
		{"moves elsewhere", arr{arr{"BlockTransferred", arr{far}, "GPU", "CPU", nil},
			arr{"BlockTransferred", arr{far + 1}, "CPU", "GPU", nil}}, "moved 1 (1) | moved 1 (1)"},

		{"pages", arr{page(1, 9, 10), page(2, 1, 20), page(3, 2, 30)}, "stored 3 (3)"},
		{"pages from the beginning of a prompt", arr{page(1, nil, 10), page(2, 1, 20), page(3, 2, 30)}, "stored 1 (1) | stored 2 (2)"},
		{"pages behind another", arr{page(1, 9, 10), page(2, 9, 20)}, "stored 1 (1) | stored 1 (1)"},
		{"an adapter", arr{page(1, 9, 10), append(page(2, 1, 20), "a"), append(page(3, 2, 30), "a")}, "stored 1 (1) | stored 2 (2)"},
		{"a short page", arr{page(1, 9, 10), arr{"BlockStored", arr{2}, 1, arr{5, 6}, 4, nil, "GPU"}}, "stored 1 (1) | stored 1 (1)"},
		{"pages of another size", arr{page(1, 9, 10), arr{"BlockStored", arr{2}, 1, arr{5, 6}, 2, nil, "GPU"}},
			"stored 1 (1) | stored 1 (1)"},
		{"many blocks", arr{page(1, 9, 10), arr{"BlockStored", arr{2, 3}, 1, arr{1, 2, 3, 4, 5, 6, 7, 8}, 4, nil, "GPU"}, page(4, 3, 40)},
			"stored 1 (1) | stored 2 (1) | stored 1 (1)"},
		{"stores by hash alone", arr{arr{"BlockStored", arr{far}, nil, arr{}, 0, nil, "CPU"},
			arr{"BlockStored", arr{far + 1}, nil, arr{}, 0, nil, "CPU"}}, "stored 2 (2)"},
		{"stores by hash alone, behind a parent",
			arr{arr{"BlockStored", arr{far}, 9, arr{}, 0, nil, "CPU"}, arr{"BlockStored", arr{far + 1}, 9, arr{}, 0, nil, "CPU"}},
			"stored 1 (1) | stored 1 (1)"},
		{"no tokens", arr{arr{"BlockStored", arr{1}, 9, nil, 4}, arr{"BlockStored", arr{2}, 1, nil, 4}}, "stored 1 (1) | stored 1 (1)"},
		{"other events between", arr{page(1, 9, 10), removal(far), page(2, 1, 20), removal(far + 1)},
			"stored 1 (1) | removed 1 (1) | stored 1 (1) | removed 1 (1)"},
	} {
		m, p := new(memory), pack(t, arr{1.5, c.list, 0})
		_, err := m.decodeBatch(p, DefaultLimits)
		must.Succeed(t, err)
		m.resetForReuse() // with room for such a batch
		b, err := m.decodeBatch(p, DefaultLimits)
		must.Succeed(t, err)
		var shown []string
		for i := range b.Events {
			shown = append(shown, fmt.Sprintf("%s %d (%d)", b.Events[i].Kind, len(b.Events[i].Hashes), b.Events[i].Count()))
		}
		got := strings.Join(shown, " | ")
		if len(b.Dropped) > 0 {
			got += fmt.Sprintf("; %d dropped", b.Dropped[events.BadEvent])
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if b.Count() != len(c.list)-b.Dropped[events.BadEvent] {
			t.Errorf("%s: %d events of %d", c.name, b.Count(), len(c.list))
		}
	}
}

// TestApart holds that the events which a joined one yields are those that each element is when it comes alone, for
// batches of many such events in memory that is used again.
func TestApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	m := new(memory)
	joined := 0
	for range 300 {
		var list arr
		var parent any
		for range 1 + rng.IntN(200) {
			h := rng.Uint64() | 1<<40
			switch rng.IntN(12) {
			case 0:
				parent = nil
			case 1:
				parent = rng.Uint64()
			case 2, 3:
				for range rng.IntN(300) {
					list = append(list, removal(rng.Uint64()|1<<40))
				}
			case 5:
				for range rng.IntN(300) {
					list = append(list, arr{"BlockStored", arr{rng.Uint64() | 1<<40}, nil, arr{}, 0, nil, "CPU"})
				}
			case 4:
				list = append(list, arr{"BlockStored", 1})
			case 6:
				salt := strings.Repeat("0123456789abcdef", 4) // may be an image
				for range rng.IntN(3) {
					list = append(list, arr{"BlockStored", arr{rng.Uint64() | 1<<40}, nil, arr{}, 16, nil, "GPU", nil, arr{arr{salt}}})
				}
			default:
				list = append(list, page(h, parent, int(h%1000)))
				parent = h
			}
		}
		b, err := m.decodeBatch(pack(t, arr{1.5, list, 0}), DefaultLimits)
		must.Succeed(t, err)
		joined += b.Count() - len(b.Events)
		sameApart(t, b, rawEvents(t, list))
		m.resetForReuse()
	}
	if joined < 1000 {
		t.Errorf("only %d events were joined", joined)
	}
}

func rawEvents(t *testing.T, list arr) (raws [][]byte) {
	for _, e := range list {
		raws = append(raws, pack(t, e))
	}
	return raws
}

// sameApart compares the events of a batch with those that its elements are when each comes alone.
func sameApart(t *testing.T, b events.Batch, raws [][]byte) {
	t.Helper()
	var got, want []string
	ambiguous := 0
	for i := range b.Events {
		for e := range b.Events[i].Split() {
			got = append(got, renderEvent(e))
		}
	}
	for _, raw := range raws {
		one, err := Decode(append([]byte{0x92, 0, 0x91}, raw...), DefaultLimits)
		must.Succeed(t, err)
		ambiguous += one.Ambiguous
		for i := range one.Events {
			want = append(want, renderEvent(&one.Events[i]))
		}
	}
	if b.Ambiguous != ambiguous {
		t.Fatalf("%d ambiguous salts, %d of each alone", b.Ambiguous, ambiguous)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("apart:\n%s\neach alone:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// elementsOf returns the bytes of each element of the event list of an accepted payload.
func elementsOf(t *testing.T, p []byte) (raws [][]byte) {
	dec := msgpack.NewDecoder(bytes.NewReader(p))
	for range toEvents(t, dec, p) {
		raw, err := dec.DecodeRaw()
		must.Succeed(t, err)
		raws = append(raws, raw)
	}
	return raws
}

// TestAlike holds that two events which differ in any field but those of their blocks are not joined: a field that
// is new has to be compared or named here.
func TestAlike(t *testing.T) {
	base := events.Event{Kind: events.Stored, BaseBlock: -1, Group: -1}
	own := []string{"Hashes", "Joined", "Parent", "HasParent", "Tokens", "Remaining", "From"} // the last two are of no store
	for f := range reflect.TypeFor[events.Event]().Fields() {
		other := base
		v := reflect.ValueOf(&other).Elem().FieldByIndex(f.Index)
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.String:
			v.SetString("x")
		case reflect.Uint8, reflect.Uint64:
			v.SetUint(77)
		case reflect.Int:
			v.SetInt(77)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		}
		want := false
		for _, name := range own {
			want = want || name == f.Name
		}
		if got := agreeButForBlock(&base, &other) || agreeButForBlock(&other, &base); got != want {
			t.Errorf("events that differ in %s are alike: %t, want %t", f.Name, got, want)
		}
	}
}
