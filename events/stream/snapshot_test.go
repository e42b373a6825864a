package stream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream/streamtest"
)

var (
	snapping  = machineConfig{canSnapshot: true}
	bothRungs = machineConfig{canSnapshot: true, canReplay: true}
)

func TestSnapshotAtFirstContact(t *testing.T) {
	f := cases(t, snapping)
	// The first live batch shows that the subscription works. The request goes out then, or
	// after a while without one.
	f("up", "=replaying")
	f("up 1.4s", "=replaying")
	f("up 1.5s", "snap? =replaying")
	f("up 7@a", "snap? =replaying")
	f("up 7@a S7@a:1,2", "snap? drop:engine_snapshot 1f 2f filled7 =synced")
	f("up 7@a 8@a 9@a S7@a:1", "snap? drop:engine_snapshot 1f filled7 8 9 =synced")
	f("up 7@a 8@a S8@a 9@a", "snap? drop:engine_snapshot filled8 9 =synced") // an empty cache
	f("up 7@a 8@a S12@a:1 9@a 12@a 13@a", "snap? drop:engine_snapshot 1f filled12 13 =synced")
	// Nothing was published yet.
	f("up 1.5s S-1@a 0@a", "snap? 0 =synced")
	// An idle publisher: the id of the snapshot is compared with what comes later.
	f("up 1.5s S7@a:1 8@a", "snap? drop:engine_snapshot 1f filled7 8 =synced")
	f("up 1.5s S7@a:1 8@b", "snap? drop:engine_snapshot 1f filled7 drop:publisher_restarted snap? =replaying")
	g := cases(t, bothRungs)
	g("up 7@a S7@a:1 8@a", "snap? drop:engine_snapshot 1f filled7 8 =synced")
	// A hole behind the snapshot is a gap like any other.
	g("up 7@a 9@a S7@a:1 r8@a", "snap? drop:engine_snapshot 1f filled7 ?8 8r 9 =synced")
	g("up 9@a S7@a:1 r8@a", "snap? drop:engine_snapshot 1f filled7 ?8 8r 9 =synced")
	// A snapshot without a live batch is checked as a replay is.
	g("up 1.5s S7@a:1 1s r7@a end", "snap? drop:engine_snapshot 1f filled7 ?7 =synced")
}

func TestSnapshotFailsOver(t *testing.T) {
	f := cases(t, bothRungs)
	// Replays are the next rung. What they do not bring is asked for again, with growing pauses.
	f("up 7@a S-2", "snap? ?0 =replaying")
	f("up 7@a S-2 r0@a r1@a r2@a r3@a r4@a r5@a r6@a end 60s", "snap? ?0 0r 1r 2r 3r 4r 5r 6r 7 =synced")
	f("up 7@a S-2 r6@a end", "snap? ?0 6r 7 =partial:replay_overrun")
	f("up 7@a S-2 r6@a end 1s S7@a:1 8@a", "snap? ?0 6r 7 snap? drop:engine_snapshot 1f filled7 8 =synced")
	f("up 7@a S-2 r6@a end 1s S-2 1.9s", "snap? ?0 6r 7 snap? =partial:replay_overrun")
	f("up 7@a S-2 r6@a end 1s S-2 2s S-2 4s S-2 8s", "snap? ?0 6r 7 snap? snap? snap? snap? =partial:replay_overrun")
	f("up 7@a 9.9s", "snap? =replaying")
	f("up 7@a 10s", "snap? ?0 =replaying")
	f("up 7@a 9s Smore 9s Smore 9s S7@a:1", "snap? drop:engine_snapshot 1f filled7 =synced")
	f("up 7@a 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s Smore 9s",
		"snap? ?0 7 snap? =partial:replay_timeout")
	f("up 7@a Ssnapshot_failed", "snap? ?0 =replaying")
	// The reply is of another lifetime than the live batches.
	f("up 7@a S7@b:1", "snap? ?0 =replaying")
	f("up 7 S7@b:1", "snap? ?0 =replaying")
	// A part cannot be decoded: what was filled in is dropped.
	f("up 7@a S7@a:1,!,2 r6@a end", "snap? drop:engine_snapshot 1f drop:snapshot_malformed ?0 6r 7 =partial:replay_overrun")
	g := cases(t, snapping)
	g("up 7@a S-2 8@a", "snap? 7 8 =partial:history_unknown")
	g("up 7@a S-2 8@a 1s 9@a S8@a:1 10@a", "snap? 7 8 snap? 9 drop:engine_snapshot 1f filled8 9 10 =synced")
	g("up 7@a S-2 8@a 1s down", "snap? 7 8 snap? =partial:history_unknown")
	g("up 7@a S-2 0@b", "snap? 7 drop:publisher_restarted snap? =replaying")
	// A recorder that lags, where no replay fills the hole.
	g("up 7@a S5@a:1", "snap? 7 =partial:history_unknown")
	g("up 7@a S5@a:1 1s S7@a:1", "snap? 7 snap? drop:engine_snapshot 1f filled7 =synced")
	// More batches than may wait.
	h := cases(t, machineConfig{canSnapshot: true, keepLen: 3, keepBytes: 1000})
	h("up 1@a 2@a 3@a 4@a 5@a", "snap? 1 2 3 4 5 =partial:history_unknown")
	h("up 1@a 2@a 3@a S3@a:1 4@a 5@a", "snap? drop:engine_snapshot 1f filled3 4 5 =synced")
	h = cases(t, machineConfig{canSnapshot: true, keepLen: 100, keepBytes: 3})
	h("up 1@a 2@a 3@a 4@a", "snap? 1 2 3 4 =partial:history_unknown")
}

