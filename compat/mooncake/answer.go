package mooncake

import (
	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

// Most rows of most answers are zeros: they are copied out of bytes encoded once for
// each roster of instances.

// zeros are the rows of a roster that hold nothing, in one codec: the i-th lies between
// ends[i] and ends[i+1].
type zeros struct {
	rows []byte
	ends []int
}

// zerosKey is what the zeros of a roster are kept under.
type zerosKey body.Codec

// zerosOf returns the zeros of a roster, nil if that is nil.
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
	e := body.Encoder{Codec: codec, Out: []byte{'}'}} // so that a comma is in front of each row
	z := &zeros{ends: append(make([]int, 0, len(rows)+1), 1)}
	for i := range rows {
		writeRow(&e, &rows[i], 0)
		z.ends = append(z.ends, len(e.Out))
	}
	z.rows = e.Out
	return z
}

// writeAnswer writes {"instances": {instance: row}}, of all instances or of one. All
// counts are tokens.
func writeAnswer(e *body.Encoder, ans *conductor.Answer, only *string) {
	rows := ans.Rows
	if only != nil {
		rows = nil
		for i := range ans.Rows {
			if ans.Rows[i].Instance == *only {
				rows = ans.Rows[i : i+1]
			}
		}
	}
	e.Map(1)
	e.Name("instances")
	e.Map(len(rows))
	z := zerosOf(ans.Roster, e.Codec)
	for len(rows) > 0 {
		n := 0
		if z != nil {
			n = z.writeRun(e, rows)
		}
		if n == 0 {
			writeRow(e, &rows[0], ans.BlockSize)
			n = 1
		}
		rows = rows[n:]
	}
	e.EndMap()
	e.EndMap()
}

// writeRun writes the zeros that rows begin with, as far as they are neighbours in the
// roster, and returns how many those are.
func (z *zeros) writeRun(e *body.Encoder, rows []conductor.Row) (n int) {
	first, ok := rows[0].At()
	if !ok {
		return 0
	}
	for n < len(rows) && rows[n].Longest == 0 {
		if at, ok := rows[n].At(); !ok || at != first+n {
			break
		}
		n++
	}
	if n > 0 {
		e.Pairs(z.rows[z.ends[first]:z.ends[first+n]])
	}
	return n
}

// writeRow writes what each rank reaches from its device down, and the best of that.
func writeRow(e *body.Encoder, row *conductor.Row, blockSize int) {
	var device, host, disk int
	for _, r := range row.Ranks {
		device, host, disk = max(device, r.Device), max(host, r.Host), max(disk, r.Disk)
	}
	e.Key(row.Instance)
	e.Map(6)
	e.IntField("longest_matched", disk*blockSize)
	e.Name("dp")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.IntKey(int(r.Rank))
		e.Int(r.Device * blockSize)
	}
	e.EndMap()
	e.Name("rank_matches")
	e.Map(len(row.Ranks))
	for _, r := range row.Ranks {
		e.IntKey(int(r.Rank))
		e.Map(3)
		writeBoundaries(e, r.Device*blockSize, r.Host*blockSize, r.Disk*blockSize)
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
