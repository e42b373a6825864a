package watch

import "github.com/prometheus/client_golang/prometheus"

var (
	descViewers = prometheus.NewDesc("conductor_viewers", "Clients that follow /admin/live.", nil, nil)
	descRefused = prometheus.NewDesc("conductor_viewers_refused_total",
		"Clients of /admin/live that were refused, because 16 look already or because their tenant has its share.", nil, nil)
	descResets = prometheus.NewDesc("conductor_viewer_resets_total",
		"Times that a client of /admin/live read too slowly and got the whole state again.", nil, nil)
	descTook = prometheus.NewDesc("conductor_watch_seconds", "Seconds that the last collection for /admin/stats and /admin/live took.", nil,
		nil)
)

// Describe implements prometheus.Collector.
func (h *Hub) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, ch) }

// Collect implements prometheus.Collector.
func (h *Hub) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	viewers, took := h.viewers, h.took
	h.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descViewers, prometheus.GaugeValue, float64(viewers))
	ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(h.refused.Load()))
	ch <- prometheus.MustNewConstMetric(descResets, prometheus.CounterValue, float64(h.resets.Load()))
	ch <- prometheus.MustNewConstMetric(descTook, prometheus.GaugeValue, took.Seconds())
}
