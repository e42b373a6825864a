package stream

import (
	"time"

	"example.com/conductor/events"
)

// ReasonForeign is a reason of State Partial and of a DropBlocks step: the replay service is not the publisher's own.
const ReasonForeign = "foreign_replay"

// evidence is what shows whether the replay service tells of the publisher that sends the live batches. Nothing in a
// registration proves it: ports are computed by conventions that differ, and addresses are given to other pods.
//
// A batch begins with the time at which it was made, so the same bytes at the same number are of one publisher. The live
// stream outranks the replay:
//
//	live batch ---- the reply has its bytes ----> agreed: what replays tell is believed, until the connection ends
//	         |
//	         +--- other bytes, or the service has nothing from that number on, though it was published
//	                  once: ask again      twice: foreign, what replays alone told goes, live batches stay
//
// Where a replay and the live connection overlap, which is usual, they are compared on the way. Where they do not, the service is
// asked for one live batch (askProof). Live batches do not wait for that. Copies of those that follow unproven ones are kept
// until the answer comes, so that they can be applied again without the others.
type evidence struct {
	// unproven: replays alone told something of this epoch, and no live batch agrees with them yet.
	unproven bool
	// trusted: something of this epoch came live, or from a service that agreed, or from a peer.
	trusted bool
	agreed  bool // the service has agreed with a live batch of this connection, in this epoch

	contradictions int       // of a service that has not agreed since
	foreign        bool      // the service is another publisher's
	foreignSince   time.Time // valid if foreign

	last    fingerprint // the last live batch of this connection
	witness fingerprint // the live batch to ask the service for; zero: none
	due     time.Time   // when; zero: not planned
	asked   int         // proofs that told nothing, since the connection or the epoch began

	canReplay bool // there is a service

	kept    []queuedBatch // live batches that came since something is unproven, ascending
	bytes   int           // of kept
	maxLen  int           // of kept
	maxSize int           // of kept, in bytes
}

const (
	// proofDelay is how old a live batch is when the service is asked for it: replies may bring it before, and a service
	// that is a process of its own needs a moment. Another request follows after the same time.
	proofDelay = 500 * time.Millisecond
	// keptFor is how long behind that time batches are kept, if the service does not answer.
	keptFor = 10 * time.Second
	// maxProofs is how many requests in a row may tell nothing: the service is silent, or its ring shorter than proofDelay.
	maxProofs = 3
	// contradictionsOfForeign is how often a service contradicts before it is another publisher's. Once proves little: while
	// an engine is restarted, the connection of one process and the service of the other overlap for a moment.
	contradictionsOfForeign = 2
)

// endConnection forgets what was learnt on a connection. at is when that ended. A service
// that became foreign just before may have been the next process of the publisher.
func (e *evidence) endConnection(at time.Time) {
	if !e.foreign || at.Sub(e.foreignSince) < boundaryLifetime {
		e.foreign, e.contradictions = false, 0
	}
	e.agreed, e.last = false, fingerprint{}
	e.forgetWitness()
	e.asked = 0
}

// beginEpoch forgets what was told in the epoch before.
func (e *evidence) beginEpoch() {
	e.unproven, e.trusted, e.agreed, e.asked = false, false, false, 0
	e.forgetWitness()
}

// forgetWitness plans no proof, and keeps nothing for it.
func (e *evidence) forgetWitness() {
	e.witness, e.due = fingerprint{}, time.Time{}
	e.releaseKept()
}

// releaseKept gives the kept batches back.
func (e *evidence) releaseKept() {
	for i := range e.kept {
		e.kept[i].block.Release()
	}
	e.kept, e.bytes = nil, 0
}

// noteLive notes a live batch, of which v is the fingerprint, and plans the proof by the first one.
func (e *evidence) noteLive(it *queuedBatch, v fingerprint) {
	if e.agreed {
		return
	}
	e.last = v
	if e.asked >= maxProofs || it.id != (events.PublisherID{}) && !e.unproven { // each reply will be judged by its id
		return
	}
	if e.witness == (fingerprint{}) {
		e.witness, e.due = v, it.at.Add(proofDelay)
	}
	switch {
	case it.at.Sub(e.due) > keptFor:
		e.releaseKept()
	case e.unproven:
		e.keepLive(*it)
	}
}

// hasLive reports whether a live batch of this connection was applied, as long as the service has not agreed.
func (e *evidence) hasLive() bool { return e.last != fingerprint{} }

// keepLive keeps a live batch, instead of the oldest ones if there is no room.
func (e *evidence) keepLive(it queuedBatch) {
	it.block.Retain()
	e.kept = append(e.kept, it)
	e.bytes += len(it.payload)
	for len(e.kept) > 1 && (len(e.kept) > e.maxLen || e.bytes > e.maxSize) {
		e.bytes -= len(e.kept[0].payload)
		e.kept[0].block.Release()
		e.kept[0] = queuedBatch{}
		e.kept = e.kept[1:]
	}
}

// agree notes that the service and a live batch agree, and with them all that the service told.
func (e *evidence) agree() {
	e.agreed, e.trusted, e.unproven = true, true, false
	e.contradictions, e.asked = 0, 0
	e.forgetWitness()
}

// planProof plans another proof after one that did not convince, by the newest live batch.
func (e *evidence) planProof(now time.Time) {
	if e.asked >= maxProofs {
		e.forgetWitness()
		return
	}
	e.witness, e.due = e.last, now.Add(proofDelay)
}

