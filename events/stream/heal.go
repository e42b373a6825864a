package stream

import "time"

// heal says how silence may still be made good: a probe asks the replay service
// again, now and then, without holding anything up.
//
// To fill a hole among batches that were applied, everything has to be applied again, in a new epoch
// without blocks. So a probe first reads what the publisher has, and drops it, until it has come past
// the hole. A replay that always ends before costs one request then, and no block.
type heal struct {
	from healFrom
	at   time.Time // of the next probe
	past uint64    // of healStart: the batch behind the last hole
}

type healFrom uint8

const (
	healNone   healFrom = iota
	healTail            // what follows the last batch completes the tail
	healAnchor          // the anchor, unchanged, ends the doubt
	healStart           // all from the first batch to behind the hole: everything can be had again
)

// due returns when to probe, zero if not.
func (h *heal) due(connected bool, request askKind) time.Time {
	if !connected || request != askNone || h.from == healNone {
		return time.Time{}
	}
	return h.at
}

// outdates reports whether a probe for an anchor, or from the start without one, is of no use any more: a clear
// has come since, or more is missing.
func (h *heal) outdates(anchor print) bool {
	if anchor != (print{}) {
		return h.from != healAnchor
	}
	return h.from != healStart
}

// calm is how long a replay service is left alone that did not help. A source that lacks batches asks
// for no others meanwhile.
type calm struct {
	until  time.Time
	pause  time.Duration // doubles each time, until a replay helps
	silent bool          // there was no answer, or none that ended
}

const (
	minHeal   = 10 * time.Second // after silence
	maxHeal   = 5 * time.Minute
	maxDenial = 30 * time.Second // after an answer without the batches asked for
)

// spares reports whether the replay service is left alone.
func (c *calm) spares(now time.Time) bool { return now.Before(c.until) }

// deny notes an answer without the batches asked for. Another one during the pause counts with the
// first.
func (c *calm) deny(now time.Time) {
	if !c.spares(now) {
		c.pause = min(max(2*c.pause, minRetry), max(c.pause, maxDenial))
		c.until, c.silent = now.Add(c.pause), false
	}
}

// noteSilence notes that the replay service was asked and did not answer, or not to the end.
func (c *calm) noteSilence(now time.Time) {
	c.pause = min(max(2*c.pause, minHeal), maxHeal)
	c.until, c.silent = now.Add(c.pause), true
}

// probed judges a reply of a probe.
func (m *machine) probed(it item, now time.Time) {
	a := &m.ask
	switch {
	case m.trust.heal.outdates(m.ask.anchor):
		m.ask.stop(&m.out)
		return
	case m.trust.heal.from == healAnchor:
		m.probedAnchor(it, now)
		return
	}
	switch {
	case a.next == 0 && it.seq > max(m.cfg.firstSeq, 1):
		m.trust.lose(ReasonOverrun) // the publisher has forgotten its first batches
		m.ask.stop(&m.out)
		return
	case a.next > 0 && it.seq < a.next:
		return // not asked for
	case a.next > 0 && it.seq > a.next && a.progress:
		m.resume(now) // the publisher's socket dropped the missing batches
		return
	case a.next > 0 && it.seq > a.next:
		m.trust.lose(ReasonGap)
		m.ask.stop(&m.out)
		return
	}
	a.next, a.progress = it.seq+1, true
	if a.next >= m.trust.heal.past {
		m.newEpoch(reasonRecovered)
		m.rebuild(now, 0)
	}
}

// probedAnchor judges the first reply of a probe that asks for the anchor.
func (m *machine) probedAnchor(it item, now time.Time) {
	switch anchor := m.ask.anchor; {
	case it.seq < anchor.seq():
		return // not asked for
	case it.seq > anchor.seq():
		m.trust.heal = heal{} // too late to tell
	case newPrint(it.seq, it.payload) == anchor:
		m.trust.unverified, m.trust.heal = false, heal{}
		if m.joint.before != (print{}) {
			m.start(askVerify) // the anchor is only where it begins
			return
		}
		if m.trust.tail != "" {
			m.start(askFill)
			return
		}
	default:
		m.restart(reasonRestart, now)
		return
	}
	m.ask.stop(&m.out)
}
