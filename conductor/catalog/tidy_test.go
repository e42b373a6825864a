package catalog

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// TestTidyLogsPanic holds that a broken invariant of the index, found by the timer of
// tidy, is logged. It does not end the process, and later calls of tidy run again.
func TestTidyLogsPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := &Deployment{log: zerolog.New(&log)} // no index: its statistics panic
		for n := 1; n <= 2; n++ {
			d.TidySoon()
			time.Sleep(tidyAfter)
			synctest.Wait()
			if got := strings.Count(log.String(), "index was not tidied"); got != n {
				t.Errorf("after call %d the log has %d lines:\n%s", n, got, log.String())
			}
		}
	})
}
