package stream

import "time"

// checkAfter is when the first look follows.
const checkAfter = time.Second

// secondLook is another look at the ring behind a replay, unless a live batch comes. The replay may have missed the newest batches. ZMTP
// has no answer to a subscription: the publisher may serve the replay before it acts on the subscription, and drops what it sends in
// between. And a socket that drops replies beyond its high-water mark may drop the last ones, but not the end marker. An engine that
// then falls silent would look up to date while batches are missing. A live batch proves the subscription, and its number would show
// the hole. A look that finds something is followed by another one, after twice the time.
type secondLook struct {
	unsure bool          // this connection's slow-joiner window is not checked yet
	next   uint64        // the next batch behind the last replay
	pause  time.Duration // before the next look
	at     time.Time     // when to check it, zero: not now
}

// planLook plans a look behind a replay.
func (l *secondLook) planLook(m *machine, now time.Time) {
	if m.heard == 0 && m.evidence.canAsk() && (l.unsure || m.consumed.next != l.next) {
		l.at, l.pause = now.Add(l.pause), min(2*l.pause, maxHeal)
	}
	l.unsure, l.next = false, m.consumed.next
}
