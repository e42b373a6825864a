package conductor

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Feedback is what a router or an engine reports of a request that an instance has served.
type Feedback struct {
	Tenant   string // "" is DefaultTenant
	Instance string
	Medium   string // where the blocks were, "" for any
	Matched  int    // tokens that an answer said the instance had
	Cached   int    // tokens that the instance found
}

// FeedbackResult is what the reports of late say of an instance and medium.
type FeedbackResult struct {
	// Precision is the part of the tokens said that were found, Recall the part of the tokens
	// found that were said: 1 where there were none. Each report counts as much as all 50 after.
	Precision, Recall float64
	Reports           uint64 // since the start
	Resynced          bool   // this report began it
}

const (
	// feedbackMemory is how much of the past a report leaves.
	feedbackMemory = 1 - 1.0/50
	// enoughReports is how many reports there are before the error counts.
	enoughReports = 20
	// resyncPause is the least time between two resyncs of an instance that reports lead to.
	resyncPause = 5 * time.Minute
	// maxFeedbackMedia bounds the media that an instance has reports of.
	maxFeedbackMedia = 8

	// reasonFeedback is the reason of a resync that reports led to.
	reasonFeedback = "feedback"
)

// feedback compares answers with what instances found.
type feedback struct {
	resyncs atomic.Uint64

	mu  sync.Mutex
	all map[registration.Key]*feedbackOf // by instance and tenant, rank 0; guarded by mu
}

// feedbackOf is what was reported of an instance.
type feedbackOf struct {
	media    map[string]*feedbackCounts
	resynced time.Time
}

// feedbackCounts count tokens: as floats those of late, as integers all.
type feedbackCounts struct {
	matched, cached, both          float64
	allMatched, allCached, allBoth uint64
	reports                        uint64
}

func (n *feedbackCounts) add(f *Feedback) {
	both := min(f.Matched, f.Cached)
	n.matched = n.matched*feedbackMemory + float64(f.Matched)
	n.cached = n.cached*feedbackMemory + float64(f.Cached)
	n.both = n.both*feedbackMemory + float64(both)
	n.allMatched += uint64(f.Matched)
	n.allCached += uint64(f.Cached)
	n.allBoth += uint64(both)
	n.reports++
}

// ratios returns precision and recall.
func (n *feedbackCounts) ratios() (precision, recall float64) {
	part := func(of float64) float64 {
		if of == 0 {
			return 1
		}
		return n.both / of
	}
	return part(n.matched), part(n.cached)
}

// Feedback takes a report. Where the error of the instance passes Tunables.MaxError, its sources
// get the finding feedback_error and start over from a replay. It returns ErrNotFound if no
// source of the instance is registered for the tenant.
func (v View) Feedback(f Feedback) (FeedbackResult, error) {
	f.Tenant = cmp.Or(f.Tenant, scope.DefaultTenant)
	if err := v.May(f.Tenant); err != nil {
		return FeedbackResult{}, err
	}
	if s := v.conductor.serving; s != nil {
		if err := s.ServesInstance(f.Tenant, f.Instance); err != nil {
			return FeedbackResult{}, err
		}
	}
	return report(v.conductor, f)
}

func report(c *Conductor, f Feedback) (FeedbackResult, error) {
	sources := c.catalog.MembersOf(f.Instance, f.Tenant)
	if len(sources) == 0 {
		return FeedbackResult{}, ingest.ErrNotFound
	}
	c.feedback.mu.Lock()
	defer c.feedback.mu.Unlock()
	key := registration.Key{Instance: f.Instance, Tenant: f.Tenant}
	of := c.feedback.all[key]
	if of == nil {
		of = &feedbackOf{media: make(map[string]*feedbackCounts)}
		if c.feedback.all == nil {
			c.feedback.all = make(map[registration.Key]*feedbackOf)
		}
		c.feedback.all[key] = of
	}
	n := of.media[f.Medium]
	if n == nil {
		if len(of.media) >= maxFeedbackMedia {
			return FeedbackResult{}, invalid.Field("medium", "too_many", "the instance has reports of %d media already", maxFeedbackMedia)
		}
		n = new(feedbackCounts)
		of.media[f.Medium] = n
	}
	n.add(&f)
	var res FeedbackResult
	res.Reports = n.reports
	res.Precision, res.Recall = n.ratios()
	if most := c.tuned.Load().MaxError; most > 0 && n.reports >= enoughReports {
		res.Resynced = judge(c, of, f.Medium, sources, &res, most)
	}
	return res, nil
}

