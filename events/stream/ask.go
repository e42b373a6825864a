package stream

import "time"

// askKind says what a replay is asked for.
type askKind uint8

const (
	askNone askKind = iota
	// askFill wants everything from next on, or from 0 if nothing was consumed.
	askFill
	// askVerify starts at the last batch consumed, or at the last before a joint,
	// the anchor: the same bytes from there to the last batch consumed prove that
	// the publisher is the same. Nothing is handed out before that.
	askVerify
	// askProbe wants one reply only; nothing waits for it.
	askProbe
)

// ask is the replay wanted at present. One ask may take several attempts: each
// that made progress is followed by one from the first missing batch, until they are
// too many for what they brought; each that failed without by a pause, until
// cfg.timeout has passed without progress. One that brought the batch at the
// watermark but not the next is followed by one more.
//
//	start --> issue ==> replayStart --> replay* --> replayEnd --> done
//	            ^            (order)       |  hole, cut, silence
//	            +---- resume (progress) ---+---> giveUp (too many)
//	            +---- retry  (none yet) ---+---> giveUp (too long)
type ask struct {
	kind  askKind
	quiet bool // of a check that finds nothing in the usual case; not shown
	// behind: the live connection is behind what the publisher has. Another lifetime
	// may answer, and this one may have forgotten the anchor.
	behind bool
	id     uint64
	from   uint64
	since  uint64 // the next batch when this attempt began
	next   uint64 // of a probe from the start: the batch it reads next; 0 before the first
	// resumed counts the attempts that ended too early, for other reasons than ours.
	resumed int
	// brought counts replies.
	brought int
	denied  bool // the publisher answered without what was missing

	waiting  time.Time     // the next attempt begins then; zero: it has begun
	pause    time.Duration // before the next retry
	deadline time.Time     // of patience; zero until the first attempt has its turn

	anchor   print // askVerify, askProbe: a batch known to be the publisher's, or that should be
	met      bool  // askVerify: the first reply of this attempt was the anchor
	anchored bool  // askVerify: the last batch consumed is the publisher's
	led      bool  // this attempt brought the batch at the watermark
	again    bool  // the attempt before brought only that, or began with batch 1, so this one is taken at its word
	progress bool  // this attempt brought something that was missing when it began
	known    bool  // when this attempt began, something was known to be missing
	joins    bool  // when this attempt began, something had been consumed
}

const (
	// The publisher may serve a replay before it acts on a subscription, and
	// what it sends in between is lost. Then it looks idle.
	checkAfter = time.Second

	minRetry = 100 * time.Millisecond

	// An ask may be resumed maxResumes times, a probe maxResumesOfProbe times, and once more for every
	// repliesPerResume replies. A publisher streams its ring for each attempt, so one that hangs up
	// after a few replies is soon left alone. A socket drops replies beyond its high-water mark, which
	// is 1,000 unless it was lowered, and a ring of 10,000 batches still has to come whole.
	maxResumes        = 8
	maxResumesOfProbe = 2
	repliesPerResume  = 16
)

// joint is where batches replayed over one connection were put behind what came
// over others. The publisher may have been restarted just before, and the live
// connection that would tell may end only now: then both sides of the joint are
// of different lifetimes, and a reconnect that verifies the newest batch would
// find nothing wrong. So it verifies all from the last one before the joint,
// unless the live connection outlived the replay for long enough to be the same
// publisher's.
type joint struct {
	before print     // moves on while it is verified
	at     time.Time // of the last reply behind it
}

// A process that ends closes its connections at once; one whose host vanished
// is found out by keepalive after 25 s.
const outlived = 30 * time.Second

// outlive ends the joint if the live connection, which stands at a time, has outlived it.
func (j *joint) outlive(at time.Time) {
	if !j.at.IsZero() && at.Sub(j.at) > outlived {
		*j = joint{}
	}
}

