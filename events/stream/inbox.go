package stream

import (
	"context"
	"time"
)

// inputKind says what happened outside the machine.
type inputKind uint8

const (
	inConnected     inputKind = iota + 1
	inDisconnected            // the live connection is lost
	inFailed                  // the endpoint can never work
	inLive                    // a live batch
	inRefused                 // live messages whose frames make no sense
	inResync                  // the application asks to start over
	inRetry                   // what failed for good may be tried again
	inReplayStart             // the replay attempt got its turn; from here on, its answers
	inReplay                  // a replayed batch
	inReplayEnd               // the publisher said that it has no more
	inReplayCut               // the attempt ended before that
	inSnapshotStart           // the request for a snapshot got its turn, or a part of the reply came
	inSnapshot                // the reply
	inSnapshotCut             // the request ended without one
)

// input is one thing that happened.
type input struct {
	kind    inputKind
	message        // of inLive, inReplay
	ask     uint64 // of inReplay*, inSnapshot*: the attempt
	text    string // of inResync, inFailed; of inSnapshotCut and inRefused: why
	refused int    // of inRefused: how many, one after another
	// snapshot is of inSnapshot.
	snapshot *snapshot
	at       time.Time // of inDisconnected: when the connection was last known to be up
	bad      bool      // of inReplayCut: the replay endpoint can never work
	ours     bool      // of inReplayCut: the stream ended the attempt, not the publisher
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
	answers                int // inReplay* and inSnapshot* of any kind
	snapshotBytes          int
}

func (b *inbox) limit(n, bytes int) { b.maxLen, b.maxBytes = n, bytes }

// fits reports whether a batch has room. The machine holds heldLen live batches of
// heldBytes bytes, which count as well. A batch always fits into an empty queue.
func (b *inbox) fits(in *input, heldLen, heldBytes int) bool {
	n, bytes := b.replayLen, b.replayBytes
	if in.kind == inLive {
		n, bytes = b.liveLen+heldLen, b.liveBytes+heldBytes
	}
	return n == 0 || n < b.maxLen && bytes+len(in.payload) <= b.maxBytes
}

// put appends an input. Messages that are refused one after another are one input, for there
// may be many.
func (b *inbox) put(in input) {
	if n := len(b.items); in.kind == inRefused && n > b.off && b.items[n-1].kind == inRefused {
		b.items[n-1].refused++
		b.items[n-1].text = in.text
		return
	}
	switch in.kind {
	case inLive:
		b.liveLen++
		b.liveBytes += len(in.payload)
	case inReplay:
		b.replayLen++
		b.replayBytes += len(in.payload)
	}
	if in.kind >= inReplayStart {
		b.answers++
	}
	if in.snapshot != nil {
		b.snapshotBytes += in.snapshot.bytes
	}
	b.items = append(b.items, in)
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
	if in.snapshot != nil {
		b.snapshotBytes -= in.snapshot.bytes
	}
	switch in.kind {
	case inLive:
		b.liveLen--
		b.liveBytes -= len(in.payload)
	case inReplay:
		b.replayLen--
		b.replayBytes -= len(in.payload)
	}
	return in, true
}

// oldest returns when the first batch of the inbox arrived, zero without any.
func (b *inbox) oldest() time.Time {
	for i := range b.items[b.off:] {
		if in := &b.items[b.off+i]; in.kind == inLive || in.kind == inReplay {
			return in.at
		}
	}
	return time.Time{}
}

// push hands an input to the machine. A live batch waits for room in the queue. push
// returns false for a replayed batch without room, and if ctx has ended with the
// connection that the input is of.
func (s *Stream) push(ctx context.Context, in input) bool {
	if in.at.IsZero() {
		in.at = time.Now()
	}
	if !s.put(ctx, in) {
		return false
	}
	s.signal()
	return true
}

// put is push without waking Next.
func (s *Stream) put(ctx context.Context, in input) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil && in.kind == inLive && !s.fits(&in) {
		s.view.throttled = true
		s.room.Wait()
	}
	s.view.throttled = s.view.throttled && in.kind != inLive
	switch {
	case ctx.Err() != nil: // Pause and Close end it with mu held
		return false
	case in.kind == inReplay && !s.fits(&in):
		return false
	case in.kind == inConnected:
		s.view.connect(in.at)
	case in.kind == inDisconnected:
		s.view.disconnect(in.at, in.text)
	case in.kind == inFailed:
		s.link.failed = true
	}
	s.inbox.put(in)
	s.charge()
	return true
}

// fits reports whether a batch has room. mu is held.
func (s *Stream) fits(in *input) bool {
	if in.kind == inLive {
		return s.inbox.fits(in, s.view.heldLen, s.view.heldBytes) && s.live.Fits(len(in.payload))
	}
	return s.inbox.fits(in, 0, 0) && s.replayed.Fits(len(in.payload))
}

// charge counts what the stream holds against Config.Memory. mu is held.
func (s *Stream) charge() {
	b, v := &s.inbox, &s.view
	if s.ctx.Err() != nil { // the batches belong to the garbage collector
		s.live.Set(0, 0)
		s.replayed.Set(0, 0)
		return
	}
	s.live.Set(b.liveLen+v.heldLen, b.liveBytes+v.heldBytes)
	s.replayed.Set(b.replayLen, b.replayBytes+b.snapshotBytes+v.fillBytes)
}

// answered reports whether something of a replay waits in the inbox.
func (s *Stream) answered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbox.answers > 0
}

// take removes the oldest input from the inbox. turn is held.
func (s *Stream) take() (input, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.inbox.take()
	s.hold(&in)
	return in, ok
}

// hold counts what the machine holds against the queue, with a live batch that it gets
// next, and lets the live reader go on if there is room. turn and mu are held.
func (s *Stream) hold(next *input) {
	r := &s.machine.rung // what it keeps is mostly held as well
	s.view.heldLen, s.view.heldBytes = max(s.machine.held.len(), len(r.kept)), max(s.machine.held.bytes, r.bytes)
	s.view.fillBytes = 0
	if r.fill != nil {
		s.view.fillBytes = r.fill.bytes
	}
	if next != nil && next.snapshot != nil {
		s.view.fillBytes = next.snapshot.bytes
	}
	if s.machine.held.len() > 0 {
		s.view.heldAt = s.machine.held.head().at
	} else if len(r.kept) > 0 {
		s.view.heldAt = r.kept[0].at
	}
	if next != nil && next.kind == inLive {
		if s.view.heldLen == 0 {
			s.view.heldAt = next.at
		}
		s.view.heldLen++
		s.view.heldBytes += len(next.payload)
	}
	s.machine.throttled = s.view.throttled
	s.charge()
	s.room.Signal()
}
