package ingest

import (
	"sync"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

// Feed yields the steps of a source: a stream.Stream, a pushed, a recorded or an unfollowed one.
type Feed interface {
	Next() (stream.Step, bool)
	Status() stream.Status
	Resync(reason string)
	ResumeBehind(stream.Mark)
	MarkIncomplete(reason string)
	MarkUnusable(why string)
	Close()
}

// FeedFunc returns the feed of a source. free says that its endpoints need no permission. recorded is what records the source, nil
// for nothing, and on hears of changes of the feed's state.
type FeedFunc func(r registration.Registration, free bool, recorded *tape.Recorder, on func(stream.State, string)) Feed

// FeedBy lets open make the feeds of sources, and returns what made them before. Call it before the first registration.
func (c *Sources) FeedBy(open FeedFunc) (before FeedFunc) {
	before, c.open = c.open, open
	return before
}

// unfollowed is the feed of a source without a subscription: of a recovered one that is not registered, and of
// one whose engine publishes nothing. It yields no step, and nothing changes its state.
type unfollowed struct {
	closed chan struct{}
	mu     sync.Mutex
	st     stream.Status // guarded by mu
}

func newUnfollowed(now time.Time) *unfollowed {
	return &unfollowed{closed: make(chan struct{}), st: stream.Status{
		State: stream.Partial, Reason: reasonNotRegistered, History: reasonNotRegistered, Epoch: 1, LastBatchAt: now,
		Dropped: map[events.Reason]uint64{},
	}}
}

// newApproximate returns the feed of a source whose engine publishes nothing.
func newApproximate() *unfollowed {
	return &unfollowed{closed: make(chan struct{}), st: stream.Status{
		State: stream.Approximate, Epoch: 1, Dropped: map[events.Reason]uint64{},
	}}
}

func (f *unfollowed) Next() (stream.Step, bool) { <-f.closed; return stream.Step{}, false }
func (f *unfollowed) Resync(string)             {}
func (f *unfollowed) MarkIncomplete(string)     {}
func (f *unfollowed) MarkUnusable(string)       {}
func (f *unfollowed) Close()                    { close(f.closed) }

func (f *unfollowed) Status() stream.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st
}

func (f *unfollowed) ResumeBehind(m stream.Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.LastSeq, f.st.HasSeq, f.st.History = m.Seq, true, m.Missing
}
