package stream

import "time"

// hole deals with the batches missing before the head of held: it returns true when
// that is given up, false when a replay may bring it.
func (m *machine) hole(now time.Time) bool {
	head := m.held.head()
	switch {
	case m.asking():
		if head.bad && head.replayed {
			m.lose(ReasonUndecodable) // it came from there
			return true
		}
		return false
	case !m.cfg.canReplay:
		m.countGap()
		m.lose(m.lossReason())
		return true
	case head.seq < m.silent:
		m.lose(m.lossReason())
		m.trust.silence(healStart, now)
		return true
	}
	m.countGap()
	m.start(askFill)
	return false
}

// countGap counts a hole. Before the first batch there is none, only unknown
// history.
func (m *machine) countGap() {
	if m.has {
		m.n.gaps++
	}
}

// missing reports whether something is known to be missing.
func (m *machine) missing() bool {
	return m.held.len() > 0 && (m.held.head().seq > m.next || m.held.head().bad)
}

// lossReason is why the hole before the head of held cannot be filled.
func (m *machine) lossReason() string {
	switch head := m.held.head(); {
	case head.bad && head.seq <= m.next:
		return ReasonUndecodable
	case m.has:
		return ReasonGap
	case m.trust.lost != "":
		return m.trust.lost
	}
	return ReasonUnknown
}

// lose gives up the batches missing before the head of held, or the head itself if
// it cannot be decoded.
func (m *machine) lose(reason string) {
	m.miss(reason)
	if head := m.held.head(); head.seq > m.next {
		m.next = head.seq
		return
	}
	m.consume(m.held.pop())
}

// miss notes that something is missing for good.
func (m *machine) miss(reason string) {
	m.trust.lose(reason)
	if m.cfg.drop && m.has {
		m.resets = append(m.resets, Step{Kind: Reset, Epoch: m.epoch, Reason: reason})
	}
}
