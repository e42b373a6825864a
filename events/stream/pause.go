package stream

import (
	"context"
	"time"
)

// link is whether there should be a connection. Guarded by Stream.mu. It is apart from the
// status, which says whether there is one: between a call of Pause and the end of the
// connection the two differ.
type link struct {
	paused bool
	failed bool // the endpoint can never work, and no caller asked to try again
	// ctx is of the connection that is kept or sought at present, and of its
	// replays; Pause and Unpause end it.
	ctx    context.Context
	cancel context.CancelFunc
}

// Pause closes the live connection and any replay in flight, and stays without until
// Unpause. What the publisher sends after Pause has returned is missed; what arrived before
// is still applied, and the watermark stays. It does nothing to a stream that is Failed.
//
// It does not wait for the reader to end. The reader may be in the transport, or wait for
// room; it finds its context ended and can queue nothing more, which is why what arrives
// after Pause is missed for sure.
func (s *Stream) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.paused || s.link.failed || s.status.hasFailed() {
		return
	}
	s.link.paused = true
	s.link.cancel()
	s.room.Broadcast()
	s.status.noteDisconnected(time.Now(), "")
	s.wakeNext() // OnState is to hear of it
}

// Unpause connects again. What was missed meanwhile is replayed, or shows as a gap with the
// next batch. Of a stream that is Failed it tries the endpoints again; to any other it does
// nothing.
//
// The machine hears of it as an input, in the order of all others, because only then does
// it forget why it failed.
func (s *Stream) Unpause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.link.paused && !s.link.failed && !s.status.hasFailed() {
		return
	}
	s.link.paused, s.link.failed = false, false
	s.link.cancel() // it stands if only the replay endpoint has failed
	s.room.Broadcast()
	s.status.noteRetry(time.Now())
	s.inbox.appendInput(input{kind: inRetry})
	s.wakeNext()
	select {
	case s.unpaused <- struct{}{}:
	default:
	}
}

// awaitLink waits until there should be a connection, and returns the context it may live in;
// false at the end of the stream. The context of the connection before is ended in the same
// step, which also ends its replays.
func (s *Stream) awaitLink() (context.Context, bool) {
	for s.ctx.Err() == nil {
		s.mu.Lock()
		if !s.link.paused && !s.link.failed {
			defer s.mu.Unlock()
			s.link.cancel()
			s.link.ctx, s.link.cancel = context.WithCancel(s.ctx)
			return s.link.ctx, true
		}
		s.mu.Unlock()
		select {
		case <-s.unpaused:
		case <-s.ctx.Done():
		}
	}
	return nil, false
}

// isPaused reports whether the stream is paused.
func (s *Stream) isPaused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link.paused
}
