package stream

import (
	"fmt"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
)

// Reasons of a DropBlocks step.
const (
	// A batch differs from the one consumed at its sequence.
	reasonRestart = "publisher_restarted"
	// A replay that should start with the last batch does not have it.
	reasonForgotten = "last_batch_gone"
	// A replay service that was silent answers, and still has everything.
	reasonRecovered = "history_recovered"
)

// machineConfig is what the machine needs to know.
type machineConfig struct {
	firstSeq  uint64
	partial   func(media []string) bool // a clear of the publisher leaves blocks; nil for never
	rank      int                       // as Config.Rank
	canReplay bool
	timeout   time.Duration // how long a replay may make no progress

	canSnapshot        bool
	snapshotTimeout    time.Duration // how long a request for a snapshot may make no progress
	keepLen, keepBytes int           // live batches that may wait for a snapshot
	jitter             func(time.Duration) time.Duration

	drop   bool // on an unrecoverable gap
	decode func([]byte) (events.Batch, error)

	decodePart func([]byte) (events.Batch, error)
	refused    func(epoch, seq uint64, payload []byte) // called with what decode refuses; may be nil
}

// machine puts the batches of one publisher in order.
//
//	live ------+-> held -> nextStep -> Step    held: sorted by sequence, each once
//	replayed --+              |
//	                          +-- first is next       -> decoded, handed out or skipped
//	                          +-- first is beyond it  -> a gap: ask, wait, or give it up
//
// Everything goes through held, and nextStep alone decides which batches are handed out. The
// caller takes steps until nothing comes before it gives the machine the next input.
//
// Its parts own what they judge by, and know nothing of the machine: consumed (what of the sequence was
// handed out), held (what waits), replay and boundary (the replay wanted), snapshots (the same for
// snapshots), completeness (what is missing), servicePause, restartPace and storm (when to leave a
// publisher alone), peerMark (what was taken over from a peer), evidence (whose the replay service is) and usability. What they want done
// goes into out.
//
// Invariants:
//
//  1. consumed.next is the sequence to consume next; consumed.last is the batch consumed last, once
//     something was. Consumed means handed out, or skipped because it cannot be decoded.
//  2. Once something was consumed, held has no batch below next. Before that, next is the publisher's
//     first number, until a gap before the first batch seen is given up.
//  3. A gap is closed by a replay or by giveUpGap, which leaves a reason in completeness.
//  4. Settled, that is when nextStep has nothing more, held is empty or a replay is under way.
//
// A machine has no goroutine, lock or clock: one caller at a time, time is an
// argument. A batch costs O(1), O(held) if it arrives out of order.
type machine struct {
	cfg machineConfig

	epoch        uint64 // lifetimes seen, and resyncs; starts at 1
	consumed     consumed
	held         heldBatches
	completeness completeness
	ranks        []int // of the events of the epoch

	peerMark  inheritedMark
	snapshots snapshotRecovery
	usability recentMessages

	connected bool
	connects  uint64 // connections so far
	heard     uint64 // sequence+1 of the last live batch on this connection; 0: none arrived

	secondLook   secondLook
	replay       replayRequest
	boundary     replayBoundary
	requests     uint64 // attempts numbered so far
	evidence     evidence
	restartPace  restartPace
	storm        storm
	servicePause servicePause
	// Gaps below silentBelow are given up without asking: the publisher was asked and
	// did not answer.
	silentBelow uint64

	throttled  bool // a live batch waits for room in the queue
	catchingUp bool // replayed or held back batches are still to be handed out
	failed     string
	retries    uint64 // times it was cleared from outside

	out    outbox
	counts counts
}

// outbox is what the machine and its parts want done, and what they complain of.
type outbox struct {
	resets []Step // to hand out before anything else
	orders []order
	// err is what went wrong last, errs how often something did.
	err  string
	errs uint64
}

// recordError remembers an error for Status.
func (o *outbox) recordError(format string, args ...any) {
	o.err = fmt.Sprintf(format, args...)
	o.errs++
}

// orderRelink asks for another live connection.
func (o *outbox) orderRelink() { o.orders = append(o.orders, order{relink: true}) }

// counts is what happened so far.
type counts struct {
	gaps, replayed, restarts, overruns, duplicates uint64
	dropped                                        map[events.Reason]uint64
}

// order is what the caller has to do: begin the attempt with number ask, from a sequence on, or
// end whatever attempt there is.
type order struct {
	stop   bool
	relink bool // or end the live connection, and begin another
	// snapshot: the order is about a request for a snapshot, not about a replay.
	snapshot bool
	ask      uint64
	from     uint64
}

