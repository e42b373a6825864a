package stream

import (
	"fmt"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
)

// Reasons of a Reset step.
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
	partial   bool // a clear of the publisher leaves blocks
	canReplay bool
	timeout   time.Duration // a replay may go without progress

	canSnapshot        bool
	snapshotTimeout    time.Duration // a request for a snapshot may go without progress
	keepLen, keepBytes int           // live batches that may wait for a snapshot
	jitter             func(time.Duration) time.Duration

	drop   bool // on an unrecoverable gap
	decode func([]byte) (events.Batch, error)

	decodePart func([]byte) (events.Batch, error)
	refused    func(epoch, seq uint64, payload []byte) // hears of what decode refuses; may be nil
}

// machine puts the batches of one publisher in order.
//
//	live ------+-> held -> pop -> Step     held: sorted by sequence, each once
//	replayed --+            |
//	                        +-- head is next       -> decoded, handed out or refused
//	                        +-- head is beyond it  -> a hole: ask, wait, or lose it
//
// Everything goes through held, and pop alone decides which batches are handed out. The
// caller pops until nothing comes before it feeds the next input.
//
// Invariants:
//
//  1. next is the sequence to consume next; last is the batch consumed last, if
//     has. Consumed means handed out, or skipped because it cannot be decoded.
//  2. If has, held has no batch below next. If not, next is first, until a
//     hole before the first batch seen is given up.
//  3. A hole is closed by a replay or by lose, which leaves a mark in trust.
//  4. Settled, that is when pop has nothing more, held is empty or a replay is
//     under way.
//
// A machine has no goroutine, lock or clock: one caller at a time, time is an
// argument. A batch costs O(1), O(held) if it arrives out of order.
type machine struct {
	cfg machineConfig

	epoch    uint64 // lifetimes seen, and resyncs; starts at 1
	consumed consumed
	held     held
	trust    trust

	inherited inherited
	rung      rung
	recent    recent

	connected bool
	connects  uint64    // connections so far
	heard     uint64    // sequence+1 of the last live batch on this connection; 0: none arrived
	unsure    bool      // this connection's slow-joiner window is not checked yet
	checkAt   time.Time // when to check it, zero: not now

	ask   ask
	joint joint
	asks  uint64 // attempts numbered so far
	pace  pace
	storm storm
	calm  calm
	// Holes below silent are lost without asking: the publisher was asked and
	// did not answer.
	silent uint64

	throttled bool // a live batch waits for room in the queue
	catchup   bool // replayed or held back batches are still to be handed out
	failed    string
	retries   uint64 // times it was cleared from outside

	out outbox
	n   counts
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

// order is what the caller has to do: begin the attempt ask, from seq on, or
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
	m.consumed.restart(cfg.firstSeq)
	m.n.dropped = make(map[events.Reason]uint64)
	m.rung.timeout, m.rung.keepLen, m.rung.keepBytes = cfg.snapshotTimeout, cfg.keepLen, cfg.keepBytes
	m.rung.failed = make(map[string]uint64)
	m.trust.begin(cfg.canReplay)
	return m
}

// feed tells the machine what happened. pop must have returned nothing since
// the last input.
func (m *machine) feed(in input, now time.Time) {
	epoch := m.epoch
	switch in.kind {
	case inConnected:
		m.connect(in.at)
	case inDisconnected:
		m.disconnect(in.at)
	case inFailed:
		m.failed = in.text
		m.disconnect(in.at)
	case inRetry:
		m.failed = ""
		m.retries++
	case inLive:
		m.live(item{message: in.message, at: in.at}, now)
	case inRefused:
		m.out.recordError("cannot use a message: %s", in.text)
		for range min(in.refused, judged) {
			m.recent.note(in.text)
		}
	case inResync:
		m.storm = storm{}
		m.newEpoch(in.text)
		m.rebuild(now, m.pace.delay(now))
	case inReplayStart, inReplay, inReplayEnd, inReplayCut:
		if m.ask.kind == askNone || in.ask != m.ask.id {
			return // a late word from an attempt that was given up
		}
		switch in.kind {
		case inReplayStart:
			m.ask.startPatience(now.Add(m.cfg.timeout))
		case inReplay:
			m.replay(item{message: in.message, at: in.at, replayed: true}, now)
		case inReplayEnd:
			m.replayEnd(now)
		case inReplayCut:
			if in.bad {
				m.failed = in.text
			}
			m.replayCut(in.ours, now)
		}
	case inSnapshotStart, inSnapshot, inSnapshotCut:
		if m.rung.id == 0 || in.ask != m.rung.id {
			if in.snapshot != nil {
				in.snapshot.release()
			}
			return
		}
		switch in.kind {
		case inSnapshotStart:
			m.rung.extendDeadline(now)
		case inSnapshot:
			m.takeSnapshot(in.snapshot, in.at, now)
		case inSnapshotCut:
			m.failSnapshot(in.text, now)
		}
	}
	if m.epoch != epoch && in.kind != inLive && in.kind != inSnapshot {
		m.relinkIfBehind()
	}
}

