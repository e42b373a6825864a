package stream

import (
	"context"
	"time"

	"kvconductor/events"
)

// inputKind says what happened outside the machine.
type inputKind uint8

const (
	inConnected    inputKind = iota + 1
	inDisconnected           // the live connection is lost
	inFailed                 // the endpoint can never work
	inLive                   // a live batch
	inOverflow               // live batches were dropped at this place
	inResync                 // the application asks to start over
	inRetry                  // what failed for good may be tried again
	inReplayStart            // the replay attempt got its turn; from here on, its answers
	inReplay                 // a replayed batch
	inReplayEnd              // the publisher said that it has no more
	inReplayCut              // the attempt ended before that
)

// input is one thing that happened.
type input struct {
	kind    inputKind
	ask     uint64 // of inReplay*: the attempt
	seq     uint64
	payload []byte
	text    string // of inResync, inFailed
	at      time.Time
	bad     bool // of inReplayCut: the replay endpoint can never work
}

// inbox is what happened and has not been fed to the machine, in order of
// arrival. Live and replayed batches are bounded separately; everything else is
// rare.
type inbox struct {
	items []input // items[:off] are taken
	off   int

	maxLen, maxBytes       int
	liveLen, liveBytes     int
	replayLen, replayBytes int
	answers                int // inReplay* of any kind
	overflows              int // inOverflow
}

func (b *inbox) limit(n, bytes int) { b.maxLen, b.maxBytes = n, bytes }

// put appends in. It returns false if in is a batch that does not fit: then a
// live batch leaves an inOverflow in its place, a replayed one nothing. A batch
// always fits into an empty queue. waiting is what the machine holds itself.
func (b *inbox) put(in input, waitingLen, waitingBytes int) bool {
	full := func(n, bytes int) bool {
		return n > 0 && (n >= b.maxLen || bytes+len(in.payload) > b.maxBytes)
	}
	switch in.kind {
	case inLive:
		if full(b.liveLen+waitingLen, b.liveBytes+waitingBytes) {
			if n := len(b.items); n == b.off || b.items[n-1].kind != inOverflow {
				b.items = append(b.items, input{kind: inOverflow, at: in.at})
				b.overflows++
			}
			return false
		}
		b.liveLen++
		b.liveBytes += len(in.payload)
	case inReplay:
		if full(b.replayLen, b.replayBytes) {
			return false
		}
		b.replayLen++
		b.replayBytes += len(in.payload)
	}
	if in.kind >= inReplayStart {
		b.answers++
	}
	b.items = append(b.items, in)
	return true
}

// take removes the oldest input.
func (b *inbox) take() (input, bool) {
	if b.off == len(b.items) {
		return input{}, false
	}
	in := b.items[b.off]
	b.items[b.off] = input{}
	if b.off++; b.off == len(b.items) {
		b.items, b.off = emptied(b.items), 0
	} else if b.off >= 1024 && b.off >= len(b.items)/2 {
		n := copy(b.items, b.items[b.off:])
		clear(b.items[n:])
		b.items, b.off = b.items[:n], 0
	}
	if in.kind >= inReplayStart {
		b.answers--
	}
	switch in.kind {
	case inOverflow:
		b.overflows--
	case inLive:
		b.liveLen--
		b.liveBytes -= len(in.payload)
	case inReplay:
		b.replayLen--
		b.replayBytes -= len(in.payload)
	}
	return in, true
}

// push hands an input to the machine; false if it was dropped, or if it is of a
// connection that has ended with ctx.
func (s *Stream) push(ctx context.Context, in input) bool {
	in.at = time.Now()
	s.mu.Lock()
	if ctx.Err() != nil { // Pause and Close see to that with mu held
		s.mu.Unlock()
		return false
	}
	ok := s.inbox.put(in, s.view.waitingLen, s.view.waitingBytes)
	switch {
	case !ok && in.kind == inLive:
		s.view.drop(events.Overflow, 1)
	case in.kind == inConnected:
		s.view.connect()
	case in.kind == inDisconnected:
		s.view.disconnect(in.at, in.text)
	case in.kind == inFailed:
		s.link.failed = true
	}
	s.mu.Unlock()
	s.signal()
	return ok
}

// answered reports whether something of a replay waits in the inbox.
func (s *Stream) answered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbox.answers > 0
}

// take removes the oldest input from the inbox.
func (s *Stream) take() (input, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbox.take()
}