func newMachine(cfg machineConfig) *machine {
	m := &machine{cfg: cfg, epoch: 1}
	m.consumed.reset(cfg.firstSeq)
	m.counts.dropped = make(map[events.Reason]uint64)
	m.snapshots.timeout, m.snapshots.keepLen, m.snapshots.keepBytes = cfg.snapshotTimeout, cfg.keepLen, cfg.keepBytes
	m.snapshots.failed = make(map[string]uint64)
	m.evidence.canReplay, m.evidence.maxLen, m.evidence.maxSize = cfg.canReplay, cfg.keepLen, cfg.keepBytes
	m.completeness.beginCompleteness(cfg.canReplay)
	return m
}

// handleInput tells the machine what happened. nextStep must have returned nothing since the
// last input, so that the machine is settled: whatever it could decide without this input is
// decided.
//
// Answers carry the number of the attempt that they belong to. An attempt that was given up
// may still have answers on the way, in the inbox or in its goroutine. They are dropped here,
// because the publisher may have been restarted since: an old answer in a new epoch would put
// blocks of a dead process into the index.
func (m *machine) handleInput(in input, now time.Time) {
	epoch := m.epoch
	switch in.kind {
	case inConnected:
		m.beginConnection(in.at)
	case inDisconnected:
		m.endConnection(in.at)
	case inFailed:
		m.failed = in.text
		m.endConnection(in.at)
	case inRetry:
		m.failed = ""
		m.retries++
	case inLive:
		m.acceptLive(queuedBatch{message: in.message, at: in.at}, now)
	case inRefused:
		m.out.recordError("cannot use a message: %s", in.text)
		for range min(in.refused, judgedMessages) {
			m.usability.noteMessage(in.text)
		}
	case inResync:
		m.storm = storm{}
		m.beginEpoch(in.text)
		m.requestHistory(now, m.restartPace.nextDelay(now))
	case inReplayStart, inReplay, inReplayEnd, inReplayCut:
		if m.replay.kind == askNone || in.ask != m.replay.id {
			return // a late word from an attempt that was given up
		}
		switch in.kind {
		case inReplayStart:
			m.replay.startPatience(now.Add(m.cfg.timeout))
		case inReplay:
			m.evidence.serviceTold = true
			it := queuedBatch{message: in.message, at: in.at, replayed: true}
			if !m.replay.holdBack(it, &m.consumed, m.throttled, m.counts.dropped) {
				m.acceptReply(it, now)
			}
			if m.replay.id == in.ask {
				m.replay.extendPatience(it.seq, now.Add(m.cfg.timeout))
			}
		case inReplayEnd, inReplayCut:
			if m.replay.head.waits() && !in.ours {
				end := in // the argument stays off the heap
				m.replay.head.acceptAll(&end)
				break
			}
			m.endAttempt(in, now)
		}
	case inSnapshotStart, inSnapshot, inSnapshotCut:
		if m.snapshots.id == 0 || in.ask != m.snapshots.id {
			if in.snapshot != nil {
				in.snapshot.releaseChunks()
			}
			return
		}
		switch in.kind {
		case inSnapshotStart:
			m.snapshots.extendDeadline(now)
		case inSnapshot:
			m.acceptSnapshot(in.snapshot, in.at, now)
		case inSnapshotCut:
			m.failSnapshot(in.text, now)
		}
	}
	// An input other than a live batch began the epoch, so what the live connection has queued
	// may have been sent by the lifetime before. A live batch that begins an epoch is itself
	// the first of the new lifetime.
	if m.epoch != epoch && in.kind != inLive && in.kind != inSnapshot {
		m.relinkIfBehind()
	}
}

// endAttempt takes the end of an attempt.
func (m *machine) endAttempt(in input, now time.Time) {
	if in.kind == inReplayEnd {
		m.endReplay(now)
		return
	}
	if in.bad {
		m.failed = in.text
	}
	m.handleCutReplay(in.ours, now)
}

// relinkIfBehind gives up a live connection that is behind when an epoch begins. It has
// batches in the socket's buffers which may be of the lifetime before, and nothing in them
// says so where the publisher has no id. A router would see blocks of the dead process return,
// batch by batch, after the reset. A new connection has no such backlog, and the replay that
// follows brings what is true now.
func (m *machine) relinkIfBehind() {
	if m.throttled && m.evidence.canAsk() {
		m.out.orderRelink()
	}
}

