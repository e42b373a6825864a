package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// apply brings one batch into the indexes, change by change.
func (s *source) apply(b *events.Batch) {
	s.observeBatch(b)
	r := s.normal.Batch(b)
	for _, d := range r.Dropped {
		s.drop(d.Reason, d.Count)
	}
	s.noteGaps()
	s.noteWindow()
	for i := range r.Changes {
		s.applyChange(&r.Changes[i])
	}
	s.noteObjects()
}

// applyChange applies one change.
func (s *source) applyChange(c *normalize.Change) {
	switch c.Kind {
	case normalize.Stored, normalize.Removed:
		s.applyBlocks(c)
	case normalize.Cleared:
		s.clear(c)
	case normalize.Object:
		s.applyObject(c.Event)
	case normalize.Purged:
		s.purgeGroup(c.Owner.Rank, c.Owner.Group)
	case normalize.Learned:
		at := scope.Group{Deployment: s.deploymentKey(), Index: c.Owner.Group}
		if s.conductor.learnGroup(at, c.Event.GroupKind) {
			s.regrouped = append(s.regrouped, at)
		}
	}
}

// applyBlocks applies stored or removed blocks, and lets the doctor observe them.
func (s *source) applyBlocks(c *normalize.Change) {
	n := len(c.Event.Hashes)
	seen := doctor.Observation{Event: c.Event, Medium: c.Medium, Count: n, Blocks: true, Counted: s.copies(c.Owner) == index.CopyCount}
	if c.Kind == normalize.Removed {
		unknown := s.remove(c.Event, c.Owner)
		seen.Found = n - unknown
		if c.Medium.Tier == tiers.Device {
			s.conductor.counts.remove(unknown)
		}
	} else {
		s.store(c, &seen)
	}
	s.doctor.Observe(&seen)
}

// store indexes stored blocks. It completes the context of the change, and what the doctor
// observes.
func (s *source) store(c *normalize.Change, seen *doctor.Observation) {
	device := c.Medium.Tier == tiers.Device
	s.nameAdapter(c.Event, c.Context.Deployment)
	if c.Refused != "" {
		seen.Context, seen.Refused = c.Context, true
		s.drop(c.Refused, 1)
		if device {
			s.conductor.counts.stored.invalid.Add(1)
		}
		return
	}
	if c.Parts > 1 {
		c.Cut.LoraName = c.Event.LoraName
		s.conductor.learnParts(c.Context.Deployment, c.Parts)
	}
	// Tokens place all blocks of a device together, below it each hash says where.
	s.asked.begin(c.Cut, len(c.Cut.Tokens) == 0 || !device)
	var sure bool
	c.Context.Variant, sure = s.contextKey(c.Cut, c.Context.Deployment, c.Medium)
	if !sure || c.Canonical && !s.behindKnown(c) {
		c.Local = nil // the blocks wait by their hashes, or their hashes are the keys
	}
	res := s.place(c)
	seen.Context, seen.Cut, seen.Parts, seen.EverCut = c.Context, c.Cut, c.Parts, c.EverCut
	seen.Local, seen.Added, seen.Copies = c.Local, res.Added, res.Copies
	if ns := s.index[c.Context]; ns != nil {
		seen.Seeds, seen.Profiles = &ns.context.seeds, ns.context.deployment.profiles.Load()
	}
	if device {
		s.conductor.counts.store(&res)
	}
}

// behindKnown reports whether the blocks of a stored change begin prompts, or are behind a
// block that the source knows. Then their tokens give them the same keys as their hashes,
// and dumps contain their local hashes.
func (s *source) behindKnown(c *normalize.Change) bool {
	if !c.Cut.HasParent {
		return c.Cut.BaseBlock <= 0
	}
	ns := s.index[c.Context]
	return ns != nil && s.knows(ns, c.Cut, parentHash)
}

