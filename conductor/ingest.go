package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// apply brings one batch into the indexes, event by event in array order.
func (s *source) apply(b *events.Batch) {
	s.observeBatch(b)
	if s.offsets = s.offsets || b.Offsets; !s.offsets {
		s.drop(events.AmbiguousExtraKey, b.Ambiguous)
	}
	rank := int32(s.reg.Rank)
	if b.Rank >= 0 {
		rank = int32(b.Rank)
	}
	b.Events = s.screen(b.Events)
	s.arrange(b, rank)
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case s.pool == nil:
			s.admit(e, rankOf(e, rank))
		case e.Kind == events.Cleared || e.ObjectKey == "" || len(e.Tokens) > 0:
			s.admit(e, int32(s.reg.Rank)) // ranks of a pool are of no engine
		default:
			s.applyObject(e)
		}
	}
	s.noteObjects()
}

// admit passes an event through the group filter and applies it.
func (s *source) admit(e *events.Event, rank int32) {
	if e.Kind == events.Cleared {
		s.clear(e, rank)
		return
	}
	r := s.groups.judge(e, rank)
	if e.Window > 0 {
		s.noteWindow()
	}
	if at := (scope.Group{Deployment: s.deploymentKey(), Index: max(e.Group, 0)}); r.learned && s.conductor.learnGroup(at, e.GroupKind) {
		s.regrouped = append(s.regrouped, at)
	}
	if r.purge {
		s.purgeGroup(rank, max(e.Group, 0))
	}
	s.drop(events.OtherGroup, r.lost)
	for i := range r.ready {
		s.change(&r.ready[i].event, r.ready[i].rank)
	}
	switch r.verdict {
	case admit:
		s.change(e, rank)
	case skip:
		s.drop(events.OtherGroup, 1)
	case overflow:
		s.drop(events.GroupUnknown, 1)
	}
}

// change applies a stored or removed event.
func (s *source) change(e *events.Event, rank int32) {
	if len(e.Hashes) == 0 {
		return // masked groups publish events that name no block
	}
	medium := tiers.Parse(e.Medium)
	if medium.Tier == tiers.Other {
		s.doctor.ReportMedium(e.Medium)
	}
	key := ownerKey{rank: rank, medium: medium.Name, group: max(e.Group, 0), owned: e.Owned}
	if e.Backend != nil {
		key.backend = *e.Backend
	}
	seen := doctor.Observation{Event: e, Medium: medium, Count: len(e.Hashes), Blocks: true, Counted: s.copies(key) == index.CopyCount}
	if e.Kind == events.Removed {
		unknown := s.remove(e, key)
		seen.Found = len(e.Hashes) - unknown
		if medium.Tier == tiers.Device {
			s.conductor.counts.remove(unknown)
		}
	} else {
		s.store(e, key, medium, &seen)
	}
	s.doctor.Observe(&seen)
}

// store indexes the blocks of a stored event. It fills in what the doctor observes.
func (s *source) store(e *events.Event, key ownerKey, medium tiers.Medium, seen *doctor.Observation) {
	at := scope.Context{Deployment: s.deploymentKey().Named(e)}
	s.nameAdapter(e, at.Deployment)
	parts, why := s.partsOf(e, at.Deployment.BlockSize)
	if why == "" && len(e.Tokens) > 0 {
		why = s.checkLookAhead(e)
	}
	if why != "" {
		seen.Context, seen.Refused = at, true
		s.drop(why, 1)
		if medium.Tier == tiers.Device {
			s.conductor.counts.stored.invalid.Add(1)
		}
		return
	}
	if parts > 1 {
		e = s.split(e, parts)
	}
	// Tokens place all blocks of a device together, below it each hash says where.
	s.asked.begin(e, len(e.Tokens) == 0 || medium.Tier != tiers.Device)
	local := s.locals(e, at.Deployment.BlockSize)
	var sure bool
	at.Variant, sure = s.contextKey(e, at.Deployment, medium)
	local = s.believe(e, at, local)
	if !sure {
		local = nil // the blocks wait by their hashes
	}
	res := s.place(at, e, local, key, medium)
	seen.Context, seen.Cut, seen.Parts, seen.EverCut = at, e, parts, s.parts > 0
	seen.Local, seen.Added, seen.Copies = local, res.Added, res.Copies
	if ns := s.index[at]; ns != nil {
		seen.Seeds, seen.Profiles = &ns.context.seeds, ns.context.deployment.profiles.Load()
	}
	if medium.Tier == tiers.Device {
		s.conductor.counts.store(&res)
	}
}

