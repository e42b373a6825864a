package stream

import (
	"encoding/binary"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
)

// snapshotUnavailable is the sequence of a reply without a snapshot; one below zero is that of an
// engine that has published nothing.
const (
	snapshotUnavailable = -2
	nothingPublished    = -1
)

// snapshotReply is a reply of a snapshot service: the state of the publisher behind batch seq.
// Revisions of the protocol differ in their live batches alone, see newMessage.
type snapshotReply struct {
	seq    int64
	id     events.PublisherID
	chunks []payload.Message // of one frame each
	bytes  int
}

// parseSnapshot reads the frames of a reply: sequence, publisher id, then the parts. A
// delimiter in front may be missing, as in replies of a replay. Neither of the first two
// frames may have another length, or a reply of another protocol would be applied as the
// state of an engine.
func parseSnapshot(frames []payload.Message) (s snapshotReply, ok bool) {
	if len(frames) > 0 && len(frames[0].Frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) < 2 || len(frames[0].Frames[0]) != seqSize || len(frames[1].Frames[0]) != len(s.id) {
		return s, false
	}
	s.seq = int64(binary.BigEndian.Uint64(frames[0].Frames[0]))
	s.id = events.PublisherID(frames[1].Frames[0])
	s.chunks = frames[2:]
	for _, c := range s.chunks {
		s.bytes += len(c.Frames[0])
	}
	return s, s.seq >= snapshotUnavailable
}

// releaseChunks gives the memory of the chunks back.
func (s *snapshotReply) releaseChunks() {
	for _, c := range s.chunks {
		c.Block.Release()
	}
	s.chunks, s.bytes = nil, 0
}
