package stream

import (
	"maps"
	"time"
	"unsafe"

	"example.com/conductor/events"
)

// State says how far a stream can be trusted.
type State string

const (
	Connecting State = "connecting" // no connection, or not yet again
	Replaying  State = "replaying"  // history is being fetched, live batches wait
	Synced     State = "synced"     // everything up to the watermark was applied
	Partial    State = "partial"    // something is missing, Reason says why
	Stale      State = "stale"      // without a connection for longer than Config.StaleAfter
	Paused     State = "paused"     // without a connection on purpose, see Stream.Pause
	Failed     State = "failed"     // the configuration can never work

	// Approximate is no state of a stream: the publisher has no events to follow, so there is nothing
	// to wait for and nothing to miss.
	Approximate State = "approximate"
)

// Ready reports whether answers have all that the publisher can give, so that nothing is waited for.
func (s State) Ready() bool { return s == Synced || s == Approximate }

// reasonEndpoint is the Reason of State Failed.
const reasonEndpoint = "bad_endpoint"

// Status is a snapshot of a stream.
type Status struct {
	State  State
	Reason string // of Partial and Failed
	// Epoch counts lifetimes of the publisher, and resyncs; the first is 1.
	Epoch uint64
	// LastSeq is the watermark: the last sequence applied in Epoch. Valid if
	// HasSeq.
	LastSeq uint64
	HasSeq  bool
	// History is why the batches up to LastSeq are not all there, "" if they are or
	// a clear made the missing ones irrelevant. Unlike State and Reason it does not
	// depend on the connection, nor on what may have come after LastSeq. Without
	// HasSeq it has the reason known so far: "" of a source that can replay, until a
	// replay fails, and history_unknown of any other.
	History string

	Gaps     uint64 // holes found in the live sequence after the first batch
	Replayed uint64 // batches handed out that came from a replay
	Restarts uint64 // restarts of the publisher noticed
	Overruns uint64 // replays that began after the batch asked for
	// ForeignReplay says that the replay service is another publisher's: it contradicts live batches.
	ForeignReplay bool
	// Duplicates counts batches that came twice, live or in a replay.
	Duplicates uint64
	Reconnects uint64 // connections after the first
	// Snapshots counts snapshots of the publisher that were handed out, SnapshotFailures
	// requests without one by reason. SnapshotReason is the reason of the last one, "" after a
	// snapshot.
	Snapshots        uint64
	SnapshotFailures map[string]uint64
	SnapshotReason   string
	SnapshotState    string // SnapshotWaits and so on; meaningless without a snapshot endpoint
	// Dropped counts messages that were dropped whole, and single events that
	// the decoder dropped, by reason.
	Dropped map[events.Reason]uint64

	// Unusable says why a message could not be used, "" unless Reason is ReasonUnusable.
	Unusable string

	// RefusedBy is who sent the last message that counts as events.ForeignConnection, ""
	// if there is none.
	RefusedBy string

	// Queued and QueuedBytes are batches received and not applied, and the bytes of
	// their payloads. At Config.Queue or Config.QueueBytes the stream stops reading.
	Queued, QueuedBytes int
	// OldestAt is when the batch arrived that has waited longest among those, zero without any.
	OldestAt time.Time
	// Bytes is the memory of fingerprints and of lists of batches, payloads left out.
	Bytes int

	Connected   bool
	ConnectedAt time.Time // when the last connection came up, zero if none has
	StaleAt     time.Time // when the source became Stale, zero in other states
	LastError   string    // of the transport or the decoder; stays until the next
	LastBatchAt time.Time // arrival of the batch applied last, zero if none
	LastLifeAt  time.Time // when the connection was last known to be up, zero if never
}

// statusView is what Status shows, apart from the machine so that a long decode holds
// up no reader. Guarded by Stream.mu.
type statusView struct {
	st Status

	shown     State // of the machine alone
	connects  uint64
	seen      uint64                   // connects that the machine has been told of
	errs      uint64                   // outbox.errs shown
	lost      time.Time                // when the connection was lost, or the stream opened
	sought    time.Time                // since when there should be one and is none
	retries   uint64                   // pushed
	retried   uint64                   // retries that the machine has been told of
	transport map[events.Reason]uint64 // drops outside the machine

	// heldLen and heldBytes are the batches in the machine, which count against the
	// queue.
	heldLen, heldBytes int
	heldAt             time.Time // arrival of the first of them; valid if heldLen > 0
	fillBytes          int       // of the snapshot that is being handed out
	throttled          bool      // a live batch waits for room
}

func newView(m *machine) statusView {
	now := time.Now()
	return statusView{
		st:   Status{Epoch: m.epoch, History: historyReasonOf(m)},
		lost: now, sought: now,
		transport: make(map[events.Reason]uint64),
	}
}

