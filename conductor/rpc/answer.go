package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
	"example.com/conductor/tiers"
)

// Numbers of fields in conductor.proto.
const (
	answerTenant, answerRows, answerTruncated, answerPools = 1, 2, 3, 4

	rowInstance, rowLongest, rowMedia, rowRanks, rowWindow, rowSources, rowExpected = 1, 2, 3, 4, 5, 6, 7
	rowApproximate, rowUpperBound, rowAddress, rowState                             = 8, 9, 10, 11

	candidatesID, candidatesTenant, candidatesModel, candidatesLora = 1, 2, 3, 4
	candidatesBlockSize, candidatesRows, candidatesTruncated        = 5, 6, 7

	mediumName, mediumMatched = 1, 2

	rankRank, rankMatched, rankGPU, rankCPU, rankDisk, rankExpected = 1, 2, 3, 4, 5, 6

	sourceKey, sourceRank, sourceState, sourceReason, sourceEpoch, sourceWatermark, sourceAge, sourceServes = 1, 2, 3, 4, 5, 6, 7, 8
)

// answerOf returns an answer as a message. Its fields are in the message as bytes, which are sent as
// they are: most rows of most answers are zeros, and their bytes are made once for each roster.
// protobuf would make, measure and write 128 rows for each answer, at several times the cost of all
// else.
func answerOf(ans *match.Answer) *pb.QueryResponse {
	out := new(pb.QueryResponse)
	out.ProtoReflect().SetUnknown(appendAnswer(nil, ans))
	return out
}

// appendAnswer appends the fields of an answer in the order of their numbers.
func appendAnswer(b []byte, ans *match.Answer) []byte {
	w := writer{size: ans.BlockSize}
	zeros := zerosOf(ans)
	if b == nil && zeros != nil {
		b = make([]byte, 0, 64+len(zeros.text)*len(ans.Rows)/(len(zeros.starts)-1)+1024)
	}
	b = appendText(b, answerTenant, ans.Tenant)
	for i := 0; i < len(ans.Rows); i++ {
		if zeros != nil {
			if first, n := server.ZeroRun(ans.Rows[i:]); n > 0 {
				b = append(b, zeros.text[zeros.starts[first]:zeros.starts[first+n]]...)
				i += n - 1
				continue
			}
		}
		b = w.message(b, answerRows, func(b []byte) []byte { return w.row(b, &ans.Rows[i]) })
	}
	if ans.Truncated {
		b = number(b, answerTruncated, 1)
	}
	return w.sources(b, answerPools, ans.Pools)
}

// candidatesOf returns the answer of Candidates, see answerOf.
func candidatesOf(ans *match.Answer, resolved registration.Meaning) *pb.CandidatesResponse {
	w := writer{size: ans.BlockSize}
	b := appendText(nil, candidatesID, match.FormatAnswerID(ans.ID))
	b = appendText(b, candidatesTenant, ans.Tenant)
	b = appendText(b, candidatesModel, resolved.Model)
	b = appendText(b, candidatesLora, resolved.Lora)
	b = number(b, candidatesBlockSize, uint64(ans.BlockSize))
	for i := range ans.Rows {
		row := &ans.Rows[i]
		b = w.message(b, candidatesRows, func(b []byte) []byte {
			return appendText(appendText(w.row(b, row), rowAddress, ans.AddressOf(row)), rowState, string(row.State))
		})
	}
	if ans.Truncated {
		b = number(b, candidatesTruncated, 1)
	}
	out := new(pb.CandidatesResponse)
	out.ProtoReflect().SetUnknown(b)
	return out
}

// zeros are the rows of a roster that hold nothing, as an answer has them.
type zeros struct {
	text   []byte
	starts []int // of each row in text, and the end of the last
}

// zerosKey is what a roster keeps its zeros under.
type zerosKey struct{}

// zerosOf returns the zeros of an answer's roster, nil without one.
func zerosOf(ans *match.Answer) *zeros {
	if ans.Roster == nil {
		return nil
	}
	return ans.Keep(zerosKey{}, func(all []match.Row) any {
		z, w := &zeros{starts: []int{0}}, writer{}
		for i := range all {
			z.text = w.message(z.text, answerRows, func(b []byte) []byte { return w.row(b, &all[i]) })
			z.starts = append(z.starts, len(z.text))
		}
		return z
	}).(*zeros)
}

// writer writes messages. Fields that are zero are left out, as protobuf does.
type writer struct{ size int } // of a block in tokens

// message appends a message as a field. Most messages are shorter than 128 bytes, so that their
// length is one byte; others are moved.
func (w *writer) message(b []byte, field protowire.Number, write func([]byte) []byte) []byte {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	from := len(b)
	b = write(b)
	n := uint64(len(b) - from)
	if n < 1<<7 {
		b[from-1] = byte(n)
		return b
	}
	var longer [4]byte
	more := protowire.SizeVarint(n) - 1
	b = append(b, longer[:more]...)
	copy(b[from+more:], b[from:])
	protowire.AppendVarint(b[:from-1], n)
	return b
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func number(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// present is number for an optional field.
func present(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// tokens writes a number of blocks in tokens.
func (w *writer) tokens(b []byte, field protowire.Number, blocks int) []byte {
	return number(b, field, uint64(blocks*w.size))
}

func (w *writer) row(b []byte, row *match.Row) []byte {
	b = appendText(b, rowInstance, row.Instance)
	b = w.tokens(b, rowLongest, row.Longest)
	for i := range row.Media {
		m := &row.Media[i]
		b = w.message(b, rowMedia, func(b []byte) []byte { return w.tokens(appendText(b, mediumName, m.Name), mediumMatched, m.Blocks) })
	}
	for i := range row.Ranks {
		r := &row.Ranks[i]
		b = w.message(b, rowRanks, func(b []byte) []byte { return w.rank(b, r) })
	}
	b = number(b, rowWindow, uint64(row.Window))
	b = w.sources(b, rowSources, row.Detail)
	if b = w.tokens(b, rowExpected, row.Expected); row.Approximate {
		b = number(b, rowApproximate, 1)
	}
	if row.UpperBound {
		b = number(b, rowUpperBound, 1)
	}
	return b
}

func (w *writer) rank(b []byte, r *tiers.Rank) []byte {
	b = number(b, rankRank, uint64(uint32(r.Rank)))
	b = w.tokens(b, rankMatched, r.Blocks)
	b = w.tokens(b, rankGPU, r.Device)
	b = w.tokens(b, rankCPU, r.Host)
	b = w.tokens(b, rankDisk, r.Disk)
	return w.tokens(b, rankExpected, r.Expected)
}

// sources writes how current sources are.
func (w *writer) sources(b []byte, field protowire.Number, all []match.SourceDetail) []byte {
	for i := range all {
		d := &all[i]
		b = w.message(b, field, func(b []byte) []byte {
			b = appendText(b, sourceKey, d.Key.String())
			b = number(b, sourceRank, uint64(uint32(d.Rank)))
			b = appendText(appendText(b, sourceState, string(d.State)), sourceReason, d.Reason)
			b = number(b, sourceEpoch, d.Epoch)
			if d.HasMark {
				b = present(b, sourceWatermark, d.Watermark)
			}
			if d.Age >= 0 {
				b = present(b, sourceAge, uint64(d.Age.Milliseconds()))
			}
			for _, instance := range d.ServesOnly {
				b = appendText(b, sourceServes, instance)
			}
			return b
		})
	}
	return b
}
