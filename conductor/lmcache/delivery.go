package lmcache

import (
	"bytes"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Receiver takes the events of one source. None of its methods waits, or calls the hub.
type Receiver interface {
	// Take queues a delivery behind those before. The receiver ends it once it is applied, or
	// dropped: after a failure all are, until Renew.
	Take(*Delivery)
	// Renew reports whether deliveries were dropped. It then drops all blocks, behind those
	// that are queued, so that the feed starts over.
	Renew() bool
	// Room returns nil if the receiver takes more, else a channel that is closed when it does.
	Room() <-chan struct{}
	// Trust says why the receiver does not have all that the emitter holds, "" if it has.
	Trust(reason string)
	// Drop counts entries that have no effect.
	Drop(reason string, n int)
}

// Delivery is a batch of events on its way to a receiver.
//
// An event finds the parent of its chunk only where some source has applied it. So a delivery
// with a child goes after that with the parent, which may be at another receiver.
type Delivery struct {
	Payload []byte

	of       *Feed
	after    []*Delivery // sent before this one
	attached []chunkName // chunks that are attached once it is applied
	sent     bool
	done     chan struct{}
}

// Blocked returns nil if the delivery can be applied, else a channel that is closed when another
// one that it waits for has ended.
func (d *Delivery) Blocked() <-chan struct{} {
	for len(d.after) > 0 {
		select {
		case <-d.after[0].done:
			d.after[0] = nil // else the last delivery keeps all before it
			d.after = d.after[1:]
		default:
			return d.after[0].done
		}
	}
	return nil
}

// End says that the delivery is applied, or never will be. It is called once.
func (d *Delivery) End() {
	d.Payload, d.after = nil, nil
	close(d.done)
}

// pending reports whether the delivery has not ended.
func (d *Delivery) pending() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// currentDelivery returns the delivery that is being filled, which it begins if need be.
func (f *Feed) currentDelivery() *Delivery {
	if f.filling == nil {
		f.filling = &Delivery{of: f, done: make(chan struct{})}
	}
	return f.filling
}

// deliverAfter makes the delivery that is being filled wait for the one that attaches chunk n, unless the feed holds
// the chunk itself.
func (f *Feed) deliverAfter(n chunkName, p *attachments, time float64) {
	d := p.fresh[n]
	if d == nil || d.of == f || !d.pending() || f.book.holdsChunk(n) {
		return
	}
	if !d.sent {
		d.of.flush(time)
	}
	if mine := f.currentDelivery(); !slices.Contains(mine.after, d) {
		mine.after = append(mine.after, d)
	}
}

// recordAttached records that chunk n is attached once the delivery that is being filled is applied.
func (f *Feed) recordAttached(n chunkName, p *attachments) {
	d := f.currentDelivery()
	d.attached = append(d.attached, n)
	p.fresh[n] = d
}

// flush sends the events to the receiver. It does so without any event too, as a sign of life.
func (f *Feed) flush(time float64) {
	var out bytes.Buffer
	enc := msgpack.NewEncoder(&out)
	f.must(enc.EncodeArrayLen(3))
	f.must(enc.EncodeFloat64(time))
	f.must(enc.EncodeArrayLen(f.count))
	out.Write(f.events.Bytes())
	f.must(enc.EncodeNil())
	if f.events.Reset(); f.events.Cap() > 2*flushBytes {
		f.events = bytes.Buffer{}
		f.enc.Reset(&f.events)
	}
	f.count = 0
	f.lacking.Store(int64(f.book.lacking))
	d := f.currentDelivery()
	f.filling = nil
	d.Payload, d.sent = out.Bytes(), true
	f.hub.sent, f.hub.flying = append(f.hub.sent, d), append(f.hub.flying, d)
	f.To.Take(d)
}

// dropEndedDeliveries forgets the deliveries that have ended, and which chunks they attached. mu is held.
func (h *Hub) dropEndedDeliveries() {
	h.flying = slices.DeleteFunc(h.flying, func(d *Delivery) bool {
		if d.pending() {
			return false
		}
		if c := h.chains[d.of.Model]; c != nil {
			for _, n := range d.attached {
				if c.attachments.fresh[n] == d {
					delete(c.attachments.fresh, n)
				}
			}
		}
		return true
	})
}
