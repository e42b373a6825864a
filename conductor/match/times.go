package match

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// QueryTimes counts queries by how long they took, as conductor_query_seconds does. It has one more element than
// queryBuckets: queries that took longer than all of them.
type QueryTimes []uint64

// times returns the times of all queries since the start.
func (m *queryMetrics) times() QueryTimes {
	all := make(QueryTimes, len(queryBuckets)+1)
	for _, by := range m.by {
		var read dto.Metric
		if err := by.(prometheus.Metric).Write(&read); err != nil {
			panic("BUG: a histogram cannot be read: " + err.Error())
		}
		h, below := read.GetHistogram(), uint64(0)
		for i, b := range h.GetBucket() {
			all[i] += b.GetCumulativeCount() - below
			below = b.GetCumulativeCount()
		}
		all[len(queryBuckets)] += h.GetSampleCount() - below
	}
	return all
}

// Since returns the queries after those of was, which may be nil.
func (t QueryTimes) Since(was QueryTimes) QueryTimes {
	out := make(QueryTimes, len(t))
	for i, n := range t {
		if out[i] = n; i < len(was) {
			out[i] -= min(n, was[i])
		}
	}
	return out
}

// Quantile returns the time in seconds that a part of the queries stayed below, NaN without queries. Within a
// bucket it takes the queries as spread evenly, and beyond the last it returns the bound of that.
func (t QueryTimes) Quantile(part float64) float64 {
	all := uint64(0)
	for _, n := range t {
		all += n
	}
	if all == 0 {
		return math.NaN()
	}
	rank, from := part*float64(all), 0.0
	for i, bound := range queryBuckets {
		if n := float64(t[i]); rank <= n && n > 0 {
			return from + (bound-from)*rank/n
		} else {
			rank -= n
		}
		from = bound
	}
	return from
}
