package stream

import "time"

// heal says how silence may still be made good: a probe asks the replay service
// again, now and then, without holding anything up.
type heal struct {
	from  healFrom
	at    time.Time // of the next probe
	pause time.Duration
}

type healFrom uint8

const (
	healNone   healFrom = iota
	healTail            // what follows the last batch completes the tail
	healAnchor          // the anchor, unchanged, ends the doubt
	healStart           // the first batch: everything can be had again
)

const (
	minHeal = 10 * time.Second
	maxHeal = 5 * time.Minute
)

// silence notes that the replay service was asked and did not answer.
func (t *trust) silence(from healFrom, now time.Time) {
	t.heal.from = max(t.heal.from, from)
	t.heal.pause = min(max(2*t.heal.pause, minHeal), maxHeal)
	t.heal.at = now.Add(t.heal.pause)
}

// probed judges the first reply of a probe.
func (m *machine) probed(it item, now time.Time) {
	switch m.trust.heal.from {
	case healAnchor:
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
	case healStart:
		m.trust.heal = heal{}
		if it.seq <= m.cfg.firstSeq {
			m.newEpoch(reasonRecovered)
			m.rebuild(now, 0)
			return
		}
	}
	m.stop()
}

// probedEmpty judges a probe that found nothing.
func (m *machine) probedEmpty(now time.Time) {
	if m.trust.heal.from == healAnchor {
		m.restart(reasonForgotten, now)
		return
	}
	m.trust.heal = heal{}
	m.stop()
}
