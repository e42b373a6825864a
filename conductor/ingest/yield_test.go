package ingest

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// The copy of a snapshot sleeps while queries arrive, if there is one processor.
func TestSnapshotsYieldToQueries(t *testing.T) {
	check := func(processors int, asked time.Duration, want time.Duration) {
		t.Helper()
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		synctest.Test(t, func(t *testing.T) {
			c := newServer(serverOptions{})
			defer c.Close()
			begun := time.Now()
			c.catalog.NoteAsked(begun.Add(-asked))
			c.sources.Snapshots().yieldToQueries()
			if took := time.Since(begun); took != want {
				t.Errorf("with %d processors and a query %v ago the copy slept for %v, want %v", processors, asked, took, want)
			}
		})
	}
	check(1, 0, queriesFirst)
	check(1, time.Second, queriesFirst)
	check(1, 2*time.Second, 0)
	check(1, -2*time.Second, 0) // the clock was set back
	check(2, 0, 0)
}
