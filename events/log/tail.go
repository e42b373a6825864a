package log

import (
	"context"
	"time"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
)

// dial connects to the engine.
func (s *Source) dial(ctx context.Context, endpoint string) (stream.Subscription, error) {
	sub, err := s.cfg.Engine.Subscribe(ctx, endpoint)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.tries.IsZero() {
			s.tries = time.Now()
		}
		return nil, err
	}
	t := &tailing{Subscription: sub, source: s}
	if s.token == "" && !s.adrift(time.Now()) {
		sub.Close()
		return nil, errLease
	}
	s.open, s.tries = t, time.Time{}
	s.log.look() // others learn that the engine is followed
	return t, nil
}

// tailing is a subscription to the engine.
type tailing struct {
	stream.Subscription
	source *Source
	why    error // why it was ended; guarded by Source.mu
}

func (t *tailing) Replays() bool { return t.source.cfg.Replays }

func (t *tailing) Recv() (payload.Message, error) {
	m, err := t.Subscription.Recv()
	if err != nil {
		t.source.mu.Lock()
		defer t.source.mu.Unlock()
		if t.why != nil {
			err = t.why
		}
	}
	return m, err
}

// end closes the subscription with an error. Source.mu is held.
func (t *tailing) end(why error) {
	t.why = why
	t.Subscription.Close()
}

func (t *tailing) Close() error {
	t.source.leave(t)
	return t.Subscription.Close()
}

// won makes this replica the tail, or renews its lease. at is where the log ends. s.mu is held.
func (s *Source) won(token string, at position) {
	first := s.token == ""
	s.token, s.free = token, time.Time{}
	before := s.win.pending
	if first {
		before = 0
	}
	s.at = at
	switch i := s.win.find(at); {
	case at.gen == "":
		s.win.rewind(0)
	case at.last == "":
		s.win.rewind(0)
	case i >= 0:
		s.win.rewind(i + 1)
	default:
		s.at = position{}
		s.win.rewind(0)
	}
	s.charge(before)
	if first {
		s.log.n.taken.Add(1)
		s.endOpen(errTail)
	}
	s.bucket.write(s)
}

// lose makes this replica a follower. s.mu is held.
func (s *Source) lose(why error) {
	before := s.win.pending
	s.token, s.tries = "", time.Time{}
	if n := len(s.win.items); n > 0 {
		s.win.ack(s.win.items[n-1].seq)
		s.win.trim(keptBytes)
	}
	s.log.buffered.Add(-int64(before))
	s.endOpen(why)
}
