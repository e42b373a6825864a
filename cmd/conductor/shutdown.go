package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/tape"
)

// drainListeners lets the servers answer on for a while. A further signal ends that.
func drainListeners(web *server.Servers, d time.Duration, log zerolog.Logger) {
	if d <= 0 {
		return
	}
	log.Info().Dur("drain", d).Msg("draining: /ready is 503, a further signal stops at once")
	hurry, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	web.Drain(hurry, d)
}

// closeSources closes the sources and the journal. It returns in time, whatever engines do.
func closeSources(c *conductor.Conductor, j *tape.Tape, log zerolog.Logger) {
	if !finishesWithin(500*time.Millisecond, c.Close) {
		log.Warn().Msg("sources did not stop in time")
	}
	// Longer than a full queue takes to a disk that works.
	if !finishesWithin(time.Second, func() { j.Close() }) {
		log.Warn().Msg("the journal was not written to its end")
	}
	log.Info().Msg("stopped")
}

// finishesWithin reports whether f returned in time.
func finishesWithin(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
