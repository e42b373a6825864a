package main

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"kvconductor/conductor"
	"kvconductor/conductor/fleet"
	"kvconductor/conductor/shelf"
	"kvconductor/config"
	"kvconductor/events/log"
	"kvconductor/events/stream"
	"kvconductor/store"
)

// logging lets sources follow logs in the store.
type logging struct {
	cfg     config.Store
	engines func(r conductor.Registration, static bool) stream.Transport
	log     *log.Log      // nil: every source follows its engine; set before sources are registered
	healer  *shelf.Healer // likewise
}

// start begins to keep logs, if the settings say so. The function that it returns ends that.
func (l *logging) start(shared *store.Store, members *fleet.Fleet, registry *prometheus.Registry) (stop func()) {
	if l.cfg.Ingest != config.FromLog {
		return func() {}
	}
	l.log = log.New(log.Config{
		Store: shared, ID: members.ID(), Bytes: l.cfg.LogBytes, Age: l.cfg.LogAge, Buffer: l.cfg.LogBuffer,
		Usable: func() bool { st := members.Status(); return st.Beats > 0 && !st.Refused },
		Replicas: func() (all []log.Replica) {
			for _, r := range members.Status().Replicas {
				all = append(all, log.Replica{ID: r.ID, Weight: r.Weight})
			}
			return all
		},
	})
	registry.MustRegister(logCollector{l.log})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Timeout)
		defer cancel()
		l.log.Close(ctx)
	}
}

// transport is that of a source: publishers that connect to us have no log.
func (l *logging) transport(r conductor.Registration, static bool) stream.Transport {
	engine := l.engines(r, static)
	if l.log == nil || strings.HasPrefix(r.Endpoint, "bind:") {
		return engine
	}
	first, topic := r.Numbers()
	var heal func(*log.Gap)
	if l.healer != nil && !r.Pool() { // no snapshot has the objects of a pool
		heal = func(g *log.Gap) { l.healer.Ask(r, g) }
	}
	return l.log.Source(log.SourceConfig{
		// A source with another endpoint has another log.
		Key: r.Key().String() + " " + r.Endpoint, Engine: engine, Replays: r.ReplayEndpoint != "", First: first, Topic: topic, Heal: heal,
	})
}

// logRow is one series of the logs.
type logRow struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*log.Stats) float64
}

var logSeries = []logRow{
	logGauge("leases", "Sources whose engine this replica follows for all replicas.", func(s *log.Stats) float64 { return float64(s.Held) }),
	logGauge("followed", "Sources that this replica follows by their log, or waits to.", func(s *log.Stats) float64 { return float64(s.Following) }),
	logGauge("behind_entries", "Entries of followed logs that were not received yet.", func(s *log.Stats) float64 { return float64(s.Behind) }),
	logGauge("buffered_bytes", "Bytes of batches that wait to be appended.", func(s *log.Stats) float64 { return float64(s.Buffered) }),
	logCounter("leases_taken", "Leases of sources that this replica took.", func(s *log.Stats) uint64 { return s.Taken }),
	logCounter("leases_lost", "Leases of sources that passed to another replica before they were given back.", func(s *log.Stats) uint64 { return s.Lost }),
	logCounter("appends", "Appends to logs, each of one batch or more.", func(s *log.Stats) uint64 { return s.Appends }),
	logCounter("entries", "Batches appended to logs.", func(s *log.Stats) uint64 { return s.Entries }),
	logCounter("bytes", "Bytes of batches appended to logs.", func(s *log.Stats) uint64 { return s.Bytes }),
	logCounter("generations", "Logs begun: of a source that had none, or of another lifetime of an engine.", func(s *log.Stats) uint64 { return s.Generations }),
	logCounter("dropped_entries", "Batches left out of logs, because too many waited for the store.", func(s *log.Stats) uint64 { return s.Dropped }),
	logCounter("replays", "Replays out of logs.", func(s *log.Stats) uint64 { return s.FromLog }),
	logCounter("gaps", "Searches for a snapshot for a source that is partial or whose log begins too late.", func(s *log.Stats) uint64 { return s.Gaps }),
	logCounter("healed", "Sources that such a snapshot healed.", func(s *log.Stats) uint64 { return s.Healed }),
	logCounter("engine_replays", "Replays that engines were asked for because neither the log nor a snapshot had them.", func(s *log.Stats) uint64 { return s.Asked }),
}

var descLogErrors = prometheus.NewDesc("conductor_log_errors_total",
	"Commands for logs that did not do what they should: without an answer (store), or on a log that was not as this replica left it (moved).", []string{"reason"}, nil)

func logGauge(name, help string, value func(*log.Stats) float64) logRow {
	return logRow{prometheus.NewDesc("conductor_log_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

func logCounter(name, help string, value func(*log.Stats) uint64) logRow {
	return logRow{
		prometheus.NewDesc("conductor_log_"+name+"_total", help, nil, nil), prometheus.CounterValue,
		func(s *log.Stats) float64 { return float64(value(s)) },
	}
}

// logCollector shows the logs to Prometheus.
type logCollector struct{ log *log.Log }

// Describe implements prometheus.Collector.
func (c logCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c logCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.log.Stats()
	for _, row := range logSeries {
		ch <- prometheus.MustNewConstMetric(row.desc, row.kind, row.value(&st))
	}
	for reason, n := range map[string]uint64{"store": st.Failed, "moved": st.Moved} {
		ch <- prometheus.MustNewConstMetric(descLogErrors, prometheus.CounterValue, float64(n), reason)
	}
}
