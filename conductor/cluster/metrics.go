package cluster

import "github.com/prometheus/client_golang/prometheus"

var (
	descShards = prometheus.NewDesc("conductor_cluster_shards",
		"Shards of the group that this replica has a part in, by phase; absent for the others.", []string{"phase"}, nil)
	descOwned   = prometheus.NewDesc("conductor_cluster_owned", "Shards that this replica owns and should serve.", nil, nil)
	descNowhere = prometheus.NewDesc("conductor_cluster_unserved", "Shards of the group that no replica serves.", nil, nil)
	descDiffer  = prometheus.NewDesc("conductor_cluster_differing",
		"Replicas of the store with another cluster.mode or cluster.owners than this one.", nil, nil)
	descMoves = prometheus.NewDesc("conductor_cluster_moves_total", "Changes of the phase of a shard at this replica.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Cluster) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Cluster) Collect(ch chan<- prometheus.Metric) {
	var phases [len(phaseNames)]int
	owned, nowhere := 0, 0
	for _, row := range c.State().Rows {
		phases[row.Phase]++
		if row.Owned(c.cfg.Group.ID()) {
			owned++
		}
		if row.Unserved() {
			nowhere++
		}
	}
	for p, n := range phases {
		ch <- prometheus.MustNewConstMetric(descShards, prometheus.GaugeValue, float64(n), Phase(p).String())
	}
	ch <- prometheus.MustNewConstMetric(descOwned, prometheus.GaugeValue, float64(owned))
	ch <- prometheus.MustNewConstMetric(descNowhere, prometheus.GaugeValue, float64(nowhere))
	ch <- prometheus.MustNewConstMetric(descDiffer, prometheus.GaugeValue, float64(c.differing.Load()))
	ch <- prometheus.MustNewConstMetric(descMoves, prometheus.CounterValue, float64(c.moves.Load()))
}
