package zmq

import (
	"bufio"
	"fmt"
	"net"
	"time"
)

// Framing of ZMTP 3 (rfc.zeromq.org/spec/23): a greeting of 64 bytes, then
// frames of one flag byte, a size of 1 or 8 bytes and a body.
const (
	greetingSize = 64

	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04

	// Publishers send 3 or 4 frames a message. More are tolerated, so that a
	// wrong count is the reader's to judge, but not without end.
	maxFrames = 64
	// Metadata of a handshake is a socket type and an identity of 255 bytes.
	maxCommand = 4 << 10
	// What is written is short: greeting, READY, one request, PONGs. A peer that
	// does not read it must not hold up the reading goroutine for ever.
	writeTimeout = 5 * time.Second
)

// guard is a net.Conn that reads through a buffer, follows the framing of what
// passes and fails before a size over the limit reaches the library, which
// would allocate it.
type guard struct {
	net.Conn
	r     *bufio.Reader
	limit uint64 // bytes of one message
	err   error

	greeting int    // bytes of the greeting still to come
	flags    byte   // of the current frame
	header   int    // size bytes still to come, 0 in a body, -1 before the flags
	size     uint64 // as read so far; in a body, bytes still to come
	bytes    uint64 // of the current message so far
	frames   int    // of the current message so far
}

func newGuard(c net.Conn, limit int) *guard {
	return &guard{
		Conn: c, r: bufio.NewReaderSize(c, readBuffer), limit: uint64(limit),
		greeting: greetingSize, header: -1,
	}
}

func (g *guard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.r.Read(p)
	if g.err = g.follow(p[:n]); g.err != nil {
		return 0, g.err
	}
	return n, err
}

func (g *guard) Write(p []byte) (int, error) {
	if err := g.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return g.Conn.Write(p)
}

// follow advances the framing over bytes that are about to be handed out.
func (g *guard) follow(p []byte) error {
	for len(p) > 0 {
		switch {
		case g.greeting > 0:
			n := min(g.greeting, len(p))
			g.greeting -= n
			p = p[n:]
		case g.header < 0:
			g.flags, g.size, g.header = p[0], 0, 1
			if g.flags&flagLong != 0 {
				g.header = 8
			}
			p = p[1:]
		case g.header > 0:
			g.size = g.size<<8 | uint64(p[0])
			p = p[1:]
			if g.header--; g.header == 0 {
				if err := g.admit(); err != nil {
					return err
				}
			}
		default:
			n := min(g.size, uint64(len(p)))
			g.size -= n
			p = p[n:]
			g.endBody()
		}
	}
	return nil
}

// admit judges a frame whose size is known.
func (g *guard) admit() error {
	if g.flags&flagCommand != 0 && g.size > maxCommand {
		return fmt.Errorf("the peer announces a command of %d bytes, limit is %d", g.size, maxCommand)
	}
	if g.size > g.limit || g.bytes+g.size > g.limit {
		return fmt.Errorf("the peer announces a frame of %d bytes after %d of the same message, limit is %d", g.size, g.bytes, g.limit)
	}
	g.bytes += g.size
	if g.frames++; g.frames > maxFrames {
		return fmt.Errorf("the peer sends a message of more than %d frames", maxFrames)
	}
	g.endBody()
	return nil
}

// endBody moves on to the next frame once the body is complete.
func (g *guard) endBody() {
	if g.size > 0 {
		return
	}
	g.header = -1
	if g.flags&flagMore == 0 {
		g.bytes, g.frames = 0, 0
	}
}
