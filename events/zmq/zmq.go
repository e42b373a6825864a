// Package zmq owns the sockets: it subscribes to a publisher and asks its
// replay service, one connection at a time, and survives what a peer may send.
//
//	Subscribe:  dial -> handshake (SUB)    -> send "subscribe to all" --+
//	Replay:     dial -> handshake (DEALER) -> send ["", start seq]  ----+--> Subscription
//	                                                                         Recv, Close
//	bytes:      net.Conn -> pulse (heartbeats) -> framing (blocks, ZMTP frames, limits)
//	                     -> payload.Message; the handshake: -> zmq4.Conn
//
// Where publishers connect to us instead, Sockets listens and deals what arrives
// out to the sources it is meant for: see sockets.go.
//
// One call is one attempt. Nothing here retries or reconnects: a lost
// connection is an error of Recv, and the reader decides what it means.
// That is why zmq4's sockets are not used, only its handshake: a socket
// queues in goroutines that outlive Close, reconnects without saying so, and
// has no deadline for a handshake. Its connection allocates memory for each frame, so
// framing reads messages.
//
// Invariants:
//
//  1. A peer's length field never decides an allocation beyond
//     Transport.MaxMessage. A publisher's message over that is read past, so that it
//     costs itself and not the connection; framing fails the connection over 1 GiB.
//  2. Recv returns messages only. ZMTP commands are answered (PING) or dropped.
//  3. A peer that accepts and then says nothing costs one attempt of at most
//     Transport.DialTimeout plus Transport.HandshakeTimeout.
//  4. Ending ctx or calling Close ends a blocked call at once.
//  5. A connection that delivers nothing any more fails, even where the route
//     swallows all messages: by heartbeats if the peer has ever answered one, by
//     the kernel's probes else.
//
// Recv belongs to one goroutine; Close may be called from any, repeatedly. A
// subscription has no goroutine of its own. Its memory is one block, of 2 KiB while the
// peer is silent.
package zmq

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/reach"
)

// Defaults of Transport.
const (
	// Twice what the decoder accepts.
	defaultMaxMessage = 64 << 20
	// A route that answers SYN later than this is no route to read events over.
	defaultDialTimeout = 5 * time.Second
	// A publisher answers from its I/O thread within a round trip.
	defaultHandshakeTimeout = 5 * time.Second
	defaultHeartbeat        = 10 * time.Second
)

// keepAlive declares a silent peer dead after 25 s. Publishers send nothing
// while they are idle, so nothing else would notice.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// Transport opens connections. Its zero value is ready to use.
type Transport struct {
	// MaxMessage is bytes of one message, all frames together; 64 MiB when zero. Of a larger one
	// a subscription returns the beginning, see payload.Message.Oversize.
	MaxMessage int
	// DialTimeout bounds connecting, name lookup included; 5 s when zero.
	DialTimeout time.Duration
	// HandshakeTimeout bounds greeting, handshake and the first message of ours;
	// 5 s when zero.
	HandshakeTimeout time.Duration
	// Heartbeat is how long a peer may be silent before it is asked for a sign of
	// life; 10 s when zero, never when negative.
	Heartbeat time.Duration
	// Memory counts the blocks that connections read into; nil counts nothing.
	Memory *payload.Memory
	// Reach says which endpoints may be connected to; nil is all. A name is looked up once for a
	// connection, and the address that is found is the one that is judged and used.
	Reach *reach.Rules
	// Dial opens connections, net.Dialer with DialTimeout when nil. It is called
	// for each attempt, so a name that has moved is found where it is now.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	pingRefusers *pingRefusers // of Sockets
	peer         string        // what pingRefusers knows the other side by
}

// Subscription is one live connection.
type Subscription = interface {
	// Recv returns the next message. The caller owns its block.
	// An error means that the connection is gone for good.
	Recv() (payload.Message, error)
	// Close ends the connection and a blocked Recv.
	Close() error
}

