package stream

import "time"

// handleGap deals with the batches missing before the first batch held. It returns true when
// they are given up, and false when a replay may bring them, so that everything waits.
//
// A gap is worth a replay unless there is reason to believe that it brings nothing: the
// publisher has none, it was silent when it was asked for what waits now, a probe is already
// reading the history, or it has just answered without what was asked for. In these cases
// waiting would only delay the live batches that are here, and a router would see the engine's
// new blocks late by the timeout, for nothing.
func (m *machine) handleGap(now time.Time) bool {
	if m.replay.holdsBatches() {
		return false
	}
	if m.consumed.started { // before the first batch there is no gap, only unknown history
		m.counts.gaps++
	}
	probing := m.replay.kind == askProbe && m.completeness.probe.from == probeStart && !m.completeness.probe.supersedes(m.replay.anchor)
	switch {
	case m.evidence.foreign:
		m.giveUpGap(ReasonForeign)
	case !m.cfg.canReplay:
		m.giveUpGap(m.completeness.lossReason(m.consumed.started))
	case m.held.firstBatch().seq < m.silentBelow, probing, m.servicePause.isActive(now) && m.completeness.lost != "":
		// The replay service is not asked at present. If it is silent it may still have everything, so a probe
		// finds out later.
		if !probing && !m.servicePause.silent {
			m.giveUpGap(m.completeness.lossReason(m.consumed.started))
			break
		}
		m.giveUpGap(ReasonTimeout)
		m.completeness.probe = probePlan{from: probeStart, at: m.servicePause.until, past: m.consumed.next}
	default:
		m.startReplay(askFill)
		return false
	}
	return true
}

// giveUpGap gives up the batches missing before the first batch held, which becomes the next
// one. Blocks that were stored in between are not known: routers see a cache miss there, never
// a false hit. Blocks that were removed in between stay in the index until the engine removes
// or stores them again, which is why the state says Partial.
func (m *machine) giveUpGap(reason string) {
	m.noteLoss(reason)
	m.consumed.next = m.held.firstBatch().seq
}

// noteLoss notes that something is missing for good. By the policy DropOnGap the blocks go
// too, since some of them may have been removed by the missing batches: then history starts
// over behind the gap. It begins no new epoch, as the publisher is the same.
func (m *machine) noteLoss(reason string) {
	m.completeness.noteLost(reason)
	if m.cfg.drop && m.consumed.started {
		m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: reason})
	}
}
