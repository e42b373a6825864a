package zmq

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// connect starts a publisher that connects to us and waits for our subscription.
func connect(t *testing.T, address string) zmq4.Socket {
	t.Helper()
	pub := zmq4.NewPub(context.Background())
	if err := pub.Dial("tcp://" + address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pub.Close() })
	subscribed(t, pub)
	return pub
}

// lastByte stands for a decoder: the rank is the payload's last byte, 'x' is none.
func lastByte(p []byte) (int, bool) {
	if len(p) == 0 || p[len(p)-1] == 'x' {
		return 0, false
	}
	return int(p[len(p)-1] - '0'), true
}

func send(t *testing.T, pub zmq4.Socket, frames ...string) {
	t.Helper()
	var msg [][]byte
	for _, f := range frames {
		msg = append(msg, []byte(f))
	}
	if err := pub.Send(zmq4.NewMsgFrom(msg...)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, sub Subscription) string {
	t.Helper()
	frames, err := sub.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.Join(frames, []byte("|")))
}

// Messages of one socket reach the source whose pod, model and rank they name.
func TestSocketsDealOut(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{Rank: lastByte}
	endpoint := "bind:tcp://" + address
	open := func(c Claim) chan Subscription {
		opened := make(chan Subscription, 1)
		go func() {
			sub, err := s.For(c).Subscribe(t.Context(), endpoint)
			if err != nil {
				t.Error(err)
			}
			opened <- sub
		}()
		return opened
	}
	a0, a1, b := open(Claim{"a", "m@1", 0}), open(Claim{"a", "m@1", 1}), open(Claim{"b", "m@1", 3})
	until(t, "three claims", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.listeners[address]
		if l == nil {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.boxes) == 3
	})
	pub := connect(t, address)
	seq := strings.Repeat("\x00", 8)
	for _, m := range [][]string{
		{"kv@c@m@1", seq, "0"}, {"kv@a@m", seq, "0"}, {"", seq, "0"}, {"kv@a", seq, "0"}, {"kx@a@m@1", seq, "0"}, // nobody's
		{"kv@a@m@1", seq, "x0"}, {"kv@a@m@1\x00epoch=7", seq, "x1"}, {"kv@b@m@1", seq, "x"}, // no rank, one claim
		{"kv@a@m@1", seq, "2"},                             // a rank nobody claims
		{"kv@a@m@1", seq, "x"}, {"kv@a@m@1", "two frames"}, // no rank among several: rank 0
	} {
		send(t, pub, m...)
	}
	f := func(sub Subscription, want string) {
		t.Helper()
		if got := receive(t, sub); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	sub := <-a0
	f(sub, "x0")
	f(sub, "|x")
	f(sub, "two frames")
	f(<-a1, "epoch=7")
	f(<-b, "kv@b")
	n, topics := s.Strays()
	if n != 6 || len(topics) != 6 {
		t.Errorf("%d messages nobody claims, topics %q", n, topics)
	}

	// A newer connection takes over; what the older one still sends is dropped.
	second := connect(t, address)
	send(t, second, "kv@a@m@1", seq, "again0")
	if _, err := sub.Recv(); err == nil || !strings.Contains(err.Error(), "another connection") {
		t.Errorf("the older connection's subscription ends with %v", err)
	}
}

// The listener lives while a source does, and its address is free afterwards.
func TestSocketsShareAListener(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{}
	ctx, cancel := context.WithCancel(t.Context())
	one, two := s.For(Claim{Pod: "a"}), s.For(Claim{Pod: "b"})
	failed := make(chan error, 2)
	for _, src := range []*Source{one, two} {
		go func() {
			_, err := src.Subscribe(ctx, "bind:tcp://"+address)
			failed <- err
		}()
	}
	until(t, "the listener is up", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	// Another process cannot have it: an error that a retry may mend.
	_, err := (&Sockets{}).For(Claim{}).Subscribe(t.Context(), "bind:tcp://"+address)
	if err == nil || errors.As(err, new(*EndpointError)) {
		t.Errorf("a taken address: %v", err)
	}
	cancel()
	for range 2 {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("a source that is closed: %v", err)
		}
	}
	until(t, "the address is free", func() bool {
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
		}
		return err == nil
	})
}

// What does not fit is dropped for that source alone and is missing in sequence.
func TestMailboxIsBounded(t *testing.T) {
	b := &mailbox{news: make(chan struct{}, 1)}
	for i := range 2 * mailboxLen {
		b.put(1, [][]byte{{byte(i)}}, 1)
	}
	if len(b.queue) != mailboxLen || !b.full {
		t.Errorf("%d messages wait", len(b.queue))
	}
	b = &mailbox{news: make(chan struct{}, 1)}
	b.put(1, [][]byte{{1}}, mailboxBytes+1) // always fits into an empty one
	b.put(1, [][]byte{{2}}, 1)
	if len(b.queue) != 1 {
		t.Errorf("%d messages wait", len(b.queue))
	}
}

// Names are looked up for each attempt: a publisher that moves is found.
func TestMovedPublisher(t *testing.T) {
	var homes []string
	for range 2 {
		pub := zmq4.NewPub(context.Background())
		homes = append(homes, strings.TrimPrefix(listen(t, pub, "tcp://127.0.0.1:0"), "tcp://"))
	}
	at := 0
	tr := Transport{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != "engine.example:5557" {
			t.Errorf("dials %q", addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, homes[at])
	}}
	for at = range homes {
		sub, err := tr.Subscribe(t.Context(), "tcp://engine.example:5557")
		if err != nil {
			t.Fatal(err)
		}
		if got := sub.(*conn).raw.RemoteAddr().String(); got != homes[at] {
			t.Errorf("connected to %s, want %s", got, homes[at])
		}
		sub.Close()
	}
}
