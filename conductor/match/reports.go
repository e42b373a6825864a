package match

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor/catalog"
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
	// AnswerID is the text of an Answer.ID whose prompt goes to the target: Recall sets Query by it.
	AnswerID string

	kept *keptAnswer // of AnswerID
}

// UnknownInstance returns the error of an instance that is not in all.
func UnknownInstance(name string, all []catalog.Instance) *UnknownNameError {
	return unknownTarget("instance_id", name, "instance", namesOfRows(all))
}

// UnknownModel returns the error of a model that no engine of a tenant is registered for. models are those that are, sorted.
func UnknownModel(text, model string, models []string) *UnknownNameError {
	return &UnknownNameError{Reason: UnknownModelReason, Field: "model", Name: model, Known: models[:min(len(models), maxKnownNames)],
		text: text}
}

// UnknownBlockSize returns the error of a block size, in tokens, that no engine of a model has; 0 is none, where a model has several.
func UnknownBlockSize(model string, size int, sizes []int) *UnknownNameError {
	e := &UnknownNameError{Reason: UnknownBlockSizeReason, Field: "block_size", Name: strconv.Itoa(size)}
	for _, known := range sizes[:min(len(sizes), maxKnownNames)] {
		e.Known = append(e.Known, strconv.Itoa(known))
	}
	of := strings.Join(e.Known, ", ")
	if e.text = fmt.Sprintf("the model %q has blocks of %s tokens, not of %d", model, of, size); size == 0 {
		e.text = fmt.Sprintf("the model %q has blocks of several sizes, %s tokens: block_size must name one", model, of)
	}
	return e
}

// UnknownAnswerError says that a report names an answer that is not kept, or not any more.
type UnknownAnswerError struct{ ID string }

func (e *UnknownAnswerError) Error() string {
	return fmt.Sprintf("no answer has the id %q, or it was forgotten: report the prompt itself", e.ID)
}

// AnyRank is the rank of a report whose router leaves the rank to the engine.
const AnyRank = expect.AnyRank

// Bounds of reports.
const (
	leastRoutedTTL = time.Millisecond
	mostRoutedTTL  = expect.LongestTTL
	maxRequestID   = 128 // bytes
	maxKnownNames  = 32  // in an UnknownNameError
)

// UnknownNameError says that a router names a model, a block size, an instance or a rank that is not registered.
type UnknownNameError struct {
	Reason string   // not_found; of a question for candidates UnknownModelReason or UnknownBlockSizeReason
	Field  string   // model, block_size, instance_id or dp_rank
	Name   string   // what was asked for
	Known  []string // what the tenant has in its place: names, or numbers as texts, sorted, at most 32
	text   string
}

// Reasons of an UnknownNameError.
const (
	UnknownModelReason     = "unknown_model"
	UnknownBlockSizeReason = "unknown_block_size"
)

// UnknownAnswerReason is the reason of an UnknownAnswerError.
const UnknownAnswerReason = "unknown_answer"

func (e *UnknownNameError) Error() string { return e.text }

// unknownTarget returns the error of a name. known are the names in its place, in the order in which the
// client gets them.
func unknownTarget(field, name, what string, known []string) *UnknownNameError {
	text := fmt.Sprintf("no %s %q is registered", what, name)
	if near := spelling.Closest(name, known); near != "" {
		text += fmt.Sprintf(", did you mean %q?", near)
	}
	return &UnknownNameError{Reason: "not_found", Field: field, Name: name, Known: known[:min(len(known), maxKnownNames)], text: text}
}

// Recall sets the query of a report to that of the answer it names; Report then gives it the hashes of the prompt. It returns an
// *UnknownAnswerError if the answer is not kept for a tenant that is in tenants and, if it is not "", the tenant of the report.
func (c *Matcher) Recall(r *Routed, tenants scope.Tenants) error {
	id, err := strconv.ParseUint(r.AnswerID, 16, 64)
	a, ok := c.kept.Find(id)
	if err != nil || !ok || !tenants.Has(a.query.Tenant) || r.Tenant != "" && r.Tenant != a.query.Tenant {
		return &UnknownAnswerError{r.AnswerID}
	}
	r.Query, r.kept = a.query, a
	return nil
}

