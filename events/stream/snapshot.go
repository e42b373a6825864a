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

// ReasonSnapshot is the reason of the Reset that comes before a snapshot of the engine.
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

// rung is the step of the recovery before replays: the publisher's whole state.
//
//	nothing known --> hold --> ask --> snapshot --> Reset, Fill..., Filled --> batches behind it
//	                    |        +---> failure ---> replay, live batches; ask again after a pause
//	history lost  ----------> ask      (live batches go on meanwhile, and copies of them wait)
//
// Live batches that arrive during a request are kept. Those behind the snapshot follow it.
type rung struct {
	timeout            time.Duration // a request may go without progress
	keepLen, keepBytes int           // live batches that may wait for a snapshot

	hold     bool      // nothing of this epoch is handed out before the first request ends
	first    bool      // the request is due as soon as a live batch comes
	due      time.Time // of the next request; zero: none is planned
	id       uint64    // of the request under way; 0: none
	began    time.Time // zero until the request has its turn
	deadline time.Time // likewise
	pause    time.Duration
	filled   time.Time // when the last snapshot was applied

	liveID events.PublisherID // of the newest live batch on this connection
	kept   []item             // live batches since the request began, ascending
	bytes  int                // of kept

	fill    *snapshot // being handed out
	at      time.Time // of its arrival
	applied uint64
	failed  map[string]uint64
	reason  string // why the last request failed; "" after a snapshot
}

// state returns how far snapshots have come.
func (r *rung) state() string {
	switch {
	case r.fill != nil:
		return SnapshotApplies
	case r.reason != "":
		return SnapshotMissing
	case r.applied == 0 || r.id != 0 || !r.due.IsZero():
		return SnapshotWaits
	}
	return SnapshotApplied
}

// askSnapshot begins a request.
func (m *machine) askSnapshot(now time.Time) {
	r := &m.rung
	r.first, r.due, r.began, r.deadline = false, time.Time{}, time.Time{}, time.Time{}
	if !m.rung.hold && !m.trust.wantsSnapshot() {
		return
	}
	m.asks++
	r.id = m.asks
	m.out.orders = append(m.out.orders, order{snapshot: true, ask: r.id})
	for i := range m.held.len() {
		if !m.rung.keep(m.held.items[m.held.off+i]) {
			m.failSnapshot(SnapshotOverflow, now)
			return
		}
	}
}

// failSnapshot ends a request without a snapshot. What waits is handed out, after a replay if
// there is one.
func (m *machine) failSnapshot(reason string, now time.Time) {
	r := &m.rung
	held := r.hold
	m.rung.stop(&m.out)
	r.reason = reason
	r.failed[reason]++
	m.out.recordError("no snapshot of the engine: %s", reason)
	r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	r.due = now.Add(m.cfg.jitter(r.pause))
	if held && m.cfg.canReplay && m.connected {
		m.start(askFill)
	}
}

// takeSnapshot judges a reply.
func (m *machine) takeSnapshot(s *snapshot, at, now time.Time) {
	r := &m.rung
	reason := ""
	switch {
	case s.seq == unavailable:
		reason = SnapshotUnavailable
	case m.heard > 0 && r.liveID != s.id:
		reason = SnapshotPublisher
	case !m.cfg.canReplay && r.leavesHole(uint64(s.seq+1)):
		reason = SnapshotBehind
	}
	if reason != "" {
		s.release()
		m.failSnapshot(reason, now)
		return
	}
	kept := r.kept
	r.kept, r.bytes = nil, 0
	r.id = 0 // the request is over
	m.rung.stop(&m.out)
	m.ask.stop(&m.out)
	if s.seq == unpublished {
		s.release()
		if m.consumed.has {
			m.n.restarts++
			m.newEpoch(reasonRestart)
		}
		m.trust.whole()
		m.landSnapshot(kept, now)
		return
	}
	if m.consumed.has {
		m.newEpoch(ReasonSnapshot)
	} else {
		m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: ReasonSnapshot})
	}
	r.fill, r.kept, r.at = s, kept, at
}

// leavesHole reports whether the kept batches do not begin behind a snapshot.
func (r *rung) leavesHole(next uint64) bool {
	return len(r.kept) > 0 && r.kept[0].seq > next
}