func TestSnapshotHealsGap(t *testing.T) {
	start, done := "up 1@a S1@a:1 2@a ", "snap? drop:engine_snapshot 1f filled1 2 "
	f := cases(t, snapping)
	f(start+"5@a", done+"5 =partial:gap_unrecoverable")
	f(start+"5@a 1s 6@a S5@a:4 7@a", done+"5 snap? 6 drop:engine_snapshot 4f filled5 6 7 =synced")
	g := cases(t, bothRungs)
	g(start+"5@a r3@a r4@a", done+"?3 3r 4r 5 =synced") // replays first
	g(start+"5@a end 1s S5@a:4", done+"?3 5 snap? drop:engine_snapshot 4f filled5 =synced")
	// One that needs snapshots over and over waits longer each time.
	g(start+"5@a end 1s S5@a:4 8@a end 1.9s", done+"?3 5 snap? drop:engine_snapshot 4f filled5 ?6 8 =partial:gap_unrecoverable")
	g(start+"5@a end 1s S5@a:4 8@a end 2s", done+"?3 5 snap? drop:engine_snapshot 4f filled5 ?6 8 snap? =partial:gap_unrecoverable")
	g(start+"61s 5@a end 0.1s", done+"?3 5 snap? =partial:gap_unrecoverable")
	// A clear makes the history whole before the request is due.
	g(start+"5@a end 6c@a 10s", done+"?3 5 6 =synced")
	h := cases(t, machineConfig{canSnapshot: true, drop: true})
	h(start+"5@a 1s S5@a:4", done+"drop:gap_unrecoverable 5 snap? drop:engine_snapshot 4f filled5 =synced")
}

func TestSnapshotAfterRestart(t *testing.T) {
	f := cases(t, bothRungs)
	start, done := "up 1@a S1@a:1 2@a ", "snap? drop:engine_snapshot 1f filled1 2 "
	f(start+"0@b", done+"drop:publisher_restarted snap? =replaying")
	f(start+"0@b S0@b:5 1@b", done+"drop:publisher_restarted snap? drop:engine_snapshot 5f filled0 1 =synced")
	f(start+"3@b S3@b:5 4@b", done+"drop:publisher_restarted snap? drop:engine_snapshot 5f filled3 4 =synced")
	// The same lifetime needs none after a reconnect.
	f(start+"down up r2@a r3@a end", done+"?2 3r =synced")
	f(start+"down up 0@b", done+"?2 drop:publisher_restarted snap? =replaying")
	f(start+"down up r9@b", done+"?2 drop:publisher_restarted =replaying")
	g := cases(t, snapping)
	g(start+"down up 3@a", done+"3 =synced")
	g(start+"down up 5@a S5@a:4", done+"5 =partial:gap_unrecoverable")
	f(start+"resync S2@a:7 3@a", done+"drop:asked snap? drop:engine_snapshot 7f filled2 3 =synced")
	// The mark of a peer is as good as a snapshot.
	f("have5 up r5 r6 end", "?5 6r =synced")
}

