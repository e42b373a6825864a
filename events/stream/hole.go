package stream

import "time"

// hole deals with the batches missing before the head of held: it returns true when
// they are given up, false when a replay may bring them.
func (m *machine) hole(now time.Time) bool {
	if m.asking() {
		return false
	}
	m.countGap()
	probing := m.ask.kind == askProbe && m.trust.heal.from == healStart && !m.moot()
	switch {
	case !m.cfg.canReplay:
		m.lose(m.lossReason())
	case m.held.head().seq < m.silent, probing, m.calm.spares(now) && m.trust.lost != "":
		m.loseUnasked(probing || m.calm.silent)
	default:
		m.start(askFill)
		return false
	}
	return true
}

// loseUnasked gives up what the replay service is not asked for at present. If it is silent it may
// still have everything, so a probe finds out later.
func (m *machine) loseUnasked(silent bool) {
	if !silent {
		m.lose(m.lossReason())
		return
	}
	m.lose(ReasonTimeout)
	m.trust.heal = heal{from: healStart, at: m.calm.until, past: m.next}
}

// countGap counts a hole. Before the first batch there is none, only unknown
// history.
func (m *machine) countGap() {
	if m.has {
		m.n.gaps++
	}
}

// missing reports whether something is known to be missing.
func (m *machine) missing() bool { return m.held.len() > 0 && m.held.head().seq > m.next }

// lossReason is why the hole before the head of held cannot be filled.
func (m *machine) lossReason() string {
	switch {
	case m.has:
		return ReasonGap
	case m.trust.lost != "":
		return m.trust.lost
	}
	return ReasonUnknown
}

// lose gives up the batches missing before the head of held.
func (m *machine) lose(reason string) {
	m.miss(reason)
	m.next = m.held.head().seq
}

// miss notes that something is missing for good.
func (m *machine) miss(reason string) {
	m.trust.lose(reason)
	if m.cfg.drop && m.has {
		m.resets = append(m.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: reason})
	}
}
