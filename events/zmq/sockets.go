package zmq

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/reach"
)

// Sockets opens connections like Transport, and listens where publishers connect
// to us: an endpoint "bind:tcp://*:5557". All sources of one such endpoint share
// its listener, which lives while one of them does.
//
//	accept --> reader per connection --> deal: topic kv@Pod@Model, rank
//	                                       |
//	                    source A: mailbox <+> mailbox: source B
//	                                |
//	       Subscribe (waits for a first message) --> Recv, Recv, ... of one connection
//
// A claim is held by the first connection that sends for it, until that connection ends.
// Messages of other connections are refused and counted for the source. So a source sees
// one connection at a time, as if it had dialed it, and no other publisher can end its
// subscription or speak in its name. The next connection that sends holds the claim then.
//
// A full mailbox stops the connection that fills it, with all sources that its publisher
// sends for, until the source has read on, is closed or paused. Every mailbox belongs to a
// source that has subscribed, so none stops a connection for good.
type Sockets struct {
	Transport
	// Rank finds the data-parallel rank a payload names; when nil, none does.
	Rank func(payload []byte) (rank int, named bool)

	mu        sync.Mutex
	listeners map[string]*listener // by address
	unclaimed uint64               // messages no source wants, of listeners that are closed

	pingRefusers pingRefusers
}

// Claim says which messages of a shared socket are a source's: those of topic
// kv@Pod@Model (engine-events 1.2) that carry the data-parallel rank. A message
// that names no rank is of rank 0, or of the only rank claimed. Topics are compared
// as a whole, because pods and models may have an @ in their names. So several claims
// can have one topic: then each of them gets its messages. A claim also gets those of other
// ranks of its topic that its connection numbers together with its own: see numbering.go.
type Claim struct {
	Pod, Model string
	Rank       int
}

// Topic returns the topic of the messages.
func (c Claim) Topic() string { return "kv@" + c.Pod + "@" + c.Model }

// ClaimsOf returns the claims whose topic a topic is, one for each @ at which it can be cut into a pod and a model;
// none if it is not kv@Pod@Model.
func ClaimsOf(topic string, rank int) (all []Claim) {
	names, ok := strings.CutPrefix(topic, "kv@")
	for i := 1; ok && i < len(names)-1; i++ {
		if names[i] == '@' {
			all = append(all, Claim{names[:i], names[i+1:], rank})
		}
	}
	return all
}

const (
	// bindScheme begins the endpoints where publishers connect to us.
	bindScheme = "bind:"
	// A fleet of publishers, and room for connections that linger.
	maxAccepted = 8192
	// A mailbox bridges the time a stream takes between two subscriptions; the stream has
	// a queue of its own.
	mailboxLen   = 1024
	mailboxBytes = 8 << 20
	// maxStrays bounds the topics of one address that no source claims and that are remembered,
	// maxStrayTopic the bytes of one: no source has a longer topic, because names have at most 256 bytes.
	maxStrays     = 16
	maxStrayTopic = len("kv@@") + 2*256
)

// TransportFor returns the transport of one source. Rules say which endpoints it may have; nil is all.
func (s *Sockets) TransportFor(c Claim, rules *reach.Rules) *Source {
	t := s.Transport
	t.Reach, t.pingRefusers = rules, &s.pingRefusers
	return &Source{sockets: s, transport: t, claim: c}
}

// Source is the transport of one source. Its methods are those of Transport.
type Source struct {
	sockets   *Sockets
	transport Transport
	claim     Claim

	refusals refusals

	mu  sync.Mutex
	box *mailbox // of the endpoint subscribed to, nil if none was bound; or closed
}

// refusals are the messages that other connections sent for a source.
type refusals struct {
	mu       sync.Mutex
	messages uint64   // guarded by mu
	by       net.Addr // of the last message; guarded by mu
}

func (r *refusals) countRefusal(by net.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages, r.by = r.messages+1, by
}

