package conductor

import (
	"cmp"
	"time"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
)

// LookAgain is how long an answer may have changed before View.Changes says so, where no event of
// an engine has changed it: a time to live, the end of a source.
const LookAgain = time.Second

// Changes returns a channel that is closed when the answer to a query may have changed since the
// call. It is nil if nothing is registered for what the query asks. Callers also ask again after
// LookAgain.
func (v View) Changes(q *match.Query) <-chan struct{} {
	d := v.conductor.catalog.Deployment(scope.Deployment{Tenant: cmp.Or(q.Tenant, scope.DefaultTenant),
		Model: v.conductor.catalog.Models().Resolve(q.Tenant, q.Model).Model, BlockSize: q.BlockSize})
	if d == nil {
		return nil
	}
	return d.Changes()
}
