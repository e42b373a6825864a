package stream

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
)

// uselessReplay is a replay service that does not help, and how its publisher loses batches.
type uselessReplay struct {
	before int // batches published before the stream opens
	// every 10th batch is not live: it is lost, or its number skipped.
	lose, skip bool
	large      uint64 // the batch that is too large for a replay to come past it; 0: none
	ring       int    // 0: everything
	idle       bool   // the publisher is silent after the 30th batch

	// answer spoils the answer to a request from a number on; nil leaves it.
	answer func(from uint64, replies [][][]byte) [][][]byte
	// requests is the most of an hour, early of its first 50 s.
	requests, early int
	reason          string // at the end; "" is synced
	drops           bool   // what replays told goes
}

// TestUselessReplays runs an engine for an hour, with a batch every 2 s, whose replay service does
// not help. What it announces live stays, and the service is asked less and less.
func TestUselessReplays(t *testing.T) {
	cut := func(n int) func(uint64, [][][]byte) [][][]byte {
		return func(_ uint64, replies [][][]byte) [][][]byte {
			return append(slices.Clone(replies[:min(n, len(replies)-1)]), nil)
		}
	}
	silent := func(uint64, [][][]byte) [][][]byte { return nil }
	empty := func(_ uint64, replies [][][]byte) [][][]byte { return replies[len(replies)-1:] }
	endless := func(_ uint64, replies [][][]byte) [][][]byte { return replies[:len(replies)-1] }
	undecodable := func(_ uint64, replies [][][]byte) [][][]byte {
		for _, r := range replies[:len(replies)-1] {
			r[2] = []byte("?")
		}
		return replies
	}
	for name, u := range map[string]uselessReplay{
		"ends before a batch":              {before: 5, large: 3, requests: 60, early: 12, reason: ReasonTimeout},
		"ends before a batch, idle engine": {before: 5, large: 3, idle: true, requests: 60, early: 12, reason: ReasonTimeout},
		"ends before the last":             {before: 5, large: 4, requests: 60, early: 12, reason: ReasonTimeout},
		"hangs up at once":                 {before: 5, lose: true, answer: cut(0), requests: 30, early: 12, reason: ReasonTimeout},
		"hangs up at once, idle engine":    {before: 5, idle: true, answer: cut(0), requests: 30, early: 12, reason: ReasonTimeout},
		"hangs up after a batch":           {before: 50, lose: true, answer: cut(1), requests: 70, early: 25, reason: ReasonTimeout},
		"hangs up after a batch, idle":     {before: 50, idle: true, answer: cut(1), requests: 70, early: 25, reason: ReasonTimeout},
		"is silent":                        {before: 5, lose: true, answer: silent, requests: 30, early: 12, reason: ReasonTimeout},
		"answers empty":                    {before: 5, lose: true, answer: empty, requests: 130, early: 12, reason: ReasonGap},
		"does not end":                     {before: 5, lose: true, answer: endless, requests: 200, early: 12},
		"sends undecodable batches": {before: 5, lose: true, answer: undecodable, requests: 10, early: 10,
			reason: ReasonForeign, drops: true},
		"lacks numbers":                   {before: 5, skip: true, requests: 260, early: 20, reason: ReasonGap},
		"moves on faster than it is read": {before: 5, lose: true, ring: 1, requests: 130, early: 12, reason: ReasonGap},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *streamtest.Publisher) { u.run(t, p) })
		})
	}
}

func (u *uselessReplay) run(t *testing.T, p *streamtest.Publisher) {
	start, early := time.Now(), 0
	p.OnReplay = func(from uint64, replies [][][]byte) [][][]byte {
		if time.Since(start) < 50*time.Second {
			early++
		}
		if u.large > 0 && from <= u.large {
			replies = append(slices.Clone(replies[:u.large-from]), nil)
		}
		if u.answer != nil {
			replies = u.answer(from, replies)
		}
		return replies
	}
	if u.ring > 0 {
		p.Ring = u.ring
	}
	for i := range u.before {
		p.PublishToRing(fmt.Sprint(i))
	}
	var changes atomic.Int64
	s, c := open(t, p, func(c *Config) { c.OnState = func(State, string) { changes.Add(1) } })
	synctest.Wait()
	var live []uint64
	for i := u.before; i < u.before+1800; i++ {
		switch {
		case u.idle && i >= u.before+30:
		case u.lose && i%10 == 9:
			p.PublishToRing(fmt.Sprint(i))
		case u.skip && i%10 == 9:
			p.SkipSequence()
		default:
			p.Publish(fmt.Sprint(i))
			live = append(live, uint64(i))
		}
		time.Sleep(2 * time.Second)
		if i == u.before+15 { // the first hole is given up by now
			changes.Store(0)
		}
	}
	state := Synced
	if u.reason != "" {
		state = Partial
	}
	st := wantState(t, s, state, u.reason)
	if st.Epoch != 1 && !u.drops {
		t.Errorf("blocks were dropped: epoch %d", st.Epoch)
	}
	have := make(map[uint64]bool)
	for _, seq := range c.seqs() {
		have[seq] = true
	}
	for _, seq := range live {
		if !have[seq] {
			t.Errorf("batch %d, which came live, is not there any more", seq)
			break
		}
	}
	asked := p.Requests()
	t.Logf("%d requests, %d of them in the first 50 s; %d changes of state later", len(asked), early, changes.Load())
	if len(asked) > u.requests || early > u.early {
		t.Errorf("%d requests in an hour, at most %d wanted; %d in 50 s, at most %d wanted", len(asked), u.requests, early, u.early)
	}
}
