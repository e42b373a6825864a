package memory

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/meter"
)

var descMemory = prometheus.NewDesc("conductor_memory_bytes",
	"Resident memory by part; docs/memory.md explains the parts. They add up to about process_resident_memory_bytes.", []string{"part"},
	nil)

var descLimit = prometheus.NewDesc("conductor_memory_limit_bytes", "Memory limit of the cgroup; absent without one.", nil, nil)

// Collector exposes Account to Prometheus. Resident memory itself is
// process_resident_memory_bytes.
type Collector struct{ Meter *meter.Meter }

// Describe implements prometheus.Collector.
func (c Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descMemory
	ch <- descLimit
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range Account(c.Meter.Memory()) {
		ch <- prometheus.MustNewConstMetric(descMemory, prometheus.GaugeValue, float64(p.Bytes), p.Name)
	}
	if limit := real().limitOfCgroup(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descLimit, prometheus.GaugeValue, float64(limit))
	}
}
