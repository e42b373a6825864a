package stream

import "time"

// checkAfter is how long behind a replay the first look comes.
const checkAfter = time.Second

// secondLook plans another replay after one that has ended, unless a live batch comes, because the newest batches may be missing, for
// two reasons. ZMTP has no answer to a subscription: the publisher may serve the replay before it acts on the subscription, and drops
// what it sends in between. And a socket that drops replies beyond its high-water mark may drop the last ones, but not the end marker.
// An engine that then falls silent would look up to date while batches are missing. A live batch proves the subscription, and its
// number would show the hole. A look that finds something is followed by another one, after twice the time.
type secondLook struct {
	unsure bool          // this connection's slow-joiner window is not checked yet
	next   uint64        // the number of the next batch when the last replay ended
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
