package stream

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
)

// decodeText decodes the payloads of tests: a sequence and letters: "!"
// is undecodable, "c" a clear, "d" a clear of one medium, "t" a clear of
// one tenant, "o" one of the cache runner, and anything else only other bytes. The sequence comes back as
// the hash of a stored block.
func decodeText(p []byte) (events.Batch, error) {
	b := events.Batch{Rank: -1}
	digits := strings.TrimRight(string(p), "!cdotxyz")
	h, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strings.Contains(string(p), "!") {
		return b, errors.New("not a batch")
	}
	e := events.Event{Kind: events.Stored, Hashes: []uint64{h}}
	tenant := "a"
	switch p[len(p)-1] {
	case 'c':
		e = events.Event{Kind: events.Cleared}
	case 'd':
		e = events.Event{Kind: events.Cleared, Medium: "disk"}
	case 'o':
		e = events.Event{Kind: events.Cleared, Owned: true}
	case 't':
		e = events.Event{Kind: events.Cleared, Tenant: &tenant}
	}
	b.Events = []events.Event{e}
	return b, nil
}

// rig drives a machine by a script and writes down what it does.
//
//	up down          the live connection
//	5 5x             a live batch 5, another one
//	r5 r5x end cut   replies to the attempt under way
//	5@a r5@a         likewise, of the publisher with id a
//	5# r5#           a batch 5 whose message is too large
//	S5@a:1,2         a snapshot behind batch 5, of the publisher with id a, in two parts
//	S-2 S-1@a        a reply without a snapshot; of a publisher that has sent nothing
//	Swhy Smore       the request ends without a reply, and why; a part of the reply comes
//	full room        a live batch waits for room in the queue; no more
//	resync           the application's wish
//	1.5s             time passes; the machine is woken when it asks for that
//	have5 have5?why  at the start: a peer applied all up to 5, but why
//	early2           before that: two connections may be older than the mark
//
// Answers: "5" and "5r" are applied (live, replayed), "?3" asks from 3, "over" asks
// for another live connection, "snap?" for a snapshot, "1f" is a part of one that is filled in,
// "filled5" its end, "drop" and "drop:why" are resets within and into a new
// epoch.
type rig struct {
	m     *machine
	now   time.Time
	out   []string
	early uint64     // of have; 0 is 1
	seen  func(Step) // told every step, if set
}

func newRig(cfg machineConfig) *rig {
	if cfg.decodePart == nil {
		cfg.decodePart = decodeText
	}
	cfg.timeout, cfg.snapshotTimeout = 5*time.Second, 10*time.Second
	cfg.jitter = func(d time.Duration) time.Duration { return d }
	if cfg.keepLen == 0 {
		cfg.keepLen, cfg.keepBytes = 100, 1000
	}
	if cfg.decode == nil {
		cfg.decode = decodeText
	}
	return &rig{m: newMachine(cfg), now: time.Unix(1e9, 0)}
}

func (r *rig) feed(in input) {
	r.settle()
	in.at = r.now
	r.m.handleInput(in, r.now)
	r.settle()
}

// settle pops until nothing comes and obeys.
func (r *rig) settle() {
	for {
		step, _, ok := r.m.nextStep(r.now)
		if ok && r.seen != nil {
			r.seen(step)
		}
		switch {
		case !ok:
			r.obey()
			return
		case step.Kind == DropBlocks:
			r.out = append(r.out, "drop:"+step.Reason)
		case step.Kind == ApplySnapshotPart:
			r.out = append(r.out, string(step.Payload)+"f")
		case step.Kind == EndSnapshot:
			r.out = append(r.out, fmt.Sprintf("filled%d", step.Seq))
		case step.Replayed:
			r.out = append(r.out, fmt.Sprintf("%dr", step.Seq))
		default:
			r.out = append(r.out, fmt.Sprint(step.Seq))
		}
		r.obey()
	}
}

func (r *rig) obey() {
	for _, o := range r.m.out.orders {
		switch {
		case o.relink:
			r.out = append(r.out, "over")
		case o.snapshot && !o.stop:
			r.out = append(r.out, "snap?")
			r.m.snapshots.extendDeadline(r.now)
		case o.snapshot:
		case !o.stop:
			r.out = append(r.out, fmt.Sprintf("?%d", o.from))
			r.m.replay.startPatience(r.now.Add(r.m.cfg.timeout))
		}
	}
	r.m.out.orders = r.m.out.orders[:0]
}

// pass lets time go by, with a tick whenever the machine asks for one.
func (r *rig) pass(d time.Duration) {
	end := r.now.Add(d)
	for n := 0; ; n++ {
		at := r.m.nextWake()
		if at.IsZero() || at.After(end) {
			break
		}
		if n > 10000 {
			panic("the machine wants to be woken without end")
		}
		if at.After(r.now) {
			r.now = at
		}
		r.m.passTime(r.now)
		r.settle()
	}
	r.now = end
}

// markAt is the mark of a peer that applied a payload last.
func markAt(payload, missing string) Mark {
	payload, id, _ := strings.Cut(payload, "@")
	seq, err := strconv.ParseUint(strings.TrimRight(payload, "!cdotxyz"), 10, 64)
	if err != nil {
		panic("no such payload: " + payload)
	}
	m := Mark{Seq: seq, Print: newFingerprint(seq, []byte(payload)).hash, Missing: missing}
	copy(m.ID[:], id)
	return m
}

// snapshotOf reads a snapshot of a script.
func snapshotOf(text string) *snapshotReply {
	text, parts, _ := strings.Cut(text, ":")
	number, id, _ := strings.Cut(text, "@")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic("no such snapshot: " + text)
	}
	s := &snapshotReply{seq: seq}
	copy(s.id[:], id)
	for part := range strings.SplitSeq(parts, ",") {
		if part != "" {
			s.chunks = append(s.chunks, payload.Of([]byte(part)))
		}
	}
	return s
}

