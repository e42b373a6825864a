package stream

import (
	"slices"

	"example.com/conductor/events"
)

// A publisher may send several ranks over one socket, with one sequence. A clear takes the blocks of one rank, so what was missing
// before it goes on missing of the others, until all ranks that the publisher has named are cleared.

// maxRanks bounds the ranks that are remembered. A publisher with more of them is whole only after a restart.
const maxRanks = 1024

// NoRanks is a Config.Rank.
const NoRanks = -1

// noteRanks looks at the ranks that a batch names, and at what it clears.
func noteRanks(m *machine, b *events.Batch) {
	meant := func(rank int) int {
		if rank < 0 || m.cfg.rank == NoRanks {
			return m.cfg.rank
		}
		return rank
	}
	for i := range b.Events {
		rank := meant(b.Rank)
		if own := b.Events[i].Rank; own != nil {
			rank = meant(*own)
		}
		if len(m.ranks) < maxRanks && !slices.Contains(m.ranks, rank) {
			m.ranks = append(m.ranks, rank)
			m.completeness.noteRank()
		}
	}
	if clearsEverything(b) && (m.cfg.partial == nil || !m.cfg.partial(clearedMedia(b))) {
		m.completeness.noteClear(meant(b.Rank), m.ranks)
	}
}

// clearsEverything reports whether a batch drops everything that the rank it names holds, so that
// what happened before does not matter. A clear of one medium, of the cache runner, or of one
// tenant's or model's part of a pool, does not.
func clearsEverything(b *events.Batch) bool {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == events.Cleared && e.Medium == "" && !e.Owned && e.Model == nil && e.Tenant == nil &&
			e.Backend == nil && e.Rank == nil && e.LoraName == nil && e.Salt == nil {
			return true
		}
	}
	return false
}

// noteClear notes that a rank has no blocks. Once that holds for all ranks, nothing is missing but what only the caller knows.
func (t *completeness) noteClear(rank int, of []int) {
	if !slices.Contains(t.cleared, rank) {
		t.cleared = append(t.cleared, rank)
	}
	if len(t.cleared) < len(of) || len(of) == maxRanks {
		return
	}
	*t = completeness{doubt: t.doubt, cleared: t.cleared, before: t.historyReason(t.before)}
}

// noteRank notes that the publisher has another rank than was known. Clears of the others have not taken its blocks.
func (t *completeness) noteRank() {
	if t.before != "" && t.lost == "" {
		t.lost, t.probe = t.before, probePlan{} // of the new rank alone: the others stay cleared
	}
	t.before = ""
}

// historyReason is why batches that were published before the last one consumed are missing, otherwise if none are.
func (t *completeness) historyReason(otherwise string) string {
	switch {
	case t.lost != "":
		return t.lost
	case t.unverified:
		return ReasonTimeout
	}
	return otherwise
}

// LimitClears makes what was missed before a clear still matter if keeps reports true: the publisher has kept blocks. Call it before
// the first Next, which calls keeps at each batch that clears everything, when all batches before it are applied. media are those that
// the batch clears by name.
func (s *Stream) LimitClears(keeps func(media []string) bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.machine.cfg.partial = keeps
}

// clearedMedia returns the media that a batch clears by name, as the publisher calls them.
func clearedMedia(b *events.Batch) (media []string) {
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == events.Cleared && e.Medium != "" && !e.Owned && !e.Envelope {
			media = append(media, e.Medium)
		}
	}
	return media
}
