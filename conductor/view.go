package conductor

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

// ErrForbidden says that a client names a tenant outside its scope. The text is the same
// for tenants that exist and tenants that do not.
var ErrForbidden = errors.New("the tenant is outside the scope of the credentials")

// Reader says what a client may see.
type Reader struct {
	// Name is that of the client's credentials, "" without any.
	Name string
	// Tenants are the tenants that the client may name.
	Tenants scope.Tenants
	// Secrets shows the endpoints and salts of registrations.
	Secrets bool
	// Causes shows why an endpoint cannot be followed. The text tells open ports of the
	// network from closed ones.
	Causes bool
}

// View is a Conductor as one client sees it: the tenants of the client alone. Handlers of
// requests use a View for everything that belongs to a tenant. A View is a small value.
type View struct {
	conductor *Conductor
	reader    Reader
	clock     *stage.Clock // of the request, nil for none
	sender    Sender
}

// For returns the view of a client.
func (c *Conductor) For(r Reader) View { return View{conductor: c, reader: r} }

// Timed returns the view with a clock that measures the queries of a request.
func (v View) Timed(clock *stage.Clock) View {
	v.clock = clock
	return v
}

// Inspection is what people and their tools ask of a View: why an answer is as it is, what a fleet would lose, what has
// been reported. Such calls walk indexes and take the turns of sources, which no query does.
type Inspection View

// Inspect returns the view for questions that are no queries.
func (v View) Inspect() Inspection { return Inspection(v) }

// Reader returns what the client may see.
func (v View) Reader() Reader { return v.reader }

// Tenants returns the tenants that the client of the view may name.
func (v View) Tenants() scope.Tenants { return v.reader.Tenants }

// May returns ErrForbidden if the client may not name a tenant; "" is DefaultTenant. The text says which tenants it may name.
func (v View) May(tenant string) error {
	switch {
	case v.reader.Tenants.Has(cmp.Or(tenant, scope.DefaultTenant)):
		return nil
	case len(v.reader.Tenants) == 0:
		return ErrForbidden
	}
	return fmt.Errorf("%w, which is %s", ErrForbidden, v.reader.Tenants.Text())
}

// Answer answers a query for a model or an alias of one, and lends the answer to use, as match.Matcher.Answer does. It
// returns ErrForbidden, an *invalid.FieldError for a token id beyond Options.MaxTokenID, or an *UnservedError.
func (v View) Answer(q *match.Query, use func(*match.Answer)) error {
	if err := v.admits(q); err != nil {
		return err
	}
	q.Clock = v.clock
	asked := v.conductor.resolve(q)
	var away error
	v.conductor.Answer(q, func(a *match.Answer) {
		if away = v.conductor.Unserved(q.Tenant, q.Model); away == nil {
			use(a)
		}
	})
	q.Model, q.Lora = asked.Model, asked.Lora
	return away
}

// resolve replaces the name that a query gives as its model by what that means, and returns what it gave. An adapter that it
// names besides counts.
func (c *Conductor) resolve(q *match.Query) (asked registration.Meaning) {
	asked = registration.Meaning{Model: q.Model, Lora: q.Lora}
	means := c.catalog.Models().Resolve(q.Tenant, q.Model)
	q.Model, q.Lora = means.Model, cmp.Or(q.Lora, means.Lora)
	return asked
}

// admits returns the errors of Answer that come before it. A shard that is let go loses its blocks while
// queries are under way, so that Unserved is asked again after them.
func (v View) admits(q *match.Query) error {
	if err := v.May(q.Tenant); err != nil {
		return err
	}
	if i := ingest.BeyondVocabulary(q.Tokens, v.conductor.tuned.Load().MaxTokenID); i >= 0 {
		return &invalid.FieldError{Field: "token_ids", Index: i, Reason: "out_of_range",
			Message: fmt.Sprintf("token_ids element %d is %d, limits.max_token_id allows %d", i, q.Tokens[i],
				v.conductor.tuned.Load().MaxTokenID)}
	}
	return v.conductor.Unserved(q.Tenant, q.Model)
}

// BlockSizes returns the block sizes of a partition, in tokens, ascending. It returns ErrForbidden, or an
// *UnservedError.
func (v View) BlockSizes(p scope.Shard) ([]int, error) {
	if err := v.May(p.Tenant); err != nil {
		return nil, err
	}
	p.Model = v.conductor.catalog.Models().Resolve(p.Tenant, p.Model).Model
	if err := v.conductor.Unserved(p.Tenant, p.Model); err != nil {
		return nil, err
	}
	sizes := v.conductor.catalog.BlockSizes(p)
	if err := v.conductor.Unserved(p.Tenant, p.Model); err != nil { // see admits
		return nil, err
	}
	return sizes, nil
}

