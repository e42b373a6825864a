package stream

import (
	"fmt"
	"sync/atomic"
	"time"
)

// silence is how long a publisher that sends a batch each second may send none.
const silence = 5 * time.Second

// pulse ends a live connection over which nothing comes any more. It knows publishers with
// snapshots: they send batches without events while they are idle. Time in which the queue
// has no room does not count, for then nothing is read.
type pulse struct {
	sub   Subscription
	on    bool // the publisher may have snapshots
	beats bool // it sends batches without events
	timer *time.Timer
	dead  atomic.Bool
}

func newPulse(on bool, sub Subscription) *pulse { return &pulse{sub: sub, on: on} }

// hear notes a batch.
func (p *pulse) hear(m *message) { p.beats = p.beats || p.on && m.idle() }

// await begins to wait for a batch.
//
//go:noinline
func (p *pulse) await() {
	switch {
	case !p.beats:
	case p.timer == nil:
		p.timer = time.AfterFunc(silence, func() {
			p.dead.Store(true)
			p.sub.Close()
		})
	default:
		p.timer.Reset(silence)
	}
}

// stop ends the wait.
func (p *pulse) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// explain returns why a connection ended.
func (p *pulse) explain(err error) error {
	if p.dead.Load() {
		return silenceError{}
	}
	return err
}

// silenceError is the end of a connection to a publisher that sends a batch each second.
type silenceError struct{}

func (silenceError) Error() string {
	return fmt.Sprintf("the publisher sends a batch each second, and sent none for %v", silence)
}

// Silent returns how long before the error the last batch arrived.
func (silenceError) Silent() time.Duration { return silence }

// idle reports whether the batch has no events: an array whose second element is empty, behind
// a time of nine bytes.
func (m *message) idle() bool {
	const events = 10
	return len(m.payload) > events && m.payload[0]&0xf0 == 0x90 && m.payload[1] == 0xcb && m.payload[events] == 0x90
}