func (r *rig) do(op string) {
	batch := func(kind inputKind, s string) {
		s, id, _ := strings.Cut(s, "@")
		s, large := strings.CutSuffix(s, "#")
		seq, err := strconv.ParseUint(strings.TrimRight(s, "!cdotxyz"), 10, 64)
		if err != nil {
			panic("no such operation: " + op)
		}
		m := message{seq: seq, payload: []byte(s)}
		if large {
			m.oversize = 1 << 30
		}
		copy(m.id[:], id)
		r.feed(input{kind: kind, ask: r.m.replay.id, message: m})
	}
	switch d, err := time.ParseDuration(op); {
	case op == "up":
		r.feed(input{kind: inConnected})
	case op == "down":
		r.feed(input{kind: inDisconnected})
	case op == "full", op == "room":
		r.m.throttled = op == "full"
	case op == "resync":
		r.feed(input{kind: inResync, text: "asked"})
	case op == "Smore":
		r.feed(input{kind: inSnapshotStart, ask: r.m.snapshots.id})
	case op[0] == 'S' && op[1] != '-' && (op[1] < '0' || op[1] > '9'):
		r.feed(input{kind: inSnapshotCut, ask: r.m.snapshots.id, text: op[1:]})
	case op[0] == 'S':
		r.feed(input{kind: inSnapshot, ask: r.m.snapshots.id, snapshot: snapshotOf(op[1:])})
	case op == "end":
		r.feed(input{kind: inReplayEnd, ask: r.m.replay.id})
	case op == "cut":
		r.feed(input{kind: inReplayCut, ask: r.m.replay.id})
	case err == nil && op != "0":
		r.pass(d)
	case strings.HasPrefix(op, "early"):
		r.early, _ = strconv.ParseUint(op[len("early"):], 10, 64)
	case strings.HasPrefix(op, "have"):
		text, why, _ := strings.Cut(op[len("have"):], "?")
		text, ranks, _ := strings.Cut(text, "+")
		mark := markAt(text, why)
		for _, digit := range ranks {
			mark.Ranks = append(mark.Ranks, int(digit-'0'))
		}
		mark.resumeMachine(r.m, max(r.early, 1))
	case op[0] == 'r':
		batch(inReplay, op[1:])
	default:
		batch(inLive, op)
	}
}

// script runs ops and returns what the machine did and its state at the end.
func (r *rig) script(ops string) string {
	r.out = nil
	for _, op := range strings.Fields(ops) {
		r.do(op)
		r.pass(0) // a request may be due now
	}
	state, reason := stateOf(r.m)
	if reason != "" {
		state += State(":" + reason)
	}
	return strings.TrimSpace(strings.Join(r.out, " ") + " =" + string(state))
}

// cases returns a checker for scripts under one configuration.
func cases(t *testing.T, cfg machineConfig) func(ops, want string) {
	return func(ops, want string) {
		t.Helper()
		if got := newRig(cfg).script(ops); got != want {
			t.Errorf("%s\n got: %s\nwant: %s", ops, got, want)
		}
	}
}

var replaying = machineConfig{canReplay: true}

func TestFirstContact(t *testing.T) {
	f := cases(t, replaying)
	f("up", "?0 =replaying")
	f("up end", "?0 =synced") // an empty ring: nothing was published
	f("up end 0 1", "?0 0 1 =synced")
	f("up r0 r1 end 2", "?0 0r 1r 2 =synced")
	// Live batches wait, and those that the replay brings too count once.
	f("up 3 4 r0 r1 r2", "?0 0r 1r 2r 3 4 =synced")
	f("up 2 3 r0 r1 r2 r3 end 4", "?0 0r 1r 2 3 4 =synced")
	f("up 57 r0 r1 57", "?0 0r 1r =replaying")
	// The publisher's very first batch comes live: nothing to wait for.
	f("up 0 1", "?0 0 1 =synced")
	// The ring does not reach back to the first batch.
	f("up r5 r6 end", "?0 5r 6r =partial:replay_overrun")
	f("up 8 r5 r6 r7 end", "?0 5r 6r 7r 8 =partial:replay_overrun")
	// The ring was empty when it was asked; the second look finds what came since.
	f("up 2 end r0 r1", "?0 ?0 0r 1r 2 =synced")
	f("up 2 end end", "?0 ?0 2 =partial:history_unknown")
	// Order of arrival does not matter.
	f("up 4 3 r0 r1 r2", "?0 0r 1r 2r 3 4 =synced")
}

func TestFirstContactWithoutReplay(t *testing.T) {
	f := cases(t, machineConfig{})
	f("up", "=partial:history_unknown") // there is no proof
	f("up 0", "0 =synced")
	f("up 0 1 2", "0 1 2 =synced")
	f("up 57 58", "57 58 =partial:history_unknown")
	f("up 1 2", "1 2 =partial:history_unknown")
	f("up 57 58c", "57 58 =synced")
	f("up 57 58d", "57 58 =partial:history_unknown") // one medium only
	f("up 57 58t", "57 58 =partial:history_unknown") // one tenant only
	f("up 57 58o", "57 58 =partial:history_unknown") // the cache runner only
	f("up 57 0", "57 drop:publisher_restarted 0 =synced")
	f("up 57 3", "57 drop:publisher_restarted 3 =partial:history_unknown")
	g := cases(t, machineConfig{firstSeq: 1})
	g("up 1 2", "1 2 =synced")
	g("up 2", "2 =partial:history_unknown")
	g("up 0 1", "0 1 =synced")
	g("up 1 2 5", "1 2 5 =partial:gap_unrecoverable") // burned numbers
	g("up 1 2 5 6c 7", "1 2 5 6 7 =synced")
}