// beginConnection begins a connection. Nothing is known about what was published since the
// last batch, nor whether the same publisher published it: while the connection was down the
// engine may have been restarted, and its new process counts from the beginning again. So
// before anything is handed out a replay has to show that the last batch consumed still is
// what it was (askVerify). Without a replay service that cannot be asked, and the tail is
// unknown until the next live batch continues the sequence.
//
// What was learnt about the behaviour of the former connection is forgotten, as another
// process may be behind this one.
func (m *machine) beginConnection(at time.Time) {
	m.endConnection(at)
	m.connects++
	m.restartPace, m.usability, m.storm = restartPace{}, recentMessages{}, storm{} // another process may be behind this connection
	m.connected, m.heard, m.consumed.overtook = true, 0, 0
	m.secondLook = secondLook{unsure: true, pause: checkAfter}
	m.peerMark.beginConnectionAt(m.connects, m.consumed.last)
	m.snapshots.liveID = events.PublisherID{}
	switch {
	case m.cfg.canSnapshot && !m.consumed.started:
		m.snapshots.planFirstRequest(at, 0, m.heard > 0, &m.out)
	case !m.evidence.canAsk():
		if m.consumed.started {
			m.completeness.noteTail(m.completeness.reasonWithoutReplay(m.evidence.foreign))
		}
	case m.consumed.started:
		m.startReplay(askVerify)
	default:
		m.startReplay(askFill)
	}
}

// endConnection ends a connection. What waits is dropped: after the next connect a replay
// brings it back, or shows that it was of another lifetime. Handing it out now would be wrong
// in the second case, and the order in which the two are found out is not ours to choose: a
// process that dies sends its last batches, closes, and its successor listens at once.
func (m *machine) endConnection(at time.Time) {
	m.connected, m.secondLook.at = false, time.Time{}
	m.evidence.endConnection(at)
	m.boundary.endIfOutlived(at)
	m.replay.cancelReplay(&m.out)
	m.snapshots.cancelRequest(&m.out)
	m.catchingUp = false
	m.held.dropAll()
	if !m.consumed.started {
		m.consumed.first, m.consumed.next = m.cfg.firstSeq, m.cfg.firstSeq
	}
}

// acceptLive takes a batch off the live connection. There are four cases.
//
// It continues the sequence, or leaves a gap: it is held, and nextStep decides.
//
// It was consumed before, or is held already, with the same bytes. A replay and the live
// connection overlap by as many batches as are published while the replay runs, so this is
// normal, and counted as a duplicate.
//
// Its number was used before, by a batch with other bytes or another publisher id. TCP does
// not repeat or reorder, so the only explanation is that the publisher was restarted and
// counts from the beginning again. Everything is dropped: no router may be sent to blocks that
// the new process does not have.
//
// Its number is old and what was consumed there is not remembered. That is taken for a restart
// as well, except where something else explains the old number: a replay that ran ahead of
// this connection, or a mark taken over from a peer. A needless restart costs one replay; a
// missed one leaves dead blocks in the index for good.
func (m *machine) acceptLive(it queuedBatch, now time.Time) {
	before := m.heard
	m.snapshots.noteLiveBatch(&it, now)
	m.heard, m.secondLook.at = it.seq+1, time.Time{}
	if m.detectStorm(&it, now) {
		return
	}
	if m.replay.quiet {
		m.replay.cancelReplay(&m.out) // from here on the next live batch shows a hole
	}
	m.replay.acceptLifetime(&m.consumed, &m.boundary, &it)
	old := m.consumed.started && it.seq < m.consumed.next
	held := m.held.findBatch(it.seq)
	known := held != nil && held.isSameBatch(&it)
	remembered := true
	if old {
		var same bool
		same, remembered = m.consumed.compareBatch(&it)
		switch {
		case same:
			if m.peerMark.meetBatch(it.seq) && m.consumed.last == m.peerMark.mark {
				m.completeness.noteNothingBehind() // at the mark: all that follows comes live
			}
		case !remembered:
			// A replay may be thousands of batches ahead of a live connection that is not
			// read. What it overtook ascends, and a restart would end the connection.
			same = m.peerMark.coversBatch(it) || before <= it.seq && m.consumed.wasOvertaken(it.seq)
		}
		m.evidence.noteReturn(&it, before, same, remembered, m.peerMark.open)
		known = known || same
	}
	if known {
		m.counts.duplicates++
		return
	}
	if old || held != nil || m.consumed.isForeign(&it) {
		// If live numbers ascend, only a replayed batch can be wrong. A live number that the replay skipped shows that the
		// replay's last number was bogus.
		byReplay := it.seq >= before && (held == nil && m.evidence.toldByReplayOnly || held != nil && held.replayed) &&
			!m.evidence.keepsLiveNumber(it.seq)
		if byReplay && !remembered {
			m.counts.dropped[events.OddNumber]++
		}
		m.judgeContradiction(it.seq, byReplay && remembered, now)
	}
	// A replay decides whose the batch is; without one, the number that fits proves nothing.
	// The connection may have skipped the batch at a mark that was taken over from a peer.
	if m.peerMark.passBatch(it.seq) && !m.cfg.canReplay {
		if m.consumed.started {
			m.counts.gaps++
		}
		m.noteLoss(ReasonGap)
	}
	m.held.addBatch(it)
	if !m.snapshots.keepLive(it) {
		m.failSnapshot(SnapshotOverflow, now)
	}
}

