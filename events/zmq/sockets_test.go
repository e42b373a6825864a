package zmq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	must.Succeed(t, err)
	return address
}

// connect starts a publisher that connects to us and waits for our subscription.
func connect(t *testing.T, address string) zmq4.Socket {
	t.Helper()
	pub := zmq4.NewPub(context.Background())
	must.Succeed(t, pub.Dial("tcp://"+address))
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
	must.Succeed(t, pub.Send(zmq4.NewMsgFrom(msg...)))
}

func receive(t *testing.T, sub Subscription) string {
	t.Helper()
	m, err := sub.Recv()
	must.Succeed(t, err)
	defer m.Block.Release()
	return string(bytes.Join(m.Frames, []byte("|")))
}

// claims returns the claims of an address.
func claims(s *Sockets, address string) (all []Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[address]
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		all = append(all, b.claim)
	}
	return all
}

// claimed waits until n sources have claimed messages of an address.
func claimed(t *testing.T, s *Sockets, address string, n int) {
	t.Helper()
	until(t, "the claims", func() bool { return len(claims(s, address)) == n })
}

// Messages of one socket reach the source whose pod, model and rank they name.
func TestSocketsDealOut(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{Rank: lastByte}
	endpoint := "bind:tcp://" + address
	open := func(c Claim) chan Subscription {
		opened := make(chan Subscription, 1)
		go func() {
			sub, err := s.TransportFor(c, nil).Subscribe(t.Context(), endpoint)
			must.Report(t, err)
			opened <- sub
		}()
		return opened
	}
	a0, a1, b := open(Claim{"a", "m@1", 0}), open(Claim{"a", "m@1", 1}), open(Claim{"b", "m@1", 3})
	at, deep := open(Claim{"p@3", "m", 0}), open(Claim{"p@10.0.0.1", "org/m@main", 0}) // instances that have an @ too
	claimed(t, s, address, 5)
	pub := connect(t, address)
	seq := strings.Repeat("\x00", 8)
	for _, m := range [][]string{
		{"kv@c@m@1", seq, "0"}, {"kv@a@m", seq, "0"}, {"", seq, "0"}, {"kv@a", seq, "0"}, {"kx@a@m@1", seq, "0"}, // without a claim
		{"kv@a@m@1", seq, "x0"}, {"kv@a@m@1\x00epoch=7", seq, "x1"}, {"kv@b@m@1", seq, "x"}, // no rank, one claim
		{"kv@a@m@1", seq, "2"}, // a rank that no source claims
		{"kv@p@3@m", seq, "at0"}, {"kv@p@10.0.0.1@org/m@main", seq, "deep0"},
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
	f(<-at, "at0")
	f(<-deep, "deep0")
	n, strays := s.ListStrays()
	if n != 6 || len(strays) != 6 {
		t.Errorf("%d messages without a source, topics %+v", n, strays)
	}
	for _, stray := range strays {
		want, at := 0, "kv@c@m@1 kv@a@m  kv@a kx@a@m@1"
		if stray.Topic == "kv@a@m@1" {
			want, at = 2, stray.Topic
		}
		if stray.Rank != want || !strings.Contains(at, stray.Topic) || stray.Endpoint != endpoint ||
			!strings.HasPrefix(stray.From, "127.0.0.1:") ||
			stray.Messages != 1 || stray.At.IsZero() || len(stray.Claims) != 5 {
			t.Errorf("a topic without a source is %+v", stray)
		}
	}
}

// TestStraysBounded sends topics of a stranger's choice: few are remembered, cut, and one that comes
// again and again stays until a source claims it.
func TestStraysBounded(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{Rank: lastByte}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	join := func(c Claim) {
		go s.TransportFor(c, nil).Subscribe(ctx, "bind:tcp://"+address)
		until(t, "the claim", func() bool { return slices.Contains(claims(s, address), c) })
	}
	join(Claim{"a", "m", 0})
	pub, seq := connect(t, address), strings.Repeat("\x00", 8)
	for range 3 {
		send(t, pub, "kv@10.0.0.1@m", seq, "0")
	}
	for i := range 100 {
		send(t, pub, strconv.Itoa(i)+strings.Repeat("x", 1000), seq, "0")
	}
	until(t, "the messages", func() bool { n, _ := s.ListStrays(); return n == 103 })
	find := func() (total int, found Stray) {
		_, all := s.ListStrays()
		for _, one := range all {
			if len(one.Topic) > maxStrayTopic {
				t.Errorf("a topic of %d bytes is kept", len(one.Topic))
			}
			if one.Topic == "kv@10.0.0.1@m" {
				found = one
			}
		}
		return len(all), found
	}
	if n, engine := find(); n != 16 || engine.Messages != 3 || engine.Rank != 0 {
		t.Errorf("%d topics are remembered, that of the engine is %+v", n, engine)
	}
	join(Claim{"10.0.0.1", "m", 0})
	if n, engine := find(); n != 15 || engine.Messages != 0 {
		t.Errorf("a topic is unclaimed after its source was registered: %d, %+v", n, engine)
	}
}

// A source is its first connection's while that lasts: another one that sends in its name
// neither ends the subscription nor mutes the publisher.
func TestSocketsRefuseSecondConnection(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{Rank: lastByte}
	src := s.TransportFor(Claim{"a", "m", 0}, nil)
	subs := make(chan Subscription, 1)
	open := func() {
		go func() {
			sub, err := src.Subscribe(t.Context(), "bind:tcp://"+address)
			must.Report(t, err)
			subs <- sub
		}()
	}
	open()
	until(t, "the listener is up", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.listeners[address] != nil
	})
	seq := strings.Repeat("\x00", 8)
	honest := connect(t, address)
	send(t, honest, "kv@a@m", seq, "one0")
	sub := <-subs
	f := func(want string) {
		t.Helper()
		if got := receive(t, sub); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f("one0")
	forger := connect(t, address)
	for range 3 {
		send(t, forger, "kv@a@m", seq, "forged0")
	}
	until(t, "forged messages are counted", func() bool { n, _ := src.Refused(); return n == 3 })
	send(t, honest, "kv@a@m", seq, "two0")
	f("two0")
	if n, _ := s.ListStrays(); n != 0 {
		t.Errorf("%d messages count as unclaimed", n)
	}
	if _, by := src.Refused(); !strings.HasPrefix(by, "127.0.0.1:") {
		t.Errorf("refused from %q", by)
	}
	forger.Close()
	send(t, honest, "kv@a@m", seq, "three0")
	f("three0")

	// The source is free again once the connection has ended.
	honest.Close()
	if _, err := sub.Recv(); err == nil || !strings.Contains(err.Error(), "disconnected") {
		t.Errorf("the subscription ends with %v", err)
	}
	open()
	again := connect(t, address)
	until(t, "the next connection has the source", func() bool {
		send(t, again, "kv@a@m", seq, "four0")
		select {
		case sub = <-subs:
			return true
		default:
			return false
		}
	})
	f("four0")
}

// A message over the limit goes to the source that its connection holds, as its rank is not read. It goes to
// none while the connection holds no source, or several, as behind a forwarder.
func TestSocketsDealOutOversize(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{Rank: lastByte, Transport: Transport{MaxMessage: 1000}}
	var subs [2]Subscription
	var opening sync.WaitGroup
	for rank := range subs {
		opening.Go(func() {
			sub, err := s.TransportFor(Claim{"a", "m", rank}, nil).Subscribe(t.Context(), "bind:tcp://"+address)
			must.Report(t, err)
			subs[rank] = sub
		})
	}
	claimed(t, s, address, 2)
	pub := connect(t, address)
	seq := strings.Repeat("\x00", 8)
	large := strings.Repeat("x", 5000)
	for _, payload := range []string{large, "first 1", large, "last 1", "first 0", large, "last 0", "end 1"} {
		send(t, pub, "kv@a@m", seq, payload)
	}
	opening.Wait()
	for rank, payloads := range [][]string{{"first 0", "last 0"}, {"first 1", large[:keptBeginning], "last 1", "end 1"}} {
		for _, want := range payloads {
			if got := receive(t, subs[rank]); got != "kv@a@m|"+seq+"|"+want {
				t.Errorf("rank %d got %q, want %q", rank, got, want)
			}
		}
	}
	if n, _ := s.ListStrays(); n != 2 {
		t.Errorf("%d messages are no source's, want 2", n)
	}
}

// The listener lives while a source does, and its address is free afterwards.
func TestSocketsShareAListener(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{}
	ctx, cancel := context.WithCancel(t.Context())
	one, two := s.TransportFor(Claim{Pod: "a"}, nil), s.TransportFor(Claim{Pod: "b"}, nil)
	failed := make(chan error, 2)
	for _, src := range []*Source{one, two} {
		go func() {
			_, err := src.Subscribe(ctx, "bind:tcp://"+address)
			failed <- err
		}()
	}
	claimed(t, s, address, 2)
	// Another process cannot have it: an error that a retry may mend.
	_, err := (&Sockets{}).TransportFor(Claim{}, nil).Subscribe(t.Context(), "bind:tcp://"+address)
	if err == nil || errors.As(err, new(*endpointError)) {
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

// A full mailbox stops the connection that fills it until there is room, or nothing to
// wait for.
func TestMailboxIsBounded(t *testing.T) {
	f := func(sizes []int, fits int, end func(*mailbox), queued int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := newMailbox(t.Context(), Claim{}, nil)
			done := 0
			go func() {
				for i, size := range sizes {
					b.putMessage(1, payload.Of([]byte{byte(i)}), size)
					done++
				}
			}()
			synctest.Wait()
			if done != fits || len(b.queue) != fits {
				t.Errorf("%d messages of %d are put, %d wait", done, len(sizes), len(b.queue))
			}
			end(b)
			synctest.Wait()
			if done != len(sizes) || len(b.queue) != queued {
				t.Errorf("in the end %d messages are put, %d wait", done, len(b.queue))
			}
		})
	}
	many := make([]int, mailboxLen+3)
	take := func(b *mailbox) {
		for range 3 {
			if d, ok, _ := b.takeFirst(1); !ok || d.isEnd() {
				t.Error("nothing to take")
			}
			synctest.Wait()
		}
	}
	f(many, mailboxLen, take, mailboxLen)
	f(many, mailboxLen, (*mailbox).close, 0)
	f([]int{mailboxBytes + 1, 1, 1, 1}, 1, take, 1) // any size fits into an empty one
	// The end of a connection comes behind its messages, and those of the next one behind it.
	f(many, mailboxLen, func(b *mailbox) {
		take(b)
		b.putEnd(1, io.EOF)
		go b.putMessage(2, payload.Of([]byte{2}), 1)
		synctest.Wait()
		if last := b.queue[len(b.queue)-1]; !last.isEnd() {
			t.Error("a full mailbox takes a message")
		}
		for {
			if _, ok, other := b.takeFirst(1); other || !ok {
				break
			}
		}
		synctest.Wait()
		if d, _, other := b.takeFirst(1); d.isEnd() || !other {
			t.Error("the message of the next connection is not the next one")
		}
	}, 1)
}

// Sources of one connection are throttled together; one that leaves lets go, and
// another connection is not concerned.
func TestSharedConnectionIsThrottled(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{}
	subscribe := func(ctx context.Context, pod string) chan Subscription {
		opened := make(chan Subscription, 1)
		go func() {
			if sub, err := s.TransportFor(Claim{Pod: pod, Model: "m"}, nil).Subscribe(ctx, "bind:tcp://"+address); err == nil {
				opened <- sub
			}
		}()
		return opened
	}
	leave, cancel := context.WithCancel(t.Context())
	slow, fellow, other := subscribe(leave, "slow"), subscribe(t.Context(), "fellow"), subscribe(t.Context(), "other")
	claimed(t, s, address, 3)
	shared, alone := connect(t, address), connect(t, address)
	seq, big := strings.Repeat("\x00", 8), strings.Repeat("x", 1<<20)
	for range mailboxBytes>>20 + 2 {
		send(t, shared, "kv@slow@m", seq, big)
	}
	send(t, shared, "kv@fellow@m", seq, "late")
	send(t, alone, "kv@other@m", seq, "now")
	receive(t, <-other)
	<-slow
	l := s.listeners[address]
	box := l.topics["kv@slow@m"][0][0]
	until(t, "the mailbox is full", func() bool {
		box.mu.Lock()
		defer box.mu.Unlock()
		return box.bytes+len(big) > mailboxBytes
	})
	select {
	case <-fellow:
		t.Error("a message passes one that waits")
	default:
	}
	cancel()
	if got := receive(t, <-fellow); !strings.HasSuffix(got, "late") {
		t.Errorf("got %q", got)
	}
}

// A source that subscribes again at once follows what comes from then on, whether its
// former claim has ended or is about to.
func TestSubscribeAgainAtOnce(t *testing.T) {
	address := freeAddress(t)
	s := &Sockets{}
	src, stays := s.TransportFor(Claim{Pod: "a", Model: "m"}, nil), s.TransportFor(Claim{Pod: "b", Model: "m"}, nil)
	go stays.Subscribe(t.Context(), "bind:tcp://"+address) // keeps the listener
	seq := strings.Repeat("\x00", 8)
	var pub zmq4.Socket
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan Subscription, 1)
		go func() {
			sub, err := src.Subscribe(ctx, "bind:tcp://"+address)
			must.Report(t, err)
			opened <- sub
		}()
		until(t, "the listener is up", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.listeners[address] != nil
		})
		if pub == nil {
			pub = connect(t, address)
		}
		var sub Subscription
		until(t, "a message arrives", func() bool {
			send(t, pub, "kv@a@m", seq, "x")
			select {
			case sub = <-opened:
			default:
			}
			return sub != nil
		})
		receive(t, sub)
		cancel()
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
		must.Succeed(t, err)
		if got := sub.(*conn).heartbeats.Conn.RemoteAddr().String(); got != homes[at] {
			t.Errorf("connected to %s, want %s", got, homes[at])
		}
		sub.Close()
	}
}

// Mailboxes share one bound: a full one leaves room for another, and a source that leaves
// gives its part back.
func TestMailboxesShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := payload.NewMemory(64 << 10)
		waiting := func() int64 { n, _ := memory.Used(); return n }
		fill := func() (*mailbox, *int) {
			b, n := newMailbox(t.Context(), Claim{}, memory), new(int)
			go func() {
				for range 100 {
					b.putMessage(1, payload.Of(make([]byte, 1000)), 1000)
					*n++
				}
			}()
			synctest.Wait()
			return b, n
		}
		hog, first := fill()
		late, second := fill()
		if *first > 25 || *first < 20 || *second < 4 {
			t.Errorf("%d and %d messages of 1 KB are in 32 KiB", *first, *second)
		}
		hog.close()
		for *second < 100 {
			if _, ok, _ := late.takeFirst(1); !ok {
				t.Fatalf("the mailbox is empty behind %d messages", *second)
			}
			synctest.Wait()
		}
		if late.close(); *first != 100 || waiting() != 0 {
			t.Errorf("%d messages are put, %d bytes are counted in the end", *first, waiting())
		}
	})
}
