package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"kvconductor/events"
)

// A connection that lasted this long was a good one: pauses start over.
const goodConnection = 5 * time.Second

// follow keeps a live connection until the stream is closed.
func (s *Stream) follow() {
	pause := s.cfg.BackoffMin
	for {
		sub, err := s.cfg.Transport.Subscribe(s.ctx, s.cfg.Endpoint)
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				sub.Close()
			}
			return
		case permanent(err):
			s.note(err)
			s.push(input{kind: inFailed, text: err.Error()})
			return
		case err != nil:
			s.note(err)
		default:
			since := time.Now()
			s.read(sub)
			if time.Since(since) >= goodConnection {
				pause = s.cfg.BackoffMin
			}
		}
		if !sleep(s.ctx, pause/2+rand.N(pause/2+1)) {
			return
		}
		pause = min(2*pause, s.cfg.BackoffMax)
	}
}

// read drains one live connection until it is lost.
func (s *Stream) read(sub Subscription) {
	defer context.AfterFunc(s.ctx, func() { sub.Close() })()
	defer sub.Close()
	s.push(input{kind: inConnected})
	for {
		frames, err := sub.Recv()
		if err != nil {
			s.push(input{kind: inDisconnected, text: err.Error()})
			return
		}
		seq, payload, ok := liveFrames(frames)
		if !ok {
			s.refuse()
			continue
		}
		s.push(input{kind: inLive, seq: seq, payload: payload})
	}
}

// obey carries out what the machine wants. turn is held.
func (s *Stream) obey() {
	for _, o := range s.machine.orders {
		if s.replay != nil {
			s.replay()
			s.replay = nil
		}
		if !o.stop {
			s.fetch(o.ask, o.from)
		}
	}
	s.machine.orders = s.machine.orders[:0]
}

// fetch begins one attempt to replay. turn is held.
func (s *Stream) fetch(ask, from uint64) {
	ctx, cancel := context.WithCancel(s.ctx)
	// Close waits for tasks, so none may begin once it has.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		cancel()
		return
	}
	s.replay = cancel
	s.tasks.Go(func() {
		defer cancel()
		s.attempt(ctx, ask, from)
	})
}

// attempt replays from a sequence until the end marker, an error, or until the
// queue is full: the machine then asks for the rest, which costs the publisher
// less than a reader that is slow.
func (s *Stream) attempt(ctx context.Context, ask, from uint64) {
	if !s.cfg.Replays.acquire(ctx) {
		return
	}
	defer s.cfg.Replays.release()
	s.push(input{kind: inReplayStart, ask: ask})
	sub, err := s.cfg.Transport.Replay(ctx, s.cfg.ReplayEndpoint, from)
	if err != nil {
		if ctx.Err() == nil {
			s.note(err)
			s.push(input{kind: inReplayCut, ask: ask, bad: permanent(err), text: err.Error()})
		}
		return
	}
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	defer sub.Close()
	for {
		frames, err := sub.Recv()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.note(err)
			s.push(input{kind: inReplayCut, ask: ask})
			return
		}
		seq, payload, kind := replyFrames(frames)
		switch kind {
		case replyBad:
			s.refuse()
		case replyEnd:
			s.push(input{kind: inReplayEnd, ask: ask})
			return
		case replyData:
			if !s.push(input{kind: inReplay, ask: ask, seq: seq, payload: payload}) {
				s.push(input{kind: inReplayCut, ask: ask})
				return
			}
		}
	}
}

// note remembers an error for Status.
func (s *Stream) note(err error) {
	s.mu.Lock()
	s.view.st.LastError = err.Error()
	s.mu.Unlock()
}

// refuse counts a message whose frames make no sense.
func (s *Stream) refuse() {
	s.mu.Lock()
	s.view.drop(events.BadFrames, 1)
	s.mu.Unlock()
}

// permanent reports whether trying again is useless.
func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
