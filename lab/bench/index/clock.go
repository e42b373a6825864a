package index

import (
	"math"
	"runtime/metrics"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
)

// clock reads the monotonic clock and knows the cost of a reading.
type clock struct {
	base time.Time
	cost time.Duration // of one reading
}

func newClock() clock {
	c := clock{base: time.Now()}
	// The fastest of many rounds: other load makes a round slower only.
	const readings = 1000
	c.cost = time.Duration(math.MaxInt64)
	for range 50 {
		from := c.now()
		for range readings - 1 {
			c.now()
		}
		c.cost = min(c.cost, (c.now()-from)/readings)
	}
	return c
}

func (c *clock) now() time.Duration { return time.Since(c.base) }

// Latencies are nanoseconds.
type Latencies struct {
	P50  int64 `json:"p50_ns"`
	P99  int64 `json:"p99_ns"`
	P999 int64 `json:"p999_ns"`
	Max  int64 `json:"max_ns"`
}

// percentilesOf returns the percentiles of samples in nanoseconds.
func percentilesOf(ns []uint32) Latencies {
	var l harness.Latencies
	for _, n := range ns {
		l.Add(time.Duration(n))
	}
	return Latencies{int64(l.At(50)), int64(l.At(99)), int64(l.At(99.9)), int64(l.At(100))}
}

// Collector is the work of the garbage collector.
type Collector struct {
	PauseP99 int64 `json:"gc_pause_p99_ns"` // under load and idle
	PauseMax int64 `json:"gc_pause_max_ns"`
	Pauses   int   `json:"gc_pauses"`
	Cycles   int   `json:"gc_cycles"`
	// Fraction is the share of all processor time while idle, one forced cycle
	// in the time watched; FractionLoad the same under load.
	Fraction     float64 `json:"gc_cpu_fraction"`
	FractionLoad float64 `json:"gc_cpu_fraction_load"`
}

// reading is a state of the runtime's counters. Those of processor time move only
// when a cycle ends.
type reading struct {
	gcCPU, allCPU float64
	cycles        uint64
	pauses        *metrics.Float64Histogram
	objects       uint64 // allocations so far
}

func readRuntime() reading {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/sched/pauses/total/gc:seconds"},
		{Name: "/gc/heap/allocs:objects"},
	}
	metrics.Read(s)
	h := s[3].Value.Float64Histogram()
	return reading{s[0].Value.Float64(), s[1].Value.Float64(), s[2].Value.Uint64(),
		&metrics.Float64Histogram{Counts: slices.Clone(h.Counts), Buckets: h.Buckets}, s[4].Value.Uint64()}
}

// fraction returns the share of processor time the collector took since before.
func (r reading) fraction(before reading) float64 {
	if all := r.allCPU - before.allCPU; all > 0 {
		return (r.gcCPU - before.gcCPU) / all
	}
	return 0
}

// pausesSince returns the pauses since before, each as the upper bound of its bucket.
func (r reading) pausesSince(before reading) (pauses harness.Latencies) {
	for i, n := range r.pauses.Counts {
		upper := r.pauses.Buckets[i+1]
		if math.IsInf(upper, 1) {
			upper = r.pauses.Buckets[i]
		}
		pauses.AddMany(time.Duration(upper*1e9), int64(n-before.pauses.Counts[i]))
	}
	return pauses
}
