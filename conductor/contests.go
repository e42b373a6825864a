package conductor

import (
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events"
	"example.com/conductor/index"
)

// A hash is contested while sources announce it with different tokens. Blocks that are known by the
// hash alone wait until the sources that hold blocks by it agree again (index/contest.go). Both
// sources get a finding.

// contradicts reports whether two meanings of a hash contradict each other. Engines with
// different look-aheads give one hash to different blocks.
func (d *deployment) contradicts() bool { return d.lookAheads.load().count() < 2 }

// noteContests reports the contests of a deployment since the last call. What the source stored
// last may be one.
func (s *source) noteContests(ns *namespace) {
	for _, n := range ns.deployment.index.TakeContests() {
		by, other := s.holdings.registry.holderOf(ns.deployment, n.Source), s.holdings.registry.holderOf(ns.deployment, n.Other)
		if by != nil {
			by.drop(events.ContestedHash, 1)
			by.reportContest(n.Engine, other)
		}
		if other != nil {
			other.reportContest(n.Engine, by)
		}
	}
}

// reportContest reports that another source, if it is not nil, announces a hash with other
// tokens.
func (s *source) reportContest(hash uint64, other *source) {
	who := "a source that is gone"
	if other != nil {
		who = other.reg.Key().String()
	}
	s.doctor.Findings.Report(doctor.FindingContest,
		"the hash %d comes with other tokens from %s: blocks of pools wait until one of the two has left theirs; one of them is broken "+
			"or hostile", hash, who)
}

// decideContests looks whether contests of hashes, nil for all, have ended with what the
// source has lost.
func (s *source) decideContests(ns *namespace, hashes []uint64) {
	if ns.deployment.index.ContestedHashes() > 0 {
		ns.deployment.index.DecideContests(hashes)
	}
}

// decideAll looks whether any contest has ended, as by blocks that expired.
func (s *source) decideAll() {
	for _, ns := range s.holdings.namespaces {
		s.decideContests(ns, nil)
	}
}

// holderOf returns the source of a namespace in a deployment, nil if it is gone.
func (c *registry) holderOf(d *deployment, src index.Source) *source {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return d.holders[src]
}