func TestGapIsReplayed(t *testing.T) {
	f := cases(t, replaying)
	start := "up 0 1 2 "
	f(start+"5", "?0 0 1 2 ?3 =replaying")
	f(start+"5 r3 r4 end", "?0 0 1 2 ?3 3r 4r 5 =synced")
	f(start+"5 r3 r4 r5 end 6", "?0 0 1 2 ?3 3r 4r 5 6 =synced") // overlap
	f(start+"5 6 7 r3 r4 8", "?0 0 1 2 ?3 3r 4r 5 6 7 8 =synced")
	f(start+"5 r3 6 r4 7", "?0 0 1 2 ?3 3r 4r 5 6 7 =synced")
	f(start+"5 5 2 r3 r4", "?0 0 1 2 ?3 3r 4r 5 =synced") // repeated live
	f(start+"5 3 4", "?0 0 1 2 ?3 3 4 5 =synced")         // late live
	f(start+"5 8 r3 r4 r5 r6 r7", "?0 0 1 2 ?3 3r 4r 5 6r 7r 8 =synced")
	// A batch that comes late, live, while its replay is under way: the first reply
	// is not new, and a hole behind it is still one in mid-stream.
	f(start+"6 3 r3 r5", "?0 0 1 2 ?3 3 ?4 =replaying")
	f(start+"6 3 r3 r5 r4 r5 end", "?0 0 1 2 ?3 3 ?4 4r 5r 6 =synced")
	f(start+"6 3 r3 r5 r5 end", "?0 0 1 2 ?3 3 ?4 5r 6 =partial:gap_unrecoverable")
	f(start+"6 3 r3 end end", "?0 0 1 2 ?3 3 ?4 6 =partial:gap_unrecoverable")
	f(start+"6 r0 r1 r2 r5 end", "?0 0 1 2 ?3 5r 6 =partial:gap_unrecoverable") // not asked for
	// The publisher has it no more.
	f(start+"5 end", "?0 0 1 2 ?3 5 =partial:gap_unrecoverable")
	f(start+"5 r4 r5 end", "?0 0 1 2 ?3 4r 5 =partial:gap_unrecoverable")
	f(start+"5 r90 r91 end", "?0 0 1 2 ?3 5 =partial:gap_unrecoverable") // the live stream is not so far
	f(start+"90 r90 end", "?0 0 1 2 ?3 90 =partial:gap_unrecoverable")
	f(start+"5 end 6c", "?0 0 1 2 ?3 5 6 =synced")
	f(start+"5 8 end end", "?0 0 1 2 ?3 5 8 =partial:gap_unrecoverable") // it has nothing from 3 on
	// Live and replay disagree about 5: two publishers, or two lifetimes.
	f(start+"5 r3 r5x", "?0 0 1 2 ?3 3r drop:publisher_restarted ?0 =replaying")
	f(start+"5 r3 r5x r0x r1x r2x r3x r4x end", "?0 0 1 2 ?3 3r drop:publisher_restarted ?0 0r 1r 2r 3r 4r 5 =synced")
}

func TestGapWithoutReplay(t *testing.T) {
	f := cases(t, machineConfig{})
	f("up 0 1 5 6", "0 1 5 6 =partial:gap_unrecoverable")
	f("up 0 1 5 6c 7", "0 1 5 6 7 =synced")
	f("up 0 1 5 0x 1x", "0 1 5 drop:publisher_restarted 0 1 =synced")
	f("up 0 1 1 0", "0 1 =synced")
	g := cases(t, machineConfig{drop: true})
	g("up 0 1 5 6", "0 1 drop:gap_unrecoverable 5 6 =partial:gap_unrecoverable")
	g("up 4 5", "4 5 =partial:history_unknown") // there was nothing to drop
	h := cases(t, machineConfig{drop: true, canReplay: true})
	h("up 0 1 5 end 6", "?0 0 1 ?2 drop:gap_unrecoverable 5 6 =partial:gap_unrecoverable")
}

func TestReplayCutShort(t *testing.T) {
	f := cases(t, replaying)
	// Holes and missing end markers: on from the first missing batch.
	f("up r0 r1 r5", "?0 0r 1r ?2 =replaying")
	f("up r0 r1 r5 r2 r3 r4 r5 end", "?0 0r 1r ?2 2r 3r 4r 5r =synced")
	f("up r0 r1 cut r2 end", "?0 0r 1r ?2 2r =synced")
	f("up r0 r1 5s r2 end", "?0 0r 1r ?2 2r =synced")
	f("up r0 4s r1 4s r2 end", "?0 0r 1r 2r =synced")
	f("up 9 r0 r1 end end", "?0 0r 1r ?2 9 =partial:gap_unrecoverable")
	// A hole that stays is the publisher's.
	f("up r0 r1 r5 r5 r6 end", "?0 0r 1r ?2 5r 6r =partial:gap_unrecoverable")
	f("up r0 r2 r2 r5 end r5 end", "?0 0r ?1 2r ?3 =partial:gap_unrecoverable") // a single one
}

func TestReplayTimesOut(t *testing.T) {
	f := cases(t, replaying)
	f("up 4.9s", "?0 =replaying")
	f("up 5s", "?0 =partial:replay_timeout")
	f("up 4 5 5s 6", "?0 4 5 6 =partial:replay_timeout")
	f("up 5s 0 1", "?0 0 1 =synced") // the first batch, after all
	f("up 5s 3 5s 4", "?0 3 4 =partial:replay_timeout")
	f("up 0 1 5 8 5s 9", "?0 0 1 ?2 5 8 9 =partial:replay_timeout")
	// Attempts that fail at once are repeated until patience ends.
	f("up cut 0.1s cut 0.2s r0 end", "?0 ?0 ?0 0r =synced")
	f("up cut 0.1s cut 0.2s cut 0.4s cut 0.8s cut 1.6s cut", "?0 ?0 ?0 ?0 ?0 ?0 =partial:replay_timeout")
	// Replies that come no further are as good as silence, and live batches wait no longer for them.
	f("up 0 1 5 r0 4s r0 4s r0 6", "?0 0 1 ?2 5 6 =partial:replay_timeout")
	f("up 0 1 5 r2 4s r2 4s r2 4s r2 6", "?0 0 1 ?2 2r ?3 5 6 =partial:replay_timeout")
	f("up r0 4s r0 4s r0 4s r0 1", "?0 0r ?1 1 =synced")
	f("up 0 1 5 r900 4s r900 4s r3 4s r3 6", "?0 0 1 ?2 5 6 =partial:replay_timeout")
	// A late word of an attempt that was given up changes nothing.
	r := newRig(replaying)
	r.script("up 3 5s")
	before := r.m.replay.id
	if got := r.script(""); got != "=partial:replay_timeout" {
		t.Fatal(got)
	}
	r.feed(input{kind: inReplay, ask: before, message: message{seq: 0, payload: []byte("0")}})
	r.feed(input{kind: inReplayEnd, ask: 1})
	if got := r.script("4"); got != "4 =partial:replay_timeout" {
		t.Errorf("after late words: %s", got)
	}
}

