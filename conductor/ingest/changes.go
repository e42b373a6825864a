package ingest

import (
	"fmt"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/pool"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// apply brings one batch into the indexes, change by change.
func (s *Source) apply(b *events.Batch) {
	s.doctor.ObserveBatch(b)
	observeRanks(s, b)
	all := b.Count()
	s.applier.refusedEvents = 0
	s.applier.normal.Lend(normalLists.Get().(*normalize.Lists))
	r := s.applier.normal.Batch(b)
	for _, d := range r.Dropped {
		s.applier.refuse(d.Reason, d.Count)
		if d.Reason != events.MissingEvents && d.Reason != events.AmbiguousExtraKey { // these leave nothing out
			s.doctor.Lose(d.Reason, d.Count)
		}
	}
	s.noteGaps()
	s.applier.noteWindow()
	for i := range r.Changes {
		s.applier.applyChange(&r.Changes[i])
	}
	s.applier.noteObjects()
	if all > 0 && s.applier.refusedEvents == all {
		s.feed.MarkUnusable(fmt.Sprintf("all events of a batch are refused, as %s", s.applier.refusedAs))
	}
}

// refuse counts n events that are left out. Those that contradict the registration or the settings are
// counted for the batch at hand as well.
func (a *applier) refuse(reason events.Reason, n int) {
	a.countSkipped(reason, n)
	switch reason {
	case events.ForeignTenant, events.BlockSizeMismatch, events.BadToken:
		a.refusedEvents += n
		a.refusedAs = reason
	}
}

// applyChange applies one change.
func (a *applier) applyChange(c *normalize.Change) {
	switch c.Kind {
	case normalize.Stored, normalize.Removed:
		a.eachApart(c, a.applyBlocks)
	case normalize.Cleared:
		a.clear(c)
	case normalize.Object:
		a.applyObject(c.Event)
	case normalize.Purged:
		a.doctor.ForgetCopies()
		a.holdings.purgeGroup(c.Owner.Rank, c.Owner.Group)
	case normalize.Learned:
		a.holdings.learnGroup(c.Spec)
		reportGroups(a.doctor, a.holdings.specs[c.Spec.Rank], a.reg)
		at := scope.Group{Deployment: a.holdings.deploymentKey(), Index: c.Spec.Group}
		if c.Spec.Kind != "" && a.shared.catalog.LearnGroup(at, c.Spec.Kind) {
			a.effects.Regrouped = append(a.effects.Regrouped, at)
		}
	}
}

// eachApart calls f with a change of blocks, or with one for each of the events that were joined in it: a token beyond
// the vocabulary, and the hash of an adapter that was replaced, refuse one of them alone, the place of each hash tells the
// size of chunks whose events do not say it, and what becomes of a block that is indexed as several is counted by events.
func (a *applier) eachApart(c *normalize.Change, f func(*normalize.Change)) {
	if c.Event.Joined == 0 || c.Kind == normalize.Removed ||
		!a.shared.limits.Load().forbidsTokens(c.Event.Tokens) && !a.guessesChunk(c) && a.normal.Parts() == 0 && a.versions.retired == nil &&
			!(a.holdings.full && len(a.holdings.specs[c.Owner.Rank]) > 1) {
		f(c)
		return
	}
	for e := range c.Event.Split() {
		var one normalize.Change
		a.normal.Event(e, c.Owner.Rank, &one)
		f(&one)
	}
}

// applyBlocks applies stored or removed blocks, and lets the doctor observe them.
func (a *applier) applyBlocks(c *normalize.Change) {
	a.doctor.CountCopies(a.holdings.countedOnDevice)
	n := len(c.Event.Hashes)
	seen := doctor.Observation{Event: c.Event, Medium: c.Medium, Count: n, Blocks: true,
		Counted: a.holdings.copies(c.Owner) == index.CopyCount}
	if c.Kind == normalize.Removed {
		unknown := a.removeBlocks(c.Event, c.Owner)
		if decidesStay(a.holdings.specs[c.Owner.Rank], c.Owner) {
			a.member.Lives.Removed(c.Medium.Name, c.Event.Hashes, a.at, a.news)
		}
		seen.Found = n - unknown
		if c.Medium.Tier == tiers.Device {
			a.shared.counts.countRemoved(c.Event, unknown)
		}
	} else {
		if a.storeAndObserve(c, &seen); seen.Refused == "" && decidesStay(a.holdings.specs[c.Owner.Rank], c.Owner) {
			a.member.Lives.Stored(c.Medium.Name, c.Event.Hashes, a.at, a.news)
		}
	}
	a.doctor.Observe(&seen)
	if a.doctor.Full() && !a.holdings.full {
		from := a.origin.Load()
		a.holdings.assumeFull(from != nil && *from != FromEngine)
	}
}

// storeAndObserve indexes stored blocks, and completes what the doctor observes.
func (a *applier) storeAndObserve(c *normalize.Change, seen *doctor.Observation) {
	res, refused := a.storeBlocks(c)
	seen.Context, seen.Refused = c.Context, refused
	if refused == "" && res.Refused > 0 && res.Added+res.Copies == 0 {
		seen.Refused = events.OverBudget
	}
	if seen.Refused != "" {
		return
	}
	seen.Cut, seen.Parts, seen.EverCut = c.Cut, c.Parts, c.EverCut
	seen.Local, seen.Added, seen.Copies, seen.Undecided = c.Local, res.Added, res.Copies, res.Undecided
	if c.Local == nil && c.Chunk > 1 { // the balance is of the engine's own blocks
		seen.Added, seen.Copies = res.Added/c.Chunk, res.Copies/c.Chunk
	}
	if ns := a.holdings.byKey[c.Context.Deployment]; ns != nil {
		seen.Seeds, seen.Profiles = ns.Deployment.Seeds(), ns.Deployment.Profiles()
	}
}

// clear drops what a cleared event names: everything of the publisher's rank, or
// one medium of it, of all owners or of the cache runner alone. A standardized event may narrow it to a backend, tenant,
// model, adapter, salt or block size.
func (a *applier) clear(c *normalize.Change) {
	e, rank, medium := c.Event, c.Owner.Rank, c.Owner.Medium
	if !c.Owner.Owned && (medium == "" || medium == tiers.NameDevice) {
		a.clearExpected(e, rank)
		a.shared.counts.cleared.ok.Add(1)
		a.doctor.ForgetCopies()
		a.holdings.cleared = clearing{rank, a.holdings.past.seq, true}
	}
	for _, ns := range a.holdings.namespaces {
		if !ns.Deployment.Key.Within(e) {
			continue
		}
		for key, h := range ns.owners {
			if key.Rank == rank && a.leaves(ns, c, key, h) && (key.Owned || !c.Owner.Owned) && scope.Agrees(e.Backend, key.Backend) {
				a.holdings.past.noteEmptied(inspect.Cleared, ns.Deployment.Key, key, ns.clearNamed(h, e))
			}
		}
		ns.Deployment.Index.DecideContests(nil)
	}
	if a.pool != nil {
		a.pool.Clear(e, medium)
	}
}

// leaves reports whether a cleared event takes the medium of an owner.
func (a *applier) leaves(ns *namespace, c *normalize.Change, key normalize.Owner, h *holder) bool {
	switch c.Owner.Medium {
	case "", key.Medium:
		return true
	}
	return c.Event.Medium == "" && leavesAtClear(a, ns, key, h) // of the device
}

// applyObject applies a stored or removed object of a pool.
func (a *applier) applyObject(e *events.Event) {
	var r pool.Result
	if e.Kind == events.Removed {
		r = a.pool.Remove(e)
	} else {
		r = a.pool.Store(e)
	}
	if r.Seen {
		a.doctor.Observe(&doctor.Observation{Event: e, Medium: r.Medium, Count: 1})
	}
	found := a.applyChanges(r.Changes)
	switch {
	case r.Dropped != "":
		a.countSkipped(r.Dropped, 1)
		if e.Kind == events.Stored {
			a.doctor.LoseObject(r.Dropped, e.ObjectKey)
		}
	case !r.Unbound || found > 0:
	case r.ByHashes:
		var c normalize.Change
		a.normal.Event(e, int32(a.reg.Rank), &c)
		a.applyBlocks(&c)
	default:
		a.countSkipped(events.UnknownHash, 1)
	}
}

// applyChanges stores the blocks that appear in the pool and removes those that vanish.
// Engines that hash in several ways have each their own objects of a block, which the
// index counts as copies. It returns how many blocks it removed.
func (a *applier) applyChanges(changes []pool.Change) (removed int) {
	for i := range changes {
		c := &changes[i]
		e := a.pool.Event(c)
		at, medium := a.pool.Context(c)
		key := normalize.Owner{Rank: int32(a.reg.Rank), Medium: medium.Name, Backend: *e.Backend, Objects: c.Object}
		if c.Vanishes {
			removed += a.holdings.withdraw(&e, key)
		} else {
			a.storeBlocks(&normalize.Change{Kind: normalize.Stored, Event: &e, Owner: key, Medium: medium, Context: at, Cut: &e, Parts: 1})
		}
	}
	return removed
}
