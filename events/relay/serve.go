package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/zmq"
)

const (
	numberSize = 8
	// maxFollowers bounds the connections of one socket.
	maxFollowers = 1024
	// maxSubscriptions bounds the topics of one connection.
	maxSubscriptions = 64
	// A batch that has left the memory may still be on its way to the disk: an answer looks this often, in these steps.
	maxDiskWaits = 100
	diskWait     = 10 * time.Millisecond
	// maxDumps bounds the dumps that are made and sent at once: each lists all that the engine holds.
	maxDumps = 2
	// maxBatch is the size that batches of a dump have if there are numbers enough, in bytes.
	maxBatch = 1 << 20
	// No decoder known takes more than 32 MiB.
	maxDense = 16 << 20
	// maxFill is how many batches without events fill up the numbers between those of a dump
	// and the tape's memory. A dump begins later where they are more.
	maxFill = 100_000
)

// endNumber marks the end of a reply.
var endNumber = bytes.Repeat([]byte{0xff}, numberSize)

// ServeStats is what followers asked for and got.
type ServeStats struct {
	Live, Replays         int    // connections
	Refused               uint64 // connections: a handshake failed, the engine was away, or there were too many
	Published             uint64 // batches, over all live connections
	Skipped               uint64 // times that a live connection fell behind the tape
	Requests, BadRequests uint64
	Replayed              uint64 // batches of the tape in replies
	Dumps, Dumped         uint64 // replies that began with the past, and its batches
	DumpsLeftOut          uint64 // replies that began behind the past: too few numbers were left for it
	Unfinished            uint64 // replies that ended without their end marker
	connected             bool
}

// serving is the connections of followers.
type serving struct {
	ctx   context.Context
	tasks sync.WaitGroup
	dumps chan struct{} // has as many values as dumps are under way

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

// setConnected tells whether there is a connection to the engine.
func (s *serving) setConnected(up bool) {
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

// changeStats changes the counts.
func (s *serving) changeStats(change func(*ServeStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.n)
}

func (s *serving) stats() ServeStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

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
			s.changeStats(func(n *ServeStats) { n.Refused++ })
			raw.Close()
			continue
		}
		open.Add(1)
		s.tasks.Go(func() {
			defer open.Add(-1)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if serve(ctx, raw) != nil {
				s.changeStats(func(n *ServeStats) { n.Refused++ })
			}
		})
	}
}

// publishLive sends live batches to a follower. The error is that of the handshake.
func (r *Relay) publishLive(ctx context.Context, raw net.Conn) error {
	p, err := r.cfg.Transport.GreetAsPublisher(ctx, raw)
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
		subs.read(p)
	})
	select {
	case <-subs.first:
	case <-ctx.Done():
		return nil
	}
	r.serving.changeStats(func(n *ServeStats) { n.Live++ })
	defer r.serving.changeStats(func(n *ServeStats) { n.Live-- })
	r.mu.Lock()
	life, span := *r.life.Load(), r.record.Span()
	r.mu.Unlock()
	at := tape.Range{Epoch: life.epoch, From: span.Last + 1, Oldest: !span.Any, To: math.MaxUint64, Limit: math.MaxInt}
	for {
		r.mu.Lock()
		now, span, changed, evicted := *r.life.Load(), r.record.Span(), r.changed, r.past.any
		r.mu.Unlock()
		skipped := 0
		if now.epoch != life.epoch {
			if evicted {
				r.serving.changeStats(func(n *ServeStats) { n.Skipped++ })
				return nil // a connection from now on cannot take this lifetime for the last one
			}
			skipped, at.Epoch, at.Oldest = 1, now.epoch, true
		}
		life = now
		sent, broken := uint64(0), false
		next, err := r.record.Visit(at, func(rec *tape.Record) bool {
			form := r.form.shape()
			if !subs.match(form.topic) {
				return true
			}
			b := r.batchOf(&life, rec)
			broken = p.Send([]byte(form.topic), numberFrame(form, &b), b.payload) != nil
			sent++
			return !broken
		})
		behind := err != nil && span.Any && at.From <= span.Last
		switch {
		case broken:
			return nil
		case behind:
			// The oldest batches may leave as soon. The number of the newest one shows the follower the hole, also if
			// the engine has no more to say.
			skipped, at.From, at.Oldest = 1, span.Last, false
		case err == nil && next > 0:
			at.From, at.Oldest = next, false
		}
		r.serving.changeStats(func(n *ServeStats) {
			n.Published += sent
			n.Skipped += uint64(skipped)
		})
		if behind || sent > 0 {
			continue // there may be more already
		}
		if p.Flush() != nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// batch is one batch on its way to a follower.
type batch struct {
	seq     uint64
	id      events.PublisherID // zero for none
	payload []byte
}

// batchOf returns a batch of a lifetime, whose id may be known by now.
func (r *Relay) batchOf(life *lifetime, rec *tape.Record) batch {
	if now := r.life.Load(); now.epoch == life.epoch {
		*life = *now
	}
	return batch{rec.Seq, life.id, rec.Payload}
}

// numberFrame returns the frame of a batch's number.
func numberFrame(s shape, b *batch) []byte {
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

// read reads subscriptions until the connection ends.
func (s *subscriptions) read(p *zmq.Peer) {
	for {
		m, err := p.Receive()
		if err != nil {
			return
		}
		s.update(m.Frames)
		m.Block.Release()
	}
}

// update obeys a message that subscribes or ends a subscription.
func (s *subscriptions) update(frames [][]byte) {
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

// match reports whether a topic is subscribed to.
func (s *subscriptions) match(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if len(t) <= len(topic) && topic[:len(t)] == t {
			return true
		}
	}
	return false
}

// answerRequests answers a follower's requests, one after the other. The error is that of the handshake.
func (r *Relay) answerRequests(ctx context.Context, raw net.Conn) error {
	p, err := r.cfg.Transport.GreetAsRouter(ctx, raw)
	if err != nil {
		return err
	}
	defer p.Close()
	r.serving.changeStats(func(n *ServeStats) { n.Replays++ })
	defer r.serving.changeStats(func(n *ServeStats) { n.Replays-- })
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
			r.serving.changeStats(func(n *ServeStats) { n.BadRequests++ })
			continue
		}
		r.serving.changeStats(func(n *ServeStats) { n.Requests++ })
		if !r.answerRequest(ctx, p, from) {
			r.serving.changeStats(func(n *ServeStats) { n.Unfinished++ })
			return nil
		}
	}
}