func TestProbesHealHistory(t *testing.T) {
	f := cases(t, replaying)
	// Probes find that everything is still there: start over.
	f("up 4 5 15s", "?0 4 5 ?0 =partial:replay_timeout")
	f("up 5s 10s r0", "?0 ?0 drop:history_recovered ?0 =replaying")
	f("up 4 5s 10s 5 r0 r1 r2", "?0 4 ?0 5 =partial:replay_timeout")
	f("up 4 5s 10s 5 r0 r1 r2 r3", "?0 4 ?0 5 drop:history_recovered ?0 =replaying")
	f("up 4 5s 10s 5 r0 r1 r2 r3 r0 r1 r2 r3 r4 r5 end", "?0 4 ?0 5 drop:history_recovered ?0 0r 1r 2r 3r 4r 5r =synced")
	f("up 4 5s 10s r0 r1 r3 r2 r3", "?0 4 ?0 ?2 drop:history_recovered ?0 =replaying") // dropped on the way
	f("up 4 5s 10s r0 cut r1 cut r2 r3", "?0 4 ?0 ?1 ?2 drop:history_recovered ?0 =replaying")
	f("up 4 5s 10s r0 r1 end r2 r3", "?0 4 ?0 ?2 drop:history_recovered ?0 =replaying")
	f("up 4 5s 10s 8 r0 r1 r2 r3 r4 r5 r6 r7", "?0 4 ?0 8 drop:history_recovered ?0 =replaying") // a second hole
	// Or that it is not: never again.
	f("up 4 5s 10s r2 end 1h", "?0 4 ?0 =partial:replay_overrun")
	f("up 4 5s 10s end 1h", "?0 4 ?0 =partial:gap_unrecoverable")
	f("up 4 5s 10s r0 r1 r3 r3 end 1h", "?0 4 ?0 ?2 =partial:gap_unrecoverable")
	// Or it does not matter any more.
	f("up 4 5s 10s 5c r0 r1 r2 r3", "?0 4 ?0 5 =synced")
	f("up 4 5s 10s 5c end", "?0 4 ?0 5 =synced")
	f("up 4 5s 10s 5! r0 r1 r2 r3", "?0 4 ?0 =partial:undecodable")
	f("up 0 1 down up 5s 2 10s 3c r1x", "?0 0 1 ?1 2 ?1 3 =synced")
	// A replay that ends before the hole: blocks stay, and probes become rare.
	f("up 4 5s 10s r0 r1 cut cut 19s", "?0 4 ?0 ?2 =partial:replay_timeout")
	f("up 4 5s 10s r0 r1 cut cut 20s r0 r1 cut cut 39s", "?0 4 ?0 ?2 ?0 ?2 =partial:replay_timeout")
	f("up 4 5s 10s r0 r1 cut cut 20s r0 r1 cut cut 40s", "?0 4 ?0 ?2 ?0 ?2 ?0 =partial:replay_timeout")
	// So do they after a replay that comes past the hole once.
	f("up 4 5s 10s r0 r1 r2 r3 5s 19s", "?0 4 ?0 drop:history_recovered ?0 =partial:replay_timeout")
	f("up 4 5s 10s r0 r1 r2 r3 5s 20s", "?0 4 ?0 drop:history_recovered ?0 ?0 =partial:replay_timeout")
	// Silent probes become rare.
	f("up 4 5s 10s 5s 19s", "?0 4 ?0 =partial:replay_timeout")
	f("up 4 5s 10s 5s 20s", "?0 4 ?0 ?0 =partial:replay_timeout")
	// An answer to an unverified reconnect.
	f("up 0 1 down up 5s 2 10s r1 1h", "?0 0 1 ?1 2 ?1 =synced")
	f("up 0 1 down up 5s 10s r1 r2 end", "?0 0 1 ?1 ?1 ?2 2r =synced")
	f("up 0 1 down up 5s 2 10s r1x", "?0 0 1 ?1 2 ?1 drop:publisher_restarted ?0 =replaying")
	f("up 0 1 down up 5s 2 10s r9 end 1h", "?0 0 1 ?1 2 ?1 =partial:replay_timeout")
	f("up 0 1 down up 5s 2 10s end", "?0 0 1 ?1 2 ?1 drop:last_batch_gone ?0 =replaying")
	// Healed by a clear, by the first batch: no probe.
	f("up 4 5s 5c 1h", "?0 4 5 =synced")
	f("up 5s 0 1h", "?0 0 =synced")
}

func TestRestartIsNoticed(t *testing.T) {
	f := cases(t, replaying)
	start := "up 0 1 2 "
	f(start+"0x", "?0 0 1 2 drop:publisher_restarted ?0 0 =synced")
	f(start+"1x", "?0 0 1 2 drop:publisher_restarted ?0 =replaying")
	f(start+"1x r0x", "?0 0 1 2 drop:publisher_restarted ?0 0r 1 =synced")
	f(start+"1 2", "?0 0 1 2 =synced") // duplicates
	// Held batches of the old lifetime go with it.
	f(start+"5 6 1x r0x end 2x", "?0 0 1 2 ?3 drop:publisher_restarted ?0 0r 1 2 =synced")
	// A number that was skipped, or is too old to be remembered, is a restart too.
	f(start+"9 end 4x", "?0 0 1 2 ?3 9 drop:publisher_restarted ?0 =replaying")
	// Contradictions without end are met with pauses.
	f(start+"0x 0y 0z", "?0 0 1 2 drop:publisher_restarted ?0 0 drop:publisher_restarted 0 drop:publisher_restarted 0 =synced")
	f(start+"1x 1y 99ms", "?0 0 1 2 drop:publisher_restarted ?0 drop:publisher_restarted =replaying")
	f(start+"1x 1y 100ms", "?0 0 1 2 drop:publisher_restarted ?0 drop:publisher_restarted ?0 =replaying")
}

func TestReconnectVerifiesLastBatch(t *testing.T) {
	f := cases(t, replaying)
	start := "up 0 1 2 down up "
	f(start, "?0 0 1 2 ?2 =replaying")
	f(start+"r2 end", "?0 0 1 2 ?2 =synced")
	f(start+"r2 r3 end 4", "?0 0 1 2 ?2 3r 4 =synced")
	f(start+"3 r2", "?0 0 1 2 ?2 3 =synced")
	f(start+"5 r2 r3 r4", "?0 0 1 2 ?2 3r 4r 5 =synced")
	f(start+"r2 end 1s r2 r3 end", "?0 0 1 2 ?2 ?2 3r =synced")
	// Another lifetime, behind a lower, an equal and a higher sequence.
	f(start+"0x", "?0 0 1 2 ?2 drop:publisher_restarted ?0 0 =synced")
	f(start+"end r0x end", "?0 0 1 2 ?2 drop:last_batch_gone ?0 0r =synced")
	f(start+"3x r2x r0x r1x r2x r3x end", "?0 0 1 2 ?2 drop:publisher_restarted ?0 0r 1r 2r 3 =synced")
	f(start+"80 r2x r0x", "?0 0 1 2 ?2 drop:publisher_restarted ?0 0r =replaying")
	f(start+"r70 end r70 end", "?0 0 1 2 ?2 drop:last_batch_gone ?0 70r =partial:replay_overrun")
	// Restarts that came with connections of their own are no contradictions.
	f(start+"end r0x end down up end", "?0 0 1 2 ?2 drop:last_batch_gone ?0 0r ?0 drop:last_batch_gone ?0 =replaying")
	// A second loss while it is being verified.
	f(start+"3 down up r2 r3 r4 end", "?0 0 1 2 ?2 ?2 3r 4r =synced")
	// What waited is dropped and comes back.
	f("up 0 1 5 down up r1 r2 r3 r4 r5 end", "?0 0 1 ?2 ?1 2r 3r 4r 5r =synced")
	// Before anything was seen there is nothing to compare.
	f("up down up end", "?0 ?0 =synced")
	f("up 7 down up r0", "?0 ?0 0r =replaying")
	// There is no answer.
	f(start+"3 5s 4", "?0 0 1 2 ?2 3 4 =partial:replay_timeout")
	g := cases(t, machineConfig{})
	g("up 0 1 down up", "0 1 =partial:history_unknown")
	g("up 0 1 down up 2", "0 1 2 =synced")
	g("up 0 1 down up 4", "0 1 4 =partial:gap_unrecoverable")
	g("up 0 1 down up 0x", "0 1 drop:publisher_restarted 0 =synced")
}

