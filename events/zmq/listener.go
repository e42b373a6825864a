package zmq

import (
	"bytes"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// listener is one bound socket and its connections.
type listener struct {
	transport Transport
	rank      func(payload []byte) (int, bool) // may be nil
	addr      string
	ln        net.Listener
	ctx       context.Context // ends every connection
	cancel    context.CancelFunc
	tasks     sync.WaitGroup // the accept loop and the readers
	unclaimed atomic.Uint64

	mu     sync.Mutex
	boxes  []*mailbox
	topics map[string]map[int][]*mailbox // pod NUL model -> rank -> whose; replaced, never changed
	holds  map[Claim]uint64              // claim -> the connection that holds it
	strays []string                      // topics that no source claims, the latest last
}

func newListener(t Transport, rank func([]byte) (int, bool), addr string, ln net.Listener) *listener {
	l := &listener{transport: t, rank: rank, addr: addr, ln: ln, holds: make(map[Claim]uint64)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.tasks.Go(l.accept)
	return l
}

// close ends the listener and waits for its goroutines.
func (l *listener) close() {
	l.cancel()
	l.ln.Close()
	l.tasks.Wait()
}

func (l *listener) add(b *mailbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes = append(l.boxes, b)
	l.index()
}

// remove reports whether b was the last.
func (l *listener) remove(b *mailbox) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes = slices.DeleteFunc(l.boxes, func(other *mailbox) bool { return other == b })
	l.index()
	return len(l.boxes) == 0
}

// index rebuilds topics. Sources of several tenants may claim the same.
func (l *listener) index() {
	topics := make(map[string]map[int][]*mailbox)
	for _, b := range l.boxes {
		key := b.claim.Pod + "\x00" + b.claim.Model
		if topics[key] == nil {
			topics[key] = make(map[int][]*mailbox)
		}
		topics[key][b.claim.Rank] = append(topics[key][b.claim.Rank], b)
	}
	l.topics = topics
}

// accept takes connections until the listener is closed.
func (l *listener) accept() {
	var open atomic.Int64
	var number uint64
	for {
		raw, err := l.ln.Accept()
		switch {
		case l.ctx.Err() != nil:
			if err == nil {
				raw.Close()
			}
			return
		case err != nil: // out of descriptors: connections that end make room
			select {
			case <-time.After(100 * time.Millisecond):
			case <-l.ctx.Done():
			}
			continue
		case open.Load() >= maxAccepted:
			raw.Close()
			continue
		}
		open.Add(1)
		number++
		conn := number
		l.tasks.Go(func() {
			defer open.Add(-1)
			l.serve(raw, conn)
		})
	}
}

// serve deals out what one publisher sends until it disconnects.
func (l *listener) serve(raw net.Conn, number uint64) {
	c, err := l.transport.greet(l.ctx, raw, zmq4.Sub, zmq4.NewMsg([]byte{1}))
	if err != nil {
		return // a port scan, or no publisher
	}
	defer c.Close()
	defer l.letGo(number)
	for {
		m, err := c.Recv()
		if err != nil {
			return
		}
		size := 0
		for _, f := range m.Frames {
			size += len(f)
		}
		boxes := l.claimed(m.Frames)
		if len(boxes) > 0 {
			if !l.hold(boxes[0].claim, number) {
				for _, b := range boxes {
					b.refusals.count(raw.RemoteAddr())
				}
				m.Block.Release()
				continue
			}
			m.Frames = slices.Clone(m.Frames) // they wait, and the connection uses its list again
		}
		for _, b := range boxes {
			m.Block.Retain()
			b.put(number, m, size)
		}
		m.Block.Release()
	}
}

// hold reports whether a connection holds a claim. It takes one that none holds.
func (l *listener) hold(c Claim, conn uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	holder, held := l.holds[c]
	if !held {
		l.holds[c] = conn
	}
	return !held || holder == conn
}

// letGo ends what a connection holds. The mailboxes learn of the end before another
// connection can hold their claims.
func (l *listener) letGo(conn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		if l.holds[b.claim] == conn {
			b.end(conn)
		}
	}
	maps.DeleteFunc(l.holds, func(_ Claim, holder uint64) bool { return holder == conn })
}

// claimed returns whose a message is, none if no source claims it. A message with a wrong
// number of frames is its topic's, for the stream to count.
func (l *listener) claimed(frames [][]byte) []*mailbox {
	topic, _, _ := bytes.Cut(frames[0], []byte{0}) // SGLang appends epochs behind a NUL
	prefix, name, _ := bytes.Cut(topic, []byte{'@'})
	pod, model, ok := bytes.Cut(name, []byte{'@'})
	l.mu.Lock()
	topics := l.topics
	l.mu.Unlock()
	if ok && string(prefix) == "kv" {
		key := append(append(append(make([]byte, 0, 128), pod...), 0), model...)
		if ranks := topics[string(key)]; len(ranks) > 0 {
			rank, named := 0, false
			if len(frames) == 3 && l.rank != nil {
				rank, named = l.rank(frames[2])
			}
			if boxes := ranks[rank]; len(boxes) > 0 {
				return boxes
			}
			if !named && len(ranks) == 1 {
				for _, boxes := range ranks {
					return boxes
				}
			}
		}
	}
	l.stray(topic)
	return nil
}

// stray counts a message that no source claims and remembers its topic.
func (l *listener) stray(topic []byte) {
	l.unclaimed.Add(1)
	if len(topic) > 256 {
		topic = topic[:256]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.strays, string(topic)) {
		return
	}
	if len(l.strays) == maxStrays {
		l.strays = l.strays[1:]
	}
	l.strays = append(l.strays, string(topic))
}

func (l *listener) strayTopics() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.strays)
}
