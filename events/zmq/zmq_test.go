package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/internal/must"
)

// patience bounds what needs another party; nothing waits for it to pass.
const patience = 2 * time.Minute

// listen opens a socket of another ZeroMQ implementation's kind.
func listen(t *testing.T, s zmq4.Socket, endpoint string) string {
	t.Helper()
	if err := s.Listen(endpoint); err != nil {
		if strings.Contains(endpoint, "[::1]") {
			t.Skipf("no IPv6 here: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if strings.HasPrefix(endpoint, "ipc") {
		return endpoint
	}
	return "tcp://" + s.Addr().String()
}

// until polls for what another goroutine or process brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func subscribed(t *testing.T, pub zmq4.Socket) {
	t.Helper()
	until(t, "the publisher sees the subscription", func() bool {
		return len(pub.(zmq4.Topics).Topics()) > 0
	})
}

func text(frames [][]byte) string {
	return fmt.Sprintf("%q", frames)
}

func TestSubscribeReceives(t *testing.T) {
	for _, endpoint := range []string{
		"tcp://127.0.0.1:0",
		"tcp://[::1]:0",
		"ipc://" + filepath.Join(t.TempDir(), "kv.sock"),
	} {
		t.Run(endpoint[:6], func(t *testing.T) {
			pub := zmq4.NewPub(context.Background())
			endpoint := listen(t, pub, endpoint)
			sub, err := Transport{}.Subscribe(t.Context(), endpoint)
			must.Succeed(t, err)
			defer sub.Close()
			subscribed(t, pub)
			big := bytes.Repeat([]byte("x"), 1<<20)
			for _, topic := range []string{"", "kv-events", "kv@pod@model\x00epoch=1"} {
				want := [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, 7), big}
				must.Succeed(t, pub.Send(zmq4.NewMsgFrom(want...)))
				got, err := sub.Recv()
				if err != nil || len(got.Frames) != 3 || !bytes.Equal(bytes.Join(got.Frames, nil), bytes.Join(want, nil)) {
					t.Errorf("topic %q: got %d frames, %v", topic, len(got.Frames), err)
				}
			}
			pub.Close()
			if got, err := sub.Recv(); err == nil {
				t.Errorf("the publisher is gone, still received %s", text(got.Frames))
			}
		})
	}
}

// A ROUTER sees its peer's identity, the delimiter and the sequence, and
// answers to that identity.
func TestReplayAsksRouter(t *testing.T) {
	router := zmq4.NewRouter(context.Background())
	endpoint := listen(t, router, "tcp://127.0.0.1:0")
	replay, err := Transport{}.Replay(t.Context(), endpoint, 3)
	must.Succeed(t, err)
	defer replay.Close()
	request, err := router.Recv()
	must.Succeed(t, err)
	if f := request.Frames; len(f) != 3 || len(f[1]) != 0 || string(f[2]) != "\x00\x00\x00\x00\x00\x00\x00\x03" {
		t.Fatalf("the request is %s", text(f))
	}
	for _, reply := range [][]string{
		{"", "\x00\x00\x00\x00\x00\x00\x00\x03", "payload"},
		{"", "kv-events", "\x00\x00\x00\x00\x00\x00\x00\x04", "payload"},
		{"", "\xff\xff\xff\xff\xff\xff\xff\xff", ""},
	} {
		frames := [][]byte{request.Frames[0]}
		for _, s := range reply {
			frames = append(frames, []byte(s))
		}
		must.Succeed(t, router.Send(zmq4.NewMsgFrom(frames...)))
		got, err := replay.Recv()
		if err != nil || text(got.Frames) != text(frames[1:]) {
			t.Errorf("got %s %v, want %s", text(got.Frames), err, text(frames[1:]))
		}
	}
}

// peer is a raw server that does one thing to each client.
func peer(t *testing.T, serve func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	return "tcp://" + l.Addr().String()
}

// greet does a publisher's half of the handshake by hand.
func greet(c net.Conn, metadata string) {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	c.Write(g)
	c.Write(frame(flagCommand, "\x05READY"+metadata, 0))
}

const pubMetadata = "\x0bSocket-Type\x00\x00\x00\x03PUB\x08Identity\x00\x00\x00\x00"

