package conductor

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// What instances are expected to have is apart from the index, in an expect.Space of the deployment. A query
// looks its prompt up there only if it asks for that, or if blocks of engines without events count as held:
//
//	prompt --index.Match--> what owners hold ----+--fold--> rows
//	       --Space.Match--> expected blocks -----+--fold--> Expected of the same rows
//
// The second fold treats expected blocks as if they were on the device.

// expectedNames is XORed into engine hashes, so that a space takes none of them for a canonical key.
const expectedNames = 0x6e616d65732d6f66

// findExpected finds which blocks of a prompt are expected where. mix is XORed into its keys.
func (sc *scratch) findExpected(d *deployment, prompt expect.Prompt, mix uint64, q *Query) {
	if q.SearchUnscoped || !q.Expected && !d.expected.Counts() || d.expected.Empty() {
		return
	}
	sc.found = d.expected.Match(sc.found[:0], prompt, mix, sc.match.Blocks)
	for _, f := range sc.found {
		b := tiers.Soon{Instance: f.Instance, Rank: f.Rank, From: f.From, To: f.To}
		if f.Counts {
			sc.counted = addSoon(sc.counted, b)
		}
		if q.Expected {
			sc.soon = addSoon(sc.soon, b)
		}
	}
	clear(sc.found)
}

// addSoon adds to a list that ascends by From.
func addSoon(all []tiers.Soon, b tiers.Soon) []tiers.Soon {
	at := len(all)
	for at > 0 && all[at-1].From > b.From {
		at--
	}
	return slices.Insert(all, at, b)
}

// buildExpectedRows is buildRows for a query with Expected.
func (sc *scratch) buildExpectedRows(q *Query, owners []tiers.Owner, r *Roster, only int) (best int) {
	hits := sc.expected.Hits(sc.match.Prefixes, sc.match.Later, owners, sc.soon, r.fold)
	rows := append(sc.rows[:0], r.zeros...)
	if sc.folder.Others() > 0 {
		for i := range rows {
			rows[i].Row = sc.folder.Other(i)
		}
	}
	for i := range sc.hits {
		rows[sc.hits[i].At].Row = sc.hits[i].Row
	}
	sc.ranks = sc.ranks[:0]
	if others := sc.expected.Others(); others > 0 {
		for i := range rows {
			other := sc.expected.Other(i)
			sc.expectIn(&rows[i], &other)
		}
	}
	for i := range hits {
		sc.expectIn(&rows[hits[i].At], &hits[i].Row)
	}
	if only >= 0 {
		rows[0] = rows[only]
		rows = rows[:1]
	}
	for i := range rows {
		best = max(best, rows[i].Longest)
	}
	least := q.minBlocks()
	rows = slices.DeleteFunc(rows, func(row Row) bool {
		return row.Expected < least || row.Expected == 0 && only < 0 && !r.rows[row.at].serves(q.Lora) && !q.ByClientHash
	})
	if q.Top > 0 && len(rows) > q.Top {
		slices.SortStableFunc(rows, func(a, b Row) int { return b.Expected - a.Expected })
		rows = rows[:q.Top]
		slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.at, b.at) })
	}
	sc.rows = rows
	return best
}

// expectIn sets Expected in a row. with is the same row if expected blocks count as on the device.
func (sc *scratch) expectIn(row *Row, with *tiers.Row) {
	row.Expected = with.Longest
	from := len(sc.ranks)
	sc.ranks = append(sc.ranks, row.Ranks...)
	row.Ranks = sc.ranks[from:len(sc.ranks):len(sc.ranks)]
	for i, j := 0, 0; i < len(row.Ranks); i++ {
		for j < len(with.Ranks)-1 && with.Ranks[j].Rank < row.Ranks[i].Rank {
			j++
		}
		row.Ranks[i].Expected = with.Ranks[j].External
	}
}

// confirmExpected ends what was expected of the source and has been announced. res is what the index did with
// the blocks.
func (s *source) confirmExpected(ns *namespace, c *normalize.Change, res *index.StoreResult) {
	space := ns.deployment.expected
	if !space.Awaits(ns.instance, c.Owner.Rank) {
		return
	}
	id := ns.names.Table.Base()
	if res.Placed {
		id = ns.names.Table.Of(res.Identity)
	} else if c.Context.Variant != (scope.Variant{}) {
		id = ns.names.Table.Find(c.Context.Variant)
	}
	if id == nil {
		return // it has just left
	}
	keys := s.expectedKeys[:0]
	if c.Local == nil { // a hash without tokens may be a key
		keys = append(keys, c.Cut.Hashes...)
	} else if res.Chained {
		key := res.Before
		for i, local := range c.Local {
			if i == 0 && key == 0 {
				key = local // the first block of a prompt
			} else {
				key = ns.deployment.scheme.Next(key, local)
			}
			keys = append(keys, key)
		}
	}
	for i := range keys {
		keys[i] ^= id.Constant
	}
	if space.Named() {
		for _, h := range c.Cut.Hashes {
			keys = append(keys, h^id.Constant^expectedNames)
		}
	}
	if space.Announced(ns.instance, c.Owner.Rank, keys) {
		s.relieveExpected()
	}
	if s.expectedKeys = keys; cap(keys) > keptHashes {
		s.expectedKeys = nil
	}
}

// clearExpected drops what was expected of a rank that was cleared.
func (s *source) clearExpected(e *events.Event, rank int32) {
	if s.home != nil && s.home.key.Within(e) {
		s.home.expected.Drop(s.instance, rank)
	}
	for _, ns := range s.holdings.namespaces {
		if ns.deployment != s.home && ns.deployment.key.Within(e) {
			ns.deployment.expected.Drop(ns.instance, rank)
		}
	}
}

// dropExpected drops what was expected of the source, which starts over.
func (s *source) dropExpected() {
	if s.home != nil {
		s.home.expected.Drop(s.instance, int32(s.reg.Rank))
	}
	for _, ns := range s.holdings.namespaces {
		for key := range ns.owners {
			ns.deployment.expected.Drop(ns.instance, key.Rank)
		}
	}
}

// forgetExpected drops the counts of an instance without a source.
func (s *source) forgetExpected() {
	if s.home == nil {
		return
	}
	s.holdings.registry.mu.RLock()
	left := len(s.home.instances[s.reg.Instance].sources)
	s.holdings.registry.mu.RUnlock()
	if left == 0 {
		s.home.expected.Forget(s.instance)
	}
}
