package conductor

import (
	"errors"
	"fmt"

	"kvconductor/conductor/scope"
	"kvconductor/events/journal"
)

// AppliedBatches returns batches of a source with their payloads, and which batches of the
// current epoch there are: from the source's ring, or else from the journal. source is the
// printed key.
//
// Errors: ErrNotFound, journal.ErrGone, journal.ErrTooNew.
func (c *registry) AppliedBatches(source string, q journal.Range) (journal.Excerpt, journal.Span, error) {
	return c.appliedBatches(source, nil, q)
}

// appliedBatches is AppliedBatches for the sources of some tenants.
func (c *registry) appliedBatches(source string, of scope.Tenants, q journal.Range) (journal.Excerpt, journal.Span, error) {
	for _, s := range c.registered() {
		if of.Has(s.reg.Tenant) && s.reg.Key().String() == source {
			return s.appliedBatches(q)
		}
	}
	return journal.Excerpt{}, journal.Span{}, fmt.Errorf("%w: %s", ErrNotFound, source)
}

func (s *source) appliedBatches(q journal.Range) (journal.Excerpt, journal.Span, error) {
	e, span, err := s.ring.Read(q)
	if !errors.Is(err, journal.ErrGone) || s.journal == nil {
		return e, span, err
	}
	e, written, err := s.journal.Read(q)
	switch {
	case s.ring == nil:
		span = written
	case written.Any && written.Epoch == span.Epoch:
		span.First = min(span.First, written.First)
	}
	if err != nil && !errors.Is(err, journal.ErrTooNew) {
		if !errors.Is(err, journal.ErrGone) {
			s.conductor.log.Warn().Err(err).Str("source", s.reg.Key().String()).Msg("the journal cannot be read")
		}
		err = journal.ErrGone
	}
	return e, span, err
}