// extend notes that a replayed batch, which arrived at a time, is put behind what other connections brought, of which
// last was the last.
func (j *joint) extend(at time.Time, last print) {
	j.outlive(at)
	if j.at.IsZero() {
		j.before = last
	}
	j.at = at
}

// pace keeps a publisher whose replays contradict its live batches from being
// asked to stream its ring without pause.
type pace struct {
	last  time.Time
	pause time.Duration
}

const (
	paceWindow = 10 * time.Second
	maxPace    = 30 * time.Second
)

// delay returns how long to wait before starting over.
func (p *pace) delay(now time.Time) time.Duration {
	if p.last.IsZero() || now.Sub(p.last) > paceWindow+p.pause {
		p.pause = 0
	} else {
		p.pause = min(max(2*p.pause, minRetry), maxPace)
	}
	p.last = now
	return p.pause
}

// holdsBatches reports whether a replay is wanted that batches wait for.
func (a *ask) holdsBatches() bool { return a.kind == askFill || a.kind == askVerify }

// stop ends the ask, if there is one.
func (a *ask) stop(out *outbox) {
	if a.kind != askNone && a.waiting.IsZero() {
		out.orders = append(out.orders, order{stop: true})
	}
	*a = ask{}
}

// startPatience notes that an attempt has its turn: patience runs from now.
func (a *ask) startPatience(deadline time.Time) {
	if a.deadline.IsZero() {
		a.deadline = deadline
	}
}

// acceptID ends a verification if the id of a batch proves what the replay is to verify.
// Behind a joint some batches had no id, so only their bytes can.
func (a *ask) acceptID(c *consumed, j *joint, it *item) {
	if a.kind == askVerify && j.before == (print{}) && c.isProven(it) {
		a.anchored = true
	}
}

// rebuild asks for everything in a new epoch, after a pause. Without a
// connection the next connect does.
func (m *machine) rebuild(now time.Time, pause time.Duration) {
	switch {
	case !m.connected:
		return
	case m.cfg.canSnapshot:
		m.rung.begin(now, pause, m.heard > 0, &m.out)
		return
	case !m.cfg.canReplay:
		return
	}
	if pause == 0 {
		m.start(askFill)
		return
	}
	m.ask.stop(&m.out)
	m.ask = ask{kind: askFill, waiting: now.Add(pause)}
	m.catchup = true
}

// start begins an ask, instead of any other.
func (m *machine) start(kind askKind) {
	m.ask.stop(&m.out)
	m.ask.kind = kind
	m.catchup = m.catchup || m.ask.holdsBatches()
	m.issue()
}

// issue begins an attempt.
func (m *machine) issue() {
	a := &m.ask
	m.asks++
	a.id, a.since = m.asks, m.consumed.next
	a.waiting = time.Time{}
	a.progress, a.met, a.led, a.known, a.joins = false, false, false, m.held.startsBehind(m.consumed.next), m.consumed.has
	if a.kind != askProbe && m.throttled && m.consumed.has {
		a.kind, a.behind, a.anchored = askVerify, a.kind == askFill || a.behind, false
	}
	switch {
	case a.kind == askProbe && m.trust.heal.from == healAnchor:
		a.anchor = m.trust.anchor
		a.from = a.anchor.seq()
	case a.kind == askProbe:
		a.from = a.next
	case a.kind == askVerify:
		a.anchor = m.consumed.last
		if m.joint.before != (print{}) {
			a.anchor = m.joint.before
		}
		a.from = a.anchor.seq()
	case a.kind == askFill && m.consumed.has:
		a.from = m.consumed.next
	default:
		a.from = 0
	}
	m.out.orders = append(m.out.orders, order{ask: a.id, from: a.from})
}

