package conductor

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Candidates answers a query of a router that is about to choose an instance, and lends the answer to use. It is View.Answer with what
// instances are expected to have and their states. If the query has no block size, Candidates sets the one that the model is
// registered with. resolved is what the name of the model means.
//
// Where q.Keep is set, the answer has an id.
//
// Errors besides those of View.Answer: a *match.UnknownNameError for a model, a block size or an instance that is not registered.
func Candidates(v View, q *match.Query, use func(a *match.Answer, resolved registration.Meaning)) error {
	if err := v.admits(q); err != nil {
		return err
	}
	c := v.conductor
	asked := c.resolve(q)
	resolved := registration.Meaning{Model: q.Model, Lora: q.Lora}
	q.Model, q.Lora = asked.Model, asked.Lora
	if err := c.findBlockSize(q, resolved.Model); err != nil {
		return err
	}
	if err := c.findInstance(q, resolved.Model); err != nil {
		return err
	}
	q.Expected, q.States = true, true
	return v.Answer(q, func(a *match.Answer) { use(a, resolved) })
}

// findBlockSize sets the block size of a query that has none. It returns a *match.UnknownNameError if no engine has the block size, or
// if there are several to choose from.
func (c *Conductor) findBlockSize(q *match.Query, model string) error {
	tenant, models := cmp.Or(q.Tenant, scope.DefaultTenant), c.catalog.Models()
	sizes := models.BlockSizes(tenant, model)
	switch {
	case q.BlockSize == 0 && len(sizes) == 1:
		q.BlockSize = sizes[0]
		return nil
	case slices.Contains(sizes, q.BlockSize):
		return nil
	case len(sizes) == 0:
		c.catalog.NoteUnregistered(scope.Deployment{Tenant: tenant, Model: model, BlockSize: q.BlockSize}, c.now())
		return match.UnknownModel(models.Unregistered(tenant, q.Model, q.BlockSize), q.Model, models.Registered(tenant))
	}
	if q.BlockSize != 0 {
		c.catalog.NoteUnregistered(scope.Deployment{Tenant: tenant, Model: model, BlockSize: q.BlockSize}, c.now())
	}
	return match.UnknownBlockSize(q.Model, q.BlockSize, sizes)
}

// findInstance returns a *match.UnknownNameError if a query is about an instance that is not registered.
func (c *Conductor) findInstance(q *match.Query, model string) error {
	if q.Instance == nil {
		return nil
	}
	d := c.catalog.Deployment(scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant), Model: model, BlockSize: q.BlockSize})
	if d == nil {
		return match.UnknownInstance(*q.Instance, nil)
	}
	all := d.Instances()
	if _, known := all.Find(*q.Instance); known {
		return nil
	}
	return match.UnknownInstance(*q.Instance, all.All)
}
