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
	next     uint64   // the number behind the last batch, repeats left out; 0 without any
	left     []uint64 // the next numbers of sequences that were left on this connection, the last one last
	returns  int      // batches that went on with one of them
	restarts int      // on this connection

	active bool
	since  time.Time     // of the sequence that the live batches follow
	run    int           // batches of it
	calm   time.Duration // how long one sequence has to last before the storm is over
}

const (
	// stormReturns may come by chance: a publisher loses batches and happens to meet a number.
	stormReturns  = 3
	stormRestarts = 2
	// A batch that comes this much out of order may be a late one of the same publisher.
	lateWindow = 8
	// maxLeft is how many publishers may have spoken in between.
	maxLeft = 16
	// calmRun batches of one sequence, over minCalm at least, end a storm. If it comes back, the next
	// one takes twice as long to end.
	calmRun = 16
	minCalm = 30 * time.Second
	maxCalm = 10 * time.Minute
)

// noteSequence notes a live batch that is no repeat. clash: the number had another batch. A sequence
// that was left and is taken up again exactly where it was left is another publisher's that still
// lives; one that starts at its beginning is a restart, and does not count.
func (s *storm) noteSequence(seq uint64, clash bool, now time.Time) {
	before := s.next
	s.next = seq + 1
	if s.run++; before == 0 || seq == before {
		return
	}
	if i := slices.Index(s.left, seq); i >= 0 {
		s.left = slices.Delete(s.left, i, i+1)
		if clash || max(seq, before)-min(seq, before) > lateWindow {
			s.returns++
		}
	}
	if len(s.left) == maxLeft {
		s.left = slices.Delete(s.left, 0, 1)
	}
	s.left = append(s.left, before)
	s.run, s.since = 1, now
}

// detectStorm begins and ends storms with a live batch, and reports whether to drop it. It
// comes before everything else, because during a storm each batch would look like a restart:
// blocks would be dropped and replayed several times a second, and routers would see an empty
// source most of the time. A storm ends when one sequence has gone on alone for long enough,
// and its history is then asked for again.
//
// A batch that arrives once more says nothing about who speaks: without this exception a network that
// repeats old batches would look like a second publisher.
func (m *machine) detectStorm(it *queuedBatch, now time.Time) bool {
	s := &m.storm
	held := m.held.findBatch(it.seq)
	repeat := held != nil && held.isSameBatch(it)
	clash := held != nil && !repeat
	if m.consumed.started && it.seq < m.consumed.next {
		same, known := m.consumed.compareBatch(it)
		repeat = repeat || same
		clash = clash || known && !same
	}
	if !repeat {
		s.noteSequence(it.seq, clash || m.consumed.isForeign(it), now)
	}
	switch {
	case !s.active && s.returns >= stormReturns && s.restarts >= stormRestarts:
		s.active = true
		s.calm = min(max(2*s.calm, minCalm), maxCalm)
		m.held.dropAll()
		m.beginEpoch(ReasonStorm)
	case s.active && s.run >= calmRun && now.Sub(s.since) >= s.calm:
		s.active, s.returns = false, stormReturns-1
		m.requestHistory(now, 0)
	}
	if s.active {
		m.counts.dropped[events.Storm]++
	}
	return s.active
}
