package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/events/payload"
)

const (
	// maxPending is how many bytes wait for a Flush.
	maxPending = 64 << 10
	// A peer has stallTimeout to take each maxWrite bytes.
	maxWrite     = 256 << 10
	stallTimeout = 30 * time.Second
	// A PING has a time to live of two bytes and at most 16 bytes that the PONG repeats.
	maxContext = 16
)

// Listen opens a socket that peers connect to: tcp://host:port, host * for every address and
// port 0 for a free one, or ipc://path. The error, if any, is an *endpointError where the endpoint can never work.
func Listen(endpoint string) (net.Listener, error) {
	at, bind := endpoint, splitEndpoint
	host, free := strings.CutSuffix(endpoint, ":0")
	if strings.HasPrefix(endpoint, "tcp://") {
		at, bind = bindScheme+endpoint, splitBound
		if free {
			at = bindScheme + host + ":1"
		}
	}
	network, addr, err := bind(at)
	if err != nil {
		var bad *endpointError
		if errors.As(err, &bad) {
			bad.Endpoint = endpoint
		}
		return nil, err
	}
	switch {
	case network == "unix":
		removeAbandoned(addr)
	case free:
		addr = strings.TrimSuffix(addr, "1") + "0"
	}
	ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(context.Background(), network, addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", endpoint, err)
	}
	return ln, nil
}

// removeAbandoned removes a socket whose process is gone.
func removeAbandoned(path string) {
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		c.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		os.Remove(path)
	}
}

// Peer is a connection that a peer made to a socket of ours. One goroutine may receive while
// another one sends.
type Peer struct {
	conn *conn
	raw  net.Conn

	mu      sync.Mutex // guards pending, and writes to raw
	pending []byte     // encoded and not written
}

// GreetAsPublisher greets a connection that was accepted as a PUB socket does.
func (t Transport) GreetAsPublisher(ctx context.Context, raw net.Conn) (*Peer, error) {
	return t.greetAccepted(ctx, raw, zmq4.Pub)
}

// GreetAsRouter greets a connection that was accepted as a ROUTER socket does.
func (t Transport) GreetAsRouter(ctx context.Context, raw net.Conn) (*Peer, error) {
	return t.greetAccepted(ctx, raw, zmq4.Router)
}

func (t Transport) greetAccepted(ctx context.Context, raw net.Conn, typ zmq4.SocketType) (*Peer, error) {
	t.Heartbeat = -1 // a PING would come between the bytes of a message
	c, err := t.greetPeer(ctx, raw, typ, zmq4.Msg{})
	if err != nil {
		return nil, fmt.Errorf("cannot open a ZMTP connection to %v: %w", raw.RemoteAddr(), err)
	}
	return &Peer{conn: c, raw: raw}, nil
}

// Receive returns the next message. The caller owns its block. An error means that the
// connection is gone.
func (p *Peer) Receive() (payload.Message, error) {
	for {
		m, command, err := p.conn.framing.readMessage()
		if err == nil && !command {
			return m, nil
		}
		if err == nil {
			err = p.answerCommand(m.Frames[0])
			m.Block.Release()
		}
		if err != nil {
			p.Close()
			return payload.Message{}, fmt.Errorf("cannot read from the peer: %w", err)
		}
	}
}

// answerCommand answers a PING. Other commands ask for nothing.
func (p *Peer) answerCommand(command []byte) error {
	if len(command) == 0 || int(command[0]) >= len(command) {
		return errMalformed
	}
	name, data := string(command[1:1+command[0]]), command[1+command[0]:]
	if name != zmq4.CmdPing {
		return nil
	}
	data = data[min(2, len(data)):]
	data = data[:min(maxContext, len(data))]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = append(p.pending, flagCommand, byte(1+len(zmq4.CmdPong)+len(data)), byte(len(zmq4.CmdPong)))
	p.pending = append(append(p.pending, zmq4.CmdPong...), data...)
	return p.writePending()
}

// Send sends a message. It may wait for Flush or for the next message. A peer that takes
// nothing for 30 s loses the connection.
func (p *Peer) Send(frames ...[]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		if len(f) > 255 {
			p.pending = binary.BigEndian.AppendUint64(append(p.pending, flags|flagLong), uint64(len(f)))
		} else {
			p.pending = append(p.pending, flags, byte(len(f)))
		}
		if len(f) < maxPending {
			p.pending = append(p.pending, f...)
		} else if err := p.writePending(); err != nil {
			return err
		} else if err := p.writeBytes(f); err != nil {
			return err
		}
	}
	if len(p.pending) < maxPending {
		return nil
	}
	return p.writePending()
}

// Flush sends what waits.
func (p *Peer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writePending()
}

// writePending writes what waits. mu is held.
func (p *Peer) writePending() error {
	err := p.writeBytes(p.pending)
	p.pending = p.pending[:0]
	return err
}

// writeBytes writes b. After an error the connection is closed. mu is held.
func (p *Peer) writeBytes(b []byte) error {
	for len(b) > 0 {
		part := b[:min(len(b), maxWrite)]
		err := p.raw.SetWriteDeadline(time.Now().Add(stallTimeout))
		if err == nil {
			_, err = p.raw.Write(part)
		}
		if err != nil {
			p.Close()
			return fmt.Errorf("cannot write to the peer: %w", err)
		}
		b = b[len(part):]
	}
	return nil
}

// Close ends the connection and blocked calls.
func (p *Peer) Close() error { return p.conn.Close() }
