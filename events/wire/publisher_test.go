package wire

import (
	"bytes"
	"testing"

	"example.com/conductor/events"
)

func TestDecodePublisherID(t *testing.T) {
	id := bytes.Repeat([]byte{7}, 16)
	f := func(batch any, want bool) {
		t.Helper()
		p := pack(t, batch)
		wantID := events.PublisherID{}
		if want {
			wantID = events.PublisherID(id)
		}
		for _, known := range []events.PublisherID{{}, {1}, events.PublisherID(id)} {
			if got := PublisherIDOf(p, known); got != wantID {
				t.Errorf("%v: got %x, want %x, known is %x", batch, got, wantID, known)
			}
		}
		if _, err := Decode(p, DefaultLimits); err != nil {
			t.Errorf("%v: %v", batch, err)
		}
		for i := range p { // truncated: never a panic
			PublisherIDOf(p[:i], events.PublisherID(id))
		}
	}
	// Batches that end like one with an id are distinguished while the id is unknown.
	g := func(batch any) {
		t.Helper()
		if got := PublisherIDOf(pack(t, batch), events.PublisherID{}); got != (events.PublisherID{}) {
			t.Errorf("%v: got %x", batch, got)
		}
	}
	f(arr{1.5, arr{bigStore(3)}, 7, id}, true)
	f(arr{1.5, arr{}, 0, id}, true)
	f(arr{1.5, arr{}, nil, id}, true)
	f(arr{1.5, nil, 0, id}, true)
	f(arr{1.5, arr{arr{"AllBlocksCleared"}}, 300, id}, true)
	f(arr{1.5, storm(20)[1], 300, id, "later"}, true)
	f(arr{1.5, arr{bigStore(1)}, 0}, false)
	f(arr{1.5, arr{}}, false)
	f(arr{1.5, arr{}, 0, nil}, false)
	f(arr{1.5, arr{}, 0, id[1:]}, false)
	f(arr{1.5, arr{}, 0, append([]byte{7}, id...)}, false)
	f(arr{1.5, arr{}, 0, string(id)}, false)
	g(arr{1.5, arr{}, 0, append([]byte{0xc4, 16}, id...)})
	g(arr{1.5, arr{}, 0, arr{1, id}})
	f(arr{1.5, arr{}, 0, make([]byte, 16)}, false) // zero is none
	f(obj{"ts", 1.5, "events", arr{}, "rank", 0, "publisher_id", id}, false)
}

// TestIdleBatch holds the bytes of an idle batch as vLLM writes them.
func TestIdleBatch(t *testing.T) {
	p := append([]byte{0x94, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x90, 0, 0xc4, 16}, bytes.Repeat([]byte{9}, 16)...)
	b, err := Decode(p, DefaultLimits)
	if err != nil || len(b.Events) != 0 || b.Rank != 0 || b.Time != 1.5 || b.Dropped != nil {
		t.Errorf("got %+v, %v", b, err)
	}
	if id := PublisherIDOf(p, events.PublisherID{}); id != events.PublisherID(bytes.Repeat([]byte{9}, 16)) {
		t.Errorf("the publisher is %x", id)
	}
}

func BenchmarkPublisher(b *testing.B) {
	id := make([]byte, 16)
	f := func(name string, batch any) {
		p := pack(b, batch)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				PublisherIDOf(p, events.PublisherID{})
			}
		})
	}
	f("none", arr{1.5, arr{bigStore(64)}, 0})
	f("map/blocks=64", arr{1.5, arr{bigStore(64)}, 0, id})
	f("map/events=256", append(storm(256), id))
}