// A replay that went to the next lifetime of the publisher, before the end of
// the live connection was noticed, is found out by the reconnect.
func TestReconnectVerifiesJoint(t *testing.T) {
	f := cases(t, replaying)
	gap := "up 0 1 2 5 r3x r4x "
	f(gap+"down up", "?0 0 1 2 ?3 3r 4r 5 ?2 =replaying")
	f(gap+"down up r2x", "?0 0 1 2 ?3 3r 4r 5 ?2 drop:publisher_restarted ?0 =replaying")
	f(gap+"down up r2 r3x r4x r5 end", "?0 0 1 2 ?3 3r 4r 5 ?2 =synced")
	f(gap+"down up r2 r3x 6 r4x r5 r6 7 8 down up", "?0 0 1 2 ?3 3r 4r 5 ?2 6 7 8 ?8 =replaying")
	// A live connection that outlived the replay vouches for it.
	f(gap+"30s down up", "?0 0 1 2 ?3 3r 4r 5 ?0 ?0 ?0 ?2 =replaying")
	f(gap+"31s down up", "?0 0 1 2 ?3 3r 4r 5 ?0 ?0 ?0 ?5 =replaying")
	f(gap+"31s 8 r6 r7 down up", "?0 0 1 2 ?3 3r 4r 5 ?0 ?0 ?0 ?6 6r 7r 8 ?5 =replaying")
	f(gap+"20s 8 r6 r7 down up", "?0 0 1 2 ?3 3r 4r 5 ?0 ?0 ?0 ?6 6r 7r 8 ?2 =replaying")
	// An attempt of several parts has joints, one of one part has none.
	f("up r0 r1 end down up", "?0 0r 1r ?1 =replaying")
	f("up r0 r1 cut r2x r3x end down up", "?0 0r 1r ?2 2r 3r ?1 =replaying")
	// The other side: what waited live comes behind what the next lifetime replays,
	// and a clear in it makes the hole between them irrelevant. Everything from the
	// joint to the last batch has to be found again.
	tail := "up 200 201c r0x r1x cut r2x r3x end end down up "
	waited := "?0 0r 1r ?2 2r 3r ?4 200 201 ?1 "
	f(tail, waited+"=replaying")
	f(tail+"r1x r2x r3x r4x end", waited+"?4 =replaying")
	f(tail+"r1x r2x r3x r4x end r4x end", waited+"?4 drop:last_batch_gone ?0 =replaying")
	f(tail+"r1x r2x cut r2x r3x r4x cut r4x end", waited+"?2 ?4 drop:last_batch_gone ?0 =replaying")
	f(tail+"r1x r2x r3", waited+"drop:publisher_restarted ?0 =replaying")
	f(tail+"r1x r2x r3x r200x", waited+"?3 =replaying")
	f(tail+"r1x r2x r3x r200x r3x r200x", waited+"?3 drop:publisher_restarted ?0 =replaying")
	f(tail+"r1x r2x r3x r202x end r3x r202x end", waited+"?3 drop:last_batch_gone ?0 =replaying")
	f(tail+"r1x r2x r3x r200 r3x r200 202 r201c r202 end 203", waited+"?3 202 203 =synced")
	f(tail+"r1x r2x r3x r200 r3x r200 r201c r202 end 203", waited+"?3 202r 203 =synced")
	f(tail+"r1x r2x r3x r201c r3x r201c", waited+"?3 drop:last_batch_gone ?0 =replaying")
	// Without an answer it stays in doubt, and live batches go on.
	f(tail+"r1x r2x 202 5s", waited+"?2 =replaying")
	f(tail+"r1x r2x 202 5s 5s 203", waited+"?2 202 203 =partial:replay_timeout")
	f(tail+"r1x r2x 202 5s 5s 10s r2x", waited+"?2 202 ?2 ?2 =replaying")
}

// What cannot be decoded is one hole, live or replayed, and is not asked for: the bytes would be the
// same.
func TestUndecodableBatchIsOneHole(t *testing.T) {
	f := cases(t, replaying)
	f("up 0 1! 2", "?0 0 2 =partial:undecodable")
	f("up 0 1! 2 3! 4! 5", "?0 0 2 5 =partial:undecodable")
	f("up 0 1! 1! 2 1!", "?0 0 2 =partial:undecodable") // duplicates
	f("up 0 1! 2 3c", "?0 0 2 3 =synced")
	f("up 0 1! 1x", "?0 0 drop:publisher_restarted ?0 =replaying")
	f("up r0 r1! r2 end", "?0 0r 2r =partial:undecodable")
	f("up r0! r1 end 2c", "?0 1r 2 =synced")
	f("up r0 r1! cut r2 end", "?0 0r ?2 2r =partial:undecodable")
	f("up 0 3! end", "?0 0 ?1 =partial:undecodable")
	g := cases(t, machineConfig{})
	g("up 0 1! 2", "0 2 =partial:undecodable")
	g("up 0! 1", "1 =partial:undecodable")
	h := cases(t, machineConfig{drop: true})
	h("up 0 1! 2", "0 drop:undecodable 2 =partial:undecodable")
}

