package match

import (
	"slices"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/lifetime"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
)

// SourceDetail tells how far a row can be trusted: what its source had applied
// before the index was read.
type SourceDetail struct {
	Key       registration.Key
	Rank      int
	State     stream.State
	Reason    string
	Epoch     uint64
	Watermark uint64 // valid when HasMark
	HasMark   bool
	Age       time.Duration // since the last batch, -1 when there was none
	// Lives are of the media that the source has announced blocks on.
	Lives []lifetime.Life
	// ServesOnly are the instances that the blocks of a pool count for; none is all of them.
	ServesOnly []string

	member *catalog.Member // until recheck
}

// Serves reports whether the blocks of a pool count for an instance.
func (d *SourceDetail) Serves(instance string) bool {
	return len(d.ServesOnly) == 0 || slices.Contains(d.ServesOnly, instance)
}

// details reads the freshness of the sources of every instance, or of the only one.
func (c *Matcher) details(r *catalog.Roster, only int) [][]SourceDetail {
	all := make([][]SourceDetail, len(r.Instances))
	for i := range r.Instances {
		if only < 0 || i == only {
			all[i] = c.detail(r.Instances[i].Members)
		}
	}
	return all
}

// detail reads the freshness of the sources of a row. It does so before the index is read: a batch that is applied in between is then
// not in the watermark, although its blocks may be in the answer.
func (c *Matcher) detail(members []*catalog.Member) []SourceDetail {
	now := c.now()
	all := make([]SourceDetail, len(members))
	for i, m := range members {
		st := m.Status()
		d := SourceDetail{Key: m.Key(), Rank: m.Registration.Rank, State: st.State, Reason: st.Reason, Epoch: st.Epoch,
			Watermark: st.LastSeq, HasMark: st.HasSeq, Age: -1, Lives: m.Lives.Lives(now), ServesOnly: m.Registration.Serves, member: m}
		if !st.LastBatchAt.IsZero() {
			d.Age = now.Sub(st.LastBatchAt)
		}
		all[i] = d
	}
	return all
}

// recheck looks at the sources again, behind the index. A source may have been unregistered or replaced in between, or have begun a
// new epoch, and its blocks may have gone before the index was read. What it has now is not in the answer either, so it counts as
// one that fetches its history. What was dropped for another reason shows in the state.
func recheck(details []SourceDetail) {
	for i := range details {
		d := &details[i]
		switch st := d.member.Status(); {
		case d.member.HasLeft() || st.Epoch != d.Epoch:
			d.State, d.Reason, d.Watermark, d.HasMark = stream.Replaying, "", 0, false
		case d.State.Ready() && !st.State.Ready():
			d.State, d.Reason = st.State, st.Reason
		}
		d.member = nil
	}
}