// place puts the blocks of a stored event into the contexts they belong to.
func (s *source) place(at scope.Context, e *events.Event, local []uint64, key ownerKey, medium tiers.Medium) (sum index.StoreResult) {
	if e.Envelope && !s.reg.pool() || local != nil && (s.reg.pool() || medium.Tier == tiers.Device) {
		return s.put(s.space(at), e, e.Hashes, local, key, medium)
	}
	// Without tokens each engine hash belongs to the context that knows it, and so it
	// does below the device: connectors repeat tokens without adapter, salt, images and
	// look-ahead. Stretches of one context go together.
	fits := func(k scope.Variant) bool {
		return scope.Agrees(e.LoraName, k.Lora) && scope.Agrees(e.Salt, k.Salt) && s.shares(k.Lora)
	}
	likely := s.index[at]
	find := func(block int) (place, bool) {
		if local != nil {
			return s.meantIn(at, e, block)
		}
		return s.locate(e, at.Deployment, block, likely, fits)
	}
	for i := 0; i < len(e.Hashes); {
		spot, known := find(i)
		if known {
			likely = spot.ns
		}
		from := i
		i++
		var res index.StoreResult
		switch {
		case !known && local != nil:
			for ; i < len(e.Hashes); i++ {
				if _, known := find(i); known {
					break
				}
			}
			res = s.put(s.space(at), stretch(e, from, i, at.Deployment.BlockSize), e.Hashes[from:i], local[from:i], key, medium)
		case !known:
			res = s.wait(s.space(at), e, e.Hashes[from], key, medium)
		case spot.named:
			if cap(s.keys) > localsKept {
				s.keys = nil
			}
			s.keys = append(s.keys[:0], spot.key)
			used := spot.lookAheads
			for ; i < len(e.Hashes) && spot.ns.parts() == 0; i++ {
				next, known := find(i)
				if !known || !next.named || next.ns != spot.ns {
					break
				}
				s.keys, used = append(s.keys, next.key), used|next.lookAheads
			}
			policy := s.copiesOf(e, key, medium)
			spot.ns.useLookAheads(s.conductor, used)
			res = s.putNamed(spot.ns, e.Hashes[from:i], s.keys, key, medium, policy)
			s.putParts(spot.ns, e.Hashes[from], key, medium, policy)
		default:
			for ; i < len(e.Hashes); i++ {
				next, known := find(i)
				if !known || next.named || next.ns != spot.ns {
					break
				}
			}
			res = s.put(spot.ns, e, e.Hashes[from:i], nil, key, medium)
			switch { // the last holder may have left a block since the inquiry
			case res.HashOnly == 0 || s.reg.pool():
			case local != nil:
				s.placeAgain(spot.ns, at, e, from, i, local, key, medium)
			default:
				s.conductor.await(s, spot.ns.context)
				s.rejoin(spot.ns.context, e.Hashes[from:i])
			}
		}
		sum.Added += res.Added
		sum.Copies += res.Copies
		sum.Orphaned += res.Orphaned
		sum.Shed += res.Shed
		sum.Refused += res.Refused
	}
	return sum
}

// placeAgain places blocks from to end of an event with tokens if they wait by hashes that
// other sources have forgotten since the inquiry. Their new copies wait in ns.
func (s *source) placeAgain(ns *namespace, at scope.Context, e *events.Event, from, end int, local []uint64, key ownerKey, medium tiers.Medium) {
	x, o := ns.context.index, s.holder(ns, key, medium).current
	for from < end {
		to := from
		for to < end && x.Holds(o, e.Hashes[to]) {
			to++
		}
		if to > from {
			x.Remove(o, e.Hashes[from:to], nil, s.copies(key))
			s.asked.event = nil
			s.place(at, stretch(e, from, to, at.Deployment.BlockSize), local[from:to], key, medium)
		}
		from = to + 1
	}
}

// stretch returns the event of blocks from to end of a stored event, whose tokens pair
// with its blocks of size tokens.
func stretch(e *events.Event, from, end, size int) *events.Event {
	if from == 0 && end == len(e.Hashes) {
		return e
	}
	part := *e
	part.Hashes = e.Hashes[from:end]
	part.Tokens = e.Tokens[from*size : end*size+e.Ahead]
	if e.Items != nil {
		part.Items = e.Items[from:end]
	}
	if from > 0 {
		part.Parent, part.HasParent, part.BaseBlock = e.Hashes[from-1], true, -1
	}
	return &part
}

// wait stores a block under a hash that nobody has announced with tokens.
func (s *source) wait(ns *namespace, e *events.Event, engine uint64, key ownerKey, medium tiers.Medium) index.StoreResult {
	x := ns.context
	s.conductor.await(s, x)
	res := s.put(ns, e, []uint64{engine}, nil, key, medium)
	if _, known := s.conductor.whatMeans(x.deployment.key, engine, s.home().Variant, func(scope.Variant) bool { return true }, searched(e)); known {
		s.rejoin(x, []uint64{engine})
	}
	return res
}

