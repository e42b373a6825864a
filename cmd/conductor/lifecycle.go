package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
)

// lifecycle is what a process has opened and started, from its start to its end:
//
//	onEnd, run --> ... parts, oldest first ...
//	signal, or the first task that fails --> ctx ends --> end: each part, newest first, within its time
//
// A part that is opened names the function that closes it; a task is a part that is waited for. So nothing ends before what
// was built on it, whether the process was asked to stop, could not start, or failed after hours.
type lifecycle struct {
	ctx    context.Context // ends with a signal, and with the first failure
	cancel context.CancelCauseFunc
	log    zerolog.Logger
	over   func(part) <-chan time.Time // says when the time of a part is over; by the clock, but for tests

	mu    sync.Mutex
	parts []part // oldest first; guarded by mu
}

// part is something that ends with the process.
type part struct {
	name   string
	within time.Duration // how long its end may take
	end    func()
}

// partTime is how long the end of a part may take that names no other time. What takes longer hangs: on a disk, or on a peer.
const partTime = 5 * time.Second

// newLifecycle returns a lifecycle that ends with ctx.
func newLifecycle(ctx context.Context, log zerolog.Logger) *lifecycle {
	l := &lifecycle{log: log, over: func(p part) <-chan time.Time { return time.After(p.within) }}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	return l
}

// onEnd lets a function end a part, within partTime.
func (l *lifecycle) onEnd(name string, end func()) { l.onEndWithin(name, partTime, end) }

// onEndWithin lets a function end a part, and gives it a time of its own.
func (l *lifecycle) onEndWithin(name string, within time.Duration, end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts = append(l.parts, part{name, within, end})
}

// run starts a task, which returns when ctx ends. If it returns an error before, that is logged and ends the process.
func (l *lifecycle) run(name string, task func(context.Context) error) {
	ended := make(chan struct{})
	l.onEnd(name, func() { <-ended })
	go func() {
		defer close(ended)
		if err := task(l.ctx); err != nil && l.ctx.Err() == nil {
			l.log.Error().Err(err).Msg("stopping, because " + name + " failed")
			l.cancel(errors.Join(fmt.Errorf("%s: %w", name, err), cli.ErrReported))
		}
	}()
}

// follow is run for a task that cannot fail.
func (l *lifecycle) follow(name string, task func(context.Context)) {
	l.run(name, func(ctx context.Context) error { task(ctx); return nil })
}

// wait returns when the process is to end: nil after a signal, else the error of the task that failed, which is in the log.
func (l *lifecycle) wait() error {
	<-l.ctx.Done()
	return l.failure()
}

// failure returns the error of the task that failed, nil if none has.
func (l *lifecycle) failure() error {
	if err := context.Cause(l.ctx); errors.Is(err, cli.ErrReported) {
		return err
	}
	return nil
}

// end ends all parts, the newest first. It gives up on a part whose time is over, and says so.
func (l *lifecycle) end() {
	l.cancel(nil)
	l.mu.Lock()
	parts := l.parts
	l.parts = nil
	l.mu.Unlock()
	for _, p := range slices.Backward(parts) {
		if !finishesBefore(l.over(p), p.end) {
			l.warnLate(p)
		}
	}
}

// warnLate says that a part is left behind.
func (l *lifecycle) warnLate(p part) {
	l.log.Warn().Dur("within", p.within).Msg(p.name + " did not stop in time")
}

// finishesBefore reports whether f returned before its time was over.
func finishesBefore(over <-chan time.Time, f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-over:
		return false
	}
}
