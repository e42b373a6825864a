package peer

import "github.com/prometheus/client_golang/prometheus"

var (
	descState = prometheus.NewDesc("conductor_recovery_state", "1 for the current state of the recovery from peers.", []string{"state"},
		nil)
	descBlocks  = prometheus.NewDesc("conductor_recovery_blocks", "Blocks recovered from the peer asked last.", nil, nil)
	descBytes   = prometheus.NewDesc("conductor_recovery_bytes", "Bytes read from the peer asked last.", nil, nil)
	descSeconds = prometheus.NewDesc("conductor_recovery_seconds", "Seconds that the recovery has taken.", nil, nil)
	descSkipped = prometheus.NewDesc("conductor_recovery_skipped",
		"Parts of the snapshot of the peer asked last that were left out, by reason.", []string{"reason"}, nil)
	descFailed = prometheus.NewDesc("conductor_recovery_failed_peers", "Peers that gave no whole snapshot.", nil, nil)

	descCompared = prometheus.NewDesc("conductor_drift_compared_timestamp_seconds",
		"Time of the last comparison with a peer, in seconds since 1970; 0 before the first.", nil, nil)
	descPairs = prometheus.NewDesc("conductor_drift_sources",
		"Sources in the last comparison with the peers, once for each peer, by result.", []string{"result"}, nil)
	descPairBlocks = prometheus.NewDesc("conductor_drift_blocks",
		"Pairs of block and holder that the last comparison with the peers was about.", nil, nil)
	descDifferences = prometheus.NewDesc("conductor_drift_differences_total",
		"Confirmed differences between a source and that of a peer.", nil, nil)
	descBehind = prometheus.NewDesc("conductor_drift_behind_batches",
		"Most batches of one source that a peer had applied in the last comparison and this server had not.", nil, nil)
	descResyncs = prometheus.NewDesc("conductor_drift_resyncs_total", "Resyncs of sources after a confirmed difference.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *Peers) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(p, ch) }

// Collect implements prometheus.Collector.
func (p *Peers) Collect(ch chan<- prometheus.Metric) {
	st := p.Status()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, state := range []string{None, Running, Done, Failed} {
		v := 0.0
		if state == st.State {
			v = 1
		}
		gauge(descState, v, state)
	}
	gauge(descBlocks, float64(st.Blocks))
	gauge(descBytes, float64(st.Bytes))
	gauge(descSeconds, st.Seconds)
	gauge(descFailed, float64(len(st.Errors)))
	gauge(descSkipped, float64(st.Skipped[SkipRefused]), SkipRefused)
	for _, f := range p.cfg.Formats {
		for _, reason := range f.Reasons {
			gauge(descSkipped, float64(st.Skipped[reason]), reason)
		}
	}
	d, at := p.Drift(), 0.0
	if !d.Compared.IsZero() {
		at = float64(d.Compared.UnixMilli()) / 1000
	}
	gauge(descCompared, at)
	gauge(descPairBlocks, float64(d.Blocks))
	gauge(descBehind, float64(d.Behind))
	for _, result := range results {
		gauge(descPairs, float64(d.Sources[result]), result)
	}
	ch <- prometheus.MustNewConstMetric(descDifferences, prometheus.CounterValue, float64(d.Differences))
	ch <- prometheus.MustNewConstMetric(descResyncs, prometheus.CounterValue, float64(d.Resyncs))
}
