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

// keepConnected keeps a live connection until the stream is closed, except while it is
// paused, or has failed. Each turn of the loop has a context of its own (awaitLink), so
// Pause, and a machine that wants another connection, end just that.
func (s *Stream) keepConnected() {
	for {
		ctx, ok := s.awaitLink()
		if !ok {
			return
		}
		s.connectRepeatedly(ctx)
	}
}

// sleepAbout sleeps for up to d, and half of it at least. Without the random part, all
// streams of a fleet whose network comes back would connect in the same moments. It returns
// false if ctx ended first.
//
//go:noinline
func sleepAbout(ctx context.Context, d time.Duration) bool {
	return sleepFor(ctx, d/2+rand.N(d/2+1))
}

// reportFailed tells the machine that the endpoint can never work.
//
//go:noinline
func (s *Stream) reportFailed(ctx context.Context, err error) {
	s.recordError(err)
	s.pushInput(ctx, input{kind: inFailed, text: err.Error()})
}

// connectRepeatedly keeps a live connection until ctx ends or the endpoint can never work. The
// pause doubles from one failure to the next, and ends its growth only after a connection that
// lasted: one that is accepted and closed at once, as by a proxy without a backend, is a
// failure too.
func (s *Stream) connectRepeatedly(ctx context.Context) {
	pause := s.cfg.BackoffMin
	for {
		sub, err := s.cfg.Transport.Subscribe(ctx, s.cfg.Endpoint)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				sub.Close()
			}
			return
		case isPermanent(err):
			s.reportFailed(ctx, err)
			return
		case err != nil:
			s.recordError(err)
		default:
			since := time.Now()
			s.readLive(ctx, sub)
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

// readLive takes from one live connection until it is lost, or ctx ends. While the queue is
// full it takes nothing.
//
// Recv does not know of ctx, so a function closes the subscription when ctx ends, which
// makes Recv return. Close may be called twice that way, and from two goroutines, as
// Subscription says.
//
// The functions that it calls are not inlined: it waits in Recv nearly always, and what
// they need would be on the stack of each silent source, see Next.
func (s *Stream) readLive(ctx context.Context, sub Subscription) {
	end := context.AfterFunc(ctx, func() { sub.Close() })
	if s.announceConnected(ctx) {
		var known events.PublisherID
		beat := newSilenceTimer(s.cfg.SnapshotEndpoint != "", sub)
		for {
			beat.startWait()
			received, err := sub.Recv()
			beat.endWait()
			if ctx.Err() != nil || err != nil {
				s.reportLost(ctx, beat, err)
				break
			}
			s.handleLiveMessage(ctx, beat, &received, &known)
		}
	}
	end()
	sub.Close()
}

// announceConnected tells the machine of a new live connection. It returns false if ctx has ended.
//
//go:noinline
func (s *Stream) announceConnected(ctx context.Context) bool {
	return s.pushInput(ctx, input{kind: inConnected, at: time.Now()})
}

// reportLost tells the machine that a live connection has ended. It pushes with the context
// of the stream and not with that of the connection, which may have ended: the machine has
// to hear of the end even so, because only then does it drop what waits.
//
// A connection that was given up for its silence was lost when the last byte arrived. The
// time counts from then on, so that StaleAfter is not prolonged by the wait.
//
//go:noinline
func (s *Stream) reportLost(ctx context.Context, beat *silenceTimer, err error) {
	if ctx.Err() != nil { // closed by us: that is no error
		s.pushInput(s.ctx, input{kind: inDisconnected})
		return
	}
	err = beat.explainEnd(err)
	s.pushInput(s.ctx, input{kind: inDisconnected, text: err.Error(), at: time.Now().Add(-silentFor(err))})
}

// handleLiveMessage gives the machine a live message. known is the publisher's lifetime as
// its last message named it. Nearly every message repeats it, and a comparison is cheaper
// than a search.
//
// A message that makes no sense does not end the connection. It may be a single one, and a
// publisher of another protocol would send the next after each reconnect; the machine
// counts them and says so in the state.
//
//go:noinline
func (s *Stream) handleLiveMessage(ctx context.Context, beat *silenceTimer, received *payload.Message, known *events.PublisherID) {
	m, ok := parseLive(*received, *known, s.cfg.Topic)
	if !ok {
		s.countBadFrames()
		s.pushInput(ctx, input{kind: inRefused, refused: 1, text: explainFrames(received.Frames)})
		return
	}
	*known = m.id
	beat.noteBatch(&m)
	s.pushInput(ctx, input{kind: inLive, message: m})
}

// carryOutOrders carries out what the machine wants. An attempt is always ended before another
// begins, so at most one replay and one request for a snapshot run. Their goroutines may
// outlive the order for a moment; what they still send has an old number, and handleInput
// drops it. turn is held.
func (s *Stream) carryOutOrders() {
	for _, o := range s.machine.out.orders {
		// The reader may wait for room with a batch of the connection that ends, so it is
		// woken.
		if o.relink {
			s.mu.Lock()
			s.link.cancel() // keepConnected makes another
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
				s.startAttempt(&s.snapshot, func(ctx context.Context) { s.fetchSnapshot(ctx, o.ask) })
			}
			continue
		}
		if s.replay != nil {
			s.replay()
			s.replay = nil
		}
		if !o.stop {
			s.startAttempt(&s.replay, func(ctx context.Context) { s.replayFrom(ctx, o.ask, o.from) })
		}
	}
	s.machine.out.orders = s.machine.out.orders[:0]
}

