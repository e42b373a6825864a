package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
)

// line is the connection of one life of a source. A source waits with its first batch
// until the Conductor has subscribed.
type line struct {
	batches chan [][]byte
	closed  chan struct{}
	closing sync.Once
}

// line returns the line of an endpoint.
func (k *Soak) line(endpoint string) *line {
	l, _ := k.lines.LoadOrStore(endpoint, &line{batches: make(chan [][]byte), closed: make(chan struct{})})
	return l.(*line)
}

// Subscribe implements stream.Transport.
func (k *Soak) Subscribe(_ context.Context, endpoint string) (stream.Subscription, error) {
	return k.line(endpoint), nil
}

// Replay implements stream.Transport. No source of a soak can replay.
func (k *Soak) Replay(context.Context, string, uint64) (stream.Subscription, error) {
	return nil, errors.New("a soak has no replays")
}

// Recv implements stream.Subscription.
func (l *line) Recv() (payload.Message, error) {
	select {
	case frames := <-l.batches:
		return payload.Of(frames...), nil
	case <-l.closed:
		return payload.Message{}, io.EOF
	}
}

// Close implements stream.Subscription.
func (l *line) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// send puts one batch on the line.
func (l *line) send(ctx context.Context, seq uint64, batch []byte) {
	select {
	case l.batches <- [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), batch}:
	case <-l.closed:
	case <-ctx.Done():
	}
}