// place puts the blocks of a stored change into the contexts they belong to.
func (s *source) place(c *normalize.Change) (sum index.StoreResult) {
	at, e, local := c.Context, c.Cut, c.Local
	if e.Envelope && !s.reg.pool() || local != nil && (s.reg.pool() || c.Medium.Tier == tiers.Device) {
		return s.put(s.space(at), c, e.Hashes, local)
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
			part := stretch(c, from, i)
			res = s.put(s.space(at), &part, part.Cut.Hashes, part.Local)
		case !known:
			res = s.wait(s.space(at), c, e.Hashes[from])
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
			policy := s.copiesOf(c)
			spot.ns.useLookAheads(s.conductor, used)
			res = s.putNamed(spot.ns, e.Hashes[from:i], s.keys, c.Owner, c.Medium, policy)
			s.putParts(spot.ns, e.Hashes[from], c.Owner, c.Medium, policy)
		default:
			for ; i < len(e.Hashes); i++ {
				next, known := find(i)
				if !known || next.named || next.ns != spot.ns {
					break
				}
			}
			res = s.put(spot.ns, c, e.Hashes[from:i], nil)
			switch { // the last holder may have left a block since the inquiry
			case res.HashOnly == 0 || s.reg.pool():
			case local != nil:
				s.placeAgain(spot.ns, c, from, i)
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

// placeAgain places blocks from to end of a change with tokens if they wait by hashes that
// other sources have forgotten since the inquiry. Their new copies wait in ns.
func (s *source) placeAgain(ns *namespace, c *normalize.Change, from, end int) {
	x, o, hashes := ns.context.index, s.holder(ns, c.Owner, c.Medium).current, c.Cut.Hashes
	for from < end {
		to := from
		for to < end && x.Holds(o, hashes[to]) {
			to++
		}
		if to > from {
			x.Remove(o, hashes[from:to], nil, s.copies(c.Owner))
			s.asked.event = nil
			part := stretch(c, from, to)
			s.place(&part)
		}
		from = to + 1
	}
}

// stretch returns the change of blocks from to end of a stored change with tokens.
func stretch(c *normalize.Change, from, end int) normalize.Change {
	part, e, size := *c, c.Cut, c.Context.Deployment.BlockSize
	if from == 0 && end == len(e.Hashes) {
		return part
	}
	cut := *e
	cut.Hashes, part.Local = e.Hashes[from:end], c.Local[from:end]
	cut.Tokens = e.Tokens[from*size : end*size+e.Ahead]
	if e.Items != nil {
		cut.Items = e.Items[from:end]
	}
	if from > 0 {
		cut.Parent, cut.HasParent, cut.BaseBlock = e.Hashes[from-1], true, -1
	}
	part.Cut = &cut
	return part
}

// wait stores a block under a hash that nobody has announced with tokens.
func (s *source) wait(ns *namespace, c *normalize.Change, engine uint64) index.StoreResult {
	x := ns.context
	s.conductor.await(s, x)
	res := s.put(ns, c, []uint64{engine}, nil)
	if _, known := s.conductor.whatMeans(x.deployment.key, engine, s.home().Variant, func(scope.Variant) bool { return true }, searched(c.Cut)); known {
		s.rejoin(x, []uint64{engine})
	}
	return res
}

// put stores blocks of a change in one context.
func (s *source) put(ns *namespace, c *normalize.Change, hashes, local []uint64) index.StoreResult {
	e := c.Cut
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
		Owner:     s.holder(ns, c.Owner, c.Medium).current,
		Parent:    e.Parent,
		HasParent: e.HasParent,
		Rootless:  !e.HasParent && (e.BaseBlock > 0 || local == nil && s.reg.pool()), // a master says 0 of any
		Engine:    hashes,
		Local:     local,
		Labels:    labels,
		Copies:    s.copiesOf(c),
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
func (s *source) remove(e *events.Event, key normalize.Owner) int {
	unknown := len(e.Hashes) - s.withdraws(e, key)
	s.drop(events.UnknownHash, unknown)
	if len(s.spaces) > 1 {
		s.quitEmpty()
	}
	return unknown
}

// withdraws takes blocks from every context that has them, and returns how many of
// them one had.
func (s *source) withdraws(e *events.Event, key normalize.Owner) int {
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
func (s *source) clear(c *normalize.Change) {
	e, rank, medium := c.Event, c.Owner.Rank, c.Owner.Medium
	if medium == "" || medium == tiers.NameDevice {
		s.conductor.counts.cleared.ok.Add(1)
		s.doctor.ForgetCopies()
	}
	for _, ns := range s.spaces {
		if !ns.within(e) {
			continue
		}
		for key, h := range ns.owners {
			if key.Rank == rank && (medium == "" || key.Medium == medium) && scope.Agrees(e.Backend, key.Backend) {
				ns.clear(h)
			}
		}
	}
	if s.pool != nil {
		s.pool.Clear(e, medium)
	}
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
			if key.Rank == rank && key.Group == group {
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
	s.label = normalize.Locals(s.label[:0], hash.Scheme{Seed: dynamoSeed(x.key)}, e, size)
	return s.label
}
