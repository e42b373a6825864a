package server

import (
	"context"
	"net"
	"sync"
)

// net/http writes an answer of more than 4 KiB to its connection in two pieces: the
// header with the first 4 KiB, and the rest. A write to a socket costs more than most of
// an answer, so joinedConn sends both pieces in one. Without it a query takes 8 to 9 % more of the
// server's time where 128 instances are answered (docs/benchmarks/query.md).

// joinedSize is the most that joinedConn holds back, in bytes: the answer of 128
// instances, with its header, is half of it.
const joinedSize = 32 << 10

var joinedBuffers = sync.Pool{New: func() any { return new([joinedSize]byte) }}

// tcpConn is what net/http uses of a TCP connection.
type tcpConn interface {
	net.Conn
	CloseWrite() error
}

// joinedConn joins all writes between holdWrites and sendHeld. One goroutine may call holdWrites,
// Write and sendHeld at a time.
type joinedConn struct {
	tcpConn
	buffer *[joinedSize]byte // nil outside of holdWrites and sendHeld
	held   int               // bytes of buffer
	paced  pacedWriter       // of the request at hand
}

// holdWrites lets Write hold data back until sendHeld.
func (c *joinedConn) holdWrites() { c.buffer = joinedBuffers.Get().(*[joinedSize]byte) }

// Write implements net.Conn.
func (c *joinedConn) Write(p []byte) (int, error) {
	if c.buffer == nil {
		return c.tcpConn.Write(p)
	}
	if len(p) <= joinedSize-c.held {
		c.held += copy(c.buffer[c.held:], p)
		return len(p), nil
	}
	if err := c.flush(); err != nil {
		return 0, err
	}
	return c.tcpConn.Write(p)
}

// sendHeld writes what Write has held back, and ends holdWrites.
func (c *joinedConn) sendHeld() error {
	err := c.flush()
	joinedBuffers.Put(c.buffer)
	c.buffer = nil
	return err
}

// flush writes what is held back. If it cannot, it closes the connection: net/http believes that everything was sent, and
// would begin the next answer behind half of this one.
func (c *joinedConn) flush() error {
	if c.held == 0 {
		return nil
	}
	_, err := c.tcpConn.Write(c.buffer[:c.held])
	c.held = 0
	if err != nil {
		c.Close()
	}
	return err
}

// Joined returns a listener whose connections send an answer of a Server in one write.
func Joined(l net.Listener) net.Listener { return joinedListener{l} }

// joinedListener accepts connections as joinedConn.
type joinedListener struct{ net.Listener }

func (l joinedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(tcpConn); ok {
		return &joinedConn{tcpConn: tcp}, err
	}
	return c, err
}

type joinedKey struct{}

// withJoinedConn adds a joinedConn to the context of its requests.
func withJoinedConn(ctx context.Context, c net.Conn) context.Context {
	if joined, ok := c.(*joinedConn); ok {
		return context.WithValue(ctx, joinedKey{}, joined)
	}
	return ctx
}

// joinedConnOf returns the connection of a request, nil if there is none.
func joinedConnOf(ctx context.Context) *joinedConn {
	c, _ := ctx.Value(joinedKey{}).(*joinedConn)
	return c
}
