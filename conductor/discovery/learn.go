package discovery

import (
	"context"
	"errors"
	"time"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// retryLearning is the pause between two connections that wait for events.
const retryLearning = 5 * time.Second

// LearnBlockSize returns the size of the first blocks that a publisher stores in attention groups which are indexed, of several
// sizes the smallest. It asks for replays first, and then waits until the engine has work.
func LearnBlockSize(ctx context.Context, tr stream.Transport, r Rank, decode func([]byte) (events.Batch, error)) (int, error) {
	for {
		if r.Replay != "" {
			if sub, err := tr.Replay(ctx, r.Replay, 0); err == nil {
				if size := firstSize(ctx, sub, decode, true); size > 0 {
					return size, nil
				}
			}
		}
		sub, err := tr.Subscribe(ctx, r.Endpoint)
		if err == nil {
			if size := firstSize(ctx, sub, decode, false); size > 0 {
				return size, nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("the engine is followed no more")
		case <-time.After(retryLearning):
		}
	}
}

// firstSize returns the smallest block size of the first batch with blocks that comes over a connection, 0 if none does: the
// groups of an engine may have blocks of several sizes, which it announces together. The payload is the last frame of a
// message, empty at the end of a replay.
func firstSize(ctx context.Context, sub stream.Subscription, decode func([]byte) (events.Batch, error), ends bool) int {
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	defer sub.Close()
	for {
		m, err := sub.Recv()
		if err != nil || len(m.Frames) == 0 {
			return 0
		}
		last := m.Frames[len(m.Frames)-1]
		if ends && len(last) == 0 {
			m.Block.Release()
			return 0
		}
		b, err := decode(last)
		m.Block.Release()
		if err != nil {
			continue
		}
		size := 0
		for i := range b.Events {
			e := &b.Events[i]
			if e.Kind == events.Stored && len(e.Tokens) > 0 && e.BlockSize > 0 && isIndexed(e.GroupKind, e.Group) &&
				(size == 0 || e.BlockSize < size) {
				size = e.BlockSize
			}
		}
		if size > 0 {
			return size
		}
	}
}

// isIndexed reports whether blocks of an attention group are indexed, see rule EVENT-1.
func isIndexed(kind string, group int) bool {
	if kind == "" {
		return group <= 0
	}
	return normalize.IndexedGroup(kind)
}
