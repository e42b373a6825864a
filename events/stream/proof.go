package stream

import (
	"time"

	"example.com/conductor/events"
)

// proof is what an answer to a request for the witness, and for what follows it, has shown.
type proof struct {
	answered bool   // a batch from the witness on
	cut      bool   // the answer did not come to its end
	differ   uint64 // replies that came live with other bytes, or not at all
	number   uint64 // of the last of them
}

// noteDifference notes a reply that is not what came live.
func (p *proof) noteDifference(seq uint64) { p.differ, p.number = p.differ+1, seq }

// noteAhead notes a batch of the service that the live stream has not come to. The live connection may be a moment behind. If it has
// not brought the same batch by the next proof, the service is another's.
func (e *evidence) noteAhead(v fingerprint) {
	if e.ahead != (fingerprint{}) {
		e.proof.noteDifference(e.ahead.sequence())
	}
	e.ahead = v
}

// compareReply reports whether a reply is a batch that came live; known is false if nothing tells. An id that only replays told
// proves nothing.
func (e *evidence) compareReply(it *queuedBatch, c *consumed) (same, known bool) {
	switch {
	case c.isForeign(it):
		return false, true
	case c.isProven(it) && !e.toldByReplayOnly:
		return true, true
	}
	return e.live.compareBytes(it.seq, it.payload)
}

// readProof takes a reply to a request for the witness. One batch that is the same decides. A batch with other bytes does not:
// a relay may have only a digest of what it has forgotten, and sends that under numbers of before, in front of what it remembers.
// What follows the last live batch cannot be compared.
func readProof(m *machine, it *queuedBatch, now time.Time) {
	e := &m.evidence
	if e.serviceMatched { // on the way
		m.replay.cancelReplay(&m.out)
		return
	}
	if it.seq < e.witness.sequence() {
		return // not asked for
	}
	same, known := e.compareReply(it, &m.consumed)
	if same {
		m.replay.cancelReplay(&m.out)
		acceptService(m, now)
		return
	}
	e.proof.answered = true
	if known {
		e.proof.noteDifference(it.seq)
	}
	if it.seq >= m.heard && e.proof.differ == 0 && !m.throttled {
		e.noteAhead(newFingerprint(it.seq, it.payload))
	}
	if it.seq+1 >= m.heard {
		judgeProof(m, now)
	}
}

// judgeProof judges an answer that has no live batch. Without any batch from the witness on it contradicts too, if the service has told
// some before: the known publishers put a batch into the ring in the moment in which they send it. A service that never tells one
// has an empty ring.
func judgeProof(m *machine, now time.Time) {
	e := &m.evidence
	m.replay.cancelReplay(&m.out)
	switch {
	case e.serviceMatched: // on the way
		return
	case e.foreign && !e.proof.cut: // as before
		e.asked = maxProofs
	case !e.foreign && (e.proof.differ > 0 || !e.proof.answered && !e.proof.cut && e.serviceTold):
		if e.proof.differ > 0 {
			m.counts.dropped[events.ForeignReplay] += e.proof.differ
		}
		m.out.recordError("the replay service has not batch %d as it came live", max(e.proof.number, e.witness.sequence()))
		if e.noteContradiction() {
			m.declareForeign(now)
			return
		}
	default:
		e.asked++
	}
	e.planProof(now)
}

// acceptService notes that the service has a live batch. Then it is the publisher's after all, and has the history that is missing because
// it seemed to be another's.
func acceptService(m *machine, now time.Time) {
	m.evidence.foreign = false
	m.evidence.match()
	if m.completeness.lost == ReasonForeign {
		m.beginEpoch(reasonRecovered)
		m.requestHistory(now, 0)
	}
}
