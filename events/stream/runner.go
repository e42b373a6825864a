package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/wire"
)

// A connection that lasted this long was a good one: pauses start over.
const goodConnection = 5 * time.Second

// follow keeps a live connection until the stream is closed, except while it is
// paused, or has failed.
func (s *Stream) follow() {
	for {
		ctx, ok := s.relink()
		if !ok {
			return
		}
		s.keep(ctx)
	}
}

// sleepAbout sleeps for up to d, and half of it at least. It returns false if ctx ended first.
//
//go:noinline
func sleepAbout(ctx context.Context, d time.Duration) bool {
	return sleep(ctx, d/2+rand.N(d/2+1))
}

// fail tells the machine that the endpoint can never work.
//
//go:noinline
func (s *Stream) fail(ctx context.Context, err error) {
	s.note(err)
	s.push(ctx, input{kind: inFailed, text: err.Error()})
}

// keep keeps a live connection until ctx ends or the endpoint can never work.
func (s *Stream) keep(ctx context.Context) {
	pause := s.cfg.BackoffMin
	for {
		sub, err := s.cfg.Transport.Subscribe(ctx, s.cfg.Endpoint)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				sub.Close()
			}
			return
		case permanent(err):
			s.fail(ctx, err)
			return
		case err != nil:
			s.note(err)
		default:
			since := time.Now()
			s.read(ctx, sub)
			if time.Since(since) >= goodConnection {
				pause = s.cfg.BackoffMin
			}
		}
		if !sleepAbout(ctx, pause) {
			return
		}
		pause = min(2*pause, s.cfg.BackoffMax)
	}
}

// read takes from one live connection until it is lost, or ctx ends. While the queue
// is full it takes nothing. The functions that it calls are not inlined: it waits in Recv nearly
// always, and what they need would be on the stack of each silent source.
func (s *Stream) read(ctx context.Context, sub Subscription) {
	end := context.AfterFunc(ctx, func() { sub.Close() })
	if s.announceConnected(ctx) {
		var known events.PublisherID
		beat := newPulse(s.cfg.SnapshotEndpoint != "", sub)
		for {
			beat.await()
			received, err := sub.Recv()
			beat.stop()
			if ctx.Err() != nil || err != nil {
				s.reportLost(ctx, beat, err)
				break
			}
			s.hear(ctx, beat, &received, &known)
		}
	}
	end()
	sub.Close()
}

// announceConnected tells the machine of a new live connection. It returns false if ctx has ended.
//
//go:noinline
func (s *Stream) announceConnected(ctx context.Context) bool {
	return s.push(ctx, input{kind: inConnected, at: time.Now()})
}

// reportLost tells the machine that a live connection has ended.
//
//go:noinline
func (s *Stream) reportLost(ctx context.Context, beat *pulse, err error) {
	if ctx.Err() != nil { // closed by us: that is no error
		s.push(s.ctx, input{kind: inDisconnected})
		return
	}
	err = beat.explain(err)
	s.push(s.ctx, input{kind: inDisconnected, text: err.Error(), at: time.Now().Add(-silent(err))})
}

// hear gives the machine a live message. known is the publisher's lifetime as its messages name it.
//
//go:noinline
func (s *Stream) hear(ctx context.Context, beat *pulse, received *payload.Message, known *events.PublisherID) {
	m, ok := liveFrames(*received, *known, s.cfg.Topic)
	if !ok {
		s.refuse()
		s.push(ctx, input{kind: inRefused, refused: 1, text: explainFrames(received.Frames)})
		return
	}
	*known = m.id
	beat.hear(&m)
	s.push(ctx, input{kind: inLive, message: m})
}

// obey carries out what the machine wants. turn is held.
func (s *Stream) obey() {
	for _, o := range s.machine.out.orders {
		if o.relink {
			s.mu.Lock()
			s.link.cancel() // follow makes another
			s.room.Broadcast()
			s.mu.Unlock()
			continue
		}
		if o.snapshot {
			if s.snapshot != nil {
				s.snapshot()
				s.snapshot = nil
			}
			if !o.stop {
				s.begin(&s.snapshot, func(ctx context.Context) { s.request(ctx, o.ask) })
			}
			continue
		}
		if s.replay != nil {
			s.replay()
			s.replay = nil
		}
		if !o.stop {
			s.begin(&s.replay, func(ctx context.Context) { s.attempt(ctx, o.ask, o.from) })
		}
	}
	s.machine.out.orders = s.machine.out.orders[:0]
}

