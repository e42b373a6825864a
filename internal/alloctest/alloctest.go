// Package alloctest counts the allocations of a function in a test.
package alloctest

import "testing"

// measurements is how often PerRun measures at most.
const measurements = 5

// PerRun returns how many allocations f makes on average in some runs, the fewest of up to five
// measurements. One does not do: the runtime counts what all goroutines of the process allocate, those too
// that an earlier test or a new server has left at work, and on a busy machine these may go on for long.
func PerRun(runs int, f func()) float64 {
	fewest := testing.AllocsPerRun(runs, f)
	for n := 1; n < measurements && fewest > 0; n++ {
		fewest = min(fewest, testing.AllocsPerRun(runs, f))
	}
	return fewest
}
