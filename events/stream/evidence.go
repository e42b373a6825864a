package stream

import (
	"slices"
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
//	live batch ---- the service has its bytes ----> matched: what replays tell is believed, until the connection ends
//	         |
//	         +--- it has other bytes, or told batches and has none from that number on, or is ahead for too long:
//	              ask again      twice: foreign, what replays alone told goes, live batches stay. If it was batches of the
//	                             history that contradicted, the service is asked once more at once. Every foreign
//	                             service is asked again after a reconnect.
//
//	toldByReplayOnly  seenElsewhere  serviceMatched   what was applied in this epoch
//	       no              no              no         nothing
//	       yes             no              no         replies alone
//	       no              yes             no         live batches, or a peer's; a contradiction drops the reply
//	       yes             yes             no         both, and replies may be another's; a contradiction drops all
//	       no              yes             yes        both, of one publisher; a contradiction is a restart
//
// Where a replay and the live connection overlap, which is usual, they are compared on the way. Where they do not, the service is
// asked for one live batch (askProof). Live batches do not wait for that. Copies of those that follow what only replays told are kept
// until the answer comes, so that they can be applied again without the others.
type evidence struct {
	// toldByReplayOnly: replays alone told something of this epoch, and no live batch agrees with them yet.
	toldByReplayOnly bool
	// seenElsewhere: something of this epoch came live, or from a service that matched, or from a peer.
	seenElsewhere  bool
	serviceMatched bool // the service has agreed with a live batch of this connection, in this epoch
	everMatched    bool // or with one of an earlier connection or epoch
	serviceTold    bool // the service has told a batch since this epoch began

	contradictions int       // of a service that has not agreed since
	foreign        bool      // the service is another publisher's
	foreignSince   time.Time // valid if foreign

	witness fingerprint  // the live batch from which on the service is asked; zero: none
	due     time.Time    // when; zero: not planned
	asked   int          // proofs that told nothing, since the connection or the epoch began
	proof   proof        // the one under way
	live    fingerprints // the last live batches since the witness
	last    fingerprint  // the last live batch of this connection
	ahead   fingerprint  // a batch of the service that the live stream had not come to

	canReplay bool // there is a service

	kept    []queuedBatch // live batches that came since toldByReplayOnly, ascending
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
	// maxWitnesses is how many live batches are remembered for a proof.
	maxWitnesses = 256
)

// endConnection forgets what was learnt on a connection. at is when that ended. A service that became foreign just before may have been
// the next process of the publisher, and so may one that was the publisher's once.
func (e *evidence) endConnection(at time.Time) {
	if !e.foreign || e.everMatched || at.Sub(e.foreignSince) < boundaryLifetime {
		e.foreign, e.contradictions = false, 0
	}
	e.serviceMatched, e.last, e.asked = false, fingerprint{}, 0
	e.forgetWitness()
}

// beginEpoch forgets what was told in the epoch before.
func (e *evidence) beginEpoch() {
	e.toldByReplayOnly, e.seenElsewhere, e.serviceMatched, e.serviceTold, e.asked = false, false, false, false, 0
	e.forgetWitness()
}

// forgetWitness plans no proof, and keeps nothing for it.
func (e *evidence) forgetWitness() {
	e.witness, e.due, e.ahead = fingerprint{}, time.Time{}, fingerprint{}
	e.live.forgetAll()
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
	if e.serviceMatched {
		return
	}
	e.last = v
	if v == e.ahead {
		e.match()
		return
	}
	if e.asked >= maxProofs || it.id != (events.PublisherID{}) && !e.toldByReplayOnly && !e.foreign { // each reply will be judged by its id
		return
	}
	if e.witness == (fingerprint{}) {
		e.witness, e.due = v, it.at.Add(proofDelay)
	}
	e.live.addFingerprint(v, maxWitnesses)
	switch {
	case it.at.Sub(e.due) > keptFor:
		e.releaseKept()
	case e.toldByReplayOnly:
		e.keepLive(*it)
	}
}

// noteReplayed notes that a batch which only a replay told is applied. It is proven again, also if earlier proofs told nothing.
func (e *evidence) noteReplayed() {
	if e.serviceMatched || e.toldByReplayOnly {
		return
	}
	e.toldByReplayOnly, e.asked = true, 0
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

// keepsLiveNumber reports whether a live batch with a number is kept.
func (e *evidence) keepsLiveNumber(seq uint64) bool {
	return slices.ContainsFunc(e.kept, func(it queuedBatch) bool { return it.seq == seq })
}

// match notes that the service and a live batch agree, and with them all that the service told.
func (e *evidence) match() {
	e.serviceMatched, e.everMatched, e.seenElsewhere, e.toldByReplayOnly = true, true, true, false
	e.contradictions, e.asked = 0, 0
	e.forgetWitness()
}

// planProof plans another proof after one that did not convince, by the same witness: a service that only lags has it by then.
func (e *evidence) planProof(now time.Time) {
	if e.asked >= maxProofs {
		e.forgetWitness()
		return
	}
	e.due = now.Add(proofDelay)
}

// hastenProof plans a proof at once.
func (e *evidence) hastenProof(now time.Time) {
	if e.witness == (fingerprint{}) {
		e.witness = e.last
		if e.last != (fingerprint{}) {
			e.live.addFingerprint(e.last, maxWitnesses)
		}
	}
	e.asked = 0
	if e.witness != (fingerprint{}) {
		e.due = now
	}
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

// noteReturn notes a live batch whose number was consumed before: same, if it is the batch consumed there, and remembered, if its
// fingerprint shows it. before is the number behind the last live batch. If replays alone told that batch, they are the publisher's,
// except at a mark that was taken over (atMark), which says nothing about the service. If nothing but the number speaks
// for it, the service is asked.
func (e *evidence) noteReturn(it *queuedBatch, before uint64, same, remembered, atMark bool) {
	switch {
	case !same, !e.toldByReplayOnly, it.seq < before:
	case !remembered:
		e.noteLive(it, newFingerprint(it.seq, it.payload))
	case atMark:
		e.toldByReplayOnly = false
		e.forgetWitness()
	default:
		e.match()
	}
}

// noteContradiction notes that a reply and a live batch contradict each other, and reports whether that shows the service to be
// another publisher's. One that has agreed before is the publisher's: then it is a restart.
func (e *evidence) noteContradiction() (foreign bool) {
	if e.serviceMatched {
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

// judgeContradiction takes a batch that contradicts what is known at its number, over the other connection (byOther), or over its own.
// Two processes speak. If one of them is the replay service, and that has not agreed with the live stream before, it is to
// blame: what came live stays. Else the publisher was restarted, and as the newer of the two cannot be told, all starts over.
func (m *machine) judgeContradiction(seq uint64, byOther bool, now time.Time) {
	e := &m.evidence
	if !byOther || e.serviceMatched {
		m.held.dropAll()
		m.beginLifetime(reasonRestart, now)
		return
	}
	m.counts.dropped[events.ForeignReplay]++
	m.out.recordError("the replay service has another batch %d than the one that came live", seq)
	switch {
	case e.noteContradiction():
		m.declareForeign(now)
		e.hastenProof(now) // a digest of a relay looks like another publisher's batches, until what follows it is read
	case e.seenElsewhere && !e.toldByReplayOnly: // nothing that the service told is applied
		doubtService(m, now)
	default:
		live := e.takeLive(&m.held)
		m.beginLifetime(reasonRestart, now)
		m.held.restoreKept(live, 0)
	}
}

// doubtService drops an answer, gives up the batches for which it was asked, and lets a proof decide.
func doubtService(m *machine, now time.Time) {
	m.replay.cancelReplay(&m.out)
	m.held.keepLiveOnly()
	if m.held.startsBehind(m.consumed.next) {
		m.giveUpGap(ReasonForeign)
	}
	m.servicePause.silent = false // it has answered
	m.evidence.hastenProof(now)
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
	if live := e.takeLive(&m.held); e.toldByReplayOnly {
		m.beginEpoch(ReasonForeign)
		m.held.restoreKept(live, 0)
	} else {
		m.held.restoreKept(live, m.consumed.next)
		m.completeness.blameReplay()
	}
	e.forgetWitness()
	e.asked = maxProofs
}