// relinkIfBehind gives up a live connection that is behind in a new epoch: its backlog may
// be of the lifetime before.
func (m *machine) relinkIfBehind() {
	if m.throttled && m.cfg.canReplay {
		m.out.orderRelink()
	}
}

// connect begins a connection. Nothing is known about what was published since
// the last batch, nor whether the same publisher published it.
func (m *machine) connect(at time.Time) {
	m.disconnect(at)
	m.connects++
	m.pace, m.recent, m.storm = pace{}, recent{}, storm{} // another process may be behind this connection
	m.connected, m.heard, m.consumed.overtook, m.unsure = true, 0, 0, m.cfg.canReplay
	m.inherited.begin(m.connects, m.consumed.last)
	m.rung.liveID = events.PublisherID{}
	switch {
	case m.cfg.canSnapshot && !m.consumed.has:
		m.rung.begin(at, 0, m.heard > 0, &m.out)
	case !m.cfg.canReplay:
		if m.consumed.has {
			m.trust.tail = ReasonUnknown
		}
	case m.consumed.has:
		m.start(askVerify)
	default:
		m.start(askFill)
	}
}

// disconnect ends a connection. What waits is dropped: after the next connect a
// replay brings it back, or shows that it was of another lifetime.
func (m *machine) disconnect(at time.Time) {
	m.connected, m.checkAt = false, time.Time{}
	m.joint.outlive(at)
	m.ask.stop(&m.out)
	m.rung.stop(&m.out)
	m.catchup = false
	m.held.clear()
	if !m.consumed.has {
		m.consumed.first, m.consumed.next = m.cfg.firstSeq, m.cfg.firstSeq
	}
}

// live takes a batch off the live connection.
func (m *machine) live(it item, now time.Time) {
	before := m.heard
	m.rung.noteLive(&it, now)
	m.heard, m.checkAt = it.seq+1, time.Time{}
	if m.stormy(&it, before, now) {
		return
	}
	if m.ask.quiet {
		m.ask.stop(&m.out) // from here on the next live batch shows a hole
	}
	m.ask.acceptID(&m.consumed, &m.joint, &it)
	old := m.consumed.has && it.seq < m.consumed.next
	held := m.held.find(it.seq)
	known := held != nil && held.same(&it)
	if old {
		same, remembered := m.consumed.compare(&it)
		switch {
		case same:
			if m.inherited.meet(it.seq) && m.consumed.last == m.inherited.mark {
				m.trust.joined() // at the mark: all that follows comes live
			}
		case !remembered:
			// A replay may be thousands of batches ahead of a live connection that is not
			// read. What it overtook ascends, and a restart would end the connection.
			same = m.inherited.covers(it) || before <= it.seq && it.seq < m.consumed.overtook
		}
		known = known || same
	}
	if known {
		m.n.duplicates++
		return
	}
	if old || held != nil || m.consumed.isForeign(&it) {
		m.held.clear()
		m.restart(reasonRestart, now)
	}
	// A replay decides whose the batch is; without one, the number that fits proves nothing.
	if m.inherited.pass(it.seq) && !m.cfg.canReplay {
		if m.consumed.has {
			m.n.gaps++
		}
		m.miss(ReasonGap)
	}
	m.held.add(it)
	if !m.rung.keep(it) {
		m.failSnapshot(SnapshotOverflow, now)
	}
}

// pop returns the next step; at is when its batch arrived.
func (m *machine) pop(now time.Time) (step Step, at time.Time, ok bool) {
	for {
		if len(m.out.resets) > 0 {
			step, m.out.resets = m.out.resets[0], m.out.resets[1:]
			return step, time.Time{}, true
		}
		if m.storm.on {
			return Step{}, time.Time{}, false
		}
		if m.rung.fill != nil {
			if step, at, ok := m.popSnapshot(now); ok {
				return step, at, true
			}
			continue
		}
		if m.rung.hold {
			return Step{}, time.Time{}, false
		}
		if m.held.len() == 0 {
			m.catchup = m.catchup && m.ask.holdsBatches()
			if m.cfg.canSnapshot && m.connected && !m.ask.holdsBatches() && m.trust.wantsSnapshot() {
				m.rung.plan(now)
			}
			return Step{}, time.Time{}, false
		}
		if m.ask.kind == askVerify && !m.ask.anchored {
			return Step{}, time.Time{}, false // perhaps of another lifetime
		}
		head := m.held.head()
		if head.seq <= m.consumed.next && m.consumed.isForeign(head) {
			m.restart(reasonRestart, now) // it waited while the id was unknown
			m.relinkIfBehind()
			continue
		}
		if head.seq <= m.consumed.next {
			it := m.held.pop()
			batch, err := m.cfg.decodeItem(&it)
			if err == nil {
				return m.apply(it, batch), it.at, true
			}
			m.refuse(&it, err, now)
		} else if !m.hole(now) {
			return Step{}, time.Time{}, false
		}
	}
}

