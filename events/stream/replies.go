package stream

import "time"

// acceptReply takes one replayed batch that was not held back. Replies arrive in ascending order over a connection of
// their own, while live batches go on arriving and are held. The reply and the live connection
// may come from different processes: the publisher may be restarted after the live connection
// was made and before the replay was, and the end of the live connection may be noticed only
// later. So every reply is compared with what is known at its number, consumed or held. A
// contradiction is a restart, unless the service is another publisher's (judgeContradiction).
//
// A reply beyond the next number means that the ones before it are missing from the replay.
// Which of three reasons it has decides what happens: the publisher's socket dropped them (ask
// again), the publisher has forgotten them (a loss), or it numbers from 1 (nothing is
// missing).
func (m *machine) acceptReply(it queuedBatch, now time.Time) {
	a := &m.replay
	if a.kind == askProof {
		readProof(m, &it, now)
		return
	}
	// Whatever the replay is for, another lifetime answers: nothing that it says is about
	// the batches which were consumed.
	if m.consumed.isForeign(&it) {
		m.judgeContradiction(it.seq, m.evidence.hasLive(), now)
		return
	}
	if m.consumed.isProven(&it) && m.evidence.seenElsewhere && !m.evidence.toldByReplayOnly {
		m.evidence.match()
	}
	m.replay.acceptLifetime(&m.consumed, &m.boundary, &it)
	if a.kind == askProbe {
		m.judgeProbe(it, now)
		return
	}
	if a.kind == askVerify && !a.anchored {
		m.verifyReply(it, now)
		return
	}
	falls := it.seq < a.high
	if it.seq <= m.consumed.next {
		a.high = max(a.high, it.seq+1)
	}
	if m.consumed.started && it.seq < m.consumed.next {
		switch same, known := m.consumed.compareBatch(&it); {
		case known && !same && (it.seq < a.from || falls): // not asked for, or the second of its number
			a.dropOddReply(&it, m.counts.dropped)
			return
		case known && !same:
			m.judgeContradiction(it.seq, m.evidence.hasLive(), now)
			return
		case same && !m.evidence.toldByReplayOnly:
			m.evidence.match()
		}
		m.counts.duplicates++
		// The batch at the watermark came, so the publisher still has the place where the
		// missing ones begin.
		a.reachedWatermark = a.reachedWatermark || it.seq >= a.from && it.seq+1 == m.consumed.next
		// What was missing came live meanwhile: not new, but an answer.
		a.progress = a.progress || it.seq >= a.since
		return
	}
	// The live connection is behind and waits for room, and the replay begins behind what it
	// brought. Waiting for the gap to close would stop both: the live batches for the gap, and
	// the gap for the queue that is full of them.
	if (m.throttled || a.liveIsBehind) && !a.progress && it.seq > m.consumed.next &&
		m.held.count() > 0 && m.held.firstBatch().seq < it.seq {
		if !m.askAgain(now) {
			// The replay begins behind what waits. The publisher has forgotten what fills the hole, and the live
			// connection, which is behind, brings the rest.
			m.giveUpOverrun(now)
			m.replay.cancelReplay(&m.out)
		}
		return
	}
	// An anchored replay, or the publisher id, has shown that the batch may stand behind those of other connections.
	if m.replay.crossesConnections && !m.replay.anchored && !m.consumed.isProven(&it) {
		m.boundary.extendBoundary(it.at, m.consumed.last)
	}
	// A batch that is held came live. If the replay has other bytes at its number, the two
	// connections lead to different processes.
	held := m.held.findBatch(it.seq)
	switch {
	case held == nil:
	case held.isSameBatch(&it):
		m.counts.duplicates++
		if !held.replayed {
			m.evidence.match()
		}
	default:
		m.judgeContradiction(it.seq, !held.replayed, now)
		return
	}
	switch {
	case it.seq <= m.consumed.next:
	case held == nil && reachedBy(m).isBeyond(it.seq):
		a.dropOddReply(&it, m.counts.dropped)
		return
	case !m.consumed.started && m.consumed.next == 0 && it.seq == 1:
		// The replay of everything begins with batch 1: the publisher counts from 1, or its ring has lost batch 0
		// alone. It is asked once more, because the ring of a busy one has moved on by then.
		if !m.replay.secondTry {
			m.resumeReplay(now)
			m.replay.secondTry = true
			return
		}
		m.consumed.first, m.consumed.next = 1, 1
	case m.askAgain(now):
		return
	case held == nil && !m.consumed.isProven(&it) && reachedBy(m).isUnconfirmed(&a.head, m.consumed.started):
		a.dropOddReply(&it, m.counts.dropped)
		return
	}
	if held == nil {
		m.held.addBatch(it)
	}
	if it.seq > m.consumed.next {
		m.giveUpOverrun(now)
	}
}

// askAgain asks for the missing batches again if this attempt suggests that the publisher has
// them, and reports whether it did. Replies come in order, so batches that are missing behind
// one of them were dropped by a socket: a ROUTER drops what exceeds its high-water mark, 1,000
// messages by default, and says nothing. Behind the batch at the watermark the publisher may
// have skipped a number instead, so those are asked for only once more. Without this limit a
// publisher that skips a number would be asked for its ring for ever; without the second try
// every ring longer than the high-water mark would look like lost history.
func (m *machine) askAgain(now time.Time) bool {
	if !m.replay.progress && (!m.replay.reachedWatermark || m.replay.secondTry) {
		return false
	}
	again := !m.replay.progress
	m.resumeReplay(now)
	m.replay.secondTry = again
	return true
}

