package ingest

import (
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
)

// confirmExpected ends the expectations of blocks that c has announced. res is what the index did with
// the blocks.
func (a *applier) confirmExpected(ns *namespace, c *normalize.Change, res *index.StoreResult) {
	a.member.Stores.Add(1)
	space := ns.Deployment.Expected
	if !space.Awaits(ns.InstanceID, c.Owner.Rank) {
		return
	}
	id := ns.Names.Table.Base()
	if res.Placed {
		id = ns.Names.Table.Of(res.Identity)
	} else if c.Context.Variant != (scope.Variant{}) {
		id = ns.Names.Table.Find(c.Context.Variant)
	}
	if id == nil {
		return // it has just left
	}
	keys := a.expectedKeys[:0]
	if c.Local == nil { // a hash without tokens may be a key
		keys = append(keys, c.Cut.Hashes...)
	} else if res.Chained {
		key := res.Before
		for i, local := range c.Local {
			if i == 0 && key == 0 {
				key = local // the first block of a prompt
			} else {
				key = ns.Deployment.Scheme.Next(key, local)
			}
			keys = append(keys, key)
		}
	}
	for i := range keys {
		keys[i] ^= id.Constant
	}
	if space.Named() {
		for _, h := range c.Cut.Hashes {
			keys = append(keys, h^id.Constant^expect.NamesMix)
		}
	}
	if space.Announced(ns.InstanceID, c.Owner.Rank, keys, ns.EngineBlock) {
		a.effects.Relieved = true
	}
	if a.expectedKeys = keys; cap(keys) > keptHashes {
		a.expectedKeys = nil
	}
}

// clearExpected drops what was expected of a rank that was cleared.
func (a *applier) clearExpected(e *events.Event, rank int32) {
	if a.member.Home != nil && a.member.Home.Key.Within(e) {
		a.member.Home.Expected.Drop(a.member.InstanceID, rank)
	}
	for _, ns := range a.holdings.namespaces {
		if ns.Deployment != a.member.Home && ns.Deployment.Key.Within(e) {
			ns.Deployment.Expected.Drop(ns.InstanceID, rank)
		}
	}
}

// dropExpected drops what was expected of the source, which starts over.
func (s *Source) dropExpected() {
	if s.Member.Home != nil {
		s.Member.Home.Expected.Drop(s.Member.InstanceID, int32(s.Registration.Rank))
		for _, rank := range s.Member.Ranks.Named() {
			s.Member.Home.Expected.Drop(s.Member.InstanceID, int32(rank))
		}
	}
	for _, ns := range s.holdings.namespaces {
		for key := range ns.owners {
			ns.Deployment.Expected.Drop(ns.InstanceID, key.Rank)
		}
	}
}

// forgetExpected drops the counts of an instance without a source.
func (s *Source) forgetExpected() {
	if s.Member.Home == nil {
		return
	}
	if s.shared.catalog.CountEngines(s.Member) == 0 {
		s.Member.Home.Expected.Forget(s.Member.InstanceID)
	}
}
