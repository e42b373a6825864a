package stream

import (
	"time"

	"example.com/conductor/events"
)

// askKind says what a replay is asked for.
type askKind uint8

const (
	askNone askKind = iota
	// askFill wants everything from next on, or from 0 if nothing was consumed.
	askFill
	// askVerify starts at the last batch consumed, or at the last before a replay boundary,
	// the anchor: the same bytes from there to the last batch consumed prove that
	// the publisher is the same. Nothing is handed out before that.
	askVerify
	// askProbe wants one reply only; nothing waits for it.
	askProbe
	// askProof wants one batch that came live, to see whether the service has the same; nothing waits for it.
	askProof
)

// replayRequest is the replay wanted at present. One request may take several attempts: each
// that made progress is followed by one from the first missing batch, until they are
// too many for what they brought; each that failed without by a pause, until
// cfg.timeout has passed without progress. One that brought the batch at the
// watermark but not the next is followed by one more.
//
//	startReplay --> issueRequest ==order==> startPatience --> acceptReply* --> endReplay --> finishReplay
//	                     ^                                         |  gap, cut, silence
//	                     +--------- resumeReplay (progress) -------+---> giveUpReplay (too many)
//	                     +--------- a pause, again (none yet) -----+---> giveUpReplay (too long)
type replayRequest struct {
	kind  askKind
	quiet bool // of a check that finds nothing in the usual case; not shown
	// liveIsBehind: the live connection is behind what the publisher has. Another lifetime
	// may answer, and this one may have forgotten the anchor.
	liveIsBehind bool
	id           uint64
	from         uint64
	since        uint64 // the next batch when this attempt began
	next         uint64 // of a probe from the start: the batch it reads next; 0 before the first
	// resumed counts the attempts that ended too early, for other reasons than ours.
	resumed int
	// brought counts replies.
	brought int
	denied  bool // the publisher answered without what was missing

	waiting  time.Time     // the next attempt begins then; zero: it has begun
	pause    time.Duration // before the next retry
	deadline time.Time     // of patience; zero until the first attempt has its turn

	anchor             fingerprint // askVerify, askProbe: a batch known to be the publisher's, or that should be
	anchorMet          bool        // askVerify: the first reply of this attempt was the anchor
	anchored           bool        // askVerify: the last batch consumed is the publisher's
	reachedWatermark   bool        // this attempt brought the batch at the watermark
	secondTry          bool        // the attempt before brought only that, or began with batch 1, so this one is taken at its word
	progress           bool        // this attempt brought something that was missing when it began
	knownMissing       bool        // when this attempt began, something was known to be missing
	crossesConnections bool        // when this attempt began, something had been consumed

	head     replyHead // of this attempt
	high     uint64    // the number behind the highest reply of this attempt that left no hole
	furthest uint64    // the number behind the highest reply of this attempt
	afterOdd uint64    // the number behind the last reply that was dropped for its number
	hasOdd   bool      // replies were dropped for their numbers, in this attempt or before it
}

const (
	minRetry = 100 * time.Millisecond

	// A request may be resumed maxResumes times, a probe maxResumesOfProbe times, and once more for every
	// repliesPerResume replies. A publisher streams its ring for each attempt, so one that hangs up
	// after a few replies is soon left alone. A socket drops replies beyond its high-water mark, which
	// is 1,000 unless it was lowered, and a ring of 10,000 batches still has to come whole.
	maxResumes        = 8
	maxResumesOfProbe = 2
	repliesPerResume  = 16
)

// replayBoundary is where batches replayed over one connection were put behind what came
// over others. The publisher may have been restarted just before, and the live
// connection that would tell may end only now: then both sides of the replay boundary are
// of different lifetimes, and a reconnect that verifies the newest batch would
// find nothing wrong. So it verifies all from the last one before the replay boundary,
// unless the live connection outlived the replay for long enough to be the same
// publisher's.
type replayBoundary struct {
	before fingerprint // moves on while it is verified
	at     time.Time   // of the last reply behind it
}

// A process that ends closes its connections at once; one whose host vanished
// is found out by keepalive after 25 s.
const boundaryLifetime = 30 * time.Second

