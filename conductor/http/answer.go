package http

import (
	"strconv"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

// Answers are written without reflection. Most rows of most are zeros, which are copied
// out of what is written once for each roster of instances; rows with equal numbers are
// copied from one another.

// answer answers a query.
func (a *api) answer(q *conductor.Query) *buffer {
	b := newBuffer()
	a.conductor.Answer(q, func(ans *conductor.Answer) { b.text = appendAnswer(b.text, ans) })
	return b
}

// zeros is what is written for the instances of a roster that hold nothing.
type zeros struct {
	text []byte // rows with their keys, a comma behind each
	rows []zeroRow
}

type zeroRow struct{ from, key, to int } // in text: the key ends at key

// zerosKey is what the zeros of a roster are kept under.
type zerosKey struct{}

func zerosOf(r *conductor.Roster) *zeros {
	if r == nil {
		return nil
	}
	return r.Keep(zerosKey{}, writeZeros).(*zeros)
}

func writeZeros(rows []conductor.Row) any {
	z := &zeros{rows: make([]zeroRow, len(rows))}
	for i := range rows {
		at := &z.rows[i]
		at.from = len(z.text)
		z.text = appendString(z.text, rows[i].Instance)
		at.key = len(z.text)
		z.text = append(appendRow(z.text, &rows[i], &conductor.Answer{}), ',')
		at.to = len(z.text)
	}
	return z
}

// appendAnswer writes {tenant: {instance: row}}, rows sorted by instance, or {}
// when there is no row. All counts are tokens.
func appendAnswer(dst []byte, ans *conductor.Answer) []byte {
	if len(ans.Rows) == 0 {
		return append(dst, "{}"...)
	}
	dst = append(dst, '{')
	dst = appendString(dst, ans.Tenant)
	dst = append(dst, ':', '{')
	z, plain := zerosOf(ans.Roster), !ans.Truncated && len(ans.Pools) == 0
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
			dst = append(dst, z.text[z.rows[first].from:z.rows[at].to]...)
			continue
		}
		if listed {
			dst = append(dst, z.text[z.rows[at].from:z.rows[at].key]...)
		} else {
			dst = appendString(dst, row.Instance)
		}
		start := len(dst)
		if last != nil && equal(last, row) {
			dst = append(dst, dst[from:to]...)
		} else {
			dst = appendRow(dst, row, ans)
		}
		last, from, to = row, start, len(dst)
		dst = append(dst, ',')
	}
	dst[len(dst)-1] = '}'
	return append(dst, '}')
}

// isZero reports whether a row is what is prepared of it. An instance has no rank but
// those registered unless it holds something.
func isZero(row *conductor.Row) bool { return row.Longest == 0 && row.Detail == nil }

// equal reports whether two rows share their numbers; it does not compare them.
func equal(a, b *conductor.Row) bool {
	return a.Longest == b.Longest && a.Detail == nil && b.Detail == nil &&
		len(a.Ranks) > 0 && len(a.Ranks) == len(b.Ranks) && &a.Ranks[0] == &b.Ranks[0] &&
		len(a.Media) == len(b.Media) && &a.Media[0] == &b.Media[0]
}

// appendRow writes what stands behind the key of a row.
func appendRow(dst []byte, row *conductor.Row, ans *conductor.Answer) []byte {
	blockSize := ans.BlockSize
	dst = append(dst, `:{"longest_matched":`...)
	dst = appendTokens(dst, row.Longest, blockSize)
	for _, m := range row.Media {
		dst = append(dst, ',')
		dst = appendString(dst, mediumKey(m.Name))
		dst = append(dst, ':')
		dst = appendTokens(dst, m.Blocks, blockSize)
	}
	dst = append(dst, `,"DP":{`...)
	for i, r := range row.Ranks {
		dst = appendRank(dst, i, r.Rank)
		dst = appendTokens(dst, r.Blocks, blockSize)
	}
	dst = append(dst, `},"rank_matches":{`...)
	for i, r := range row.Ranks {
		dst = appendRank(dst, i, r.Rank)
		dst = append(dst, `{"gpu":`...)
		dst = appendTokens(dst, r.Device, blockSize)
		dst = append(dst, `,"cpu":`...)
		dst = appendTokens(dst, r.Host, blockSize)
		dst = append(dst, `,"disk":`...)
		dst = appendTokens(dst, r.Disk, blockSize)
		dst = append(dst, '}')
	}
	dst = append(dst, '}')
	if ans.Truncated {
		dst = append(dst, `,"truncated":true`...)
	}
	if row.Window > 0 {
		dst = append(dst, `,"window":`...)
		dst = strconv.AppendInt(dst, int64(row.Window), 10)
	}
	if row.Detail != nil {
		dst = append(dst, `,"detail":{`...)
		for i := range row.Detail {
			dst = appendRank(dst, i, int32(row.Detail[i].Rank))
			dst = appendDetail(dst, &row.Detail[i])
		}
		dst = append(dst, '}')
	}
	if len(ans.Pools) > 0 {
		dst = append(dst, `,"pools":{`...)
		for i := range ans.Pools {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, ans.Pools[i].Key.String()), ':')
			dst = appendDetail(dst, &ans.Pools[i])
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// mediumKey is the key of a medium. A medium may have any name, but not that of
// the object beside it.
func mediumKey(name string) string {
	if name == "DP" {
		return "MEDIUM_DP"
	}
	return name
}

func appendDetail(dst []byte, d *conductor.SourceDetail) []byte {
	dst = append(dst, `{"state":`...)
	dst = appendString(dst, string(d.State))
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, d.Reason)
	dst = append(dst, `,"epoch":`...)
	dst = strconv.AppendUint(dst, d.Epoch, 10)
	dst = append(dst, `,"watermark":`...)
	if d.HasMark {
		dst = strconv.AppendUint(dst, d.Watermark, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"age_ms":`...)
	if d.Age >= 0 {
		dst = strconv.AppendInt(dst, d.Age.Milliseconds(), 10)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}

// appendRank writes the key of the i-th rank of an object.
func appendRank(dst []byte, i int, rank int32) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	dst = strconv.AppendInt(dst, int64(rank), 10)
	return append(dst, '"', ':')
}

func appendTokens(dst []byte, blocks, blockSize int) []byte {
	return strconv.AppendInt(dst, int64(blocks)*int64(blockSize), 10)
}

func appendString(dst []byte, s string) []byte { return body.AppendString(dst, s, true) }
