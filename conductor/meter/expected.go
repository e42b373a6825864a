package meter

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
)

// delayParts are the quantiles of Expectations.Delay.
var delayParts = [...]float64{0.5, 0.9, 0.99}

// instanceState is an instance that has had a report, with what series need of it.
type instanceState struct {
	status.Expectations
	state *expect.State
}

// expectations returns how good the expectations were of each instance that has had a report, sorted by tenant and
// instance.
func expectations(c *catalog.Catalog) (all []instanceState) {
	states := make(map[registration.Key]*expect.State)
	for d, names := range c.InstanceNames() {
		for id, state := range d.Expected.States() {
			name, registered := names[id]
			if !registered {
				continue
			}
			key := registration.Key{Instance: name, Tenant: d.Key.Tenant}
			if states[key] == nil {
				states[key] = new(expect.State)
			}
			states[key].Add(state)
		}
	}
	for key, s := range states {
		e := status.Expectations{
			Tenant: key.Tenant, Instance: key.Instance, Prompts: s.Reports, Expected: s.Pending, Pending: s.Pending, TTL: s.TTL,
			Confirmed: s.Ended[expect.Confirmed], Expired: s.Ended[expect.Expired], TakenBack: s.Ended[expect.TakenBack],
			Dropped: s.Ended[expect.Dropped], Evicted: s.Ended[expect.Evicted],
		}
		for _, n := range s.Ended {
			e.Expected += n
		}
		for i, part := range delayParts {
			e.Delay[i] = s.Delay(part)
		}
		all = append(all, instanceState{e, s})
	}
	slices.SortFunc(all, func(a, b instanceState) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Instance, b.Instance))
	})
	return all
}

// addExpectations completes services by the expectations of their instances.
func (m *Meter) addExpectations(services []status.Source) {
	all := make(map[registration.Key]*status.Expectations)
	for _, e := range expectations(m.opts.Catalog) {
		all[registration.Key{Instance: e.Instance, Tenant: e.Tenant}] = &e.Expectations
	}
	for i := range services {
		if s := &services[i]; !s.IsPool() {
			s.Expected = all[registration.Key{Instance: s.Instance, Tenant: s.Tenant}]
		}
	}
}

// expectedDescs are those of ExpectedCollector.
var expectedDescs descs

var (
	expectedLabels      = []string{"instance_id", "tenant_id"}
	descExpectedPrompts = expectedDescs.add("expected_prompts_total",
		"Prompts that routers reported to POST /routed and that were kept, of instances that have left too.")
	descExpectedTokens = expectedDescs.add("expected_tokens_total",
		"Tokens of reported prompts that their instance did not have yet, by what became of them: confirmed by events, expired, "+
			"taken_back by the router, dropped, or evicted from an instance without events.", "result")
	descExpectedPending = expectedDescs.add("expected_pending_tokens",
		"Tokens that instances are expected to have soon, or to have without announcing them.")
	descExpectedBytes = expectedDescs.add("expected_bytes", "Bytes that reports of routers and their blocks take.")
	descExpectedLimit = expectedDescs.add("expected_bytes_limit", "Bytes that reports of routers may take.")

	descInstancePrompts = expectedDescs.add("instance_expected_prompts_total", "Prompts that routers reported for an instance.",
		expectedLabels...)
	descInstanceTokens = expectedDescs.add("instance_expected_tokens_total",
		"Tokens of prompts reported for an instance that it did not have yet, by what became of them.", append(expectedLabels, "result")...)
	descInstancePending = expectedDescs.add("instance_expected_pending_tokens", "Tokens that an instance is expected to have.",
		expectedLabels...)
	descInstanceDelay = expectedDescs.add("instance_expected_delay_seconds",
		"Time from a report to the announcement of its blocks, each block for itself; quantiles are of the last some 10,000 blocks.",
		expectedLabels...)
	descInstanceTTL = expectedDescs.add("instance_expected_ttl_seconds",
		"How long a report without ttl lasts at an instance, at the rank with the longest.", expectedLabels...)
)

// ExpectedCollector returns what exposes to Prometheus what became of reports.
func (m *Meter) ExpectedCollector() prometheus.Collector { return expected{m} }

type expected struct{ meter *Meter }

// Describe implements prometheus.Collector.
func (expected) Describe(ch chan<- *prometheus.Desc) { expectedDescs.send(ch) }

// Collect implements prometheus.Collector.
func (e expected) Collect(ch chan<- prometheus.Metric) {
	table := e.meter.opts.Catalog.Expected()
	totals := table.Totals()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(descExpectedPrompts, prometheus.CounterValue, float64(totals.Reports))
	for why, n := range totals.Ended {
		send(descExpectedTokens, prometheus.CounterValue, float64(n), expect.Ending(why).String())
	}
	send(descExpectedPending, prometheus.GaugeValue, float64(totals.Pending))
	send(descExpectedBytes, prometheus.GaugeValue, float64(table.Bytes()))
	send(descExpectedLimit, prometheus.GaugeValue, float64(table.Limit()))
	all := expectations(e.meter.opts.Catalog)
	if !e.meter.limits.Load().Series.Lists(len(all)) {
		all = leastConfirmed(all)
	}
	for i := range all {
		in := &all[i]
		send(descInstancePrompts, prometheus.CounterValue, float64(in.Prompts), in.Instance, in.Tenant)
		for why, n := range in.state.Ended {
			send(descInstanceTokens, prometheus.CounterValue, float64(n), in.Instance, in.Tenant, expect.Ending(why).String())
		}
		send(descInstancePending, prometheus.GaugeValue, float64(in.Pending), in.Instance, in.Tenant)
		if in.TTL > 0 {
			send(descInstanceTTL, prometheus.GaugeValue, in.TTL.Seconds(), in.Instance, in.Tenant)
		}
		if blocks, all := in.state.Waited(); blocks > 0 {
			quantiles := make(map[float64]float64, len(delayParts))
			for i, part := range delayParts {
				quantiles[part] = in.Delay[i].Seconds()
			}
			ch <- prometheus.MustNewConstSummary(descInstanceDelay, blocks, all.Seconds(), quantiles, in.Instance, in.Tenant)
		}
	}
}

// leastConfirmed returns the MaxSeries instances whose expectations came true least.
func leastConfirmed(all []instanceState) []instanceState {
	share := func(e *instanceState) float64 {
		if part, known := e.Share(); known {
			return part
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b instanceState) int {
		return cmp.Or(cmp.Compare(share(&a), share(&b)), cmp.Compare(b.Expired, a.Expired))
	})
	return all[:min(len(all), status.MaxSeries)]
}
