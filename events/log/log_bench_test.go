package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/store"
)

// BenchmarkAppend is the way of a batch of 5 KB from a stream into the store, by one source.
func BenchmarkAppend(b *testing.B) {
	l, s := benchSource(b)
	defer l.Close(b.Context())
	body := bytes.Repeat([]byte("x"), 5000)
	b.SetBytes(int64(len(body)))
	for i := range b.N {
		binary.BigEndian.PutUint64(body, uint64(i))
		s.Observe(&stream.Step{Kind: stream.Apply, Seq: uint64(i), Print: uint64(i), Payload: body, Epoch: 1})
		if l.buffered.Load() > 8<<20 {
			flushed(b, l, 4<<20)
		}
	}
	flushed(b, l, 0)
}

// BenchmarkFollow is the way of a batch of 5 KB out of the store, to one follower.
func BenchmarkFollow(b *testing.B) {
	l, s := benchSource(b)
	defer l.Close(b.Context())
	body := bytes.Repeat([]byte("x"), 5000)
	s.log.cfg.Bytes = 16 << 30
	for i := range uint64(b.N) + 1 {
		s.Observe(&stream.Step{Kind: stream.Apply, Seq: i, Payload: body, Epoch: 1})
	}
	flushed(b, l, 0)
	f := &following{source: s, gen: s.at.gen, queue: make(chan payload.Message, waiting), ended: make(chan struct{})}
	_, f.number, _ = entryID("0-" + f.gen)
	f.pos.Store(1)
	b.SetBytes(int64(len(body)))
	b.ResetTimer()
	s.bucket.read(f)
	for range b.N {
		_, err := f.Recv()
		must.Succeed(b, err)
	}
	f.end(context.Canceled)
}

// flushed waits until at most left bytes wait for the store.
func flushed(b *testing.B, l *Log, left int64) {
	eventually(b, "nothing is appended", func() (string, bool) { return "", l.buffered.Load() <= left })
}

// benchSource returns a source whose lease is held.
func benchSource(b *testing.B) (*Log, *Source) {
	server := redistest.Start(b)
	shared, err := store.Open(store.Config{URL: server.URL(), Name: "bench", Timeout: 5 * time.Second})
	must.Succeed(b, err)
	b.Cleanup(func() { shared.Close() })
	l := New(Config{Store: shared, ID: "r", Bytes: 64 << 20, Age: time.Hour, Buffer: 1 << 30, Replicas: func() []Replica { return []Replica{{"r", 1}} }})
	s := l.Source(SourceConfig{Key: "s"})
	s.link = b.Context()
	l.join(s)
	eventually(b, "no lease", func() (string, bool) {
		what, _ := s.Follows()
		return what, what == stream.FollowsEngine
	})
	return l, s
}
