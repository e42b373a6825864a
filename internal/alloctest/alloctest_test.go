package alloctest_test

import (
	"testing"

	"example.com/conductor/internal/alloctest"
)

var sink []byte

// TestPerRun counts a function whose first runs happen next to allocations of others.
func TestPerRun(t *testing.T) {
	const runs = 10
	for allocations := range 3 {
		n := 0
		got := alloctest.PerRun(runs, func() {
			mine := allocations
			if n++; n <= runs {
				mine += 100
			}
			for range mine {
				sink = make([]byte, 8)
			}
		})
		if got != float64(allocations) {
			t.Errorf("%v allocations a run, want %d", got, allocations)
		}
	}
}
