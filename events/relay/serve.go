package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
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

// Serve serves two listeners until the relay is closed. Connections of the first one get live batches: they end with the
// connection to the engine, and there are none without it. Those of the second one are answered what they ask.
func (r *Relay) Serve(live, replays net.Listener) {
	r.tasks.Go(func() { r.acceptFollowers(live, r.cfg.Transport.GreetAsPublisher, r.publishLive, &r.live) })
	r.tasks.Go(func() { r.acceptFollowers(replays, r.cfg.Transport.GreetAsRouter, r.answerRequests, &r.ctx) })
}

// acceptFollowers greets connections and serves them until the relay is closed. Each ends with the context that life points
// to, read with mu held, when it is made.
func (r *Relay) acceptFollowers(ln net.Listener, greet func(context.Context, net.Conn) (*zmq.Peer, error),
	serve func(context.Context, *zmq.Peer), life *context.Context) {
	defer context.AfterFunc(r.ctx, func() { ln.Close() })()
	var open atomic.Int64
	for r.ctx.Err() == nil {
		raw, err := ln.Accept()
		if err != nil { // out of descriptors: connections that end make room
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.ctx.Done():
			}
			continue
		}
		r.mu.Lock()
		ctx := *life
		r.mu.Unlock()
		if ctx.Err() != nil || open.Load() >= maxFollowers {
			r.count(func(n *Stats) { n.Refused++ })
			raw.Close()
			continue
		}
		open.Add(1)
		r.tasks.Go(func() {
			defer open.Add(-1)
			p, err := greet(ctx, raw)
			if err != nil {
				r.count(func(n *Stats) { n.Refused++ })
				return
			}
			defer p.Close()
			serve(ctx, p)
		})
	}
}

// connection is one of a follower.
type connection struct {
	relay *Relay
	peer  *zmq.Peer
	sent  *uint64     // counts its batches, in Relay.counts
	wants *zmq.Topics // of a live connection; nil of one that asks for replays
	life  *lifetime   // the one whose batches it gets
	form  shape
	err   error // of the first batch that could not be sent
}

