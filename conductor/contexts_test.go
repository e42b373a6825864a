package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// TestContextBomb lets a publisher name adapters without end. The source has the bound of them,
// keeps what it had, and the metrics have a bounded number of rows.
func TestContextBomb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxContexts = 1500 })
		defer b.conductor.Close()
		b.run("register A")
		for i := range 2000 {
			b.run(fmt.Sprintf("store A path=s lora=x%d as=x%d", i, i))
		}
		if n := len(b.conductor.For(conductor.Reader{}).Inspect().Contexts()); n != 1500 {
			t.Errorf("%d adapters have blocks", n)
		}
		if n := b.conductor.Services()[0].Dropped[events.ContextLimit]; n != 500 {
			t.Errorf("%d blocks are counted as dropped", n)
		}
		if answer := b.run("query path=s lora=x7"); !strings.Contains(answer, `"longest_matched":16`) {
			t.Errorf("an adapter of before: %s", answer)
		}
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(b.conductor.Meter())
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

// TestSaltForEachRequest: a publisher that invents a salt for each request uses the room of those
// that have no block any more.
func TestSaltForEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxContexts = 20 })
		defer b.conductor.Close()
		b.run("register A")
		b.run("store A path=kept salt=kept")
		for i := range 500 {
			b.run(fmt.Sprintf("store A path=s salt=x%d as=x%d", i, i))
			if answer := b.run(fmt.Sprintf("query path=s salt=x%d", i)); !strings.Contains(answer, `"longest_matched":16`) {
				t.Fatalf("salt %d: %s", i, answer)
			}
			b.run(fmt.Sprintf("remove A path=s as=x%d", i))
		}
		if n := b.conductor.Services()[0].Dropped[events.ContextLimit]; n != 0 {
			t.Errorf("%d blocks are counted as dropped", n)
		}
		if answer := b.run("query path=kept salt=kept"); !strings.Contains(answer, `"longest_matched":16`) {
			t.Errorf("the salt that has a block: %s", answer)
		}
	})
}
