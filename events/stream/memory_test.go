package stream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream/streamtest"
)

// text is the payload of a batch with a number of bytes.
func text(seq, size int) string {
	s := fmt.Sprint(seq)
	return s + strings.Repeat("x", size-len(s))
}

// waiting is what the batches that wait take of a Memory.
func waiting(m *payload.Memory) int {
	n, _ := m.Used()
	return int(n)
}

// many are streams of one Memory, each with a publisher.
type many struct {
	memory     *payload.Memory
	publishers []*streamtest.Publisher
	streams    []*Stream
}

func openMany(t *testing.T, n int, limit int64) *many {
	m := &many{memory: payload.NewMemory(limit)}
	for range n {
		p := streamtest.NewPublisher()
		s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText, Memory: m.memory})
		t.Cleanup(s.Close)
		m.publishers, m.streams = append(m.publishers, p), append(m.streams, s)
	}
	synctest.Wait()
	return m
}

func upTo(n int) (all []uint64) {
	for i := range uint64(n) {
		all = append(all, i)
	}
	return all
}

// All streams are flooded before any of them applies. What waits stays within the
// bound, each stream has its share of it, and nothing is lost.
func TestMemoryBoundsAllStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, batches, size, limit = 8, 500, 100, 128 << 10
		m := openMany(t, streams, limit)
		for seq := range batches {
			for _, p := range m.publishers {
				p.Publish(text(seq, size))
			}
			synctest.Wait()
		}
		if n := waiting(m.memory); n > limit/2+streams*(size+payload.Overhead) || n < limit/4 {
			t.Errorf("%d bytes wait, the limit of live batches is %d", n, limit/2)
		}
		for i, s := range m.streams {
			if st := s.Status(); st.QueuedBytes < limit/2/streams/8 || !st.Connected {
				t.Errorf("stream %d has %d bytes of %d", i, st.QueuedBytes, limit/2)
			}
		}
		for _, s := range m.streams {
			c := consume(t, s, 0)
			wantSeqs(t, c, upTo(batches)...)
			if st := wantState(t, s, Synced, ""); st.Gaps > 0 || len(st.Dropped) > 0 || st.Reconnects > 0 {
				t.Errorf("status is %+v", st)
			}
		}
		if n := waiting(m.memory); n != 0 {
			t.Errorf("%d bytes are counted when nothing waits", n)
		}
	})
}

// A stream that does not apply takes what there is, and leaves enough for another one
// that applies, or does not.
func TestMemoryIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batches, size, limit = 1000, 100, 64 << 10
		m := openMany(t, 3, limit)
		hog, late, quick := m.publishers[0], m.publishers[1], m.publishers[2]
		for seq := range batches {
			hog.Publish(text(seq, size))
		}
		synctest.Wait()
		for seq := range batches {
			late.Publish(text(seq, size))
		}
		synctest.Wait()
		if st := m.streams[1].Status(); st.QueuedBytes < limit/2/32 {
			t.Errorf("%d bytes of %d are left for a second stream", st.QueuedBytes, limit/2)
		}
		c := consume(t, m.streams[2], 0)
		for seq := range batches {
			quick.Publish(text(seq, size))
		}
		wantSeqs(t, c, upTo(batches)...)
		if st := wantState(t, m.streams[2], Synced, ""); st.Gaps > 0 || st.Replayed > st.Duplicates { // the first replay may repeat batches
			t.Errorf("status is %+v", st)
		}
		for _, s := range m.streams[:2] {
			wantSeqs(t, consume(t, s, 0), upTo(batches)...)
		}
	})
}

// A replay finds room while live batches fill theirs, those that wait for it too.
func TestMemoryLeavesRoomForReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batches, size, limit = 400, 100, 64 << 10
		m := openMany(t, 4, limit)
		for seq := range batches {
			for i, p := range m.publishers {
				if i == 0 && seq < batches/2 {
					p.PublishToRing(text(seq, size))
					continue
				}
				p.Publish(text(seq, size))
			}
		}
		wantSeqs(t, consume(t, m.streams[0], 0), upTo(batches)...)
		if st := wantState(t, m.streams[0], Synced, ""); st.Replayed < batches/2 || st.Gaps > 0 {
			t.Errorf("status is %+v", st)
		}
	})
}

// What waited in a stream that is closed counts no longer, nor does what waited on a
// connection that was lost.
func TestMemoryOfClosedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openMany(t, 2, 1<<20)
		for seq := range 100 {
			for _, p := range m.publishers {
				p.Publish(text(seq, 1000))
			}
		}
		synctest.Wait()
		before := waiting(m.memory)
		m.streams[0].Close()
		if n := waiting(m.memory); n == 0 || n != before/2 {
			t.Errorf("%d bytes wait after a stream of %d was closed", n, before)
		}
		m.streams[1].Close()
		if n := waiting(m.memory); n != 0 {
			t.Errorf("%d bytes wait in closed streams", n)
		}
	})
}
