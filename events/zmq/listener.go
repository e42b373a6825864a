package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/events/payload"
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
	topics map[string]map[int][]*mailbox // topic -> rank -> whose; replaced, never changed
	holds  map[subject]uint64            // the connection that holds the claims with a subject
	strays []stray                       // at most maxStrays, in no order
}

// subject is what tells the messages of a shared socket apart. Several claims may have the same one.
type subject struct {
	topic string
	rank  int
}

func newListener(t Transport, rank func([]byte) (int, bool), addr string, ln net.Listener) *listener {
	l := &listener{transport: t, rank: rank, addr: addr, ln: ln, holds: make(map[subject]uint64)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.tasks.Go(l.acceptPublishers)
	return l
}

// close ends the listener and waits for its goroutines.
func (l *listener) close() {
	l.cancel()
	l.ln.Close()
	l.tasks.Wait()
}

func (l *listener) addMailbox(b *mailbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes = append(l.boxes, b)
	l.indexTopics()
}

// removeMailbox reports whether b was the last.
func (l *listener) removeMailbox(b *mailbox) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes = slices.DeleteFunc(l.boxes, func(other *mailbox) bool { return other == b })
	l.indexTopics()
	return len(l.boxes) == 0
}

// indexTopics rebuilds topics. Sources of several tenants may claim the same.
func (l *listener) indexTopics() {
	topics := make(map[string]map[int][]*mailbox)
	for _, b := range l.boxes {
		ranks := topics[b.subject.topic]
		if ranks == nil {
			ranks = make(map[int][]*mailbox)
			topics[b.subject.topic] = ranks
		}
		ranks[b.subject.rank] = append(ranks[b.subject.rank], b)
	}
	l.topics = topics
}

// acceptPublishers takes connections until the listener is closed.
func (l *listener) acceptPublishers() {
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
			l.servePublisher(raw, conn)
		})
	}
}

// servePublisher deals out what one publisher sends until it disconnects.
func (l *listener) servePublisher(raw net.Conn, number uint64) {
	// The port is new each time, so the publishers of one host are taken for one.
	t := l.transport
	t.peer, _, _ = net.SplitHostPort(raw.RemoteAddr().String())
	c, err := t.greetLive(l.ctx, raw, zmq4.NewMsg([]byte{1}))
	if err != nil {
		return // a port scan, or no publisher
	}
	defer c.Close()
	var ended error
	defer func() { l.releaseSubjects(number, ended) }()
	p := &sender{conn: number, from: raw.RemoteAddr()}
	for {
		m, err := c.Recv()
		if err != nil {
			ended = err
			return
		}
		size := 0
		for _, f := range m.Frames {
			size += len(f)
		}
		boxes := l.mailboxesOf(m, p)
		if len(boxes) > 0 {
			m.Frames = slices.Clone(m.Frames) // they wait, and the connection uses its list again
		}
		for _, b := range boxes {
			m.Block.Retain()
			b.putMessage(number, m, size)
		}
		m.Block.Release()
	}
}

// sender is one connection. Only the goroutine that reads it uses this.
type sender struct {
	conn    uint64
	from    net.Addr
	numbers []*numbering // of each subject that it holds
}