// startAttempt begins one attempt to replay, or one request for a snapshot, in a goroutine
// of its own. If it begins none, the machine is about to hear that the connection has
// ended, and drops the attempt as one that cannot be answered any more. turn is held.
func (s *Stream) startAttempt(end *context.CancelFunc, attempt func(context.Context)) {
	// Close waits for tasks, so none may begin once it has. Nor does one begin for a
	// live connection that has ended: the machine is about to hear of it, and another
	// lifetime of the publisher might answer.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.ctx.Err() != nil || !s.status.st.Connected || s.status.connects != s.machine.connects {
		return
	}
	ctx, cancel := context.WithCancel(s.link.ctx)
	*end = cancel
	s.tasks.Go(func() {
		defer cancel()
		attempt(ctx)
	})
}

// replayFrom replays from a sequence until the end marker, an error, until its turn is over
// while others wait, or until the queue is full: the machine then asks for the rest, which
// costs the publisher less than a reader that is slow. It tells the machine how it ended,
// unless ctx has ended, for then the machine has ended it.
//
// The machine hears of the beginning when the attempt has its slot, so that the time in
// the queue of the Limiter does not count as silence of the publisher. An end of our own
// making (ours) counts neither as an error nor among the attempts that brought little.
func (s *Stream) replayFrom(ctx context.Context, ask, from uint64) {
	if !s.cfg.Replays.acquireSlot(ctx, s.cfg.ReplayFlow) {
		return
	}
	defer s.cfg.Replays.releaseSlot(s.cfg.ReplayFlow)
	s.pushInput(ctx, input{kind: inReplayStart, ask: ask})
	sub, err := s.cfg.Transport.Replay(ctx, s.cfg.ReplayEndpoint, from)
	if err != nil {
		if ctx.Err() == nil {
			s.recordError(err)
			s.pushInput(ctx, input{kind: inReplayCut, ask: ask, bad: isPermanent(err), text: err.Error()})
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
				s.recordError(err)
			}
			s.pushInput(ctx, input{kind: inReplayCut, ask: ask, ours: expired.Load()})
			return
		}
		m, kind := parseReply(received, known, s.cfg.Topic)
		switch kind {
		// A reply that cannot be read is passed over, as a live message is. If all are like
		// that, the machine's patience ends the attempt.
		case replyBad:
			s.countBadFrames()
			if n := len(received.Frames); n > 0 {
				begins := wire.DescribeBeginning(received.Frames[n-1])
				s.recordError(fmt.Errorf("cannot use a reply of the replay service: of its %d frames the last begins with %s", n, begins))
			}
		case replyEnd:
			s.pushInput(ctx, input{kind: inReplayEnd, ask: ask})
			return
		case replyData:
			known = m.id
			if !s.pushInput(ctx, input{kind: inReplay, ask: ask, message: m}) {
				s.pushInput(ctx, input{kind: inReplayCut, ask: ask, ours: true})
				return
			}
		}
	}
}

// fetchSnapshot asks for a snapshot of the publisher, once. The reply may take many
// seconds, so that the machine hears of progress now and then, which extends its deadline;
// each part would be too often, as there may be 65,536.
//
// It never asks twice. Whether and when to ask again is for the machine to say, which knows
// why the last request failed.
func (s *Stream) fetchSnapshot(ctx context.Context, ask uint64) {
	if !s.cfg.Requests.acquireSlot(ctx, s.cfg.ReplayFlow) {
		return
	}
	defer s.cfg.Requests.releaseSlot(s.cfg.ReplayFlow)
	s.pushInput(ctx, input{kind: inSnapshotStart, ask: ask})
	told := time.Now()
	frames, err := s.cfg.Transport.(Snapshots).Snapshot(ctx, s.cfg.SnapshotEndpoint, s.cfg.SnapshotBytes, func() {
		if now := time.Now(); now.Sub(told) > s.cfg.SnapshotTimeout/10 {
			told = now
			s.pushInput(ctx, input{kind: inSnapshotStart, ask: ask})
		}
	})
	reason := SnapshotFailed
	switch snap, ok := parseSnapshot(frames); {
	case ctx.Err() != nil:
		return
	case isTooLarge(err):
		reason = SnapshotTooLarge
	case err != nil:
	case !ok:
		reason = SnapshotMalformed
	default:
		s.pushInput(ctx, input{kind: inSnapshot, ask: ask, snapshot: &snap})
		return
	}
	if err != nil {
		s.recordError(err)
	}
	s.pushInput(ctx, input{kind: inSnapshotCut, ask: ask, text: reason})
}

// recordError remembers an error for Status.
func (s *Stream) recordError(err error) {
	s.mu.Lock()
	s.status.st.LastError = err.Error()
	s.mu.Unlock()
}

// countBadFrames counts a message whose frames make no sense.
func (s *Stream) countBadFrames() {
	s.mu.Lock()
	s.status.countDropped(events.BadFrames, 1)
	s.mu.Unlock()
}

// silentFor returns how long before an error the last byte arrived, 0 if the error came at once.
func silentFor(err error) time.Duration {
	var s interface{ Silent() time.Duration }
	if errors.As(err, &s) {
		return s.Silent()
	}
	return 0
}

// isPermanent reports whether trying again is useless.
func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// isTooLarge reports whether a reply was beyond its limits.
func isTooLarge(err error) bool {
	var p interface{ TooLarge() bool }
	return errors.As(err, &p) && p.TooLarge()
}

// sleepFor returns false if ctx ended first.
func sleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
