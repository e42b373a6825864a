package zmq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Heartbeats of ZMTP 3.1 (rfc.zeromq.org/spec/37): a PING command asks the peer
// for a PONG. libzmq answers since 4.2, also when 3.0 was greeted.
const (
	// A peer that has answered before and now lets this many PINGs in a row pass
	// unanswered is gone, after three intervals without a byte.
	missedBeats = 2
	// What the kernel has sent and the peer has not acknowledged for that time ends
	// the connection. Keepalive does not run while such bytes wait, and TCP alone
	// would try again for a quarter of an hour.
	maxUnacknowledged = 25 * time.Second
	// A peer that ends the connection over a PING does so when it has read it. One that ends
	// later, before we have read its PONG, has ended for another reason.
	refusesWithin = 5 * time.Second
)

// heartbeatConn is a net.Conn that asks the peer for a sign of life when it is silent.
// It lies below the framing, so any byte is one. Reading is all it needs: the
// goroutine that reads is also the only one that writes once the handshake is
// over.
//
// A live connection begins with a PING, because only a peer that has answered one may be given
// up for its silence: others may just be idle. A publisher that is busy until it hangs would
// else never have been asked. TCP does not notice, as the kernel of a stopped process and a
// proxy in between acknowledge what they are sent.
type heartbeatConn struct {
	net.Conn
	interval time.Duration // 0: off
	on       bool          // the handshake is over
	armed    time.Time     // when the read deadline was set
	asked    int           // PINGs since the last byte
	pinged   time.Time     // when the last PING was sent on this connection
	answered bool          // the peer sent a PONG on it
}

// Read returns neither bytes nor an error when the peer was silent for an interval.
func (p *heartbeatConn) Read(b []byte) (int, error) {
	if !p.on || p.interval <= 0 {
		return p.Conn.Read(b)
	}
	// A deadline somewhat early is as good, and most reads set none.
	if now := time.Now(); now.Sub(p.armed) > p.interval/8 {
		if err := p.Conn.SetReadDeadline(now.Add(p.interval)); err != nil {
			return 0, err
		}
		p.armed = now
	}
	n, err := p.Conn.Read(b)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.asked = 0
		return n, err
	}
	p.armed = time.Time{}
	switch {
	case p.asked < missedBeats:
		if err := p.sendPing(); err != nil {
			return 0, err
		}
		p.asked++
	case p.answered:
		return 0, &silenceError{time.Duration(p.asked+1) * p.interval}
	}
	return 0, nil
}

// silenceError is the end of a connection whose peer is silent.
type silenceError struct{ silent time.Duration }

func (e *silenceError) Error() string {
	return fmt.Sprintf("the peer has sent nothing for %v, not even answers to heartbeats", e.silent)
}

// Silent returns how long before the error the last byte arrived.
func (e *silenceError) Silent() time.Duration { return e.silent }

// mayRefusePings reports whether the peer, which has hung up, may have done so over a PING.
func (p *heartbeatConn) mayRefusePings() bool {
	return !p.answered && time.Since(p.pinged) < refusesWithin
}

// pingRefusers remembers peers that hung up on a PING. ZMTP 3.0 knows no PING, and some
// implementations end a connection over a command that they do not know. The next connection to
// such a peer has none; the one after it has, for the peer may have hung up for another reason.
// The zero value is ready to use, nil remembers nothing.
type pingRefusers struct {
	mu    sync.Mutex
	peers map[string]struct{} // by address; guarded by mu
}

// maxPingRefusers bounds the peers that are remembered. More than that many engines do not restart
// between two connections.
const maxPingRefusers = 4096

// rememberPeer remembers a peer.
func (t *pingRefusers) rememberPeer(peer string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil || len(t.peers) >= maxPingRefusers {
		t.peers = make(map[string]struct{})
	}
	t.peers[peer] = struct{}{}
}

// forgetPeer reports whether a peer was remembered.
func (t *pingRefusers) forgetPeer(peer string) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.peers[peer]
	delete(t.peers, peer)
	return is
}

// sendPing asks for a PONG. Its time to live, two bytes, is 0: with any other the peer
// would wait for signs of ours, and we give none while it is busy sending.
func (p *heartbeatConn) sendPing() error {
	const name = "\x04PING"
	p.pinged = time.Now()
	frame := append([]byte{flagCommand, byte(len(name) + 2)}, name+"\x00\x00"...)
	if err := p.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := p.Conn.Write(frame)
	return err
}
