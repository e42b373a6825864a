package wire

import (
	"bytes"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// What an independent encoder writes, in any shape and any width, comes back.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := maker{t}
		want := events.Batch{Time: rapid.Float64().Draw(t, "time"), Rank: m.pick(9, "rank")}
		list := arr{}
		for range m.pick(6, "events") {
			switch m.pick(8, "good or bad") {
			case 0:
				list = append(list, arr{"BlockNew", m.junk(3)})
				want.CountDropped(events.UnknownType, 1)
			case 1:
				list = append(list, obj{"block_hashes", m.junk(3)})
				want.CountDropped(events.BadEvent, 1)
			default:
				ev, shape := m.event()
				want.Events = append(want.Events, ev)
				list = append(list, shape)
			}
		}
		batch := any(arr{want.Time, list, want.Rank})
		if m.coin("outer map") {
			batch = m.shuffled([][2]any{{"ts", want.Time}, {"events", list}, {"data_parallel_rank", want.Rank}})
		}
		var w bytes.Buffer
		enc := msgpack.NewEncoder(&w)
		enc.UseCompactInts(m.coin("compact"))
		must.Succeed(t, enc.Encode(batch))
		got, err := Decode(w.Bytes(), DefaultLimits)
		if err != nil {
			t.Fatalf("%x: %v", w.Bytes(), err)
		}
		if g, w := render(got), render(want); g != w {
			t.Fatalf("got\n%s\nwant\n%s", g, w)
		}
	})
}
