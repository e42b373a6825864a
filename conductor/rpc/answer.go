package rpc

import (
	pb "kvconductor/api/kvconductor/v1"
	"kvconductor/conductor"
	"kvconductor/tiers"
)

// answerOf returns an answer as a message that shares nothing with it but the rows of instances
// that hold nothing, which are made once for each roster.
func answerOf(ans *conductor.Answer) *pb.QueryResponse {
	out := &pb.QueryResponse{TenantId: ans.Tenant, Truncated: ans.Truncated, Rows: make([]*pb.Row, len(ans.Rows)), Pools: sourcesOf(ans.Pools)}
	zeros := zerosOf(ans.Roster)
	rows := rowsOf{size: ans.BlockSize}
	for i := range ans.Rows {
		row := &ans.Rows[i]
		if at, listed := row.At(); listed && zeros != nil && row.Longest == 0 && row.Detail == nil {
			out.Rows[i] = zeros[at]
			continue
		}
		out.Rows[i] = rows.row(row)
	}
	return out
}

// zerosKey is what a roster keeps its rows of zeros under.
type zerosKey struct{}

// zerosOf returns the rows of a roster that hold nothing.
func zerosOf(r *conductor.Roster) []*pb.Row {
	if r == nil {
		return nil
	}
	return r.Keep(zerosKey{}, func(all []conductor.Row) any {
		rows, out := rowsOf{}, make([]*pb.Row, len(all))
		for i := range all {
			out[i] = rows.row(&all[i])
		}
		return out
	}).([]*pb.Row)
}

// rowsOf makes messages of rows, several in one allocation.
type rowsOf struct {
	size  int // of a block in tokens
	media []pb.Medium
	ranks []pb.Rank
}

// slab is how many messages one allocation has.
const slab = 32

// tokens returns a number of blocks in tokens.
func (r *rowsOf) tokens(blocks int) uint32 { return uint32(blocks * r.size) }

func (r *rowsOf) row(row *conductor.Row) *pb.Row {
	out := &pb.Row{
		InstanceId: row.Instance, LongestMatched: r.tokens(row.Longest), Window: uint32(row.Window), Sources: sourcesOf(row.Detail),
		Media: make([]*pb.Medium, len(row.Media)), Ranks: make([]*pb.Rank, len(row.Ranks)),
	}
	for i := range row.Media {
		out.Media[i] = r.medium(&row.Media[i])
	}
	for i := range row.Ranks {
		out.Ranks[i] = r.rank(&row.Ranks[i])
	}
	return out
}

func (r *rowsOf) medium(m *tiers.MediumCount) *pb.Medium {
	if len(r.media) == 0 {
		r.media = make([]pb.Medium, slab)
	}
	out := &r.media[0]
	r.media = r.media[1:]
	out.Name, out.Matched = m.Name, r.tokens(m.Blocks)
	return out
}

func (r *rowsOf) rank(m *tiers.Rank) *pb.Rank {
	if len(r.ranks) == 0 {
		r.ranks = make([]pb.Rank, slab)
	}
	out := &r.ranks[0]
	r.ranks = r.ranks[1:]
	out.Rank, out.Matched = uint32(m.Rank), r.tokens(m.Blocks)
	out.Gpu, out.Cpu, out.Disk = r.tokens(m.Device), r.tokens(m.Host), r.tokens(m.Disk)
	return out
}

// sourcesOf returns how current sources are, nil for none.
func sourcesOf(all []conductor.SourceDetail) (out []*pb.Source) {
	for i := range all {
		d := &all[i]
		s := &pb.Source{Key: d.Key.String(), Rank: uint32(d.Rank), State: string(d.State), Reason: d.Reason, Epoch: d.Epoch}
		if d.HasMark {
			mark := d.Watermark
			s.Watermark = &mark
		}
		if d.Age >= 0 {
			age := uint64(d.Age.Milliseconds())
			s.AgeMs = &age
		}
		out = append(out, s)
	}
	return out
}
