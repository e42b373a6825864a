// Package streamtest is a network in memory for tests: publishers with a ring of batches,
// and the connections to them. Tests inject faults through the hooks of a Publisher, or
// through the connections it lists.
package streamtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
)

// ErrCut is the error of a connection that was cut or closed.
var ErrCut = errors.New("connection cut")

// endSeq is the sequence of the last reply to a replay request.
const endSeq = ^uint64(0)

// subscription is a stream.Subscription. The tests of package stream use this package, so
// it cannot import theirs.
type subscription = interface {
	Recv() (payload.Message, error)
	Close() error
}

// Network is a stream.Transport: it connects to the Publisher of an endpoint. The zero
// value is ready to use.
type Network struct {
	// Prepare configures the publisher of a new endpoint; nil leaves it as NewPublisher
	// makes it.
	Prepare func(endpoint string, p *Publisher)

	mu         sync.Mutex
	publishers map[string]*Publisher // guarded by mu
}

// PublisherAt returns the publisher of an endpoint. It makes one for a new endpoint, so a publisher
// can publish before anything connects.
func (n *Network) PublisherAt(endpoint string) *Publisher {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.publishers[endpoint]
	if !ok {
		p = NewPublisher()
		if n.Prepare != nil {
			n.Prepare(endpoint, p)
		}
		if n.publishers == nil {
			n.publishers = make(map[string]*Publisher)
		}
		n.publishers[endpoint] = p
	}
	return p
}

// Subscribe connects to the publisher of an endpoint.
func (n *Network) Subscribe(ctx context.Context, endpoint string) (subscription, error) {
	return n.PublisherAt(endpoint).Subscribe(ctx, endpoint)
}

// Replay asks the publisher whose replay endpoint is its own endpoint plus "/replay".
func (n *Network) Replay(ctx context.Context, endpoint string, from uint64) (subscription, error) {
	return n.PublisherAt(strings.TrimSuffix(endpoint, "/replay")).Replay(ctx, endpoint, from)
}

// Publisher is one engine rank: a sequence, a ring, and its connections. It is the
// stream.Transport of streams that know no other publisher. Tests lock Mu to read or
// change its fields while a stream is connected.
type Publisher struct {
	Mu sync.Mutex // guards the fields below

	First          uint64 // sequence of the first batch of a lifetime
	Ring           int    // batches that replays can still return
	HWM            int    // messages queued for a connection; a full queue drops the next
	Topic          string
	TopicInReplies bool               // replies have four frames, else three
	Bare           bool               // replies have no empty frame in front
	ID             events.PublisherID // behind the sequence; zero is none
	Anonymous      uint64             // the last of every Anonymous messages has no ID; 0: all have it

	// OnSubscribe runs without the lock before a live connection stands; its error refuses
	// the connection.
	OnSubscribe func(ctx context.Context) error
	// OnReplay runs with the lock and returns the replies that are sent, end marker
	// included. A nil reply cuts the connection.
	OnReplay func(from uint64, replies [][][]byte) [][][]byte

	// Parts are the parts of the next reply to a request for a snapshot, behind the last
	// batch. The first Unavailable replies have none.
	Parts       []string
	Unavailable int

	History  [][]byte // payloads of this lifetime; nil is a batch that no replay returns
	Live     map[*Conn]bool
	Replays  map[*Conn]bool
	Asked    []uint64 // sequences that replay requests began at
	Attempts int      // to subscribe
}

// NewPublisher returns a publisher that keeps 10,000 batches and queues 65,536.
func NewPublisher() *Publisher {
	return &Publisher{Ring: 10_000, HWM: 1 << 16, Live: make(map[*Conn]bool), Replays: make(map[*Conn]bool)}
}

// Subscribe opens a live connection.
func (p *Publisher) Subscribe(ctx context.Context, _ string) (subscription, error) {
	p.Mu.Lock()
	hook := p.OnSubscribe
	p.Attempts++
	p.Mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return nil, err
		}
	}
	p.Mu.Lock()
	defer p.Mu.Unlock()
	c := NewConn()
	p.Live[c] = true
	return c, nil
}

