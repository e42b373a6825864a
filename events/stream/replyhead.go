package stream

import "example.com/conductor/events"

// maxHead is how many replies beyond the number asked for wait for what follows.
const maxHead = 16

// replyHead is the replies with which an attempt begins, as long as they are beyond the number that was asked for. A ring that
// has forgotten that number begins with such replies. So does an answer with a header that is no batch, such as -2 read as a
// number, or with a garbled frame. Replies ascend, so one that is followed by a lower number has an odd one, and goes. What is
// left at the end, or after maxHead replies, is the ring.
type replyHead struct {
	accepted bool          // a reply that was asked for has come, or the head is taken for what it says
	end      *input        // what ended the attempt, to be handled behind the head; nil if it goes on
	items    []queuedBatch // ascending
	spoilt   uint64        // number+1 that several batches had
	odd      int           // replies of this attempt that were dropped
}

// holdBack takes a reply, and reports whether it waits, or was dropped.
func (h *replyHead) holdBack(it queuedBatch, from uint64) bool {
	if h.accepted {
		return false
	}
	n := len(h.items)
	for n > 0 && h.items[n-1].seq > it.seq {
		n--
	}
	h.odd += len(h.items) - n
	h.items = h.items[:n]
	switch {
	case it.seq <= from, from == 0 && it.seq == 1: // a publisher may count from 1
		h.accepted, h.items = true, nil
		h.odd += n
		return false
	case it.seq+1 == h.spoilt:
		h.odd++
	case n > 0 && h.items[n-1].seq == it.seq:
		if !h.items[n-1].isSameBatch(&it) { // neither is the batch of that number
			h.items, h.spoilt = h.items[:n-1], it.seq+1
			h.odd += 2
		}
	default:
		h.items = append(h.items, it)
	}
	return true
}

// waits reports whether replies wait for what follows.
func (h *replyHead) waits() bool { return !h.accepted && len(h.items) > 0 }

// acceptAll takes the head for what it says, because nothing follows. end is what ended the attempt, nil if nothing did.
func (h *replyHead) acceptAll(end *input) { h.accepted, h.end = true, end }

// takeNext takes the next reply of the head, once there is reason to take it for what it says. Behind the last one it returns what ended
// the attempt.
func (h *replyHead) takeNext() (it *queuedBatch, end *input) {
	if h.accepted && len(h.items) > 0 {
		it, h.items = &h.items[0], h.items[1:]
		return it, nil
	}
	end, h.end = h.end, nil
	return nil, end
}

// holdBack takes a reply, and reports whether it waits behind the beginning of the answer, or was dropped. A batch with a publisher id is
// known. If the live connection is behind, what it lacks comes from it and not from here.
func (a *replayRequest) holdBack(it queuedBatch, c *consumed, throttled bool, dropped map[events.Reason]uint64) bool {
	a.brought++
	h := &a.head
	h.accepted = h.accepted || c.isProven(&it) || c.isForeign(&it) || throttled || a.liveIsBehind
	odd := h.odd
	waits := h.holdBack(it, a.from)
	if n := h.odd - odd; n > 0 {
		dropped[events.OddNumber] += uint64(n)
	}
	h.accepted = h.accepted || len(h.items) >= maxHead
	return waits
}

// reached is what is known of how far the publisher has come.
type reached struct {
	heard     uint64 // the number behind the last live batch of the connection, 0 without any
	held      uint64 // the highest batch that waits
	confirmed bool   // what was applied is more than what replays alone told
	throttled bool   // the live connection is behind
}

// reachedBy returns how far the publisher has come.
func reachedBy(m *machine) reached {
	return reached{m.heard, m.held.lastSequence(), m.consumed.started && m.evidence.seenElsewhere, m.throttled || m.replay.liveIsBehind}
}

// isBeyond reports whether a reply that leaves a hole has a number that the live stream has not come to. Whatever is really there
// comes live. If the live connection is behind, it has not come so far, and its publisher may have.
func (r reached) isBeyond(seq uint64) bool {
	return r.heard > 0 && seq >= r.heard && seq > r.held && !r.throttled
}

// isUnconfirmed reports whether accepting a reply that leaves a hole would skip batches although no live batch shows that the publisher
// has come so far. What was applied weighs more: all but what replays alone told, and against a single reply, with which the answer
// ends, that too. The next live batch decides.
func (r reached) isUnconfirmed(h *replyHead, started bool) bool {
	return r.heard == 0 && !r.throttled && (r.confirmed || started && h.end != nil && len(h.items) == 0)
}
