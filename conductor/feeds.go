package conductor

import (
	"maps"
	"sync"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// feed yields the steps of a source: a stream.Stream, a recorded or an unfollowed one.
type feed interface {
	Next() (stream.Step, bool)
	Status() stream.Status
	Resync(reason string)
	ResumeBehind(stream.Mark)
	MarkIncomplete(reason string)
	MarkUnusable(why string)
	Close()
}

// recorded is the feed of a source in a journal. The Replay puts recorded steps in, and the
// source takes them as from a stream.
type recorded struct {
	source     *source // set by the Replay, which alone uses it
	id         uint32  // in the journal; likewise
	now        func() time.Time
	staleAfter time.Duration // 0: never

	steps   chan stream.Step
	applied chan struct{}
	closed  chan struct{}
	suspect bool // records of it may be among damaged ones since its last batch; owned by the Replay
	close   sync.Once
	busy    bool // a step is with the source; owned by the goroutine that calls Next

	mu    sync.Mutex
	st    stream.Status // written by the Replay, which reads it without mu; guarded by mu for others
	since time.Time     // of st.State
	lost  string        // why the journal is not whole in this epoch
}

func newRecorded(now func() time.Time, staleAfter time.Duration) *recorded {
	return &recorded{
		now: now, staleAfter: staleAfter,
		steps: make(chan stream.Step), applied: make(chan struct{}), closed: make(chan struct{}),
		st: stream.Status{State: stream.Connecting, Epoch: 1, Dropped: make(map[events.Reason]uint64)}, since: now(),
	}
}

// hand gives the source a step and waits until the source has applied it.
func (f *recorded) hand(step stream.Step, at time.Time) {
	f.steps <- step
	<-f.applied
	f.mu.Lock()
	defer f.mu.Unlock()
	switch step.Kind {
	case stream.ApplyBatch:
		f.st.Epoch, f.st.LastSeq, f.st.HasSeq, f.st.LastBatchAt = step.Epoch, step.Seq, true, at
		if step.Replayed {
			f.st.Replayed++
		}
	case stream.DropBlocks:
		if step.Epoch != f.st.Epoch {
			f.st.Epoch, f.st.LastSeq, f.st.HasSeq = step.Epoch, 0, false
			f.lost = ""
		}
	}
}

// Next counts the previous step as applied and returns the next one; false once
// the feed is closed.
func (f *recorded) Next() (stream.Step, bool) {
	if f.busy {
		f.busy = false
		f.applied <- struct{}{}
	}
	select {
	case step := <-f.steps:
		f.busy = true
		return step, true
	case <-f.closed:
		return stream.Step{}, false
	}
}

// Resync does nothing: the journal has the steps that a resync led to.
func (f *recorded) Resync(string) {}

// ResumeBehind does nothing: the journal begins with the history.
func (f *recorded) ResumeBehind(stream.Mark) {}

// MarkIncomplete does nothing: the journal has the states of the stream.
func (f *recorded) MarkIncomplete(string) {}

// MarkUnusable does nothing, as MarkIncomplete.
func (f *recorded) MarkUnusable(string) {}

// Close makes Next return false.
func (f *recorded) Close() { f.close.Do(func() { close(f.closed) }) }

// change changes what the Status shows.
func (f *recorded) change(change func(*stream.Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.st)
}

// incomplete notes that the journal is not whole.
func (f *recorded) incomplete(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = reason
}

// Status returns the recorded state, partial if the journal is not whole.
func (f *recorded) Status() stream.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.st
	st.Dropped = maps.Clone(st.Dropped)
	if f.lost != "" && (st.State == stream.Synced || st.State == stream.Partial) {
		st.State, st.Reason = stream.Partial, f.lost
	}
	if st.State == stream.Connecting && f.staleAfter > 0 && f.now().Sub(f.since) > f.staleAfter {
		st.State, st.StaleAt = stream.Stale, f.since.Add(f.staleAfter)
	}
	return st
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