// A snapshot that was asked for in another connection, or another lifetime, is none.
func TestLateSnapshotIsNone(t *testing.T) {
	r := newRig(snapping)
	r.script("up 7@a")
	late := r.m.snapshots.id
	r.script("down up 7@a")
	r.feed(input{kind: inSnapshot, ask: late, snapshot: snapshotOf("7@a:1")})
	if got, want := r.script("S7@a:2"), "drop:engine_snapshot 2f filled7 =synced"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNewSnapshot(t *testing.T) {
	f := func(want string, frames ...string) {
		t.Helper()
		var all []payload.Message
		for _, s := range frames {
			all = append(all, payload.Of([]byte(s)))
		}
		s, ok := parseSnapshot(all)
		if got := fmt.Sprintf("%d %v %d", s.seq, len(s.chunks), s.bytes); !ok && want != "" || ok && got != want {
			t.Errorf("%q: got %s %v, want %q", frames, got, ok, want)
		}
	}
	seq, id := string(streamtest.EncodeSequence(42)), strings.Repeat("i", 16)
	f("42 2 4", "", seq, id, "ab", "cd")
	f("42 2 4", seq, id, "ab", "cd")
	f("42 0 0", seq, id)
	f("-1 0 0", string(streamtest.EncodeSequence(^uint64(0))), id)
	f("-2 0 0", string(streamtest.EncodeSequence(^uint64(0)-1)), id)
	f("", string(streamtest.EncodeSequence(^uint64(0)-2)), id)
	f("", seq)
	f("", "", seq)
	f("", seq, id+"i")
	f("", seq+"x", id)
	f("")
}

// Frames of snapshots come over the network, and the memory of all of them is used again.
func TestSnapshotOverNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.ID = events.PublisherID{1}
		p.PublishToRing("0", "1", "2")
		p.Parts = []string{"0", "2"}
		p.Unavailable = 2
		s, c := open(t, p, func(cfg *Config) { cfg.SnapshotEndpoint, cfg.ReplayEndpoint = "snapshot", "" })
		wantState(t, s, Replaying, "")
		p.Publish("3")
		serve(p, "0", "2", "3")
		st := wantState(t, s, Partial, ReasonUnknown)
		if st.SnapshotFailures[SnapshotUnavailable] != 1 || st.SnapshotReason != SnapshotUnavailable {
			t.Errorf("after a reply without a snapshot: %+v", st)
		}
		time.Sleep(10 * time.Second)
		st = wantState(t, s, Synced, "")
		p.Publish("4")
		synctestSeqs(t, c, 3, 4)
		if st.Snapshots != 1 || st.SnapshotFailures[SnapshotUnavailable] != 2 || st.SnapshotReason != "" || st.LastSeq != 3 ||
			st.History != "" {
			t.Errorf("after a snapshot: %+v", st)
		}
		p.RestartAs(events.PublisherID{2}, "0")
		serve(p, "0")
		time.Sleep(10 * time.Second)
		p.Publish("1")
		synctestSeqs(t, c, 1)
		if st = wantState(t, s, Synced, ""); st.Snapshots != 2 {
			t.Errorf("after a restart: %+v", st)
		}
	})
}

// serve makes the parts of the publisher's next snapshots.
func serve(p *streamtest.Publisher, parts ...string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Parts = parts
}

// synctestSeqs compares the sequences of the last snapshot and the batches behind it.
func synctestSeqs(t *testing.T, c *consumer, want ...uint64) {
	t.Helper()
	synctest.Wait()
	if got := slices.Compact(c.seqs()); !slices.Equal(got, want) {
		t.Errorf("applied %d, want %d", got, want)
	}
}

// A publisher that sends a batch each second and then none is left for another connection.
func TestSilentPublisherIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.ID = events.PublisherID{1}
		idle := "\x94\xcb\x41\xd9\x54\xfc\x40\x20\x00\x00\x90\x00\xc4\x10" + string(p.ID[:])
		s, _ := open(t, p, func(cfg *Config) {
			cfg.SnapshotEndpoint, cfg.ReplayEndpoint = "snapshot", ""
			cfg.Decode = nil
		})
		synctest.Wait()
		for range 20 {
			p.Publish(idle)
			time.Sleep(time.Second)
		}
		if st := wantState(t, s, Synced, ""); st.Reconnects != 0 {
			t.Errorf("while it sends: %+v", st)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Reconnects != 1 || !strings.Contains(st.LastError, "each second") {
			t.Errorf("in the silence: %+v", st)
		}
	})
}
