package conductor

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/lifetime"
	"example.com/conductor/conductor/scope"
)

// MediumLife is how long blocks of a deployment stay on a medium, over all sources.
type MediumLife struct {
	scope.Deployment
	Medium  string
	Evicted uint64 // blocks whose age counts, estimated from the sample
	Ages    lifetime.Ages
	Hazard  float64 // mean of the sources
	sources int
}

// Lives returns how long blocks of the tenants stay that the client may see, sorted by deployment
// and medium.
func (v Inspection) Lives() []MediumLife {
	return slices.DeleteFunc(v.conductor.lives(), func(l MediumLife) bool { return !v.reader.Tenants.Has(l.Tenant) })
}

func (c *Conductor) lives() []MediumLife {
	type at struct {
		scope.Deployment
		medium string
	}
	all := make(map[at]*MediumLife)
	now := c.now()
	for _, m := range c.catalog.Members() {
		for _, l := range m.Lives.Lives(now) {
			key := at{m.Registration.Deployment(), l.Medium}
			sum := all[key]
			if sum == nil {
				sum = &MediumLife{Deployment: key.Deployment, Medium: l.Medium}
				all[key] = sum
			}
			for i, n := range l.Ages {
				sum.Ages[i] += n * uint64(l.Sampled)
				sum.Evicted += n * uint64(l.Sampled)
			}
			sum.Hazard += l.Hazard
			sum.sources++
		}
	}
	list := make([]MediumLife, 0, len(all))
	for _, l := range all {
		l.Hazard /= float64(l.sources)
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b MediumLife) int { return cmp.Or(a.Compare(b.Deployment), cmp.Compare(a.Medium, b.Medium)) })
	return list
}

var descAges = prometheus.NewDesc("conductor_block_eviction_age_seconds",
	"Age of blocks when their engine evicts them, to a factor of two, from a sample.",
	[]string{"tenant_id", "model_name", "block_size", "medium"}, nil)

// LivesCollector exposes ages of blocks at eviction to Prometheus.
type LivesCollector struct{ Conductor *Conductor }

// Describe implements prometheus.Collector.
func (k LivesCollector) Describe(ch chan<- *prometheus.Desc) { ch <- descAges }

// Collect implements prometheus.Collector.
func (k LivesCollector) Collect(ch chan<- prometheus.Metric) {
	for i, l := range k.Conductor.lives() {
		if i == maxIndexSeries {
			break
		}
		if l.Evicted == 0 {
			continue
		}
		quantiles, sum := make(map[float64]float64), 0.0
		for _, q := range []float64{0.1, 0.5, 0.9} {
			quantiles[q] = l.Ages.Quantile(q).Seconds()
		}
		for i, n := range l.Ages {
			sum += float64(n) * (time.Duration(1) << i * time.Millisecond * 3 / 4).Seconds()
		}
		ch <- prometheus.MustNewConstSummary(descAges, l.Evicted, sum, quantiles, l.Tenant, l.Model, strconv.Itoa(l.BlockSize), l.Medium)
	}
}