// A batch whose message is too large is likewise one hole. Its beginning tells it from another one.
func TestOversizeBatchIsOneHole(t *testing.T) {
	f := cases(t, replaying)
	f("up 0 1# 2 1h 3", "?0 0 2 ?0 ?0 ?0 3 =partial:batch_too_large")
	f("up r0 r1# r2 end 3 1h", "?0 0r 2r 3 ?3 ?3 ?3 =partial:batch_too_large")
	f("up 3 r0 r1 r2#", "?0 0r 1r 3 =partial:batch_too_large")
	f("up 0 1# 2c", "?0 0 2 =synced")
	f("up 0 1# down up r1# r2 end", "?0 0 ?1 2r =partial:batch_too_large") // at the watermark
	f("up 0 1# down up r1x#", "?0 0 ?1 drop:publisher_restarted ?0 =replaying")
	r := newRig(replaying)
	r.script("up 0 1# 2")
	if n := r.m.counts.dropped[events.TooLarge]; n != 1 || !strings.Contains(r.m.out.err, "batch 1") ||
		!strings.Contains(r.m.out.err, "1073741824 bytes") {
		t.Errorf("counted %d times, with the error %q", n, r.m.out.err)
	}
}

// While a live batch waits for room, the live connection is behind: what it still
// brings may be older than all that the publisher can replay.
func TestReplayOvertakesThrottledLive(t *testing.T) {
	f := cases(t, replaying)
	f("up 0 1 5 6 full r2 r3 r4", "?0 0 1 ?2 2r 3r 4r 5 6 =synced")
	f("up 0 1 5 6 full r90 room 7 8", "?0 0 1 ?2 5 6 7 8 =partial:gap_unrecoverable")
	f("up 0 1 5 6 full r3 r4", "?0 0 1 ?2 3r 4r 5 6 =partial:gap_unrecoverable")
	f("up 0 1 5 8 full r90 room 9", "?0 0 1 ?2 5 8 9 =partial:gap_unrecoverable")
	f("up 5 6 full r90 room 7c", "?0 5 6 7 =synced")
	f("up 0 1 5 6 full r2 r90 r1 r2 r3 r4", "?0 0 1 ?2 2r ?1 3r 4r 5 6 =synced") // dropped on the way
	f("up 0 1 5 6 full r2 cut r1 r2x", "?0 0 1 ?2 2r ?1 drop:publisher_restarted ?0 over =replaying")
	f("up 0 1 5 6 full r2 cut r9", "?0 0 1 ?2 2r ?1 5 6 =partial:gap_unrecoverable")
	f("up 0 1 5 6 full r2 cut r1 r2 end", "?0 0 1 ?2 2r ?1 ?2 =replaying")
	f("up 0 1 5 6 full r2 cut r1 r2 end r2 end", "?0 0 1 ?2 2r ?1 ?2 5 6 =partial:gap_unrecoverable")
	// The next live batch shows what the replay was ahead of.
	f("up 0 1 5 6 full r90 room 0.1s 91 r7 end end", "?0 0 1 ?2 5 6 ?7 7r ?8 91 =partial:gap_unrecoverable")
	f("up 0 1 full 5 2 r2 r3 r4", "?0 0 1 ?1 2 3r 4r 5 =synced") // 2 waited until the publisher was known
	// A restart that the live connection does not show yet: what waits goes with it.
	f("up 0 1 full 5 r1x", "?0 0 1 ?1 drop:publisher_restarted ?0 over =replaying")
	f("up 0 1 full 5 r1 r2 r3 r4", "?0 0 1 ?1 2r 3r 4r 5 =synced")
	f("up 0 1 full 5 r1 r2 r3 r4 r5x", "?0 0 1 ?1 2r 3r 4r 5 =synced") // it has ended by then
	f("up 0 1 full 5 end", "?0 0 1 ?1 drop:last_batch_gone ?0 over =replaying")
	f("up 0 1 full 5 r3 r4 6", "?0 0 1 ?1 3r 4r 5 6 =partial:gap_unrecoverable")
	f("up 0 1 full 5 6 5s 7", "?0 0 1 ?1 5 6 7 =partial:replay_timeout")
	f("up 0 1 full resync 2", "?0 0 1 drop:asked ?0 over =replaying")
	f("up 0 1 full resync 2 down up r0x end 1x", "?0 0 1 drop:asked ?0 over ?0 0r 1 =synced")
	g := cases(t, machineConfig{})
	g("up 0 1 full 5 room 6", "0 1 5 6 =partial:gap_unrecoverable")
	g("up 0 1 full resync 2", "0 1 drop:asked 2 =partial:history_unknown")
}

// If a replay brings the last batch consumed but not the next one, that one was probably lost on the
// way. It may also never have existed, so it is asked for only once more.
func TestRepliesLostBehindTheWatermark(t *testing.T) {
	f := cases(t, replaying)
	f("up 0@a 1@a down up 5@a r1@a r3@a", "?0 0 1 ?1 ?2 =replaying")
	f("up 0@a 1@a down up 5@a r1@a r3@a r2@a r3@a r4@a", "?0 0 1 ?1 ?2 2r 3r 4r 5 =synced")
	f("up 0@a 1@a down up 5@a r1@a end r2@a r3@a r4@a", "?0 0 1 ?1 ?2 2r 3r 4r 5 =synced")
	f("up 0@a 1@a down up r1@a r3@a r2@a r3@a end", "?0 0 1 ?1 ?2 2r 3r =synced")
	f("up 0 1 full 5 r1 r3 r1 r2 r3 r4", "?0 0 1 ?1 ?1 2r 3r 4r 5 =synced")
	f("up 0 1 full 5 r1 r6 r1 r2 r3 r4", "?0 0 1 ?1 ?1 2r 3r 4r 5 =synced")
	f("up 0 1 full 5 r1 r3 r1 r2 r4 r2 r4 r2 r4", "?0 0 1 ?1 ?1 2r ?2 ?2 4r 5 =partial:gap_unrecoverable")
	f("up 0 1 full 5 r1 end r1 r2 r3 r4", "?0 0 1 ?1 ?1 2r 3r 4r 5 =synced")
	f("up 0 1 full 5 r1 end r1 end", "?0 0 1 ?1 ?1 5 =partial:gap_unrecoverable")
	f("up 0 1 full 5 r1 r3 room r2 r3 r4", "?0 0 1 ?1 ?1 2r 3r 4r 5 =synced")
	// It skipped a number, or has forgotten the batches meanwhile.
	f("up 0@a 1@a down up 5@a r1@a r3@a r3@a r4@a", "?0 0 1 ?1 ?2 3r 4r 5 =partial:gap_unrecoverable")
	f("up 0@a 1@a down up r1@a r3@a r3@a end", "?0 0 1 ?1 ?2 3r =partial:gap_unrecoverable")
	f("up 0 1 full 5 r1 r3 r1 r3 r4", "?0 0 1 ?1 ?1 3r 4r 5 =partial:gap_unrecoverable")
	f("up 0 1 full 5 r1 r3 r3 r4", "?0 0 1 ?1 ?1 3r 4r 5 =partial:gap_unrecoverable")
	// An older batch that the publisher has forgotten is the first of a verification.
	f("up 0 1 4 r2 r3 full 8 r4 r6 r4 r6", "?0 0 1 ?2 2r 3r 4 ?1 ?1 6r =replaying:gap_unrecoverable")
	f("up 0 1 4 r2 r3 full 8 r4 end r4 end", "?0 0 1 ?2 2r 3r 4 ?1 ?1 8 =partial:gap_unrecoverable")
	// Another lifetime answers the second time.
	f("up 0 1 full 5 r1 r3 r1x", "?0 0 1 ?1 ?1 drop:publisher_restarted ?0 over =replaying")
	f("up 0@a 1@a down up 5@a r1@a r3@a r0@b", "?0 0 1 ?1 ?2 drop:publisher_restarted ?0 =replaying")
}

