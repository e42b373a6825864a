// Package statelog writes a line for each change of a source's state, and bounds the lines of a
// source that changes all the time.
//
//	stream --Change--> Log --> line: source, from, to, reason, lasted
//	timer --look-----> Log          (stale, and the last change of those that were left out)
//	                    +--> History: the last 64 changes, gaps, and times that the blocks were dropped
//
// A line tells what the state was, what it is now and why, and how long the former one lasted. Bad
// states are warnings. The replay that follows each connection is a line of level debug, so that a
// start of thousands of sources has one line for each.
package statelog

import (
	"cmp"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/events/stream"
)

const (
	// A source has at most maxLines lines in each window, which is enough for the restart of an
	// engine: lost, stale, connected, synced.
	maxLines = 6
	window   = time.Minute
	// maxReason bounds what a peer may put into a line.
	maxReason = 300
)

// Log writes the lines of one source. Its methods are safe for concurrent use; a nil Log writes
// nothing.
type Log struct {
	log    zerolog.Logger
	status func() stream.Status
	stale  time.Duration // 0: no source is stale

	mu      sync.Mutex
	state   stream.State
	reason  string
	since   time.Time // of state and reason
	changes budget
	drops   budget
	waiting *change // the last change that was left out, nil if the last one has its line
	timer   *time.Timer
	due     time.Time // of timer; zero: it does not run
	history history
	gaps    uint64 // that the history has
	stopped bool
}

// change is one change of state.
type change struct {
	from, to stream.State
	reason   string
	lasted   time.Duration
}

// New returns the log of a source. status tells whether it is stale, which no Change does. A lost
// connection makes a source stale after staleAfter, 0 is never.
func New(log zerolog.Logger, status func() stream.Status, staleAfter time.Duration) *Log {
	return &Log{log: log, status: status, stale: staleAfter, state: stream.Connecting, since: time.Now()}
}

// Change records a change of state; it is called as stream.Config.OnState is. A source begins as connecting, without a line.
func (l *Log) Change(state stream.State, reason string) {
	if l == nil {
		return
	}
	st := l.status()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.noteGaps(st.Gaps, now)
	if state == stream.Connecting {
		if st.State == stream.Stale { // the connection was silent for that long
			state = stream.Stale
		} else if l.stale > 0 {
			l.lookAt(now.Add(l.staleIn(&st, now)))
		}
	}
	l.become(state, explain(state, reason, &st), now)
}

// staleIn returns how long until a source without a connection is stale.
func (l *Log) staleIn(st *stream.Status, now time.Time) time.Duration {
	if st.LastLifeAt.IsZero() {
		return l.stale
	}
	return l.stale - now.Sub(st.LastLifeAt)
}

// explain returns why a source is in a state: the reason, else what went wrong with the connection.
func explain(state stream.State, reason string, st *stream.Status) string {
	switch state {
	case stream.Connecting, stream.Stale, stream.Failed:
		reason = cmp.Or(reason, st.LastError)
	}
	return reason[:min(len(reason), maxReason)]
}

// become goes over to a state. mu is held.
func (l *Log) become(state stream.State, reason string, now time.Time) {
	if l.stopped || state == l.state && (reason == l.reason || state != stream.Partial) {
		return
	}
	c := change{from: l.state, to: state, reason: reason, lasted: now.Sub(l.since)}
	l.state, l.reason, l.since = state, reason, now
	l.noteChange(&c, now)
	if c.level() == zerolog.DebugLevel {
		l.write(&c, 0)
		return
	}
	if ok, left := l.changes.take(now); ok {
		l.waiting = nil
		l.write(&c, left)
		return
	}
	l.waiting = &c
	l.lookAt(l.changes.begun.Add(window))
}

// level is how much a change matters.
func (c *change) level() zerolog.Level {
	switch c.to {
	case stream.Synced, stream.Paused:
		return zerolog.InfoLevel
	case stream.Replaying:
		if c.from == stream.Synced || c.from == stream.Partial {
			return zerolog.InfoLevel // something is missing, and is fetched
		}
		return zerolog.DebugLevel
	}
	return zerolog.WarnLevel
}

// write writes a line. mu is held.
func (l *Log) write(c *change, left int) {
	e := l.log.WithLevel(c.level()).Str("from", string(c.from)).Str("to", string(c.to))
	if c.reason != "" {
		e = e.Str("reason", c.reason)
	}
	if left > 0 {
		e = e.Int("left_out", left)
	}
	e.Dur("lasted_ms", c.lasted).Msg("the state of the source has changed")
}

// Dropped writes that the blocks of the source were dropped.
func (l *Log) Dropped(reason string, epoch uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.history.add(Event{At: now, Kind: EventDropped, Reason: reason, Count: epoch})
	ok, left := l.drops.take(now)
	if !ok {
		return
	}
	e := l.log.Info().Str("reason", reason).Uint64("epoch", epoch)
	if left > 0 {
		e = e.Int("left_out", left)
	}
	e.Msg("blocks of the source dropped")
}

// lookAt looks again at some time, or earlier. mu is held.
func (l *Log) lookAt(at time.Time) {
	if l.stopped || !l.due.IsZero() && l.due.Before(at) {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.due = at
	l.timer = time.AfterFunc(max(time.Until(at), time.Millisecond), l.look)
}

// look writes lines whose time has come: that the source is stale, and the last change that was left out.
func (l *Log) look() {
	st := l.status()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	now := time.Now()
	l.due = time.Time{}
	if l.state == stream.Connecting && l.stale > 0 {
		if st.State == stream.Stale {
			l.become(stream.Stale, explain(stream.Stale, "", &st), now)
		} else {
			l.lookAt(now.Add(max(l.staleIn(&st, now), l.stale/8, time.Millisecond)))
		}
	}
	if l.waiting == nil {
		return
	}
	if next := l.changes.begun.Add(window); now.Before(next) {
		l.lookAt(next)
		return
	}
	_, left := l.changes.take(now)
	l.write(l.waiting, left-1) // it counts itself
	l.waiting = nil
}

// Stop ends the lines.
func (l *Log) Stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// budget bounds lines.
type budget struct {
	begun   time.Time // of the window
	lines   int       // in it
	leftOut int       // since the last line
}

// take reports whether there may be a line, and how many were left out before it.
func (b *budget) take(now time.Time) (ok bool, leftOut int) {
	if now.Sub(b.begun) >= window {
		b.begun, b.lines = now, 0
	}
	if b.lines == maxLines {
		b.leftOut++
		return false, 0
	}
	b.lines++
	leftOut, b.leftOut = b.leftOut, 0
	return true, leftOut
}