// holdSubject returns the numbering of a subject on a connection that holds it, nil if another one does. The connection takes a
// subject that none holds.
func (l *listener) holdSubject(what subject, p *sender) *numbering {
	for _, n := range p.numbers {
		if n.subject == what {
			return n
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.holds[what]; held {
		return nil
	}
	l.holds[what] = p.conn
	n := &numbering{subject: what}
	p.numbers = append(p.numbers, n)
	return n
}

// releaseSubjects ends what a connection holds that has ended because of why. The mailboxes learn of the end before another
// connection can hold them.
func (l *listener) releaseSubjects(conn uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		if l.holds[b.subject] == conn {
			b.putEnd(conn, why)
		}
	}
	maps.DeleteFunc(l.holds, func(_ subject, holder uint64) bool { return holder == conn })
}

// mailboxesOf returns those that get a message of a connection, none if no source claims it, or if another connection holds the
// claim. A message with a wrong number of frames is its topic's, for the stream to count.
func (l *listener) mailboxesOf(m payload.Message, p *sender) (all []*mailbox) {
	frames := m.Frames
	topic, _, _ := bytes.Cut(frames[0], []byte{0}) // SGLang appends epochs behind a NUL
	l.mu.Lock()
	topics := l.topics
	l.mu.Unlock()
	ranks := topics[string(topic)]
	rank, named := 0, false
	switch {
	case m.Oversize > 0: // the rank stands behind the events
		rank, named = l.heldRank(ranks, p.conn), true
	case len(frames) == 3 && l.rank != nil:
		rank, named = l.rank(frames[2])
	}
	own := boxesOf(ranks, rank, named)
	var of *numbering
	if len(own) > 0 {
		if of = l.holdSubject(own[0].subject, p); of == nil {
			for _, b := range own {
				b.refusals.countRefusal(p.from)
			}
			return nil
		}
		all = own
	}
	if len(frames) == 3 && len(frames[1]) >= 8 {
		number := binary.BigEndian.Uint64(frames[1])
		for _, n := range p.numbers {
			if n == of {
				n.addOwn(number)
			} else if n.subject.topic == string(topic) && n.takesOther(number) {
				all = slices.Concat(all, ranks[n.subject.rank])
			}
		}
	}
	switch {
	case len(all) == 0:
		if !named {
			rank = NoRank
		}
		l.countStray(string(topic), rank, p.from)
	case of == nil:
		l.forgetStray(string(topic), rank)
	}
	return all
}

// heldRank returns the only rank of a topic, or the only one whose claim a connection holds. It returns
// NoRank if there are several: to the wrong one the message would look like a restart of its engine.
func (l *listener) heldRank(ranks map[int][]*mailbox, conn uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := NoRank
	for rank, boxes := range ranks {
		switch {
		case len(ranks) > 1 && l.holds[boxes[0].subject] != conn:
		case found != NoRank:
			return NoRank
		default:
			found = rank
		}
	}
	return found
}

// boxesOf returns the mailboxes for a rank. A message that names none is of rank 0, or of the only rank.
func boxesOf(ranks map[int][]*mailbox, rank int, named bool) []*mailbox {
	if boxes := ranks[rank]; len(boxes) > 0 || named || len(ranks) != 1 {
		return boxes
	}
	for _, boxes := range ranks {
		return boxes
	}
	return nil
}

// stray is a topic and rank that no source claims.
type stray struct {
	topic    string
	rank     int
	from     net.Addr // of the last message
	messages uint64
	at       time.Time // of the last message
}

// countStray counts a message that no source claims and remembers its topic. Anybody may send any topic:
// where there are too many, the one with the fewest messages makes room, so that a topic which comes
// again and again stays.
func (l *listener) countStray(topic string, rank int, from net.Addr) {
	l.unclaimed.Add(1)
	if len(topic) > maxStrayTopic {
		topic = topic[:maxStrayTopic]
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.strays, func(s stray) bool { return s.topic == topic && s.rank == rank })
	if at < 0 {
		if at = len(l.strays); at < maxStrays {
			l.strays = append(l.strays, stray{})
		} else {
			at = 0
			for i, s := range l.strays {
				if least := &l.strays[at]; s.messages < least.messages || s.messages == least.messages && s.at.Before(least.at) {
					at = i
				}
			}
		}
		l.strays[at] = stray{topic: topic, rank: rank}
	}
	s := &l.strays[at]
	s.messages, s.from, s.at = s.messages+1, from, now
}

// forgetStray forgets a rank that turned out to be numbered together with one that is claimed.
func (l *listener) forgetStray(topic string, rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strays = slices.DeleteFunc(l.strays, func(s stray) bool { return s.topic == topic && s.rank == rank })
}

// listStrays returns the strays that no source claims now, and what sources claim.
func (l *listener) listStrays() (all []Stray) {
	l.mu.Lock()
	defer l.mu.Unlock()
	claims := make([]Claim, len(l.boxes))
	for i, b := range l.boxes {
		claims[i] = b.claim
	}
	endpoint := bindScheme + "tcp://" + l.addr
	if strings.HasPrefix(l.addr, ":") {
		endpoint = bindScheme + "tcp://*" + l.addr
	}
	for _, s := range l.strays {
		if len(boxesOf(l.topics[s.topic], max(s.rank, 0), s.rank != NoRank)) > 0 {
			continue // its source was registered since
		}
		all = append(all, Stray{
			Endpoint: endpoint, Topic: s.topic, Rank: s.rank, From: s.from.String(),
			Messages: s.messages, At: s.at, Claims: claims,
		})
	}
	return all
}