// popSnapshot returns the next step of the snapshot that is being handed out.
func (m *machine) popSnapshot(now time.Time) (step Step, at time.Time, ok bool) {
	r := &m.rung
	s := r.fill
	if len(s.chunks) > 0 {
		c := s.chunks[0]
		batch, err := decodeWith(m.cfg.decodePart, c.Frames[0])
		if err != nil {
			kept := r.kept
			r.kept = nil
			m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: SnapshotMalformed})
			m.trust.lose(ReasonUnknown)
			r.hold = true
			m.failSnapshot(SnapshotMalformed, now)
			m.out.recordError("cannot decode a part of the snapshot: %v", err)
			m.held.restore(kept, 0)
			return Step{}, time.Time{}, false
		}
		for reason, n := range batch.Dropped {
			m.n.dropped[reason] += uint64(n)
		}
		s.chunks = s.chunks[1:]
		s.bytes -= len(c.Frames[0])
		return Step{Kind: ApplySnapshotPart, Batch: batch, Payload: c.Frames[0], Block: c.Block, Seq: uint64(s.seq), ID: s.id, Epoch: m.epoch, Replayed: true}, r.at, true
	}
	seq, at := s.seq, r.at
	kept := r.kept
	r.kept, r.fill = nil, nil
	m.trust = trust{doubt: m.trust.doubt}
	m.consumed.has, m.consumed.last, m.consumed.next, m.consumed.id = true, print{uint64(seq) + 1, 0}, uint64(seq)+1, s.id
	m.consumed.prints.clear()
	m.landSnapshot(kept, now)
	return Step{Kind: EndSnapshot, Seq: uint64(seq), ID: s.id, Epoch: m.epoch}, at, true
}

// landSnapshot goes on behind a snapshot with the batches that were kept.
func (m *machine) landSnapshot(kept []item, now time.Time) {
	m.rung.applied++
	m.rung.reason, m.rung.filled = "", now
	m.held.restore(kept, m.consumed.next)
	m.check(now)
}

// begin plans a request to an unknown publisher, after a pause. Batches wait until the request ends. heard: a live batch
// has come on this connection.
func (r *rung) begin(now time.Time, pause time.Duration, heard bool, out *outbox) {
	r.stop(out)
	r.hold, r.due, r.pause, r.reason = true, now.Add(pause), 0, ""
	if pause == 0 && !heard {
		r.first, r.due = true, now.Add(firstBatch)
	}
}

// plan plans a request, if none is planned, because the history is lost and no replay may bring it back.
func (r *rung) plan(now time.Time) {
	if r.hold || r.id != 0 || !r.due.IsZero() {
		return
	}
	if r.reason == "" && !r.filled.IsZero() && now.Sub(r.filled) < snapshotCalm {
		r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	} else if r.reason == "" {
		r.pause = 0
	}
	r.due = now.Add(r.pause)
}

// stop ends the request under way, and plans none.
func (r *rung) stop(out *outbox) {
	if r.id != 0 {
		out.orders = append(out.orders, order{snapshot: true, stop: true})
	}
	if r.fill != nil {
		r.fill.release()
	}
	for i := range r.kept {
		r.kept[i].block.Release()
	}
	r.kept, r.bytes = nil, 0
	r.hold, r.first, r.due, r.id, r.fill = false, false, time.Time{}, 0, nil
	r.began, r.deadline = time.Time{}, time.Time{}
}

// keep remembers a live batch that may be behind the snapshot. It reports false without room.
func (r *rung) keep(it item) bool {
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

// noteLive notes a live batch: its publisher is there, and acts on the subscription.
func (r *rung) noteLive(it *item, now time.Time) {
	r.liveID = it.id
	if r.first {
		r.first, r.due = false, now
	}
}

// extendDeadline notes that a request has its turn, or that a part of the reply came.
func (r *rung) extendDeadline(now time.Time) {
	if r.began.IsZero() {
		r.began = now
	}
	r.deadline = now.Add(r.timeout)
	if last := r.began.Add(snapshotPatience * r.timeout); r.deadline.After(last) {
		r.deadline = last
	}
}

// dueAt is when tick has to be called for a snapshot, zero if never. asking: a replay is wanted that batches wait for.
func (r *rung) dueAt(connected, asking bool) time.Time {
	switch {
	case r.id != 0:
		return r.deadline
	case !connected || asking && !r.hold:
		return time.Time{}
	}
	return r.due
}
