package mooncake

import "kvconductor/conductor"

// Most rows of most answers are zeros: they are copied out of bytes packed once for
// each roster of instances.

// zeros packs the instances of a roster that hold nothing: the i-th lies
// between ends[i] and ends[i+1].
type zeros struct {
	packed []byte
	ends   []int
}

// zerosKey is what the zeros of a roster are kept under.
type zerosKey struct{}

func packZeros(rows []conductor.Row) any {
	z := &zeros{ends: make([]int, 1, len(rows)+1)}
	for i := range rows {
		z.packed = appendRow(appendText(z.packed, rows[i].Instance), &rows[i], 0)
		z.ends = append(z.ends, len(z.packed))
	}
	return z
}

// appendAnswer writes {"instances": {instance: row}}, of all instances or of one. All
// counts are tokens.
func appendAnswer(dst []byte, ans *conductor.Answer, only *string) []byte {
	rows := ans.Rows
	if only != nil {
		rows = nil
		for i := range ans.Rows {
			if ans.Rows[i].Instance == *only {
				rows = ans.Rows[i : i+1]
			}
		}
	}
	dst = appendMap(appendText(appendMap(dst, 1), "instances"), len(rows))
	var z *zeros
	if ans.Roster != nil {
		z = ans.Roster.Keep(zerosKey{}, packZeros).(*zeros)
	}
	for len(rows) > 0 {
		n := 0
		if z != nil {
			dst, n = z.appendRun(dst, rows)
		}
		if n == 0 {
			dst = appendRow(appendText(dst, rows[0].Instance), &rows[0], ans.BlockSize)
			n = 1
		}
		rows = rows[n:]
	}
	return dst
}

// appendRun writes the zeros that rows begin with, as far as they are neighbours in the
// roster, and returns how many those are.
func (z *zeros) appendRun(dst []byte, rows []conductor.Row) (_ []byte, n int) {
	first, ok := rows[0].At()
	if !ok {
		return dst, 0
	}
	for n < len(rows) && rows[n].Longest == 0 {
		if at, ok := rows[n].At(); !ok || at != first+n {
			break
		}
		n++
	}
	return append(dst, z.packed[z.ends[first]:z.ends[first+n]]...), n
}

// appendRow writes what each rank reaches from its device down, and the best of that.
func appendRow(dst []byte, row *conductor.Row, blockSize int) []byte {
	var device, host, disk int
	for _, r := range row.Ranks {
		device, host, disk = max(device, r.Device), max(host, r.Host), max(disk, r.Disk)
	}
	dst = appendIntField(appendMap(dst, 6), "longest_matched", disk*blockSize)
	dst = appendMap(appendText(dst, "dp"), len(row.Ranks))
	for _, r := range row.Ranks {
		dst = appendInt(appendRank(dst, int(r.Rank)), r.Device*blockSize)
	}
	dst = appendMap(appendText(dst, "rank_matches"), len(row.Ranks))
	for _, r := range row.Ranks {
		dst = appendBoundaries(appendMap(appendRank(dst, int(r.Rank)), 3), r.Device*blockSize, r.Host*blockSize, r.Disk*blockSize)
	}
	return appendBoundaries(dst, device*blockSize, host*blockSize, disk*blockSize)
}

func appendBoundaries(dst []byte, gpu, cpu, disk int) []byte {
	return appendIntField(appendIntField(appendIntField(dst, "gpu", gpu), "cpu", cpu), "disk", disk)
}