// hello is bytes of a subscriber's greeting, READY and subscription.
const hello = greetingSize + 2 + len("\x05READY"+pubMetadata) + 3

// readAll reads what the client sends, until it has sent that many bytes.
func readAll(c net.Conn, n int) []byte {
	b := make([]byte, n)
	c.SetReadDeadline(time.Now().Add(patience))
	for got := 0; got < n; {
		k, err := c.Read(b[got:])
		if err != nil {
			return b[:got]
		}
		got += k
	}
	return b
}

func TestGiantFrame(t *testing.T) {
	f := func(limit int, raw []byte) {
		t.Helper()
		endpoint := peer(t, func(c net.Conn) {
			greet(c, pubMetadata)
			c.Write(raw)
			readAll(c, 1<<16) // until the client has had enough
		})
		sub, err := Transport{MaxMessage: limit}.Subscribe(t.Context(), endpoint)
		must.Succeed(t, err)
		defer sub.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := sub.Recv()
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "limit") {
			t.Errorf("got %d frames, %v", len(got.Frames), err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%d bytes allocated for a frame that was refused", n)
		}
	}
	f(0, frame(0, "", 1<<63))
	f(0, frame(0, "", 1<<62))
	f(0, append(frame(flagMore, "topic", 0), frame(0, "", maxSkipped)...))
	f(1000, frame(0, "", maxSkipped+1))
	f(0, frame(flagCommand, "", 1<<20))
}

func TestCommandsAreNoMessages(t *testing.T) {
	answer := make(chan []byte, 1)
	endpoint := peer(t, func(c net.Conn) {
		greet(c, pubMetadata)
		readAll(c, hello)
		c.Write(frame(flagCommand, "\x04PING\x00\x10context", 0))
		answer <- readAll(c, len(pingFrame+pongFrame)) // ours comes first
		c.Write(frame(flagCommand, "\x04PONG", 0))
		c.Write(frame(flagCommand, "\x07WHATNOT", 0))
		c.Write(frame(flagMore, "topic", 0))
		c.Write(frame(flagMore, "12345678", 0))
		c.Write(frame(0, "payload", 0))
		c.Write(frame(flagCommand, "", 0)) // malformed, ends the connection
		readAll(c, 1<<20)
	})
	sub, err := Transport{}.Subscribe(t.Context(), endpoint)
	must.Succeed(t, err)
	defer sub.Close()
	got, err := sub.Recv()
	if err != nil || text(got.Frames) != `["topic" "12345678" "payload"]` {
		t.Errorf("got %s %v", text(got.Frames), err)
	}
	if pong := <-answer; string(pong) != pingFrame+pongFrame {
		t.Errorf("a PING is answered with %q", pong)
	}
	if got, err := sub.Recv(); err == nil {
		t.Errorf("got %s", text(got.Frames))
	}
}

// Peers that cannot be talked to cost one attempt, never the process.
func TestBadHandshakes(t *testing.T) {
	f := func(want string, serve func(net.Conn)) {
		t.Helper()
		endpoint, patience := peer(t, serve), patience
		if want == "timeout" {
			patience = 200 * time.Millisecond
		}
		sub, err := Transport{HandshakeTimeout: patience}.Subscribe(t.Context(), endpoint)
		if err == nil {
			sub.Close()
			t.Errorf("connected, want something about %q", want)
			return
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("got %v, want something about %q", err, want)
		}
	}
	silent := func(c net.Conn) { readAll(c, 1<<20) }
	f("timeout", silent)
	f("timeout", func(c net.Conn) { c.Write(make([]byte, 10)); silent(c) })
	f("greetings", func(c net.Conn) { readAll(c, greetingSize) })
	f("port of HTTP?", func(c net.Conn) { c.Write([]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4))); silent(c) })
	f("port of replay, not of events", func(c net.Conn) { greet(c, "\x0bSocket-Type\x00\x00\x00\x06ROUTER"); silent(c) })
	f("signature", func(c net.Conn) { c.Write([]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4))); silent(c) })
	f("malformed", func(c net.Conn) { greet(c, "\x05abcd"); silent(c) })
	f("malformed", func(c net.Conn) { greet(c, "\x0bSocket-Type\x00\x00\x00\x05WRONG"); silent(c) })
	f("not compatible", func(c net.Conn) { greet(c, "\x0bSocket-Type\x00\x00\x00\x03REP"); silent(c) })
	f("limit", func(c net.Conn) {
		g := make([]byte, greetingSize)
		g[0], g[9], g[10] = 0xff, 0x7f, 3
		copy(g[12:], "NULL")
		c.Write(append(g, frame(flagCommand, "", 1<<40)...))
		silent(c)
	})
	f("metadata", func(c net.Conn) { greet(c, pubMetadata[:4]); readAll(c, hello-3) })
}

