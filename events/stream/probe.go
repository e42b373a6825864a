package stream

import "time"

// probePlan says how silence may still be made good: a probe asks the replay service
// again, now and then, without holding anything up.
//
// To fill a hole among batches that were applied, everything has to be applied again, in a new epoch
// without blocks. So a probe first reads what the publisher has, and drops it, until it has come past
// the hole. A replay that always ends before costs one request then, and no block.
type probePlan struct {
	from probeKind
	at   time.Time // of the next probe
	past uint64    // of probeStart: the batch behind the last gap
}

type probeKind uint8

const (
	probeNone   probeKind = iota
	probeTail             // what follows the last batch completes the tail
	probeAnchor           // the anchor, unchanged, ends the doubt
	probeStart            // all from the first batch to behind the hole: everything can be had again
)

// dueAt returns when to probe, zero if not. A probe waits until no other replay is wanted,
// since only one runs.
func (h *probePlan) dueAt(connected bool, request askKind) time.Time {
	if !connected || request != askNone || h.from == probeNone {
		return time.Time{}
	}
	return h.at
}

// supersedes reports whether a probe for an anchor, or from the start without one, is of no
// use any more: a clear has come since, or more is missing. The probe that runs was begun
// by an earlier plan, and its answer must not be taken for one to the question of the
// present plan.
func (h *probePlan) supersedes(anchor fingerprint) bool {
	if anchor != (fingerprint{}) {
		return h.from != probeAnchor
	}
	return h.from != probeStart
}

// servicePause is how long a replay service is left alone that did not help. A source that lacks batches asks
// for no others meanwhile.
type servicePause struct {
	until  time.Time
	pause  time.Duration // doubles each time, until a replay helps
	silent bool          // there was no answer, or none that ended
}

const (
	minHeal   = 10 * time.Second // after silence
	maxHeal   = 5 * time.Minute
	maxDenial = 30 * time.Second // after an answer without the batches asked for
)

// isActive reports whether the replay service is left alone.
func (c *servicePause) isActive(now time.Time) bool { return now.Before(c.until) }

// noteDenial notes an answer without the batches asked for. Another one during the pause
// counts with the first: one replay that ends in several gaps is one answer, and must not
// double the pause for each of them. A pause after silence, which may be longer than
// maxDenial, is not shortened.
func (c *servicePause) noteDenial(now time.Time) {
	if !c.isActive(now) {
		c.pause = min(max(2*c.pause, minRetry), max(c.pause, maxDenial))
		c.until, c.silent = now.Add(c.pause), false
	}
}

// noteSilence notes that the replay service was asked and did not answer, or not to the end.
func (c *servicePause) noteSilence(now time.Time) {
	c.pause = min(max(2*c.pause, minHeal), maxHeal)
	c.until, c.silent = now.Add(c.pause), true
}

// judgeProbe judges a reply of a probe. Nothing of it is applied. A probe of the history reads
// from the first batch on and counts: as soon as it has come past the last hole without one of
// its own, everything can be had again, and a new epoch begins that reads the ring once more,
// this time to apply it. If the ring begins too late, or has a hole itself, no later probe can
// find more, because rings only forget; so probes end.
func (m *machine) judgeProbe(it queuedBatch, now time.Time) {
	a := &m.replay
	switch {
	case m.completeness.probe.supersedes(m.replay.anchor):
		m.replay.cancelReplay(&m.out)
		return
	case m.completeness.probe.from == probeAnchor:
		m.judgeAnchorProbe(it, now)
		return
	}
	switch {
	case a.next == 0 && it.seq > max(m.cfg.firstSeq, 1):
		m.completeness.noteLost(ReasonOverrun) // the publisher has forgotten its first batches
		m.replay.cancelReplay(&m.out)
		return
	case a.next > 0 && it.seq < a.next:
		return // not asked for
	case a.next > 0 && it.seq > a.next && a.progress:
		m.resumeReplay(now) // the publisher's socket dropped the missing batches
		return
	case a.next > 0 && it.seq > a.next:
		m.completeness.noteLost(ReasonGap)
		m.replay.cancelReplay(&m.out)
		return
	}
	a.next, a.progress = it.seq+1, true
	// Everything can be had again. What was applied so far is dropped, because applying the
	// same batches a second time on top of it would bring back blocks that later batches have
	// removed.
	if a.next >= m.completeness.probe.past {
		m.beginEpoch(reasonRecovered)
		m.requestHistory(now, 0)
	}
}

// judgeAnchorProbe judges the first reply of a probe that asks for the anchor, a batch
// consumed before a reconnect that could not be verified. The same bytes end the doubt. Others
// show a restart that was not noticed, and all blocks that were applied since the anchor go.
// If the anchor has left the ring it is too late to tell, and the doubt stays until a clear or
// a new epoch.
func (m *machine) judgeAnchorProbe(it queuedBatch, now time.Time) {
	switch anchor := m.replay.anchor; {
	case it.seq < anchor.sequence():
		return // not asked for
	case it.seq > anchor.sequence():
		m.completeness.probe = probePlan{} // too late to tell
	case newFingerprint(it.seq, it.payload) == anchor:
		m.completeness.unverified, m.completeness.probe = false, probePlan{}
		if m.boundary.before != (fingerprint{}) {
			m.startReplay(askVerify) // the anchor is only where it begins
			return
		}
		if m.completeness.tail != "" {
			m.startReplay(askFill)
			return
		}
	default:
		m.beginLifetime(reasonRestart, now)
		return
	}
	m.replay.cancelReplay(&m.out)
}
