package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

// Routed is a report of a router: the prompt of a query goes to an instance. Of the query its tenant,
// model, block size, adapter, salt and prompt count.
type Routed struct {
	Query
	Target string // the instance
	Rank   int    // its data-parallel rank, AnyRank if that is not known
	// TTL is how long the blocks are expected unless the engine announces them before; 0 is as long as
	// its events take by experience.
	TTL time.Duration
	// RequestID names the request within its tenant. The same report again changes nothing, and TakeBack ends
	// it; "" for none.
	RequestID string
}

// AnyRank is the rank of a report whose router leaves the rank to the engine.
const AnyRank = expect.AnyRank

// Bounds of reports.
const (
	leastRoutedTTL = time.Millisecond
	mostRoutedTTL  = expect.LongestTTL
	maxRequestID   = 128 // bytes
	maxKnownNames  = 32  // in an UnknownTargetError
)

// UnknownTargetError says that a report names a model, an instance or a rank that is not registered.
type UnknownTargetError struct {
	Field string   // model, instance_id or dp_rank
	Name  string   // what was asked for
	Known []string // what the tenant has in its place: names, or ranks as numbers, sorted, at most 32
	text  string
}

func (e *UnknownTargetError) Error() string { return e.text }

// unknownTarget returns the error of a name. known are the names in its place, in the order in which the
// client gets them.
func unknownTarget(field, name, what string, known []string) *UnknownTargetError {
	text := fmt.Sprintf("no %s %q is registered", what, name)
	if near := spelling.Closest(name, known); near != "" {
		text += fmt.Sprintf(", did you mean %q?", near)
	}
	return &UnknownTargetError{Field: field, Name: name, Known: known[:min(len(known), maxKnownNames)], text: text}
}

