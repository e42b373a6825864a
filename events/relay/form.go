package relay

import (
	"context"
	"sync/atomic"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
)

// shape is the form in which the engine sends. The zero value is that of engines until June 2026.
type shape struct {
	topic  string
	topics bool // replies carry the topic
}

// overheard is a transport whose messages tell the form.
type overheard struct {
	from stream.Transport
	form *atomic.Pointer[shape]
}

func (o overheard) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	s, err := o.from.Subscribe(ctx, endpoint)
	return overhearing{s, o.form, false}, err
}

func (o overheard) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	s, err := o.from.Replay(ctx, endpoint, from)
	return overhearing{s, o.form, true}, err
}

type overhearing struct {
	stream.Subscription
	form  *atomic.Pointer[shape]
	reply bool
}

func (o overhearing) Recv() (payload.Message, error) {
	m, err := o.Subscription.Recv()
	was, frames := o.form.Load(), m.Frames
	now := *was
	switch {
	case !o.reply && len(frames) == 3 && string(frames[0]) != was.topic:
		now.topic = string(frames[0])
	case o.reply && len(frames) > 1:
		if len(frames[0]) == 0 { // it is no part of the reply, and some engines leave it out
			frames = frames[1:]
		}
		if len(frames) > 1 {
			now.topics = len(frames) == 3
		}
	}
	if now != *was {
		o.form.Store(&now)
	}
	return m, err
}
