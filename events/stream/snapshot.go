package stream

import (
	"time"

	"example.com/conductor/events"
)

// Why a snapshot of an engine was not applied: keys of Status.SnapshotFailures.
const (
	// The engine has none yet, or its recorder stopped for good.
	SnapshotUnavailable = "snapshot_unavailable"
	// No reply, or a reply without progress, for Config.SnapshotTimeout.
	SnapshotTimeout = "snapshot_timeout"
	// The endpoint cannot be reached, or hung up during the reply.
	SnapshotFailed = "snapshot_failed"
	// The reply is of another lifetime than the live batches.
	SnapshotPublisher = "snapshot_publisher"
	// The reply has other frames than a snapshot, or a part that cannot be decoded.
	SnapshotMalformed = "snapshot_malformed"
	// The reply has more bytes than Config.SnapshotBytes, or too many frames.
	SnapshotTooLarge = "snapshot_too_large"
	// The snapshot ends before the first live batch that waits, and nothing fills the hole.
	SnapshotBehind = "snapshot_behind"
	// More live batches arrived during the request than may wait.
	SnapshotOverflow = "snapshot_overflow"
)

// How far snapshots of an engine have come: Status.SnapshotState.
const (
	SnapshotWaits   = "waiting"  // the first request is planned or under way, or one after a loss
	SnapshotApplies = "applying" // a reply is being handed out
	SnapshotApplied = "applied"  // the last request led to a snapshot
	SnapshotMissing = "failed"   // the last request failed; the next is planned where it would help
)

// ReasonSnapshot is the reason of the DropBlocks that comes before a snapshot of the engine.
const ReasonSnapshot = "engine_snapshot"

const (
	// A publisher with snapshots sends a batch each second. One without a batch for this time
	// is asked anyway.
	firstBatch = 1500 * time.Millisecond

	minSnapshotPause = time.Second
	maxSnapshotPause = time.Minute
	// A snapshot costs the engine a second. A source that needs one again so soon waits.
	snapshotCalm = time.Minute

	maxKept      = 4096
	maxKeptBytes = 64 << 20
	// A reply that trickles ends after this many timeouts.
	snapshotPatience = 10
)

// snapshotRecovery is the step of the recovery before replays: the publisher's whole state.
//
//	nothing known --> hold --> ask --> snapshot --> DropBlocks, ApplySnapshotPart..., EndSnapshot --> batches behind it
//	                    |        +---> failure ---> replay, live batches; ask again after a pause
//	history lost  ----------> ask      (live batches go on meanwhile, and copies of them wait)
//
// Live batches that arrive during a request are kept. Those behind the snapshot follow it.
type snapshotRecovery struct {
	timeout            time.Duration // a request may go without progress
	keepLen, keepBytes int           // live batches that may wait for a snapshot

	holdsBatches bool      // nothing of this epoch is handed out before the first request ends
	first        bool      // the request is due as soon as a live batch comes
	due          time.Time // of the next request; zero: none is planned
	id           uint64    // of the request under way; 0: none
	began        time.Time // zero until the request has its turn
	deadline     time.Time // likewise
	pause        time.Duration
	filled       time.Time // when the last snapshot was applied

	liveID events.PublisherID // of the newest live batch on this connection
	kept   []queuedBatch      // live batches since the request began, ascending
	bytes  int                // of kept

	reply   *snapshotReply // being handed out
	at      time.Time      // of its arrival
	applied uint64
	failed  map[string]uint64
	reason  string // why the last request failed; "" after a snapshot
}

// stateName returns how far snapshots have come.
func (r *snapshotRecovery) stateName() string {
	switch {
	case r.reply != nil:
		return SnapshotApplies
	case r.reason != "":
		return SnapshotMissing
	case r.applied == 0 || r.id != 0 || !r.due.IsZero():
		return SnapshotWaits
	}
	return SnapshotApplied
}

// requestSnapshot begins a request. Live batches that are held, and those that arrive until
// the reply is here, are kept aside as well: the snapshot is the state behind some batch that
// is not known in advance, and the batches behind that one have to follow it without a gap. If
// more arrive than may wait, the request fails, because a snapshot with a hole behind it would
// claim blocks that are gone.
func (m *machine) requestSnapshot(now time.Time) {
	r := &m.snapshots
	r.first, r.due, r.began, r.deadline = false, time.Time{}, time.Time{}, time.Time{}
	// A replay or a clear has made the loss good since the request was planned.
	if !m.snapshots.holdsBatches && !m.completeness.wantsSnapshot() {
		return
	}
	m.requests++
	r.id = m.requests
	m.out.orders = append(m.out.orders, order{snapshot: true, ask: r.id})
	for i := range m.held.count() {
		if !m.snapshots.keepLive(m.held.items[m.held.off+i]) {
			m.failSnapshot(SnapshotOverflow, now)
			return
		}
	}
}

