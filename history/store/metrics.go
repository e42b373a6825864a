package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descWritten = prometheus.NewDesc("conductor_shelf_written_total",
		"Snapshots of deployments that this replica put on the shelf in the store.", nil, nil)
	descFailed = prometheus.NewDesc("conductor_shelf_failed_total",
		"Snapshots that this replica could not put on the shelf, by reason.", []string{"reason"}, nil)
	descEvicted = prometheus.NewDesc("conductor_shelf_evicted_total",
		"Snapshots of other deployments that this replica took down to make room.", nil, nil)
	descSnapshots = prometheus.NewDesc("conductor_shelf_snapshots", "Snapshots on the shelf, of all replicas.", nil, nil)
	descBytes     = prometheus.NewDesc("conductor_shelf_bytes", "Bytes of the snapshots on the shelf.", nil, nil)
	descMalformed = prometheus.NewDesc("conductor_shelf_malformed", "Entries on the shelf that no replica can have written.", nil, nil)
	descOldest    = prometheus.NewDesc("conductor_shelf_oldest_seconds",
		"Age of the oldest snapshot of a deployment that this replica holds. One without a snapshot counts since this was seen.", nil, nil)
	descLoaded  = prometheus.NewDesc("conductor_shelf_loaded_blocks_total", "Blocks brought back from the shelf.", nil, nil)
	descLeftOut = prometheus.NewDesc("conductor_shelf_left_out_total", "Snapshots on the shelf that could not be used, by reason.",
		[]string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(k, ch) }

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	st := k.Status()
	put := func(desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
	}
	put(descWritten, prometheus.CounterValue, float64(st.Written))
	for _, reason := range failures {
		put(descFailed, prometheus.CounterValue, float64(st.Failed[reason]), reason)
	}
	put(descEvicted, prometheus.CounterValue, float64(st.Evicted))
	put(descSnapshots, prometheus.GaugeValue, float64(st.Snapshots))
	put(descBytes, prometheus.GaugeValue, float64(st.Bytes))
	put(descMalformed, prometheus.GaugeValue, float64(st.Malformed))
	age := 0.0
	if !st.Oldest.IsZero() {
		age = time.Since(st.Oldest).Seconds()
	}
	put(descOldest, prometheus.GaugeValue, age)
	put(descLoaded, prometheus.CounterValue, float64(st.Loaded))
	for _, reason := range leftOut {
		put(descLeftOut, prometheus.CounterValue, float64(st.LeftOut[reason]), reason)
	}
}
