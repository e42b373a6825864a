package ingest

import (
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
)

// observeRanks looks at the ranks that a batch names. Those of a pool mean nothing. turn is held.
func observeRanks(s *Source, b *events.Batch) {
	if s.Registration.IsPool() {
		return
	}
	ranks, news := s.Member.Ranks, false
	unnamed := len(b.Events) == 0 && b.Rank >= 0 // whether the rank of the batch counts for any of it
	for i := range b.Events {
		if own := b.Events[i].Rank; own == nil {
			unnamed = true
		} else if ranks.Add(*own) {
			news = true
		}
	}
	if unnamed {
		rank := s.Registration.Rank
		if b.Rank >= 0 {
			rank = b.Rank
		}
		news = ranks.Add(rank) || news
	}
	if news {
		ranks.Add(s.holdings.ranks()...) // of blocks that came from a snapshot
		ranks.Judge(s.claimantOf)
		s.applier.effects.NamedRank = true
	}
}

// ranks returns the ranks that the source has blocks of, or had in this epoch, ascending. turn is held.
func (s *holdings) ranks() (all []int) {
	for _, ns := range s.namespaces {
		for key := range ns.owners {
			all = append(all, int(key.Rank))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// claimantOf returns the source that is registered for a rank of the same engine.
func (s *Source) claimantOf(rank int) doctor.Claim {
	key := s.Registration.Key()
	key.Rank = rank
	m := s.shared.catalog.Member(key)
	if m == nil || m.Registration.IsPool() || m.Status().Reason == reasonNotRegistered {
		return doctor.Claim{}
	}
	return doctor.Claim{Key: key.String(), Elsewhere: m.Ranks.NamesOnlyOthers(rank)}
}

// judgeRanksNear judges the ranks of a source that was registered or unregistered, or has named another rank, and those of the
// sources that share its publisher or its instance. Sources.mu is held.
func judgeRanksNear(c *Sources, changed *Source) {
	first := make(map[string]registration.Key) // follower of the publisher, by tenant: findings may not tell of other tenants
	for _, s := range c.following[changed.Registration.Publisher()] {
		key := s.Registration.Key()
		if twin, known := first[key.Tenant]; known {
			s.Member.Ranks.SetTwin(twin.String(), s.Registration.Endpoint)
		} else {
			first[key.Tenant] = key
			s.Member.Ranks.SetTwin("", "")
		}
		s.Member.Ranks.Judge(s.claimantOf)
		s.logFindings()
	}
	for _, s := range c.instances[changed.Registration.InstanceKey()] {
		s.Member.Ranks.Judge(s.claimantOf)
		s.logFindings()
	}
}

// warnOfOtherTenants logs that a source of another tenant follows the same publisher. Sources.mu is held.
func warnOfOtherTenants(c *Sources, s *Source) {
	for _, other := range c.following[s.Registration.Publisher()] {
		if other.Registration.Tenant != s.Registration.Tenant {
			c.log.Warn().Str("source", s.Registration.Key().String()).Str("other", other.Registration.Key().String()).
				Msg("two tenants follow the same publisher")
			return
		}
	}
}
