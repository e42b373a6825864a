package ingest

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// broken is a feed whose first steps break an invariant.
type broken struct {
	idle
	steps, resyncs *atomic.Int32
}

func (f broken) Next() (stream.Step, bool) {
	if f.steps.Add(1) <= 2 {
		panic("BUG: of a test")
	}
	return f.idle.Next()
}

func (f broken) Resync(string) { f.resyncs.Add(1) }

// TestBrokenStream breaks an invariant of a stream: its source resyncs and goes on, after a while each time.
func TestBrokenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := newServer(serverOptions{HashSeed: 1337, Log: zerolog.New(&log)})
		var steps, resyncs atomic.Int32
		c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
			return broken{idle{make(chan struct{})}, &steps, &resyncs}
		})
		r := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "one", BlockSize: 16}
		must.Succeed(t, c.Register(r, RegisterOptions{}))
		synctest.Wait()
		if steps.Load() != 1 || resyncs.Load() != 1 {
			t.Errorf("at once: %d steps, %d resyncs", steps.Load(), resyncs.Load())
		}
		<-time.After(2*afterPanic + time.Second)
		synctest.Wait()
		if steps.Load() != 3 || resyncs.Load() != 2 {
			t.Errorf("%d steps, %d resyncs", steps.Load(), resyncs.Load())
		}
		c.Close()
		if n := strings.Count(log.String(), "BUG: of a test"); n < 2 {
			t.Errorf("the log tells of %d: %s", n, log.String())
		}
	})
}