// failSnapshot ends a request without a snapshot. What waits is handed out, after a replay if
// there is one: a ring of a few minutes is better than nothing. The next request comes after a
// pause that doubles, with jitter, so that the ranks of a fleet which was restarted together
// do not ask together each time.
func (m *machine) failSnapshot(reason string, now time.Time) {
	r := &m.snapshots
	held := r.holdsBatches
	m.snapshots.cancelRequest(&m.out)
	r.reason = reason
	r.failed[reason]++
	m.out.recordError("no snapshot of the engine: %s", reason)
	r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	r.due = now.Add(m.cfg.jitter(r.pause))
	if held && m.cfg.canReplay && m.connected {
		m.startReplay(askFill)
	}
}

// acceptSnapshot judges a reply. It must be of the process that sends the live batches: during
// a rolling update the old process may answer while the new one already publishes. And the
// batches that were kept must reach back to it, or a replay must be able to fill the hole;
// else there would be removals that nobody saw.
//
// An accepted snapshot begins a new epoch if anything was applied before, since blocks that it
// does not list are gone. An engine that has published nothing has an empty state, which is
// complete without a part.
func (m *machine) acceptSnapshot(s *snapshotReply, at, now time.Time) {
	r := &m.snapshots
	reason := ""
	switch {
	case s.seq == snapshotUnavailable:
		reason = SnapshotUnavailable
	case m.heard > 0 && r.liveID != s.id:
		reason = SnapshotPublisher
	case !m.cfg.canReplay && r.leavesHole(uint64(s.seq+1)):
		reason = SnapshotBehind
	}
	if reason != "" {
		s.releaseChunks()
		m.failSnapshot(reason, now)
		return
	}
	// The kept batches outlive the request, and cancelRequest would release them.
	kept := r.kept
	r.kept, r.bytes = nil, 0
	r.id = 0 // the request is over
	m.snapshots.cancelRequest(&m.out)
	m.replay.cancelReplay(&m.out)
	if s.seq == nothingPublished {
		s.releaseChunks()
		if m.consumed.started {
			m.counts.restarts++
			m.beginEpoch(reasonRestart)
		}
		m.completeness.noteWhole()
		m.continueBehindSnapshot(kept, now)
		return
	}
	if m.consumed.started {
		m.beginEpoch(ReasonSnapshot)
	} else {
		m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: ReasonSnapshot})
	}
	r.reply, r.kept, r.at = s, kept, at
}

// leavesHole reports whether the kept batches do not begin behind a snapshot.
func (r *snapshotRecovery) leavesHole(next uint64) bool {
	return len(r.kept) > 0 && r.kept[0].seq > next
}

// nextSnapshotStep returns the next step of the snapshot that is being handed out: its parts,
// then its end, behind which the kept batches follow. It returns false if a part cannot be
// decoded. The parts before it were applied and may contradict what the publisher holds, so
// the blocks are dropped again, and the history is asked for elsewhere.
func (m *machine) nextSnapshotStep(now time.Time) (step Step, at time.Time, ok bool) {
	r := &m.snapshots
	s := r.reply
	if len(s.chunks) > 0 {
		c := s.chunks[0]
		batch, err := decodeWith(m.cfg.decodePart, c.Frames[0])
		if err != nil {
			kept := r.kept
			r.kept = nil
			m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: SnapshotMalformed})
			m.completeness.noteLost(ReasonUnknown)
			r.holdsBatches = true
			m.failSnapshot(SnapshotMalformed, now)
			m.out.recordError("cannot decode a part of the snapshot: %v", err)
			m.held.restoreKept(kept, 0)
			return Step{}, time.Time{}, false
		}
		for reason, n := range batch.Dropped {
			m.counts.dropped[reason] += uint64(n)
		}
		s.chunks = s.chunks[1:]
		s.bytes -= len(c.Frames[0])
		return Step{
			Kind: ApplySnapshotPart, Batch: batch, Payload: c.Frames[0], Block: c.Block,
			Seq: uint64(s.seq), ID: s.id, Epoch: m.epoch, Replayed: true,
		}, r.at, true
	}
	seq, at := s.seq, r.at
	kept := r.kept
	r.kept, r.reply = nil, nil
	// The snapshot is all that the publisher holds, so what was missing before it does not
	// matter any more. Only the caller can take its own doubt back.
	m.completeness = completeness{doubt: m.completeness.doubt}
	m.consumed.started, m.consumed.last, m.consumed.next, m.consumed.id = true, fingerprint{uint64(seq) + 1, 0}, uint64(seq)+1, s.id
	m.consumed.prints.forgetAll()
	m.continueBehindSnapshot(kept, now)
	return Step{Kind: EndSnapshot, Seq: uint64(seq), ID: s.id, Epoch: m.epoch}, at, true
}