// endIfOutlived ends the replay boundary if the live connection, which stands at a time, has outlived it.
func (j *replayBoundary) endIfOutlived(at time.Time) {
	if !j.at.IsZero() && at.Sub(j.at) > boundaryLifetime {
		*j = replayBoundary{}
	}
}

// extendBoundary notes that a replayed batch, which arrived at a time, is put behind what
// other connections brought, of which last was the last.
func (j *replayBoundary) extendBoundary(at time.Time, last fingerprint) {
	j.endIfOutlived(at)
	if j.at.IsZero() {
		j.before = last
	}
	j.at = at
}

// restartPace keeps a publisher whose replays contradict its live batches from being
// asked to stream its ring without pause.
type restartPace struct {
	last  time.Time
	pause time.Duration
}

const (
	paceWindow = 10 * time.Second
	maxPace    = 30 * time.Second
)

// nextDelay returns how long to wait before starting over: nothing after a quiet time, else
// twice as long as before.
func (p *restartPace) nextDelay(now time.Time) time.Duration {
	if p.last.IsZero() || now.Sub(p.last) > paceWindow+p.pause {
		p.pause = 0
	} else {
		p.pause = min(max(2*p.pause, minRetry), maxPace)
	}
	p.last = now
	return p.pause
}

// dropOddReply drops a reply for its number. Those that follow on it count with it.
func (a *replayRequest) dropOddReply(it *queuedBatch, dropped map[events.Reason]uint64) {
	if it.seq != a.afterOdd {
		dropped[events.OddNumber]++
	}
	a.afterOdd, a.hasOdd = it.seq+1, true
}

// holdsBatches reports whether a replay is wanted that batches wait for.
func (a *replayRequest) holdsBatches() bool { return a.kind == askFill || a.kind == askVerify }

// cancelReplay ends the replay, if there is one. An attempt that waits for its pause has no
// goroutine to stop.
func (a *replayRequest) cancelReplay(out *outbox) {
	if a.kind != askNone && a.waiting.IsZero() {
		out.orders = append(out.orders, order{stop: true})
	}
	*a = replayRequest{}
}

// startPatience notes that an attempt has its turn: patience runs from now, not from the
// order, because the attempt may have waited long for its slot among other streams.
func (a *replayRequest) startPatience(deadline time.Time) {
	if a.deadline.IsZero() {
		a.deadline = deadline
	}
}

// extendPatience lets an attempt go on after a reply that comes further than those before it. One that repeats them, was not
// asked for or was dropped for its number is as good as silence: live batches wait for the attempt.
func (a *replayRequest) extendPatience(seq uint64, deadline time.Time) {
	if seq < a.from || seq < a.furthest || seq+1 == a.afterOdd {
		return
	}
	a.furthest, a.deadline = seq+1, deadline
}

// acceptLifetime ends a verification if the id of a batch proves what the replay is to verify.
// Behind a replay boundary some batches had no id, so only their bytes can.
func (a *replayRequest) acceptLifetime(c *consumed, j *replayBoundary, it *queuedBatch) {
	if a.kind == askVerify && j.before == (fingerprint{}) && c.isProven(it) {
		a.anchored = true
	}
}

// requestHistory asks for everything in a new epoch, after a pause: for a snapshot where the
// publisher gives one, else for its whole ring. Without a connection the next one does that,
// and it has to: a replay service of a process that is about to be replaced may still answer.
func (m *machine) requestHistory(now time.Time, pause time.Duration) {
	switch {
	case !m.connected:
		return
	case m.cfg.canSnapshot:
		m.snapshots.planFirstRequest(now, pause, m.heard > 0, &m.out)
		return
	case !m.evidence.canAsk():
		return
	}
	if pause == 0 {
		m.startReplay(askFill)
		return
	}
	m.replay.cancelReplay(&m.out)
	m.replay = replayRequest{kind: askFill, waiting: now.Add(pause)}
	m.catchingUp = true
}

// startReplay begins a replay of a kind, instead of any other that is under way. One at a time
// is enough, and two would be worse: their replies would interleave, and each shows a gap only
// by what follows it.
func (m *machine) startReplay(kind askKind) {
	m.replay.cancelReplay(&m.out)
	m.replay.kind = kind
	m.catchingUp = m.catchingUp || m.replay.holdsBatches()
	m.issueRequest()
}

