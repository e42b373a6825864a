package conductor

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
func (s *source) apply(b *events.Batch) {
	s.observeBatch(b)
	all := b.Count()
	s.refusedEvents = 0
	s.normal.Lend(normalLists.Get().(*normalize.Lists))
	r := s.normal.Batch(b)
	for _, d := range r.Dropped {
		s.refuse(d.Reason, d.Count)
	}
	s.noteGaps()
	s.noteWindow()
	for i := range r.Changes {
		s.applyChange(&r.Changes[i])
	}
	s.noteObjects()
	if all > 0 && s.refusedEvents == all {
		s.stream.MarkUnusable(fmt.Sprintf("all events of a batch are refused, as %s", s.refusedAs))
	}
}

// refuse counts n events that are left out. Those that contradict the registration or the settings are
// counted for the batch at hand as well.
func (s *source) refuse(reason events.Reason, n int) {
	s.drop(reason, n)
	switch reason {
	case events.ForeignTenant, events.BlockSizeMismatch, events.BadToken:
		s.refusedEvents += n
		s.refusedAs = reason
	}
}

// applyChange applies one change.
func (s *source) applyChange(c *normalize.Change) {
	switch c.Kind {
	case normalize.Stored, normalize.Removed:
		s.eachApart(c, s.applyBlocks)
	case normalize.Cleared:
		s.clear(c)
	case normalize.Object:
		s.applyObject(c.Event)
	case normalize.Purged:
		s.doctor.ForgetCopies()
		s.holdings.purgeGroup(c.Owner.Rank, c.Owner.Group)
	case normalize.Learned:
		at := scope.Group{Deployment: s.holdings.deploymentKey(), Index: c.Owner.Group}
		if s.shared.catalog.LearnGroup(at, c.Event.GroupKind) {
			s.effects.Regrouped = append(s.effects.Regrouped, at)
		}
	}
}

// eachApart calls f with a change of blocks, or with one for each of the events that were joined in it: a token beyond
// the vocabulary refuses one of them alone, the place of each hash tells the size of chunks whose events do not say it,
// and what becomes of a block that is indexed as several is counted by events.
func (s *source) eachApart(c *normalize.Change, f func(*normalize.Change)) {
	if c.Event.Joined == 0 || c.Kind == normalize.Removed ||
		!s.shared.beyondVocabulary(c.Event.Tokens) && !s.guessesChunk(c) && s.normal.Parts() == 0 {
		f(c)
		return
	}
	for e := range c.Event.Split() {
		var one normalize.Change
		s.normal.Event(e, c.Owner.Rank, &one)
		f(&one)
	}
}

// applyBlocks applies stored or removed blocks, and lets the doctor observe them.
func (s *source) applyBlocks(c *normalize.Change) {
	if s.doctor.CopiesUncounted() {
		s.doctor.CountCopies(s.holdings.countedOnDevice())
	}
	n := len(c.Event.Hashes)
	seen := doctor.Observation{Event: c.Event, Medium: c.Medium, Count: n, Blocks: true,
		Counted: s.holdings.copies(c.Owner) == index.CopyCount}
	if c.Kind == normalize.Removed {
		unknown := s.remove(c.Event, c.Owner)
		s.member.Lives.Removed(c.Medium.Name, c.Event.Hashes, s.at, s.news)
		seen.Found = n - unknown
		if c.Medium.Tier == tiers.Device {
			s.shared.counts.remove(c.Event, unknown)
		}
	} else {
		if s.store(c, &seen); !seen.Refused {
			s.member.Lives.Stored(c.Medium.Name, c.Event.Hashes, s.at, s.news)
		}
	}
	s.doctor.Observe(&seen)
	if s.doctor.Full() && !s.holdings.full {
		from := s.origin.Load()
		s.holdings.assumeFull(from != nil && *from != FromEngine)
	}
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
	if ns := s.holdings.byKey[c.Context.Deployment]; ns != nil {
		seen.Seeds, seen.Profiles = ns.Deployment.Seeds.Load(), ns.Deployment.Profiles.Load()
	}
}

// clear drops what a cleared event names: everything of the publisher's rank, or
// one medium of it, of all owners. A standardized event may narrow it to a backend, tenant,
// model, adapter, salt or block size.
func (s *source) clear(c *normalize.Change) {
	e, rank, medium := c.Event, c.Owner.Rank, c.Owner.Medium
	if medium == "" || medium == tiers.NameDevice {
		s.clearExpected(e, rank)
		s.shared.counts.cleared.ok.Add(1)
		s.doctor.ForgetCopies()
	}
	for _, ns := range s.holdings.namespaces {
		if !ns.Deployment.Key.Within(e) {
			continue
		}
		for key, h := range ns.owners {
			if key.Rank == rank && (medium == "" || key.Medium == medium) && scope.Agrees(e.Backend, key.Backend) {
				s.holdings.past.noteEmptied(inspect.Cleared, ns.Deployment.Key, key, ns.clearNamed(h, e))
			}
		}
		ns.decideContests(nil)
	}
	if s.pool != nil {
		s.pool.Clear(e, medium)
	}
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
			removed += s.holdings.withdraw(&e, key)
		} else {
			s.storeBlocks(&normalize.Change{Kind: normalize.Stored, Event: &e, Owner: key, Medium: medium, Context: at, Cut: &e, Parts: 1})
		}
	}
	return removed
}
