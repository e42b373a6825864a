package ingest

import (
	"slices"

	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/tiers"
)

// vLLM announces a reset of its prefix cache as AllBlocksCleared, and says nothing of its connector, which keeps the blocks on the
// host and below unless the request asks for more. So the blocks there stay, on trial:
//
//	AllBlocksCleared --> on trial --a store of a block that is there-----------> it was reset, too: all blocks of the tier leave
//	                        |
//	                        +-------removals of more blocks than came since----> it was not: the trial ends
//
// A connector does not store a block that it has, unless it has shown before that it does: then a store proves nothing, and the
// blocks leave with the clear. Blocks that were stored since the clear leave with the others, because nothing tells them apart:
// some of them may have been stored before the reset and announced after it, in the batch of the clear.
//
// No snapshot has trials: blocks that come from one stay until they are removed.

// lowerTier is what trials are about.
type lowerTier struct {
	rank   int32
	medium string
	owned  bool // by the cache runner
}

// reset remembers what events have shown about the resets of one lower tier. turn guards it, and holdings.mu guards repeats as well.
type reset struct {
	repeats bool // outside of a trial the connector has stored blocks that it already had
	trial   bool
	batch   uint64 // of the last clear
	stored  int    // blocks since the trial began, at most
}

// clearing is a clear of a rank's device, with the number of its batch. The zero value is none.
type clearing struct {
	rank  int32
	batch uint64
	is    bool
}

// begin begins a trial at a clear, unless the connector repeats its stores. One that there is goes on.
func (r *reset) begin(batch uint64) {
	if r.repeats {
		return
	}
	if !r.trial {
		r.trial, r.stored = true, 0
	}
	r.batch = batch
}

func tierOf(key normalize.Owner) lowerTier { return lowerTier{key.Rank, key.Medium, key.Owned} }

// judgesResets reports whether stores and removals of an owner tell of resets.
func judgesResets(s *holdings, key normalize.Owner) bool {
	return registration.JudgesResets(s.reg) && key.Medium != tiers.NameDevice && !s.filling // a snapshot of the engine repeats stores
}

// keepsAtClear reports whether the source has blocks that a clear leaves, with clears of some media beside it. Callers need not hold the
// turn.
func keepsAtClear(s *holdings, media []string) bool {
	if !registration.LeavesLowerTiers(s.reg) {
		return false
	}
	gone := []string{tiers.NameDevice}
	for _, raw := range media {
		gone = append(gone, tiers.ParseMedium(raw).Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		for key, h := range ns.owners {
			r := s.resets[tierOf(key)]
			if !slices.Contains(gone, key.Medium) && (r == nil || !r.repeats) && ns.holds(h) {
				return true
			}
		}
	}
	return false
}

// holds reports whether a holder has blocks.
func (ns *namespace) holds(h *holder) bool {
	for _, o := range h.owners {
		if ns.Deployment.Index.BlocksOf(o) > 0 {
			return true
		}
	}
	return false
}

// resetOf returns the reset of a tier. It makes one if there is none.
func resetOf(s *holdings, at lowerTier) *reset {
	r := s.resets[at]
	if r == nil {
		r = new(reset)
		s.mu.Lock()
		if s.resets == nil {
			s.resets = make(map[lowerTier]*reset)
		}
		s.resets[at] = r
		s.mu.Unlock()
	}
	return r
}

// leavesAtClear reports whether the blocks of an owner below the device leave with a clear of the device. If not, they are on trial from
// here on, as they may have been before: what was there at the first of two clears proves more than what was there at the second.
func leavesAtClear(a *applier, ns *namespace, key normalize.Owner, h *holder) bool {
	s := a.holdings
	if !judgesResets(s, key) {
		return false
	}
	r := resetOf(s, tierOf(key))
	if ns.holds(h) {
		r.begin(s.past.seq)
	}
	return r.repeats
}

// noteRepeat notes whether a stored event has announced blocks that were there already. It returns true if the tier was reset: then
// all of its blocks have left, and the event is to be stored again.
func noteRepeat(a *applier, c *normalize.Change, repeated bool) (again bool) {
	s := a.holdings
	if !judgesResets(s, c.Owner) {
		return false
	}
	at := tierOf(c.Owner)
	r := s.resets[at]
	if !repeated && s.cleared == (clearing{at.rank, s.past.seq, true}) {
		r = resetOf(s, at) // the blocks may be from before the reset
		r.begin(s.past.seq)
	}
	stored := max(len(c.Event.Hashes), len(c.Cut.Hashes))
	switch {
	case r != nil && r.trial && repeated:
		r.trial, r.stored = r.batch == s.past.seq, stored // the clear may be of a second reset, after this store
		clearTier(s, at)
		return true
	case r != nil && r.trial:
		r.stored += stored
	case repeated:
		r = resetOf(s, at)
		s.mu.Lock()
		r.repeats = true
		s.mu.Unlock()
	}
	return false
}

// noteFound notes how many blocks of a removed event were there. Those in the batch of the clear may have left before it.
func noteFound(s *holdings, key normalize.Owner, found int) {
	r := s.resets[tierOf(key)]
	if r == nil || !r.trial || r.batch == s.past.seq {
		return
	}
	if r.stored -= found; r.stored < 0 {
		r.trial = false
	}
}

// clearTier drops all blocks of a tier.
func clearTier(s *holdings, at lowerTier) {
	for _, ns := range s.namespaces {
		for key, h := range ns.owners {
			if tierOf(key) == at {
				s.past.noteEmptied(inspect.Cleared, ns.Deployment.Key, key, ns.clear(h))
			}
		}
		ns.Deployment.Index.DecideContests(nil)
	}
}
