package stream_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// A publisher is busy, so that no silence asks it for a sign of life, and is then stopped with its
// sockets open, or cut off by a route that swallows everything. The kernel goes on to acknowledge
// what it is sent. Heartbeats find out, and the time of silence counts: the source is stale at
// once. When the publisher goes on, or the route is back, the source recovers.
func TestInteropBusyPublisherHangs(t *testing.T) {
	python := python(t)
	const beat = 500 * time.Millisecond
	transport := zmq.Transport{Heartbeat: beat, HandshakeTimeout: time.Second}
	stop := func(p *publisher) (goOn func()) {
		must.Succeed(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		return func() { must.Succeed(t, p.cmd.Process.Signal(syscall.SIGCONT)) }
	}
	follow := func(t *testing.T, p *publisher, cfg stream.Config, hang func() (goOn func())) {
		cfg.StaleAfter, cfg.ReplayTimeout = 2*beat, 2*time.Second
		s := subscribe(t, cfg)
		// A publisher that connects to us drops what it sends before it has, and its ring does not.
		last, began := uint64(0), time.Time{}
		s.until("busy for longer than a heartbeat", func(st stream.Status) bool {
			if began.IsZero() && st.State == stream.Synced && st.HasSeq {
				began = time.Now()
			}
			last = p.do("publish 1")
			return !began.IsZero() && time.Since(began) > 3*beat
		})
		s.until("everything is applied", func(st stream.Status) bool {
			if !st.Connected { // a busy machine was late with a heartbeat
				last = p.do("publish 1")
			}
			return st.Connected && st.HasSeq && st.LastSeq == last
		})
		epoch := s.s.Status().Epoch
		goOn := hang()
		st := s.until("the silence is noticed", func(st stream.Status) bool { return !st.Connected })
		if silent := time.Since(st.LastLifeAt); st.State != stream.Stale || silent < 2*beat {
			t.Errorf("%v after the last byte it is %s: %s", silent, st.State, st.LastError)
		}
		goOn()
		s.until("the source has recovered", func(st stream.Status) bool {
			last = p.do("publish 1") // one that connects to us is known by its messages alone
			return st.State == stream.Synced
		})
		s.untilAt(stream.Synced, epoch, last)
		s.wantBlocks(blocks("", 1, 0, last))
		if st := s.s.Status(); st.Reconnects == 0 {
			t.Errorf("recovered without another connection: %+v", st)
		}
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		p := startPublisher(t, python, "--layout", "B")
		follow(t, p, stream.Config{
			Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay, Transport: transport,
		}, func() func() { return stop(p) })
	})
	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		p := startPublisher(t, python)
		live := openRoad(t, "127.0.0.1:"+p.live)
		follow(t, p, stream.Config{
			Endpoint: live.endpoint(), ReplayEndpoint: "tcp://127.0.0.1:" + p.replay, Transport: transport,
		}, func() func() {
			live.blackHole(true)
			return func() { live.blackHole(false) }
		})
	})
	t.Run("connected to us", func(t *testing.T) {
		t.Parallel()
		port := freePort(t)
		p := startPublisher(t, python, "--layout", "B", "--connect", "tcp://127.0.0.1:"+port, "--topic", "kv@a@m")
		sockets := &zmq.Sockets{Rank: wire.RankOf, Transport: transport}
		follow(t, p, stream.Config{
			Endpoint: "bind:tcp://*:" + port, ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%s", p.replay),
			Transport: sockets.TransportFor(zmq.Claim{Pod: "a", Model: "m"}, nil),
		}, func() func() { return stop(p) })
	})
}