// begin begins one attempt to replay, or one request for a snapshot. turn is held.
func (s *Stream) begin(end *context.CancelFunc, attempt func(context.Context)) {
	// Close waits for tasks, so none may begin once it has. Nor does one begin for a
	// live connection that has ended: the machine is about to hear of it, and another
	// lifetime of the publisher might answer.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.ctx.Err() != nil || !s.view.st.Connected || s.view.connects != s.machine.connects {
		return
	}
	ctx, cancel := context.WithCancel(s.link.ctx)
	*end = cancel
	s.tasks.Go(func() {
		defer cancel()
		attempt(ctx)
	})
}

// attempt replays from a sequence until the end marker, an error, until its turn is over while
// others wait, or until the queue is full: the machine then asks for the rest, which costs the
// publisher less than a reader that is slow.
func (s *Stream) attempt(ctx context.Context, ask, from uint64) {
	if !s.cfg.Replays.acquire(ctx, s.cfg.ReplayFlow) {
		return
	}
	defer s.cfg.Replays.release(s.cfg.ReplayFlow)
	s.push(ctx, input{kind: inReplayStart, ask: ask})
	sub, err := s.cfg.Transport.Replay(ctx, s.cfg.ReplayEndpoint, from)
	if err != nil {
		if ctx.Err() == nil {
			s.note(err)
			s.push(ctx, input{kind: inReplayCut, ask: ask, bad: permanent(err), text: err.Error()})
		}
		return
	}
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	defer sub.Close()
	var expired atomic.Bool
	defer s.cfg.Replays.limitTurn(func() {
		expired.Store(true)
		sub.Close()
	})()
	var known events.PublisherID
	for {
		received, err := sub.Recv()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !expired.Load() {
				s.note(err)
			}
			s.push(ctx, input{kind: inReplayCut, ask: ask, ours: expired.Load()})
			return
		}
		m, kind := replyFrames(received, known, s.cfg.Topic)
		switch kind {
		case replyBad:
			s.refuse()
			if n := len(received.Frames); n > 0 {
				s.note(fmt.Errorf("cannot use a reply of the replay service: of its %d frames the last begins with %s", n, wire.DescribeBeginning(received.Frames[n-1])))
			}
		case replyEnd:
			s.push(ctx, input{kind: inReplayEnd, ask: ask})
			return
		case replyData:
			known = m.id
			if !s.push(ctx, input{kind: inReplay, ask: ask, message: m}) {
				s.push(ctx, input{kind: inReplayCut, ask: ask, ours: true})
				return
			}
		}
	}
}

// request asks for a snapshot of the publisher, once.
func (s *Stream) request(ctx context.Context, ask uint64) {
	if !s.cfg.Requests.acquire(ctx, s.cfg.ReplayFlow) {
		return
	}
	defer s.cfg.Requests.release(s.cfg.ReplayFlow)
	s.push(ctx, input{kind: inSnapshotStart, ask: ask})
	told := time.Now()
	frames, err := s.cfg.Transport.(Snapshots).Snapshot(ctx, s.cfg.SnapshotEndpoint, s.cfg.SnapshotBytes, func() {
		if now := time.Now(); now.Sub(told) > s.cfg.SnapshotTimeout/10 {
			told = now
			s.push(ctx, input{kind: inSnapshotStart, ask: ask})
		}
	})
	reason := SnapshotFailed
	switch snap, ok := newSnapshot(frames); {
	case ctx.Err() != nil:
		return
	case tooLarge(err):
		reason = SnapshotTooLarge
	case err != nil:
	case !ok:
		reason = SnapshotMalformed
	default:
		s.push(ctx, input{kind: inSnapshot, ask: ask, snapshot: &snap})
		return
	}
	if err != nil {
		s.note(err)
	}
	s.push(ctx, input{kind: inSnapshotCut, ask: ask, text: reason})
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

// silent returns how long before an error the last byte arrived, 0 if the error came at once.
func silent(err error) time.Duration {
	var s interface{ Silent() time.Duration }
	if errors.As(err, &s) {
		return s.Silent()
	}
	return 0
}

// permanent reports whether trying again is useless.
func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// tooLarge reports whether a reply was beyond its limits.
func tooLarge(err error) bool {
	var p interface{ TooLarge() bool }
	return errors.As(err, &p) && p.TooLarge()
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
