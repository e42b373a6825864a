package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/conductor/normalize"
	"kvconductor/conductor/pool"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
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
			s.notice.regrouped = append(s.notice.regrouped, at)
		}
	}
}

// applyBlocks applies stored or removed blocks, and lets the doctor observe them.
func (s *source) applyBlocks(c *normalize.Change) {
	n := len(c.Event.Hashes)
	seen := doctor.Observation{Event: c.Event, Medium: c.Medium, Count: n, Blocks: true, Counted: s.copies(c.Owner) == index.CopyCount}
	if c.Kind == normalize.Removed {
		unknown := s.remove(c.Event, c.Owner)
		s.lives.Removed(c.Medium.Name, c.Event.Hashes, s.at, s.news)
		seen.Found = n - unknown
		if c.Medium.Tier == tiers.Device {
			s.conductor.counts.remove(unknown)
		}
	} else {
		if s.store(c, &seen); !seen.Refused {
			s.lives.Stored(c.Medium.Name, c.Event.Hashes, s.at, s.news)
		}
	}
	s.doctor.Observe(&seen)
}

// store indexes stored blocks, and completes what the doctor observes.
func (s *source) store(c *normalize.Change, seen *doctor.Observation) {
	res, refused := s.storeBlocks(c)
	seen.Context, seen.Refused = c.Context, refused
	if refused {
		return
	}
	seen.Cut, seen.Parts, seen.EverCut = c.Cut, c.Parts, c.EverCut
	seen.Local, seen.Added, seen.Copies = c.Local, res.Added, res.Copies
	if ns := s.byContext[c.Context]; ns != nil {
		seen.Seeds, seen.Profiles = &ns.context.seeds, ns.context.deployment.profiles.Load()
	}
}

// storeBlocks indexes stored blocks. It completes the context of the change, and reports whether the
// change is refused.
func (s *source) storeBlocks(c *normalize.Change) (res index.StoreResult, refused bool) {
	device := c.Medium.Tier == tiers.Device
	s.nameAdapter(c.Event, c.Context.Deployment)
	if c.Refused != "" {
		s.drop(c.Refused, 1)
		if device {
			s.conductor.counts.stored.invalid.Add(1)
		}
		return res, true
	}
	if s.conductor.beyondVocabulary(c.Event.Tokens) >= 0 {
		s.drop(events.BadToken, 1)
		return res, true
	}
	if c.Parts > 1 {
		c.Cut.LoraName = c.Event.LoraName
		s.conductor.learnParts(c.Context.Deployment, c.Parts)
	}
	// Tokens place all blocks of a device together, below it each hash says where.
	s.asked.begin(c.Cut, len(c.Cut.Tokens) == 0 || !device)
	var sure bool
	c.Context.Variant, sure = s.variantOf(c.Cut, c.Context.Deployment, c.Medium)
	if why := s.refusesContext(c.Context); why != "" {
		s.drop(why, len(c.Event.Hashes))
		return res, true
	}
	if !sure || c.Canonical && !s.behindKnown(c) {
		c.Local = nil // the blocks wait by their hashes, or their hashes are the keys
	}
	res = s.place(c)
	s.dropUnstored(&res)
	if device && !s.filling {
		s.conductor.counts.store(&res)
	}
	return res, false
}

// dropUnstored counts blocks that the index did not take.
func (s *source) dropUnstored(res *index.StoreResult) {
	s.drop(events.OrphanLimit, res.Shed)
	s.drop(events.OverBudget, res.Refused)
}

// remove takes the blocks of a removed event from every context that has them, and
// returns how many of them none had.
func (s *source) remove(e *events.Event, key normalize.Owner) int {
	unknown := len(e.Hashes) - s.withdraw(e, key)
	s.drop(events.UnknownHash, unknown)
	for _, ns := range s.namespaces {
		s.decideContests(ns.context, e.Hashes)
	}
	if len(s.namespaces) > 1 {
		s.leaveEmptyContexts()
	}
	return unknown
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
	for _, ns := range s.namespaces {
		if !ns.within(e) {
			continue
		}
		for key, h := range ns.owners {
			if key.Rank == rank && (medium == "" || key.Medium == medium) && scope.Agrees(e.Backend, key.Backend) {
				s.past.noteEmptied(Cleared, ns.key(), key, ns.clear(h))
			}
		}
	}
	for _, ns := range s.namespaces {
		s.decideContests(ns.context, nil)
	}
	if s.pool != nil {
		s.pool.Clear(e, medium)
	}
	s.leaveEmptyContexts()
}

// applyObject applies a stored or removed object of a pool.
func (s *source) applyObject(e *events.Event) {
	var r pool.Result
	if e.Kind == events.Removed {
		r = s.pool.Remove(e)
	} else {
		r = s.pool.Store(e)
	}
	if r.Seen {
		s.doctor.Observe(&doctor.Observation{Event: e, Medium: r.Medium, Count: 1})
	}
	found := s.applyChanges(r.Changes)
	switch {
	case r.Dropped != "":
		s.drop(r.Dropped, 1)
	case !r.Unbound || found > 0:
	case r.ByHashes:
		var c normalize.Change
		s.normal.Event(e, int32(s.reg.Rank), &c)
		s.applyBlocks(&c)
	default:
		s.drop(events.UnknownHash, 1)
	}
	if e.Kind == events.Removed && len(s.namespaces) > 1 {
		s.leaveEmptyContexts()
	}
}

// applyChanges stores the blocks that appear in the pool and removes those that vanish.
// Engines that hash in several ways have each their own objects of a block, which the
// index counts as copies. It returns how many blocks it removed.
func (s *source) applyChanges(changes []pool.Change) (removed int) {
	for i := range changes {
		c := &changes[i]
		e := s.pool.Event(c)
		at, medium := s.pool.Context(c)
		key := normalize.Owner{Rank: int32(s.reg.Rank), Medium: medium.Name, Backend: *e.Backend, Objects: c.Object}
		if c.Vanishes {
			removed += s.withdraw(&e, key)
		} else {
			res := s.place(&normalize.Change{Kind: normalize.Stored, Event: &e, Owner: key, Medium: medium, Context: at, Cut: &e, Parts: 1})
			s.dropUnstored(&res)
		}
	}
	return removed
}
