package match

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/events/stream"
	"example.com/conductor/tiers"
)

// Answer holds one row per instance, sorted by name.
type Answer struct {
	Tenant    string
	BlockSize int // tokens; rows count blocks
	Rows      []Row
	// Roster is what the positions of rows are in; nil where none has one.
	Roster *catalog.Roster
	// Truncated says that rows may be longer than shown: the next block was
	// refused for want of memory (index.max_bytes).
	Truncated bool
	// Pools are the pools of the deployment, with Query.Detail. Blocks of one count for the rows that
	// SourceDetail.Serves allows.
	Pools []SourceDetail
	// Expected says that rows tell how much is expected: Query.Expected.
	Expected bool
	// ID names the answer in reports, with Query.Keep; 0 if it is not kept.
	ID uint64
}

// Row is what one instance can serve of the prompt, in blocks. Rows may share Media and
// Ranks, which are not to be changed.
type Row struct {
	Instance string
	tiers.Row
	Detail []SourceDetail
	// Window is the largest sliding window that a group of the instance announced, in
	// tokens, with Query.Detail; 0 without one. See rule ANSWER-7 in docs/semantics.md.
	Window int
	// Expected is the prefix that the instance has or is expected to have soon, with Query.Expected: at
	// least Longest.
	Expected int
	// Approximate says that a source of the instance publishes no events, so that only the reports of
	// routers tell what it holds.
	Approximate bool
	// UpperBound says that events do not tell what some attention group of a rank needs, so that the engine may take less than
	// the blocks of it that the row counts. See rule EVENT-1.
	UpperBound bool
	// State is that of the source of the instance that is furthest from synced, with Query.States.
	State stream.State
	at    int32 // position in the roster, -1 for an instance that is not registered
}

// At returns the position of the row's instance in the answer's roster; not ok if the
// instance is not registered.
func (r *Row) At() (at int, ok bool) { return int(r.at), r.at >= 0 }

// AddressOf returns where the instance of a row takes requests, "" if that is not known.
func (a *Answer) AddressOf(row *Row) string {
	if row.at < 0 {
		return ""
	}
	return a.Roster.Instances[row.at].Address
}

// zeroRows is the key of what zerosOf keeps.
type zeroRows struct{}

// zerosOf returns the rows of instances that hold nothing, for each instance of a roster. They are not to be changed.
func zerosOf(r *catalog.Roster) []Row {
	return r.Keep(zeroRows{}, func() any {
		zeros := make([]Row, len(r.Instances))
		for i, zero := range r.Fold.ZeroRows() {
			zeros[i] = Row{Instance: r.Instances[i].Name, Row: zero, Approximate: r.Instances[i].Approximate, at: int32(i)}
		}
		return zeros
	}).([]Row)
}

// Keep returns what make has made of the rows of instances that hold nothing, and calls it once for each key and each
// set of instances. Neither is changed afterwards. Roster must not be nil.
func (a *Answer) Keep(key any, make func(zeros []Row) any) any {
	return a.Roster.Keep(key, func() any { return make(zerosOf(a.Roster)) })
}

// clone returns a copy that shares nothing with a scratch.
func (a *Answer) clone() Answer {
	c := *a
	c.Rows = slices.Clone(a.Rows)
	for i := range c.Rows {
		c.Rows[i].Media, c.Rows[i].Ranks = slices.Clone(c.Rows[i].Media), slices.Clone(c.Rows[i].Ranks)
	}
	return c
}

// release takes back what an answer has borrowed, and lets go of what the query lent and
// of the memory that only a giant one needs. With the race detector, code that kept
// a part of it finds numbers that cannot be.
func (sc *scratch) release() {
	if poison {
		for i := range sc.rows {
			sc.rows[i] = Row{Instance: "BUG: used after its release", Row: tiers.Row{Longest: -1}, at: -1}
		}
		for i := range sc.hits {
			h := &sc.hits[i].Row
			for j := range h.Media {
				h.Media[j].Blocks = -1
			}
			for j := range h.Ranks {
				h.Ranks[j] = tiers.Rank{Rank: -1, Blocks: -1, Device: -1, Host: -1, Disk: -1, External: -1}
			}
		}
	}
	sc.ans, sc.hits = Answer{}, nil
	// The prompt is the caller's, and what was made of a giant's is not kept.
	sc.hashes = nil
	sc.clientChain = clientChain{local: boundedBuffer(sc.clientChain.local), seq: boundedBuffer(sc.clientChain.seq)}
	scratches.Put(sc)
}

// keepHashes is the longest list of hashes worth keeping: a million tokens in blocks of 16.
const keepHashes = 1 << 16

func boundedBuffer(hashes []uint64) []uint64 {
	if cap(hashes) > keepHashes {
		return nil
	}
	return hashes[:0]
}

// buildRows makes the rows of an answer from what was folded, and returns the longest of
// them, those that the query leaves out included.
func (sc *scratch) buildRows(q *Query, r *catalog.Roster, only int) (best int) {
	zeros := zerosOf(r)
	rows, n := sc.rows[:0], len(zeros)
	others := sc.folder.PrefixOfOthers()
	if only >= 0 {
		row := zeros[only]
		row.Row = sc.folder.RowOfOther(only)
		for i := range sc.hits {
			if sc.hits[i].At == int32(only) {
				row.Row = sc.hits[i].Row
			}
		}
		if best = row.Longest; best >= q.minBlocks() {
			rows = append(rows, row)
		}
		sc.rows = rows
		return best
	}
	if len(sc.hits) < n {
		best = others
	}
	least, top, better := q.minBlocks(), q.Top, 0
	if top <= 0 {
		top = n
	}
	for i := range sc.hits {
		h := &sc.hits[i]
		best = max(best, h.Longest)
		if h.Longest > others && h.Longest >= least {
			better++
		}
	}
	if better >= top || others < least {
		sc.rows = sc.topRows(rows, zeros, max(least, others+1), top)
		return best
	}
	rows = append(rows, zeros...)
	if others > 0 {
		for i := range rows {
			rows[i].Row = sc.folder.RowOfOther(i)
		}
	}
	for i := range sc.hits {
		rows[sc.hits[i].At].Row = sc.hits[i].Row
	}
	if equal := top - better; equal < n-better {
		// Of those that are not better than the others, the first by name.
		rows = slices.DeleteFunc(rows, func(row Row) bool {
			if row.Longest > others {
				return false
			}
			equal--
			return equal < 0
		})
	}
	sc.rows = rows
	return best
}

// topRows appends the rows of the top hits with the longest prefixes, in the order of the roster.
// It leaves out hits with fewer than least blocks.
func (sc *scratch) topRows(rows, zeros []Row, least, top int) []Row {
	hits := sc.hits
	if len(hits) > top {
		slices.SortFunc(hits, func(a, b tiers.Hit) int { return cmp.Or(b.Longest-a.Longest, int(a.At-b.At)) })
		hits = hits[:top]
	}
	slices.SortFunc(hits, func(a, b tiers.Hit) int { return int(a.At - b.At) })
	for i := range hits {
		if hits[i].Longest >= least {
			row := zeros[hits[i].At]
			row.Row = hits[i].Row
			rows = append(rows, row)
		}
	}
	return rows
}

// minBlocks returns how many blocks a row has at least to be in the answer.
func (q *Query) minBlocks() int {
	if q.MinMatched <= 0 || q.BlockSize <= 0 {
		return 0
	}
	return (q.MinMatched-1)/q.BlockSize + 1
}
