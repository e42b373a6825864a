package harness

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the longest duration that a report tells from longer ones.
const longest = 10 * time.Minute

// Latencies counts durations of 1 ns to 10 min, each to three significant digits.
// Shorter and longer durations count as these bounds. The zero value is empty.
//
// Concurrency: one goroutine at a time.
//
// Cost: 250 KB from the first duration on, and some nanoseconds a duration.
type Latencies struct{ counts *hdrhistogram.Histogram }

func (l *Latencies) histogram() *hdrhistogram.Histogram {
	if l.counts == nil {
		l.counts = hdrhistogram.New(1, int64(longest), 3)
	}
	return l.counts
}

// Add counts a duration.
func (l *Latencies) Add(d time.Duration) { l.AddMany(d, 1) }

// AddMany counts n equal durations.
func (l *Latencies) AddMany(d time.Duration, n int64) {
	if err := l.histogram().RecordValues(int64(min(max(d, 0), longest)), n); err != nil {
		panic("BUG: a duration within the bounds is not counted: " + err.Error())
	}
}

// Merge adds all durations of other.
func (l *Latencies) Merge(other *Latencies) { l.histogram().Merge(other.histogram()) }

// Reset forgets all durations.
func (l *Latencies) Reset() { l.histogram().Reset() }

// Count returns how many durations were added.
func (l *Latencies) Count() int { return int(l.histogram().TotalCount()) }

// At returns the duration that percent of all durations do not exceed. It returns 0 if
// there are none.
func (l *Latencies) At(percent float64) time.Duration {
	return time.Duration(l.histogram().ValueAtPercentile(percent))
}
