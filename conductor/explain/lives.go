package explain

import (
	"cmp"
	"slices"

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
func (p Inspector) Lives() []MediumLife {
	type at struct {
		scope.Deployment
		medium string
	}
	all := make(map[at]*MediumLife)
	now := p.Now()
	for _, m := range p.Catalog.Members() {
		if !p.Tenants.Has(m.Registration.Tenant) {
			continue
		}
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
