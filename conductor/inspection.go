package conductor

import (
	"example.com/conductor/conductor/explain"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/match"
)

// Explain returns the explanation of a prompt given as tokens, for the client of the view. It
// returns the errors of Answer.
func (v Inspection) Explain(q *match.Query) (*inspect.Explanation, error) {
	if err := View(v).admits(q); err != nil {
		return nil, err
	}
	meant := *q
	v.conductor.resolve(&meant)
	out := View(v).inspector().Explain(&meant)
	if err := v.conductor.Unserved(q.Tenant, q.Model); err != nil { // see admits
		return nil, err
	}
	return out, nil
}

// BeginsWith is explain.Inspector.BeginsWith.
func (v Inspection) BeginsWith(kept, q *match.Query, key uint64) int {
	return View(v).inspector().BeginsWith(kept, q, key)
}

// Popular returns what queries ask of each deployment that the client may see, with at most top
// prefixes of each, most asked for first.
func (v Inspection) Popular(top int) []explain.Popular { return View(v).inspector().Popular(top) }

// Loss returns what a fleet loses with an instance, see explain.Inspector.Loss.
func (v Inspection) Loss(instance string) (explain.Loss, error) {
	return View(v).inspector().Loss(instance)
}

// Lives returns how long blocks of the tenants stay that the client may see, sorted by deployment
// and medium.
func (v Inspection) Lives() []explain.MediumLife { return View(v).inspector().Lives() }

// Contexts returns how many blocks each context of the client's tenants has.
func (v Inspection) Contexts() []explain.ContextBlocks { return View(v).inspector().Contexts() }

// GlobalView returns every context and instance of the client's tenants, with up to limit hashes each, see
// explain.Inspector.GlobalView.
func (v Inspection) GlobalView(limit int) []explain.ContextView {
	return View(v).inspector().GlobalView(limit)
}

// inspector returns what answers questions that are no queries, for the client.
func (v View) inspector() explain.Inspector {
	c := v.conductor
	return explain.Inspector{Catalog: c.catalog, Sources: c.sources, Matcher: c.matcher, Now: c.now, Tenants: v.reader.Tenants,
		Redact: c.redactedSalt, ShownSalts: v.shownSalts}
}
