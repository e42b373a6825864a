package stream

import "time"

// replayStart notes that an attempt has its turn: patience runs from now.
func (m *machine) replayStart(now time.Time) {
	if m.ask.deadline.IsZero() {
		m.ask.deadline = now.Add(m.cfg.timeout)
	}
}

// replay takes one replayed batch.
func (m *machine) replay(it item, now time.Time) {
	a := &m.ask
	a.deadline = now.Add(m.cfg.timeout)
	a.brought++
	if m.foreign(&it) {
		m.restart(reasonRestart, now)
		return
	}
	m.vouch(&it)
	if a.kind == askProbe {
		m.probed(it, now)
		return
	}
	if a.kind == askVerify && !a.anchored {
		m.verify(it, now)
		return
	}
	if m.has && it.seq < m.next {
		if same, known := m.consumed(&it); known && !same {
			m.restart(reasonRestart, now)
			return
		}
		m.n.duplicates++
		a.led = a.led || it.seq >= a.from && it.seq+1 == m.next
		// What was missing came live meanwhile: not new, but an answer.
		a.progress = a.progress || it.seq >= a.since
		return
	}
	if (m.throttled || a.behind) && !a.progress && it.seq > m.next && m.held.len() > 0 && m.held.head().seq < it.seq {
		if !m.lostOnTheWay(now) {
			m.leaveToLive(now)
		}
		return
	}
	m.join(it)
	held := m.held.find(it.seq)
	switch {
	case held == nil:
	case held.same(&it):
		m.n.duplicates++
	default:
		m.held.clear()
		m.restart(reasonRestart, now)
		return
	}
	if it.seq > m.next && m.replayHole(it, now) {
		return
	}
	if held == nil {
		m.held.add(it)
	}
	if it.seq > m.next {
		m.loseOverrun(now)
	}
}

// join notes that a batch is put behind what other connections brought. An
// anchored replay, or the publisher id, has shown that it may be.
func (m *machine) join(it item) {
	if !m.ask.joins || m.ask.anchored || m.proven(&it) {
		return
	}
	m.joint.outlive(it.at)
	if m.joint.at.IsZero() {
		m.joint.before = m.last
	}
	m.joint.at = it.at
}

// replayHole judges a replayed batch that is not the next one, and reports whether the missing ones are
// asked for again. In mid-stream the publisher's socket dropped them; in front, the publisher does not
// have them, or counts from 1.
func (m *machine) replayHole(it item, now time.Time) bool {
	if !m.has && m.next == 0 && it.seq == 1 {
		return m.countsFromOne(now)
	}
	return m.lostOnTheWay(now)
}

// countsFromOne takes a replay of everything that begins with batch 1. A publisher that counts from 0
// answers so while its ring has lost batch 0 alone, so it is asked once more: the ring of a busy one
// has moved on by then. It reports whether it asks.
func (m *machine) countsFromOne(now time.Time) bool {
	if !m.ask.again {
		m.resume(now)
		m.ask.again = true
		return true
	}
	m.first, m.next = 1, 1
	return false
}

// lostOnTheWay asks for the missing batches again if this attempt suggests that the publisher has
// them, and reports whether it did. Replies come in order, so batches that are missing behind one of
// them were dropped by a socket. Behind the batch at the watermark the publisher may have skipped a
// number instead, so those are asked for only once more.
func (m *machine) lostOnTheWay(now time.Time) bool {
	if !m.ask.progress && (!m.ask.led || m.ask.again) {
		return false
	}
	again := !m.ask.progress
	m.resume(now)
	m.ask.again = again
	return true
}

// leaveToLive ends a replay that begins behind what waits. The publisher has forgotten
// what fills the hole, and the live connection brings the rest: it is behind.
func (m *machine) leaveToLive(now time.Time) {
	m.loseOverrun(now)
	m.stop()
}

// loseOverrun gives up what the publisher has forgotten.
func (m *machine) loseOverrun(now time.Time) {
	m.n.overruns++
	if !m.has {
		m.lose(ReasonOverrun)
		return
	}
	m.denied(now)
	m.lose(m.lossReason())
}

// denied notes that the publisher answers without the batches that are missing.
func (m *machine) denied(now time.Time) {
	m.ask.denied = true
	m.calm.deny(now)
}

// verify judges the replies of askVerify until they have come to the last batch
// consumed. Behind a joint that takes more than one: any part of what follows may
// be of another lifetime than the rest, also the batches that waited live while a
// replay went before them.
func (m *machine) verify(it item, now time.Time) {
	a := &m.ask
	switch anchor := a.anchor.seq(); {
	case it.seq < anchor:
		return // not asked for
	case it.seq == anchor:
		if newPrint(it.seq, it.payload) != a.anchor {
			m.restart(reasonRestart, now)
			return
		}
		a.met = true
	case !a.met && a.behind:
		a.kind = askFill // the publisher has forgotten the anchor
		m.replay(it, now)
		return
	case !a.met:
		m.restart(reasonForgotten, now)
		return
	case it.seq > anchor+1 && a.progress:
		m.resume(now) // the publisher's socket dropped the missing batches
		return
	case m.prints.any(anchor+1, it.seq):
		m.restart(reasonForgotten, now)
		return
	default:
		if same, known := m.prints.same(it.seq, it.payload); known && !same {
			m.restart(reasonRestart, now)
			return
		}
		a.anchor, a.progress = newPrint(it.seq, it.payload), true
		m.joint.before = a.anchor
	}
	if a.anchor == m.last {
		a.anchored, a.led, a.progress = true, true, !a.behind
		m.joint = joint{}
	}
}

// replayEnd takes the publisher's word that it has no more.
func (m *machine) replayEnd(now time.Time) {
	a := &m.ask
	switch {
	case a.kind == askProbe:
		m.probedEnd(now)
		return
	case a.kind == askVerify && !a.anchored:
		if a.progress {
			m.resume(now)
			return
		}
		m.restart(reasonForgotten, now)
		return
	case m.missing():
		if m.lostOnTheWay(now) {
			return
		}
		if !a.known {
			m.resume(now)
			return
		}
		m.denied(now)
		m.lose(m.lossReason())
	}
	m.done(now)
}

// replayCut takes the end of an attempt that was not finished. An attempt that we ended ourselves does
// not count.
func (m *machine) replayCut(ours bool, now time.Time) {
	a := &m.ask
	if ours {
		a.resumed--
	}
	switch {
	case a.progress:
		m.resume(now)
		return
	case a.kind == askProbe, a.quiet && m.trust.heal.from != healNone, m.failed != "":
		m.giveUp(now)
		return
	}
	a.pause = max(2*a.pause, minRetry)
	if again := now.Add(a.pause); again.Before(a.deadline) {
		a.waiting = again
		m.orders = append(m.orders, order{stop: true})
		return
	}
	m.giveUp(now)
}
