package stream

import (
	"bytes"
	"encoding/binary"
	"strings"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/wire"
)

// endSeq marks the end of a replay; no batch has this number.
const endSeq = ^uint64(0)

// Widths of a sequence frame in bytes: the sequence, unsigned big-endian, alone or
// followed by the publisher id.
const (
	seqSize   = 8
	seqIDSize = seqSize + len(events.PublisherID{})
)

// message is one batch on the wire.
type message struct {
	seq        uint64
	id         events.PublisherID // zero: none
	payload    []byte
	block      *payload.Block // of payload
	otherTopic bool           // of another topic than the stream's: it only moves the watermark
	astray     bool           // and of none in the form of topics that tell sources apart
	// oversize is the bytes of a message that was too large: payload is its beginning. 0: payload is whole.
	oversize uint64
}

// compareTopic compares the topic frame of a message with the topic of a stream. No topic is asked
// for where that is "". Some builds append fields to the topic after a NUL.
func (m *message) compareTopic(frame []byte, topic string) {
	if topic == "" {
		return
	}
	name, _, _ := bytes.Cut(frame, []byte{0})
	m.otherTopic = string(name) != topic
	form, _, _ := strings.Cut(topic, "@")
	m.astray = m.otherTopic && !bytes.HasPrefix(name, []byte(form+"@"))
}

// newMessage reads a sequence frame and the batch next to it. The publisher id is in that frame or in
// the payload, as wire.PublisherIDOf says; known is the id of an earlier message.
//
// A message that was too large has only its beginning here, which may lack the id, so it is
// not looked for.
func newMessage(number, batch []byte, received payload.Message, known events.PublisherID) (m message, ok bool) {
	m.block, m.oversize = received.Block, received.Oversize
	switch len(number) {
	case seqSize:
		if m.oversize == 0 {
			m.id = wire.PublisherIDOf(batch, known)
		}
	case seqIDSize:
		m.id = events.PublisherID(number[seqSize:])
	default:
		return m, false
	}
	m.seq, m.payload = binary.BigEndian.Uint64(number), batch
	return m, true
}

// parseLive reads a live message: topic, sequence, payload. The topic counts where the
// stream has one, see Config.Topic.
func parseLive(received payload.Message, known events.PublisherID, topic string) (m message, ok bool) {
	f := received.Frames
	if len(f) != 3 {
		return m, false
	}
	m, ok = newMessage(f[1], f[2], received, known)
	m.compareTopic(f[0], topic)
	return m, ok && m.seq != endSeq
}

// replyKind says what a reply of a replay service is.
type replyKind uint8

const (
	replyBad replyKind = iota
	replyData
	replyEnd
)

// parseReply reads one reply. Publishers use two layouts, with the empty delimiter of a ROUTER
// in front or, where the service echoes what it got from another client, without:
//
//	A   [""] seq payload         vLLM up to June 2026, SGLang
//	B   [""] topic seq payload   later vLLM, TensorRT-LLM
//
// Their count distinguishes them. In three frames the last two are sequence and payload either
// way, whether the first is a delimiter or a topic, empty or not. The end is marked by an
// empty payload, by the sequence endSeq, or, by the oldest builds, by nothing but an empty
// frame. A stream with a topic needs layout B: other batches without a topic may be anyone's,
// and one publisher numbers the batches of all its topics together.
func parseReply(received payload.Message, known events.PublisherID, topic string) (m message, kind replyKind) {
	f := received.Frames
	if len(f) > 0 && len(f[0]) == 0 {
		f = f[1:]
	}
	var name []byte
	named := len(f) == 3
	switch {
	case len(f) == 0, len(f) == 1 && len(f[0]) == 0:
		return m, replyEnd
	case named:
		name, f = f[0], f[1:]
	case len(f) != 2:
		return m, replyBad
	}
	if len(f[1]) == 0 {
		return m, replyEnd
	}
	m, ok := newMessage(f[0], f[1], received, known)
	m.compareTopic(name, topic)
	switch {
	case !ok:
		return m, replyBad
	case m.seq == endSeq:
		return m, replyEnd
	case topic != "" && !named:
		return m, replyBad
	}
	return m, replyData
}
