package log

import (
	"context"
	"errors"
	"sync"
	"time"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
)

// Source is the transport of one stream.
type Source struct {
	log    *Log
	cfg    SourceConfig
	bucket *bucket
	keys   [4]string // lease, meta, log, cuts

	mu      sync.Mutex
	changed chan struct{} // closed by each change of what Subscribe waits for
	link    context.Context
	idle    time.Time // when link was found ended, zero if it has not
	open    session   // the subscription, nil for none

	seen  time.Time // when the store said view; zero: never
	first time.Time // when it said one first
	since time.Time // when the stream asked for a subscription first
	lived time.Time // when a tail was seen that is connected to the engine
	view  view
	token string    // of the lease; "": this replica is not the tail
	free  time.Time // since when no replica is the tail, zero if one is
	tries time.Time // since when the tail cannot reach the engine, zero if it can
	bar   time.Time // until then the lease is for others

	gap    gap
	epoch  uint64
	win    window
	synced bool // the stream says so
	has    bool // it has a watermark, as it said last
	// at is where the log ends that the pending entries continue. at.gen is "" if they begin
	// another generation.
	at position
}

// session is an open subscription.
type session interface {
	stream.Subscription
	Replays() bool
	end(error)
}

var (
	errLease      = errors.New("the lease of the source has passed to another replica")
	errTail       = errors.New("this replica has become the tail of the source")
	errNoTail     = errors.New("no replica follows the engine")
	errStore      = errors.New("the store is back")
	errGeneration = errors.New("the log has begun another generation")
)

// change wakes Subscribe. s.mu is held.
func (s *Source) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Subscribe dials the engine if this replica is the tail, else it follows the log. It waits until
// either is possible.
func (s *Source) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	s.mu.Lock()
	if s.link, s.idle = ctx, (time.Time{}); s.since.IsZero() {
		s.since = time.Now()
	}
	s.mu.Unlock()
	s.log.join(s)
	for {
		s.mu.Lock()
		changed, tail, follows := s.changed, s.token != "" || s.adrift(time.Now()), s.mayFollow(time.Now())
		s.mu.Unlock()
		switch {
		case tail:
			return s.dial(ctx, endpoint)
		case follows:
			sub, err := s.follow(ctx)
			if sub != nil || err != nil {
				return sub, err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mayFollow reports whether the log is worth following. s.mu is held.
func (s *Source) mayFollow(now time.Time) bool {
	v := &s.view
	switch {
	case s.seen.IsZero(), v.gen == "":
		return false
	case v.last == "" && !v.whole && !s.cfg.Replays:
		return false // nothing says what was published before
	case s.alive(), now.Sub(s.lived) < grace:
		return true
	}
	return v.left == 0 && !s.caughtUp()
}

// adrift reports whether the store has been away for longer than Config.Alone: the source follows its engine
// without a lease. s.mu is held.
func (s *Source) adrift(now time.Time) bool {
	at := s.seen
	if at.IsZero() {
		at = s.since
	}
	return !at.IsZero() && now.Sub(at) > s.log.cfg.Alone
}

// alive reports whether a tail is connected to the engine, and renews its lease. s.mu is held.
func (s *Source) alive() bool {
	return s.view.live && s.view.left >= (Lease/4).Milliseconds()
}

// caughtUp reports whether the stream has handed out all that is in the log. s.mu is held.
func (s *Source) caughtUp() bool {
	return s.view.last == "" || s.win.find(s.view.position) >= 0
}

// leave notes that a subscription has ended.
func (s *Source) leave(of session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == of {
		s.open = nil
		if s.token != "" {
			s.tries = time.Now()
			s.log.look()
		}
	}
}

// endOpen ends the open subscription. s.mu is held.
func (s *Source) endOpen(why error) {
	if s.open != nil {
		s.open.end(why)
		s.open = nil
	}
	s.change()
}

// Replay asks the engine if this replica is the tail, else the log, and the engine for what neither
// the log nor a snapshot has.
func (s *Source) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	s.mu.Lock()
	f, follows := s.open.(*following)
	s.mu.Unlock()
	if follows {
		sub, err := f.replay(ctx, from, endpoint == "")
		if sub != nil || err != nil {
			return sub, err
		}
	}
	return s.cfg.Engine.Replay(ctx, endpoint, from)
}

// Snapshot asks the engine.
func (s *Source) Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error) {
	e, ok := s.cfg.Engine.(stream.Snapshots)
	if !ok {
		return nil, errors.New("the transport has no snapshots")
	}
	return e.Snapshot(ctx, endpoint, limit, progress)
}

// Refused implements stream.Refuser.
func (s *Source) Refused() (messages uint64, by string) {
	if e, ok := s.cfg.Engine.(stream.Refuser); ok {
		return e.Refused()
	}
	return 0, ""
}
