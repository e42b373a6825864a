package stream_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// freePort returns a port without a listener at present.
func freePort(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	must.Succeed(t, err)
	_, port, _ := net.SplitHostPort(address)
	return port
}

// Publishers of libzmq that connect to one socket of ours: two pods, one of them
// with two ranks, told apart by topic and rank. One is killed and comes back.
func TestInteropBoundSocket(t *testing.T) {
	python := python(t)
	port := freePort(t)
	sockets := zmq.Sockets{Rank: wire.RankOf}
	args := func(pod string, rank, life int) []string {
		return []string{"--connect", "tcp://127.0.0.1:" + port, "--topic", "kv@" + pod + "@org/m@x", "--layout", "B",
			"--rank", fmt.Sprint(rank), "--life", fmt.Sprint(life)}
	}
	follow := func(pod string, rank int, p *publisher) *subscriber {
		return subscribe(t, stream.Config{
			Endpoint: "bind:tcp://*:" + port, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
			Transport: sockets.TransportFor(zmq.Claim{Pod: pod, Model: "org/m@x", Rank: rank}, nil),
		})
	}
	a0 := startPublisher(t, python, args("a", 0, 1)...)
	a1 := startPublisher(t, python, args("a", 1, 2)...)
	b0 := startPublisher(t, python, args("b", 0, 3)...)
	stray := startPublisher(t, python, args("c", 0, 4)...)
	// All have history that was not seen.
	for _, p := range []*publisher{a0, a1, b0} {
		p.do("lose 3")
	}
	sa0, sa1, sb0 := follow("a", 0, a0), follow("a", 1, a1), follow("b", 0, b0)

	// A publisher whose connection is not up yet drops what it sends; the ring has
	// it, and what follows shows that it is missing. So publish now and then until
	// one has arrived in this epoch.
	publish := func(p *publisher, s *subscriber, epoch uint64) (last uint64) {
		looks := 0
		s.until("a batch arrives", func(st stream.Status) bool {
			if st.Epoch >= epoch && st.HasSeq && st.LastSeq == last && last > 0 && st.State == stream.Synced {
				return true
			}
			if looks++; looks%50 == 1 {
				last = p.do("publish 1")
			}
			return false
		})
		return last
	}
	for i, s := range []*subscriber{sa0, sa1, sb0} {
		p := []*publisher{a0, a1, b0}[i]
		last := publish(p, s, 1)
		s.untilAt(stream.Synced, 1, last)
		s.wantBlocks(blocks("", uint64(i+1), 0, last))
	}
	for n := uint64(0); n == 0; n, _ = sockets.ListStrays() {
		stray.do("publish 1")
	}
	if _, topics := sockets.ListStrays(); len(topics) != 1 || topics[0].Topic != "kv@c@org/m@x" {
		t.Errorf("topics without a source: %+v", topics)
	}

	a1.kill()
	again := startPublisher(t, python, append(args("a", 1, 5), "--replay-port", a1.replay)...)
	again.do("publish 2")
	last := publish(again, sa1, 2)
	sa1.wantBlocks(blocks("", 5, 0, last))
	if st := sa0.s.Status(); st.Epoch != 1 || st.Restarts+st.Reconnects > 0 {
		t.Errorf("rank 0 is disturbed by the restart of rank 1: %+v", st)
	}
	if st := sb0.s.Status(); st.Epoch != 1 || st.Restarts+st.Reconnects > 0 {
		t.Errorf("pod b is disturbed by a restart of pod a: %+v", st)
	}
}

// road is a TCP route that can be made to swallow everything.
type road struct {
	listener net.Listener
	target   string

	mu   sync.Mutex
	hole bool
}

func openRoad(t *testing.T, target string) *road {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	r := &road{listener: l, target: target}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.join(c)
		}
	}()
	return r
}

func (r *road) blackHole(on bool) {
	r.mu.Lock()
	r.hole = on
	r.mu.Unlock()
}

func (r *road) swallows() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hole
}

// join carries one connection. What a black hole has swallowed is gone for good,
// so such a connection carries nothing any more.
func (r *road) join(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer to.Close()
	carry := func(dst, src net.Conn) {
		buf, broken := make([]byte, 16<<10), false
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			if broken = broken || r.swallows(); broken {
				continue
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, to}, {to, c}} {
		go func() { carry(pair[0], pair[1]); done <- struct{}{} }()
	}
	<-done
}

func (r *road) endpoint() string { return "tcp://" + r.listener.Addr().String() }

// The route to an idle publisher turns into a black hole: no side closes, nothing
// arrives. Heartbeats find out; when the route is back the history is whole.
func TestInteropBlackHole(t *testing.T) {
	p := startPublisher(t, python(t), "--layout", "B")
	live, replay := openRoad(t, "127.0.0.1:"+p.live), openRoad(t, "127.0.0.1:"+p.replay)
	c := subscribe(t, stream.Config{
		Endpoint: live.endpoint(), ReplayEndpoint: replay.endpoint(),
		Transport: zmq.Transport{Heartbeat: 200 * time.Millisecond, HandshakeTimeout: time.Second},
	})
	last := p.do("publish 5")
	c.untilAt(stream.Synced, 1, last)
	// Silence that is answered is life. A busy machine may be late with an answer, but not for ever.
	began, reconnects := time.Now(), uint64(0)
	c.until("idle for several heartbeats, and not given up", func(st stream.Status) bool {
		if st.Reconnects != reconnects || !st.Connected {
			began, reconnects = time.Now(), st.Reconnects
		}
		return time.Since(began) > time.Second
	})

	live.blackHole(true)
	replay.blackHole(true)
	lost := p.do("publish 3", "publish 4")
	c.until("the dead connection is noticed", func(st stream.Status) bool { return !st.Connected })
	if st := c.s.Status(); st.State == stream.Synced {
		t.Errorf("state is %s without a connection", st.State)
	}
	live.blackHole(false)
	replay.blackHole(false)
	c.untilAt(stream.Synced, 1, lost)
	c.wantBlocks(blocks("", 1, 0, lost))
	if st := c.s.Status(); st.Reconnects == 0 || st.Replayed < 7 {
		t.Errorf("came back without a reconnect or a replay: %+v", st)
	}
}

// A publisher that never answers a heartbeat is not cut off for that.
func TestSilentPeerIsKept(t *testing.T) {
	// The read side of the greeting and handshake of a PUB, then silence.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	pings := make(chan int)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		greeting := make([]byte, 64)
		greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
		copy(greeting[12:], "NULL")
		c.Write(greeting)
		io.ReadFull(c, make([]byte, 64))
		c.Write(append([]byte{4, 25}, "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...))
		buf, seen := make([]byte, 4096), 0
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			for i := 0; i+7 <= n; i++ {
				if string(buf[i:i+5]) == "\x04PING" {
					seen++
				}
			}
			if seen == 3 { // and no more, to one that answers none
				pings <- seen
				seen++
			}
		}
	}()
	tr := zmq.Transport{Heartbeat: 10 * time.Millisecond}
	sub, err := tr.Subscribe(t.Context(), "tcp://"+l.Addr().String())
	must.Succeed(t, err)
	defer sub.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := sub.Recv()
		failed <- err
	}()
	select {
	case <-pings:
	case err := <-failed:
		t.Fatalf("the connection is cut: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("no heartbeat is sent")
	}
}
