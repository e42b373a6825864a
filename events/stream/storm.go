package stream

import (
	"slices"
	"time"

	"example.com/conductor/events"
)

// ReasonStorm is a reason of State Partial: several publishers send over one connection, each with
// numbers of its own, as behind a forwarder (XSUB/XPUB). To one who follows the numbers each change of
// the speaker is a restart, which drops all blocks.
const ReasonStorm = "restart_storm"

// storm finds several publishers on one connection, and waits for them to part.
//
// A publisher that was restarted does not come back. So a live batch that leaves the sequence of the
// one before it, and goes on exactly where an earlier sequence was left, is of another publisher that
// still lives. How often each of them speaks does not matter.
//
// While the storm lasts live batches are dropped: which engine holds a block cannot be told.
type storm struct {
	left     []uint64 // the next numbers of sequences that were left on this connection, the last one last
	returns  int      // batches that went on with one of them
	restarts int      // on this connection

	on    bool
	since time.Time     // of the sequence that the live batches follow
	run   int           // batches of it
	calm  time.Duration // how long one sequence has to last before the storm is over
}

const (
	// stormReturns may come by chance: a publisher loses batches and happens to meet a number.
	stormReturns  = 3
	stormRestarts = 2
	// A batch that comes this much out of order may be a late one of the same publisher.
	late = 8
	// maxLeft is how many publishers may have spoken in between.
	maxLeft = 16
	// calmRun batches of one sequence, over minCalm at least, end a storm. If it comes back, the next
	// one takes twice as long to end.
	calmRun = 16
	minCalm = 30 * time.Second
	maxCalm = 10 * time.Minute
)

// speaks notes a live batch. before is the number behind the last live one, 0 without any. clash: the
// number had another batch.
func (s *storm) speaks(seq, before uint64, clash bool, now time.Time) {
	if s.run++; before == 0 || seq == before {
		return
	}
	if i := slices.Index(s.left, seq); i >= 0 {
		s.left = slices.Delete(s.left, i, i+1)
		if clash || max(seq, before)-min(seq, before) > late {
			s.returns++
		}
	}
	if len(s.left) == maxLeft {
		s.left = slices.Delete(s.left, 0, 1)
	}
	s.left = append(s.left, before)
	s.run, s.since = 1, now
}

// stormy begins and ends storms with a live batch, and reports whether to drop it.
func (m *machine) stormy(it *item, before uint64, now time.Time) bool {
	s := &m.storm
	held := m.held.find(it.seq)
	clash := held != nil && !held.same(it)
	if m.consumed.has && it.seq < m.consumed.next {
		same, known := m.consumed.compare(it)
		clash = clash || known && !same
	}
	s.speaks(it.seq, before, clash || m.consumed.isForeign(it), now)
	switch {
	case !s.on && s.returns >= stormReturns && s.restarts >= stormRestarts:
		s.on = true
		s.calm = min(max(2*s.calm, minCalm), maxCalm)
		m.held.clear()
		m.newEpoch(ReasonStorm)
	case s.on && s.run >= calmRun && now.Sub(s.since) >= s.calm:
		s.on, s.returns = false, stormReturns-1
		m.rebuild(now, 0)
	}
	if s.on {
		m.n.dropped[events.Storm]++
	}
	return s.on
}
