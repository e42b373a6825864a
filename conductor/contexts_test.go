package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/events"
	"kvconductor/internal/must"
)

// TestContextBomb lets a publisher name adapters without end. The source has the bound of them,
// keeps what it had, and the metrics have a bounded number of rows.
func TestContextBomb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxContexts = 1500 })
		defer b.conductor.Close()
		b.run("register A")
		for i := range 2000 {
			b.run(fmt.Sprintf("store A path=s lora=x%d", i))
		}
		if n := len(b.conductor.Contexts()); n != 1500 {
			t.Errorf("%d contexts", n)
		}
		if n := b.conductor.Services()[0].Dropped[events.ContextLimit]; n != 500 {
			t.Errorf("%d blocks are counted as dropped", n)
		}
		if answer := b.run("query path=s lora=x7"); !strings.Contains(answer, `"longest_matched":16`) {
			t.Errorf("an adapter of before: %s", answer)
		}
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(conductor.Collector{Conductor: b.conductor})
		families, err := r.Gather()
		must.Succeed(t, err)
		for _, f := range families {
			if n := len(f.Metric); n > 1100 {
				t.Errorf("%s has %d rows", f.GetName(), n)
			}
			if f.GetName() == "conductor_index_blocks" {
				sum := 0.0
				for _, m := range f.Metric {
					sum += m.GetGauge().GetValue()
				}
				if sum != 1500 {
					t.Errorf("the rows are of %g blocks", sum)
				}
			}
		}
	})
}

// TestContextsWhenFull lets a publisher name adapters while the indexes are full.
func TestContextsWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxBytesTotal = 1 << 20 })
		defer b.conductor.Close()
		b.run("register A")
		for i := range 4000 {
			b.run(fmt.Sprintf("store A path=s lora=x%d", i))
		}
		if n := len(b.conductor.Contexts()); n > 400 {
			t.Errorf("%d contexts in 1 MiB", n)
		}
		if r := b.conductor.Ready(); r.IndexLimit != 1<<20 || r.IndexBytes < r.IndexLimit || r.IndexBytes > 2<<20 {
			t.Errorf("the indexes take %d of %d bytes", r.IndexBytes, r.IndexLimit)
		}
		b.run("unregister A")
		if r := b.conductor.Ready(); r.IndexBytes > 64<<10 {
			t.Errorf("the indexes take %d bytes in the end", r.IndexBytes)
		}
	})
}