// put stores blocks in one context.
func (s *source) put(ns *namespace, e *events.Event, hashes, local []uint64, key ownerKey, medium tiers.Medium) index.StoreResult {
	if local == nil {
		ns.useAnyLookAhead(s.conductor)
	} else {
		ns.useLookAheads(s.conductor, oneLookAhead(e.Ahead))
	}
	if local == nil && ns.parts() > 0 {
		hashes, _ = s.withParts(ns, hashes, nil)
	}
	labels := s.labels(ns.context, e, local)
	s.stored = index.Store{
		Owner:     s.holder(ns, key, medium).current,
		Parent:    e.Parent,
		HasParent: e.HasParent,
		Rootless:  !e.HasParent && (e.BaseBlock > 0 || local == nil && s.reg.pool()), // a master says 0 of any
		Engine:    hashes,
		Local:     local,
		Labels:    labels,
		Copies:    s.copiesOf(e, key, medium),
		Joined:    &s.joined,
	}
	res := ns.context.index.Store(&s.stored)
	ns.context.learn(labels, local, !e.HasParent && e.BaseBlock <= 0)
	if local != nil {
		s.spread(ns.context, hashes)
	}
	if len(s.joined) > 0 {
		s.spread(ns.context, s.joined)
		s.joined = s.joined[:0]
	}
	s.conductor.collect(ns.context)
	s.drop(events.OrphanLimit, res.Shed)
	s.drop(events.OverBudget, res.Refused)
	if len(s.spaces) > 1 && local != nil {
		s.adopt(ns, hashes, e.Envelope)
	}
	return res
}

// remove takes the blocks of a removed event from every context that has them, and
// returns how many of them none had.
func (s *source) remove(e *events.Event, key ownerKey) int {
	unknown := len(e.Hashes) - s.withdraws(e, key)
	s.drop(events.UnknownHash, unknown)
	if len(s.spaces) > 1 {
		s.quitEmpty()
	}
	return unknown
}

// withdraws takes blocks from every context that has them, and returns how many of
// them one had.
func (s *source) withdraws(e *events.Event, key ownerKey) int {
	found := 0
	for _, ns := range s.spaces {
		h, ok := ns.owners[key]
		if !ok || !ns.within(e) {
			continue
		}
		hashes, remaining := e.Hashes, e.Remaining
		if ns.parts() > 0 {
			hashes, remaining = s.withParts(ns, hashes, remaining)
		}
		all := h.remove(ns.context.index, hashes, remaining, s.copies(key))
		found += all * len(e.Hashes) / max(len(hashes), 1)
		s.conductor.collect(ns.context)
	}
	return found
}

// remove takes blocks from both generations, and returns how many memberships that
// were, copies included.
func (h *holder) remove(x *index.Index, hashes []uint64, remaining []int, policy index.CopyPolicy) int {
	res := x.Remove(h.current, hashes, remaining, policy)
	all := res.Removed + res.Copies
	if h.hasOld {
		res = x.Remove(h.old, hashes, remaining, policy)
		all += res.Removed + res.Copies
	}
	return all
}

// clear drops what a cleared event names: everything of the publisher's rank, or
// one medium of it, of all owners. A standardized event may narrow it to a backend, tenant,
// model, adapter, salt or block size.
func (s *source) clear(e *events.Event, rank int32) {
	medium := s.clearedMedium(e)
	if medium == "" || medium == tiers.NameDevice {
		s.conductor.counts.cleared.ok.Add(1)
		s.doctor.ForgetCopies()
	}
	for _, ns := range s.spaces {
		if !ns.within(e) {
			continue
		}
		for key, h := range ns.owners {
			if key.rank == rank && (medium == "" || key.medium == medium) && scope.Agrees(e.Backend, key.backend) {
				ns.clear(h)
			}
		}
	}
	if s.pool != nil {
		s.pool.Clear(e, medium)
	}
	s.groups.clear(e, rank, medium)
	s.quitEmpty()
}

// clear drops all blocks of a holder.
func (ns *namespace) clear(h *holder) {
	ns.context.index.Clear(h.current)
	if h.hasOld {
		ns.context.index.Clear(h.old)
	}
	ns.context.tidy()
}

// within reports whether an event that takes blocks away is about a namespace.
func (ns *namespace) within(e *events.Event) bool {
	at := ns.key()
	return at.Within(e)
}

// purgeGroup drops blocks of a group that was indexed before its kind was known.
func (s *source) purgeGroup(rank int32, group int) {
	for _, ns := range s.spaces {
		for key, h := range ns.owners {
			if key.rank == rank && key.group == group {
				ns.clear(h)
			}
		}
	}
}

