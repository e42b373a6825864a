package wire

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"example.com/conductor/events"
)

func TestDecodeLimits(t *testing.T) {
	lim := Limits{MaxPayload: 300, MaxEvents: 3, MaxHashes: 4, MaxTokens: 5, MaxDepth: 3}
	f := func(batch any, want string) {
		t.Helper()
		b, err := Decode(pack(t, batch), lim)
		got := render(b)
		if err != nil {
			got = string(ReasonOf(err))
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%v:\ngot  %s\nwant %s", batch, got, want)
		}
	}
	list := func(n int) arr {
		a := make(arr, n)
		for i := range a {
			a[i] = i
		}
		return a
	}
	nest := func(n int) any {
		v := any(1)
		for range n {
			v = arr{2, v, 3}
		}
		return v
	}
	clear := arr{"AllBlocksCleared"}
	f(arr{1.5, arr{clear, clear, clear}}, "\ncleared")
	f(arr{1.5, arr{clear, clear, clear, clear}}, "too_large")
	f(arr{strings.Repeat("x", 300)}, "too_large")
	f(arr{1.5, arr{arr{"BlockRemoved", list(4)}}}, "removed 0000000000000000 0000000000000001 0000000000000002 0000000000000003")
	f(arr{1.5, arr{arr{"BlockRemoved", list(5)}, clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{arr{"BlockStored", list(1), nil, list(5), 5}}}, "tokens=0,1,2,3,4 bs=5")
	f(arr{1.5, arr{arr{"BlockStored", list(1), nil, list(6), 6}, clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{stored("x", nest(3)), clear}}, "\ncleared")
	f(arr{1.5, arr{stored("x", nest(4)), clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{stored("x", nest(40)), clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{stored("x", obj{"a", obj{"b", obj{"c", obj{}}}}), clear}}, "\ncleared")
	f(arr{1.5, arr{stored("extra_keys", arr{arr{nest(2)}}), clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{stored("token_ids", arr{nest(4)}), clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{arr{"AllBlocksCleared", nest(4)}, clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{arr{"BlockStored", list(1), nil, nil, 1, nil, nil, nil, nil, nest(4)}, clear}}, "\ncleared\n"+large)
	f(arr{1.5, arr{nest(40), clear}}, "\ncleared\n"+bad)
	f(arr{1.5, arr{}, 0, nest(3)}, "rank=0")
	f(arr{1.5, arr{}, 0, nest(4)}, "too_large")
	f(arr{1.5, arr{stored("x", nest(4)), stored("x", nest(3)), arr{"AllBlocksCleared", 1}}, 0}, plain+"\ncleared\n"+large)
	f(arr{1.5, arr{clear, stored("x", nest(4))}, 0, 1}, "\ncleared\n"+large)
	f(obj{"events", arr{}, "x", nest(4)}, "too_large")

	if got := (Limits{MaxEvents: -1, MaxDepth: 99, MaxTokens: 7}).withDefaults(); got != (Limits{
		MaxPayload: DefaultLimits.MaxPayload, MaxEvents: DefaultLimits.MaxEvents, MaxHashes: DefaultLimits.MaxHashes, MaxTokens: 7,
		MaxDepth: depthCap,
	}) {
		t.Errorf("unset limits are filled as %+v", got)
	}
}

// A million levels cost neither stack nor their siblings.
func TestDeepNesting(t *testing.T) {
	deep := append(bytes.Repeat([]byte{0x91}, 1<<20), 0x01)
	p := append([]byte{0x92, 0xc0, 0x92}, deep...)
	p = append(p, pack(t, arr{"AllBlocksCleared"})...)
	b, err := Decode(p, DefaultLimits)
	if err != nil || len(b.Events) != 1 || b.Dropped[events.BadEvent] != 1 {
		t.Errorf("error %v, batch %s", err, render(b))
	}
	if _, err := Decode(p[:1<<19], DefaultLimits); ReasonOf(err) != events.BadPayload {
		t.Errorf("cut short: %v", err)
	}
}

// Headers that claim four billion elements are refused before anything is
// reserved for them.
func TestClaimsAreNotBelieved(t *testing.T) {
	f := func(hexa string) {
		t.Helper()
		p := raw(hexa)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(p, DefaultLimits)
		runtime.ReadMemStats(&after)
		if ReasonOf(err) != events.BadPayload {
			t.Errorf("%s: %v", hexa, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<16 {
			t.Errorf("%s: allocated %d bytes", hexa, used)
		}
	}
	const tag = "ab426c6f636b53746f726564"
	for _, head := range []string{"ddffffffff", "dfffffffff", "dbffffffff", "c6ffffffff", "c9ffffffff01"} {
		f(head)
		f("92" + head)
		f("92c0" + head)
		f("92c091" + head)
		f("92c09195" + head)
		f("92c09195" + tag + head)
		f("92c09195" + tag + "91" + head)
		f("92c09195" + tag + "9101" + head)
		f("92c09195" + tag + "9101c0" + head)
		f("92c09195" + tag + "9101c091" + head)
		f("92c09181" + head)
		f("92c09181a474797065" + head)
		f("92c09181a178" + head)
		f("93c090" + head)
		f("94c09000" + head)
	}
}