// issueRequest begins an attempt: it numbers it, notes what is missing now, and orders it from
// the right batch on.
//
// If a live batch waits because the queue is full, the live connection is behind the
// publisher, and the replay overtakes it. Then the publisher may have been restarted behind
// batches that we have not read. So a request to fill a gap becomes one that verifies the last
// batch consumed first, which costs one more reply.
func (m *machine) issueRequest() {
	a := &m.replay
	m.requests++
	a.id, a.since = m.requests, m.consumed.next
	a.waiting = time.Time{}
	a.progress, a.anchorMet, a.reachedWatermark = false, false, false
	a.hasOdd = a.hasOdd || a.head.odd > 0
	a.head, a.high, a.furthest, a.afterOdd = replyHead{}, 0, 0, 0
	a.knownMissing, a.crossesConnections = m.held.startsBehind(m.consumed.next), m.consumed.started
	// The queue is full, so this replay may overtake the live connection: verify first.
	if a.kind != askProbe && a.kind != askProof && m.throttled && m.consumed.started {
		a.kind, a.liveIsBehind, a.anchored = askVerify, a.kind == askFill || a.liveIsBehind, false
	}
	switch {
	case a.kind == askProbe && m.completeness.probe.from == probeAnchor:
		a.anchor = m.completeness.anchor
		a.from = a.anchor.sequence()
	case a.kind == askProbe:
		a.from = a.next
	case a.kind == askProof:
		a.from, m.evidence.proof = m.evidence.witness.sequence(), proof{}
	case a.kind == askVerify:
		a.anchor = m.consumed.last
		if m.boundary.before != (fingerprint{}) {
			a.anchor = m.boundary.before
		}
		a.from = a.anchor.sequence()
	case a.kind == askFill && m.consumed.started:
		a.from = m.consumed.next
	default:
		a.from = 0
	}
	m.out.orders = append(m.out.orders, order{ask: a.id, from: a.from})
}

// resumeReplay asks for the rest of what an attempt brought a part of. The number of attempts
// is bounded by what they bring: a publisher streams its whole ring for each, so one that
// hangs up after a few replies would be kept busy for little, while a ring of 10,000 batches
// behind a socket that drops after 1,000 takes ten honest attempts.
func (m *machine) resumeReplay(now time.Time) {
	a := &m.replay
	most := maxResumes
	if a.kind == askProbe {
		most = maxResumesOfProbe
	}
	if a.resumed++; a.resumed > most+a.brought/repliesPerResume {
		m.out.recordError("%d replays, the last from %d, brought only %d batches", a.resumed, a.from, a.brought)
		m.giveUpReplay(now)
		return
	}
	m.out.orders = append(m.out.orders, order{stop: true})
	// What was verified stays verified, as the rest comes from the same publisher or
	// contradicts a fingerprint.
	kind := a.kind
	if kind == askVerify && a.anchored {
		kind = askFill
	}
	m.replay = replayRequest{kind: kind, quiet: a.quiet, next: a.next, resumed: a.resumed, brought: a.brought, denied: a.denied,
		hasOdd: a.hasOdd || a.head.odd > 0}
	m.issueRequest()
}

// finishReplay ends a replay that got everything there is. If nothing was consumed and nothing
// is held, the ring is empty: the publisher has published nothing, so nothing is missing.
func (m *machine) finishReplay(now time.Time) {
	m.completeness.noteNothingBehind()
	switch odd := m.replay.hasOdd || m.replay.head.odd > 0; {
	case m.consumed.started && odd && m.heard == 0:
		m.completeness.noteTail(ReasonGap) // the odd ones may be batches behind a hole
	case m.consumed.started || m.held.count() > 0:
	case odd:
		m.completeness.noteLost(ReasonOverrun)
	default:
		m.completeness.noteWhole() // an empty ring: nothing was published
	}
	if !m.replay.denied { // the service has answered with what was missing
		m.servicePause = servicePause{}
	}
	m.replay.cancelReplay(&m.out)
	m.secondLook.planLook(m, now)
}