// Routed notes that a prompt goes to an instance, whose rows then have it in Expected until the engine announces
// it or the time is over. It returns the sources of the target that are not synced, whose events
// may not tell. The report keeps nothing of r.
//
// Errors: *FieldError, *UnknownTargetError, ErrForbidden, *UnservedError.
func (v View) Routed(r *Routed) (unsynced []SourceState, err error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := v.admits(&r.Query); err != nil || v.ownReport() {
		return nil, err
	}
	c, asked := v.conductor, r.Model
	r.Model = c.modelOf(r.Tenant, asked)
	unsynced, err = c.routed(r)
	if away := c.Unserved(r.Tenant, r.Model); away != nil {
		err = away
	}
	if err == nil {
		v.mirrorRouted(r)
	}
	r.Model = asked
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
	if here := v.conductor.registry.expected.Cancel(tenant, requestID); !v.mirrorTakenBack(tenant, requestID, here) {
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
func (id unknownReport) Is(err error) bool { return err == ErrNotFound }

// check returns the first bad field of a report but its prompt.
func (r *Routed) check() error {
	switch {
	case r.Target == "":
		return invalid.Field("instance_id", "missing", "instance_id is required")
	case r.Rank < AnyRank:
		return invalid.Field("dp_rank", "out_of_range", "dp_rank must not be negative, got %d", r.Rank)
	case r.TTL != 0 && (r.TTL < leastRoutedTTL || r.TTL > mostRoutedTTL):
		return invalid.Field("ttl", "out_of_range", "ttl must be from %s to %s, got %s", leastRoutedTTL, mostRoutedTTL, r.TTL)
	case len(r.RequestID) > maxRequestID:
		return invalid.Field("request_id", "out_of_range", "request_id must have at most %d bytes, got %d", maxRequestID, len(r.RequestID))
	}
	return nil
}

// routed is View.Routed for a client that may report, and the model's own name.
func (c *Conductor) routed(r *Routed) (unsynced []SourceState, err error) {
	tenant := cmp.Or(r.Tenant, scope.DefaultTenant)
	d := c.registry.deployment(scope.Deployment{Tenant: tenant, Model: r.Model, BlockSize: r.BlockSize})
	var to *row
	if d != nil {
		if v := d.rows(&c.registry); len(v.rows) > 0 {
			at, found := v.find(r.Target)
			if !found {
				return nil, unknownTarget("instance_id", r.Target, "instance", namesOfRows(v.rows))
			}
			to = &v.rows[at]
		}
	}
	if to == nil {
		return nil, c.unknownModel(tenant, r)
	}
	rank, err := d.rankOf(to, r.Rank)
	if err != nil {
		return nil, err
	}
	target := d.expected.Target(to.id, rank, to.expects(rank))
	sc := scratches.Get().(*scratch)
	defer sc.release()
	c.expectPrompt(sc, d, target, r)
	if _, still := d.rows(&c.registry).find(r.Target); !still {
		d.expected.Forget(to.id) // it was unregistered meanwhile, perhaps before the target was made
	}
	d.bell.ring()
	for _, s := range to.sources {
		if rank != AnyRank && s.reg.Rank != int(rank) {
			continue
		}
		if st := s.stream.Status(); !st.State.Ready() {
			unsynced = append(unsynced, SourceState{Key: s.reg.Key(), State: st.State, Reason: st.Reason})
		}
	}
	return unsynced, nil
}

func namesOfRows(rows []row) (all []string) {
	for i := range rows {
		all = append(all, rows[i].name)
	}
	return sortedOnce(all)
}

// sortedOnce sorts all and drops repetitions.
func sortedOnce[T cmp.Ordered](all []T) []T {
	slices.Sort(all)
	return slices.Compact(all)
}

// unknownModel returns why a report has no deployment.
func (c *Conductor) unknownModel(tenant string, r *Routed) error {
	var models []string
	for p, sizes := range c.Partitions() {
		if p.Tenant != tenant {
			continue
		}
		models = append(models, p.Model)
		switch {
		case p.Model != r.Model:
		case slices.Contains(sizes, r.BlockSize): // of a pool alone
			return unknownTarget("instance_id", r.Target, "instance", nil)
		default:
			return invalid.Field("block_size", "invalid_value", "the model %q has blocks of %s tokens, not of %d", r.Model,
				strings.Trim(fmt.Sprint(sizes), "[]"), r.BlockSize)
		}
	}
	return unknownTarget("model", r.Model, "model", sortedOnce(models))
}

// rankOf returns the rank of an instance that a report is about: the only one if the report names none.
func (d *deployment) rankOf(to *row, rank int) (int32, error) {
	if rank == AnyRank {
		if len(to.ranks) == 1 {
			return to.ranks[0], nil
		}
		return AnyRank, nil
	}
	known := to.ranks
	if !slices.Contains(known, int32(rank)) {
		known = slices.Clone(known)
		for _, o := range d.table() { // events may name ranks that are not registered
			if o.Instance == to.id {
				known = append(known, o.Rank)
			}
		}
	}
	if slices.Contains(known, int32(rank)) {
		return int32(rank), nil
	}
	var all []string
	for _, n := range sortedOnce(known) {
		all = append(all, fmt.Sprint(n))
	}
	return 0, unknownTarget("dp_rank", fmt.Sprint(rank), "rank", all)
}

// expects returns what a target of the instance is: that of sources without events has the capacity of their caches. Where
// the rank is not known and one of them has events, those confirm reports as usual.
func (r *row) expects(rank int32) (o expect.Options) {
	for _, s := range r.sources {
		if rank != AnyRank && s.reg.Rank != int(rank) {
			continue
		}
		if !s.reg.IsApproximate() {
			return expect.Options{}
		}
		o.Capacity += s.reg.CapacityBlocks
		o.TTL = max(o.TTL, s.reg.TTL)
		o.Counts = o.Counts || s.reg.Approximate == registration.ApproximateCount
	}
	return o
}

// expectPrompt makes the blocks of a prompt expected at a target, but for the leading ones that it has on its device.
func (c *Conductor) expectPrompt(sc *scratch, d *deployment, to *expect.Target, r *Routed) {
	q := &r.Query
	id := d.identityAsked(q)
	report := expect.Report{TTL: r.TTL, ID: r.RequestID, Context: id.Constant}
	var prompt expect.Prompt
	mix := id.Constant
	match := func() { d.index.Match(index.Lookup{Constant: id.Constant, Chain: prompt}, nil, &sc.match) }
	switch {
	case q.ByHash && q.HashKind != CanonicalHashes:
		sc.hashes, report.Named = q.Hashes, true
		prompt, mix = &sc.hashes, mix^expectedNames
		match = func() { sc.lookupNames(d, id, q) }
	case q.ByHash:
		sc.hashes = q.Hashes
		prompt = &sc.hashes
	default:
		sc.chain.Reset(d.scheme, q.Tokens, q.BlockSize, c.registry.lookAheadOf(d, to.Instance))
		prompt = &sc.chain
		defer sc.chain.Reset(hash.Scheme{}, nil, 0, 0)
	}
	keys := sc.keys[:0]
	for i := range prompt.Len() {
		keys = append(keys, prompt.At(i)^mix)
	}
	if sc.keys = keys; len(keys) > 0 {
		report.Print = keys[len(keys)-1]
	}
	has := func() int {
		if to.Capacity > 0 {
			return 0 // its engine announces nothing
		}
		sc.match.Reset()
		sc.lookups = sc.lookups[:0]
		match()
		return onDevice(&sc.match, d.table(), to)
	}
	had := has()
	report.Keys = keys[had:]
	to.Add(report)
	if had < len(keys) {
		if now := has(); now > had { // it was announced meanwhile, perhaps before Add
			to.Has(keys[had:now])
		}
	}
}

// onDevice returns how many leading blocks a target has on its device, of what the index holds of a prompt.
func onDevice(m *index.Match, owners []tiers.Owner, to *expect.Target) int {
	reach := uint32(0)
	of := func(id uint32) bool {
		if int(id) >= len(owners) {
			return false
		}
		o := &owners[id]
		return o.Instance == to.Instance && (to.Rank == AnyRank || o.Rank == to.Rank) && o.Medium.Tier == tiers.Device
	}
	for _, p := range m.Prefixes {
		if of(p.Owner) {
			reach = max(reach, p.Blocks)
		}
	}
	for _, s := range m.Later {
		if s.From <= reach && of(s.Owner) {
			reach = max(reach, s.To)
		}
	}
	return int(reach)
}

// lookAheadOf returns the look-ahead of an instance's blocks: an engine has one.
func (c *registry) lookAheadOf(d *deployment, instance int32) (ahead int) {
	set := d.lookAheads.load()
	if set.count() > 1 {
		set = noLookAhead
		c.mu.RLock()
		defer c.mu.RUnlock()
		for _, s := range d.holders {
			s.holdings.mu.Lock()
			if ns := s.holdings.in(d); ns != nil && ns.instance == instance {
				set |= ns.lookAheads
			}
			s.holdings.mu.Unlock()
		}
	}
	for ahead = range set.all {
	}
	return ahead
}
