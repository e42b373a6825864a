package stream_test

import (
	"maps"
	"testing"
	"time"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
)

// A libzmq publisher with snapshots in another process, in both revisions: first contact,
// every fault of a reply, a gap that its ring has forgotten, and a crash.
func TestInteropSnapshots(t *testing.T) {
	python := python(t)
	for _, revision := range []struct{ name, id string }{{"A", "frame"}, {"B", "payload"}} {
		t.Run(revision.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--layout", "B", "--ring", "2", "--publisher-id", revision.id}
			p := startRecorder(t, python, args...)
			p.do("lose 300", "remove 7", "fault none 1", "idle 1")
			cfg := stream.Config{
				Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
				SnapshotEndpoint: "tcp://127.0.0.1:" + p.snapshot, SnapshotTimeout: 3 * time.Second,
			}
			sub := subscribe(t, cfg)
			// No snapshot at first: the replay has two batches, and the stream asks again.
			sub.until("asked in vain", func(st stream.Status) bool { return st.SnapshotFailures[stream.SnapshotUnavailable] > 0 })
			st := sub.until("filled", func(st stream.Status) bool { return st.State == stream.Synced })
			if st.Snapshots != 1 || st.History != "" || len(st.Dropped) != 0 {
				t.Errorf("first contact: %+v", st)
			}
			want := blocks("", 1, 0, 299)
			maps.DeleteFunc(want, func(h uint64, _ bool) bool { return blocks("", 1, 7, 7)[h] })
			sub.wantBlocks(want)

			for _, fault := range []struct{ name, reason string }{
				{"none", stream.SnapshotUnavailable}, {"mute", stream.SnapshotTimeout}, {"id", stream.SnapshotPublisher},
				{"torn", stream.SnapshotMalformed}, {"frames", stream.SnapshotMalformed},
			} {
				before := sub.s.Status()
				p.do("fault " + fault.name + " 1")
				sub.s.Resync("test")
				sub.until(fault.name, func(st stream.Status) bool {
					return st.SnapshotFailures[fault.reason] > before.SnapshotFailures[fault.reason]
				})
				sub.until("after "+fault.name, func(st stream.Status) bool {
					return st.State == stream.Synced && st.Snapshots > before.Snapshots
				})
				sub.wantBlocks(want)
			}

			// A hole longer than the ring: the replay does not have it, the snapshot does.
			before := sub.s.Status()
			last := p.do("lose 10", "publish 5")
			sub.until("the hole is filled", func(st stream.Status) bool {
				return st.State == stream.Synced && st.LastSeq >= last && st.Snapshots == before.Snapshots+1
			})
			maps.Copy(want, blocks("", 1, last-14, last))
			sub.wantBlocks(want)

			// A batch without events each second keeps the connection.
			seen := sub.s.Status()
			sub.until("idle batches", func(st stream.Status) bool { return st.LastSeq >= seen.LastSeq+2 })

			p.kill()
			sub.until("the connection is lost", func(st stream.Status) bool { return !st.Connected })
			p = startRecorder(t, python, append(args, "--life", "2", "--port", p.live, "--replay-port", p.replay, "--snapshot-port",
				p.snapshot)...)
			last = p.do("lose 50", "idle 1")
			st = sub.until("the next life", func(st stream.Status) bool { return st.State == stream.Synced && st.LastSeq > last })
			sub.wantBlocks(blocks("", 2, 0, 49))
			if st.Restarts == 0 {
				t.Errorf("the end: %+v", st)
			}
		})
	}
}

// A recorder that is behind: its snapshot ends before the batches that wait, and the ring fills
// the hole.
func TestInteropSnapshotBehind(t *testing.T) {
	p := startRecorder(t, python(t), "--layout", "B", "--publisher-id", "payload")
	last := p.do("lose 20", "fault old 1", "idle 1")
	sub := subscribe(t, stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		SnapshotEndpoint: "tcp://127.0.0.1:" + p.snapshot,
	})
	sub.until("filled", func(st stream.Status) bool { return st.State == stream.Synced && st.LastSeq > last })
	sub.wantBlocks(blocks("", 1, 0, last))
	if st := sub.s.Status(); st.Snapshots != 1 || st.Replayed == 0 {
		t.Errorf("%+v", st)
	}
}

// A reply that is larger than it may be costs one connection, and no memory beyond the bound.
func TestInteropSnapshotTooLarge(t *testing.T) {
	p := startRecorder(t, python(t), "--layout", "B", "--publisher-id", "payload")
	last := p.do("lose 300", "idle 1")
	before := payload.NewMemory(1 << 30)
	sub := subscribe(t, stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		SnapshotEndpoint: "tcp://127.0.0.1:" + p.snapshot, SnapshotBytes: 20_000, Memory: before,
		Transport: zmq.Transport{Memory: before},
	})
	st := sub.until("refused", func(st stream.Status) bool { return st.State == stream.Synced && st.LastSeq >= last })
	if st.Snapshots != 0 || st.SnapshotFailures[stream.SnapshotTooLarge] == 0 {
		t.Errorf("%+v", st)
	}
	sub.wantBlocks(blocks("", 1, 0, last))
}
