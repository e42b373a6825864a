package relay

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// testPatience is that of tests with what another goroutine or process brings about.
const testPatience = 2 * time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !within(testPatience, ok) {
		t.Fatalf("timed out: %s", what)
	}
}

// within waits until something is so, and reports whether it came to be within some time.
func within(d time.Duration, so func() bool) bool {
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(d); !so(); <-pace.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func listenLocal(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// batch is one message of an engine.
type batch struct {
	seq     uint64
	id      []byte
	payload []byte
}

// number returns the frame of the number.
func (b *batch) number() []byte { return append(binary.BigEndian.AppendUint64(nil, b.seq), b.id...) }

// engine publishes as vLLM does, with a ring of some batches.
type engine struct {
	t            testing.TB
	life         int
	live, replay net.Listener

	mu      sync.Mutex
	ring    int
	topics  bool // replies carry the topic
	ids     bool // the frame of the number carries an id of the lifetime
	padding int  // bytes of a field that makes stores larger
	next    uint64
	old     []batch
	peers   []*zmq.Peer
	holds   map[uint64]bool // truth: hashes of blocks
	order   []uint64
}

// change sets fields. An engine serves from its start on: a test before it may still have a follower
// that tries the same port.
func (e *engine) change(set func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set()
}

func newEngine(t testing.TB, ring int) *engine {
	e := &engine{t: t, ring: ring, live: listenLocal(t), replay: listenLocal(t), holds: make(map[uint64]bool)}
	go e.accept(e.live, func(raw net.Conn) {
		p, err := zmq.Transport{}.GreetAsPublisher(t.Context(), raw)
		if err != nil {
			return
		}
		if m, err := p.Receive(); err == nil {
			m.Block.Release()
			e.mu.Lock()
			e.peers = append(e.peers, p)
			e.mu.Unlock()
		}
		for { // answers heartbeats
			m, err := p.Receive()
			if err != nil {
				return
			}
			m.Block.Release()
		}
	})
	go e.accept(e.replay, func(raw net.Conn) {
		p, err := zmq.Transport{}.GreetAsRouter(t.Context(), raw)
		if err != nil {
			return
		}
		for {
			m, err := p.Receive()
			if err != nil {
				return
			}
			e.answer(p, binary.BigEndian.Uint64(m.Frames[1]))
			m.Block.Release()
		}
	})
	return e
}

func (e *engine) accept(ln net.Listener, serve func(net.Conn)) {
	for {
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		go serve(raw)
	}
}

const engineTopic = "kv-events"

// answer sends what the ring has from a number on, and the end marker.
func (e *engine) answer(p *zmq.Peer, from uint64) {
	e.mu.Lock()
	old, topics := slices.Clone(e.old), e.topics
	e.mu.Unlock()
	send := func(topic string, number, payload []byte) {
		if topics {
			p.Send(nil, []byte(topic), number, payload)
		} else {
			p.Send(nil, number, payload)
		}
	}
	for _, b := range old {
		if b.seq >= from {
			send(engineTopic, b.number(), b.payload)
		}
	}
	send("", endNumber, nil)
	p.Flush()
}

// send publishes events as one batch.
func (e *engine) send(list ...any) {
	var payload bytes.Buffer
	enc := msgpack.NewEncoder(&payload)
	enc.UseCompactInts(true)
	must.Succeed(e.t, enc.Encode([]any{float64(e.next) / 8, append([]any{}, list...), 0}))
	e.raw(payload.Bytes())
}

// raw publishes a payload.
func (e *engine) raw(payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := batch{seq: e.next, payload: payload}
	if e.ids {
		b.id = append([]byte{byte(e.life), 1}, make([]byte, 14)...)
	}
	e.next++
	e.old = append(e.old, b)
	if len(e.old) > e.ring {
		e.old = e.old[1:]
	}
	e.peers = slices.DeleteFunc(e.peers, func(p *zmq.Peer) bool {
		return p.Send([]byte(engineTopic), b.number(), payload) != nil || p.Flush() != nil
	})
}

const blockSize = 4

// store publishes n new blocks in a chain below a parent, 0 for none, and returns the last.
func (e *engine) store(n int, parent uint64) uint64 {
	var hashes []uint64
	var tokens []uint32
	for range n {
		hash := uint64(e.life+1)<<40 + uint64(len(e.order)) + 1
		e.mu.Lock()
		e.holds[hash] = true
		e.mu.Unlock()
		e.order = append(e.order, hash)
		hashes = append(hashes, hash)
		for i := range blockSize {
			tokens = append(tokens, uint32(hash)*blockSize+uint32(i))
		}
	}
	above := any(nil)
	if parent != 0 {
		above = parent
	}
	event := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": above, "token_ids": tokens,
		"block_size": blockSize, "lora_id": nil, "medium": "GPU", "lora_name": nil}
	if e.padding > 0 {
		event["padding"] = make([]byte, e.padding)
	}
	e.send(event)
	return hashes[n-1]
}

func (e *engine) remove(hashes ...uint64) {
	e.mu.Lock()
	for _, h := range hashes {
		delete(e.holds, h)
	}
	e.mu.Unlock()
	e.send(map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})
}

