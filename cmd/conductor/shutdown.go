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

// drain lets the servers answer on for a while. A further signal ends that.
func drain(web *server.Servers, d time.Duration, log zerolog.Logger) {
	if d <= 0 {
		return
	}
	log.Info().Dur("drain", d).Msg("draining: /ready is 503, a further signal stops at once")
	hurry, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	web.Drain(hurry, d)
}

// shutdown closes the sources and the journal. It returns in time, whatever engines do.
func shutdown(c *conductor.Conductor, j *tape.Tape, log zerolog.Logger) {
	if !within(500*time.Millisecond, c.Close) {
		log.Warn().Msg("sources did not stop in time")
	}
	// Longer than a full queue takes to a disk that works.
	if !within(time.Second, func() { j.Close() }) {
		log.Warn().Msg("the journal was not written to its end")
	}
	log.Info().Msg("stopped")
}

// within reports whether f returned in time.
func within(limit time.Duration, f func()) bool {
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