func (v *statusView) countDropped(r events.Reason, n uint64) { v.transport[r] += n }

func (v *statusView) noteConnected(now time.Time) {
	v.st.Connected, v.st.ConnectedAt = true, now
	if v.connects++; v.connects > 1 {
		v.st.Reconnects++
	}
}

// noteDisconnected notes that there is no connection. It may be called again without one in
// between, as by Pause after an end of its own; the time of the first end counts then, or
// the source would never become Stale.
func (v *statusView) noteDisconnected(now time.Time, why string) {
	if v.st.Connected {
		v.st.Connected, v.lost, v.sought = false, now, now
	}
	if why != "" {
		v.st.LastError = why
	}
}

// noteRetry begins to look for a connection again. The machine hears of it later; until then
// hasFailed answers for it, so that a second Unpause does nothing.
func (v *statusView) noteRetry(now time.Time) {
	v.noteDisconnected(now, "")
	v.sought = now
	v.retries++
}

// hasFailed reports whether the machine has failed and was not told to try again.
func (v *statusView) hasFailed() bool { return v.shown == Failed && v.retried == v.retries }

// moveWatermark moves the watermark past a step, and History with it: a batch in hand that
// clears everything, or that comes behind a loss, says nothing about what was applied before
// it. A reset of the same epoch leaves the watermark, since the sequence goes on.
func (v *statusView) moveWatermark(h stepInHand) {
	if h.kind != 0 {
		v.st.History = h.history
	}
	switch h.kind {
	case EndSnapshot:
		v.st.Epoch, v.st.LastSeq, v.st.HasSeq, v.st.LastBatchAt = h.epoch, h.seq, true, h.at
	case ApplyBatch:
		v.st.Epoch, v.st.LastSeq, v.st.HasSeq, v.st.LastBatchAt = h.epoch, h.seq, true, h.at
	case DropBlocks:
		if h.epoch != v.st.Epoch {
			v.st.Epoch, v.st.LastSeq, v.st.HasSeq = h.epoch, 0, false
		}
	}
}

// copyFromMachine copies what the machine knows. It is a copy because a batch may take long to
// decode, and Status must not wait for it.
func (v *statusView) copyFromMachine(m *machine) {
	v.shown, v.st.Reason = stateOf(m)
	if v.st.Unusable = ""; v.st.Reason == ReasonUnusable {
		v.st.Unusable = m.usability.why
	}
	v.st.Gaps, v.st.Replayed, v.st.Restarts = m.counts.gaps, m.counts.replayed, m.counts.restarts
	v.st.Overruns, v.st.Duplicates = m.counts.overruns, m.counts.duplicates
	v.st.ForeignReplay = m.evidence.foreign
	v.st.Snapshots, v.st.SnapshotReason, v.st.SnapshotState = m.snapshots.applied, m.snapshots.reason, m.snapshots.stateName()
	if n := len(m.snapshots.failed); n > 0 {
		if v.st.SnapshotFailures == nil {
			v.st.SnapshotFailures = make(map[string]uint64, n)
		}
		maps.Copy(v.st.SnapshotFailures, m.snapshots.failed)
	}
	if len(m.counts.dropped) > 0 {
		if v.st.Dropped == nil {
			v.st.Dropped = make(map[events.Reason]uint64)
		}
		maps.Copy(v.st.Dropped, m.counts.dropped)
	}
	v.st.Bytes = len(m.consumed.prints.slots)*int(unsafe.Sizeof(fingerprint{})) + cap(m.held.items)*int(unsafe.Sizeof(queuedBatch{}))
	v.seen, v.retried = m.connects, m.retries
	if v.errs != m.out.errs {
		v.errs, v.st.LastError = m.out.errs, m.out.err
	}
}

// stateOf returns what the machine knows of itself, as if connected. The first case that holds
// is shown: what the operator has to mend before what mends itself, and what holds up all
// batches before what is missing from some. A quiet replay, one that only looks whether
// something is missing, is not shown, or each reconnect of an idle engine would look like a
// recovery to a router that waits for Synced.
func stateOf(m *machine) (State, string) {
	switch reason := m.completeness.partialReason(); {
	case m.failed != "":
		return Failed, reasonEndpoint
	case m.storm.active:
		return Partial, ReasonStorm
	case m.snapshots.holdsBatches, m.snapshots.reply != nil:
		return Replaying, m.snapshots.reason
	case m.replay.holdsBatches() && !m.replay.quiet, m.catchingUp && m.held.count() > 0:
		return Replaying, reason
	case m.usability.mostUnusable:
		return Partial, ReasonUnusable
	case reason != "":
		return Partial, reason
	}
	return Synced, ""
}

