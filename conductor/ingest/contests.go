package ingest

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
)

// A hash is contested while sources announce it with different tokens. Blocks that are known by the
// hash alone wait until the sources that hold blocks by it agree again (index/contest.go). Both
// sources get a finding.

// contest is a hash that two sources announce with different tokens. A source that is gone is nil.
type contest struct {
	Hash      uint64
	By, Other *catalog.Member // By announced it last
}

// noteContests adds to the effects the contests of a deployment since the last call. What the source stored
// last may be one.
func (a *applier) noteContests(ns *namespace) {
	for _, n := range ns.Deployment.Index.TakeContests() {
		by, other := ns.Deployment.HolderOf(n.Source), ns.Deployment.HolderOf(n.Other)
		a.effects.Contests = append(a.effects.Contests, contest{Hash: n.Engine, By: by, Other: other})
	}
}

// reportContest reports that another source, if it is not nil, announces a hash with other
// tokens.
func reportContest(report func(code, format string, args ...any), hash uint64, other *catalog.Member) {
	who := "a source that is gone"
	if other != nil {
		who = other.Key().String()
	}
	report(doctor.FindingContest,
		"the hash %d comes with other tokens from %s: blocks of pools wait until one of the two has left theirs; one of them is broken "+
			"or hostile", hash, who)
}

// openContests looks whether contests have ended, as by blocks that expired or a source that has left. It returns those that go on, by
// the sources that hold a block of one.
func openContests(c *Sources) map[*catalog.Member]contest {
	all := make(map[*catalog.Member]contest)
	for _, d := range c.catalog.Deployments() {
		for src, n := range d.Index.Inspect().OpenContests() {
			if m := d.HolderOf(src); m != nil {
				all[m] = contest{Hash: n.Engine, By: m, Other: d.HolderOf(n.Other)}
			}
		}
	}
	return all
}

// observeContest brings the finding up to date.
func observeContest(s *Source, open map[*catalog.Member]contest) {
	if found, has := open[s.Member]; has {
		reportContest(s.Member.Findings.Update, found.Hash, found.Other)
	} else {
		s.Member.Findings.Withdraw(doctor.FindingContest)
	}
}
