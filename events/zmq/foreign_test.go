package zmq

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/transport"

	"kvconductor/internal/must"
)

// otherHost dials from another address of loopback, as a publisher on another host does.
type otherHost struct{}

func (otherHost) Dial(ctx context.Context, _ transport.Dialer, addr string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, "tcp", addr)
}
func (otherHost) Listen(context.Context, string) (net.Listener, error) {
	return nil, net.ErrClosed
}
func (otherHost) Addr(ep string) (string, error) { return ep, nil }

var registerOtherHost = sync.OnceValue(func() error { return zmq4.RegisterTransport("other-host", otherHost{}) })

// TestSocketsForeignHost lets a publisher on another host write under the claim of a source. The source
// goes on with its own publisher, the messages are counted, and once that publisher is gone the
// source follows the other host: pods move.
func TestSocketsForeignHost(t *testing.T) {
	must.Succeed(t, registerOtherHost())
	address := freeAddress(t)
	s := &Sockets{}
	victim := s.For(Claim{Pod: "a", Model: "m"}, nil)
	opened := make(chan Subscription)
	subscribe := func() {
		sub, err := victim.Subscribe(t.Context(), "bind:tcp://"+address)
		must.Report(t, err)
		opened <- sub
	}
	go subscribe()
	until(t, "the listener is up", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.listeners) == 1
	})
	seq := strings.Repeat("\x00", 8)
	own := connect(t, address)
	send(t, own, "kv@a@m", seq, "one")
	sub := <-opened
	if got := receive(t, sub); !strings.Contains(got, "one") {
		t.Fatalf("got %q", got)
	}

	attacker := zmq4.NewPub(context.Background())
	t.Cleanup(func() { attacker.Close() })
	must.Succeed(t, attacker.Dial("other-host://"+address))
	subscribed(t, attacker)
	send(t, attacker, "kv@a@m", seq, "forged")
	send(t, attacker, "kv@a@m", seq, "forged again")
	until(t, "forged messages are not counted", func() bool { return s.Foreign() == 2 })
	send(t, own, "kv@a@m", seq, "two")
	if got := receive(t, sub); !strings.Contains(got, "two") {
		t.Errorf("the own publisher is muted: %q", got)
	}

	must.Succeed(t, own.Close())
	if _, err := sub.Recv(); err == nil || !strings.Contains(err.Error(), "disconnected") {
		t.Errorf("the subscription ends with %v", err)
	}
	go subscribe()
	send(t, attacker, "kv@a@m", seq, "moved")
	if got := receive(t, <-opened); !strings.Contains(got, "moved") {
		t.Errorf("a publisher that moved: %q", got)
	}
	if s.Foreign() != 2 {
		t.Errorf("%d foreign messages", s.Foreign())
	}
}
