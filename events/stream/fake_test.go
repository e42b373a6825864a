package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"kvconductor/events"
	"kvconductor/events/payload"
)

var errCut = errors.New("connection cut")

// fakeConn is a subscription fed by a fakePublisher.
type fakeConn struct {
	messages chan [][]byte
	gone     chan struct{}
	once     sync.Once
}

func newFakeConn() *fakeConn {
	return &fakeConn{messages: make(chan [][]byte, 1<<16), gone: make(chan struct{})}
}

// Recv delivers what was sent before the connection was cut, then fails.
func (c *fakeConn) Recv() (payload.Message, error) {
	select {
	case m := <-c.messages:
		return pooled(m), nil
	default:
	}
	select {
	case m := <-c.messages:
		return pooled(m), nil
	case <-c.gone:
		return payload.Message{}, errCut
	}
}

// pooled copies frames into a block, which is used again as that of a real connection.
func pooled(frames [][]byte) (m payload.Message) {
	if frames == nil {
		return m
	}
	m.Block = payload.Take(len(bytes.Join(frames, nil)))
	at := 0
	for _, f := range frames {
		n := copy(m.Block.Bytes[at:], f)
		m.Frames = append(m.Frames, m.Block.Bytes[at:at+n])
		at += n
	}
	return m
}

func (c *fakeConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return nil
}

func (c *fakeConn) send(frames ...[]byte) {
	select {
	case <-c.gone:
	default:
		c.messages <- frames
	}
}

// fakePublisher is a publisher with a ring, and the transport to it.
type fakePublisher struct {
	firstSeq uint64
	ring     int    // batches kept
	hwm      int    // live messages queued for a connection, more are dropped
	topic    string // of live messages and of layout B
	layoutB  bool
	bare     bool               // leave the delimiter out
	id       events.PublisherID // behind the sequence, zero is none
	anon     uint64             // of every anon messages one leaves it out, 0 for none

	// Hooks, called with mu held; nil is a faultless transport.
	onSubscribe func(ctx context.Context) error
	// onReplay may change the replies, end marker included; nil leaves the
	// request unanswered.
	onReplay func(from uint64, replies [][][]byte) [][][]byte

	mu       sync.Mutex
	history  [][]byte // payloads of this lifetime
	live     map[*fakeConn]bool
	asked    []uint64 // what replays were asked for
	replays  map[*fakeConn]bool
	attempts int // to subscribe
}

func newFakePublisher() *fakePublisher {
	return &fakePublisher{ring: 10000, hwm: 1 << 16, live: make(map[*fakeConn]bool), replays: make(map[*fakeConn]bool)}
}

func be(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func (p *fakePublisher) Subscribe(ctx context.Context, _ string) (Subscription, error) {
	p.mu.Lock()
	hook := p.onSubscribe
	p.attempts++
	p.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := newFakeConn()
	p.live[c] = true
	return c, nil
}

func (p *fakePublisher) Replay(_ context.Context, _ string, from uint64) (Subscription, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, from)
	var replies [][][]byte
	for i := max(0, len(p.history)-p.ring); i < len(p.history); i++ {
		if seq := p.firstSeq + uint64(i); seq >= from {
			replies = append(replies, p.reply(seq, p.history[i]))
		}
	}
	end := [][]byte{{}, be(endSeq), {}}
	if p.layoutB {
		end = [][]byte{{}, {}, be(endSeq), {}}
	}
	if p.bare {
		end = end[1:]
	}
	replies = append(replies, end)
	if p.onReplay != nil {
		replies = p.onReplay(from, replies)
	}
	c := newFakeConn()
	p.replays[c] = true
	for _, r := range replies {
		c.send(r...)
	}
	return c, nil
}

func (p *fakePublisher) reply(seq uint64, payload []byte) [][]byte {
	f := [][]byte{{}, p.number(seq), payload}
	if p.layoutB {
		f = [][]byte{{}, []byte(p.topic), p.number(seq), payload}
	}
	if p.bare {
		f = f[1:]
	}
	return f
}

// number is the sequence frame of a batch.
func (p *fakePublisher) number(seq uint64) []byte {
	if p.id == (events.PublisherID{}) || p.anon > 0 && seq%p.anon == p.anon-1 {
		return be(seq)
	}
	return append(be(seq), p.id[:]...)
}

// publish adds a batch and sends it to the subscribers.
func (p *fakePublisher) publish(payload string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.record(payload)
	for c := range p.live {
		if len(c.messages) < p.hwm {
			c.send([]byte(p.topic), p.number(seq), []byte(payload))
		}
	}
}

// record adds a batch that no subscriber gets. mu is held.
func (p *fakePublisher) record(payload string) uint64 {
	p.history = append(p.history, []byte(payload))
	return p.firstSeq + uint64(len(p.history)-1)
}

// lose adds batches that no subscriber gets.
func (p *fakePublisher) lose(payloads ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range payloads {
		p.record(s)
	}
}

// raw sends frames as they are.
func (p *fakePublisher) raw(frames ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.live {
		var f [][]byte
		for _, s := range frames {
			f = append(f, []byte(s))
		}
		c.send(f...)
	}
}

// cut breaks all connections.
func (p *fakePublisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

func (p *fakePublisher) drop() {
	for c := range p.live {
		c.Close()
	}
	for c := range p.replays {
		c.Close()
	}
	clear(p.live)
	clear(p.replays)
}

// restart breaks all connections and begins a new lifetime with these batches.
func (p *fakePublisher) restart(payloads ...string) {
	p.restartAs(events.PublisherID{}, payloads...)
}

func (p *fakePublisher) restartAs(id events.PublisherID, payloads ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
	p.history, p.id = nil, id
	for _, s := range payloads {
		p.record(s)
	}
}

func (p *fakePublisher) requests() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]uint64(nil), p.asked...)
}

// tried returns the number of attempts to subscribe.
func (p *fakePublisher) tried() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts
}

// consumer pulls steps until the stream is closed.
type consumer struct {
	t      *testing.T
	mu     sync.Mutex
	steps  []Step
	follow *follower
	done   chan struct{}
}

func consume(t *testing.T, s *Stream, firstSeq uint64) *consumer {
	return consumeAs(t, s, newFollower(firstSeq))
}

func consumeAs(t *testing.T, s *Stream, follow *follower) *consumer {
	c := &consumer{t: t, follow: follow, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			step, ok := s.Next()
			if !ok {
				return
			}
			c.mu.Lock()
			c.steps = append(c.steps, step)
			if err := c.follow.take(step); err != nil {
				t.Error(err)
			}
			c.mu.Unlock()
		}
	}()
	return c
}

// seqs returns what was applied since the last reset.
func (c *consumer) seqs() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []uint64
	for _, s := range c.steps {
		if s.Kind == Reset {
			all = nil
			continue
		}
		all = append(all, s.Seq)
	}
	return all
}