// Replay opens a connection and sends the batches of the ring from a sequence on, then the
// end marker.
func (p *Publisher) Replay(_ context.Context, _ string, from uint64) (subscription, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Asked = append(p.Asked, from)
	var replies [][][]byte
	for i := max(0, len(p.History)-p.Ring); i < len(p.History); i++ {
		if seq := p.First + uint64(i); seq >= from && p.History[i] != nil {
			replies = append(replies, p.ReplyFrames(seq))
		}
	}
	replies = append(replies, p.layOutReply("", EncodeSequence(endSeq), nil))
	if p.OnReplay != nil {
		replies = p.OnReplay(from, replies)
	}
	c := NewConn()
	p.Replays[c] = true
	for _, r := range replies {
		if r == nil {
			c.Close()
			break
		}
		c.Send(r...)
	}
	return c, nil
}

// Snapshot asks the publisher of an endpoint for a snapshot. Its service is at its own endpoint
// plus "/snapshot".
func (n *Network) Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error) {
	return n.PublisherAt(strings.TrimSuffix(endpoint, "/snapshot")).Snapshot(ctx, endpoint, limit, progress)
}

// Snapshot returns the frames of a snapshot behind the last batch.
func (p *Publisher) Snapshot(_ context.Context, _ string, limit int, progress func()) (all []payload.Message, err error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	last := p.First + uint64(len(p.History)) - 1
	parts := p.Parts
	if p.Unavailable > 0 {
		p.Unavailable--
		last, parts = ^uint64(1), nil
	}
	for _, f := range append([]string{"", string(EncodeSequence(last)), string(p.ID[:])}, parts...) {
		if limit -= len(f); limit < 0 {
			return nil, tooLarge{}
		}
		all = append(all, copyToBlock([][]byte{[]byte(f)}))
		progress()
	}
	return all, nil
}

// tooLarge is the error of a snapshot beyond the limit.
type tooLarge struct{}

func (tooLarge) Error() string  { return "the snapshot is too large" }
func (tooLarge) TooLarge() bool { return true }

// ReplyFrames returns the frames of a replayed batch. The caller holds the lock.
func (p *Publisher) ReplyFrames(seq uint64) [][]byte {
	return p.layOutReply(p.Topic, p.SequenceFrame(seq), p.History[seq-p.First])
}

func (p *Publisher) layOutReply(topic string, number, payload []byte) [][]byte {
	frames := [][]byte{{}, number, payload}
	if p.TopicInReplies {
		frames = [][]byte{{}, []byte(topic), number, payload}
	}
	if p.Bare {
		frames = frames[1:]
	}
	return frames
}

// EncodeSequence returns the frame of a sequence number.
func EncodeSequence(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// SequenceFrame returns the sequence frame of a batch, the ID of the publisher included.
func (p *Publisher) SequenceFrame(seq uint64) []byte {
	if p.ID == (events.PublisherID{}) || p.Anonymous > 0 && seq%p.Anonymous == p.Anonymous-1 {
		return EncodeSequence(seq)
	}
	return append(EncodeSequence(seq), p.ID[:]...)
}

// EncodeBatch encodes events as the payload of one batch. A nil rank is the engine's only one.
func EncodeBatch(seconds float64, rank any, events ...any) string {
	var out bytes.Buffer
	if err := msgpack.NewEncoder(&out).Encode([]any{seconds, events, rank}); err != nil {
		panic(err)
	}
	return out.String()
}

// NextSequence returns the sequence of the next batch.
func (p *Publisher) NextSequence() uint64 {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.First + uint64(len(p.History))
}

// Publish records a batch, sends it to every live connection, and returns their number.
func (p *Publisher) Publish(payload string) (connections int) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.sendLive(p.RecordBatch(payload), []byte(payload))
}

// PublishOnce sends a batch to every live connection. No replay returns it.
func (p *Publisher) PublishOnce(payload string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.sendLive(p.appendBatch(nil), []byte(payload))
}

func (p *Publisher) sendLive(seq uint64, payload []byte) (connections int) {
	for c := range p.Live {
		if c.IsClosed() {
			delete(p.Live, c)
			continue
		}
		connections++
		if c.CountQueued() < p.HWM {
			c.Send([]byte(p.Topic), p.SequenceFrame(seq), payload)
		}
	}
	return connections
}

// RecordBatch adds a batch that no live connection gets, and returns its sequence. The caller
// holds the lock.
func (p *Publisher) RecordBatch(payload string) uint64 { return p.appendBatch([]byte(payload)) }

