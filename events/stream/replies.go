package stream

import "time"

// replay takes one replayed batch.
func (m *machine) replay(it item, now time.Time) {
	a := &m.ask
	a.deadline = now.Add(m.cfg.timeout)
	a.brought++
	if m.consumed.isForeign(&it) {
		m.restart(reasonRestart, now)
		return
	}
	m.ask.acceptID(&m.consumed, &m.joint, &it)
	if a.kind == askProbe {
		m.probed(it, now)
		return
	}
	if a.kind == askVerify && !a.anchored {
		m.verify(it, now)
		return
	}
	if m.consumed.has && it.seq < m.consumed.next {
		if same, known := m.consumed.compare(&it); known && !same {
			m.restart(reasonRestart, now)
			return
		}
		m.n.duplicates++
		a.led = a.led || it.seq >= a.from && it.seq+1 == m.consumed.next
		// What was missing came live meanwhile: not new, but an answer.
		a.progress = a.progress || it.seq >= a.since
		return
	}
	if (m.throttled || a.behind) && !a.progress && it.seq > m.consumed.next && m.held.len() > 0 && m.held.head().seq < it.seq {
		if !m.lostOnTheWay(now) {
			// The replay begins behind what waits. The publisher has forgotten what fills the hole, and the live
			// connection, which is behind, brings the rest.
			m.loseOverrun(now)
			m.ask.stop(&m.out)
		}
		return
	}
	// An anchored replay, or the publisher id, has shown that the batch may stand behind those of other connections.
	if m.ask.joins && !m.ask.anchored && !m.consumed.isProven(&it) {
		m.joint.extend(it.at, m.consumed.last)
	}
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
	switch {
	case it.seq <= m.consumed.next:
	case !m.consumed.has && m.consumed.next == 0 && it.seq == 1:
		// The replay of everything begins with batch 1: the publisher counts from 1, or its ring has lost batch 0
		// alone. It is asked once more, because the ring of a busy one has moved on by then.
		if !m.ask.again {
			m.resume(now)
			m.ask.again = true
			return
		}
		m.consumed.first, m.consumed.next = 1, 1
	case m.lostOnTheWay(now):
		return
	}
	if held == nil {
		m.held.add(it)
	}
	if it.seq > m.consumed.next {
		m.loseOverrun(now)
	}
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

// loseOverrun gives up what the publisher has forgotten.
func (m *machine) loseOverrun(now time.Time) {
	m.n.overruns++
	if !m.consumed.has {
		m.lose(ReasonOverrun)
		return
	}
	m.ask.denied = true // the publisher answers without the batches that are missing
	m.calm.deny(now)
	m.lose(m.trust.lossReason(m.consumed.has))
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
	case m.consumed.prints.any(anchor+1, it.seq):
		m.restart(reasonForgotten, now)
		return
	default:
		if same, known := m.consumed.prints.same(it.seq, it.payload); known && !same {
			m.restart(reasonRestart, now)
			return
		}
		a.anchor, a.progress = newPrint(it.seq, it.payload), true
		m.joint.before = a.anchor
	}
	if a.anchor == m.consumed.last {
		a.anchored, a.led, a.progress = true, true, !a.behind
		m.joint = joint{}
	}
}

// replayEnd takes the publisher's word that it has no more.
func (m *machine) replayEnd(now time.Time) {
	a := &m.ask
	switch {
	case a.kind == askProbe:
		switch {
		case m.trust.heal.outdates(a.anchor):
			a.stop(&m.out)
		case m.trust.heal.from == healAnchor:
			m.restart(reasonForgotten, now)
		case a.progress:
			m.resume(now)
		default: // the publisher lacks the missing batches too
			m.trust.lose(ReasonGap)
			a.stop(&m.out)
		}
		return
	case a.kind == askVerify && !a.anchored:
		if a.progress {
			m.resume(now)
			return
		}
		m.restart(reasonForgotten, now)
		return
	case m.held.startsBehind(m.consumed.next):
		if m.lostOnTheWay(now) {
			return
		}
		if !a.known {
			m.resume(now)
			return
		}
		m.ask.denied = true // the publisher answers without the batches that are missing
		m.calm.deny(now)
		m.lose(m.trust.lossReason(m.consumed.has))
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
		m.out.orders = append(m.out.orders, order{stop: true})
		return
	}
	m.giveUp(now)
}
