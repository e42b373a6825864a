package match

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/tiers"
)

// What instances are expected to have is apart from the index, in an expect.Space of the deployment. A query
// looks its prompt up there only if it asks for that, or if blocks of engines without events count as held:
//
//	prompt --index.Match--> what owners hold ----+--fold--> rows
//	       --Space.Match--> expected blocks -----+--fold--> Expected of the same rows
//
// The second fold treats expected blocks as if they were on the device.

// findExpected finds which blocks of a prompt are expected where. mix is XORed into its keys.
func (sc *scratch) findExpected(d *catalog.Deployment, prompt expect.Prompt, mix uint64, q *Query) {
	if q.SearchUnscoped || !q.Expected && !d.Expected.Counts() || d.Expected.Empty() {
		return
	}
	sc.found = d.Expected.Match(sc.found[:0], prompt, mix, sc.match.Blocks)
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
func (sc *scratch) buildExpectedRows(q *Query, owners []tiers.Owner, r *catalog.Roster, only int) (best int) {
	hits := sc.expected.FoldHits(sc.match.Prefixes, sc.match.Later, owners, sc.soon, r.Fold)
	rows := append(sc.rows[:0], zerosOf(r)...)
	if sc.folder.PrefixOfOthers() > 0 {
		for i := range rows {
			rows[i].Row = sc.folder.RowOfOther(i)
		}
	}
	for i := range sc.hits {
		rows[sc.hits[i].At].Row = sc.hits[i].Row
	}
	sc.ranks = sc.ranks[:0]
	if others := sc.expected.PrefixOfOthers(); others > 0 {
		for i := range rows {
			other := sc.expected.RowOfOther(i)
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
		return row.Expected < least || row.Expected == 0 && only < 0 && !r.Instances[row.at].Serves(q.Lora) && !q.ByClientHash
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
