package dynamo

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
)

// requestMetrics count what clients ask, under the names Dynamo's indexer uses.
type requestMetrics struct {
	seconds  *prometheus.HistogramVec
	requests *prometheus.CounterVec
	errors   *prometheus.CounterVec
}

func newRequestMetrics() requestMetrics {
	return requestMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dynamo_kvindexer_request_duration_seconds", Help: "HTTP request latency",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20), // as Dynamo's: 0.1 ms to 52 s
		}, []string{"endpoint"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamo_kvindexer_requests_total", Help: "Total HTTP requests",
		}, []string{"endpoint", "method"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamo_kvindexer_errors_total", Help: "HTTP error responses (4xx/5xx)",
		}, []string{"endpoint", "status_class"}),
	}
}

// count observes the requests of an endpoint; "unknown" stands for paths that are
// none, which the reference does not count.
func (d *Dialect) count(endpoint string) gin.HandlerFunc {
	seconds := d.metrics.seconds.WithLabelValues
	return func(g *gin.Context) {
		start := time.Now()
		g.Next()
		seconds(endpoint).Observe(time.Since(start).Seconds())
		d.metrics.requests.WithLabelValues(endpoint, method(g.Request.Method)).Inc()
		switch status := g.Writer.Status(); {
		case status >= http.StatusInternalServerError:
			d.metrics.errors.WithLabelValues(endpoint, "5xx").Inc()
		case status >= http.StatusBadRequest:
			d.metrics.errors.WithLabelValues(endpoint, "4xx").Inc()
		}
	}
}

// method is a request's method as a label: clients may send any word.
func method(name string) string {
	switch name {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return name
	}
	return "other"
}

var (
	descModels    = prometheus.NewDesc("dynamo_kvindexer_models", "Number of active model+routing-group indexers", nil, nil)
	descWorkers   = prometheus.NewDesc("dynamo_kvindexer_workers", "Number of registered worker instances", nil, nil)
	descListeners = prometheus.NewDesc("dynamo_kvindexer_listeners", "Number of ZMQ listeners by status", []string{"status"}, nil)
	descApplied   = prometheus.NewDesc("dynamo_kvrouter_kv_cache_events_applied", "Total number of KV cache events applied to index",
		[]string{"event_type", "status"}, nil)
	descWarnings = prometheus.NewDesc("dynamo_kvrouter_kv_cache_event_warnings",
		"Total number of suspicious KV cache events seen by the router indexer", []string{"warning_kind"}, nil)

	descFilter = prometheus.NewDesc("dynamo_kvrouter_ckf_mutation_total", "Total number of CKF block-level mutation outcomes",
		[]string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (d *Dialect) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{descModels, descWorkers, descListeners, descApplied, descWarnings, descFilter} {
		ch <- desc
	}
	d.metrics.seconds.Describe(ch)
	d.metrics.requests.Describe(ch)
	d.metrics.errors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (d *Dialect) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	listeners, workers := make(map[string]int), make(map[listed]bool)
	d.conductor.Sources().EachSource(func(r *registration.Registration, s status.SourceState, pending bool) {
		if isWorker(r) {
			listeners[statusOf(string(s.State), pending)]++
			workers[listedAs(r)] = true
		}
	})
	for _, status := range statuses {
		gauge(descListeners, listeners[status], status)
	}
	gauge(descModels, len(d.conductor.Catalog().Partitions()))
	gauge(descWorkers, len(workers))

	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	counts := d.conductor.Sources().EventCounts()
	collectOutcomes("stored", counts.Stored, counter)
	collectOutcomes("removed", counts.Removed, counter)
	collectOutcomes("cleared", counts.Cleared, counter)
	counter(descWarnings, counts.DuplicateStores, "duplicate_store")
	// A structure this server does not have; dashboards ask for it all the same.
	counter(descFilter, 0, "capacity_exhausted")
	counter(descFilter, 0, "unknown_remove")

	d.metrics.seconds.Collect(ch)
	d.metrics.requests.Collect(ch)
	d.metrics.errors.Collect(ch)
}

// collectOutcomes emits every status the reference knows, those too that cannot
// come about here: its series are there from the start.
func collectOutcomes(kind string, o ingest.EventOutcomes, counter func(*prometheus.Desc, uint64, ...string)) {
	for _, s := range []struct {
		status string
		n      uint64
	}{
		{"ok", o.OK},
		{"block_not_found", o.BlockUnknown},
		{"parent_block_not_found", o.ParentUnknown},
		{"capacity_exhausted", o.NoRoom},
		{"invalid_block", o.Invalid},
		{"allocation_failed", 0},
		{"indexer_invariant_violation", 0},
		{"ownership_degree_overflow", 0},
		{"unsupported_residency_domain", 0},
	} {
		counter(descApplied, s.n, kind, s.status)
	}
}
