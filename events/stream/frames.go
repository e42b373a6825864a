package stream

import "encoding/binary"

// endSeq marks the end of a replay; no batch has this number.
const endSeq = ^uint64(0)

// seqSize is the width of a sequence frame, unsigned big-endian.
const seqSize = 8

// liveFrames reads a live message: topic, sequence, payload. The topic is only
// the publisher's subscription filter; whatever it carries, some builds append
// fields after a NUL, says nothing that the stream relies on.
func liveFrames(frames [][]byte) (seq uint64, payload []byte, ok bool) {
	if len(frames) != 3 || len(frames[1]) != seqSize {
		return 0, nil, false
	}
	seq = binary.BigEndian.Uint64(frames[1])
	return seq, frames[2], seq != endSeq
}

// replyKind says what a reply of a replay service is.
type replyKind uint8

const (
	replyBad replyKind = iota
	replyData
	replyEnd
)

// replyFrames reads one reply. Publishers use two layouts, with the empty
// delimiter of a ROUTER in front or, where the service echoes what it got from
// another client, without:
//
//	A   [""] seq payload         vLLM up to June 2026, SGLang
//	B   [""] topic seq payload   later vLLM, TensorRT-LLM
//
// They are told apart by their count. In three frames the last two are sequence
// and payload either way, whether the first is a delimiter or a topic, empty or
// not. The end is marked by an empty payload, by the sequence endSeq, or, by
// the oldest builds, by nothing but an empty frame.
func replyFrames(frames [][]byte) (seq uint64, payload []byte, kind replyKind) {
	f := frames
	if len(f) > 0 && len(f[0]) == 0 {
		f = f[1:]
	}
	switch {
	case len(f) == 0, len(f) == 1 && len(f[0]) == 0:
		return 0, nil, replyEnd
	case len(f) == 3:
		f = f[1:]
	case len(f) != 2:
		return 0, nil, replyBad
	}
	if len(f[1]) == 0 {
		return 0, nil, replyEnd
	}
	if len(f[0]) != seqSize {
		return 0, nil, replyBad
	}
	if seq = binary.BigEndian.Uint64(f[0]); seq == endSeq {
		return 0, nil, replyEnd
	}
	return seq, f[1], replyData
}