// continueBehindSnapshot goes on behind a snapshot with the batches that were kept. Those at
// or below its number are part of it.
func (m *machine) continueBehindSnapshot(kept []queuedBatch, now time.Time) {
	m.snapshots.applied++
	m.snapshots.reason, m.snapshots.filled = "", now
	m.held.restoreKept(kept, m.consumed.next)
	m.secondLook.planLook(m, now)
}

// planFirstRequest plans a request to an unknown publisher, after a pause. Batches wait until
// the request ends, or they would be applied before the state that they change. heard: a live
// batch has come on this connection. Without one the request waits a moment for it, because a
// live batch proves that the subscription works: a snapshot taken before that could miss what
// is published between the two.
func (r *snapshotRecovery) planFirstRequest(now time.Time, pause time.Duration, heard bool, out *outbox) {
	r.cancelRequest(out)
	r.holdsBatches, r.due, r.pause, r.reason = true, now.Add(pause), 0, ""
	if pause == 0 && !heard {
		r.first, r.due = true, now.Add(firstBatch)
	}
}

// planRequest plans a request, if none is planned, because the history is lost and no replay
// may bring it back. A snapshot costs the engine about a second of its thread, so a source
// that loses batches again soon after one waits longer each time.
func (r *snapshotRecovery) planRequest(now time.Time) {
	if r.holdsBatches || r.id != 0 || !r.due.IsZero() {
		return
	}
	if r.reason == "" && !r.filled.IsZero() && now.Sub(r.filled) < snapshotCalm {
		r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	} else if r.reason == "" {
		r.pause = 0
	}
	r.due = now.Add(r.pause)
}

// cancelRequest ends the request under way, and plans none. All that waits for the reply
// goes with it, so every path that drops a request gives back the same memory. An order to
// stop is given only if a request runs.
func (r *snapshotRecovery) cancelRequest(out *outbox) {
	if r.id != 0 {
		out.orders = append(out.orders, order{snapshot: true, stop: true})
	}
	if r.reply != nil {
		r.reply.releaseChunks()
	}
	for i := range r.kept {
		r.kept[i].block.Release()
	}
	r.kept, r.bytes = nil, 0
	r.holdsBatches, r.first, r.due, r.id, r.reply = false, false, time.Time{}, 0, nil
	r.began, r.deadline = time.Time{}, time.Time{}
}

// keepLive remembers a live batch that may be behind the snapshot. It reports false without
// room.
//
// Replayed batches are not kept: behind the snapshot a replay can bring them again. A kept
// batch has a reference to its payload of its own, because it may be handed out, and given
// back, while the request goes on.
func (r *snapshotRecovery) keepLive(it queuedBatch) bool {
	if r.id == 0 || it.replayed {
		return true
	}
	if len(r.kept) >= r.keepLen || len(r.kept) > 0 && r.bytes+len(it.payload) > r.keepBytes {
		return false
	}
	it.block.Retain()
	r.kept = append(r.kept, it)
	r.bytes += len(it.payload)
	return true
}

// noteLiveBatch notes a live batch: its publisher is there, and acts on the subscription.
func (r *snapshotRecovery) noteLiveBatch(it *queuedBatch, now time.Time) {
	r.liveID = it.id
	if r.first {
		r.first, r.due = false, now
	}
}

// extendDeadline notes that a request has its turn, or that a part of the reply came. Each
// part extends the deadline, up to a limit: an engine that trickles would else hold the live
// batches, and a slot among the requests, for ever.
func (r *snapshotRecovery) extendDeadline(now time.Time) {
	if r.began.IsZero() {
		r.began = now
	}
	r.deadline = now.Add(r.timeout)
	if last := r.began.Add(snapshotPatience * r.timeout); r.deadline.After(last) {
		r.deadline = last
	}
}

// requestDue is when tick has to be called for a snapshot, zero if never. asking: a replay is wanted that batches wait for.
func (r *snapshotRecovery) requestDue(connected, asking bool) time.Time {
	switch {
	case r.id != 0:
		return r.deadline
	case !connected || asking && !r.holdsBatches:
		return time.Time{}
	}
	return r.due
}
