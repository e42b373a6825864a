package file

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/history"
)

var (
	descLoaded  = prometheus.NewDesc("conductor_snapshot_loaded_blocks", "Blocks of the snapshot that the server began with.", nil, nil)
	descSeconds = prometheus.NewDesc("conductor_snapshot_load_seconds",
		"Seconds that it took to load the snapshot that the server began with.", nil, nil)
	descLeftOut = prometheus.NewDesc("conductor_snapshot_left_out",
		"Snapshots that could not be used at the start, and sources, deployments, salts and blocks of the one loaded that were left "+
			"out, by reason.", []string{"reason"}, nil)
	descWritten = prometheus.NewDesc("conductor_snapshots_written_total", "Snapshots written to the disk.", nil, nil)
	descFailed  = prometheus.NewDesc("conductor_snapshots_failed_total", "Snapshots that could not be written.", nil, nil)
	descTime    = prometheus.NewDesc("conductor_snapshot_timestamp_seconds", "Time of the newest snapshot written, 0 before the first.",
		nil, nil)
	descBytes  = prometheus.NewDesc("conductor_snapshot_bytes", "Bytes of the newest snapshot written.", nil, nil)
	descBlocks = prometheus.NewDesc("conductor_snapshot_blocks", "Blocks of the newest snapshot written.", nil, nil)
	descTook   = prometheus.NewDesc("conductor_snapshot_write_seconds", "Seconds that it took to write the newest snapshot.", nil, nil)
	descUnkept = prometheus.NewDesc("conductor_registrations_failing",
		"1 while the disk does not accept registrations, so that calls which register or unregister fail.", nil, nil)
	descPaused = prometheus.NewDesc("conductor_snapshot_pause_seconds",
		"Seconds that events waited while the newest snapshot was begun.", nil, nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(k, ch) }

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	st := k.Status()
	put := func(desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
	}
	put(descLoaded, prometheus.GaugeValue, float64(st.Blocks))
	put(descSeconds, prometheus.GaugeValue, st.Seconds)
	for _, reason := range slices.Concat(history.Reasons, []string{reasonChanged, reasonSealed, reasonBudget}) {
		put(descLeftOut, prometheus.GaugeValue, float64(st.LeftOut[reason]), reason)
	}
	put(descWritten, prometheus.CounterValue, float64(st.Written))
	put(descFailed, prometheus.CounterValue, float64(st.Failed))
	seconds := 0.0
	if st.Written > 0 {
		seconds = float64(st.Last.Time.UnixNano()) / 1e9
	}
	put(descTime, prometheus.GaugeValue, seconds)
	put(descBytes, prometheus.GaugeValue, float64(st.Last.Bytes))
	put(descBlocks, prometheus.GaugeValue, float64(st.Last.Blocks))
	put(descTook, prometheus.GaugeValue, st.LastTook.Seconds())
	unkept := 0.0
	if st.Unkept != nil {
		unkept = 1
	}
	put(descUnkept, prometheus.GaugeValue, unkept)
	put(descPaused, prometheus.GaugeValue, st.Last.Paused.Seconds())
}
