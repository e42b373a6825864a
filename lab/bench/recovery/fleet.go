package recovery

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"example.com/conductor/events/zmq"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// ring is how many batches an engine replays, vLLM's default.
const ring = 10_000

// order tells the fleet how to go on.
type order struct {
	To   []uint64 `json:"to,omitempty"`   // batches each engine publishes up to
	Rate float64  `json:"rate,omitempty"` // batches/s of the busy engines together from now on
	Busy int      `json:"busy,omitempty"` // how many engines publish at the rate, the first ones; 0 for all
	Rest bool     `json:"rest,omitempty"` // publish nothing more; the answer is a line of sequences
}

// Ends are the ports of one engine.
type Ends struct{ Live, Replay int }

// RunFleet runs the engines, in a process of its own. Its first line has their ports. It obeys
// orders, one a line, and ends with them.
func RunFleet(l ingest.Load, in io.Reader, out io.Writer) error {
	f := &fleet{engines: make([]*engine, l.Sources)}
	ctx, cancel := context.WithCancel(context.Background())
	defer f.tasks.Wait()
	defer cancel()
	ports := make([]Ends, l.Sources)
	for i := range f.engines {
		f.engines[i] = &engine{live: ingest.NewStamper(l, l.First+i), old: ingest.NewStamper(l, l.First+i), more: make(chan struct{}, 1)}
		var err error
		if ports[i], err = f.openSockets(ctx, f.engines[i]); err != nil {
			return err
		}
	}
	answer := json.NewEncoder(out)
	if err := answer.Encode(ports); err != nil {
		return err
	}
	f.tasks.Go(func() { f.publishAtRate(ctx) })
	for orders := json.NewDecoder(bufio.NewReader(in)); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read an order: %w", err)
		}
		f.mu.Lock()
		f.rate, f.busy = o.Rate, cmp.Or(o.Busy, len(f.engines))
		f.mu.Unlock()
		for i := range o.To {
			f.engines[i].upTo(o.To[i])
		}
		if o.Rest {
			if err := answer.Encode(f.awaitRest()); err != nil {
				return err
			}
		}
	}
}

// fleet are the engines.
type fleet struct {
	engines []*engine
	tasks   sync.WaitGroup

	mu   sync.Mutex
	rate float64 // guarded by mu
	busy int     // guarded by mu
}

// engine publishes batches, and replays the last ones.
type engine struct {
	more chan struct{} // capacity 1: there is more to publish
	live *ingest.Stamper

	mu    sync.Mutex
	next  uint64      // batches published; guarded by mu, as is all below
	to    uint64      // batches to publish
	peers []*zmq.Peer // followers

	replays sync.Mutex
	old     *ingest.Stamper // guarded by replays
}

// publishAtRate lets engines publish at the rate, one after the other.
func (f *fleet) publishAtRate(ctx context.Context) {
	due, at := 0.0, 0
	const step = 10 * time.Millisecond
	for harness.Wait(ctx, step) {
		f.mu.Lock()
		due += f.rate * step.Seconds()
		if f.rate == 0 {
			due = 0
		}
		busy := f.busy
		f.mu.Unlock()
		for ; due >= 1; due-- {
			at = (at + 1) % busy
			f.engines[at].upTo(0)
		}
	}
}

// awaitRest waits until all that was to be published is, and returns how many batches each engine
// has published.
func (f *fleet) awaitRest() []uint64 {
	out := make([]uint64, len(f.engines))
	for i, e := range f.engines {
		for done := false; !done; {
			e.mu.Lock()
			out[i], done = e.next, e.next >= e.to
			e.mu.Unlock()
			if !done {
				harness.Wait(context.Background(), time.Millisecond)
			}
		}
	}
	return out
}

// upTo lets an engine publish up to a number of batches, or one more.
func (e *engine) upTo(n uint64) {
	e.mu.Lock()
	if n == 0 {
		n = e.to + 1
	}
	e.to = max(e.to, n)
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// openSockets opens the sockets of an engine.
func (f *fleet) openSockets(ctx context.Context, e *engine) (Ends, error) {
	live, err := f.servePeers(ctx, zmq.Transport{}.GreetAsPublisher, e.addFollower)
	if err != nil {
		return Ends{}, err
	}
	replay, err := f.servePeers(ctx, zmq.Transport{}.GreetAsRouter, e.answerReplays)
	if err != nil {
		return Ends{}, err
	}
	f.tasks.Go(func() { e.publishDue(ctx) })
	return Ends{live, replay}, nil
}

// servePeers serves the peers that connect to a port, until ctx ends.
func (f *fleet) servePeers(ctx context.Context, greet func(context.Context, net.Conn) (*zmq.Peer, error), serve func(*zmq.Peer)) (port int,
	err error) {
	ln, err := zmq.Listen("tcp://127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	context.AfterFunc(ctx, func() { ln.Close() })
	f.tasks.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			f.tasks.Go(func() {
				defer context.AfterFunc(ctx, func() { raw.Close() })()
				if p, err := greet(ctx, raw); err == nil {
					serve(p)
					p.Close()
				}
			})
		}
	})
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// addFollower makes a peer that has subscribed hear all batches from now on.
func (e *engine) addFollower(p *zmq.Peer) {
	for first := true; ; first = false {
		m, err := p.Receive()
		if err != nil {
			break
		}
		m.Block.Release()
		if first {
			e.mu.Lock()
			e.peers = append(e.peers, p)
			e.mu.Unlock()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers = slices.DeleteFunc(e.peers, func(other *zmq.Peer) bool { return other == p })
}

// publishDue publishes the batches that are due, until ctx ends. Without a follower a batch is lost, but for the
// ring.
func (e *engine) publishDue(ctx context.Context) {
	for {
		e.mu.Lock()
		seq, due, peers := e.next, e.next < e.to, slices.Clone(e.peers)
		if due {
			e.next++
		}
		e.mu.Unlock()
		if !due {
			select {
			case <-e.more:
				continue
			case <-ctx.Done():
				return
			}
		}
		payload, number := e.live.StampPayload(seq), binary.BigEndian.AppendUint64(nil, seq)
		for _, p := range peers {
			if p.Send(nil, number, payload) == nil {
				_ = p.Flush() // the connection's reader sees that it is gone
			}
		}
	}
}

// answerReplays replays the batches that a peer asks for.
func (e *engine) answerReplays(p *zmq.Peer) {
	for {
		m, err := p.Receive()
		if err != nil {
			return
		}
		ok := len(m.Frames) == 2 && len(m.Frames[1]) == 8
		var from uint64
		if ok {
			from = binary.BigEndian.Uint64(m.Frames[1])
		}
		m.Block.Release()
		if !ok || e.replayFrom(p, from) != nil {
			return
		}
	}
}

// replayFrom sends batches from a number on, and the end marker.
func (e *engine) replayFrom(p *zmq.Peer, from uint64) error {
	e.mu.Lock()
	next := e.next
	e.mu.Unlock()
	e.replays.Lock()
	defer e.replays.Unlock()
	for seq := max(from, next-min(next, ring)); seq < next; seq++ {
		if err := p.Send(nil, binary.BigEndian.AppendUint64(nil, seq), e.old.StampPayload(seq)); err != nil {
			return err
		}
	}
	if err := p.Send(nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil); err != nil {
		return err
	}
	return p.Flush()
}
