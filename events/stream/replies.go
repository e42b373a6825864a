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
	if a.kind == askProbe {
		m.probed(it, now)
		return
	}
	if a.kind == askVerify && !a.anchored {
		m.verify(it, now)
		return
	}
	if m.has && it.seq < m.next {
		if same, known := m.prints.same(it.seq, it.payload); known && !same {
			m.restart(ReasonRestart, now)
			return
		}
		m.n.duplicates++
		return
	}
	m.join(it)
	held := m.held.find(it.seq)
	switch {
	case held == nil || held.bad:
	case string(held.payload) == string(it.payload):
		m.n.duplicates++
	default:
		m.held.clear()
		m.restart(ReasonRestart, now)
		return
	}
	switch {
	case it.seq > m.next:
		m.replayHole(held == nil, it)
	case held == nil:
		m.held.add(it)
	case string(held.payload) == string(it.payload):
		m.lose(ReasonUndecodable) // only that keeps a batch whose turn it is
	default:
		m.held.pop()
		m.held.add(it)
	}
}

// join notes that a batch is put behind what other connections brought. An
// anchored replay has shown that it may be.
func (m *machine) join(it item) {
	if !m.ask.joins || m.ask.anchored {
		return
	}
	m.joint.outlive(it.at)
	if m.joint.at.IsZero() {
		m.joint.before = m.last
	}
	m.joint.at = it.at
}

// replayHole takes a replayed batch that is not the next one. In mid-stream the
// publisher's socket dropped what is missing; in front, the publisher does not
// have it.
func (m *machine) replayHole(fresh bool, it item) {
	if m.ask.progress {
		m.resume()
		return
	}
	m.n.overruns++
	if fresh {
		m.held.add(it)
	}
	if m.has {
		m.lose(m.lossReason())
	} else {
		m.lose(ReasonOverrun)
	}
}

// verify judges the first reply of askVerify.
func (m *machine) verify(it item, now time.Time) {
	switch anchor := m.ask.anchor; {
	case it.seq < anchor.seq():
		// Not asked for.
	case it.seq > anchor.seq():
		m.restart(ReasonForgotten, now)
	case newPrint(it.seq, it.payload) != anchor:
		m.restart(ReasonRestart, now)
	default:
		m.ask.anchored, m.ask.progress = true, true
		m.joint = joint{}
	}
}

// replayEnd takes the publisher's word that it has no more.
func (m *machine) replayEnd(now time.Time) {
	a := &m.ask
	switch {
	case a.kind == askProbe:
		m.probedEmpty(now)
		return
	case a.kind == askVerify && !a.anchored:
		m.restart(ReasonForgotten, now)
		return
	case m.missing():
		if a.progress || !a.known {
			m.resume()
			return
		}
		m.lose(m.lossReason())
	}
	m.done(now)
}

// replayCut takes the end of an attempt that was not finished.
func (m *machine) replayCut(now time.Time) {
	a := &m.ask
	switch {
	case a.progress:
		m.resume()
		return
	case a.kind == askProbe, m.failed != "":
		m.giveUp(now)
		return
	}
	a.pause = min(max(2*a.pause, minRetry), maxRetry)
	if again := now.Add(a.pause); again.Before(a.deadline) {
		a.waiting = again
		m.orders = append(m.orders, order{stop: true})
		return
	}
	m.giveUp(now)
}
