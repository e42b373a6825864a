package stream

import (
	"fmt"
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// follower follows the steps of a stream and knows, without looking inside, what
// may be claimed about them.
type follower struct {
	firstSeq uint64
	epoch    uint64
	last     uint64
	has      bool
	whole    bool // nothing is missing since the first batch or the last clear
	filling  bool
}

func newFollower(firstSeq uint64) *follower { return &follower{firstSeq: firstSeq, epoch: 1} }

// resume follows a stream that goes on behind a mark.
func (f *follower) resume(m Mark) { f.last, f.has, f.whole = m.Seq, true, m.Missing == "" }

// take returns the fault of a step.
func (f *follower) take(s Step) error {
	switch s.Kind {
	case DropBlocks:
		if s.Epoch < f.epoch {
			return fmt.Errorf("a reset goes from epoch %d back to %d", f.epoch, s.Epoch)
		}
		if s.Reason == "" {
			return fmt.Errorf("a reset has no reason")
		}
		f.filling = s.Reason == ReasonSnapshot
		if s.Epoch > f.epoch || f.filling {
			*f = follower{firstSeq: f.firstSeq, epoch: s.Epoch, filling: f.filling}
		}
	case ApplySnapshotPart, EndSnapshot:
		if s.Epoch != f.epoch || !f.filling {
			return fmt.Errorf("a part of a snapshot of epoch %d comes in epoch %d, filling: %t", s.Epoch, f.epoch, f.filling)
		}
		if s.Kind == EndSnapshot {
			f.last, f.has, f.whole, f.filling = s.Seq, true, true, false
		}
	case ApplyBatch:
		switch {
		case f.filling:
			return fmt.Errorf("batch %d comes within a snapshot", s.Seq)
		case s.Epoch != f.epoch:
			return fmt.Errorf("batch %d is of epoch %d, the last reset announced %d", s.Seq, s.Epoch, f.epoch)
		case f.has && s.Seq <= f.last:
			return fmt.Errorf("batch %d comes after %d", s.Seq, f.last)
		}
		// A publisher may count from 1.
		f.whole = f.has && f.whole && s.Seq == f.last+1 || !f.has && s.Seq <= max(f.firstSeq, 1) || clearsEverything(&s.Batch)
		f.last, f.has = s.Seq, true
	default:
		return fmt.Errorf("step of unknown kind %d", s.Kind)
	}
	return nil
}

// claim returns the fault of a state.
func (f *follower) claim(s State) error {
	if s == Synced && f.has && !f.whole {
		return fmt.Errorf("synced at %d with batches missing", f.last)
	}
	return nil
}

// claimHistory returns the fault of a Status.History.
func (f *follower) claimHistory(why string) error {
	if why == "" && f.has && !f.whole {
		return fmt.Errorf("history up to %d is called whole with batches missing", f.last)
	}
	return nil
}

// FuzzMachine feeds any order of inputs. Two bytes are one input: what, and
// whose, and which sequence and bytes. The first byte is the configuration: its lowest bits say
// what the publisher can do, the others whether and where the stream resumes.
func FuzzMachine(f *testing.F) {
	// Every script of the table tests, in this alphabet, would be longer than it
	// is worth; these reach each kind of input in each phase.
	f.Add([]byte{1, 0, 0, 2, 0, 2, 1, 2, 5, 3, 2, 3, 3, 3, 4, 4, 0, 2, 6})
	f.Add([]byte{1, 0, 0, 2, 0, 2, 1, 1, 0, 0, 0, 3, 65, 4, 0, 2, 64, 2, 65})
	f.Add([]byte{1, 0, 0, 2, 9, 7, 50, 7, 200, 3, 0, 6, 0, 5, 0, 4, 0})
	f.Add([]byte{0, 0, 0, 2, 0, 2, 5, 2, 128, 2, 192, 6, 0, 1, 0, 0, 0, 2, 3})
	f.Add([]byte{3, 0, 0, 2, 0, 2, 5, 4, 0, 4, 0, 2, 130, 3, 130, 8, 0, 2, 70})
	f.Add([]byte{1 | 8 | 5<<4, 0, 0, 2, 3, 2, 4, 3, 5, 2, 6, 2, 5, 3, 6, 4, 0})
	f.Add([]byte{0 | 8 | 5<<4, 0, 0, 2, 3, 6, 0, 2, 6, 2, 7, 1, 0, 0, 0, 2, 4})
	f.Add([]byte{2 | 8 | 5<<4, 0, 0, 2, 64, 2, 65, 2, 66, 2, 68, 2, 69, 2, 70})
	// Publishers a and b, live and replayed.
	f.Add([]byte{1, 0, 0, 2 + 9, 2, 3 + 18, 0, 3 + 18, 1, 1, 0, 0, 0, 2 + 18, 3, 3 + 9, 2})
	f.Add([]byte{1, 0, 0, 2 + 9, 0, 2 + 9, 5, 6, 1, 2 + 9, 6, 3 + 9, 0, 3 + 9, 9, 6, 0, 2 + 9, 7})
	// A batch that cannot be decoded and one that came late before it, both waiting.
	f.Add([]byte{1, 0, 0, 4, 0, 2, 29 | 2<<6, 3, 16 | 32, 2, 4 | 2<<6, 3, 29 | 1<<6})
	f.Fuzz(func(t *testing.T, in []byte) { fuzzMachine(t, in, false) })
}

// FuzzSnapshots is FuzzMachine for a publisher with snapshots.
func FuzzSnapshots(f *testing.F) {
	f.Add([]byte{1, 0, 0, 2 + 12, 3, 9 + 12, 3, 2 + 12, 4, 2 + 12, 6, 4, 0, 7, 10, 9 + 12, 6})
	f.Add([]byte{0, 0, 0, 2 + 12, 3, 10, 0, 2 + 12, 4, 7, 20, 9 + 12, 2, 7, 20, 9 + 12, 132, 2 + 24, 1})
	f.Add([]byte{1, 0, 0, 7, 20, 11, 0, 9 + 24, 5, 3, 2, 4, 0, 8, 0, 9, 64})
	f.Fuzz(func(t *testing.T, in []byte) { fuzzMachine(t, in, true) })
}

func fuzzMachine(t *testing.T, in []byte, snapshots bool) {
	if len(in) == 0 || len(in) > 2000 {
		return
	}
	ops := byte(9)
	if snapshots {
		ops = 12
	}
	cfg := machineConfig{canSnapshot: snapshots, keepLen: 3, keepBytes: 100, canReplay: in[0]&1 != 0, drop: in[0]&2 != 0,
		firstSeq: uint64(in[0] >> 2 & 1)}
	r := newRig(cfg)
	follow := newFollower(cfg.firstSeq)
	r.seen = func(s Step) {
		must.Succeed(t, follow.take(s))
	}
	if in[0]&8 != 0 {
		mark := markAt(fmt.Sprint(in[0]>>4&7), []string{"", "copied"}[in[0]>>7])
		mark.resumeMachine(r.m, 1+uint64(in[0]>>2&1))
		follow.resume(mark)
	}
	for in = in[1:]; len(in) >= 2; in = in[2:] {
		seq := uint64(in[1] & 31)
		if in[1]&32 != 0 {
			seq += 1 << 40
		}
		text := fmt.Append(nil, seq, []string{"", "x", "!", "c"}[in[1]>>6])
		batch := message{seq: seq, payload: text}
		copy(batch.id[:], []string{"", "a", "b"}[in[0]/ops%3])
		ask, epoch, id := r.m.replay.id, r.m.epoch, r.m.consumed.id
		switch in[0] % ops {
		case 0:
			r.feed(input{kind: inConnected})
		case 1:
			r.feed(input{kind: inDisconnected})
		case 2:
			if r.m.connected {
				r.feed(input{kind: inLive, message: batch})
			}
		case 3:
			r.feed(input{kind: inReplay, ask: ask, message: batch})
		case 4:
			r.feed(input{kind: inReplayEnd, ask: ask})
		case 5:
			r.feed(input{kind: inReplayCut, ask: ask})
		case 6:
			r.m.throttled = in[1]&1 != 0
		case 7:
			r.pass(time.Duration(in[1]) * 200 * time.Millisecond)
		case 8:
			r.feed(input{kind: inResync, text: "asked"})
		case 9:
			snap := &snapshotReply{seq: int64(seq) - 2, id: batch.id}
			if in[1]>>6 > 0 && snap.seq >= 0 {
				snap.chunks = append(snap.chunks, payload.Of(text))
			}
			r.feed(input{kind: inSnapshot, ask: r.m.snapshots.id, snapshot: snap})
		case 10:
			r.feed(input{kind: inSnapshotCut, ask: r.m.snapshots.id, text: SnapshotFailed})
		case 11:
			r.feed(input{kind: inSnapshotStart, ask: r.m.snapshots.id})
		}
		must.Succeed(t, r.m.verifySelf())
		if r.m.epoch == epoch && r.m.consumed.id != id && id != (events.PublisherID{}) {
			t.Fatalf("batches of publishers %q and %q are of one epoch", id, r.m.consumed.id)
		}
		state, _ := stateOf(r.m)
		must.Succeed(t, follow.claim(state))
		must.Succeed(t, follow.claimHistory(historyReasonOf(r.m)))
	}
}

// verifySelf returns a broken invariant of a settled machine.
func (m *machine) verifySelf() error {
	var last uint64
	for i := m.held.off; i < len(m.held.items); i++ {
		seq := m.held.items[i].seq
		if i > m.held.off && seq <= last {
			return fmt.Errorf("held %d after %d", seq, last)
		}
		if m.consumed.started && seq < m.consumed.next {
			return fmt.Errorf("held %d, next is %d", seq, m.consumed.next)
		}
		last = seq
	}
	switch {
	case m.consumed.started && m.consumed.next <= m.consumed.last.sequence():
		return fmt.Errorf("next is %d, last was %d", m.consumed.next, m.consumed.last.sequence())
	case m.snapshots.holdsBatches && (!m.connected || m.nextWake().IsZero()):
		return fmt.Errorf("a snapshot is wanted without a connection or a deadline")
	case m.snapshots.reply != nil || m.snapshots.id == 0 && len(m.snapshots.kept) > 0:
		return fmt.Errorf("%d batches are kept for nothing", len(m.snapshots.kept))
	case m.held.count() > 0 && !m.replay.holdsBatches() && !m.snapshots.holdsBatches:
		return fmt.Errorf("%d batches wait for nothing", m.held.count())
	case m.replay.holdsBatches() && !m.connected:
		return fmt.Errorf("a replay is wanted without a connection")
	case m.replay.holdsBatches() && !m.cfg.canReplay:
		return fmt.Errorf("a replay is wanted of a publisher that has none")
	case m.replay.holdsBatches() && m.nextWake().IsZero():
		return fmt.Errorf("a replay is wanted without a deadline")
	}
	return nil
}
