package mooncake

import (
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/server"
)

// rows are {instance: row}. All counts are tokens.
var rows = server.NewRows(false, writeRow)

// writeAnswer writes {"instances": rows}, of all instances or of one.
func writeAnswer(e *body.Encoder, ans *match.Answer, only *string) {
	some := ans.Rows
	if only != nil {
		some = nil
		for i := range ans.Rows {
			if ans.Rows[i].Instance == *only {
				some = ans.Rows[i : i+1]
			}
		}
	}
	e.Map(1)
	e.Name("instances")
	rows.Write(e, ans, some)
	e.EndMap()
}

// writeRow writes what each rank reaches from its device down, and the best of that.
func writeRow(e *body.Encoder, row *match.Row, ans *match.Answer) {
	blockSize := ans.BlockSize
	var device, host, disk int
	for _, r := range row.Ranks {
		device, host, disk = max(device, r.Device), max(host, r.Host), max(disk, r.Disk)
	}
	pairs, of := 6, 3
	if row.Approximate {
		pairs++
	}
	if row.UpperBound {
		pairs++
	}
	if ans.Expected {
		pairs++
		of++
	}
	e.Map(pairs)
	e.IntField("longest_matched", disk*blockSize)
	if ans.Expected {
		e.IntField("expected", row.Expected*blockSize)
	}
	if row.Approximate {
		e.Name("approximate")
		e.True()
	}
	if row.UpperBound {
		e.Name("upper_bound")
		e.True()
	}
	e.Name("dp")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.NumberName(int(r.Rank))
		e.Int(r.Device * blockSize)
	}
	e.EndMap()
	e.Name("rank_matches")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.NumberName(int(r.Rank))
		e.Map(of)
		writeBoundaries(e, r.Device*blockSize, r.Host*blockSize, r.Disk*blockSize)
		if ans.Expected {
			e.IntField("expected", r.Expected*blockSize)
		}
		e.EndMap()
	}
	e.EndMap()
	writeBoundaries(e, device*blockSize, host*blockSize, disk*blockSize)
	e.EndMap()
}

func writeBoundaries(e *body.Encoder, gpu, cpu, disk int) {
	e.IntField("gpu", gpu)
	e.IntField("cpu", cpu)
	e.IntField("disk", disk)
}
