package conductor

import (
	"cmp"
	"fmt"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Routed notes that a prompt goes to an instance, whose rows then have it in Expected until the engine announces
// it or the time is over. It returns the sources of the target that are not synced, whose events
// may not tell. The report keeps nothing of r.
//
// Errors: *FieldError, *UnknownNameError, *UnknownAnswerError, ErrForbidden, *UnservedError.
func (v View) Routed(r *match.Routed) (unsynced []status.SourceState, err error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.AnswerID != "" {
		if err := v.conductor.matcher.Recall(r, v.reader.Tenants); err != nil {
			return nil, err
		}
	}
	if err := v.admits(&r.Query); err != nil || v.ownReport() {
		return nil, err
	}
	c, asked := v.conductor, v.conductor.resolve(&r.Query)
	members, err := c.matcher.Report(r)
	for _, m := range members {
		st := m.Status()
		unsynced = append(unsynced, status.SourceState{Key: m.Key(), State: st.State, Reason: st.Reason})
	}
	if away := c.Unserved(r.Tenant, r.Model); away != nil {
		err = away
	}
	if err == nil {
		v.mirrorRouted(r)
	}
	r.Model, r.Lora = asked.Model, asked.Lora
	return unsynced, err
}

// TakeBack takes a report back. It returns ErrForbidden, ErrNotFound if there is none under the id, or no more, and
// a *FieldError without an id.
func (v View) TakeBack(tenant, requestID string) error {
	if requestID == "" {
		return invalid.Field("request_id", "missing", "request_id is required")
	}
	if err := v.May(tenant); err != nil {
		return err
	}
	tenant = cmp.Or(tenant, scope.DefaultTenant)
	if here := v.conductor.catalog.Expected().Cancel(tenant, requestID); !v.mirrorTakenBack(tenant, requestID, here) {
		return unknownReport(requestID)
	}
	return nil
}

// unknownReport is ErrNotFound of a request id.
type unknownReport string

func (id unknownReport) Error() string {
	return fmt.Sprintf("no report has the request id %q, or it has ended", string(id))
}

// Is makes it an ErrNotFound.
func (id unknownReport) Is(err error) bool { return err == ingest.ErrNotFound }
