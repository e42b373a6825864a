package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/events"
	"kvconductor/index"
)

// A hash is contested while sources announce it with different tokens in one context. Blocks
// that are known by the hash alone wait (index/contest.go) until the sources that hold blocks
// by it agree again:
//
//	engine  store(hash, tokens) -> Contests: news ----> findings of both, the pool is a waiter
//	engine  remove, clear, end --> Decide --> decided -> the pool's turn: move, see tokenless.go

// contradicts reports whether two meanings of a hash contradict each other. Engines with
// different look-aheads give one hash to different blocks.
func (x *indexContext) contradicts() bool { return x.lookAheads.ofNames().count() < 2 }

// noteContests notes the contests of a context since the last call. What the source stored
// last may be one.
func (s *placement) noteContests(x *indexContext) {
	news, decided := x.index.Contests()
	for _, n := range news {
		by, other := s.contexts.sourceOf(x, n.Source), s.contexts.sourceOf(x, n.Other)
		for _, id := range n.Waiting {
			if w := s.contexts.sourceOf(x, id); w != nil {
				s.contexts.addWaiter(w, x)
			}
		}
		if by != nil {
			by.drop(events.ContestedHash, 1)
			by.reportContest(n.Engine, other)
		}
		if other != nil {
			other.reportContest(n.Engine, by)
		}
	}
	if len(decided) > 0 {
		s.noteResolved(x, decided)
	}
}

// reportContest reports that another source, if it is not nil, announces a hash with other
// tokens.
func (s *source) reportContest(hash uint64, other *source) {
	who := "a source that is gone"
	if other != nil {
		who = other.reg.Key().String()
	}
	s.doctor.Report(doctor.FindingContest, "the hash %d comes with other tokens from %s: blocks of pools wait until one of the two has left theirs; one of them is broken or hostile", hash, who)
}

// decideContests looks whether contests of hashes, nil for all, have ended with what the
// source has lost.
func (s *source) decideContests(x *indexContext, hashes []uint64) {
	if x.index.Contested() > 0 {
		x.index.Decide(hashes)
	}
	s.noteContests(x)
}

// decideAll looks whether any contest has ended, as by blocks that expired.
func (s *source) decideAll() {
	for _, ns := range s.namespaces {
		s.decideContests(ns.context, nil)
	}
}

// sourceOf returns the source of a namespace in a context, nil if it is gone.
func (c *registry) sourceOf(x *indexContext, src index.Source) *source {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return x.sources[src]
}
