package conductor_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/doctor"
	"kvconductor/internal/must"
)

// A finding is logged once per source, however often the engine restarts, and is a
// metric while it lasts.
func TestFindingIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := newBenchWith(nil, zerolog.New(&log))
		defer b.conductor.Close()
		b.run("register I")
		found := func() bool {
			r := prometheus.NewRegistry()
			r.MustRegister(conductor.Collector{Conductor: b.conductor})
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