// giveUpReplay ends a replay that brought nothing for too long. Live batches go on from here,
// since a stale index is worse than an incomplete one, and what is missing or unproven shows
// in the state. The service may only have been busy, so a probe asks again later, for as much
// as can still be had: the proof of the anchor, the batches behind the last one, or all of the
// history.
func (m *machine) giveUpReplay(now time.Time) {
	a := m.replay
	m.replay.cancelReplay(&m.out)
	var from probeKind
	switch {
	case a.kind == askProof:
		m.evidence.proof.cut = true
		judgeProof(m, now)
		return
	case a.kind == askProbe:
		from = m.completeness.probe.from
	case a.kind == askVerify && !a.anchored && !a.quiet && !a.liveIsBehind:
		if !m.completeness.unverified {
			m.completeness.unverified, m.completeness.anchor = true, a.anchor
		}
		m.completeness.noteTail(ReasonTimeout)
		from = probeAnchor
	case !m.consumed.started:
		m.completeness.lost = ReasonTimeout // nothing was consumed, so nothing is cleared
		from = probeStart
	case m.held.startsBehind(m.consumed.next):
		from = probeStart
	default:
		m.completeness.noteTail(ReasonTimeout)
		from = probeTail
	}
	m.servicePause.noteSilence(now)
	m.completeness.probe.from = max(m.completeness.probe.from, from)
	m.completeness.probe.at = m.servicePause.until
	// Gaps among the batches that waited for this replay are given up without asking: the
	// answer would be silence too, and each would hold up live batches for a whole timeout.
	if a.kind != askProbe && m.held.count() > 0 {
		m.silentBelow = m.held.lastSequence() + 1
	}
}

// nextWake is when passTime has to be called, zero if never: the earliest of what is planned.
func (m *machine) nextWake() time.Time {
	var at time.Time
	probe := m.completeness.probe.dueAt(m.connected, m.replay.kind)
	snapshot := m.snapshots.requestDue(m.connected, m.replay.holdsBatches())
	proof := m.evidence.dueAt(m.connected, m.replay.kind, m.servicePause.silent)
	for _, t := range [...]time.Time{m.replay.waiting, m.replay.deadlineIfAsked(), m.secondLook.at, probe, proof, snapshot} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// deadlineIfAsked is the end of patience while an attempt is under way. A pause
// between attempts ends on its own.
func (a *replayRequest) deadlineIfAsked() time.Time {
	if a.kind == askNone || !a.waiting.IsZero() {
		return time.Time{}
	}
	return a.deadline
}

// passTime lets time pass. It does one thing that is due and returns; the caller asks nextWake
// again. An attempt whose patience has ended but which made progress is continued, since a
// slow publisher is not a silent one.
func (m *machine) passTime(now time.Time) {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case due(m.snapshots.requestDue(m.connected, m.replay.holdsBatches())):
		if m.snapshots.id != 0 {
			m.failSnapshot(SnapshotTimeout, now)
			return
		}
		m.requestSnapshot(now)
	case due(m.replay.waiting):
		m.issueRequest()
	case due(m.replay.deadlineIfAsked()):
		if m.replay.head.waits() {
			m.replay.head.acceptAll(nil)
			return
		}
		if m.replay.progress {
			m.resumeReplay(now)
			return
		}
		m.out.recordError("no reply to a replay from %d for %v", m.replay.from, m.cfg.timeout)
		m.giveUpReplay(now)
	case due(m.secondLook.at):
		// A replay is under way that looks at the same. Ask again when it has ended.
		if m.replay.holdsBatches() {
			m.secondLook.at = now.Add(checkAfter)
			return
		}
		m.secondLook.at = time.Time{}
		kind := askFill
		if m.consumed.started {
			kind = askVerify
		}
		m.startReplay(kind)
		m.replay.quiet = true
	case due(m.evidence.dueAt(m.connected, m.replay.kind, m.servicePause.silent)):
		m.startReplay(askProof)
	case due(m.completeness.probe.dueAt(m.connected, m.replay.kind)):
		if m.completeness.probe.from == probeTail {
			m.startReplay(askFill)
			m.replay.quiet = true
			return
		}
		m.startReplay(askProbe)
	}
}
