package zmq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Heartbeats of ZMTP 3.1 (rfc.zeromq.org/spec/37): a PING command asks the peer
// for a PONG. libzmq answers since 4.2, also when 3.0 was greeted.
const (
	// A peer that has answered before and now lets this many PINGs in a row pass
	// unanswered is gone.
	missedBeats = 3
	// What the kernel has sent and the peer has not acknowledged for that time ends
	// the connection. Keepalive does not run while such bytes wait, and TCP alone
	// would try again for a quarter of an hour.
	unacknowledged = 25 * time.Second
)

// pulse is a net.Conn that asks the peer for a sign of life when it is silent.
// It lies below the framing, so any byte is one. Reading is all it needs: the
// goroutine that reads is also the only one that writes once the handshake is
// over.
type pulse struct {
	net.Conn
	interval time.Duration // 0: off
	on       bool          // the handshake is over
	armed    time.Time     // when the read deadline was set
	asked    int           // PINGs since the last byte
	answered bool          // the peer sent a PONG on this connection
}

// Read returns neither bytes nor an error when the peer was silent for an interval.
func (p *pulse) Read(b []byte) (int, error) {
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
		if err := p.ping(); err != nil {
			return 0, err
		}
		p.asked++
	case p.answered:
		return 0, fmt.Errorf("the peer has answered no heartbeat for %v", time.Duration(p.asked)*p.interval)
	}
	return 0, nil
}

// ping asks for a PONG. Its time to live, two bytes, is 0: with any other the peer
// would wait for signs of ours, and we give none while it is busy sending.
func (p *pulse) ping() error {
	const name = "\x04PING"
	frame := append([]byte{flagCommand, byte(len(name) + 2)}, name+"\x00\x00"...)
	if err := p.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := p.Conn.Write(frame)
	return err
}