// TestReplayAtThePortOfEvents says so.
func TestReplayAtThePortOfEvents(t *testing.T) {
	for _, publisher := range []string{"\x03PUB", "\x04XPUB"} {
		endpoint := peer(t, func(c net.Conn) { greet(c, "\x0bSocket-Type\x00\x00\x00"+publisher); readAll(c, 1<<20) })
		_, err := Transport{}.Replay(t.Context(), endpoint, 0)
		if err == nil || !strings.Contains(err.Error(), "port of events, not of replay") {
			t.Errorf("%q: %v", publisher, err)
		}
	}
}

// A message that ends in the middle is an error, not a message.
func TestPeerDies(t *testing.T) {
	endpoint := peer(t, func(c net.Conn) {
		greet(c, pubMetadata)
		c.Write(frame(flagMore, "topic", 0))
		c.Write(frame(0, "half", 8))
		readAll(c, hello) // so that closing does not discard what was written
	})
	sub, err := Transport{}.Subscribe(t.Context(), endpoint)
	must.Succeed(t, err)
	defer sub.Close()
	if got, err := sub.Recv(); err == nil {
		t.Errorf("got %s", text(got.Frames))
	}
	if _, err := sub.Recv(); err == nil {
		t.Error("the connection is gone, Recv must say so again")
	}
}

func TestNobodyListens(t *testing.T) {
	if _, err := (Transport{}).Subscribe(t.Context(), "tcp://"+freeAddress(t)); err == nil {
		t.Error("connected to a closed port")
	}
	gone := filepath.Join(t.TempDir(), "gone.sock")
	if _, err := (Transport{}).Subscribe(t.Context(), "ipc://"+gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("connected to a missing socket: %v", err)
	}
}

// Whatever is blocked ends with its context or with Close, and nothing is left.
func TestNothingOutlives(t *testing.T) {
	before := runtime.NumGoroutine()
	f := func(blocked func(ctx context.Context, begun chan<- func()) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		begun, done := make(chan func(), 1), make(chan error, 1)
		go func() { done <- blocked(ctx, begun) }()
		end := <-begun
		if end == nil {
			end = cancel
		}
		end()
		select {
		case err := <-done:
			if err == nil {
				t.Error("ended without an error")
			}
		case <-time.After(patience):
			t.Error("still blocked")
		}
	}
	connected := make(chan struct{}, 1)
	silent := peer(t, func(c net.Conn) { connected <- struct{}{}; readAll(c, 1<<20) })
	idle := peer(t, func(c net.Conn) { greet(c, pubMetadata); readAll(c, 1<<20) })
	f(func(ctx context.Context, begun chan<- func()) error { // in the handshake
		go func() { <-connected; begun <- nil }()
		_, err := Transport{HandshakeTimeout: time.Hour}.Subscribe(ctx, silent)
		return err
	})
	f(func(ctx context.Context, begun chan<- func()) error { // in Recv, by context
		sub, err := Transport{}.Subscribe(ctx, idle)
		if err != nil {
			return err
		}
		begun <- nil
		_, err = sub.Recv()
		return err
	})
	f(func(ctx context.Context, begun chan<- func()) error { // in Recv, by Close
		sub, err := Transport{}.Subscribe(ctx, idle)
		if err != nil {
			return err
		}
		begun <- func() { sub.Close(); sub.Close() }
		_, err = sub.Recv()
		return err
	})
	f(func(ctx context.Context, begun chan<- func()) error { // before it began
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		begun <- nil
		_, err := Transport{}.Subscribe(ctx, idle)
		return err
	})
	// Two servers accept, and their last connections may still be winding down.
	until(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
}
