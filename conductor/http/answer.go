package http

import (
	"strings"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/server"
)

// rows are {instance: row}.
var rows = server.NewRows(true, writeRow)

// writeAnswer writes {tenant: {instance: row}}, rows sorted by instance, or {} when there
// is no row, and warnings. All counts are tokens. A tenant has precedence over warnings.
func writeAnswer(e *body.Encoder, ans *match.Answer, warnings []string) {
	pairs := min(len(ans.Rows), 1)
	if pairs > 0 && ans.Tenant == "warnings" {
		warnings = nil
	}
	e.Map(pairs + min(len(warnings), 1))
	if pairs > 0 {
		e.Key(ans.Tenant)
		rows.Write(e, ans, ans.Rows)
	}
	writeWarnings(e, warnings)
	e.EndMap()
}

// writeRow writes what stands behind the key of a row.
func writeRow(e *body.Encoder, row *match.Row, ans *match.Answer) {
	pools := 0 // that serve the row
	for i := range ans.Pools {
		if ans.Pools[i].Serves(row.Instance) {
			pools++
		}
	}
	size, pairs := ans.BlockSize, 3+len(row.Media)+min(row.Window, 1)+min(pools, 1)
	if ans.Truncated {
		pairs++
	}
	if row.Detail != nil {
		pairs++
	}
	if row.Approximate {
		pairs++
	}
	if row.UpperBound {
		pairs++
	}
	if ans.Expected {
		pairs++
	}
	e.Map(pairs)
	e.IntField("longest_matched", row.Longest*size)
	if ans.Expected {
		e.IntField("expected", row.Expected*size)
	}
	if row.Approximate {
		e.Name("approximate")
		e.True()
	}
	if row.UpperBound {
		e.Name("upper_bound")
		e.True()
	}
	for _, m := range row.Media {
		e.Key(mediumKey(m.Name))
		e.Int(m.Blocks * size)
	}
	e.Name("DP")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.NumberName(int(r.Rank))
		e.Int(r.Blocks * size)
	}
	e.EndMap()
	writeRankMatches(e, row, size, ans.Expected)
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
			e.NumberName(row.Detail[i].Rank)
			writeDetail(e, &row.Detail[i])
		}
		e.EndMap()
	}
	if pools > 0 {
		e.Name("pools")
		e.Map(pools)
		for i := range ans.Pools {
			if !ans.Pools[i].Serves(row.Instance) {
				continue
			}
			e.Key(ans.Pools[i].Key.String())
			writeDetail(e, &ans.Pools[i])
		}
		e.EndMap()
	}
	e.EndMap()
}

// writeRankMatches writes how far the media of each rank reach.
func writeRankMatches(e *body.Encoder, row *match.Row, size int, expected bool) {
	pairs := 3
	if expected {
		pairs++
	}
	e.Name("rank_matches")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.NumberName(int(r.Rank))
		e.Map(pairs)
		e.IntField("gpu", r.Device*size)
		e.IntField("cpu", r.Host*size)
		e.IntField("disk", r.Disk*size)
		if expected {
			e.IntField("expected", r.Expected*size)
		}
		e.EndMap()
	}
	e.EndMap()
}

func writeDetail(e *body.Encoder, d *match.SourceDetail) {
	e.Map(6)
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
	e.Name("stay")
	e.Map(len(d.Lives))
	for i := range d.Lives {
		l := &d.Lives[i]
		e.Key(l.Medium)
		e.Map(2)
		e.Name("1s")
		e.Float(l.Stay(time.Second))
		e.Name("10s")
		e.Float(l.Stay(10 * time.Second))
		e.EndMap()
	}
	e.EndMap()
	e.EndMap()
}

// mediumKey returns the key of a medium in a row: its name, unless the row has an object of that name, DP. Names of media
// have no lower-case letters, so that they are none of the other keys.
func mediumKey(name string) string {
	bare := name
	for strings.HasPrefix(bare, "MEDIUM_") {
		bare = bare[len("MEDIUM_"):]
	}
	if bare == "DP" {
		return "MEDIUM_" + name // another one for MEDIUM_DP, whose key DP has taken
	}
	return name
}