// nextStep returns the next step; at is when its batch arrived. It returns false if nothing
// can be handed out before the next input, or before passTime is due.
//
// The order of the checks is what keeps the invariants. Resets come first, so that blocks are
// dropped before the first batch of the new epoch is applied. A storm stops everything, since
// no batch can be attributed. The parts of a snapshot come before the batches behind it. A
// verification holds everything back, because until it ends the waiting batches may be another
// lifetime's. Only then does the lowest batch held have its turn: it is next, or there is a
// gap before it.
func (m *machine) nextStep(now time.Time) (step Step, at time.Time, ok bool) {
	for {
		if step, at, ok = m.nextReadyStep(now); ok {
			return step, at, ok
		}
		epoch := m.epoch
		switch it, end := m.replay.head.takeNext(); {
		case it != nil:
			m.acceptReply(*it, now)
		case end != nil:
			m.endAttempt(*end, now)
		default:
			return Step{}, time.Time{}, false
		}
		if m.epoch != epoch {
			m.relinkIfBehind()
		}
	}
}

// nextReadyStep is nextStep without the replies that were held back (replyHead).
func (m *machine) nextReadyStep(now time.Time) (step Step, at time.Time, ok bool) {
	for {
		if len(m.out.resets) > 0 {
			step, m.out.resets = m.out.resets[0], m.out.resets[1:]
			return step, time.Time{}, true
		}
		if m.storm.active {
			return Step{}, time.Time{}, false
		}
		if m.snapshots.reply != nil {
			if step, at, ok := m.nextSnapshotStep(now); ok {
				return step, at, true
			}
			continue
		}
		if m.snapshots.holdsBatches {
			return Step{}, time.Time{}, false
		}
		if m.held.count() == 0 {
			m.catchingUp = m.catchingUp && m.replay.holdsBatches()
			if m.cfg.canSnapshot && m.connected && !m.replay.holdsBatches() && m.completeness.wantsSnapshot() {
				m.snapshots.planRequest(now)
			}
			return Step{}, time.Time{}, false
		}
		// Until the verification ends the batches that wait may be of another lifetime.
		if m.replay.kind == askVerify && !m.replay.anchored {
			return Step{}, time.Time{}, false // perhaps of another lifetime
		}
		head := m.held.firstBatch()
		// A batch that was held while the stream knew no publisher id may turn out to be
		// another process's, once a replayed batch has told the id.
		if head.seq <= m.consumed.next && m.consumed.isForeign(head) {
			// It waited while the id was unknown.
			if head.replayed || !m.evidence.toldByReplayOnly {
				m.beginLifetime(reasonRestart, now)
			} else {
				m.judgeContradiction(head.seq, true, now)
			}
			m.relinkIfBehind()
			continue
		}
		if head.seq <= m.consumed.next {
			it := m.held.popFirst()
			batch, err := m.cfg.decodeItem(&it)
			if err == nil {
				return m.handOut(it, batch), it.at, true
			}
			m.skipUndecodable(&it, err, now)
		} else if !m.handleGap(now) {
			return Step{}, time.Time{}, false
		}
	}
}

// decodeItem returns the batch of an item. A batch of another topic has none.
func (cfg *machineConfig) decodeItem(it *queuedBatch) (events.Batch, error) {
	switch {
	case it.otherTopic:
		return events.Batch{Rank: -1, Astray: it.astray}, nil
	case it.oversize > 0:
		return events.Batch{}, wire.OversizeError(it.oversize)
	}
	return decodeWith(cfg.decode, it.payload)
}

// decodeWith costs the batch, not the process, if the decoder is broken.
func decodeWith(decode func([]byte) (events.Batch, error), payload []byte) (batch events.Batch, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("BUG: the decoder panics: %v", p)
		}
	}()
	return decode(payload)
}

