package conductor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// ErrNotDurable is returned by a call that has registered or unregistered a source, if a restart would lose the
// change. The change still takes effect, because undoing it would cost the blocks of a source. A client that
// makes the call again gets the same error until a restart would find the change.
var ErrNotDurable = errors.New("the change counts, but a restart would lose it")

// RegistrationKeeper keeps registrations where the server finds them at its next start.
type RegistrationKeeper interface {
	// Commit returns once the next start would find everything that was registered and unregistered
	// before the call, or with the error of ctx.
	Commit(ctx context.Context) error
	// Failure returns why the last attempt failed, nil if it did not.
	Failure() error
	// Keeps reports whether it keeps a registration at all.
	Keeps(r *registration.Registration) bool
	// Unregistered is called with a source that a client has unregistered, before Commit.
	Unregistered(key registration.Key)
}

// KeepRegistrations lets clients wait until k has what they register and unregister. Without it
// registrations live in memory. Call it before the first client asks.
func (c *Conductor) KeepRegistrations(k RegistrationKeeper) { c.keeper = k }

// Durable reports whether a restart finds a registration once Commit has returned nil.
func (v View) Durable(r *registration.Registration) bool {
	return v.conductor.keeper != nil && v.conductor.keeper.Keeps(r)
}

// Commit waits until a restart would find the registrations of this moment, and until changes at other replicas count as
// later ones, see Share. It returns err, which is that of the call that registered or unregistered key, or ErrNotDurable if
// a restart would not find them.
//
// Errors that depend on other registrations, such as ErrNotFound, wait too. Otherwise a client that tries again
// after ErrNotDurable would take ErrNotFound as proof that its change lasts.
func (v View) Commit(ctx context.Context, key registration.Key, err error) error {
	if errors.As(err, new(*invalid.FieldError)) || errors.Is(err, ErrForbidden) || errors.Is(err, ingest.ErrPast) ||
		errors.Is(err, ingest.ErrClosed) {
		return err
	}
	if s := v.conductor.sharing; s != nil {
		apart := time.After(s.apart())
		defer func() {
			select {
			case <-apart:
			case <-ctx.Done():
			}
		}()
	}
	keeper := v.conductor.keeper
	if keeper == nil {
		return err
	}
	failed := keeper.Commit(ctx)
	if failed == nil {
		return err
	}
	if ctx.Err() == nil {
		reportNotDurable(v.conductor, key, failed)
	}
	return fmt.Errorf("%w: %w", ErrNotDurable, failed)
}

// reportNotDurable adds a finding to the source of a key, if there is one.
func reportNotDurable(c *Conductor, key registration.Key, err error) {
	key.Tenant = cmp.Or(key.Tenant, scope.DefaultTenant)
	if m := c.catalog.Member(key); m != nil {
		m.Findings.Report(doctor.FindingNotDurable,
			"the registration is in memory alone, a restart would lose it: %v; make room in snapshot.dir, or correct its rights", err)
		m.LogFindings(&c.opts.Log)
		if c.keeper.Failure() == nil { // RegistrationsKept may have been called before the report
			m.Findings.Withdraw(doctor.FindingNotDurable)
		}
	}
}

// RegistrationsKept withdraws the findings of Commit. Call it once a restart would find all registrations again.
func (c *Conductor) RegistrationsKept() {
	for _, m := range c.catalog.Members() {
		m.Findings.Withdraw(doctor.FindingNotDurable)
	}
}
