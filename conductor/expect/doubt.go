package expect

import (
	"slices"
	"time"

	"example.com/conductor/conductor/steady"
)

// Doubt counts consecutive reports for a target that expired before the engine had announced any of their blocks.
type Doubt struct {
	Instance, Rank int32
	Reports        int
	Since, Last    time.Time // when the first of them was made, and when the last one ended
	Context        uint64    // Report.Context of the newest report
	Late           int       // blocks of them that were announced after their time
	// Elsewhere is how many of their blocks another rank of the instance has announced, ByRank the last one
	// that did.
	Elsewhere int
	ByRank    int32
}

const (
	// EnoughDoubt is how many reports in a row make a doubt.
	EnoughDoubt = 20
	// suspect is how many make it worth finding out who announces their blocks instead.
	suspect = 4
)

// Doubts returns the doubts of the space, in no order. It ends those whose last report ended before since, because what
// was wrong then may be mended by now.
func (s *Space) Doubts(since time.Time) (all []Doubt) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, t := range *s.targets.Load() {
		switch d := t.doubt; {
		case d.Reports > 0 && d.Last.Before(since):
			t.endDoubt()
		case d.Reports >= EnoughDoubt:
			d.Instance, d.Rank = t.Instance, t.Rank
			all = append(all, d)
		}
	}
	return all
}

// doubtMore notes that the time of a report is over and none of its blocks was announced.
func (t *Target) doubtMore(e *expectation) {
	d := &t.doubt
	if d.Reports == 0 {
		d.Since = steady.Time(e.at, t.space.table.now())
	}
	d.Last = steady.Time(e.ends, t.space.table.now())
	if d.Reports++; d.Reports != suspect || t.Rank == AnyRank {
		return
	}
	whole := t.space.findTarget(t.Instance, AnyRank)
	if whole == nil {
		whole = &Target{Instance: t.Instance, Rank: AnyRank, space: t.space}
		t.space.setTarget(rankID{t.Instance, AnyRank}, whole)
	}
	whole.doubted = append(whole.doubted, t)
	whole.noteAwaits()
}

// endDoubt ends the doubt of a target, and reports whether there was one.
func (t *Target) endDoubt() (doubted bool) {
	doubted = t.doubt.Reports >= EnoughDoubt
	if whole := t.space.findTarget(t.Instance, AnyRank); whole != nil && t.doubt.Reports >= suspect && t.Rank != AnyRank {
		whole.doubted = slices.DeleteFunc(whole.doubted, func(x *Target) bool { return x == t })
		whole.noteAwaits()
	}
	t.doubt = Doubt{Context: t.doubt.Context}
	return doubted
}

// noteElsewhere notes that a rank has announced blocks that are expected of others of its instance, which are in doubt.
func (t *Target) noteElsewhere(rank int32, keys []uint64) {
	for _, x := range t.doubted {
		if x.Rank == rank {
			continue
		}
		for _, key := range keys {
			if x.findNode(key) != nil || slices.ContainsFunc(x.late, func(l late) bool { return l.key == key }) {
				x.doubt.Elsewhere++
				x.doubt.ByRank = rank
			}
		}
	}
}
