package feedback

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/registration"
)

// Totals are what was reported of an instance and medium since the start, in tokens. Precision and Recall are those of Result.
type Totals struct {
	Tenant, Instance, Medium string
	Precision, Recall        float64
	Reports                  uint64
	Matched, Cached, Both    uint64 // Both is the smaller of the two, report by report
}

// Totals returns what was reported of registered instances, sorted by tenant, instance and medium. It forgets the others.
func (t *Table) Totals() (all []Totals) {
	registered := make(map[registration.Key]bool)
	for _, m := range t.opts.Catalog.Members() {
		registered[registration.Key{Instance: m.Registration.Instance, Tenant: m.Registration.Tenant}] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, of := range t.instances {
		if !registered[key] {
			delete(t.instances, key)
			continue
		}
		for medium, n := range of.media {
			sum := Totals{Tenant: key.Tenant, Instance: key.Instance, Medium: medium, Reports: n.reports, Matched: n.allMatched,
				Cached: n.allCached, Both: n.allBoth}
			sum.Precision, sum.Recall = n.ratios()
			all = append(all, sum)
		}
	}
	slices.SortFunc(all, func(a, b Totals) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Medium, b.Medium))
	})
	return all
}
