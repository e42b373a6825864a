package stream

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/spelling"
)

// ReasonUnusable is a reason of State Partial: most of the last messages cannot be used.
// Publishers of another protocol, or of another version of it, are connected and send, so
// that nothing else shows that the answers have nothing of them.
const ReasonUnusable = "unusable"

const (
	// judgedMessages is how many of the last messages count.
	judgedMessages = 32
	// fewUnusable is how many of them may always be unusable: a stray message shows nothing.
	fewUnusable = 3
)

// recentMessages says of the last messages of a live connection whether they could be used.
//
// It counts messages and not time, because publishers send between one batch a minute and
// hundreds a second. Batches without events, and those that are about blocks elsewhere, say
// nothing: an idle engine of the right version sends nothing else, and must not outweigh
// what came before.
type recentMessages struct {
	unusable     uint32 // one bit a message, the last one lowest
	n            int
	mostUnusable bool   // most cannot be used; it stays until most can be
	why          string // the last that could not be used
	lastInHand   bool   // the last message is the batch in hand, and can be used as far as the stream knows
}

// MarkUnusable says that nothing of the batch in hand could be used, and why: the caller
// refused all of its events. It is for the goroutine that calls Next, as MarkIncomplete is.
// A batch that was replayed does not count.
//
// The stream has counted the batch as usable when it handed it out, since only the caller
// knows better, and it may never say so. This turns that bit around, at most once a batch.
func (s *Stream) MarkUnusable(why string) {
	s.turn.Lock()
	defer s.turn.Unlock()
	if r := &s.machine.usability; r.lastInHand {
		r.lastInHand = false
		r.unusable |= 1
		r.why = why
		r.judgeMessages()
	}
}

// noteMessage adds a message. why is "" if it can be used.
func (r *recentMessages) noteMessage(why string) {
	r.unusable <<= 1
	if why != "" {
		r.unusable |= 1
		r.why = why
	}
	r.n = min(r.n+1, judgedMessages)
	r.judgeMessages()
}

// judgeMessages decides what most of the messages are. Between the two limits the judgement
// stays what it was, so that a source at the border does not change its state with every
// message.
func (r *recentMessages) judgeMessages() {
	switch bad := bits.OnesCount32(r.unusable); {
	case bad > fewUnusable && 2*bad > r.n:
		r.mostUnusable = true
	case 2*bad < r.n:
		r.mostUnusable = false
	}
}

// noteBatch adds a batch that was decoded. One with events counts as usable until
// MarkUnusable says otherwise. One without events of which the decoder dropped some, other
// than foreign ones, cannot be used; one that just has none says nothing.
func (r *recentMessages) noteBatch(b *events.Batch) {
	if r.lastInHand = len(b.Events) > 0; r.lastInHand {
		r.noteMessage("")
		return
	}
	if b.Dropped == nil {
		return
	}
	var seen []string
	for _, reason := range slices.Sorted(maps.Keys(b.Dropped)) {
		if reason != events.Foreign {
			seen = append(seen, fmt.Sprintf("%s %d", reason, b.Dropped[reason]))
		}
	}
	if len(seen) == 0 {
		return
	}
	why := "no event of a batch can be read: " + strings.Join(seen, ", ")
	if len(b.Unknown) > 0 {
		why += fmt.Sprintf(", such as the type %q", b.Unknown[0])
	}
	if b.Note != "" {
		why += ", such as " + b.Note
	}
	r.noteMessage(why)
}

// explainBatch says why a payload is no batch.
func explainBatch(payload []byte, err error) string {
	return fmt.Sprintf("%v; it begins with %s", err, wire.DescribeBeginning(payload))
}

// explainFrames says how a live message differs from ours by the frames of a live message.
// It is what an operator reads who has connected Conductor to the wrong port, or an engine
// of another version, so it describes what came as well as what was expected: how many
// frames, how the last one begins, and which frame is missing if the rest looks like a
// batch.
func explainFrames(f [][]byte) string {
	const want = "where 3 are expected (topic, sequence number, batch)"
	if len(f) == 0 {
		return "no frames " + want
	}
	last := f[len(f)-1]
	lacks := ""
	if wire.LooksLikeBatch(last) && len(f) < 3 {
		lacks = ", which looks like a batch: the publisher sends no sequence number"
		if len(f) == 2 && (len(f[0]) == seqSize || len(f[0]) == seqIDSize) {
			lacks = ", which looks like a batch: the publisher sends no topic, or no sequence number"
		}
	}
	switch len(f) {
	case 1:
		return fmt.Sprintf("1 frame %s; it begins with %s%s", want, wire.DescribeBeginning(last), lacks)
	case 2:
		return fmt.Sprintf("2 frames %s; the second begins with %s%s", want, wire.DescribeBeginning(last), lacks)
	case 3:
		if n := len(f[1]); n != seqSize && n != seqIDSize {
			return fmt.Sprintf("a sequence number of %s where 8 are expected; the frame behind it begins with %s",
				spelling.Count(n, "byte"), wire.DescribeBeginning(last))
		}
		return "the sequence number that ends a replay"
	}
	return fmt.Sprintf("%s %s; the last begins with %s", spelling.Count(len(f), "frame"), want, wire.DescribeBeginning(last))
}
