package stream

import "time"

// hole deals with the batches missing before the head of held: it returns true when
// they are given up, false when a replay may bring them.
func (m *machine) hole(now time.Time) bool {
	if m.ask.holdsBatches() {
		return false
	}
	if m.consumed.has { // before the first batch there is no gap, only unknown history
		m.n.gaps++
	}
	probing := m.ask.kind == askProbe && m.trust.heal.from == healStart && !m.trust.heal.outdates(m.ask.anchor)
	switch {
	case !m.cfg.canReplay:
		m.lose(m.trust.lossReason(m.consumed.has))
	case m.held.head().seq < m.silent, probing, m.calm.spares(now) && m.trust.lost != "":
		// The replay service is not asked at present. If it is silent it may still have everything, so a probe
		// finds out later.
		if !probing && !m.calm.silent {
			m.lose(m.trust.lossReason(m.consumed.has))
			break
		}
		m.lose(ReasonTimeout)
		m.trust.heal = heal{from: healStart, at: m.calm.until, past: m.consumed.next}
	default:
		m.start(askFill)
		return false
	}
	return true
}

// lose gives up the batches missing before the head of held.
func (m *machine) lose(reason string) {
	m.miss(reason)
	m.consumed.next = m.held.head().seq
}

// miss notes that something is missing for good.
func (m *machine) miss(reason string) {
	m.trust.lose(reason)
	if m.cfg.drop && m.consumed.has {
		m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: reason})
	}
}