// publishLive sends live batches to a follower.
func (r *Relay) publishLive(ctx context.Context, p *zmq.Peer) {
	ctx, cancel := context.WithCancel(ctx)
	c := connection{relay: r, peer: p, sent: &r.counts.Published, wants: zmq.NewTopics()}
	r.tasks.Go(func() {
		defer cancel()
		c.wants.Follow(p)
	})
	select {
	case <-c.wants.First:
	case <-ctx.Done():
		return
	}
	r.count(func(n *Stats) { n.Live++ })
	defer r.count(func(n *Stats) { n.Live-- })
	for at := (tape.Range{To: math.MaxUint64}); ; {
		r.mu.Lock()
		life, span, changed := r.life, r.record.Span(), r.changed
		r.mu.Unlock()
		switch {
		case c.life == nil: // what comes from now on
			at.From, at.Oldest = span.Last+1, !span.Any
		case c.life != life: // on a new connection a follower cannot take this lifetime for the last one
			return
		}
		c.life, c.form = life, *r.form.Load()
		next, err := c.sendRange(ctx, at)
		switch {
		case c.err != nil:
			return
		case err != nil && span.Any && at.From <= span.Last: // behind the tape
			// The oldest batches may leave as soon. The number of the newest one shows the follower the hole, also if
			// the engine has no more to say; that of the next one does if the newest one is too large for the memory.
			r.count(func(n *Stats) { n.Skipped++ })
			at.From, at.Oldest = max(at.From+1, span.Last), false
		case err == nil && next > 0:
			at.From, at.Oldest = next, false
		}
		if span.Any && at.From <= span.Last {
			continue // what was on its way to the disk is there now
		}
		if p.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// answerRequests answers a follower's requests, one after the other.
func (r *Relay) answerRequests(ctx context.Context, p *zmq.Peer) {
	r.count(func(n *Stats) { n.Replays++ })
	defer r.count(func(n *Stats) { n.Replays-- })
	for c := (connection{relay: r, peer: p, sent: &r.counts.Replayed}); ; {
		m, err := p.Receive()
		if err != nil {
			return
		}
		if len(m.Frames) != 2 || len(m.Frames[0]) != 0 || len(m.Frames[1]) != numberSize { // engines do not answer either
			m.Block.Release()
			r.count(func(n *Stats) { n.BadRequests++ })
			continue
		}
		from := binary.BigEndian.Uint64(m.Frames[1])
		m.Block.Release()
		r.count(func(n *Stats) { n.Requests++ })
		if !c.answerRequest(ctx, from) {
			r.count(func(n *Stats) { n.Unfinished++ })
			return
		}
	}
}

// answerRequest sends the tape's batches from a number to the present, or where the tape begins behind that number a dump of
// the past and what is in memory, and then the end marker. It reports whether all was sent.
func (c *connection) answerRequest(ctx context.Context, from uint64) bool {
	r := c.relay
	r.mu.Lock()
	c.life, c.form = r.life, *r.form.Load()
	r.mu.Unlock()
	for next, present := from, false; !present; {
		r.mu.Lock()
		span, evicted := r.record.Span(), r.past.end
		r.mu.Unlock()
		if span.Epoch != c.life.epoch {
			return false
		}
		if !span.Any || next > span.Last {
			break
		}
		if evicted <= next && next < span.First { // nothing of this lifetime comes before
			from, next = span.First, span.First
		}
		read, err := c.sendRange(ctx, tape.Range{From: next, To: math.MaxUint64})
		if err != nil && next == from && ctx.Err() == nil {
			if !c.sendPast(ctx, from) {
				return false
			}
			break
		}
		if err != nil || c.err != nil {
			return false
		}
		next, present = read, next >= span.First && read > span.Last
	}
	end := [][]byte{nil, endNumber, nil}
	if c.form.topics {
		end = [][]byte{nil, nil, endNumber, nil}
	}
	return c.peer.Send(end...) == nil && c.peer.Flush() == nil
}

// sendPast sends a dump of the past and the batches in memory, both as they are at one moment. It reports whether all was
// sent.
func (c *connection) sendPast(ctx context.Context, from uint64) bool {
	r := c.relay
	select {
	case r.dumps <- struct{}{}:
		defer func() { <-r.dumps }()
	case <-ctx.Done():
		return false
	}
	var recent []tape.Record
	r.mu.Lock()
	over, past := r.life != c.life, r.past.clone()
	past.doubtful = r.doubtReason() != ""
	q := tape.Range{Epoch: c.life.epoch, From: max(from, r.record.Span().First), To: math.MaxUint64, Limit: math.MaxInt}
	r.record.Visit(q, func(rec *tape.Record) bool {
		recent = append(recent, *rec)
		return true
	})
	r.mu.Unlock()
	if over || from < past.end && !c.sendDump(past, from) {
		return false
	}
	for i := range recent {
		c.send(recent[i].Seq, c.life.id.Load(), recent[i].Payload)
	}
	r.count(func(*Stats) { *c.sent += uint64(len(recent)) })
	return c.err == nil
}

// sendDump sends the past as batches whose numbers end with its last one. It reports whether all was sent.
func (c *connection) sendDump(p *past, from uint64) bool {
	dump, next, end := p.compact(), from, p.end
	if p.doubtful {
		next += 2 // and so the follower sees that something is missing: an engine may count from 1
	}
	next = max(next, end-min(end, maxFill))
	bytes := uint64(0)
	for _, event := range dump {
		bytes += uint64(len(event))
	}
	if next >= end || 2*bytes/(end-next) > maxDense { // the reply begins behind the past
		c.relay.count(func(n *Stats) { n.DumpsLeftOut++ })
		return true
	}
	// Batches have no id: a follower may have had another batch of the number.
	for batch := range p.packDump(dump, int(max(maxBatch, 2*bytes/(end-next)))) {
		if next == end {
			return false
		}
		c.send(next, nil, batch)
		next++
	}
	c.relay.count(func(n *Stats) { n.Dumps++ })
	for empty := p.frame.Wrap(); next < end && c.err == nil; next++ {
		c.send(next, nil, empty)
	}
	return c.err == nil
}

// sendRange sends the batches of a range, from the memory or the disk. It waits for those that have left the memory and
// are still on their way to the disk. It returns the number behind the last one, and the error of Visit.
func (c *connection) sendRange(ctx context.Context, q tape.Range) (next uint64, err error) {
	q.Epoch, q.Limit = c.life.epoch, math.MaxInt
	sent := uint64(0)
	visit := func(rec *tape.Record) bool {
		if c.wants == nil || c.wants.Match(c.form.topic) {
			c.send(rec.Seq, c.life.id.Load(), rec.Payload)
			sent++
		}
		return c.err == nil
	}
	next, err = c.relay.record.Visit(q, visit)
	if err != nil && q.From <= c.relay.record.Span().Last {
		select {
		case <-c.relay.tape.Written():
			next, err = c.relay.record.Visit(q, visit)
		case <-ctx.Done():
		}
	}
	c.relay.count(func(*Stats) { *c.sent += sent })
	return next, err
}

// send sends a batch, live or in a reply, unless one before it failed. id is nil for none.
func (c *connection) send(seq uint64, id *events.PublisherID, payload []byte) {
	number := binary.BigEndian.AppendUint64(make([]byte, 0, numberSize+len(events.PublisherID{})), seq)
	if id != nil {
		number = append(number, id[:]...)
	}
	switch topic := []byte(c.form.topic); {
	case c.err != nil:
	case c.wants != nil:
		c.err = c.peer.Send(topic, number, payload)
	case c.form.topics:
		c.err = c.peer.Send(nil, topic, number, payload)
	default:
		c.err = c.peer.Send(nil, number, payload)
	}
}
