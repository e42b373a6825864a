package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events"
)

// TestMaxBytesTotal lets one adapter fill the bound of all indexes. Blocks of another are
// refused, counted, and missed by answers that say so.
func TestMaxBytesTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxBytesTotal = 64 << 10 })
		defer b.conductor.Close()
		b.run("register a")
		for n := range 400 {
			b.run(fmt.Sprintf("store a path=%d-1/%d-2/%d-3/%d-4/%d-5/%d-6/%d-7/%d-8 lora=first", n, n, n, n, n, n, n, n))
		}
		b.run("store a path=x/y lora=second")
		if got := b.run("query path=x/y lora=second instance=a"); !strings.Contains(got, `"truncated":true`) {
			t.Errorf("the answer about refused blocks is %s", got)
		}
		if n := b.conductor.Services()[0].Dropped[events.OverBudget]; n == 0 {
			t.Error("no block counts as refused")
		}
		if n := b.conductor.Meter().IndexBytes(); n > 96<<10 {
			t.Errorf("the indexes take %d bytes", n)
		}
	})
}