// What a replay overtook comes live thousands of batches later, and is no restart.
func TestOvertakenBatchIsNoRestart(t *testing.T) {
	f := func(ops, want string) {
		t.Helper()
		r := newRig(replaying)
		r.script("up")
		for seq := range uint64(3 * maxPrints) {
			r.feed(input{kind: inReplay, ask: r.m.replay.id, message: message{seq: seq, payload: fmt.Append(nil, seq)}})
		}
		if got := r.script(ops); got != want {
			t.Errorf("%s\n got: %s\nwant: %s", ops, got, want)
		}
	}
	f("end 0 1 5 6 7", "=synced")
	f("7 8 end 9", "=synced")
	f("end 7 6", "drop:publisher_restarted ?0 =replaying")
	f("end 7 7", "drop:publisher_restarted ?0 =replaying")
	f("end 12287x", "drop:publisher_restarted ?0 =replaying") // remembered
	f("end 12288 7", "12288 drop:publisher_restarted ?0 =replaying")
	f("end down up 7", "?12287 drop:publisher_restarted ?0 =replaying")
}

func TestPublisherID(t *testing.T) {
	f := cases(t, replaying)
	f("up r0@a r1@a end 2@a", "?0 0r 1r 2 =synced")
	f("up 2@a r0@a r1@a", "?0 0r 1r 2 =synced")
	// The same id: whatever the bytes, never a restart.
	f("up 0@a 1@a 1x@a 0y@a 2@a", "?0 0 1 2 =synced")
	f("up 0@a 9@a end 4@a 10@a", "?0 0 ?1 9 10 =partial:gap_unrecoverable")
	f("up 0@a 5@a 5x@a r1@a r2@a r3@a r4@a r5y@a", "?0 0 ?1 1r 2r 3r 4r 5 =synced")
	// Another id: whatever the sequence, a restart.
	f("up 0@a 1@a 2@b", "?0 0 1 drop:publisher_restarted ?0 =replaying")
	f("up 0@a 1@a 1@b r0@b", "?0 0 1 drop:publisher_restarted ?0 0r 1 =synced")
	f("up 0@a 1@a 9@b", "?0 0 1 drop:publisher_restarted ?0 =replaying")
	// As long as the service has not agreed, what came live stays, and the service is asked for it.
	f("up 0@a 3@a r1@b", "?0 0 ?1 3 ?0 =partial:foreign_replay")
	f("up 0@a 3@a r1@b r0@a r0@a", "?0 0 ?1 3 ?0 drop:history_recovered ?0 0r =replaying")
	f("up 0@a 3@a r1@b r0@b", "?0 0 ?1 3 ?0 =partial:foreign_replay")
	// A reconnect.
	f("up 0@a 1@a down up 2@a", "?0 0 1 ?1 2 =synced")
	f("up 0@a 1@a down up 2 r2@a", "?0 0 1 ?1 2 =synced") // live without an id: it waits
	f("up 0@a 1@a down up 5@a r3@a r4@a", "?0 0 1 ?1 3r 4r 5 =partial:gap_unrecoverable")
	f("up 0@a 1@a down up r3@a r4@a end 5@a", "?0 0 1 ?1 3r 4r 5 =partial:gap_unrecoverable")
	f("up 0@a 1@a down up 2@b r0@b r1@b", "?0 0 1 ?1 drop:publisher_restarted ?0 0r 1r 2 =synced")
	f("up 0@a 1@a down up r1@b r0@b", "?0 0 1 ?1 drop:publisher_restarted ?0 0r =replaying")
	f("up 0@a 1@a down up end", "?0 0 1 ?1 drop:last_batch_gone ?0 =replaying")
	f("up 0@a 1@a down up 3@a end end", "?0 0 1 ?1 ?2 3 =partial:gap_unrecoverable")
	f("up 0@a 1@a down up 5s 2@a 10s r1@b", "?0 0 1 ?1 2 ?1 ?2 =partial:replay_timeout")
	// Live and replay are of two publishers, and nothing was consumed of either.
	f("up 2@a r0@b r1@b", "?0 0r 1r drop:publisher_restarted ?0 =replaying")
	f("up 2@a r0@b r1@b down up r0@a r1@a r2@a end", "?0 0r 1r drop:publisher_restarted ?0 ?0 0r 1r 2r =synced")
	f("up full 2@a r0@b r1@b", "?0 0r 1r drop:publisher_restarted ?0 over =replaying")
	// The anchor alone is no progress, so the missing batches are asked for only once more.
	f("up full 4@a 5@a r0@b r1@b end r1@b end r1@b end", "?0 0r 1r ?1 ?1 drop:publisher_restarted ?0 over =replaying")
	// Ids that come late, or are left out, decide nothing: the bytes do.
	f("up 0 1@a 1 0 2", "?0 0 1 2 =synced")
	f("up 0@a 1 1x", "?0 0 1 drop:publisher_restarted ?0 =replaying")
	f("up 0 1 1x@a", "?0 0 1 drop:publisher_restarted ?0 =replaying")
	f("up 0@a 1 2@b", "?0 0 1 drop:publisher_restarted ?0 =replaying")
	f("up 0 1 down up 2@a r1", "?0 0 1 ?1 2 =synced")
	f("up 0 1 down up 2@a r1x", "?0 0 1 ?1 drop:publisher_restarted ?0 =replaying")
	// Behind a joint some bytes are still in doubt.
	f("up 0 1 2 5 r3x@b r4x@b down up 5@b r2x", "?0 0 1 2 ?3 3r 4r 5 ?2 drop:publisher_restarted ?0 =replaying")
	f("up 0@a 1@a 5@a r2@a r3@a r4@a down up", "?0 0 1 ?2 2r 3r 4r 5 ?5 =replaying")
	g := cases(t, machineConfig{})
	g("up 0@a 1@a down up 2@b", "0 1 drop:publisher_restarted 2 =partial:history_unknown")
	g("up 0@a 1@a down up 0@b", "0 1 drop:publisher_restarted 0 =synced")
	g("up 0@a 1@a down up 2@a", "0 1 2 =synced")
	g("up 0@a 5@a 3@a 6@a", "0 5 6 =partial:gap_unrecoverable")
	g("up 0@a 1@a 2@b 3@b 2@a", "0 1 drop:publisher_restarted 2 3 drop:publisher_restarted 2 =partial:history_unknown")
	g("have5 up 6@a 6x@a 7@b", "6 drop:publisher_restarted 7 =partial:history_unknown")
}

