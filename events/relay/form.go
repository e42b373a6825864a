package relay

import (
	"context"
	"sync/atomic"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
)

// wording is how the engine sends: learnt from what it sends.
type wording struct {
	now atomic.Pointer[shape]
}

// shape is one form. The zero value is that of engines until June 2026.
type shape struct {
	topic  string
	topics bool // replies carry the topic
	ids    bool // the frame of the number carries the publisher id
}

func (f *wording) shape() shape {
	if s := f.now.Load(); s != nil {
		return *s
	}
	return shape{}
}

// learnLive learns from a live message.
func (f *wording) learnLive(frames [][]byte) {
	if len(frames) != 3 {
		return
	}
	s := f.shape()
	ids := len(frames[1]) > numberSize
	if string(frames[0]) != s.topic || ids != s.ids {
		s.topic, s.ids = string(frames[0]), ids
		f.now.Store(&s)
	}
}

// learnReply learns from a reply.
func (f *wording) learnReply(frames [][]byte) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	s := f.shape()
	if topics := len(frames) == 3; topics != s.topics && len(frames) > 1 {
		s.topics = topics
		f.now.Store(&s)
	}
}

// overheard is a transport whose messages tell the form.
type overheard struct {
	from stream.Transport
	form *wording
}

func (o *overheard) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	s, err := o.from.Subscribe(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return overhearing{s, o.form.learnLive}, nil
}

func (o *overheard) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	s, err := o.from.Replay(ctx, endpoint, from)
	if err != nil {
		return nil, err
	}
	return overhearing{s, o.form.learnReply}, nil
}

type overhearing struct {
	stream.Subscription
	learn func(frames [][]byte)
}

func (o overhearing) Recv() (payload.Message, error) {
	m, err := o.Subscription.Recv()
	if err == nil {
		o.learn(m.Frames)
	}
	return m, err
}