// dueAt returns when to ask for the witness, zero if not. A service that was silent is left to the probes.
func (e *evidence) dueAt(connected bool, request askKind, silent bool) time.Time {
	if !connected || request != askNone || silent {
		return time.Time{}
	}
	return e.due
}

// canAsk reports whether there is a replay service worth asking for history.
func (e *evidence) canAsk() bool { return e.canReplay && !e.foreign }

// isWitness reports whether a reply is the live batch that was asked for.
func (e *evidence) isWitness(it *queuedBatch, c *consumed) bool {
	if c.isForeign(it) {
		return false
	}
	return c.isProven(it) || newFingerprint(it.seq, it.payload) == e.witness
}

// noteReturn notes a live batch whose number was consumed before: same, if it is the batch consumed there, and remembered, if its
// fingerprint shows it. before is the number behind the last live batch. If replays alone told that batch, they are the publisher's,
// except at a mark that was taken over (atMark), which says nothing about the service. If nothing but the number speaks
// for it, the service is asked.
func (e *evidence) noteReturn(it *queuedBatch, before uint64, same, remembered, atMark bool) {
	switch {
	case !same, !e.unproven, it.seq < before:
	case !remembered:
		e.noteLive(it, newFingerprint(it.seq, it.payload))
	case atMark:
		e.unproven = false
		e.forgetWitness()
	default:
		e.agree()
	}
}

// noteContradiction notes that a reply and a live batch contradict each other, and reports whether that shows the service to be
// another publisher's. One that has agreed before is the publisher's: then it is a restart.
func (e *evidence) noteContradiction() (foreign bool) {
	if e.agreed {
		return false
	}
	e.contradictions++
	return e.contradictions >= contradictionsOfForeign
}

// takeLive returns the live batches that were kept, and then those that wait; neither has them any more.
func (e *evidence) takeLive(waiting *heldBatches) []queuedBatch {
	live := e.kept
	e.kept, e.bytes = nil, 0
	waiting.keepLiveOnly()
	for waiting.count() > 0 {
		if it := waiting.popFirst(); len(live) == 0 || it.seq > live[len(live)-1].seq {
			live = append(live, it)
		}
	}
	return live
}

// judgeProof judges the reply to a request for the witness, nil for an end without it. It contradicts if it has other bytes, and if
// the service has nothing from that number on: the known publishers put a batch into the ring in the moment in which they send
// it, in the thread that also answers.
func (m *machine) judgeProof(it *queuedBatch, now time.Time) {
	e := &m.evidence
	number := e.witness.sequence()
	if it != nil && it.seq < number && !e.agreed {
		return // not asked for
	}
	m.replay.cancelReplay(&m.out)
	switch {
	case e.agreed: // on the way
		return
	case it != nil && it.seq == number && e.isWitness(it, &m.consumed):
		wasForeign := e.foreign
		e.foreign = false
		e.agree()
		// The service is the publisher's after all, so the history can be had.
		if wasForeign && m.completeness.lost != "" {
			m.beginEpoch(reasonRecovered)
			m.requestHistory(now, 0)
		}
		return
	case it != nil && it.seq > number && (it.seq < m.heard || m.throttled):
		e.asked++ // it has left the ring
	default: // a ring ends with the newest batch, so it does not begin beyond all that came live
		m.out.recordError("the replay service has not batch %d as it came live", number)
		if it != nil {
			m.counts.dropped[events.ForeignReplay]++
		}
		if e.noteContradiction() {
			m.declareForeign(now)
			return
		}
	}
	e.planProof(now)
}

// judgeContradiction takes a batch that contradicts what is known at its number, over the other connection (byOther), or over its own.
// Two processes speak. If one of them is the replay service, and that has not agreed with the live stream before, it is to
// blame: what came live stays. Else the publisher was restarted, and as the newer of the two cannot be told, all starts over.
func (m *machine) judgeContradiction(seq uint64, byOther bool, now time.Time) {
	if !byOther || m.evidence.agreed {
		m.held.dropAll()
		m.beginLifetime(reasonRestart, now)
		return
	}
	m.counts.dropped[events.ForeignReplay]++
	m.out.recordError("the replay service has another batch %d than the one that came live", seq)
	if m.evidence.noteContradiction() {
		m.declareForeign(now)
		return
	}
	live := m.evidence.takeLive(&m.held)
	m.beginLifetime(reasonRestart, now)
	m.held.restoreKept(live, 0)
}

// declareForeign goes on by live batches alone. What replays alone told goes, and with it all that was applied on top: which
// block is whose cannot be told. The live batches that were kept, and those that wait, are applied again.
func (m *machine) declareForeign(now time.Time) {
	e := &m.evidence
	m.replay.cancelReplay(&m.out)
	if !e.foreign {
		e.foreign, e.foreignSince = true, now
	}
	m.boundary, m.completeness.probe, m.catchingUp = replayBoundary{}, probePlan{}, false
	if live := e.takeLive(&m.held); e.unproven {
		m.beginEpoch(ReasonForeign)
		m.held.restoreKept(live, 0)
	} else {
		m.held.restoreKept(live, m.consumed.next)
		m.completeness.blameReplay()
	}
	e.forgetWitness()
	e.asked = maxProofs
}