// Refused returns how many messages for the source came over another connection than the
// one that it follows, and the address that sent the last of them.
func (s *Source) Refused() (messages uint64, by string) {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	if s.refusals.by != nil {
		by = s.refusals.by.String()
	}
	return s.refusals.messages, by
}

// Subscribe dials, or waits until a publisher sends something that is claimed.
// The claim stands until ctx ends, so nothing is lost between two subscriptions.
func (s *Source) Subscribe(ctx context.Context, endpoint string) (Subscription, error) {
	address, bound := strings.CutPrefix(endpoint, bindScheme)
	if !bound {
		return s.transport.Subscribe(ctx, endpoint)
	}
	if err := CheckReach(s.transport.Reach, endpoint); err != nil {
		return nil, err
	}
	box, err := s.joinListener(ctx, endpoint, address)
	if err != nil {
		return nil, err
	}
	return box.awaitConnection(ctx)
}

// Replay asks a publisher's replay service, which is dialed in any case.
func (s *Source) Replay(ctx context.Context, endpoint string, from uint64) (Subscription, error) {
	return s.transport.Replay(ctx, endpoint, from)
}

// joinListener claims the source's messages once, for as long as ctx lives.
func (s *Source) joinListener(ctx context.Context, endpoint, address string) (*mailbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.box != nil && s.box.ctx.Err() == nil {
		return s.box, nil
	}
	_, addr, err := splitBound(endpoint)
	if err != nil {
		return nil, err
	}
	box := newMailbox(ctx, s.claim, s.sockets.Memory)
	box.refusals = &s.refusals
	l, err := s.sockets.openListener(addr, box)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", address, err)
	}
	s.box = box
	context.AfterFunc(ctx, func() {
		s.sockets.leaveListener(l, box)
		s.mu.Lock()
		if s.box == box {
			s.box = nil
		}
		s.mu.Unlock()
	})
	return box, nil
}

// openListener adds a mailbox to the listener of an address, opening it when new.
func (s *Sockets) openListener(addr string, box *mailbox) (*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[addr]
	if l == nil {
		ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(context.Background(), "tcp", addr)
		if err != nil {
			return nil, err
		}
		t := s.Transport
		t.pingRefusers = &s.pingRefusers
		l = newListener(t, s.Rank, addr, ln)
		if s.listeners == nil {
			s.listeners = make(map[string]*listener)
		}
		s.listeners[addr] = l
	}
	l.addMailbox(box)
	return l, nil
}

// leaveListener removes a mailbox, and the listener with its last.
func (s *Sockets) leaveListener(l *listener, box *mailbox) {
	box.close()
	s.mu.Lock()
	last := l.removeMailbox(box)
	if last {
		delete(s.listeners, l.addr)
	}
	s.mu.Unlock()
	if last {
		l.close()
		s.mu.Lock()
		s.unclaimed += l.unclaimed.Load()
		s.mu.Unlock()
	}
}

// NoRank is the rank of messages that name none.
const NoRank = -1

// Stray is a topic and rank that publishers send to a shared socket and no source claims.
type Stray struct {
	Endpoint string // where it came, as a registration names it
	Topic    string // as sent, of its first 516 bytes
	Rank     int    // that the batches name, NoRank for none
	From     string // address of the publisher that sent the last message
	Messages uint64
	At       time.Time // of the last message
	Claims   []Claim   // of all sources with the endpoint; shared, not to be changed
}

// ListStrays returns how many messages arrived on shared sockets that no source claims, and the topics
// with most of them, at most 16 for each address. The number includes messages that were delivered
// once it turned out that they are numbered together with claimed ones.
func (s *Sockets) ListStrays() (messages uint64, all []Stray) {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages = s.unclaimed
	for _, l := range s.listeners {
		messages += l.unclaimed.Load()
		all = append(all, l.listStrays()...)
	}
	return messages, all
}

// mailbox is what arrived for one source.
type mailbox struct {
	ctx      context.Context // ends with the claim
	claim    Claim
	subject  subject       // of the claim
	news     chan struct{} // capacity 1: something arrived
	refusals *refusals     // of the source

	mu     sync.Mutex
	room   sync.Cond // on mu: there may be room, or nothing to wait for any more
	queue  []delivery
	bytes  int
	share  payload.Share
	closed bool // the source has left
}

