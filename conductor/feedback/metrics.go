package feedback

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/status"
)

var (
	labels     = []string{"instance_id", "tenant_id", "medium"}
	descTokens = prometheus.NewDesc("conductor_feedback_tokens_total",
		"Tokens of reports: matched is what answers promised, cached what instances found, both the smaller of the two.",
		append(labels, "kind"), nil)
	descReports   = prometheus.NewDesc("conductor_feedback_reports_total", "Reports of what instances found.", labels, nil)
	descPrecision = prometheus.NewDesc("conductor_feedback_precision_ratio",
		"Share of the promised tokens that were there, over some 50 reports.", labels, nil)
	descRecall = prometheus.NewDesc("conductor_feedback_recall_ratio",
		"Share of the tokens that were there that answers had promised, over some 50 reports.", labels, nil)
	descResyncs = prometheus.NewDesc("conductor_feedback_resyncs_total", "Resyncs of instances whose reports passed feedback.max_error.",
		nil, nil)
)

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTokens, descReports, descPrecision, descRecall, descResyncs} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (t *Table) Collect(ch chan<- prometheus.Metric) {
	all := t.Totals()
	t.mu.Lock()
	series, resyncs := t.series, t.resyncs
	t.mu.Unlock()
	if !series.Lists(len(all)) {
		all = worst(all)
	}
	for _, r := range all {
		of := []string{r.Instance, r.Tenant, r.Medium}
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, append(slices.Clone(of), more...)...)
		}
		send(descTokens, prometheus.CounterValue, float64(r.Matched), "matched")
		send(descTokens, prometheus.CounterValue, float64(r.Cached), "cached")
		send(descTokens, prometheus.CounterValue, float64(r.Both), "both")
		send(descReports, prometheus.CounterValue, float64(r.Reports))
		send(descPrecision, prometheus.GaugeValue, status.Round(r.Precision))
		send(descRecall, prometheus.GaugeValue, status.Round(r.Recall))
	}
	ch <- prometheus.MustNewConstMetric(descResyncs, prometheus.CounterValue, float64(resyncs))
}

// worst returns the MaxSeries instances whose reports contradict answers most.
func worst(all []Totals) []Totals {
	right := func(r *Totals) float64 { return min(r.Precision, r.Recall) }
	slices.SortStableFunc(all, func(a, b Totals) int { return cmp.Compare(right(&a), right(&b)) })
	return all[:min(len(all), status.MaxSeries)]
}