// reportedState is what OnState heard last.
type reportedState struct {
	state   State
	reason  string
	foreign bool // Status.ForeignReplay
}

// reportState passes a change of state on to OnState. Status is brought up to date first, so
// that a callback which asks for it sees the state that it is about. turn is held.
func (s *Stream) reportState() {
	if s.cfg.OnState == nil {
		return
	}
	var now reportedState
	now.state, now.reason = stateOf(s.machine)
	if !s.machine.connected && now.state != Failed {
		now = reportedState{state: Connecting}
		if s.isPaused() {
			now.state = Paused
		}
	}
	now.foreign = s.machine.evidence.foreign
	if now != s.reported {
		s.reported = now
		s.mu.Lock()
		s.status.copyFromMachine(s.machine)
		s.mu.Unlock()
		s.cfg.OnState(now.state, now.reason)
	}
}

// Status returns a snapshot. It never waits for a batch being decoded or applied: all that
// it needs of the machine was copied under mu by the goroutine that drives it. Maps are
// cloned, as the caller may keep them while the stream goes on.
//
// What is known of the connection is newer than what the machine says: inputs may wait in
// the inbox. So the connection decides the state where there is none, and where the machine
// has not heard of the present one.
func (s *Stream) Status() Status {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.status
	st := v.st
	st.SnapshotFailures = maps.Clone(v.st.SnapshotFailures)
	st.Dropped = maps.Clone(v.transport)
	for r, n := range v.st.Dropped {
		st.Dropped[r] += n
	}
	if r, ok := s.cfg.Transport.(RefusalCounter); ok {
		var n uint64
		if n, st.RefusedBy = r.Refused(); n > 0 {
			st.Dropped[events.ForeignConnection] += n
		}
	}
	st.Queued = s.inbox.liveLen + s.inbox.replayLen + v.heldLen
	st.QueuedBytes = s.inbox.liveBytes + s.inbox.replayBytes + v.heldBytes
	if st.Queued > 0 {
		st.OldestAt = s.inbox.oldestArrival()
		if v.heldLen > 0 && (st.OldestAt.IsZero() || v.heldAt.Before(st.OldestAt)) {
			st.OldestAt = v.heldAt
		}
	}
	st.Bytes += cap(s.inbox.items) * int(unsafe.Sizeof(input{}))
	if !v.hasFailed() {
		switch {
		case st.Connected:
			st.LastLifeAt = now
		case v.connects > 0:
			st.LastLifeAt = v.lost
		}
	}
	var ofMachine bool
	if st.State, ofMachine = v.stateAt(now, s.link.paused, s.cfg.StaleAfter); !ofMachine {
		st.Reason, st.Unusable = "", ""
	}
	if st.State == Stale {
		st.StaleAt = v.sought.Add(s.cfg.StaleAfter)
	}
	return st
}

// State returns State and Epoch of Status at a fraction of its cost, for those who ask thousands of times a second.
func (s *Stream) State() (State, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.status
	if v.st.Connected && v.seen == v.connects {
		return v.shown, v.st.Epoch // without a look at the clock, in most cases
	}
	state, _ := v.stateAt(time.Now(), s.link.paused, s.cfg.StaleAfter)
	return state, v.st.Epoch
}

// stateAt returns the state at a time, and whether it is what the machine says. Stream.mu is held.
func (v *statusView) stateAt(now time.Time, paused bool, staleAfter time.Duration) (state State, ofMachine bool) {
	switch {
	case v.hasFailed():
		return v.shown, true
	// Between the moment at which the connection came up and the one at which the machine
	// hears of it, the machine still describes the connection before.
	case v.st.Connected && v.seen == v.connects:
		return v.shown, true
	case v.st.Connected:
		return Connecting, false
	case paused:
		return Paused, false
	case now.Sub(v.sought) > staleAfter:
		return Stale, false
	}
	return Connecting, false
}

// publishStatus makes what the machine knows visible. The caller has no step in hand, so
// History is brought up to date as well. With a step in hand it has to wait until that is
// applied (moveWatermark).
func (s *Stream) publishStatus() {
	s.mu.Lock()
	s.status.copyFromMachine(s.machine)
	s.countHeld(nil)
	s.status.st.History = historyReasonOf(s.machine)
	s.mu.Unlock()
}

// handToCaller makes a step the one in the caller's hands. Status goes on showing the
// watermark before it until the caller has applied it: a snapshot of the index that is taken
// now must not claim the batch.
func (s *Stream) handToCaller(step Step, at time.Time) {
	s.mu.Lock()
	s.status.copyFromMachine(s.machine)
	s.countHeld(nil)
	s.inHand = stepInHand{kind: step.Kind, seq: step.Seq, epoch: step.Epoch, at: at, history: historyReasonOf(s.machine)}
	s.mu.Unlock()
}
