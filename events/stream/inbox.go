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
	snapshot *snapshotReply
	at       time.Time // of inDisconnected: when the connection was last known to be up
	bad      bool      // of inReplayCut: the replay endpoint can never work
	ours     bool      // of inReplayCut: the stream ended the attempt, not the publisher
}

// inbox is what happened and has not been fed to the machine, in order of arrival.
//
// Batches of the live connection and of a replay are bounded separately. With one bound for
// both, a live connection that is ahead would fill it, and the replay for which the live
// batches wait could bring nothing any more: the two would wait for each other. Everything
// else (connections, ends of attempts) is rare, and must never wait, or a full queue could
// not even hear that its connection has ended.
type inbox struct {
	items []input // items[:off] are taken
	off   int

	maxLen, maxBytes       int
	liveLen, liveBytes     int
	replayLen, replayBytes int
	answers                int // inReplay* and inSnapshot* of any kind
	snapshotBytes          int
}

func (b *inbox) setLimits(n, bytes int) { b.maxLen, b.maxBytes = n, bytes }

// hasRoom reports whether a batch has room. The machine holds heldLen live batches of
// heldBytes bytes, which count as well: while a replay runs it takes live batches out of
// the queue only to keep them. A batch always fits into an empty queue, or one that is
// larger than the queue would wait for ever.
func (b *inbox) hasRoom(in *input, heldLen, heldBytes int) bool {
	n, bytes := b.replayLen, b.replayBytes
	if in.kind == inLive {
		n, bytes = b.liveLen+heldLen, b.liveBytes+heldBytes
	}
	return n == 0 || n < b.maxLen && bytes+len(in.payload) <= b.maxBytes
}

