package conformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/freeport"
)

// Engine is one publisher on real sockets: PUB for the live stream, ROUTER for
// replays.
type Engine struct {
	Topic        string
	Live, Replay string // endpoints
	Next         uint64 // sequence of the next batch
	Counted      uint64 // markers or events that the test has numbered

	topicInReplies bool // four frames a reply and not three
	sentinel       bool // replies end with an empty payload

	pub, router zmq4.Socket

	mu       sync.Mutex // guards the rest
	ring     []batch
	requests []string
}

type batch struct {
	seq     uint64
	payload []byte
}

// Open starts an engine on free ports of this machine, which it keeps while it is closed. Its
// replies to replay requests have three frames or four, and an end or none.
func Open(topic, frames string, sentinel bool) (*Engine, error) {
	e := &Engine{Topic: topic, topicInReplies: frames == "4", sentinel: sentinel}
	live, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	replay, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	return e, e.open("tcp://"+live, "tcp://"+replay)
}

func (e *Engine) open(live, replay string) error {
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	e.pub, e.router = zmq4.NewPub(context.Background(), quiet), zmq4.NewRouter(context.Background(), quiet)
	for s, endpoint := range map[zmq4.Socket]string{e.pub: live, e.router: replay} {
		// The port of an engine that was closed a moment ago may be in use still.
		var err error
		if !scripttest.Until(func() bool { err = s.Listen(endpoint); return err == nil }) {
			return fmt.Errorf("cannot listen on %s: %w", endpoint, err)
		}
	}
	e.Live, e.Replay = "tcp://"+e.pub.Addr().String(), "tcp://"+e.router.Addr().String()
	go e.serve(e.router)
	return nil
}

// Close closes its sockets.
func (e *Engine) Close() {
	e.pub.Close()
	e.router.Close()
}

// Restart is the next life of the engine: the ports stay, nothing else does.
func (e *Engine) Restart() error {
	e.mu.Lock()
	e.ring = nil
	e.mu.Unlock()
	e.Next = 0
	return e.Reopen()
}

// Reopen breaks all connections; the engine goes on.
func (e *Engine) Reopen() error {
	e.Close()
	return e.open(e.Live, e.Replay)
}

// Heard reports whether a client is subscribed.
func (e *Engine) Heard() bool { return len(e.pub.(zmq4.Topics).Topics()) > 0 }

// Await returns once a subscriber is there.
func (e *Engine) Await(t *testing.T) {
	t.Helper()
	if !scripttest.Until(e.Heard) {
		t.Fatalf("nobody subscribed to %s", e.Live)
	}
}

// Publish sends one batch; a lost one is only in the ring, an unkept one is not.
func (e *Engine) Publish(t *testing.T, seq uint64, payload []byte, lost, unkept bool) {
	t.Helper()
	if !unkept {
		e.mu.Lock()
		e.ring = append(e.ring, batch{seq, payload})
		e.mu.Unlock()
	}
	e.Next = seq + 1
	if !lost {
		e.Send(t, [][]byte{[]byte(e.Topic), binary.BigEndian.AppendUint64(nil, seq), payload})
	}
}

// Send sends one message as it is, once a client listens.
func (e *Engine) Send(t *testing.T, frames [][]byte) {
	t.Helper()
	e.Await(t)
	if err := e.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		t.Fatal(err)
	}
}

// serve answers replay requests until the socket is closed.
func (e *Engine) serve(router zmq4.Socket) {
	for {
		m, err := router.Recv()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.requests = append(e.requests, fmt.Sprintf("%q", m.Frames[1:]))
		ring := e.ring
		e.mu.Unlock()
		if len(m.Frames) != 3 || len(m.Frames[2]) != 8 {
			continue
		}
		reply := func(seq, payload []byte) {
			frames := [][]byte{m.Frames[0], nil}
			if e.topicInReplies {
				frames = append(frames, []byte(e.Topic))
			}
			router.SendMulti(zmq4.NewMsgFrom(append(frames, seq, payload)...))
		}
		from := binary.BigEndian.Uint64(m.Frames[2])
		for _, b := range ring {
			if b.seq >= from {
				reply(binary.BigEndian.AppendUint64(nil, b.seq), b.payload)
			}
		}
		if e.sentinel {
			reply(bytes.Repeat([]byte{0xff}, 8), nil)
		}
	}
}

// Requested lists the frames of the replay requests, identities left out.
func (e *Engine) Requested() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.requests, "\n")
}
