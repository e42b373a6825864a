package cluster

import (
	"math"
	"time"

	"example.com/conductor/conductor/scope"
)

const (
	// sourceLoad is what a source that is followed costs, in queries a second: a core follows some
	// hundreds of busy engines, or answers some ten thousand queries a second.
	sourceLoad = 20
	// smoothing is the time in which a rate takes over most of a change.
	smoothing = 30 * time.Second
	// leastRate is where rates begin to count, in queries a second.
	leastRate = 50
)

// rates are queries a second by shard, smoothed.
type rates struct {
	at     time.Time
	counts map[scope.Shard]uint64
	rate   map[scope.Shard]float64
}

// addCounts updates the rates by the numbers of queries until now.
func (r *rates) addCounts(counts map[scope.Shard]uint64, now time.Time) {
	passed := now.Sub(r.at).Seconds()
	rate := make(map[scope.Shard]float64, len(counts))
	for s, n := range counts {
		before, known := r.counts[s]
		if r.at.IsZero() || !known || n < before || passed <= 0 {
			rate[s] = r.rate[s]
			continue
		}
		part := 1 - math.Exp(-passed/smoothing.Seconds())
		rate[s] = r.rate[s] + part*(float64(n-before)/passed-r.rate[s])
	}
	r.at, r.counts, r.rate = now, counts, rate
}

// roundedRate returns the rate of a shard as beats have it.
func (r *rates) roundedRate(s scope.Shard) float64 { return math.Round(r.rate[s]*10) / 10 }

// roundCoarsely rounds a rate to a power of the root of two, and a small one to 0: replicas that read the
// same group half a second apart compute the same owners.
func roundCoarsely(rate float64) float64 {
	if rate < leastRate {
		return 0
	}
	return math.Exp2(math.Round(2*math.Log2(rate)) / 2)
}
