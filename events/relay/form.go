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
	ids    bool // the frame of the number carries the publisher id
}

// learn returns the form of an engine that sent a live message, or a reply, after others of the form s.
func (s shape) learn(frames [][]byte, reply bool) shape {
	if reply && len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	switch n := len(frames); {
	case reply && n > 1:
		s.topics = n == 3
	case !reply && n == 3:
		s.ids = len(frames[1]) > numberSize
		if string(frames[0]) != s.topic {
			s.topic = string(frames[0])
		}
	}
	return s
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
	if err == nil {
		was := o.form.Load()
		if now := was.learn(m.Frames, o.reply); now != *was {
			o.form.Store(&now)
		}
	}
	return m, err
}
