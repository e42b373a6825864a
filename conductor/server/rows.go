package server

import (
	"slices"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
	"example.com/conductor/events/stream"
)

// Rows writes the rows of answers in the shape of a dialect. Most rows of most answers
// are zeros, which it copies out of bytes written once for each roster of instances. It
// copies rows with equal numbers from one another.
type Rows struct {
	write func(*body.Encoder, *match.Row, *match.Answer)
	html  bool // as of body.Encoder
	// distinct rows are not copied from one another, and have states.
	distinct bool
	keys     [2][2]byte // whose addresses a roster keeps zeros under, by codec, without and with expected blocks
}

// NewRows returns the Rows of a dialect. write writes the value of a row. It must write
// the same for rows whose numbers are the same.
func NewRows(html bool, write func(*body.Encoder, *match.Row, *match.Answer)) *Rows {
	return &Rows{write: write, html: html}
}

// NewDistinctRows is NewRows for rows that also say where an instance is and its state, so that none is a copy of another.
func NewDistinctRows(html bool, write func(*body.Encoder, *match.Row, *match.Answer)) *Rows {
	return &Rows{write: write, html: html, distinct: true}
}

// zeros are the rows of the instances of a roster that hold nothing, in one codec.
type zeros struct {
	text []byte // rows with their keys, in JSON a comma before each
	rows []zeroRow
}

type zeroRow struct{ from, key, to int } // in text: the key ends at key

// zerosOf returns the zeros of the roster of an answer, nil if the answer has no roster. It makes them for the first answer.
func (r *Rows) zerosOf(ans *match.Answer, codec body.Codec) *zeros {
	if ans.Roster == nil {
		return nil
	}
	key, expected := &r.keys[codec][0], ans.Expected
	if expected {
		key = &r.keys[codec][1]
	}
	return ans.Keep(key, func(rows []match.Row) any {
		like := match.Answer{Expected: expected, Roster: ans.Roster}
		e := body.Encoder{Codec: codec, HTML: r.html, Out: []byte{'}'}} // so that a comma is in front of each row
		z := &zeros{rows: make([]zeroRow, len(rows))}
		for i := range rows {
			at := &z.rows[i]
			at.from = len(e.Out)
			e.Key(rows[i].Instance)
			at.key = len(e.Out)
			row := rows[i]
			if r.distinct {
				row.State = stream.Synced
			}
			r.write(&e, &row, &like)
			at.to = len(e.Out)
		}
		z.text = e.Out
		return z
	}).(*zeros)
}

// Write writes rows of ans as a map by instance.
func (r *Rows) Write(e *body.Encoder, ans *match.Answer, rows []match.Row) {
	e.Map(len(rows))
	z := r.zerosOf(ans, e.Codec)
	plain := z != nil && !ans.Truncated && len(ans.Pools) == 0
	var last *match.Row // the one that is written at from:
	from, to := 0, 0
	for i := 0; i < len(rows); i++ {
		if plain {
			if first, n := ZeroRun(rows[i:]); n > 0 {
				e.Pairs(z.text[z.rows[first].from:z.rows[first+n-1].to])
				i += n - 1
				continue
			}
		}
		row := &rows[i]
		if at, listed := row.At(); listed && z != nil {
			e.Pairs(z.text[z.rows[at].from:z.rows[at].key])
		} else {
			e.Key(row.Instance)
		}
		start := len(e.Out)
		if last != nil && !r.distinct && equalNumbers(last, row) {
			e.Out = append(e.Out, e.Out[from:to]...)
		} else {
			r.write(e, row, ans)
		}
		last, from, to = row, start, len(e.Out)
	}
	e.EndMap()
}

// ZeroRun counts the leading rows that have no blocks, held or expected, and that are neighbours in the
// roster, and returns where the first of them stands there. Such rows equal those that were prepared for the roster: an instance
// has no rank but those registered unless it holds something.
func ZeroRun(rows []match.Row) (first, n int) {
	for n < len(rows) && rows[n].Longest == 0 && rows[n].Expected == 0 && rows[n].Detail == nil &&
		(rows[n].State == "" || rows[n].State == stream.Synced) {
		at, listed := rows[n].At()
		if n == 0 {
			first = at
		}
		if !listed || at != first+n {
			break
		}
		n++
	}
	return first, n
}

// equalNumbers reports whether two rows differ in nothing but their instances. Comparing them costs less than writing one.
func equalNumbers(a, b *match.Row) bool {
	return a.Longest == b.Longest && a.Expected == b.Expected && a.Approximate == b.Approximate && a.UpperBound == b.UpperBound &&
		a.Window == b.Window && a.Detail == nil && b.Detail == nil &&
		slices.Equal(a.Ranks, b.Ranks) && slices.Equal(a.Media, b.Media)
}
