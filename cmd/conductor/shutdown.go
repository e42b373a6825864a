package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/server"
)

// drainListeners lets the servers answer on for a while. A further signal ends that.
func drainListeners(web *server.Servers, d time.Duration, log zerolog.Logger) {
	if d <= 0 {
		return
	}
	hurry, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Info().Dur("drain", d).Msg("draining: /ready is 503, a further signal stops at once")
	web.Drain(hurry, d)
}

// How long the ends of parts may take that end differently from others.
const (
	// sourcesTime is for sockets, whatever engines do.
	sourcesTime = 500 * time.Millisecond
	// journalTime is longer than a full queue takes to a disk that works.
	journalTime = time.Second
	// lastSnapshotTime is for the snapshots of all that the sources hold, some 100 MB/s on a slow disk.
	lastSnapshotTime = time.Minute
)