// judge reports or withdraws the finding of an instance after a report. c.feedback.mu is held.
func judge(c *Conductor, of *feedbackOf, medium string, sources []*catalog.Member, res *FeedbackResult, most float64) (resynced bool) {
	if 1-min(res.Precision, res.Recall) <= most {
		for _, n := range of.media {
			if p, r := n.ratios(); n.reports >= enoughReports && 1-min(p, r) > most {
				return false
			}
		}
		for _, m := range sources {
			m.Findings.Withdraw(doctor.FindingFeedback)
		}
		return false
	}
	now := c.now()
	again := of.resynced.IsZero() || now.Sub(of.resynced) >= resyncPause
	for _, m := range sources {
		if m.Registration.IsApproximate() {
			continue // answers promise nothing of it
		}
		m.Findings.Report(doctor.FindingFeedback,
			"reports say that %.0f %% of the tokens which answers promise are there%s, and that answers promise %.0f %% of those that "+
				"are; feedback.max_error allows %.0f %% to be wrong: compare block_size, salt and adapter of the registration with the "+
				"engine's",
			100*res.Precision, on(medium), 100*res.Recall, 100*most)
		m.LogFindings(&c.opts.Log)
		if again && c.sources.Resync(m.Key(), reasonFeedback) {
			resynced = true
		}
	}
	if resynced {
		of.resynced = now
		c.feedback.resyncs.Add(1)
		n := of.media[medium] // what was wrong before says nothing about the replay
		n.matched, n.cached, n.both = 0, 0, 0
	}
	return resynced
}

func on(medium string) string {
	if medium == "" {
		return ""
	}
	return " on " + medium
}

// InstanceFeedback is what was reported of an instance and medium since the start, in tokens.
type InstanceFeedback struct {
	Tenant, Instance, Medium string
	Precision, Recall        float64
	Reports                  uint64
	Matched, Cached, Both    uint64
}

// Reported returns what was reported, sorted by tenant, instance and medium.
func (v Inspection) Reported() []InstanceFeedback {
	return slices.DeleteFunc(reported(v.conductor), func(f InstanceFeedback) bool { return !v.reader.Tenants.Has(f.Tenant) })
}

func reported(c *Conductor) (all []InstanceFeedback) {
	registered := make(map[registration.Key]bool)
	for _, m := range c.catalog.Members() {
		registered[registration.Key{Instance: m.Registration.Instance, Tenant: m.Registration.Tenant}] = true
	}
	c.feedback.mu.Lock()
	defer c.feedback.mu.Unlock()
	for key, of := range c.feedback.all {
		if !registered[key] {
			delete(c.feedback.all, key)
			continue
		}
		for medium, n := range of.media {
			f := InstanceFeedback{Tenant: key.Tenant, Instance: key.Instance, Medium: medium, Reports: n.reports, Matched: n.allMatched,
				Cached: n.allCached, Both: n.allBoth}
			f.Precision, f.Recall = n.ratios()
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b InstanceFeedback) int {
		return strings.Compare(a.Tenant+"\x00"+a.Instance+"\x00"+a.Medium, b.Tenant+"\x00"+b.Instance+"\x00"+b.Medium)
	})
	return all
}

var (
	feedbackLabels = []string{"instance_id", "tenant_id", "medium"}
	descFeedback   = prometheus.NewDesc("conductor_feedback_tokens_total",
		"Tokens of reports: matched is what answers promised, cached what instances found, both the smaller of the two.",
		append(feedbackLabels, "kind"), nil)
	descReports   = prometheus.NewDesc("conductor_feedback_reports_total", "Reports of what instances found.", feedbackLabels, nil)
	descPrecision = prometheus.NewDesc("conductor_feedback_precision_ratio",
		"Share of the promised tokens that were there, over some 50 reports.", feedbackLabels, nil)
	descRecallRatio = prometheus.NewDesc("conductor_feedback_recall_ratio",
		"Share of the tokens that were there that answers had promised, over some 50 reports.", feedbackLabels, nil)
	descResyncs = prometheus.NewDesc("conductor_feedback_resyncs_total", "Resyncs of instances whose reports passed feedback.max_error.",
		nil, nil)
)

// FeedbackCollector exposes reports to Prometheus.
type FeedbackCollector struct{ Conductor *Conductor }

// Describe implements prometheus.Collector.
func (k FeedbackCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descFeedback, descReports, descPrecision, descRecallRatio, descResyncs} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (k FeedbackCollector) Collect(ch chan<- prometheus.Metric) {
	all := reported(k.Conductor)
	if !k.Conductor.tuned.Load().SourceSeries.Lists(len(all)) {
		all = leastRight(all)
	}
	for _, f := range all {
		labels := []string{f.Instance, f.Tenant, f.Medium}
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, append(slices.Clone(labels), more...)...)
		}
		send(descFeedback, prometheus.CounterValue, float64(f.Matched), "matched")
		send(descFeedback, prometheus.CounterValue, float64(f.Cached), "cached")
		send(descFeedback, prometheus.CounterValue, float64(f.Both), "both")
		send(descReports, prometheus.CounterValue, float64(f.Reports))
		send(descPrecision, prometheus.GaugeValue, status.Round(f.Precision))
		send(descRecallRatio, prometheus.GaugeValue, status.Round(f.Recall))
	}
	ch <- prometheus.MustNewConstMetric(descResyncs, prometheus.CounterValue, float64(k.Conductor.feedback.resyncs.Load()))
}

// leastRight returns the MaxSeries instances whose reports contradict answers most.
func leastRight(all []InstanceFeedback) []InstanceFeedback {
	right := func(f *InstanceFeedback) float64 { return min(f.Precision, f.Recall) }
	slices.SortStableFunc(all, func(a, b InstanceFeedback) int { return cmp.Compare(right(&a), right(&b)) })
	return all[:min(len(all), status.MaxSeries)]
}