// FormatAnswerID returns the text of an Answer.ID, "" for 0.
func FormatAnswerID(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}

// Check returns the first bad field of a report but its prompt.
func (r *Routed) Check() error {
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

// Report notes that a prompt goes to an instance, whose rows then have it in Expected until the engine announces
// it or the time is over. The model has its own name. It returns the sources of the target that are not synced, whose events
// may not tell. The report keeps nothing of r.
//
// Errors: *invalid.FieldError, *UnknownNameError, *UnknownAnswerError.
func (c *Matcher) Report(r *Routed) (unsynced []*catalog.Member, err error) {
	tenant := cmp.Or(r.Tenant, scope.DefaultTenant)
	d := c.catalog.Deployment(scope.Deployment{Tenant: tenant, Model: r.Model, BlockSize: r.BlockSize})
	var to *catalog.Instance
	if d != nil {
		if v := d.Instances(); len(v.All) > 0 {
			at, found := v.Find(r.Target)
			if !found {
				return nil, unknownTarget("instance_id", r.Target, "instance", namesOfRows(v.All))
			}
			to = &v.All[at]
		}
	}
	if to == nil {
		return nil, c.unknownModel(tenant, r)
	}
	rank, err := rankOfReport(d, to, r.Rank)
	if err != nil {
		return nil, err
	}
	if r.AnswerID != "" {
		var ok bool
		if r.Hashes, ok = r.kept.hashesFor(d.LookAheadOf(to.ID)); !ok { // events have told of another look-ahead since
			return nil, &UnknownAnswerError{r.AnswerID}
		}
	}
	target := d.Expected.Target(to.ID, rank, targetOptions(to, rank))
	sc := scratches.Get().(*scratch)
	defer sc.release()
	c.expectPrompt(sc, d, to, target, r)
	if _, still := d.Instances().Find(r.Target); !still {
		d.Expected.Forget(to.ID) // it was unregistered meanwhile, perhaps before the target was made
	}
	d.NotifyChange()
	for _, m := range to.Members {
		if rank != AnyRank && m.Registration.Rank != int(rank) && !m.Ranks.Contains(int(rank)) {
			continue
		}
		if state, _ := m.State(); !state.Ready() {
			unsynced = append(unsynced, m)
		}
	}
	return unsynced, nil
}

func namesOfRows(rows []catalog.Instance) (all []string) {
	for i := range rows {
		all = append(all, rows[i].Name)
	}
	return sortedOnce(all)
}

// sortedOnce sorts all and drops repetitions.
func sortedOnce[T cmp.Ordered](all []T) []T {
	slices.Sort(all)
	return slices.Compact(all)
}

// unknownModel returns why a report has no deployment.
func (c *Matcher) unknownModel(tenant string, r *Routed) error {
	var models []string
	for p, sizes := range c.catalog.Partitions() {
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

// rankOfReport returns the rank of an instance that a report is about: the only one if the report names none. Events may name
// ranks that are not registered.
func rankOfReport(d *catalog.Deployment, to *catalog.Instance, rank int) (int32, error) {
	if rank == AnyRank {
		if len(to.Ranks) == 1 && !slices.ContainsFunc(to.Members, func(m *catalog.Member) bool { return m.Ranks.HasOthers() }) {
			return to.Ranks[0], nil
		}
		return AnyRank, nil
	}
	known := to.Ranks
	if !slices.Contains(known, int32(rank)) {
		known = slices.Clone(known)
		for _, m := range to.Members {
			for _, named := range m.Ranks.Named() {
				known = append(known, int32(named))
			}
		}
		for _, o := range d.Owners() { // of a snapshot whose publisher has not been heard yet
			if o.Instance == to.ID {
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

// targetOptions returns what a target of the instance is: that of sources without events has the capacity of their caches. Where
// the rank is not known and one of them has events, those confirm reports as usual.
func targetOptions(r *catalog.Instance, rank int32) (o expect.Options) {
	for _, m := range r.Members {
		reg := &m.Registration
		if rank != AnyRank && reg.Rank != int(rank) {
			continue
		}
		if !reg.IsApproximate() {
			return expect.Options{}
		}
		o.Capacity += reg.CapacityBlocks
		o.TTL = max(o.TTL, reg.TTL)
		o.Counts = o.Counts || reg.Approximate == registration.ApproximateCount
	}
	return o
}

// expectPrompt makes the blocks of a prompt expected at a target, but for the leading ones that it has on its device.
func (c *Matcher) expectPrompt(sc *scratch, d *catalog.Deployment, in *catalog.Instance, to *expect.Target, r *Routed) {
	q := &r.Query
	id := identityAsked(d, q)
	report := expect.Report{TTL: r.TTL, ID: r.RequestID, Context: id.Constant}
	var prompt expect.Prompt
	mix := id.Constant
	match := func() { d.Index.Match(index.Lookup{Constant: id.Constant, Chain: prompt}, nil, &sc.match) }
	switch {
	case q.ByHash && q.HashKind != CanonicalHashes:
		sc.hashes, report.Named = q.Hashes, true
		prompt, mix = &sc.hashes, mix^expect.NamesMix
		match = func() { sc.lookupNames(d, id, q) }
	case q.ByHash:
		sc.hashes = q.Hashes
		prompt = &sc.hashes
	default:
		sc.chain.Reset(d.Scheme, q.Tokens, q.BlockSize, d.LookAheadOf(to.Instance))
		prompt = &sc.chain
		defer sc.chain.Reset(hash.Scheme{}, nil, 0, 0)
	}
	keys := sc.keys[:0]
	if q.ByHash {
		for _, h := range q.Hashes {
			keys = append(keys, h^mix)
		}
	} else {
		for i := range prompt.Len() {
			keys = append(keys, prompt.At(i)^mix)
		}
	}
	if sc.keys = keys; len(keys) > 0 {
		report.Print = keys[len(keys)-1]
	}
	report.Whole = catalog.EngineBlockOf(d, to.Instance)
	keys = keys[:len(keys)-len(keys)%report.Whole] // the engine announces nothing else
	has := func() int {
		if to.Capacity > 0 {
			return 0 // its engine announces nothing
		}
		sc.resetMatch(d)
		sc.lookups = sc.lookups[:0]
		match()
		owners := sc.findHits(d)
		return onDevice(&sc.match, owners, to)
	}
	stored := storesOf(in)
	had := min(has(), len(keys))
	report.Keys = keys[had:]
	to.Add(report)
	if had < len(keys) && storesOf(in) != stored {
		if now := min(has(), len(keys)); now > had { // it was announced meanwhile, perhaps before Add
			to.Has(keys[had:now])
		}
	}
}

// storesOf adds up what the sources of an instance have stored so far. A source that has left counts as one more, because it stores
// no more and another one may have taken its place.
func storesOf(in *catalog.Instance) (n uint64) {
	for _, m := range in.Members {
		if n += m.Stores.Load(); m.HasLeft() {
			n++
		}
	}
	return n
}

// onDevice returns how many leading blocks a target has on its device, of what the index holds of a prompt.
func onDevice(m *index.Match, owners []tiers.Owner, to *expect.Target) int {
	reach := uint32(0)
	add := func(id, from, end uint32) {
		if int(id) >= len(owners) || from > reach {
			return
		}
		o := &owners[id]
		if o.Instance == to.Instance && (to.Rank == AnyRank || o.Rank == to.Rank) && o.Medium.Tier == tiers.Device {
			reach = max(reach, o.EndOfWhole(from, end))
		}
	}
	for _, p := range m.Prefixes {
		add(p.Owner, 0, p.Blocks)
	}
	for _, s := range m.Later {
		add(s.Owner, s.From, s.To)
	}
	return int(reach)
}
