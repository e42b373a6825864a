package stream

import (
	"context"
	"time"

	"example.com/conductor/bounds"
)

// Limiter bounds how many streams replay at once. A replay makes a publisher stream its
// ring from the thread that also publishes. The time a stream waits for its slot does not
// count as silence of its publisher.
//
// A slot is for a turn while others wait: a publisher that trickles would hold it for ever. A
// stream whose turn is over asks for the rest at the end of the queue. Flows share the slots
// (Config.ReplayFlow), so that the streams of one tenant cannot have them all.
type Limiter struct {
	slots *bounds.Slots
	turn  time.Duration
}

// replayTurn is how long a stream may replay while others wait. A ring of 10,000 batches takes a tenth
// of it.
const replayTurn = 2 * time.Second

// NewLimiter lets n streams replay at once.
func NewLimiter(n int) *Limiter {
	return &Limiter{slots: bounds.NewSlots(max(n, 1), 0), turn: replayTurn}
}

// acquireSlot waits for a slot. It returns false if ctx ends first. A nil limiter has no
// bound.
func (l *Limiter) acquireSlot(ctx context.Context, flow string) bool {
	if l == nil {
		return ctx.Err() == nil
	}
	return l.slots.Enter(ctx, bounds.Flow{Name: flow}) == nil
}

func (l *Limiter) releaseSlot(flow string) {
	if l != nil {
		l.slots.Leave(bounds.Flow{Name: flow})
	}
}

// limitTurn calls over when the turn of a stream is over and others wait. While none waits the
// turn goes on, so that a single source which recovers is not interrupted. stop ends that.
//
// It asks once a turn and not when somebody begins to wait, so a stream always has a whole
// turn, in which a usual ring comes to its end.
func (l *Limiter) limitTurn(over func()) (stop func()) {
	if l == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		t := time.NewTicker(l.turn)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if _, waiting := l.slots.Count(); waiting > 0 {
				over()
				return
			}
		}
	}()
	return cancel
}
