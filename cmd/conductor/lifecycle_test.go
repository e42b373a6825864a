package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
)

// TestLifecycle ends a process by a signal and by a task that fails: parts end in the reverse order, tasks in their place, and
// an error is logged once.
func TestLifecycle(t *testing.T) {
	f := func(fails error, want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ctx, signal := context.WithCancel(t.Context())
			defer signal()
			var out bytes.Buffer
			l := newLifecycle(ctx, zerolog.New(&out))
			ended := make(chan string, 3)
			l.onEnd("first", func() { ended <- "first" })
			l.follow("task", func(ctx context.Context) {
				<-ctx.Done()
				time.Sleep(time.Second) // its end takes a while
				ended <- "task"
			})
			l.onEnd("last", func() { ended <- "last" })
			l.run("what fails", func(ctx context.Context) error {
				if fails == nil {
					<-ctx.Done()
					return ctx.Err() // an error of the end is none
				}
				time.Sleep(time.Hour)
				return fails
			})
			if fails == nil {
				time.AfterFunc(time.Minute, signal)
			}
			err := l.wait()
			l.end()
			if !errors.Is(err, fails) || (fails != nil) != errors.Is(err, cli.ErrReported) {
				t.Errorf("ended with %v, want %v", err, fails)
			}
			if order := []string{<-ended, <-ended, <-ended}; !slices.Equal(order, []string{"last", "task", "first"}) {
				t.Errorf("ended in the order %v", order)
			}
			if text := out.String(); text != want {
				t.Errorf("the log has %q, want %q", text, want)
			}
		})
	}
	f(nil, "")
	f(errors.New("no more"), `{"level":"error","error":"no more","message":"stopping, because what fails failed"}`+"\n")
}

// TestLifecycleGivesUp ends a process of which a part and a task never end: it says so, and ends the others.
func TestLifecycleGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLifecycle(t.Context(), zerolog.New(&out))
		hang := make(chan struct{})
		defer close(hang)
		closed := false
		l.onEnd("the first", func() { closed = true })
		l.follow("a task", func(context.Context) { <-hang })
		l.onEndWithin("a disk", time.Hour, func() { <-hang })
		began := time.Now()
		l.end()
		if took := time.Since(began); !closed || took != time.Hour+partTime {
			t.Errorf("the end took %v; the first part ended: %t", took, closed)
		}
		if text := out.String(); strings.Count(text, "did not stop in time") != 2 {
			t.Errorf("the log has %s", text)
		}
	})
}
