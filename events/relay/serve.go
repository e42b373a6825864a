package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/zmq"
)

const (
	numberSize = 8
	// maxFollowers bounds the connections of one socket.
	maxFollowers = 1024
	// maxSubscriptions bounds the topics of one connection.
	maxSubscriptions = 64
	// Two dumps at once: each lists the whole tree.
	maxDumps = 2

	// maxBatch is the size that batches of a dump have if there are numbers enough, in bytes.
	maxBatch = 1 << 20
	// No decoder known takes more than 32 MiB.
	maxDense = 16 << 20
	// maxFill is how many batches without events fill up the numbers between those of a dump
	// and the log. A dump begins later where they are more.
	maxFill = 100_000
)

// endNumber marks the end of a reply.
var endNumber = bytes.Repeat([]byte{0xff}, numberSize)

// ServeStats is what followers asked for and got.
type ServeStats struct {
	Live, Replays         int    // connections
	Refused               uint64 // connections: a handshake failed, the engine was away, or there were too many
	Published             uint64 // batches, over all live connections
	Skipped               uint64 // times that a live connection fell behind the log
	Requests, BadRequests uint64
	Replayed              uint64 // batches of the log in replies
	Dumps, Dumped         uint64 // replies that began with the tree, and its batches
	DumpsLeftOut          uint64 // replies that began behind the tree: too few numbers were left for it
	Unfinished            uint64 // replies that ended without their end marker
	connected             bool
}

// serving is the connections of followers.
type serving struct {
	ctx   context.Context
	tasks sync.WaitGroup
	dumps chan struct{}

	mu         sync.Mutex
	n          ServeStats
	live       context.Context // ends with the engine's connection
	disconnect context.CancelFunc
}

func (s *serving) init(ctx context.Context) {
	s.ctx, s.dumps = ctx, make(chan struct{}, maxDumps)
	s.live, s.disconnect = context.WithCancel(ctx)
	s.disconnect()
}

// connect notes whether there is a connection to the engine.
func (s *serving) connect(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case up && !s.n.connected:
		s.live, s.disconnect = context.WithCancel(s.ctx)
	case !up:
		s.disconnect()
	}
	s.n.connected = up
}

func (s *serving) note(change func(*ServeStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.n)
}

func (s *serving) stats() ServeStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *serving) wait() { s.tasks.Wait() }

// accept serves connections until the relay is closed. Live ones end with the connection to
// the engine, and there are none without it.
func (s *serving) accept(ln net.Listener, serve func(context.Context, net.Conn) error, live bool) {
	defer context.AfterFunc(s.ctx, func() { ln.Close() })()
	var open atomic.Int64
	for {
		raw, err := ln.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				raw.Close()
			}
			return
		case err != nil: // out of descriptors: connections that end make room
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		ctx := s.ctx
		if live {
			s.mu.Lock()
			ctx = s.live
			s.mu.Unlock()
		}
		if ctx.Err() != nil || open.Load() >= maxFollowers {
			s.note(func(n *ServeStats) { n.Refused++ })
			raw.Close()
			continue
		}
		open.Add(1)
		s.tasks.Go(func() {
			defer open.Add(-1)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if serve(ctx, raw) != nil {
				s.note(func(n *ServeStats) { n.Refused++ })
			}
		})
	}
}

// publish sends live batches to a follower. The error is that of the handshake.
func (r *Relay) publish(ctx context.Context, raw net.Conn) error {
	p, err := r.cfg.Transport.Publish(ctx, raw)
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer p.Close()
	subs := subscriptions{first: make(chan struct{})}
	reading.Go(func() {
		defer cancel()
		for {
			m, err := p.Receive()
			if err != nil {
				return
			}
			subs.obey(m.Frames)
			m.Block.Release()
		}
	})
	select {
	case <-subs.first:
	case <-ctx.Done():
		return nil
	}
	log := r.log.follow()
	defer log.close()
	r.serving.note(func(n *ServeStats) { n.Live++ })
	defer r.serving.note(func(n *ServeStats) { n.Live-- })
	for b := (batch{}); ; {
		sent := uint64(0)
		for log.next(&b) {
			shape := r.form.get()
			if !subs.want(shape.topic) {
				continue
			}
			if p.Send([]byte(shape.topic), number(shape, &b), b.payload) != nil {
				return nil
			}
			sent++
		}
		lost := log.lost
		log.lost = lostNone
		r.serving.note(func(n *ServeStats) {
			n.Published += sent
			if lost != lostNone {
				n.Skipped++
			}
		})
		switch {
		case lost == lostLife && r.log.left(0):
			return nil // a connection from now on cannot take this lifetime for the last one
		case lost == lostLife:
			continue // from its first batch on
		case lost == lostBatches:
			// The oldest batches may leave as soon. The number of the newest one shows the follower the
			// hole, also if the engine has no more to say.
			log.rejoin()
			continue
		}
		if p.Flush() != nil || log.wait(ctx) != nil {
			return nil
		}
	}
}