// contextKey returns the adapter and salt of a stored event's blocks. An event that
// names a salt says all. Else what the event does not name is its parent's, or that of
// the context its first hash is known in, or the registration's. Engines hash adapter
// and salt; standardized hashes contain neither, so those events inherit a salt alone.
// It reports false if the context is a guess.
func (s *source) contextKey(e *events.Event, dk scope.Deployment, medium tiers.Medium) (ck scope.Variant, sure bool) {
	ck = scope.Variant{Lora: s.reg.Lora, Salt: s.reg.Salt}
	if e.LoraName != nil {
		ck.Lora = *e.LoraName
	}
	if e.Salt != nil {
		ck.Salt = *e.Salt
		return ck, true
	}
	if !s.alone(scope.Context{Deployment: dk, Variant: ck}) {
		if ns := s.index[scope.Context{Deployment: dk, Variant: ck}]; e.HasParent && ns != nil && s.knows(ns, e, parentHash) {
			return ck, true
		}
		if e.HasParent {
			if ns := s.knower(e, dk, parentHash, nil); ns != nil && (!e.Envelope || ns.context.key.Lora == ck.Lora) {
				return ns.context.key, true
			}
		}
		if !e.Envelope {
			if ns := s.knower(e, dk, 0, nil); ns != nil {
				return ns.context.key, true
			}
		}
	}
	if e.Envelope || medium.Tier == tiers.Device || s.reg.pool() {
		return ck, true
	}
	return s.meantContext(e, dk, ck)
}

// alone reports whether the source holds blocks in no context but this one.
func (s *source) alone(at scope.Context) bool {
	return len(s.spaces) == 0 || len(s.spaces) == 1 && s.index[at] != nil
}

// knower returns the namespace in which the hash of a block of the event, or of its parent,
// has a prefix, nil when there is none. Of several that know it, likely comes first, then the
// one that the source entered first. Adapter and salt that the event names must agree.
func (s *source) knower(e *events.Event, dk scope.Deployment, block int, likely *namespace) *namespace {
	if likely != nil && likely.mayHold(e, dk) && s.knows(likely, e, block) {
		return likely
	}
	for _, ns := range s.spaces {
		if ns != likely && ns.mayHold(e, dk) && s.knows(ns, e, block) {
			return ns
		}
	}
	return nil
}

// mayHold reports whether blocks of a stored event of a deployment may be in a namespace.
func (ns *namespace) mayHold(e *events.Event, dk scope.Deployment) bool {
	x := ns.context
	return x.deployment.key == dk && scope.Agrees(e.LoraName, x.key.Lora) && scope.Agrees(e.Salt, x.key.Salt)
}

// localsKept bounds the buffer a source keeps for local hashes: 32 KiB.
const localsKept = 4096

// locals returns the local hash of every block, nil when the event's tokens do
// not pair with its blocks: then only the hashes count. It is valid until the next
// call.
func (s *source) locals(e *events.Event, blockSize int) []uint64 {
	tokens := paired(e, blockSize)
	if tokens == nil {
		return nil
	}
	if cap(s.local) < len(e.Hashes) || cap(s.local) > localsKept {
		s.local = make([]uint64, 0, len(e.Hashes))
	}
	s.local = windows(s.local[:0], s.conductor.scheme, tokens, blockSize, e)
	return s.local
}

// windows appends the hash of every block's tokens, look-ahead and items.
func windows(dst []uint64, scheme hash.Scheme, tokens []uint32, blockSize int, e *events.Event) []uint64 {
	if e.Items == nil && e.Ahead == 0 {
		return scheme.Locals(dst, tokens, blockSize)
	}
	return scheme.Windows(dst, tokens, blockSize, e.Ahead, e.Items)
}

// paired returns the tokens of a stored event, its look-ahead included, nil where they do
// not pair with its blocks.
func paired(e *events.Event, blockSize int) []uint32 {
	if len(e.Tokens) == 0 || len(e.Tokens) != len(e.Hashes)*blockSize+e.Ahead {
		return nil
	}
	return e.Tokens
}

// labels returns the local hash of every block as Dynamo's clients compute it, nil
// where that is local itself. It is valid until the next call.
func (s *source) labels(x *indexContext, e *events.Event, local []uint64) []uint64 {
	if local == nil || !x.translates {
		return nil
	}
	if cap(s.label) > localsKept {
		s.label = nil
	}
	size := x.deployment.key.BlockSize
	s.label = windows(s.label[:0], hash.Scheme{Seed: dynamoSeed(x.key)}, paired(e, size), size, e)
	return s.label
}
