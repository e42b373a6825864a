package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	grpccodes "google.golang.org/grpc/codes"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/stage"
)

// slowLines is how many slow queries are logged a second, and slowBurst how many at once: an
// overloaded server makes every query slow.
const (
	slowLines = 2
	slowBurst = 20
)

// slowLog writes a line for each query that takes long.
type slowLog struct {
	least   atomic.Int64 // time of a slow query in ns, 0 for none
	log     zerolog.Logger
	lines   *bounds.Rates
	slow    prometheus.Counter
	skipped prometheus.Counter
}

func newSlowLog(log zerolog.Logger) slowLog {
	return slowLog{
		log: log, lines: bounds.NewRates(slowLines, slowBurst),
		slow: prometheus.NewCounter(prometheus.CounterOpts{Name: "conductor_slow_queries_total",
			Help: "Queries that took log.slow_query or longer."}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{Name: "conductor_slow_queries_unlogged_total",
			Help: "Slow queries without a line in the log, which has at most two a second."}),
	}
}

// logIfSlow logs a query that was slow.
func (l *slowLog) logIfSlow(q *Query, parts *[stage.Count]stage.Part, took time.Duration, status int) {
	least := time.Duration(l.least.Load())
	if least == 0 || took < least {
		return
	}
	l.slow.Inc()
	if l.lines.Spend("", 1, q.start.Add(took)) != nil {
		l.skipped.Inc()
		return
	}
	stages := zerolog.Dict()
	for s := range stage.Count {
		if parts[s].Entered {
			stages.Float64(s.String(), milliseconds(parts[s].Spent))
		}
	}
	line := l.log.Warn().Str("route", q.route)
	if q.verb == "" {
		line.Str("code", grpccodes.Code(status).String())
	} else {
		line.Int("status", status)
	}
	line.Str("tenant", q.Clock.Tenant).Str("model", q.Clock.Model).
		Int("queries", q.Clock.Queries).Int("tokens", q.Clock.Tokens).Float64("took_ms", milliseconds(took)).Dict("stages_ms", stages)
	if q.Clock.Trace != "" {
		line.Str(stage.TraceLabel, q.Clock.Trace)
	}
	line.Msg("slow query")
}

// milliseconds returns a duration to a microsecond.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
