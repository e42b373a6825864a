package ingest

import (
	"maps"
	"sync"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// RecordedFeed is the feed of a source in a journal. A replay puts recorded steps in, and the
// source takes them as from a stream.
type RecordedFeed struct {
	source     *Source // set by newRegistered
	now        func() time.Time
	staleAfter time.Duration // 0: never

	steps   chan stream.Step
	applied chan struct{}
	closed  chan struct{}
	suspect bool // records of it may be among damaged ones since its last batch; owned by the replay
	close   sync.Once
	busy    bool // a step is with the source; owned by the goroutine that calls Next

	mu    sync.Mutex
	st    stream.Status // written by the replay, which reads it without mu; guarded by mu for others
	since time.Time     // of st.State
	lost  string        // why the journal is not whole in this epoch
}

// NewRecorded returns the feed of a source in a journal. staleAfter is 0 for never.
func NewRecorded(now func() time.Time, staleAfter time.Duration) *RecordedFeed {
	return &RecordedFeed{
		now: now, staleAfter: staleAfter,
		steps: make(chan stream.Step), applied: make(chan struct{}), closed: make(chan struct{}),
		st: stream.Status{State: stream.Connecting, Epoch: 1, Dropped: make(map[events.Reason]uint64)}, since: now(),
	}
}

// ApplyStep gives the source a step and waits until the source has applied it.
func (f *RecordedFeed) ApplyStep(step stream.Step, at time.Time) {
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
func (f *RecordedFeed) Next() (stream.Step, bool) {
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
func (f *RecordedFeed) Resync(string) {}

// ResumeBehind does nothing: the journal begins with the history.
func (f *RecordedFeed) ResumeBehind(stream.Mark) {}

// MarkIncomplete does nothing: the journal has the states of the stream.
func (f *RecordedFeed) MarkIncomplete(string) {}

// MarkUnusable does nothing, as MarkIncomplete.
func (f *RecordedFeed) MarkUnusable(string) {}

// Close makes Next return false.
func (f *RecordedFeed) Close() { f.close.Do(func() { close(f.closed) }) }

// UpdateStatus changes what Status returns.
func (f *RecordedFeed) UpdateStatus(change func(*stream.Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.st)
}

// NoteLoss notes why the journal is not whole.
func (f *RecordedFeed) NoteLoss(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = reason
}

// Status returns the recorded state, partial if the journal is not whole.
func (f *RecordedFeed) Status() stream.Status {
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

// ExpireBlocks lets blocks of the source expire as they did then, those on media with the time to live ttl; 0 is that of the
// registration.
func (f *RecordedFeed) ExpireBlocks(ttl time.Duration) {
	if ttl == 0 {
		ttl = f.source.Registration.TTL
	}
	f.source.guard(func() { f.source.rotateGenerations(ttl) })
}

// SkipBatch moves the source past a batch without events.
func (f *RecordedFeed) SkipBatch(seq uint64, at time.Time) {
	f.source.guard(func() { f.source.mark.Seq = seq })
	f.UpdateStatus(func(st *stream.Status) { st.LastSeq, st.HasSeq, st.LastBatchAt = seq, true, at })
}

// Key returns the key of the source.
func (f *RecordedFeed) Key() registration.Key { return f.source.Registration.Key() }

// SetState notes a recorded change of state.
func (f *RecordedFeed) SetState(state stream.State, reason string, at time.Time) {
	f.UpdateStatus(func(st *stream.Status) {
		st.State, st.Reason = state, reason
		st.Connected = st.State != stream.Connecting && st.State != stream.Paused && st.State != stream.Failed
		f.since = at
	})
}

// MarkSuspect notes that records of the source may be among damaged ones.
func (f *RecordedFeed) MarkSuspect() { f.suspect = true }

// CheckDamage compares the number of a record with the one before, if there is damage between them, which may hold the
// numbers that are left out.
func (f *RecordedFeed) CheckDamage(seq uint64, lost string) {
	if f.suspect && (!f.st.HasSeq || seq > f.st.LastSeq+1) {
		f.NoteLoss(lost)
	}
	f.suspect = false
}

// BeginEpoch begins an epoch, if it is another one, and reports whether it is.
func (f *RecordedFeed) BeginEpoch(epoch uint64, reason string, at time.Time) bool {
	if epoch == f.st.Epoch {
		return false
	}
	f.ApplyStep(stream.Step{Kind: stream.DropBlocks, Epoch: epoch, Reason: reason}, at)
	return true
}

// DropBlocks drops all blocks, as they were dropped then. What damaged records before it had does not matter any more.
func (f *RecordedFeed) DropBlocks(epoch uint64, reason string, at time.Time) {
	f.suspect = false
	f.ApplyStep(stream.Step{Kind: stream.DropBlocks, Epoch: epoch, Reason: reason}, at)
}

// LastSeq returns the number of the last batch in its epoch. The goroutine that hands steps on calls it.
func (f *RecordedFeed) LastSeq() (seq uint64, has bool) { return f.st.LastSeq, f.st.HasSeq }
