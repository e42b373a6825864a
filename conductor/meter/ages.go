package meter

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/explain"
)

var descAges = prometheus.NewDesc("conductor_block_eviction_age_seconds",
	"Age of blocks when their engine evicts them, to a factor of two, from a sample.",
	[]string{"tenant_id", "model_name", "block_size", "medium"}, nil)

// AgesCollector returns what exposes ages of blocks at eviction to Prometheus.
func (m *Meter) AgesCollector() prometheus.Collector { return ages{m} }

type ages struct{ meter *Meter }

// Describe implements prometheus.Collector.
func (ages) Describe(ch chan<- *prometheus.Desc) { ch <- descAges }

// Collect implements prometheus.Collector.
func (a ages) Collect(ch chan<- prometheus.Metric) {
	all := explain.Inspector{Catalog: a.meter.opts.Catalog, Now: a.meter.opts.Now}.Lives()
	for i, l := range all {
		if i == maxIndexSeries {
			break
		}
		if l.Evicted == 0 {
			continue
		}
		quantiles, sum := make(map[float64]float64), 0.0
		for _, q := range []float64{0.1, 0.5, 0.9} {
			quantiles[q] = l.Ages.Quantile(q).Seconds()
		}
		for i, n := range l.Ages {
			sum += float64(n) * (time.Duration(1) << i * time.Millisecond * 3 / 4).Seconds()
		}
		ch <- prometheus.MustNewConstSummary(descAges, l.Evicted, sum, quantiles, l.Tenant, l.Model, strconv.Itoa(l.BlockSize), l.Medium)
	}
}
