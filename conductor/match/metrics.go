package match

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/stage"
)

// queryMetrics count what routers ask.
type queryMetrics struct {
	seconds *prometheus.HistogramVec
	unknown prometheus.Counter // fields
	by      [len(catalog.PromptKinds)]prometheus.Observer
}

// queryBuckets are in seconds. Prompts of 1,024 to 65,536 tokens take 10 to 500 µs
// (docs/benchmarks/query.md): there a bucket is 1.3 to 1.7 times the one before.
var queryBuckets = []float64{
	2e-6, 5e-6, 10e-6, 15e-6, 20e-6, 30e-6, 40e-6, 50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6,
	1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 250e-3,
}

func newQueryMetrics() queryMetrics {
	m := queryMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "conductor_query_seconds",
			Help:    "Time from a decoded query to its answer, without HTTP and JSON.",
			Buckets: queryBuckets,
		}, []string{"by"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conductor_unknown_fields_total",
			Help: "Fields of registrations and queries in the Conductor dialect that do not exist, such as mistyped ones.",
		}),
	}
	for i, by := range catalog.PromptKinds {
		m.by[i] = m.seconds.WithLabelValues(by)
	}
	return m
}

var (
	descMatched = prometheus.NewDesc("conductor_query_matched_tokens_total", "Prompt tokens that the best instance of an answer held.",
		[]string{"by"}, nil)
	descAsked = prometheus.NewDesc("conductor_query_tokens_total", "Prompt tokens asked for, in complete blocks.", []string{"by"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Matcher) Describe(ch chan<- *prometheus.Desc) {
	ch <- descMatched
	ch <- descAsked
	c.queries.seconds.Describe(ch)
	c.queries.unknown.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *Matcher) Collect(ch chan<- prometheus.Metric) {
	c.queries.seconds.Collect(ch)
	for i, n := range c.catalog.SumQueries() {
		ch <- prometheus.MustNewConstMetric(descMatched, prometheus.CounterValue, float64(n.Matched), catalog.PromptKinds[i])
		ch <- prometheus.MustNewConstMetric(descAsked, prometheus.CounterValue, float64(n.Asked), catalog.PromptKinds[i])
	}
	c.queries.unknown.Collect(ch)
}

// Times returns the times of all queries since the start.
func (c *Matcher) Times() QueryTimes { return c.queries.times() }

// isFresh reports whether a query shows that some engine will announce blocks: one that computes the prompt, of which no instance
// has more than best blocks. Where blocks of engines are larger than registered ones, or have tokens of the next one in their
// hash, the end of a prompt is never announced. A query about one instance, or one that may see nothing, says nothing.
func (c *Matcher) isFresh(d *catalog.Deployment, q *Query, best int) bool {
	if d == nil || q.Instance != nil || c.saltedOnly.Load() && q.Salt == "" {
		return false
	}
	end := max(d.MostParts(), 1) - 1
	if d.LookAheads() != catalog.NoLookAhead {
		end++
	}
	return q.blocks()-best > end
}

// countQuery counts an answered query. The best instance held best of its blocks.
func (c *Matcher) countQuery(d *catalog.Deployment, q *Query, best int, took time.Duration) {
	by := catalog.ByTokens
	switch {
	case q.ByHash:
		by = catalog.ByHashes
	case q.ByClientHash:
		by = catalog.ByClientHashes
	}
	c.catalog.CountQuery(d, by, q.blocks()*q.BlockSize, best*q.BlockSize, c.isFresh(d, q, best))
	if q.Clock != nil && q.Clock.Trace != "" {
		c.queries.by[by].(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(),
			prometheus.Labels{stage.TraceLabel: q.Clock.Trace})
	} else {
		c.queries.by[by].Observe(took.Seconds())
	}
}
