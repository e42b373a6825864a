package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/internal/must"
)

// accepted returns what greet makes of the next connection to a new address.
func accepted(t *testing.T, greet func(context.Context, net.Conn) (*Peer, error)) (endpoint string, peer func() *Peer) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { ln.Close() })
	return "tcp://" + ln.Addr().String(), func() *Peer {
		t.Helper()
		raw, err := ln.Accept()
		must.Succeed(t, err)
		p, err := greet(t.Context(), raw)
		must.Succeed(t, err)
		t.Cleanup(func() { p.Close() })
		return p
	}
}

// TestPeerPublishes has subscribers of both implementations receive frames of each length.
func TestPeerPublishes(t *testing.T) {
	endpoint, peer := accepted(t, Transport{}.GreetAsPublisher)
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	other := zmq4.NewSub(t.Context(), quiet)
	defer other.Close()
	messages := [][][]byte{
		{[]byte("kv"), make([]byte, 8), []byte("x")},
		{nil, bytes.Repeat([]byte{1}, 255), bytes.Repeat([]byte{2}, 256)},
		{[]byte("large"), bytes.Repeat([]byte{3}, maxPending), bytes.Repeat([]byte{4}, 3<<20)},
		{[]byte("end"), nil},
	}
	send := func() {
		p := peer()
		m, err := p.Receive()
		must.Succeed(t, err)
		if got := text(m.Frames); got != `["\x01"]` {
			t.Errorf("the peer subscribes with %s", got)
		}
		m.Block.Release()
		for _, m := range messages {
			must.Succeed(t, p.Send(m...))
		}
		must.Succeed(t, p.Flush())
	}

	done := make(chan struct{})
	go func() { defer close(done); send() }()
	sub, err := Transport{}.Subscribe(t.Context(), endpoint)
	must.Succeed(t, err)
	defer sub.Close()
	for _, want := range messages {
		m, err := sub.Recv()
		must.Succeed(t, err)
		if text(m.Frames) != text(want) {
			t.Errorf("a message of %d frames arrives as one of %d, or with other bytes", len(want), len(m.Frames))
		}
		m.Block.Release()
	}
	<-done

	go send()
	must.Succeed(t, other.Dial(endpoint))
	must.Succeed(t, other.SetOption(zmq4.OptionSubscribe, ""))
	for _, want := range messages {
		m, err := other.Recv()
		must.Succeed(t, err)
		if text(m.Frames) != text(want) {
			t.Errorf("the other implementation reads %d frames of %d, or other bytes", len(m.Frames), len(want))
		}
	}
}

func TestPeerRoutes(t *testing.T) {
	endpoint, peer := accepted(t, Transport{}.GreetAsRouter)
	go func() {
		p := peer()
		m, err := p.Receive()
		if err != nil {
			return
		}
		p.Send(nil, m.Frames[1], []byte("reply"))
		p.Flush()
	}()
	sub, err := Transport{}.Replay(t.Context(), endpoint, 77)
	must.Succeed(t, err)
	defer sub.Close()
	m, err := sub.Recv()
	must.Succeed(t, err)
	if want := fmt.Sprintf("%q", [][]byte{{}, binary.BigEndian.AppendUint64(nil, 77), []byte("reply")}); text(m.Frames) != want {
		t.Errorf("the reply is %s, not %s", text(m.Frames), want)
	}
}

// TestPeerAnswersPing: libzmq's heartbeats ask a publisher too, and repeat up to 16 bytes.
func TestPeerAnswersPing(t *testing.T) {
	endpoint, peer := accepted(t, Transport{}.GreetAsPublisher)
	raw, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	must.Succeed(t, err)
	defer raw.Close()
	got := make(chan *Peer, 1)
	go func() { got <- peer() }()
	c, err := Transport{}.greetPeer(t.Context(), raw, zmq4.Sub, zmq4.NewMsg([]byte{1}))
	must.Succeed(t, err)
	p := <-got
	go func() {
		for {
			m, err := p.Receive()
			if err != nil {
				return
			}
			m.Block.Release()
		}
	}()
	for _, mark := range []string{"", "a mark", "a mark of some bytes too many"} {
		_, err := raw.Write([]byte("\x04" + string(rune(7+len(mark))) + "\x04PING\x00\x00" + mark))
		must.Succeed(t, err)
		m, command, err := c.framing.readMessage()
		must.Succeed(t, err)
		if want := "\x04PONG" + mark[:min(16, len(mark))]; !command || string(m.Frames[0]) != want {
			t.Errorf("a PING with %q is answered by %q", mark, m.Frames[0])
		}
		m.Block.Release()
	}
}

// TestPeerThatTakesNothing has Close end a blocked Send.
func TestPeerThatTakesNothing(t *testing.T) {
	endpoint, peer := accepted(t, Transport{}.GreetAsPublisher)
	sub, err := func() (Subscription, error) {
		got := make(chan *Peer, 1)
		go func() { got <- peer() }()
		sub, err := Transport{}.Subscribe(t.Context(), endpoint)
		p := <-got
		var sent atomic.Int64
		ended := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				err = p.Send(bytes.Repeat([]byte{1}, 1<<20))
				sent.Add(1)
			}
			ended <- err
		}()
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for before := int64(-1); sent.Load() != before; <-pace.C { // until the system's buffers are full
			before = sent.Load()
		}
		p.Close()
		if err := <-ended; err == nil {
			t.Error("a closed peer takes messages")
		}
		return sub, err
	}()
	must.Succeed(t, err)
	sub.Close()
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	ln, err := Listen("ipc://" + path)
	must.Succeed(t, err)
	defer ln.Close()
	abandoned := filepath.Join(t.TempDir(), "abandoned")
	old, err := net.Listen("unix", abandoned)
	must.Succeed(t, err)
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	again, err := Listen("ipc://" + abandoned)
	must.Succeed(t, err)
	again.Close()
	for _, endpoint := range []string{"tcp://*:0", "tcp://127.0.0.1:0", "tcp://[::1]:0"} {
		ln, err := Listen(endpoint)
		must.Succeed(t, err)
		defer ln.Close()
		if ln.Addr().(*net.TCPAddr).Port == 0 {
			t.Errorf("Listen(%q) is at %s", endpoint, ln.Addr())
		}
	}
	for endpoint, want := range map[string]string{
		"ipc://" + path:     "cannot listen on",
		"udp://*:1":         "unsupported scheme",
		"tcp://host":        "is not host:port",
		"tcp://*:x":         "no valid port",
		"tcp://:0":          "names no host",
		"ipc://":            "names no socket path",
		"tcp://192.0.2.1:9": "cannot listen on",
	} {
		if _, err := Listen(endpoint); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("Listen(%q): %v", endpoint, err)
		}
	}
}
