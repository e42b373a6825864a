package pick

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/integrations/envoy/guard"
	"example.com/conductor/integrations/envoy/tokens"
)

// metrics are those of a Chooser. All names begin with conductor_picker_.
type metrics struct {
	choices, refusals   *prometheus.CounterVec // by reason; by status
	picked, served      *prometheus.CounterVec // tokens by what they are
	mismatches          prometheus.Counter
	tokenizations       *prometheus.CounterVec // by result
	tokenizing          prometheus.Histogram
	asked, firstToken   prometheus.Histogram
	reports, feedback   *prometheus.CounterVec // by outcome
	scrapes             *prometheus.CounterVec // by outcome
	inFlight, queued    *prometheus.Desc
	available, unusable *prometheus.Desc
	conductor           *prometheus.Desc

	c *Chooser
}

// latencies are buckets from a quarter of a millisecond to 8 s.
var latencies = prometheus.ExponentialBuckets(0.00025, 2, 16)

// newMetrics makes the metrics of a Chooser, and registers them unless r is nil.
func newMetrics(c *Chooser, r prometheus.Registerer) (*metrics, error) {
	const prefix = "conductor_picker_"
	var all []prometheus.Collector
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
		all = append(all, v)
		return v
	}
	times := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
		all = append(all, h)
		return h
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, labels, nil)
	}
	m := &metrics{
		c: c,
		choices: counters("choices_total", "Requests by what decided where they go: all but prefix and no_prefix went by load alone.",
			"reason"),
		refusals: counters("refusals_total", "Requests that were sent to no engine, by status.", "status"),
		picked: counters("prompt_tokens_total", "Tokens of prompts that Conductor was asked about: all (prompt), and those that the chosen"+
			" engine has or soon has (predicted).", "kind"),
		served: counters("served_tokens_total", "Tokens of prompts whose engine said what it had cached: all (prompt), what was"+
			" predicted, and what was cached.", "kind"),
		tokenizations: counters("tokenizations_total", "Tokenizations of texts by result: cached, asked, or the reason of the failure.",
			"result"),
		tokenizing: times("tokenization_seconds", "How long a request waited for the tokens of a text that were not cached.", latencies),
		asked:      times("conductor_seconds", "How long a request waited for Conductor.", latencies),
		firstToken: times("first_token_seconds", "From the choice to the first part of the answer.",
			prometheus.ExponentialBuckets(0.005, 2, 16)),
		reports: counters("reports_total", "Reports of choices by outcome: kept, refused, failed, dropped for want of room, withdrawn"+
			" before they were sent, taken_back, taken_back_late. Those that were sent again with the prompt count as with_prompt too.",
			"outcome"),
		feedback: counters("feedback_total", "Feedback to Conductor by outcome: sent, failed, or dropped for want of room.", "outcome"),
		scrapes:  counters("scrapes_total", "Reads of engines' metrics by outcome.", "outcome"),
		inFlight: desc("in_flight_requests", "Requests that were sent to an engine and have not ended.", "instance"),
		queued: desc("in_flight_prompt_tokens", "Tokens that an engine has to compute before the first tokens of requests in flight.",
			"instance"),
		available: desc("engine_available", "1 if an engine may be chosen, 0 while it is left out.", "instance"),
		unusable:  desc("engines_without_address", "Instances of Conductor that cannot be chosen, because their address is not known."),
		conductor: desc("conductor_breaker_state", "0 while Conductor is asked, 1 while one request probes, 2 while it is not asked."),
	}
	m.mismatches = prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "tokenization_mismatches_total",
		Help: "Prompts that have another number of tokens in the engine than the tokenizer made."})
	all = append(all, m.mismatches, m)
	if r == nil {
		return m, nil
	}
	for i, one := range all {
		if err := r.Register(one); err != nil {
			for _, before := range all[:i] {
				r.Unregister(before)
			}
			return nil, err
		}
	}
	return m, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.inFlight, m.queued, m.available, m.unusable, m.conductor} {
		out <- d
	}
}

// Collect implements prometheus.Collector for what is counted elsewhere.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	now := m.c.Now()
	var all []prometheus.Metric
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...))
	}
	gauge(m.conductor, float64(m.c.breaker.State(now)))
	m.c.mu.Lock()
	if f := m.c.fleet; f != nil {
		gauge(m.unusable, float64(f.unusable))
		seen := make(map[string]bool) // an instance may be registered for several models
		for _, e := range f.all {
			name := e.Instance.Instance
			if seen[name] {
				continue
			}
			seen[name] = true
			available := 1.0
			if now.Before(e.until) {
				available = 0
			}
			gauge(m.inFlight, float64(e.inFlight), name)
			gauge(m.queued, e.queued(), name)
			gauge(m.available, available, name)
		}
	}
	m.c.mu.Unlock()
	for _, one := range all {
		out <- one
	}
}

// tokenized counts a text that tokens were needed of.
func (m *metrics) tokenized(cached bool, err error, took time.Duration) {
	result := "asked"
	if cached {
		result = "cached"
	} else {
		m.tokenizing.Observe(took.Seconds())
	}
	if err != nil {
		result = "canceled"
		if failure := (*tokens.Error)(nil); errors.As(err, &failure) {
			result = failure.Reason
		} else if p := (*guard.Panic)(nil); errors.As(err, &p) {
			result = tokens.Defect
		}
	}
	m.tokenizations.WithLabelValues(result).Inc()
}