// Subscribe connects to a publisher and subscribes to everything it sends. It
// returns once the subscription is on the wire; the publisher acts on it a
// moment later and drops for this subscriber what it sends until then.
//
// An error about the endpoint itself has the method Permanent() bool.
func (t Transport) Subscribe(ctx context.Context, endpoint string) (Subscription, error) {
	return t.openConnection(ctx, endpoint, zmq4.Sub, zmq4.NewMsg([]byte{1}))
}

// Replay connects to a replay service and asks for every batch with sequence
// from or above that it still has. The request is the empty delimiter a ROUTER
// expects from a REQ, then from as 8 bytes big-endian.
func (t Transport) Replay(ctx context.Context, endpoint string, from uint64) (Subscription, error) {
	return t.openConnection(ctx, endpoint, zmq4.Dealer,
		zmq4.NewMsgFrom([]byte{}, binary.BigEndian.AppendUint64(nil, from)))
}

// openConnection makes one attempt: dial, handshake, hello.
func (t Transport) openConnection(ctx context.Context, endpoint string, typ zmq4.SocketType, hello zmq4.Msg) (Subscription, error) {
	network, addr, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if err := CheckReach(t.Reach, endpoint); err != nil {
		return nil, err
	}
	raw, err := t.dialEndpoint(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %q: %w", endpoint, err)
	}
	var c *conn
	if t.peer = endpoint; typ == zmq4.Sub {
		c, err = t.greetLive(ctx, raw, hello)
	} else {
		c, err = t.greetPeer(ctx, raw, typ, hello)
	}
	if err != nil {
		if ctx.Err() == nil {
			err = explainGreeting(err)
		}
		return nil, fmt.Errorf("cannot open a ZMTP connection to %q: %w", endpoint, err)
	}
	return c, nil
}

// explainGreeting says before an error of a greeting what probably listens there. The library has no errors to tell apart but texts.
func explainGreeting(err error) error {
	has := func(part string) bool { return strings.Contains(err.Error(), part) }
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		// libzmq hangs up on a peer without the mechanism that it wants, before it names the mechanism.
		return fmt.Errorf("the peer hung up during the greeting: it is no ZMTP peer, or wants CURVE or PLAIN: %w", err)
	case has("could not exchange greetings"):
		return fmt.Errorf("something listens there that does not speak ZMTP; is it the port of HTTP?: %w", err)
	case has(`peer="ROUTER" not compatible with "SUB"`):
		return fmt.Errorf("that is the port of replay, not of events: %w", err)
	case has(`PUB" not compatible with "DEALER"`):
		return fmt.Errorf("that is the port of events, not of replay: %w", err)
	}
	return err
}