func (p *Publisher) appendBatch(payload []byte) uint64 {
	p.History = append(p.History, payload)
	return p.First + uint64(len(p.History)-1)
}

// PublishToRing adds batches that only replays return.
func (p *Publisher) PublishToRing(payloads ...string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for _, s := range payloads {
		p.RecordBatch(s)
	}
}

// SkipSequence adds a batch that neither a live connection nor a replay returns.
func (p *Publisher) SkipSequence() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.appendBatch(nil)
}

// SendFrames sends frames to every live connection as they are.
func (p *Publisher) SendFrames(frames ...string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for c := range p.Live {
		var f [][]byte
		for _, s := range frames {
			f = append(f, []byte(s))
		}
		c.Send(f...)
	}
}

// CutConnections breaks all connections.
func (p *Publisher) CutConnections() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.cutConnections()
}

func (p *Publisher) cutConnections() {
	for _, conns := range []map[*Conn]bool{p.Live, p.Replays} {
		for c := range maps.Keys(conns) {
			c.Close()
		}
		clear(conns)
	}
}

// Restart breaks all connections and begins a new lifetime without an ID. The batches have
// been published before anything connects.
func (p *Publisher) Restart(payloads ...string) { p.RestartAs(events.PublisherID{}, payloads...) }

// RestartAs is Restart with an ID.
func (p *Publisher) RestartAs(id events.PublisherID, payloads ...string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.cutConnections()
	p.History, p.ID = nil, id
	for _, s := range payloads {
		p.RecordBatch(s)
	}
}

// Requests returns the sequences that replay requests began at.
func (p *Publisher) Requests() []uint64 {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return append([]uint64(nil), p.Asked...)
}

// CountAttempts returns the number of attempts to subscribe.
func (p *Publisher) CountAttempts() int {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.Attempts
}

// Conn is a connection. Recv returns the messages that were sent before it was cut.
type Conn struct {
	mu     sync.Mutex
	queue  [][][]byte    // guarded by mu
	next   int           // in queue; guarded by mu
	sent   chan struct{} // holds one value if the queue has grown
	gone   chan struct{}
	closed sync.Once
}

// NewConn returns a connection that no Publisher knows.
func NewConn() *Conn { return &Conn{sent: make(chan struct{}, 1), gone: make(chan struct{})} }

// Send queues a message, unless the connection is closed.
func (c *Conn) Send(frames ...[]byte) {
	if c.IsClosed() {
		return
	}
	c.mu.Lock()
	c.queue = append(c.queue, frames)
	c.mu.Unlock()
	select {
	case c.sent <- struct{}{}:
	default:
	}
}

// CountQueued returns the number of messages that Recv has not returned.
func (c *Conn) CountQueued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) - c.next
}

func (c *Conn) popMessage() (frames [][]byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == len(c.queue) {
		c.queue, c.next = c.queue[:0], 0
		return nil, false
	}
	frames, c.queue[c.next] = c.queue[c.next], nil
	c.next++
	return frames, true
}

// Recv returns the next message in a pooled block.
func (c *Conn) Recv() (payload.Message, error) {
	for {
		if frames, ok := c.popMessage(); ok {
			return copyToBlock(frames), nil
		}
		select {
		case <-c.sent:
		case <-c.gone:
			if frames, ok := c.popMessage(); ok {
				return copyToBlock(frames), nil
			}
			return payload.Message{}, ErrCut
		}
	}
}

// copyToBlock copies frames into a block, which is used again as that of a socket.
func copyToBlock(frames [][]byte) (m payload.Message) {
	m.Block = payload.TakeBlock(len(bytes.Join(frames, nil)))
	at := 0
	for _, f := range frames {
		n := copy(m.Block.Bytes[at:], f)
		m.Frames = append(m.Frames, m.Block.Bytes[at:at+n])
		at += n
	}
	return m
}

// Close cuts the connection.
func (c *Conn) Close() error {
	c.closed.Do(func() { close(c.gone) })
	return nil
}

// Closing returns a channel that is closed with the connection.
func (c *Conn) Closing() <-chan struct{} { return c.gone }

// IsClosed reports whether the connection is cut.
func (c *Conn) IsClosed() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}
