package conductor

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/feedback"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
)

// Feedback takes a report, as feedback.Table.Add does. It returns ErrNotFound if no source of the instance is registered for
// the tenant, ErrForbidden, or an *UnservedError.
func (v View) Feedback(r feedback.Report) (feedback.Result, error) {
	r.Tenant = cmp.Or(r.Tenant, scope.DefaultTenant)
	if err := v.May(r.Tenant); err != nil {
		return feedback.Result{}, err
	}
	c := v.conductor
	if c.serving != nil {
		if err := c.serving.ServesInstance(r.Tenant, r.Instance); err != nil {
			return feedback.Result{}, err
		}
	}
	members := c.catalog.MembersOf(r.Instance, r.Tenant)
	if len(members) == 0 {
		return feedback.Result{}, ingest.ErrNotFound
	}
	return c.feedback.Add(&r, members)
}

// Reported returns what was reported of the instances of the client's tenants, sorted by tenant, instance and medium.
func (v Inspection) Reported() []feedback.Totals {
	return slices.DeleteFunc(v.conductor.feedback.Totals(), func(t feedback.Totals) bool { return !v.reader.Tenants.Has(t.Tenant) })
}

// FeedbackTable returns what routers and engines have reported of instances, for Prometheus too.
func (c *Conductor) FeedbackTable() *feedback.Table { return c.feedback }
