package log

import (
	"fmt"
	"testing"
	"time"

	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
)

// TestBufferIsBounded publishes more than the buffer takes while the store is away: the log has a
// hole, and the follower gets the batches from the engine, or says that they are lost.
func TestBufferIsBounded(t *testing.T) {
	t.Parallel()
	f := func(name string, replays bool, state stream.State) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := &scene{replays: replays, buffer: 4 << 10}
			sc.begin(t)
			sc.publish(20)
			sc.same("begun", stream.Synced)
			tail, other := sc.tail()
			sc.server.Pause()
			sc.publish(500)
			eventually(t, "the tail does not go on", func() (string, bool) {
				st := tail.stream.Status()
				return fmt.Sprintf("%+v", st), st.State == stream.Synced && st.LastSeq == sc.engine.Next()-1
			})
			n := tail.log.Stats().Buffered
			if n > 8<<10 {
				t.Errorf("%d bytes are buffered", n)
			}
			if m, most := tail.log.Memory(), n+keptBytes+512*64; m < n || m > most {
				t.Errorf("the log takes %d bytes, want %d to %d", m, n, most)
			}
			eventually(t, "the follower does not notice that the store is away", func() (string, bool) {
				st := other.stream.Status()
				return fmt.Sprintf("%+v", st), st.State == stream.Connecting
			})
			sc.server.Continue()
			sc.publish(20)
			direct := sc.all[2]
			sc.all = []*watcher{tail, direct}
			sc.same("the tail", stream.Synced)
			sc.all = []*watcher{other}
			sc.same("the follower", state)
			if got, want := len(other.held()), len(direct.held()); replays != (got == want) {
				t.Errorf("the follower has %d of %d batches", got, want)
			}
			if n := tail.log.Stats().Dropped; n < 100 {
				t.Errorf("%d entries were dropped", n)
			}
		})
	}
	f("replays", true, stream.Synced)
	f("no replays", false, stream.Partial)
}

// TestLogsAreTrimmed bounds a log by bytes and by age. The newest entry stays.
func TestLogsAreTrimmed(t *testing.T) {
	t.Parallel()
	f := func(name string, sc *scene, rounds, least, most int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc.begin(t)
			tail, _ := sc.tail()
			publish := func(rounds, n int) {
				for range rounds {
					sc.publish(n)
					sc.same("published", stream.Synced)
					eventually(t, "all is appended", func() (string, bool) { return "", tail.log.Stats().Buffered == 0 })
				}
			}
			publish(rounds, 100)
			publish(8, 1) // one append trims four parts
			all, err := tail.log.cfg.Store.Client().XRange(t.Context(), tail.source.keys[2], "-", "+").Result()
			must.Succeed(t, err)
			n := 0
			for _, one := range all {
				n += len(one.Values["p"].(string))
			}
			if n < least || n > most {
				t.Errorf("the log has %d bytes", n)
			}
		})
	}
	f("bytes", &scene{replays: true, bytes: 16 << 10}, 40, 12<<10, 20<<10)
	f("age", &scene{replays: true, age: time.Millisecond}, 10, 1, 2<<10)
}

// TestStoreIsAwayAtTheStart lets replicas follow the engine themselves while there is no store, and
// share it afterwards.
func TestStoreIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true, alone: 500 * time.Millisecond}
	sc.t, sc.server, sc.network = t, sc.store(t), new(streamtest.Network)
	sc.engine = sc.network.At("engine")
	sc.server.Kill()
	sc.all = []*watcher{sc.replica("r0"), sc.replica("r1"), watch(t, sc.network, sc)}
	sc.publish(10)
	sc.same("without a store", stream.Synced)
	if n := sc.tails(); n != 3 {
		t.Errorf("the engine has %d connections", n)
	}
	sc.server.Run()
	eventually(t, "the replicas do not share the engine", func() (string, bool) {
		sc.publish(1)
		n := sc.tails()
		return fmt.Sprint(n), n == 2
	})
	sc.same("with a store", stream.Synced)
	for i, w := range sc.all {
		if n := w.stream.Status().Restarts; n != 0 {
			t.Errorf("stream %d saw %d restarts", i, n)
		}
	}
}

// TestPausedTailGivesItsLeaseBack pauses the tail's stream: the other replica follows the engine,
// and the first one follows the log afterwards.
func TestPausedTailGivesItsLeaseBack(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true}
	sc.begin(t)
	sc.publish(20)
	sc.same("begun", stream.Synced)
	tail, other := sc.tail()
	tail.stream.Pause()
	eventually(t, "the other replica is not the tail", func() (string, bool) { return "", other.isTail() && sc.tails() == 2 })
	sc.publish(20)
	tail.stream.Unpause()
	sc.publish(20)
	sc.same("unpaused", stream.Synced)
	if n := sc.tails(); n != 2 || tail.isTail() {
		t.Errorf("the engine has %d connections", n)
	}
}
