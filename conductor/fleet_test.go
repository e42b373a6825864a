package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/internal/must"
)

// series gathers the metrics of a Conductor by name.
func series(t testing.TB, c *conductor.Conductor) map[string][]*dto.Metric {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c.Meter())
	families, err := r.Gather()
	must.Succeed(t, err)
	all := make(map[string][]*dto.Metric)
	for _, f := range families {
		all[f.GetName()] = f.Metric
	}
	return all
}

// value returns the value of the series with some labels, as name=value, -1 if there is none.
func value(metrics []*dto.Metric, labels ...string) float64 {
	for _, m := range metrics {
		have := make(map[string]bool)
		for _, l := range m.Label {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		fits := true
		for _, l := range labels {
			fits = fits && have[l]
		}
		if fits {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

// TestSourceSeries holds which sources have series of their own, below and above the bound and by
// setting, and that the sums of the fleet are the same throughout.
func TestSourceSeries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		f := func(mode status.SourceSeries, listed, blocks, states int) {
			t.Helper()
			b.conductor.Tune(conductor.Tunables{MaxSources: 1000, SourceSeries: mode})
			all := series(t, b.conductor)
			if n := value(all["conductor_sources_listed"]); n != float64(listed) {
				t.Errorf("mode %d: %v listed, want %d", mode, n, listed)
			}
			if n := len(all["conductor_source_blocks"]); n != blocks {
				t.Errorf("mode %d: %d series of blocks, want %d", mode, n, blocks)
			}
			if n := len(all["conductor_source_state"]); n != states {
				t.Errorf("mode %d: %d states, want %d", mode, n, states)
			}
			if n := value(all["conductor_source_state"], "instance_id=partial", "state=partial", "reason=history_unknown"); n != 1 {
				t.Errorf("mode %d: state of the partial source: %v", mode, n)
			}
			if n := value(all["conductor_fleet_findings"], "code=unknown_medium"); n != 1 {
				t.Errorf("mode %d: findings %v", mode, n)
			}
			if n := value(all["conductor_fleet_blocks"], "tenant_id=default", "model_name=m"); n != 2 {
				t.Errorf("mode %d: blocks %v", mode, n)
			}
		}
		b.conductor.Tune(conductor.Tunables{MaxSources: 1000})
		b.run("gap partial")
		b.run("register partial replay=no")
		b.run("store partial path=a")
		b.run("register odd")
		b.run("store odd path=b medium=HBM9")
		synctest.Wait()
		f(status.SeriesAuto, 2, 2, 2) // all there are
		f(status.SeriesNever, 2, 0, 2)
		for i := range 499 {
			b.run(fmt.Sprintf("register e%d", i))
			b.run(fmt.Sprintf("batch e%d []", i))
		}
		b.run("wait 6s")
		f(status.SeriesAlways, 501, 501, 501)
		if n := value(series(t, b.conductor)["conductor_sources"], "state=synced"); n != 500 {
			t.Fatalf("%v sources are synced: %s", n, b.run("services"))
		}
		f(status.SeriesAuto, 2, 0, 2)
		f(status.SeriesNever, 2, 0, 2)
	})
}

// TestFleetCountersOutliveSources unregisters a source that has counted: no counter of the fleet falls.
func TestFleetCountersOutliveSources(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register I replay=no")
		b.run("register J replay=no")
		b.run("store I path=a")
		b.run("gap I")
		b.run("store I path=b")
		b.run(`event I json={"type":"NoSuchEvent"}`)
		synctest.Wait()
		check := func(when string, sources float64) {
			t.Helper()
			all := series(t, b.conductor)
			if n := value(all["conductor_fleet_gaps_total"], "model_name=m"); n != 1 {
				t.Errorf("%s: %v gaps", when, n)
			}
			if n := value(all["conductor_fleet_dropped_total"], "reason=unknown_type"); n != 1 {
				t.Errorf("%s: %v dropped", when, n)
			}
			if n := value(all["conductor_sources"], "state=partial"); n != sources {
				t.Errorf("%s: %v partial sources", when, n)
			}
		}
		check("registered", 2)
		b.run("unregister I")
		check("gone", 1)
		b.run("register I replay=no")
		b.run("store I path=a")
		synctest.Wait()
		check("again", 2)
	})
}

// manySources registers sources whose engines never answer, each with a tenant and a model.
func manySources(t testing.TB, n int, own bool) *bench {
	t.Helper()
	b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxSources = n })
	for i := range n {
		r := registration.Registration{Endpoint: fmt.Sprintf("mem://e%d", i), Type: registration.TypeVLLM, Model: "m",
			Instance: fmt.Sprintf("instance-%d", i), BlockSize: 16}
		if own {
			r.Tenant, r.Model = fmt.Sprintf("tenant-%d", i), fmt.Sprintf("model-%d", i)
		}
		must.Succeed(t, b.conductor.Register(r, ingest.RegisterOptions{Static: true, AnyEndpoint: true}))
	}
	return b
}

// TestSeriesAreBounded counts the series of 10,000 sources, each with a tenant and a model of its own.
func TestSeriesAreBounded(t *testing.T) {
	b := manySources(t, times(10_000), true) // in any case beyond the bounds
	defer b.conductor.Close()
	count := 0
	for name, metrics := range series(t, b.conductor) {
		if count += len(metrics); len(metrics) > 1001 {
			t.Errorf("%s has %d series", name, len(metrics))
		}
		if strings.HasPrefix(name, "conductor_fleet_") {
			if n := value(metrics, "tenant_id=(others)"); n < 0 && name != "conductor_fleet_findings" &&
				name != "conductor_fleet_dropped_total" {
				t.Errorf("%s lacks the tenants beyond the bound", name)
			}
		}
	}
	if count > 12_000 {
		t.Errorf("%d series", count)
	}
	t.Logf("%d series", count)
}