// giveUpOverrun gives up what the publisher has forgotten: its ring begins behind the batch
// that was asked for. Before the first batch that is history from before we came
// (ReasonOverrun); later it is a gap that nothing fills.
func (m *machine) giveUpOverrun(now time.Time) {
	m.counts.overruns++
	if !m.consumed.started {
		m.giveUpGap(ReasonOverrun)
		return
	}
	m.replay.denied = true // the publisher answers without the batches that are missing
	m.servicePause.noteDenial(now)
	m.giveUpGap(m.completeness.lossReason(m.consumed.started))
}

// verifyReply judges the replies of askVerify until they have come to the last batch consumed.
// The anchor is a batch that was consumed, with the fingerprint of its bytes. If the first
// reply is that batch, the publisher is the one we followed: a new process would have other
// bytes at this number, or none, since each batch begins with the time at which it was made.
// If the reply differs, or the ring begins behind the anchor, it is another process, or one
// that cannot prove otherwise, and everything is dropped.
//
// Behind a replay boundary one batch is not enough: any part of what follows may be of another
// lifetime than the rest, also the batches that waited live while a replay went before them.
// So the anchor moves on, batch by batch, each compared with its fingerprint, until it meets
// the last batch consumed.
//
// If the live connection is behind what was replayed, the publisher may rightly have forgotten
// the anchor. Then its absence proves nothing, and the replay goes on as if it filled a gap.
func (m *machine) verifyReply(it queuedBatch, now time.Time) {
	a := &m.replay
	switch anchor := a.anchor.sequence(); {
	case it.seq < anchor:
		return // not asked for
	case it.seq == anchor:
		if newFingerprint(it.seq, it.payload) != a.anchor {
			m.beginLifetime(reasonRestart, now)
			return
		}
		a.anchorMet = true
	case !a.anchorMet && a.liveIsBehind:
		a.kind = askFill // the publisher has forgotten the anchor
		m.acceptReply(it, now)
		return
	case !a.anchorMet:
		m.beginLifetime(reasonForgotten, now)
		return
	case it.seq > m.consumed.last.sequence(): // it says nothing of what is verified
		a.dropOddReply(&it, m.counts.dropped)
		return
	case it.seq > anchor+1 && a.progress:
		m.resumeReplay(now) // the publisher's socket dropped the missing batches
		return
	case m.consumed.prints.hasBetween(anchor+1, it.seq):
		m.beginLifetime(reasonForgotten, now)
		return
	default:
		if same, known := m.consumed.prints.compareBytes(it.seq, it.payload); known && !same {
			m.beginLifetime(reasonRestart, now)
			return
		}
		a.anchor, a.progress = newFingerprint(it.seq, it.payload), true
		m.boundary.before = a.anchor
	}
	if a.anchor == m.consumed.last {
		if !m.evidence.toldByReplayOnly {
			m.evidence.match()
		}
		a.anchored, a.reachedWatermark, a.progress = true, true, !a.liveIsBehind
		m.boundary = replayBoundary{}
	}
}

// endReplay takes the publisher's word that it has no more. What that means depends on what
// the replay was for. A verification that has not met its anchor shows that the publisher has
// lost it, as a new process has. A replay that leaves something missing is repeated once if
// the missing batches were not known when it began, since they may have been published in
// between; after that they are lost.
func (m *machine) endReplay(now time.Time) {
	a := &m.replay
	switch {
	case a.kind == askProof:
		judgeProof(m, now)
		return
	case a.kind == askProbe:
		switch {
		case m.completeness.probe.supersedes(a.anchor):
			a.cancelReplay(&m.out)
		case m.completeness.probe.from == probeAnchor:
			m.beginLifetime(reasonForgotten, now)
		case a.progress:
			m.resumeReplay(now)
		default: // the publisher lacks the missing batches too
			m.completeness.noteLost(ReasonGap)
			a.cancelReplay(&m.out)
		}
		return
	case a.kind == askVerify && !a.anchored:
		if a.progress {
			m.resumeReplay(now)
			return
		}
		m.beginLifetime(reasonForgotten, now)
		return
	case m.held.startsBehind(m.consumed.next):
		if m.askAgain(now) {
			return
		}
		if !a.knownMissing {
			m.resumeReplay(now)
			return
		}
		m.replay.denied = true // the publisher answers without the batches that are missing
		m.servicePause.noteDenial(now)
		m.giveUpGap(m.completeness.lossReason(m.consumed.started))
	}
	m.finishReplay(now)
}

// handleCutReplay takes the end of an attempt that was not finished: an error, or our own
// decision to make room for others, which does not count. An attempt that brought something is
// continued from the first missing batch. One that brought nothing is tried again after a
// pause that doubles, until patience ends; a probe is not, as nothing waits for it.
func (m *machine) handleCutReplay(ours bool, now time.Time) {
	a := &m.replay
	if ours {
		a.resumed--
	}
	switch {
	case a.progress:
		m.resumeReplay(now)
		return
	case a.kind == askProof, a.kind == askProbe, a.quiet && m.completeness.probe.from != probeNone, m.failed != "":
		m.giveUpReplay(now)
		return
	}
	a.pause = max(2*a.pause, minRetry)
	if again := now.Add(a.pause); again.Before(a.deadline) {
		a.waiting = again
		m.out.orders = append(m.out.orders, order{stop: true})
		return
	}
	m.giveUpReplay(now)
}
