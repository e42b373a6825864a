package membership

import "github.com/prometheus/client_golang/prometheus"

var (
	descEntries = prometheus.NewDesc("conductor_registry_sources",
		"Entries of the registry by their state at this replica: taken over, elsewhere if other replicas follow them, refused, unreadable.",
		[]string{"state"}, nil)
	descRefused = prometheus.NewDesc("conductor_registry_refused_total",
		"Entries of the registry that this replica did not take over, by reason.", []string{"reason"}, nil)
	descPending = prometheus.NewDesc("conductor_registry_pending", "Changes of the registry that wait for the store.", nil, nil)
	descDropped = prometheus.NewDesc("conductor_registry_dropped_total",
		"Changes of the registry that stay with this replica alone, by reason: pending (too many wait for the store); or tenant "+
			"(limits.max_tenant_sources) or max_sources, beyond which unregistrations of what this replica has not heard of are "+
			"not written.",
		[]string{"reason"}, nil)
)

// reasons and dropReasons are all values of the label reason.
var (
	reasons     = []string{reasonSize, reasonSyntax, reasonTime, reasonName, reasonRefused}
	dropReasons = []string{reasonPending, reasonTenant, reasonMaxSources}
)

// Describe implements prometheus.Collector.
func (g *Registry) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g *Registry) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	states := map[string]int{"taken": 0, "elsewhere": 0, StateRefused: 0, "unreadable": g.unreadable}
	for _, e := range g.known {
		switch {
		case e.Gone || !e.done:
		case e.why != nil:
			states[StateRefused]++
		case e.elsewhere:
			states["elsewhere"]++
		default:
			states["taken"]++
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descEntries, prometheus.GaugeValue, float64(n), state)
	}
	for _, reason := range reasons {
		ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(g.refused[reason]), reason)
	}
	ch <- prometheus.MustNewConstMetric(descPending, prometheus.GaugeValue, float64(len(g.pending)))
	for _, reason := range dropReasons {
		ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(g.dropped[reason]), reason)
	}
}
