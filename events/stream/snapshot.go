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

// beginSnapshot asks for a snapshot of an unknown publisher, after a pause.
// Batches wait until the request ends.
func (m *machine) beginSnapshot(now time.Time, pause time.Duration) {
	m.stopSnapshot()
	r := &m.rung
	r.hold, r.due, r.pause, r.reason = true, now.Add(pause), 0, ""
	if pause == 0 && m.heard == 0 {
		r.first, r.due = true, now.Add(firstBatch)
	}
}

// planSnapshot plans a request if the history is lost, and no replay may bring it back.
func (m *machine) planSnapshot(now time.Time) {
	r := &m.rung
	if !m.cfg.canSnapshot || !m.connected || r.hold || r.id != 0 || !r.due.IsZero() || m.asking() || !m.wantsSnapshot() {
		return
	}
	if r.reason == "" && !r.filled.IsZero() && now.Sub(r.filled) < snapshotCalm {
		r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	} else if r.reason == "" {
		r.pause = 0
	}
	r.due = now.Add(r.pause)
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

// wantsSnapshot reports whether a snapshot would help.
func (m *machine) wantsSnapshot() bool {
	return m.rung.hold || m.trust.lost != "" || m.trust.unverified
}

// askSnapshot begins a request.
func (m *machine) askSnapshot(now time.Time) {
	r := &m.rung
	r.first, r.due, r.began, r.deadline = false, time.Time{}, time.Time{}, time.Time{}
	if !m.wantsSnapshot() {
		return
	}
	m.asks++
	r.id = m.asks
	m.orders = append(m.orders, order{snapshot: true, ask: r.id})
	for i := range m.held.len() {
		if !m.keep(m.held.items[m.held.off+i]) {
			m.failSnapshot(SnapshotOverflow, now)
			return
		}
	}
}

// stopSnapshot ends the request under way, and plans none.
func (m *machine) stopSnapshot() {
	r := &m.rung
	if r.id != 0 {
		m.orders = append(m.orders, order{snapshot: true, stop: true})
	}
	if r.fill != nil {
		r.fill.release()
	}
	m.dropKept()
	r.hold, r.first, r.due, r.id, r.fill = false, false, time.Time{}, 0, nil
	r.began, r.deadline = time.Time{}, time.Time{}
}

// keep remembers a live batch that may be behind the snapshot. It reports false without room.
func (m *machine) keep(it item) bool {
	r := &m.rung
	if r.id == 0 || it.replayed {
		return true
	}
	if len(r.kept) >= m.cfg.keepLen || len(r.kept) > 0 && r.bytes+len(it.payload) > m.cfg.keepBytes {
		return false
	}
	it.block.Retain()
	r.kept = append(r.kept, it)
	r.bytes += len(it.payload)
	return true
}

func (m *machine) dropKept() {
	for i := range m.rung.kept {
		m.rung.kept[i].block.Release()
	}
	m.rung.kept, m.rung.bytes = nil, 0
}

// heardLive notes a live batch: its publisher is there, and acts on the subscription.
func (m *machine) heardLive(it *item, now time.Time) {
	r := &m.rung
	r.liveID = it.id
	if r.first {
		r.first, r.due = false, now
	}
}

// failSnapshot ends a request without a snapshot. What waits is handed out, after a replay if
// there is one.
func (m *machine) failSnapshot(reason string, now time.Time) {
	r := &m.rung
	held := r.hold
	m.stopSnapshot()
	r.reason = reason
	r.failed[reason]++
	m.complain("no snapshot of the engine: %s", reason)
	r.pause = min(max(2*r.pause, minSnapshotPause), maxSnapshotPause)
	r.due = now.Add(m.cfg.jitter(r.pause))
	if held && m.cfg.canReplay && m.connected {
		m.start(askFill)
	}
}

// snapshotStarted notes that a request has its turn, or that a part of the reply came.
func (m *machine) snapshotStarted(now time.Time) {
	r := &m.rung
	if r.began.IsZero() {
		r.began = now
	}
	r.deadline = now.Add(m.cfg.snapshotTimeout)
	if last := r.began.Add(snapshotPatience * m.cfg.snapshotTimeout); r.deadline.After(last) {
		r.deadline = last
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
	m.stopSnapshot()
	m.stop()
	if s.seq == unpublished {
		s.release()
		if m.has {
			m.n.restarts++
			m.newEpoch(reasonRestart)
		}
		m.trust.whole()
		m.landSnapshot(kept, now)
		return
	}
	if m.has {
		m.newEpoch(ReasonSnapshot)
	} else {
		m.resets = append(m.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: ReasonSnapshot})
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
			m.resets = append(m.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: SnapshotMalformed})
			m.trust.lose(ReasonUnknown)
			r.hold = true
			m.failSnapshot(SnapshotMalformed, now)
			m.complain("cannot decode a part of the snapshot: %v", err)
			m.restore(kept, 0)
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
	m.has, m.last, m.next, m.id = true, print{uint64(seq) + 1, 0}, uint64(seq)+1, s.id
	m.prints.clear()
	m.landSnapshot(kept, now)
	return Step{Kind: EndSnapshot, Seq: uint64(seq), ID: s.id, Epoch: m.epoch}, at, true
}

// landSnapshot goes on behind a snapshot with the batches that were kept.
func (m *machine) landSnapshot(kept []item, now time.Time) {
	m.rung.applied++
	m.rung.reason, m.rung.filled = "", now
	m.restore(kept, m.next)
	m.check(now)
}

// restore puts kept batches back, from a sequence on.
func (m *machine) restore(kept []item, from uint64) {
	m.held.clear()
	for _, it := range kept {
		if it.seq < from {
			it.block.Release()
			continue
		}
		m.held.add(it)
	}
}

// snapshotDue is when tick has to be called for a snapshot, zero if never.
func (m *machine) snapshotDue() time.Time {
	r := &m.rung
	if r.id != 0 {
		return r.deadline
	}
	if !m.connected || m.asking() && !r.hold {
		return time.Time{}
	}
	return r.due
}

// tickSnapshot lets time pass for a request.
func (m *machine) tickSnapshot(now time.Time) {
	if m.rung.id != 0 {
		m.failSnapshot(SnapshotTimeout, now)
		return
	}
	m.askSnapshot(now)
}