func newMailbox(ctx context.Context, c Claim, m *payload.Memory) *mailbox {
	b := &mailbox{ctx: ctx, claim: c, subject: subject{c.Topic(), c.Rank}, news: make(chan struct{}, 1), share: m.LiveShare()}
	b.room.L = &b.mu
	return b
}

// close makes put drop everything, as the source has left.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.queue, b.bytes = true, nil, 0
	b.share.Set(0, 0)
	b.room.Broadcast()
}

// delivery is one message, or the end of a connection when that has no frames.
type delivery struct {
	conn    uint64 // ascending in order of connecting
	message payload.Message
	size    int
	why     error // of the end of a connection: its last error
}

func (d *delivery) isEnd() bool { return d.message.Frames == nil }

// putMessage queues a message and waits for room. It drops everything once the source has left.
// It owns the block of the message.
func (b *mailbox) putMessage(conn uint64, m payload.Message, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && !b.hasRoom(size) {
		b.room.Wait()
	}
	if !b.closed {
		b.appendDelivery(delivery{conn: conn, message: m, size: size})
	}
}

// hasRoom reports whether a message has room. It always fits into an empty mailbox.
func (b *mailbox) hasRoom(size int) bool {
	return len(b.queue) == 0 || len(b.queue) < mailboxLen && b.bytes+size <= mailboxBytes && b.share.Fits(size)
}

// putEnd queues the end of a connection that held the claim.
func (b *mailbox) putEnd(conn uint64, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.appendDelivery(delivery{conn: conn, why: why})
	}
}

func (b *mailbox) appendDelivery(d delivery) {
	b.queue = append(b.queue, d)
	b.bytes += d.size
	b.share.Set(len(b.queue), b.bytes)
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// takeFirst removes the first delivery if it is of a connection, or any's message when
// conn is 0.
func (b *mailbox) takeFirst(conn uint64) (d delivery, ok, other bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if conn == 0 { // ends of connections without a subscription
		for len(b.queue) > 0 && b.queue[0].isEnd() {
			b.queue = b.queue[1:]
		}
	}
	if len(b.queue) == 0 {
		return d, false, false
	}
	if d = b.queue[0]; conn != 0 && d.conn != conn {
		return d, false, true
	}
	if conn != 0 {
		b.queue[0] = delivery{}
		b.queue = b.queue[1:]
		b.bytes -= d.size
		b.share.Set(len(b.queue), b.bytes)
		b.room.Signal()
	}
	return d, true, false
}

// awaitConnection waits for a first message and subscribes to its connection.
func (b *mailbox) awaitConnection(ctx context.Context) (Subscription, error) {
	for {
		if d, ok, _ := b.takeFirst(0); ok {
			return &mailboxSubscription{box: b, conn: d.conn, done: make(chan struct{})}, nil
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mailboxSubscription is one connection as its source sees it.
type mailboxSubscription struct {
	box  *mailbox
	conn uint64
	once sync.Once
	done chan struct{}
}

func (l *mailboxSubscription) Recv() (payload.Message, error) {
	for {
		select {
		case <-l.done:
			return payload.Message{}, net.ErrClosed
		default:
		}
		d, ok, other := l.box.takeFirst(l.conn)
		switch {
		case other:
			return payload.Message{}, fmt.Errorf("another connection delivers for %s", l.box.claim)
		case ok && d.isEnd():
			return payload.Message{}, fmt.Errorf("the publisher of %s has disconnected: %w", l.box.claim, d.why)
		case ok:
			return d.message, nil
		}
		select {
		case <-l.box.news:
		case <-l.done:
		}
	}
}

func (l *mailboxSubscription) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// String is the topic and rank claimed.
func (c Claim) String() string { return fmt.Sprintf("%s rank %d", c.Topic(), c.Rank) }
