package ingest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"example.com/conductor/events/zmq"
	"example.com/conductor/lab/harness"
)

// played is what a playing process says at its end.
type played struct {
	Batches int     `json:"batches"`
	Bytes   int     `json:"bytes"` // of payloads
	Seconds float64 `json:"seconds"`
	// Late is by how much the process was behind its rate at most: the server did not read, or the
	// process had no processor.
	Late time.Duration `json:"late_ns"`
}

// sentMarker is a marker that a playing process has sent.
type sentMarker struct {
	Publisher int   `json:"publisher"`
	N         int   `json:"n"`
	At        int64 `json:"at_ns"` // before it was written to the socket
}

// said is a line of a playing process.
type said struct {
	Ports  []int       `json:"ports,omitempty"` // of its publishers
	Ready  bool        `json:"ready,omitempty"` // each has a subscriber
	Marker *sentMarker `json:"marker,omitempty"`
	End    *played     `json:"end,omitempty"`
}

// player is a process with PUB sockets, one for each publisher.
type player struct {
	load  Recorded
	rec   *recording
	socks []*playedSocket
	say   *json.Encoder
}

// playedSocket is the socket of a publisher. It has one subscriber.
type playedSocket struct {
	publisher int
	salt      uint64
	ln        net.Listener
	peer      *zmq.Peer
	seq       uint64
	markers   int
}

// RunPlayer runs a playing process: it says the ports of its publishers, then that each has a subscriber, sends
// the recording from the time on that the line on in says, in ns since 1970, and ends with in.
func RunPlayer(load Recorded, in io.Reader, out io.Writer) error {
	p := &player{load: load, say: json.NewEncoder(out)}
	var err error
	p.rec, err = load.readStream(func(engine, engines int) bool {
		for at := load.Process; at < load.Publishers; at += load.Processes {
			if at%engines == engine {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	if err := p.openSockets(); err != nil {
		return err
	}
	orders := bufio.NewReader(in)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := p.awaitSubscribers(ctx); err != nil {
		return err
	}
	var begin int64
	if _, err := fmt.Fscanln(orders, &begin); err != nil {
		return fmt.Errorf("cannot read when to begin: %w", err)
	}
	end, err := p.playRecording(ctx, time.Unix(0, begin))
	if err != nil {
		return err
	}
	if err := p.say.Encode(said{End: end}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, orders) // sockets stay open until the end of the orders
	return err
}

// openSockets opens the sockets and says their ports.
func (p *player) openSockets() error {
	var ports []int
	for at := p.load.Process; at < p.load.Publishers; at += p.load.Processes {
		ln, err := zmq.Listen("tcp://127.0.0.1:0")
		if err != nil {
			return err
		}
		_, salt := copyOf(at, p.rec.engines)
		p.socks = append(p.socks, &playedSocket{publisher: at, salt: salt, ln: ln})
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return p.say.Encode(said{Ports: ports})
}

// awaitSubscribers waits until each socket has its subscriber.
func (p *player) awaitSubscribers(ctx context.Context) error {
	for _, s := range p.socks {
		raw, err := s.ln.Accept()
		if err != nil {
			return err
		}
		if s.peer, err = (zmq.Transport{}).GreetAsPublisher(ctx, raw); err != nil {
			return err
		}
		m, err := s.peer.Receive() // the subscription
		if err != nil {
			return err
		}
		m.Block.Release()
		go func() { // answers heartbeats
			for {
				m, err := s.peer.Receive()
				if err != nil {
					return
				}
				m.Block.Release()
			}
		}()
	}
	return p.say.Encode(said{Ready: true})
}

// playRecording sends the recording. The batches of all copies of an engine go out next to each other.
func (p *player) playRecording(ctx context.Context, begin time.Time) (*played, error) {
	end := new(played)
	byEngine := make([][]*playedSocket, p.rec.engines)
	for _, s := range p.socks {
		engine, _ := copyOf(s.publisher, p.rec.engines)
		byEngine[engine] = append(byEngine[engine], s)
	}
	var step time.Duration // between two batches of all processes
	if p.load.Rate > 0 {
		step = time.Duration(float64(time.Second) / p.load.Rate)
	}
	nextMarker := begin.Add(p.load.Every * time.Duration(p.load.Process) / time.Duration(p.load.Processes))
	// All processes count the batches of all publishers, so that they keep one order.
	copies := make([]int, p.rec.engines)
	for at := range p.load.Publishers {
		copies[at%p.rec.engines]++
	}
	var buf []byte
	due := begin
	if !harness.Wait(ctx, time.Until(begin)) {
		return nil, ctx.Err()
	}
	for i := range p.rec.messages {
		m := &p.rec.messages[i]
		for _, s := range byEngine[m.engine] {
			at := due.Add(step * time.Duration(s.salt))
			now := time.Now()
			if wait := at.Sub(now); step > 0 && wait > 0 {
				if !harness.Wait(ctx, wait) {
					return nil, ctx.Err()
				}
				now = time.Now()
			} else if step > 0 {
				end.Late = max(end.Late, -wait)
			}
			buf = m.appendPayload(buf[:0], s.salt, now)
			if err := s.sendBatch(buf); err != nil {
				return nil, err
			}
			end.Batches++
			end.Bytes += len(buf)
			if p.load.Every > 0 && now.After(nextMarker) {
				nextMarker = now.Add(p.load.Every * time.Duration(p.load.Processes))
				if err := p.sendMarker(s); err != nil {
					return nil, err
				}
			}
		}
		due = due.Add(step * time.Duration(copies[m.engine]))
	}
	end.Seconds = time.Since(begin).Seconds()
	for _, s := range p.socks { // behind them, a server has applied all
		if err := p.sendMarker(s); err != nil {
			return nil, err
		}
	}
	return end, nil
}

// sendMarker sends the next marker of a socket.
func (p *player) sendMarker(s *playedSocket) error {
	at := time.Now()
	m := markerBatch(s.publisher, s.markers, p.rec.groups)
	if err := s.sendBatch(m.appendPayload(nil, 0, at)); err != nil {
		return err
	}
	s.markers++
	return p.say.Encode(said{Marker: &sentMarker{s.publisher, s.markers - 1, at.UnixNano()}})
}

// sendBatch sends a batch.
func (s *playedSocket) sendBatch(payload []byte) error {
	err := s.peer.Send(nil, binary.BigEndian.AppendUint64(nil, s.seq), payload)
	s.seq++
	if err = errors.Join(err, s.peer.Flush()); err != nil {
		return fmt.Errorf("publisher %d has lost its subscriber behind batch %d: %w", s.publisher, s.seq, err)
	}
	return nil
}