func (t Transport) dialEndpoint(ctx context.Context, network, addr string) (net.Conn, error) {
	if t.Dial != nil {
		return t.Dial(ctx, network, addr)
	}
	dialer := net.Dialer{Timeout: cmp.Or(t.DialTimeout, defaultDialTimeout), KeepAliveConfig: keepAlive}
	if t.Reach != nil && network == "tcp" {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			if at, err := netip.ParseAddrPort(address); err != nil || !t.Reach.AllowsTCP(at) {
				return fmt.Errorf("the address %s %w", address, errReach)
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, addr)
}

// greetPeer makes a connection of bytes, dialed by either side, one of messages, and sends hello
// if it has frames. It owns raw from here on.
func (t Transport) greetPeer(ctx context.Context, raw net.Conn, typ zmq4.SocketType, hello zmq4.Msg) (*conn, error) {
	boundUnacknowledged(raw)
	c := &conn{peer: t.peer, pingRefusers: t.pingRefusers, release: context.AfterFunc(ctx, func() { raw.Close() })}
	c.heartbeats = heartbeatConn{Conn: quietReads(raw), interval: cmp.Or(t.Heartbeat, defaultHeartbeat)}
	// The deadline covers both directions until the peer has proven itself.
	raw.SetDeadline(time.Now().Add(cmp.Or(t.HandshakeTimeout, defaultHandshakeTimeout)))
	c.framing = newFraming(&c.heartbeats, cmp.Or(t.MaxMessage, defaultMaxMessage), t.Memory)
	c.framing.skips = typ == zmq4.Sub || typ == zmq4.Dealer // who follows us sends nothing large
	var err error
	if c.z, err = shakeHands(c.framing, typ); err == nil && len(hello.Frames) > 0 {
		err = c.z.SendMsg(hello)
	}
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.heartbeats.on = true
	return c, nil
}

// greetLive greets the publisher of a live connection and sends the first PING. Connections for replays and
// snapshots have none: their callers wait for an answer anyway, and bound the wait.
func (t Transport) greetLive(ctx context.Context, raw net.Conn, hello zmq4.Msg) (*conn, error) {
	c, err := t.greetPeer(ctx, raw, zmq4.Sub, hello)
	switch {
	case err != nil || c.heartbeats.interval <= 0:
		return c, err
	case t.pingRefusers.forgetPeer(t.peer):
		c.heartbeats.interval = 0
	default:
		if err := c.heartbeats.sendPing(); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// shakeHands speaks ZMTP 3.0 with no security. The library indexes past the end
// of truncated metadata and panics on socket types it does not know; from a
// peer both are only bad input.
func shakeHands(rw net.Conn, typ zmq4.SocketType) (z *zmq4.Conn, err error) {
	defer func() {
		if p := recover(); p != nil {
			z, err = nil, fmt.Errorf("the peer's handshake is malformed: %v", p)
		}
	}()
	// No identity: a ROUTER then makes up a unique one.
	return zmq4.Open(rw, null.Security(), typ, nil, false, nil)
}

// conn is a connection past its handshake.
type conn struct {
	z            *zmq4.Conn
	framing      *framing
	heartbeats   heartbeatConn
	release      func() bool // detaches the connection from its context
	peer         string
	pingRefusers *pingRefusers
	once         sync.Once
	err          error
}

func (c *conn) Recv() (payload.Message, error) {
	for {
		// A silent connection waits here for the shortest header, and not below readMessage, whose stack it would keep.
		if err := c.framing.fillBlock(2); err != nil {
			return payload.Message{}, c.closeFailed(err)
		}
		if m, command, err := c.nextMessage(); !command {
			return m, err
		}
	}
}

// nextMessage returns the next message, or obeys the next command.
func (c *conn) nextMessage() (m payload.Message, command bool, err error) {
	m, command, err = c.framing.readMessage()
	if command && err == nil {
		err = c.obeyCommand(m.Frames[0])
		m.Block.Release()
	}
	if err != nil {
		return payload.Message{}, false, c.closeFailed(err)
	}
	return m, command, nil
}

// closeFailed closes the connection, which an error of the peer or of the network has ended, and returns what Recv says of it.
func (c *conn) closeFailed(err error) error {
	if peerHungUp(err) && c.heartbeats.mayRefusePings() {
		c.pingRefusers.rememberPeer(c.peer)
	}
	c.Close()
	return fmt.Errorf("cannot read from the peer: %w", err)
}

// peerHungUp reports whether the peer has ended the connection.
func peerHungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

var errMalformed = errors.New("the peer sends a malformed command")

// obeyCommand does what a command asks for: the length of its name, its name, its data.
func (c *conn) obeyCommand(command []byte) error {
	if len(command) == 0 || int(command[0]) >= len(command) {
		return errMalformed
	}
	switch string(command[1 : 1+command[0]]) {
	case zmq4.CmdPing:
		return c.z.SendCmd(zmq4.CmdPong, nil)
	case zmq4.CmdPong:
		c.heartbeats.answered = true
	}
	return nil
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.err = c.framing.Close()
		c.release()
	})
	return c.err
}
