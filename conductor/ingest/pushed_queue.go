package ingest

import (
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// maxPushed is how many bytes may wait for a source before its senders do.
const maxPushed = 4 << 20

// pushedStep is a step that waits: a delivery, or a DropBlocks.
type pushedStep struct {
	delivery *lmcache.Delivery // nil: a DropBlocks
	reason   string            // of a DropBlocks
}

// shift takes the first step from the queue. mu is held.
func (f *pushed) shift() {
	if d := f.queue[0].delivery; d != nil {
		f.st.Queued--
		f.st.QueuedBytes -= len(d.Payload)
	}
	f.queue[0] = pushedStep{}
	f.queue = f.queue[1:]
	if f.room != nil && f.st.QueuedBytes < maxPushed {
		close(f.room)
		f.room = nil
	}
}

// emptyQueue empties the queue. mu is held.
func (f *pushed) emptyQueue() {
	for len(f.queue) > 0 {
		d := f.queue[0].delivery
		f.shift()
		if d != nil {
			d.End()
		}
	}
}

// Take implements lmcache.Receiver.
func (f *pushed) Take(d *lmcache.Delivery) {
	f.mu.Lock()
	if f.paused && f.broken == "" {
		f.broken = stream.ReasonGap
	}
	taken := f.broken == "" && !f.over
	if taken {
		f.heard = true
		f.queue = append(f.queue, pushedStep{delivery: d})
		f.st.Queued++
		f.st.QueuedBytes += len(d.Payload)
	}
	f.mu.Unlock()
	if !taken {
		d.End()
	}
	f.signal()
}

// Renew implements lmcache.Receiver.
func (f *pushed) Renew() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken == "" || f.paused || f.over {
		return false
	}
	f.queue = append(f.queue, pushedStep{reason: f.broken})
	f.broken = ""
	f.signal()
	return true
}

// Room implements lmcache.Receiver.
func (f *pushed) Room() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.st.QueuedBytes < maxPushed {
		return nil
	}
	if f.room == nil {
		f.room = make(chan struct{})
	}
	return f.room
}

// Trust implements lmcache.Receiver.
func (f *pushed) Trust(reason string) {
	f.change(func() {
		if reason == lmcache.Gap && f.trust != reason {
			f.st.Gaps++
		}
		f.trust, f.heard = reason, f.heard || !f.paused
	})
}

// Drop implements lmcache.Receiver.
func (f *pushed) Drop(reason string, n int) {
	f.mu.Lock()
	f.st.Dropped[events.Reason(reason)] += uint64(n)
	f.mu.Unlock()
}