// Register starts a source for the client, with the errors of Conductor.Register and ErrForbidden. Admit sees
// the registrations of the client's tenants alone. Replicas hear of the registration, see Share. Call Commit
// next, which makes it last.
func (v View) Register(r registration.Registration, opts ingest.RegisterOptions) error {
	if err := v.May(r.Tenant); err != nil {
		return err
	}
	if admit := opts.Admit; admit != nil {
		opts.Admit = func(all iter.Seq[registration.Registration]) error {
			return admit(func(yield func(registration.Registration) bool) {
				for r := range all {
					if v.reader.Tenants.Has(r.Tenant) && !yield(r) {
						return
					}
				}
			})
		}
	}
	opts.By = registration.Registrar{Kind: registration.ByClient, Name: v.reader.Name}
	if err := v.conductor.sources.Register(r, opts); err != nil {
		return err
	}
	v.conductor.tellRegistered(r)
	return nil
}

// Unregister stops a source for the client, with the errors of Conductor.Unregister, ErrForbidden and *FieldError. Replicas
// hear of it: a source that only another one follows is no ErrNotFound, and one of which this replica has not heard yet
// is unregistered too. Call Commit next, which makes it last.
func (v View) Unregister(key registration.Key) (registration.Key, error) {
	if err := v.May(key.Tenant); err != nil {
		return key, err
	}
	if err := key.Check(); err != nil {
		return key, err
	}
	key, err := v.conductor.sources.Unregister(key)
	if err == nil && v.conductor.keeper != nil {
		v.conductor.keeper.Unregistered(key)
	}
	if errors.Is(err, ingest.ErrNotFound) && v.conductor.shares(key) {
		err = nil
	}
	if err == nil || errors.Is(err, ingest.ErrNotFound) {
		v.conductor.tellUnregistered(key, err == nil)
	}
	return key, err
}

// Registrations returns the registrations of the client's tenants.
func (v View) Registrations() []registration.Registration {
	return v.seen(v.conductor.sources.Registrations())
}

// seen returns of some registrations what the client may see. It changes all.
func (v View) seen(all []registration.Registration) []registration.Registration {
	all = slices.DeleteFunc(all, func(r registration.Registration) bool { return !v.reader.Tenants.Has(r.Tenant) })
	for i := range all {
		v.Redact(&all[i])
	}
	return all
}

// unreachable stands for every cause that a client may not see.
const unreachable = "there is no connection that can be followed"

// fault returns why a source cannot be followed as far as the client may see it. Without the causes a source that
// has no connection yet looks the same before and after it has failed: a port that refuses does so
// at once, one that is open and silent after seconds.
func (v View) fault(state stream.State, cause string) string {
	if !v.reader.Causes && (cause != "" || state == stream.Connecting) {
		return unreachable
	}
	return cause
}

// hideCauses hides of a source what tells the ports of the network apart.
func (v View) hideCauses(s *status.Source) {
	if s.LastError = v.fault(s.State, s.LastError); v.reader.Causes {
		return
	}
	if n := s.SnapshotFailures[stream.SnapshotTimeout]; n > 0 {
		s.SnapshotFailures[stream.SnapshotFailed] += n // both belong to this copy
		delete(s.SnapshotFailures, stream.SnapshotTimeout)
	}
	if s.SnapshotReason == stream.SnapshotTimeout {
		s.SnapshotReason = stream.SnapshotFailed
	}
	for i, f := range s.Findings {
		if f.Code == doctor.FindingEngineSnapshot && strings.Contains(f.Message, stream.SnapshotTimeout) {
			s.Findings[i].Message = ingest.SnapshotFinding(stream.SnapshotFailed)
		}
	}
}

// Services returns the sources of the client's tenants.
func (v View) Services() []status.Source {
	all := slices.DeleteFunc(v.conductor.Services(), func(s status.Source) bool { return !v.reader.Tenants.Has(s.Tenant) })
	for i := range all {
		v.conceal(&all[i])
	}
	return all
}

// conceal hides of a source what the client may not see.
func (v View) conceal(s *status.Source) {
	v.Redact(&s.Registration)
	if !v.reader.Secrets {
		s.By.Name = "" // a client, or an address
	}
	v.hideCauses(s)
}

// Redact hides the secrets of a registration that the client may not see.
func (v View) Redact(r *registration.Registration) {
	if !v.reader.Secrets {
		r.Endpoint, r.ReplayEndpoint, r.SnapshotEndpoint, r.Salt = "", "", "", v.conductor.redactedSalt(r.Salt)
	}
}

