package conductor_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// A finding is logged once per source, however often the engine restarts, and is a
// metric while it lasts.
func TestFindingIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := newBenchWith(nil, zerolog.New(zerolog.SyncWriter(&log)))
		defer b.conductor.Close()
		b.run("register I")
		found := func() bool {
			r := prometheus.NewRegistry()
			r.MustRegister(b.conductor.Meter())
			families, err := r.Gather()
			must.Succeed(t, err)
			for _, f := range families {
				if f.GetName() == "conductor_source_finding" {
					return len(f.GetMetric()) == 1 && strings.Contains(f.String(), doctor.FindingMedium)
				}
			}
			return false
		}
		for range 3 {
			b.run("store I path=a medium=HBM3")
			b.run("store I path=b medium=HBM4")
			if !found() {
				t.Error("the finding is no metric")
			}
			b.run("restart I")
			b.run("wait 5s")
			b.run("clear I") // the next life's first batch
			if found() {
				t.Error("the finding outlives the engine")
			}
		}
		if n := strings.Count(log.String(), `"finding":"unknown_medium"`); n != 1 {
			t.Errorf("told %d times:\n%s", n, log.String())
		}
	})
}

// contested is a transport whose source others speak for.
type contested struct {
	*streamtest.Network
	messages atomic.Uint64
}

func (c *contested) Refused() (uint64, string) { return c.messages.Load(), "10.0.0.9:4711" }

// A connection that speaks in the name of a source is a finding while it does, and counted.
func TestForeignConnectionIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := &contested{Network: new(streamtest.Network)}
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) {
			o.Stream.Transport, o.SilentAfter = transport, time.Minute
		})
		defer b.conductor.Close()
		b.run("register I")
		f := func(messages, dropped uint64, found bool) {
			t.Helper()
			transport.messages.Store(messages)
			time.Sleep(time.Minute / 4)
			synctest.Wait()
			st := b.conductor.Services()[0]
			if n := st.Dropped[events.ForeignConnection]; n != dropped {
				t.Errorf("%d messages are counted, want %d", n, dropped)
			}
			if has := len(st.Findings) == 1 && st.Findings[0].Code == doctor.FindingConnection &&
				strings.HasPrefix(st.Findings[0].Message, "10.0.0.9:4711 "); has != found {
				t.Errorf("findings %v", st.Findings)
			}
		}
		f(0, 0, false)
		f(2, 2, true)
		f(3, 3, true)
		f(3, 3, false)
	})
}