// appendInput appends an input. Messages that are refused one after another are one input, for
// there may be many: a publisher of another protocol sends nothing else, and they are bounded
// by nothing.
func (b *inbox) appendInput(in input) {
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

// takeOldest removes the oldest input. Its place is cleared, so that the payload does not
// live on in the list. The space before it is reused once it is half of the list, so that a
// queue which is never quite empty does not creep through memory.
func (b *inbox) takeOldest() (input, bool) {
	if b.off == len(b.items) {
		return input{}, false
	}
	in := b.items[b.off]
	b.items[b.off] = input{}
	if b.off++; b.off == len(b.items) {
		b.items, b.off = emptySlice(b.items), 0
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

// oldestArrival returns when the first batch of the inbox arrived, zero without any. It
// passes over inputs that are no batches; there are few of them in a row, so Status can
// afford to look each time.
func (b *inbox) oldestArrival() time.Time {
	for i := range b.items[b.off:] {
		if in := &b.items[b.off+i]; in.kind == inLive || in.kind == inReplay {
			return in.at
		}
	}
	return time.Time{}
}

// pushInput hands an input to the machine. A live batch waits for room in the queue. It
// returns false for a replayed batch without room, and if ctx has ended with the
// connection that the input is of.
func (s *Stream) pushInput(ctx context.Context, in input) bool {
	if in.at.IsZero() {
		in.at = time.Now()
	}
	if !s.queueInput(ctx, in) {
		return false
	}
	s.wakeNext()
	return true
}

// queueInput is pushInput without waking Next. What Status shows about the connection
// changes here, together with the queue and under the same lock: a reader of Status that
// sees "connected" must not see it before the machine can hear of it, nor after the next
// disconnect.
//
// A live batch without room waits, which stops reading the socket, so that TCP pushes back
// and the publisher queues. A replayed batch does not wait: the publisher sends the ring
// from the thread that also publishes, so a replay that stands still would hold up the
// engine. Its attempt ends instead, and asks for the rest later.
//
// The reader may wait here when Pause or Close ends its connection. Both cancel ctx and
// wake room while they hold mu, so the reader cannot miss it. It then drops its batch: the
// machine hears of the end of the connection right after it, and would drop what waits
// anyway.
func (s *Stream) queueInput(ctx context.Context, in input) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil && in.kind == inLive && !s.hasRoomFor(&in) {
		s.status.throttled = true
		s.room.Wait()
	}
	// A live batch that got its room ends the state of being throttled. Other inputs say
	// nothing about it.
	s.status.throttled = s.status.throttled && in.kind != inLive
	switch {
	case ctx.Err() != nil: // Pause and Close end it with mu held
		return false
	case in.kind == inReplay && !s.hasRoomFor(&in):
		return false
	case in.kind == inConnected:
		s.status.noteConnected(in.at)
	case in.kind == inDisconnected:
		s.status.noteDisconnected(in.at, in.text)
	case in.kind == inFailed:
		s.link.failed = true
	}
	s.inbox.appendInput(in)
	s.chargeMemory()
	return true
}

// hasRoomFor reports whether a batch has room: in the queue of this stream, and in the
// memory that all streams share. mu is held.
func (s *Stream) hasRoomFor(in *input) bool {
	if in.kind == inLive {
		return s.inbox.hasRoom(in, s.status.heldLen, s.status.heldBytes) && s.live.Fits(len(in.payload))
	}
	return s.inbox.hasRoom(in, 0, 0) && s.replayed.Fits(len(in.payload))
}

// chargeMemory counts what the stream holds against Config.Memory, which all sources share. It
// sets the sum instead of adding to it, so that no path can forget to give back what another
// has taken. mu is held.
func (s *Stream) chargeMemory() {
	b, v := &s.inbox, &s.status
	if s.ctx.Err() != nil { // the batches belong to the garbage collector
		s.live.Set(0, 0)
		s.replayed.Set(0, 0)
		return
	}
	s.live.Set(b.liveLen+v.heldLen, b.liveBytes+v.heldBytes)
	s.replayed.Set(b.replayLen, b.replayBytes+b.snapshotBytes+v.fillBytes)
}

// hasQueuedAnswer reports whether something of a replay waits in the inbox. While it does,
// patience does not end: the publisher has answered, and it is our caller that is slow.
// Without this an index that pauses for longer than the timeout would give up every replay
// that is under way.
func (s *Stream) hasQueuedAnswer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbox.answers > 0
}

// takeInput removes the oldest input from the inbox. turn is held.
func (s *Stream) takeInput() (input, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.inbox.takeOldest()
	s.countHeld(&in)
	return in, ok
}

// countHeld counts what the machine holds against the queue, with a live batch that it gets
// next, and lets the live reader go on if there is room. Batches leave the inbox for the
// machine long before they are applied when a replay runs; without this count the queue
// would look empty and the reader would go on to fill memory.
//
// Batches that are kept for a snapshot are mostly those that are held as well, with one
// payload for both, so the larger of the two numbers counts and not the sum. turn and mu
// are held.
func (s *Stream) countHeld(next *input) {
	r := &s.machine.snapshots // what it keeps is mostly held as well
	s.status.heldLen, s.status.heldBytes = max(s.machine.held.count(), len(r.kept)), max(s.machine.held.bytes, r.bytes)
	s.status.fillBytes = s.machine.evidence.bytes
	if r.reply != nil {
		s.status.fillBytes += r.reply.bytes
	}
	if next != nil && next.snapshot != nil {
		s.status.fillBytes += next.snapshot.bytes
	}
	if s.machine.held.count() > 0 {
		s.status.heldAt = s.machine.held.firstBatch().at
	} else if len(r.kept) > 0 {
		s.status.heldAt = r.kept[0].at
	}
	if next != nil && next.kind == inLive {
		if s.status.heldLen == 0 {
			s.status.heldAt = next.at
		}
		s.status.heldLen++
		s.status.heldBytes += len(next.payload)
	}
	s.machine.throttled = s.status.throttled
	s.chargeMemory()
	s.room.Signal()
}
