// Package publisher puts the events of an engine on real sockets, the way
// vLLM and SGLang do: a PUB socket for the live stream and a ROUTER socket that
// replays the batches that a reader missed.
//
//	Publish --> seq --> ring (newest batches) <-- ROUTER [id, "", start]
//	              |                               --> [id, "", (topic,) seq, payload] ...
//	              v                               --> [id, "", (topic,) ff*8, ""]
//	             PUB [topic, seq, payload]
//
// Invariants
//  1. Sequences start at 0 and have no holes.
//  2. The ring ends with the newest published batch.
//  3. A replay request is exactly [identity, "", 8 bytes]; any other is ignored,
//     as the engines do.
//
// Concurrency: Publish and LastSeq may be called from any goroutine. A replay runs during
// the live stream. It sends the batches that the ring held when the request came.
//
// Cost: one encoding and one write per batch; the ring holds payloads, not events.
package publisher

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/lab/sim/engine"
)

// Options describe one publisher, which is one data-parallel rank.
type Options struct {
	Host      string // address to listen on; ports are chosen by the system
	Rank      int
	BlockSize int // tokens per block, published with every stored event
	Wire      Wire
	Topic     string
	// TopicInReplay selects the newer of the two reply layouts.
	TopicInReplay bool
	// Ring is how many batches can be replayed.
	Ring int
	// Queue is how many batches wait for slow subscribers before new ones are
	// discarded; 0 is no limit.
	Queue int
}

// Publisher is a pair of listening sockets with one sequence.
type Publisher struct {
	o      Options
	pub    zmq4.Socket
	router zmq4.Socket
	done   chan struct{} // closed when the replay goroutine ended

	mu      sync.Mutex // guards the rest
	enc     *encoder
	ring    [][]byte // payload of seq is at seq % len
	next    uint64
	first   uint64 // the batches before it are forgotten
	replays int
	lose    int  // batches from here on that are not sent
	lost    bool // the newest was not
	now     func() time.Time
}

// endOfReplay is the sequence of the marker after the last replayed batch.
var endOfReplay = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Listen opens both sockets and starts to serve replays.
func Listen(o Options) (*Publisher, error) {
	if o.Ring < 1 {
		return nil, fmt.Errorf("cannot replay from a ring of %d batches", o.Ring)
	}
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	p := &Publisher{
		o:      o,
		pub:    zmq4.NewPub(context.Background(), quiet),
		router: zmq4.NewRouter(context.Background(), quiet),
		done:   make(chan struct{}),
		enc:    newEncoder(o),
		ring:   make([][]byte, o.Ring),
		now:    time.Now,
	}
	if err := p.pub.SetOption(zmq4.OptionHWM, o.Queue); err != nil {
		return nil, fmt.Errorf("cannot limit the queue to %d batches: %w", o.Queue, err)
	}
	for _, s := range []zmq4.Socket{p.pub, p.router} {
		if err := s.Listen("tcp://" + o.Host + ":0"); err != nil {
			p.pub.Close()
			p.router.Close()
			return nil, fmt.Errorf("cannot listen on %q: %w", o.Host, err)
		}
	}
	go p.serve()
	return p, nil
}

// Endpoint returns the address of the live stream.
func (p *Publisher) Endpoint() string { return "tcp://" + p.pub.Addr().String() }

// ReplayEndpoint returns the address of the replay server.
func (p *Publisher) ReplayEndpoint() string { return "tcp://" + p.router.Addr().String() }

// Publish sends one batch and returns its sequence.
func (p *Publisher) Publish(events []engine.Event) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	payload, err := p.enc.batch(p.now(), events)
	if err != nil {
		return 0, fmt.Errorf("cannot encode a batch of %d events: %w", len(events), err)
	}
	seq := p.next
	p.ring[seq%uint64(len(p.ring))] = payload
	p.next++
	if p.lost = p.lose > 0; p.lost {
		p.lose--
		return seq, nil
	}
	// SendMulti, not Send: Send writes frame by frame, six writes a message.
	err = p.pub.SendMulti(zmq4.NewMsgFrom([]byte(p.o.Topic), binary.BigEndian.AppendUint64(nil, seq), payload))
	if err != nil {
		return seq, fmt.Errorf("cannot publish batch %d: %w", seq, err)
	}
	return seq, nil
}

// Lose keeps the next n batches from the live stream; replays have them.
func (p *Publisher) Lose(n int) {
	p.mu.Lock()
	p.lose = n
	p.mu.Unlock()
}

// Forget keeps only the newest batch for replays, and those that follow.
func (p *Publisher) Forget() {
	p.mu.Lock()
	p.first = p.next - min(p.next, 1)
	p.mu.Unlock()
}

// Lost reports whether the newest batch was kept from the live stream.
func (p *Publisher) Lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// LastSeq returns the newest sequence, -1 before the first batch.
func (p *Publisher) LastSeq() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.next) - 1
}

// Replays returns how many replay requests were served.
func (p *Publisher) Replays() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replays
}

// Close closes the sockets. Batches that subscribers have not read may be lost.
func (p *Publisher) Close() error {
	err := p.pub.Close()
	if e := p.router.Close(); err == nil {
		err = e
	}
	<-p.done
	return err
}

// serve answers replay requests until the socket is closed.
func (p *Publisher) serve() {
	defer close(p.done)
	for {
		msg, err := p.router.Recv()
		if err != nil {
			return
		}
		f := msg.Frames
		if len(f) != 3 || len(f[1]) != 0 || len(f[2]) != 8 {
			continue
		}
		p.replay(f[0], binary.BigEndian.Uint64(f[2]))
	}
}

// replay sends what the ring holds from start on, then the end marker. A reader
// that went away costs the rest of its replay.
func (p *Publisher) replay(identity []byte, start uint64) {
	first, payloads := p.since(start)
	for i, payload := range payloads {
		seq := binary.BigEndian.AppendUint64(nil, first+uint64(i))
		if p.reply(identity, seq, payload) != nil {
			return
		}
	}
	// The next request finds out if this one could not be delivered.
	_ = p.reply(identity, endOfReplay, []byte{})
}

func (p *Publisher) reply(identity, seq, payload []byte) error {
	if p.o.TopicInReplay {
		return p.router.SendMulti(zmq4.NewMsgFrom(identity, []byte{}, []byte(p.o.Topic), seq, payload))
	}
	return p.router.SendMulti(zmq4.NewMsgFrom(identity, []byte{}, seq, payload))
}

// since returns the batches the ring still holds from start on.
func (p *Publisher) since(start uint64) (first uint64, payloads [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replays++
	n := uint64(len(p.ring))
	first = max(start, p.first)
	if p.next > n {
		first = max(first, p.next-n)
	}
	for seq := first; seq < p.next; seq++ {
		payloads = append(payloads, p.ring[seq%n])
	}
	return first, payloads
}