// resume asks for the rest of what an attempt brought a part of.
func (m *machine) resume(now time.Time) {
	a := &m.ask
	most := maxResumes
	if a.kind == askProbe {
		most = maxResumesOfProbe
	}
	if a.resumed++; a.resumed > most+a.brought/repliesPerResume {
		m.out.recordError("%d replays, the last from %d, brought only %d batches", a.resumed, a.from, a.brought)
		m.giveUp(now)
		return
	}
	m.out.orders = append(m.out.orders, order{stop: true})
	kind := a.kind
	if kind == askVerify && a.anchored {
		kind = askFill
	}
	m.ask = ask{kind: kind, quiet: a.quiet, next: a.next, resumed: a.resumed, brought: a.brought, denied: a.denied}
	m.issue()
}

// done ends an ask that got everything there is.
func (m *machine) done(now time.Time) {
	m.trust.joined()
	if !m.consumed.has && m.held.len() == 0 {
		m.trust.whole() // an empty ring: nothing was published
	}
	if !m.ask.denied { // the service has answered with what was missing
		m.calm = calm{}
	}
	m.ask.stop(&m.out)
	m.check(now)
}

// check plans a second look at the ring, once per connection, unless a live
// batch came: that one proves the subscription, and would show a hole.
func (m *machine) check(now time.Time) {
	if m.unsure && m.heard == 0 {
		m.checkAt = now.Add(checkAfter)
	}
	m.unsure = false
}

// giveUp ends an ask that brought nothing for too long. A probe asks again after a pause, for what can still be had.
func (m *machine) giveUp(now time.Time) {
	a := m.ask
	m.ask.stop(&m.out)
	var from healFrom
	switch {
	case a.kind == askProbe:
		from = m.trust.heal.from
	case a.kind == askVerify && !a.anchored && !a.quiet && !a.behind:
		if !m.trust.unverified {
			m.trust.unverified, m.trust.anchor = true, a.anchor
		}
		m.trust.tail = ReasonTimeout
		from = healAnchor
	case !m.consumed.has:
		m.trust.lost = ReasonTimeout
		from = healStart
	case m.held.startsBehind(m.consumed.next):
		from = healStart
	default:
		m.trust.tail = ReasonTimeout
		from = healTail
	}
	m.calm.noteSilence(now)
	m.trust.heal.from = max(m.trust.heal.from, from)
	m.trust.heal.at = m.calm.until
	if a.kind != askProbe && m.held.len() > 0 {
		m.silent = m.held.last() + 1
	}
}

// wakeAt is when tick has to be called, zero if never.
func (m *machine) wakeAt() time.Time {
	var at time.Time
	for _, t := range [...]time.Time{m.ask.waiting, m.ask.deadlineIfAsked(), m.checkAt, m.trust.heal.due(m.connected, m.ask.kind), m.rung.dueAt(m.connected, m.ask.holdsBatches())} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// deadlineIfAsked is the end of patience while an attempt is under way. A pause
// between attempts ends on its own.
func (a *ask) deadlineIfAsked() time.Time {
	if a.kind == askNone || !a.waiting.IsZero() {
		return time.Time{}
	}
	return a.deadline
}

// tick lets time pass.
func (m *machine) tick(now time.Time) {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case due(m.rung.dueAt(m.connected, m.ask.holdsBatches())):
		if m.rung.id != 0 {
			m.failSnapshot(SnapshotTimeout, now)
			return
		}
		m.askSnapshot(now)
	case due(m.ask.waiting):
		m.issue()
	case due(m.ask.deadlineIfAsked()):
		if m.ask.progress {
			m.resume(now)
			return
		}
		m.out.recordError("no reply to a replay from %d for %v", m.ask.from, m.cfg.timeout)
		m.giveUp(now)
	case due(m.checkAt):
		if m.ask.holdsBatches() {
			m.checkAt = now.Add(checkAfter)
			return
		}
		m.checkAt = time.Time{}
		kind := askFill
		if m.consumed.has {
			kind = askVerify
		}
		m.start(kind)
		m.ask.quiet = true
	case due(m.trust.heal.due(m.connected, m.ask.kind)):
		if m.trust.heal.from == healTail {
			m.start(askFill)
			m.ask.quiet = true
			return
		}
		m.start(askProbe)
	}
}
