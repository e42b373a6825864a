package zmq

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/must"
)

// TestPulseOfPausedReader reads after an hour without a read. The peer answered
// heartbeats before, and its silence counts from the next read on.
func TestPulseOfPausedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		p := &heartbeatConn{Conn: ours, interval: 10 * time.Second, on: true, answered: true}
		next := make(chan byte)
		go func() {
			for b := range next {
				theirs.Write([]byte{b})
			}
		}()
		pings := 0
		go func() {
			for buf := make([]byte, 64); ; pings++ {
				if _, err := theirs.Read(buf); err != nil {
					return
				}
			}
		}()
		read := func(want byte) {
			t.Helper()
			var buf [1]byte
			n, err := 0, error(nil)
			for n == 0 && err == nil { // once for each silent interval
				n, err = p.Read(buf[:])
			}
			if n != 1 || err != nil || buf[0] != want {
				t.Fatalf("read %d bytes, %q: %v", n, buf, err)
			}
		}
		next <- 'a'
		read('a')
		time.Sleep(time.Hour)
		go func() {
			time.Sleep(25 * time.Second)
			next <- 'b'
		}()
		read('b')
		synctest.Wait()
		if pings != 2 {
			t.Errorf("%d heartbeats in 25 s of silence, want 2", pings)
		}
		close(next)
		var buf [1]byte
		for range missedBeats {
			if _, err := p.Read(buf[:]); err != nil {
				t.Errorf("the peer is given up early: %v", err)
			}
		}
		if _, err := p.Read(buf[:]); err == nil {
			t.Error("a peer is kept that answers no heartbeat any more")
		}
	})
}

const (
	pingFrame = "\x04\x07\x04PING\x00\x00"
	pongFrame = "\x04\x05\x04PONG"
)

// publisher serves dialed connections over pipes, which synctest knows. It answers PINGs while
// answers says so.
type publisher struct {
	answers func() bool
	refuses bool // a second after a PING the connection ends
	serve   func(c net.Conn)
	dialed  int
}

func (p *publisher) dial(context.Context, string, string) (net.Conn, error) {
	p.dialed++
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		greeted := make(chan struct{})
		go func() { greet(theirs, pubMetadata); close(greeted) }()
		readAll(theirs, hello)
		<-greeted
		theirs.SetReadDeadline(time.Time{})
		go p.serve(theirs)
		for buf := make([]byte, len(pingFrame)); ; {
			if _, err := io.ReadFull(theirs, buf); err != nil {
				return
			}
			if p.refuses {
				time.Sleep(time.Second)
				return
			}
			if string(buf) == pingFrame && p.answers() {
				theirs.Write([]byte(pongFrame))
			}
		}
	}()
	return ours, nil
}

// TestBusyPublisherHangs publishes every second, so that no silence asks for a PING, and then
// hangs. The kernel goes on to take what it is sent.
func TestBusyPublisherHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lively = 25
		began := time.Now()
		p := &publisher{
			answers: func() bool { return time.Since(began) < lively*time.Second },
			serve: func(c net.Conn) {
				for range lively {
					c.Write([]byte("\x00\x01x"))
					time.Sleep(time.Second)
				}
			},
		}
		sub, err := (&Sockets{Transport: Transport{Dial: p.dial}}).TransportFor(Claim{}, nil).Subscribe(t.Context(), "tcp://engine:5557")
		must.Succeed(t, err)
		defer sub.Close()
		for range lively {
			m, err := sub.Recv()
			must.Succeed(t, err)
			m.Block.Release()
		}
		last := time.Now()
		_, err = sub.Recv()
		var silent interface{ Silent() time.Duration }
		if !errors.As(err, &silent) {
			t.Fatalf("a publisher that hangs ends in %v", err)
		}
		if took := time.Since(last); took > 30*time.Second || took < 28*time.Second || silent.Silent() < took-time.Second ||
			silent.Silent() > took+2*time.Second {
			t.Errorf("it is noticed after %v, and was silent for %v", took, silent.Silent())
		}
	})
}

// TestPublisherHangsUpOnPing is of a publisher that ends its connection over a PING. Every second
// connection has none, so it lasts.
func TestPublisherHangsUpOnPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{refuses: true, answers: func() bool { return false }, serve: func(net.Conn) {}}
		source := (&Sockets{Transport: Transport{Dial: p.dial}}).TransportFor(Claim{}, nil)
		lasts := func() time.Duration {
			sub, err := source.Subscribe(t.Context(), "tcp://engine:5557")
			must.Succeed(t, err)
			began := time.Now()
			defer time.AfterFunc(time.Hour, func() { sub.Close() }).Stop()
			if _, err := sub.Recv(); err == nil {
				t.Fatal("a message came")
			}
			return time.Since(began)
		}
		for _, want := range []time.Duration{time.Second, time.Hour, time.Second, time.Hour} {
			if got := lasts(); got != want {
				t.Errorf("connection %d lasts %v, want %v", p.dialed, got, want)
			}
		}
	})
}

// TestPublisherEndsWithoutAnswer is of a publisher that ends a while after a PING, whose answer was not read. The
// next one is asked as well.
func TestPublisherEndsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pings atomic.Int64
		p := &publisher{answers: func() bool { pings.Add(1); return false }, serve: func(c net.Conn) {
			time.Sleep(9 * time.Second)
			c.Close()
		}}
		source := (&Sockets{Transport: Transport{Dial: p.dial}}).TransportFor(Claim{}, nil)
		for range 3 {
			sub, err := source.Subscribe(t.Context(), "tcp://engine:5557")
			must.Succeed(t, err)
			if _, err := sub.Recv(); err == nil {
				t.Fatal("a message came")
			}
		}
		if n := pings.Load(); n != 3 {
			t.Errorf("%d of 3 publishers were asked for a heartbeat", n)
		}
	})
}

// TestPublisherWithoutHeartbeats is of a publisher that neither answers PINGs nor minds them: its
// silence says nothing.
func TestPublisherWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{answers: func() bool { return false }, serve: func(c net.Conn) {
			time.Sleep(time.Hour)
			c.Write([]byte("\x00\x01x"))
		}}
		sub, err := Transport{Dial: p.dial}.Subscribe(t.Context(), "tcp://engine:5557")
		must.Succeed(t, err)
		defer sub.Close()
		if m, err := sub.Recv(); err != nil || text(m.Frames) != `["x"]` {
			t.Errorf("after an hour of silence: %s, %v", text(m.Frames), err)
		}
	})
}
