package membership

import "github.com/prometheus/client_golang/prometheus"

var (
	descUp   = prometheus.NewDesc("conductor_store_up", "1 while the store answers.", nil, nil)
	descLost = prometheus.NewDesc("conductor_store_lost_total", "Times that the store had lost what replicas had written to it.", nil,
		nil)
	descBeats    = prometheus.NewDesc("conductor_store_beats_total", "Signs of life of this replica that the store has answered.", nil, nil)
	descUnproven = prometheus.NewDesc("conductor_replicas_unproven",
		"Replicas in the store that do not prove that they know the token of this one. They are asked nothing.", nil, nil)
	descReplicas = prometheus.NewDesc("conductor_replicas", "Replicas that share the store and are alive, this one included.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g *Group) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g *Group) Collect(ch chan<- prometheus.Metric) {
	st, up := g.Status(), 0.0
	if st.Up {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(descUp, prometheus.GaugeValue, up)
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(st.Lost))
	ch <- prometheus.MustNewConstMetric(descBeats, prometheus.CounterValue, float64(st.Beats))
	ch <- prometheus.MustNewConstMetric(descReplicas, prometheus.GaugeValue, float64(len(st.Replicas)))
	ch <- prometheus.MustNewConstMetric(descUnproven, prometheus.GaugeValue, float64(len(st.Unproven)))
}
