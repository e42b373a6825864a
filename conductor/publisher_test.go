package conductor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
)

// network is a stream.Transport without sockets: endpoints are names of
// publishers in this process.
type network struct {
	mu         sync.Mutex
	publishers map[string]*publisher
}

func newNetwork() *network { return &network{publishers: make(map[string]*publisher)} }

// at returns the publisher behind an endpoint, making one when new. A publisher
// exists before anyone listens, as an engine does.
func (n *network) at(endpoint string) *publisher {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.publishers[endpoint]
	if !ok {
		p = &publisher{subscribers: make(map[*subscription]bool)}
		n.publishers[endpoint] = p
	}
	return p
}

func (n *network) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	return n.at(endpoint).subscribe(ctx)
}

// Replay serves the ring of the publisher whose replay endpoint is the live one
// plus "/replay".
func (n *network) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	return n.at(strings.TrimSuffix(endpoint, "/replay")).replay(ctx, from)
}

// publisher is one engine rank: a sequence, a ring, and its subscribers.
type publisher struct {
	mu          sync.Mutex
	seq         uint64
	ring        []message
	subscribers map[*subscription]bool
}

type message struct {
	seq     uint64
	payload []byte
}

// frames is a live message, or a replayed one when delimited.
func (m message) frames() [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, m.seq), m.payload}
}

// publish sends one batch; lost batches reach the ring only when kept.
func (p *publisher) publish(rank int, events []any, live, kept bool) {
	payload, err := msgpack.Marshal([]any{float64(p.seq) + 0.5, events, rank})
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := message{seq: p.seq, payload: payload}
	p.seq++
	if kept {
		p.ring = append(p.ring, m)
	}
	if live {
		for s := range p.subscribers {
			select {
			case s.queue <- m.frames():
			case <-s.ctx.Done(): // it leaves, and takes the lock we hold for that
			}
		}
	}
}

// restart loses everything and cuts every connection.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq, p.ring = 0, nil
	for s := range p.subscribers {
		delete(p.subscribers, s)
		s.end()
	}
}

func (p *publisher) subscribe(ctx context.Context) (stream.Subscription, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &subscription{queue: make(chan [][]byte, 4096), cut: make(chan struct{}), ctx: ctx, owner: p}
	p.subscribers[s] = true
	return s, nil
}

func (p *publisher) replay(ctx context.Context, from uint64) (stream.Subscription, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &subscription{queue: make(chan [][]byte, len(p.ring)+1), cut: make(chan struct{}), ctx: ctx, owner: p}
	for _, m := range p.ring {
		if m.seq >= from {
			s.queue <- m.frames()
		}
	}
	s.queue <- [][]byte{nil, {255, 255, 255, 255, 255, 255, 255, 255}, nil}
	return s, nil
}

// subscription delivers frames until it is closed or cut.
type subscription struct {
	queue chan [][]byte
	cut   chan struct{}
	ctx   context.Context
	owner *publisher
	once  sync.Once
}

func (s *subscription) Recv() (payload.Message, error) {
	select {
	case f := <-s.queue:
		return payload.Of(f...), nil
	default:
	}
	select {
	case f := <-s.queue:
		return payload.Of(f...), nil
	case <-s.cut:
		return payload.Message{}, errors.New("connection lost")
	case <-s.ctx.Done():
		return payload.Message{}, s.ctx.Err()
	}
}

func (s *subscription) Close() error {
	s.owner.mu.Lock()
	delete(s.owner.subscribers, s)
	s.owner.mu.Unlock()
	s.end()
	return nil
}

func (s *subscription) end() { s.once.Do(func() { close(s.cut) }) }

// tokensOf returns the tokens of one block: its name and its position in the
// block decide them, so equal names are equal blocks.
func tokensOf(name string, blockSize int) []uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	base := h.Sum32() % 100_000
	tokens := make([]uint32, blockSize)
	for i := range tokens {
		tokens[i] = base + uint32(i)
	}
	return tokens
}

// promptOf returns the tokens of a path such as a/b/c.
func promptOf(path string, blockSize int) []uint32 {
	var tokens []uint32
	for _, name := range strings.Split(path, "/") {
		if name != "" {
			tokens = append(tokens, tokensOf(name, blockSize)...)
		}
	}
	return tokens
}

// engineHash is the publisher's own hash of the last block of a path: each
// endpoint hashes with its own seed, as engines do.
func engineHash(endpoint, path string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s|%s", endpoint, path)
	return h.Sum64()
}
