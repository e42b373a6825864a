package http

import (
	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

// Answers are written without reflection. Most rows of most are zeros, which are copied
// out of bytes that are written once for each roster of instances; rows with equal numbers are
// copied from one another.

// zeros are the rows of the instances of a roster that hold nothing, in one codec.
type zeros struct {
	text []byte // rows with their keys, in JSON a comma before each
	rows []zeroRow
}

type zeroRow struct{ from, key, to int } // in text: the key ends at key

// zerosKey is what the zeros of a roster are kept under.
type zerosKey body.Codec

func zerosOf(r *conductor.Roster, codec body.Codec) *zeros {
	switch {
	case r == nil:
		return nil
	case codec == body.JSON:
		return r.Keep(zerosKey(codec), func(rows []conductor.Row) any { return newZeros(rows, body.JSON) }).(*zeros)
	}
	return r.Keep(zerosKey(codec), func(rows []conductor.Row) any { return newZeros(rows, body.Msgpack) }).(*zeros)
}

func newZeros(rows []conductor.Row, codec body.Codec) *zeros {
	e := body.Encoder{Codec: codec, HTML: true, Out: []byte{'}'}} // so that a comma is in front of each row
	z := &zeros{rows: make([]zeroRow, len(rows))}
	for i := range rows {
		at := &z.rows[i]
		at.from = len(e.Out)
		e.Key(rows[i].Instance)
		at.key = len(e.Out)
		writeRow(&e, &rows[i], &conductor.Answer{})
		at.to = len(e.Out)
	}
	z.text = e.Out
	return z
}

// writeAnswer writes {tenant: {instance: row}}, rows sorted by instance, or {} when there
// is no row, and warnings. All counts are tokens. A tenant has precedence over warnings.
func writeAnswer(e *body.Encoder, ans *conductor.Answer, warnings []string) {
	pairs := min(len(ans.Rows), 1)
	if pairs > 0 && ans.Tenant == "warnings" {
		warnings = nil
	}
	e.Map(pairs + min(len(warnings), 1))
	if pairs > 0 {
		e.Key(ans.Tenant)
		e.Map(len(ans.Rows))
		writeRows(e, ans)
		e.EndMap()
	}
	writeWarnings(e, warnings)
	e.EndMap()
}

func writeRows(e *body.Encoder, ans *conductor.Answer) {
	z, plain := zerosOf(ans.Roster, e.Codec), !ans.Truncated && len(ans.Pools) == 0
	var last *conductor.Row // the one that is written at from:
	from, to := 0, 0
	for i := 0; i < len(ans.Rows); i++ {
		row := &ans.Rows[i]
		at, listed := row.At()
		listed = listed && z != nil
		if listed && plain && isZero(row) {
			first := at
			for i+1 < len(ans.Rows) && isZero(&ans.Rows[i+1]) {
				next, _ := ans.Rows[i+1].At()
				if next != at+1 {
					break
				}
				at, i = next, i+1
			}
			e.Pairs(z.text[z.rows[first].from:z.rows[at].to])
			continue
		}
		if listed {
			e.Pairs(z.text[z.rows[at].from:z.rows[at].key])
		} else {
			e.Key(row.Instance)
		}
		start := len(e.Out)
		if last != nil && equal(last, row) {
			e.Out = append(e.Out, e.Out[from:to]...)
		} else {
			writeRow(e, row, ans)
		}
		last, from, to = row, start, len(e.Out)
	}
}

// isZero reports whether a row equals the prepared one. An instance has no rank but
// those registered unless it holds something.
func isZero(row *conductor.Row) bool { return row.Longest == 0 && row.Detail == nil }

// equal reports whether two rows share their numbers; it does not compare them.
func equal(a, b *conductor.Row) bool {
	return a.Longest == b.Longest && a.Detail == nil && b.Detail == nil &&
		len(a.Ranks) > 0 && len(a.Ranks) == len(b.Ranks) && &a.Ranks[0] == &b.Ranks[0] &&
		len(a.Media) == len(b.Media) && &a.Media[0] == &b.Media[0]
}

// writeRow writes what stands behind the key of a row.
func writeRow(e *body.Encoder, row *conductor.Row, ans *conductor.Answer) {
	size, pairs := ans.BlockSize, 3+len(row.Media)
	for _, optional := range [...]bool{ans.Truncated, row.Window > 0, row.Detail != nil, len(ans.Pools) > 0} {
		if optional {
			pairs++
		}
	}
	e.Map(pairs)
	e.IntField("longest_matched", row.Longest*size)
	for _, m := range row.Media {
		e.Key(mediumKey(m.Name))
		e.Int(m.Blocks * size)
	}
	e.Name("DP")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.IntKey(int(r.Rank))
		e.Int(r.Blocks * size)
	}
	e.EndMap()
	e.Name("rank_matches")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.IntKey(int(r.Rank))
		e.Map(3)
		e.IntField("gpu", r.Device*size)
		e.IntField("cpu", r.Host*size)
		e.IntField("disk", r.Disk*size)
		e.EndMap()
	}
	e.EndMap()
	if ans.Truncated {
		e.Name("truncated")
		e.True()
	}
	if row.Window > 0 {
		e.IntField("window", row.Window)
	}
	if row.Detail != nil {
		e.Name("detail")
		e.Map(len(row.Detail))
		for i := range row.Detail {
			e.IntKey(row.Detail[i].Rank)
			writeDetail(e, &row.Detail[i])
		}
		e.EndMap()
	}
	if len(ans.Pools) > 0 {
		e.Name("pools")
		e.Map(len(ans.Pools))
		for i := range ans.Pools {
			e.Key(ans.Pools[i].Key.String())
			writeDetail(e, &ans.Pools[i])
		}
		e.EndMap()
	}
	e.EndMap()
}

// mediumKey is the key of a medium. A medium may have any name, but not that of
// the object next to it.
func mediumKey(name string) string {
	if name == "DP" {
		return "MEDIUM_DP"
	}
	return name
}

func writeDetail(e *body.Encoder, d *conductor.SourceDetail) {
	e.Map(5)
	e.TextField("state", string(d.State))
	e.TextField("reason", d.Reason)
	e.Name("epoch")
	e.Uint(d.Epoch)
	e.Name("watermark")
	if d.HasMark {
		e.Uint(d.Watermark)
	} else {
		e.Null()
	}
	e.Name("age_ms")
	if d.Age >= 0 {
		e.Int(int(d.Age.Milliseconds()))
	} else {
		e.Null()
	}
	e.EndMap()
}