// skipUndecodable passes over a batch that cannot be decoded. A replay would bring the same
// bytes, so it is consumed like any other and nothing waits for it; but its blocks are
// missing, so the stream is partial. An undecodable reply also counts as a denial: else a
// publisher of another version would be asked for its whole ring again after each gap, and
// each time in vain.
func (m *machine) skipUndecodable(it *queuedBatch, err error, now time.Time) {
	reason := wire.ReasonOf(err)
	m.counts.dropped[reason]++
	m.out.recordError("cannot decode batch %d: %v", it.seq, err)
	if !it.replayed {
		m.usability.noteMessage(explainBatch(it.payload, err))
	}
	if m.cfg.refused != nil {
		m.cfg.refused(m.epoch, it.seq, it.payload)
	}
	if reason == events.TooLarge {
		m.noteLoss(ReasonTooLarge)
	} else {
		m.noteLoss(ReasonUndecodable)
	}
	if it.replayed && m.replay.holdsBatches() {
		m.replay.denied = true // the publisher answers without the batches that are missing
		m.servicePause.noteDenial(now)
	}
	m.consumeBatch(it)
}

// handOut makes a step of a batch whose turn it is. The publisher's first batch proves that
// the history is whole, and so do clears of all ranks, however much was missing before them:
// what the publisher held then is gone.
func (m *machine) handOut(it queuedBatch, batch events.Batch) Step {
	if !m.consumed.started && it.seq <= m.consumed.first {
		m.completeness.noteWhole()
	}
	m.consumeBatch(&it)
	if m.usability.lastInHand = false; it.replayed {
		m.counts.replayed++
	} else {
		m.usability.noteBatch(&batch)
	}
	for r, n := range batch.Dropped {
		m.counts.dropped[r] += uint64(n)
	}
	noteRanks(m, &batch)
	return Step{
		Kind: ApplyBatch, Batch: batch, Payload: it.payload, Block: it.block,
		Seq: it.seq, Print: m.consumed.last.hash, ID: m.consumed.id, Epoch: m.epoch, Replayed: it.replayed,
	}
}

// consumeBatch moves past a batch whose turn it is, and remembers its fingerprint, by which a
// later batch of the same number is known as a duplicate or as the sign of a restart.
func (m *machine) consumeBatch(it *queuedBatch) {
	m.consumed.last = newFingerprint(it.seq, it.payload)
	m.consumed.prints.addFingerprint(m.consumed.last, maxPrints)
	m.consumed.started, m.consumed.next = true, it.seq+1
	if !it.replayed && m.evidence.toldByReplayOnly && m.consumed.isProven(it) {
		m.evidence.match() // the replays named the lifetime that the live batch names
	}
	if it.id != (events.PublisherID{}) {
		m.consumed.id = it.id
	}
	if it.replayed {
		m.consumed.noteReplayed(it.seq)
		m.evidence.noteReplayed()
		m.replay.progress = m.replay.holdsBatches()
		return
	}
	if m.evidence.seenElsewhere = true; m.cfg.canReplay {
		m.evidence.noteLive(it, m.consumed.last)
	}
	m.completeness.noteNothingBehind()
	// A live batch was handed out and nothing is held, so everything from here on comes live: a replay has nothing to add.
	if m.replay.holdsBatches() && m.held.count() == 0 {
		if m.replay.brought > 0 && !m.replay.denied {
			m.servicePause = servicePause{}
		}
		m.replay.cancelReplay(&m.out)
	}
}

// beginLifetime begins a new epoch because the publisher is another one. The history is asked
// for after a pause that grows if this happens often: a publisher whose replays contradict its
// live batches, as behind a load balancer, would else be made to stream its ring without end.
// The pauses of the replay service are forgotten, for it is another process.
func (m *machine) beginLifetime(reason string, now time.Time) {
	m.counts.restarts++
	m.storm.restarts++
	m.servicePause = servicePause{}
	m.beginEpoch(reason)
	m.requestHistory(now, m.restartPace.nextDelay(now))
}

// beginEpoch forgets everything but the batches held. They are what made the machine begin the
// epoch, or came after it, and the caller drops them if they may be older. The reset goes out
// before anything else, so a router sees an empty source before it sees the first block of the
// new epoch, and never a mixture.
func (m *machine) beginEpoch(reason string) {
	m.replay.cancelReplay(&m.out)
	m.snapshots.cancelRequest(&m.out)
	m.epoch++
	m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: reason})
	m.consumed.reset(m.cfg.firstSeq)
	m.boundary, m.peerMark = replayBoundary{}, inheritedMark{}
	m.silentBelow, m.ranks = 0, nil
	m.evidence.beginEpoch()
	m.completeness.beginCompleteness(m.cfg.canReplay)
	if m.evidence.foreign {
		m.completeness.lost = ReasonForeign
	}
}