// number returns the frame of a batch's number.
func number(s shape, b *batch) []byte {
	n := binary.BigEndian.AppendUint64(make([]byte, 0, numberSize+len(b.id)), b.seq)
	if s.ids && b.id != (events.PublisherID{}) {
		n = append(n, b.id[:]...)
	}
	return n
}

// subscriptions are the topics that a follower wants, as prefixes.
type subscriptions struct {
	first chan struct{} // closed at the first one

	mu     sync.Mutex
	topics []string
	any    bool // first is closed
}

// obey reads a message that subscribes or ends a subscription.
func (s *subscriptions) obey(frames [][]byte) {
	if len(frames) != 1 || len(frames[0]) == 0 {
		return
	}
	what, topic := frames[0][0], string(frames[0][1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case what == 1 && len(s.topics) < maxSubscriptions:
		s.topics = append(s.topics, topic)
		if !s.any {
			s.any = true
			close(s.first)
		}
	case what == 0:
		for i, t := range s.topics {
			if t == topic {
				s.topics = append(s.topics[:i], s.topics[i+1:]...)
				return
			}
		}
	}
}

// want reports whether a topic is subscribed to.
func (s *subscriptions) want(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if len(t) <= len(topic) && topic[:len(t)] == t {
			return true
		}
	}
	return false
}

// route answers a follower's requests, one after the other. The error is that of the handshake.
func (r *Relay) route(ctx context.Context, raw net.Conn) error {
	p, err := r.cfg.Transport.Route(ctx, raw)
	if err != nil {
		return err
	}
	defer p.Close()
	r.serving.note(func(n *ServeStats) { n.Replays++ })
	defer r.serving.note(func(n *ServeStats) { n.Replays-- })
	for {
		m, err := p.Receive()
		if err != nil {
			return nil
		}
		f := m.Frames
		ok := len(f) == 2 && len(f[0]) == 0 && len(f[1]) == numberSize
		var from uint64
		if ok {
			from = binary.BigEndian.Uint64(f[1])
		}
		m.Block.Release()
		if !ok { // engines do not answer either
			r.serving.note(func(n *ServeStats) { n.BadRequests++ })
			continue
		}
		r.serving.note(func(n *ServeStats) { n.Requests++ })
		if !r.reply(ctx, p, from) {
			r.serving.note(func(n *ServeStats) { n.Unfinished++ })
			return nil
		}
	}
}

// reply sends what brings a follower from a number to the present, and the end marker. It
// reports whether all was sent.
func (r *Relay) reply(ctx context.Context, p *zmq.Peer, from uint64) bool {
	if r.log.left(from) {
		select {
		case r.serving.dumps <- struct{}{}:
			defer func() { <-r.serving.dumps }()
		case <-ctx.Done():
			return false
		}
	}
	h := r.log.since(from)
	defer h.close()
	out := replies{peer: p, shape: r.form.get()}
	if h.dump != nil && !r.sendDump(&out, h, from) {
		return false
	}
	sent := uint64(0)
	defer func() { r.serving.note(func(n *ServeStats) { n.Replayed += sent }) }()
	whole := !h.any
	for b := (batch{}); !whole && h.next(&b); {
		if b.seq >= from {
			if out.send(&b) != nil {
				return false
			}
			sent++
		}
		whole = b.seq >= h.last
	}
	return whole && out.end() == nil
}

// sendDump sends the tree as batches that end with the last number that the tree has.
func (r *Relay) sendDump(out *replies, h *history, from uint64) bool {
	first := from
	if !h.whole {
		first += 2 // and so the follower sees that something is missing: an engine may count from 1
	}
	if h.base > maxFill {
		first = max(first, h.base-maxFill)
	}
	size := int64(maxDense + 1)
	if first <= h.base {
		size = max(maxBatch, 2*h.dump.bytes()/int64(h.base-first+1))
	}
	if size > maxDense { // the reply begins behind the tree
		r.serving.note(func(n *ServeStats) { n.DumpsLeftOut++ })
		return true
	}
	b := batch{seq: first} // without an id: a follower may have had another batch of the number
	clears := true
	for b.payload = range h.dump.batches(int(size)) {
		if clears && !h.whole { // it would end the follower's doubt
			clears = false
			continue
		}
		clears = false
		if b.seq > h.base || out.send(&b) != nil {
			return false
		}
		b.seq++
	}
	r.serving.note(func(n *ServeStats) { n.Dumps++; n.Dumped += b.seq - first })
	for b.payload = h.dump.empty(); b.seq <= h.base; b.seq++ {
		if out.send(&b) != nil {
			return false
		}
	}
	return true
}

// replies is one answer.
type replies struct {
	peer  *zmq.Peer
	shape shape
}

func (o *replies) send(b *batch) error {
	if o.shape.topics {
		return o.peer.Send(nil, []byte(o.shape.topic), number(o.shape, b), b.payload)
	}
	return o.peer.Send(nil, number(o.shape, b), b.payload)
}

func (o *replies) end() (err error) {
	if o.shape.topics {
		err = o.peer.Send(nil, nil, endNumber, nil)
	} else {
		err = o.peer.Send(nil, endNumber, nil)
	}
	if err == nil {
		err = o.peer.Flush()
	}
	return err
}
