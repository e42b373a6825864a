// Package telemetry watches requests from outside the handlers: their times as a histogram, queries
// as traces, and the slow ones as lines of the log.
//
//	request --> Middleware --> handlers, which enter the stages of one stage.Clock
//	                |
//	                +--> conductor_http_request_seconds, each request
//	                +--> a server span and one span a stage, sampled queries
//	                +--> a line of the log, slow queries
//
// Queries over gRPC have BeginCall and End in place of the Middleware, and the same spans and
// lines. Queries have a clock only while a trace wants it, or log.slow_query is set. What leaves the
// process has names, counts and times: no tokens, prompts, salts or credentials.
//
// Concurrency: a Watch is safe for concurrent use.
package telemetry

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/stage"
)

// Watch observes the requests of all listeners. It is a prometheus.Collector.
type Watch struct {
	tracer  *Tracer // nil: no traces
	slow    slowLog
	seconds *prometheus.HistogramVec
	mu      sync.RWMutex
	routes  map[string]*route // by the path of the router; guarded by mu
}

// New returns a Watch with a tracer, nil for no traces. It logs slow queries to log, once SetSlow
// has said which are slow.
func New(tracer *Tracer, log zerolog.Logger) *Watch {
	return &Watch{tracer: tracer, slow: newSlowLog(log), routes: make(map[string]*route),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "conductor_http_request_seconds",
			Help: "Time from the header of a request to the end of its handler, which may wait for the client's body.",
			// Queries of usual length take 30 to 500 µs, lists and dumps up to seconds.
			Buckets: []float64{20e-6, 40e-6, 60e-6, 80e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 250e-3,
				1, 5},
		}, []string{"route", "status"})}
}

// SetSlow says how long a query takes that is slow, 0 for none.
func (w *Watch) SetSlow(d time.Duration) { w.slow.least.Store(int64(d)) }

// route is what requests of one path have in common.
type route struct {
	path     string
	query    bool
	observed [len(statusClasses)]prometheus.Observer
}

// statusClasses are the values of the label status.
var statusClasses = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}

func classOf(status int) int { return min(max(status/100-1, 0), len(statusClasses)-1) }

// queryPaths are the ends of the paths that queries come by.
var queryPaths = []string{"/query", "/query_by_hash", "/query_batch", "/query_tiered_by_hash"}

// route returns that of a path of the router, "" for requests that none fits.
func (w *Watch) route(path string) *route {
	w.mu.RLock()
	r := w.routes[path]
	w.mu.RUnlock()
	if r != nil {
		return r
	}
	r = &route{path: cmp.Or(path, "none")}
	r.query = slices.ContainsFunc(queryPaths, func(end string) bool { return strings.HasSuffix(path, end) })
	for i, class := range statusClasses {
		r.observed[i] = w.seconds.WithLabelValues(r.path, class)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes[path] = r
	return r
}

// Middleware watches a request. It comes before everything that may refuse one.
func (w *Watch) Middleware(g *gin.Context) {
	start, r := time.Now(), w.route(g.FullPath())
	var query *Query
	if r.query {
		query = w.beginRequest(g, r, start)
	}
	status := http.StatusInternalServerError // of a handler that panics
	defer func() {
		took := time.Since(start)
		observer := r.observed[classOf(status)]
		if query != nil && query.Clock.Trace != "" {
			observer.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(),
				prometheus.Labels{stage.TraceLabel: query.Clock.Trace})
		} else {
			observer.Observe(took.Seconds())
		}
		if query != nil {
			w.End(query, status)
		}
	}()
	g.Next()
	status = g.Writer.Status()
}

// Describe implements prometheus.Collector.
func (w *Watch) Describe(ch chan<- *prometheus.Desc) {
	w.seconds.Describe(ch)
	w.slow.slow.Describe(ch)
	w.slow.skipped.Describe(ch)
	ch <- descSpans
}

// Collect implements prometheus.Collector. A route without requests of a status has no series of it.
func (w *Watch) Collect(ch chan<- prometheus.Metric) {
	w.seconds.Collect(ch)
	w.slow.slow.Collect(ch)
	w.slow.skipped.Collect(ch)
	if w.tracer != nil {
		w.tracer.sending.collect(ch)
	}
}