// answerRequest sends what brings a follower from a number to the present, and the end marker. It reports whether all was sent.
func (r *Relay) answerRequest(ctx context.Context, p *zmq.Peer, from uint64) bool {
	out := replies{peer: p, shape: r.form.shape()}
	life, next := *r.life.Load(), from
	if r.cfg.Disk > 0 {
		var ok bool
		if next, ok = r.sendFromDisk(ctx, &out, &life, next); !ok {
			return false
		}
	}

	r.mu.Lock()
	late := r.past.any && next == from && from <= r.past.base
	r.mu.Unlock()
	if late {
		select {
		case r.serving.dumps <- struct{}{}:
			defer func() { <-r.serving.dumps }()
		case <-ctx.Done():
			return false
		}
	}

	// What is in memory, and the past before it if need be, at one moment.
	r.mu.Lock()
	span := r.record.Span()
	changed := r.life.Load().epoch != life.epoch
	base, whole := r.past.base, r.doubtReason() == ""
	var past *past
	if r.past.any && next <= base && next == from && !changed {
		past = r.past.clone()
	}
	lost := changed || r.past.any && next <= base && next > from // between the disk and the memory
	var recent []batch
	if span.Any && !lost {
		_, err := r.record.Visit(tape.Range{Epoch: life.epoch, From: max(next, span.First), To: span.Last, Limit: math.MaxInt},
			func(rec *tape.Record) bool {
				recent = append(recent, r.batchOf(&life, rec))
				return true
			})
		lost = err != nil && err != tape.ErrTooNew
	}
	r.mu.Unlock()
	if lost || past != nil && !r.sendDump(&out, past, from, whole) {
		return false
	}
	for i := range recent {
		if out.send(&recent[i]) != nil {
			return false
		}
	}
	r.serving.changeStats(func(n *ServeStats) { n.Replayed += uint64(len(recent)) })
	return out.end() == nil
}

// sendFromDisk sends batches from a number on, until the rest is in memory or the disk does not have it. It returns the
// number behind the last one, and reports whether all could be sent.
func (r *Relay) sendFromDisk(ctx context.Context, out *replies, life *lifetime, next uint64) (uint64, bool) {
	for waits := 0; ; {
		r.mu.Lock()
		q := tape.Range{Epoch: life.epoch, From: next, To: r.past.base, Limit: math.MaxInt}
		evicted := r.past.any && next <= r.past.base && r.life.Load().epoch == life.epoch
		r.mu.Unlock()
		if !evicted {
			return next, true
		}
		sent, broken := uint64(0), false
		read, err := r.record.Visit(q, func(rec *tape.Record) bool {
			b := r.batchOf(life, rec)
			broken = out.send(&b) != nil
			sent++
			return !broken
		})
		r.serving.changeStats(func(n *ServeStats) { n.Replayed += sent })
		switch {
		case !broken && err == nil && read > next:
			next, waits = read, 0
		case !broken && err == tape.ErrTooNew && waits < maxDiskWaits: // it left the memory before it was written
			waits++
			select {
			case <-time.After(diskWait):
			case <-ctx.Done():
				return next, false
			}
		default:
			return next, !broken
		}
	}
}

// sendDump sends the past as batches whose numbers end with its last one. whole says that nothing is missing.
func (r *Relay) sendDump(out *replies, p *past, from uint64, whole bool) bool {
	first, base, dump := from, p.base, p.dump()
	if whole = whole && !p.doubtful; !whole {
		first += 2      // and so the follower sees that something is missing: an engine may count from 1
		dump = dump[1:] // a clear would end the follower's doubt
	}
	if base > maxFill {
		first = max(first, base-maxFill)
	}
	size := maxDense + 1
	if first <= base {
		bytes := 0
		for _, raw := range dump {
			bytes += len(raw)
		}
		size = max(maxBatch, int(2*uint64(bytes)/(base-first+1)))
	}
	if size > maxDense { // the reply begins behind the past
		r.serving.changeStats(func(n *ServeStats) { n.DumpsLeftOut++ })
		return true
	}
	b := batch{seq: first} // without an id: a follower may have had another batch of the number
	for b.payload = range packBatches(p.frame, dump, whole, size) {
		if b.seq > base || out.send(&b) != nil {
			return false
		}
		b.seq++
	}
	r.serving.changeStats(func(n *ServeStats) { n.Dumps++; n.Dumped += b.seq - first })
	for b.payload = p.frame.wrapEvents(nil); b.seq <= base; b.seq++ {
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
		return o.peer.Send(nil, []byte(o.shape.topic), numberFrame(o.shape, b), b.payload)
	}
	return o.peer.Send(nil, numberFrame(o.shape, b), b.payload)
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
