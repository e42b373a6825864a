package ingest

import (
	"errors"
	"fmt"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
)

// Errors a caller branches on.
var (
	// ErrClosed: the Conductor is shutting down.
	ErrClosed = errors.New("conductor is shutting down")
	// ErrNotFound: no source is registered under the key.
	ErrNotFound = errors.New("service not found")
	// ErrPast: a replay alone fills these Sources.
	ErrPast = errors.New("this is a recorded past; sources come from the journal alone")
	// ErrTooManySources: limits.max_sources is reached, or what this process has room for.
	ErrTooManySources = errors.New("too many registered sources")
	// ErrTenantFull is an ErrTooManySources: limits.max_tenant_sources is reached.
	ErrTenantFull = fmt.Errorf("%w for its tenant", ErrTooManySources)
)

// observedBy returns a registration as the doctor of its source needs it.
func observedBy(r *registration.Registration) doctor.Registered {
	return doctor.Registered{
		Key: r.Key().String(), Rank: r.Rank, Context: r.Context(), Topic: r.Topic(),
		Type: r.Type, SGLang: r.Type == registration.TypeSGLang, Pool: r.IsPool(), Chunks: r.Type == registration.TypeLMCache,
		Reports:  r.Reports,
		Expiring: func(medium string) bool { return r.TTLOn(medium) > 0 },
	}
}
