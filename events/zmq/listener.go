package zmq

import (
	"bytes"
	"context"
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
	strays []stray                       // at most maxStrays, in no order
	// sequences has what is known of subjects that are claimed or held, such as the connection that holds one.
	sequences map[subject]*sequence
}

// subject is what tells the messages of a shared socket apart. Several claims may have the same one.
type subject struct {
	topic string
	rank  int
}

func newListener(t Transport, rank func([]byte) (int, bool), addr string, ln net.Listener) *listener {
	l := &listener{transport: t, rank: rank, addr: addr, ln: ln, sequences: make(map[subject]*sequence)}
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
	l.forgetSequences()
}

// forgetSequences forgets those that no source claims any more and no connection holds. The caller holds mu.
func (l *listener) forgetSequences() {
	maps.DeleteFunc(l.sequences, func(what subject, s *sequence) bool {
		unclaimed := len(l.topics[what.topic][what.rank]) == 0
		if unclaimed {
			s.dropWaiting()
		}
		return unclaimed && !s.holds
	})
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
	for {
		m, err := c.Recv()
		if err != nil {
			ended = err
			return
		}
		l.dealMessage(m, number, raw.RemoteAddr())
	}
}

// dealMessage puts a message of a connection into the mailboxes of those whose it is. It owns the block.
func (l *listener) dealMessage(m payload.Message, conn uint64, from net.Addr) {
	defer m.Block.Release()
	topic, _, _ := bytes.Cut(m.Frames[0], []byte{0}) // SGLang appends epochs behind a NUL
	l.mu.Lock()
	ranks := l.topics[string(topic)]
	l.mu.Unlock()
	a := newArrival(m, conn, l.rankOf(m, ranks, conn))
	all := l.dealAmong(ranks, a, from)
	for _, d := range all {
		for _, due := range d.due {
			for _, b := range d.boxes {
				due.message.Block.Retain()
				b.putMessage(conn, due.message, due.size)
			}
			due.message.Block.Release()
		}
	}
	if len(all) == 0 && len(ranks[a.rank]) == 0 {
		l.countStray(topic, a.rank, from)
	}
}

// dealt are messages that are due to some mailboxes.
type dealt struct {
	boxes []*mailbox
	due   []*arrival
}

// dealAmong deals a message out to the ranks of its topic. The caller owns the blocks.
func (l *listener) dealAmong(ranks map[int][]*mailbox, a *arrival, from net.Addr) (all []dealt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, boxes := range ranks {
		if due := l.messagesFor(boxes, a, from); len(due) > 0 {
			all = append(all, dealt{boxes, due})
		}
	}
	return all
}

// messagesFor returns what is to be put into the mailboxes of one subject now that a message of its topic has come. The caller holds
// mu, and owns the blocks.
func (l *listener) messagesFor(boxes []*mailbox, a *arrival, from net.Addr) (due []*arrival) {
	what := boxes[0].subject
	own := what.rank == a.rank
	s := l.sequences[what]
	if s == nil {
		s = &sequence{share: l.transport.Memory.LiveShare()}
		l.sequences[what] = s
	}
	if s.conn != a.conn && !s.holds && (own || len(s.waiting) == 0) {
		s.begin(a.conn)
	}
	switch {
	case s.conn == a.conn && own:
		due = s.addOwn(a)
	case s.conn == a.conn:
		due = s.addOther(a)
	case own:
		for _, b := range boxes {
			b.refusals.countRefusal(from)
		}
	}
	for _, one := range due {
		l.forgetStray(what.topic, one.rank)
	}
	return due
}

// releaseSubjects ends what a connection holds that has ended because of why. The mailboxes learn of the end before another
// connection can hold them.
func (l *listener) releaseSubjects(conn uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		if l.sequences[b.subject].isHeldBy(conn) {
			b.putEnd(conn, why)
		}
	}
	for _, s := range l.sequences {
		if s.conn == conn {
			s.begin(0)
		}
	}
	l.forgetSequences()
}

// rankOf returns the rank of a message, NoRank if it names none and several are claimed, or none. A message with a wrong number of
// frames is its topic's, for the stream to count.
func (l *listener) rankOf(m payload.Message, ranks map[int][]*mailbox, conn uint64) int {
	rank, named := 0, false
	switch {
	case m.Oversize > 0: // the rank stands behind the events
		return l.heldRank(ranks, conn)
	case len(m.Frames) == 3 && l.rank != nil:
		rank, named = l.rank(m.Frames[2])
	}
	if boxes := boxesOf(ranks, rank, named); len(boxes) > 0 {
		return boxes[0].subject.rank
	}
	if named {
		return rank
	}
	return NoRank
}

// heldRank returns the only rank of a topic, or the only one whose claim a connection holds. It returns
// NoRank if there are several: to the wrong one the message would look like a restart of its engine.
func (l *listener) heldRank(ranks map[int][]*mailbox, conn uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := NoRank
	for rank, boxes := range ranks {
		switch {
		case len(ranks) > 1 && !l.sequences[boxes[0].subject].isHeldBy(conn):
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
func (l *listener) countStray(topic []byte, rank int, from net.Addr) {
	l.unclaimed.Add(1)
	if len(topic) > maxStrayTopic {
		topic = topic[:maxStrayTopic]
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.strays, func(s stray) bool { return s.topic == string(topic) && s.rank == rank })
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
		l.strays[at] = stray{topic: string(topic), rank: rank}
	}
	s := &l.strays[at]
	s.messages, s.from, s.at = s.messages+1, from, now
}

// forgetStray forgets a rank that turned out to be numbered together with one that is claimed.
func (l *listener) forgetStray(topic string, rank int) {
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
