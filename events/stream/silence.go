package stream

import (
	"fmt"
	"sync/atomic"
	"time"
)

// maxSilence is how long a publisher that sends a batch each second may send none.
const maxSilence = 5 * time.Second

// silenceTimer ends a live connection over which nothing comes any more. It knows publishers with
// snapshots: they send batches without events while they are idle. Time in which the queue
// has no room does not count, for then nothing is read.
type silenceTimer struct {
	sub   Subscription
	on    bool // the publisher may have snapshots
	beats bool // it sends batches without events
	timer *time.Timer
	dead  atomic.Bool
}

func newSilenceTimer(on bool, sub Subscription) *silenceTimer { return &silenceTimer{sub: sub, on: on} }

// noteBatch notes a batch.
func (p *silenceTimer) noteBatch(m *message) { p.beats = p.beats || p.on && m.isIdle() }

// startWait begins to wait for a batch. Only a publisher that was seen to send batches without
// events is given up for its silence: others may just be idle. It is not inlined, since its
// closure would be on the stack of each silent connection, see Stream.Next.
//
//go:noinline
func (p *silenceTimer) startWait() {
	switch {
	case !p.beats:
	case p.timer == nil:
		p.timer = time.AfterFunc(maxSilence, func() {
			p.dead.Store(true)
			p.sub.Close()
		})
	default:
		p.timer.Reset(maxSilence)
	}
}

// endWait ends the wait.
func (p *silenceTimer) endWait() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// explainEnd returns why a connection ended: closing it for its silence looks like any other
// close to Recv.
func (p *silenceTimer) explainEnd(err error) error {
	if p.dead.Load() {
		return silenceError{}
	}
	return err
}

// silenceError is the end of a connection to a publisher that sends a batch each second.
type silenceError struct{}

func (silenceError) Error() string {
	return fmt.Sprintf("the publisher sends a batch each second, and sent none for %v", maxSilence)
}

// Silent returns how long before the error the last batch arrived.
func (silenceError) Silent() time.Duration { return maxSilence }

// isIdle reports whether the batch has no events: an array whose second element is empty, behind
// a time of nine bytes.
func (m *message) isIdle() bool {
	const events = 10
	return len(m.payload) > events && m.payload[0]&0xf0 == 0x90 && m.payload[1] == 0xcb && m.payload[events] == 0x90
}
