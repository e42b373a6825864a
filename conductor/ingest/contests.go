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
func reportContest(m *catalog.Member, hash uint64, other *catalog.Member) {
	who := "a source that is gone"
	if other != nil {
		who = other.Key().String()
	}
	m.Findings.Report(doctor.FindingContest,
		"the hash %d comes with other tokens from %s: blocks of pools wait until one of the two has left theirs; one of them is broken "+
			"or hostile", hash, who)
}

// decideContests looks whether contests of hashes, nil for all, have ended with what the source has lost. It reports whether
// one that goes on is about a block that the source holds.
func (ns *namespace) decideContests(hashes []uint64) (concerned bool) {
	return ns.Deployment.Index.DecideContests(ns.Source, hashes)
}

// decideAll looks whether any contest has ended, as by blocks that expired or a source that has left. The finding goes once the
// source holds no block by a contested hash.
func (a *applier) decideAll() {
	concerned := false
	for _, ns := range a.holdings.namespaces {
		concerned = ns.decideContests(nil) || concerned
	}
	if !concerned {
		a.member.Findings.Withdraw(doctor.FindingContest)
	}
}