// decodeItem returns the batch of an item. A batch of another topic has none.
func (cfg *machineConfig) decodeItem(it *item) (events.Batch, error) {
	switch {
	case it.aside:
		return events.Batch{Rank: -1}, nil
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

// refuse passes over a batch that cannot be decoded. A replay would bring the same bytes.
func (m *machine) refuse(it *item, err error, now time.Time) {
	reason := wire.ReasonOf(err)
	m.n.dropped[reason]++
	m.out.recordError("cannot decode batch %d: %v", it.seq, err)
	if !it.replayed {
		m.recent.note(explainBatch(it.payload, err))
	}
	if m.cfg.refused != nil {
		m.cfg.refused(m.epoch, it.seq, it.payload)
	}
	if reason == events.TooLarge {
		m.miss(ReasonTooLarge)
	} else {
		m.miss(ReasonUndecodable)
	}
	if it.replayed && m.ask.holdsBatches() {
		m.ask.denied = true // the publisher answers without the batches that are missing
		m.calm.deny(now)
	}
	m.advance(it)
}

// apply hands out a batch whose turn it is.
func (m *machine) apply(it item, batch events.Batch) Step {
	if !m.consumed.has && it.seq <= m.consumed.first {
		m.trust.whole()
	}
	m.advance(&it)
	if m.recent.inHand = false; it.replayed {
		m.n.replayed++
	} else {
		m.recent.noteBatch(&batch)
	}
	for r, n := range batch.Dropped {
		m.n.dropped[r] += uint64(n)
	}
	if !m.cfg.partial && clears(&batch) {
		m.trust.clear()
	}
	return Step{Kind: ApplyBatch, Batch: batch, Payload: it.payload, Block: it.block, Seq: it.seq, Print: m.consumed.last.hash, ID: m.consumed.id, Epoch: m.epoch, Replayed: it.replayed}
}

// advance moves past a batch whose turn it is.
func (m *machine) advance(it *item) {
	m.consumed.last = newPrint(it.seq, it.payload)
	m.consumed.prints.add(m.consumed.last)
	m.consumed.has, m.consumed.next = true, it.seq+1
	if it.id != (events.PublisherID{}) {
		m.consumed.id = it.id
	}
	if it.replayed {
		m.consumed.overtook = it.seq + 1
		m.ask.progress = m.ask.holdsBatches()
		return
	}
	m.trust.joined()
	// A live batch was handed out and nothing is held, so everything from here on comes live: a replay has nothing to add.
	if m.ask.holdsBatches() && m.held.len() == 0 {
		if m.ask.brought > 0 && !m.ask.denied {
			m.calm = calm{}
		}
		m.ask.stop(&m.out)
	}
}

// clears reports whether a batch drops everything its publisher holds, so that
// what happened before does not matter. A clear of one medium, or of one
// tenant's or model's part of a pool, does not.
func clears(b *events.Batch) bool {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == events.Cleared && e.Medium == "" && e.Model == nil && e.Tenant == nil &&
			e.Backend == nil && e.Rank == nil && e.LoraName == nil && e.Salt == nil {
			return true
		}
	}
	return false
}

// restart begins a new epoch because the publisher is another one.
func (m *machine) restart(reason string, now time.Time) {
	m.n.restarts++
	m.storm.restarts++
	m.calm = calm{}
	m.newEpoch(reason)
	m.rebuild(now, m.pace.delay(now))
}

// newEpoch forgets everything but held.
func (m *machine) newEpoch(reason string) {
	m.ask.stop(&m.out)
	m.rung.stop(&m.out)
	m.epoch++
	m.out.resets = append(m.out.resets, Step{Kind: DropBlocks, Epoch: m.epoch, Reason: reason})
	m.consumed.restart(m.cfg.firstSeq)
	m.joint, m.inherited = joint{}, inherited{}
	m.silent = 0
	m.trust.begin(m.cfg.canReplay)
}
