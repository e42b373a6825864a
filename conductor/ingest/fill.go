package ingest

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// A snapshot of an engine replaces what its source holds:
//
//	DropBlocks --> the old blocks go --> ApplySnapshotPart, ... --> EndSnapshot
//	                                     hidden owners              the owners show, all of a deployment at once
//
// Parts of a snapshot store blocks that the engine has evicted, because others follow them,
// and store blocks more often than the engine holds them. Only all parts together are true.
// So no query sees an owner of the source before the end: meanwhile the source holds nothing,
// and answers are too short at worst. A part that fails drops all.
//
// The parts count copies, whatever the registration says, and whosever the copies are.

// hiddenOwner is an owner that queries do not see yet.
type hiddenOwner struct {
	ns    *namespace
	owner index.Owner
	shown tiers.Owner
}

// leaveFilling forgets the hidden owners. They are gone with their blocks.
func (s *holdings) leaveFilling() { s.filling, s.hidden = false, nil }

// fill applies a part of a snapshot. turn is held.
func (s *Source) fill(step *stream.Step) {
	s.filled++
	s.applier.normal.Lend(normalLists.Get().(*normalize.Lists))
	r := s.applier.normal.Batch(&step.Batch)
	for _, d := range r.Dropped {
		s.applier.countSkipped(d.Reason, d.Count)
	}
	for i := range r.Changes {
		c := &r.Changes[i]
		if c.Kind == normalize.Stored || c.Kind == normalize.Removed {
			s.applier.eachApart(c, s.applier.fillBlocks)
			continue
		}
		s.applier.applyChange(c)
	}
	s.noteGaps()
	s.applier.noteWindow()
	s.applier.release(&step.Batch)
}

// fillBlocks applies a change. Neither the doctor nor lifetimes observe it: it is no event of
// the engine.
func (a *applier) fillBlocks(c *normalize.Change) {
	if c.Kind == normalize.Removed {
		a.countSkipped(events.UnknownHash, len(c.Event.Hashes)-a.holdings.withdraw(c.Event, c.Owner))
		return
	}
	if c.Owner.Listed { // a snapshot lists blocks, and says nothing of chunks
		c.Owner.Listed, c.Owner.Chunk = false, 0
		if c.Parts > 1 {
			c.Owner.Chunk = c.Parts
		}
	}
	a.storeBlocks(c)
}

// reveal shows the owners, and goes on behind the snapshot. turn is held.
func (s *Source) reveal(step *stream.Step) {
	shown := make(map[*catalog.Deployment]map[index.Owner]tiers.Owner)
	for _, h := range s.holdings.hidden {
		if s.holdings.byKey[h.ns.Deployment.Key] == h.ns {
			if shown[h.ns.Deployment] == nil {
				shown[h.ns.Deployment] = make(map[index.Owner]tiers.Owner)
			}
			shown[h.ns.Deployment][h.owner] = h.shown
		}
	}
	s.holdings.leaveFilling()
	s.doctor.ForgetCopies()
	for d, owners := range shown {
		d.SetOwners(owners)
	}
	s.snapshotted.Store(int64(s.holdings.blocks()))
	s.mark, s.marked = stream.Mark{Seq: step.Seq, ID: step.ID}, true
	from := FromEngine
	s.applier.origin.Store(&from)
	// The journal does not have the parts: a replay of it is partial from here on.
	s.tape.RecordOmission(uint64(s.filled))
	s.shared.log.Info().Str("source", s.Registration.Key().String()).Uint64("seq", step.Seq).Int("parts", s.filled).
		Int("blocks", s.holdings.blocks()).Dur("took", s.shared.now().Sub(s.began)).Msg("snapshot of the engine applied")
}