// restart begins another lifetime: connections end, the ring and the cache are empty.
func (e *engine) restart(first uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.peers {
		p.Close()
	}
	e.life++
	e.peers, e.old, e.next, e.holds = nil, nil, first, make(map[uint64]bool)
}

// follower holds what a stream of events tells.
type follower struct {
	t *testing.T
	s *stream.Stream

	mu     sync.Mutex
	holds  map[uint64]bool
	resets int
}

func newFollower(t *testing.T, live, replay net.Listener) *follower {
	f := &follower{t: t, holds: make(map[uint64]bool)}
	f.s = stream.Open(stream.Config{
		Endpoint: "tcp://" + live.Addr().String(), ReplayEndpoint: "tcp://" + replay.Addr().String(),
		Transport: zmq.Transport{}, BackoffMax: 200 * time.Millisecond,
	})
	done := make(chan struct{})
	t.Cleanup(func() { f.s.Close(); <-done })
	go func() {
		defer close(done)
		for {
			step, ok := f.s.Next()
			if !ok {
				return
			}
			f.mu.Lock()
			if step.Kind == stream.DropBlocks {
				f.resets++
				clear(f.holds)
			}
			for i := range step.Batch.Events {
				ev := &step.Batch.Events[i]
				switch ev.Kind {
				case events.Cleared:
					clear(f.holds)
				case events.Stored:
					for _, h := range ev.Hashes {
						f.holds[h] = true
					}
				case events.Removed:
					for _, h := range ev.Hashes {
						delete(f.holds, h)
					}
				}
			}
			f.mu.Unlock()
			wire.ReleaseBatch(&step.Batch)
		}
	}()
	return f
}

// has reports whether a follower has the engine's blocks, and knows that it does.
func (f *follower) has(e *engine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	st := f.s.Status()
	if st.State != stream.Synced || len(f.holds) != len(e.holds) || st.LastSeq+1 != e.next {
		return false
	}
	for h := range e.holds {
		if !f.holds[h] {
			return false
		}
	}
	return true
}

// relayed is a relay of an engine with sockets of its own.
type relayed struct {
	*Relay
	live, replay net.Listener
}

func relayOf(t testing.TB, e *engine, change func(*Config)) *relayed {
	t.Helper()
	cfg := Config{Endpoint: "tcp://" + e.live.Addr().String(), ReplayEndpoint: "tcp://" + e.replay.Addr().String(), Memory: 1 << 20,
		Report: func(err error) { t.Error(err) }, OnState: func(stream.State, string) {}}
	if change != nil {
		change(&cfg)
	}
	r, err := Open(cfg)
	must.Succeed(t, err)
	t.Cleanup(r.Close)
	out := &relayed{Relay: r, live: listenLocal(t), replay: listenLocal(t)}
	r.Serve(out.live, out.replay)
	return out
}

// caughtUp waits until the relay has all that the engine published.
func (r *relayed) caughtUp(t *testing.T, e *engine) {
	t.Helper()
	until(t, "the relay catches up", func() bool {
		s := r.Stats()
		e.mu.Lock()
		defer e.mu.Unlock()
		return s.Tape.Any && s.Tape.Last+1 == e.next
	})
}