// redactedSalt returns a text that stands for a salt. It tells salts apart until the process
// ends, and the salt cannot be computed from it.
func (c *Conductor) redactedSalt(salt string) string {
	if salt == "" {
		return ""
	}
	mac := hmac.New(sha256.New, c.saltKey[:])
	mac.Write([]byte(salt))
	return "redacted:" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// shownSalts returns the salts that the client may see.
func (v View) shownSalts() map[string]bool {
	registered := make(map[string]bool)
	if v.reader.Secrets {
		for _, r := range v.conductor.sources.Registrations() {
			registered[r.Salt] = true
		}
	}
	return registered
}

// Digests returns the digests of the sources of the client's tenants, or of the one whose printed key is only.
func (v Inspection) Digests(only string) []ingest.SourceDigest {
	all := slices.DeleteFunc(v.conductor.sources.Digests(only), func(s ingest.SourceDigest) bool { return !v.reader.Tenants.Has(s.Tenant) })
	for i := range all {
		all[i].Deployments = slices.DeleteFunc(all[i].Deployments, func(x ingest.DeploymentDigest) bool {
			return !v.reader.Tenants.Has(x.Tenant)
		})
	}
	return all
}

// AppliedBatches returns batches of a source with their payloads, and which batches of the
// current epoch there are. source is the printed key.
//
// Errors: ErrNotFound, for the sources of other tenants too, tape.ErrGone, tape.ErrTooNew.
func (v Inspection) AppliedBatches(source string, q tape.Range) (tape.Excerpt, tape.Span, error) {
	s := v.conductor.sources.FindByPrintedKey(source, v.reader.Tenants)
	if s == nil {
		return tape.Excerpt{}, tape.Span{}, fmt.Errorf("%w: %s", ingest.ErrNotFound, source)
	}
	return s.ReadTape(q)
}

// Snapshot takes a snapshot of the client's tenants.
func (v View) Snapshot() *ingest.Snapshot {
	snap := v.conductor.sources.Snapshots().Take()
	snap.Keep(v.reader.Tenants)
	return snap
}

// Ready reports whether the server is ready. Sources of other tenants count, and have no rows. Those without a Reason
// have their fault in its place.
func (v View) Ready() status.Readiness {
	r := v.conductor.Ready()
	for _, rows := range []*[]status.SourceState{&r.Waiting, &r.GivenUp} {
		*rows = slices.DeleteFunc(*rows, func(s status.SourceState) bool { return !v.reader.Tenants.Has(s.Key.Tenant) })
		for i := range *rows {
			if s := &(*rows)[i]; s.Reason == "" {
				s.Reason = v.fault(s.State, s.Fault)
			}
		}
	}
	return r
}

// Pause closes the connections of a source and keeps its blocks. It returns ErrForbidden, ErrNotFound or
// ErrPast.
func (v View) Pause(key registration.Key) error {
	if err := v.May(key.Tenant); err != nil {
		return err
	}
	return v.conductor.sources.SetPaused(key, true)
}

// Unpause lets a paused source connect again. It returns ErrForbidden, ErrNotFound or ErrPast.
func (v View) Unpause(key registration.Key) error {
	if err := v.May(key.Tenant); err != nil {
		return err
	}
	return v.conductor.sources.SetPaused(key, false)
}

// HasUnscoped is Sources.HasUnscoped.
func (c *Conductor) HasUnscoped() bool { return c.sources.HasUnscoped() }

// Workers returns the workers of a model that hold the first of some hashes, see match.Matcher.Workers.
func (v View) Workers(model string, hashes []uint64) []match.Worker {
	return v.conductor.matcher.Workers(v.reader.Tenants, model, hashes, v.clock)
}

// PushLMCache applies a batch to the sources of the client's tenants, see ingest.Pushes.Push. It returns ErrPast too.
func (v View) PushLMCache(ctx context.Context, b *lmcache.Batch) (ingest.Pushed, error) {
	if v.conductor.catalog.IsPast() {
		return ingest.Pushed{}, ingest.ErrPast
	}
	return v.conductor.sources.Pushes().Push(ctx, v.reader.Tenants, b)
}

// Reporters returns what instances of LMCache have reported lately about the client's tenants, sorted by name.
func (v Inspection) Reporters() (all []ingest.Reporter) {
	for _, r := range v.conductor.sources.Pushes().Reporters() {
		if mine, ok := r.For(v.reader.Tenants); ok {
			all = append(all, mine)
		}
	}
	return all
}