func TestResync(t *testing.T) {
	f := cases(t, replaying)
	f("up 0 1 resync", "?0 0 1 drop:asked ?0 =replaying")
	f("up 0 1 resync r0 r1 r2 end", "?0 0 1 drop:asked ?0 0r 1r 2r =synced")
	f("up 0 1 resync 2 r0 r1", "?0 0 1 drop:asked ?0 0r 1r 2 =synced")
	f("up 0 1 down resync up r0 r1 end", "?0 0 1 drop:asked ?0 0r 1r =synced")
	f("up 0 1 5 resync r0 r1 r2 r3 r4", "?0 0 1 ?2 drop:asked ?0 0r 1r 2r 3r 4r 5 =synced")
	g := cases(t, machineConfig{})
	g("up 0 1 resync 2", "0 1 drop:asked 2 =partial:history_unknown")
}

func TestMachineCounts(t *testing.T) {
	r := newRig(replaying)
	r.script("up 0 1 5 r2 r3 r4 r5 5 9 end 10! r10! 11 down up r11x end")
	got := r.m.counts
	if got.gaps != 2 || got.replayed != 3 || got.restarts != 1 || got.overruns != 0 || got.duplicates != 1 {
		t.Errorf("got %+v", got)
	}
	if n := got.dropped[events.BadPayload]; n != 1 {
		t.Errorf("the undecodable batch is counted %d times, want 1", n)
	}
}

// History is about what was applied, not about the connection or what follows.
func TestHistoryOfAppliedBatches(t *testing.T) {
	f := func(cfg machineConfig, ops, want string) {
		t.Helper()
		r := newRig(cfg)
		r.script(ops)
		if got := historyReasonOf(r.m); got != want {
			t.Errorf("%s: history is %q, want %q", ops, got, want)
		}
	}
	none := machineConfig{}
	f(replaying, "", "")
	f(replaying, "up", "")
	f(replaying, "up 5s", ReasonTimeout)
	f(replaying, "up r0 r1 down", "")
	f(replaying, "up r0 r1 down up", "")
	f(replaying, "up r5 r6 end down", ReasonOverrun)
	f(replaying, "up r5 r6 end down up r6 7c", "")
	f(replaying, "up 0 1 5 down", "") // the hole is behind the watermark
	f(replaying, "up 0 1 5 end down", ReasonGap)
	f(replaying, "up 0 1!", ReasonUndecodable)
	f(replaying, "up 0 1 down up 5s 2", ReasonTimeout) // of one lifetime?
	f(replaying, "up 0 1 down up 5s 2 10s r1", "")
	f(none, "up", ReasonUnknown)
	f(none, "up 0 1 down", "")
	f(none, "up 0 1 down up", "")
	f(none, "up 7 8 down", ReasonUnknown)
	f(none, "up 0 1 down up 4", ReasonGap)
	f(none, "up 0 1 down up 4 5c", "")
	// A joint is in doubt from the end of the connection until it is verified.
	f(replaying, "up 0 1 2 5 r3 r4", "")
	f(replaying, "up 0 1 2 5 r3 r4 down", ReasonUnverified)
	f(replaying, "up 0 1 2 5 r3 r4 down up r2 r3 r4", ReasonUnverified)
	f(replaying, "up 0 1 2 5 r3 r4 down up r2 r3 r4 r5", "")
	f(replaying, "up 0 1 2 5 r3 r4 31s down", "")
}

// A step carries the fingerprint of its bytes, wherever they came from.
func TestPrintOfStep(t *testing.T) {
	r := newRig(replaying)
	applied := 0
	r.seen = func(s Step) {
		switch {
		case s.Kind == DropBlocks && s.Print != 0:
			t.Errorf("a reset has the fingerprint %x", s.Print)
		case s.Kind == ApplyBatch:
			applied++
			if want := newFingerprint(s.Seq, s.Payload).hash; s.Print != want {
				t.Errorf("batch %d %q has the fingerprint %x, want %x", s.Seq, s.Payload, s.Print, want)
			}
		}
	}
	r.script("up 2 r0 r1! end 0.1s 4 r3 r4 end resync r0x end")
	if applied != 5 {
		t.Errorf("%d batches were applied", applied)
	}
}

// A fingerprint lost to age makes an old number a restart, one still there a
// duplicate.
func TestOldNumbers(t *testing.T) {
	r := newRig(machineConfig{})
	r.script("up")
	for seq := range uint64(2 * maxPrints) {
		r.feed(input{kind: inLive, message: message{seq: seq, payload: fmt.Append(nil, seq)}})
	}
	recent := fmt.Sprint(2*maxPrints - maxPrints)
	if got := r.script(recent); got != "=synced" {
		t.Errorf("the oldest number remembered: %s", got)
	}
	old := fmt.Sprint(2*maxPrints - maxPrints - 1)
	if got, want := r.script(old), "drop:publisher_restarted "+old+" =partial:history_unknown"; got != want {
		t.Errorf("the youngest number forgotten\n got: %s\nwant: %s", got, want)
	}
}
