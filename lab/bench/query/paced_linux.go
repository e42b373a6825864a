package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.com/conductor/lab/harness"
)

// A pacer sends each request at its time, whatever became of those before, and counts its latency from that
// time on: a server that stands still makes all requests late that came meanwhile. Requests come at random
// (a Poisson process), as those of many routers do. If all connections wait for their answers, the next
// request waits for one of them, and that counts as well.
//
// It runs on one thread and waits for the sockets with a timeout in nanoseconds: timers of Go are up to 1 ms late where
// nothing else runs.
type pacer struct {
	k        *client
	epoll    int
	conns    []*pacedConn
	free     []*pacedConn
	gaps     *rand.Rand
	due, gap time.Duration // of the next request, since the start; mean time between two
	at       int           // of the next prompt
	late     harness.Latencies
}

// pacedConn is one connection with at most one request.
type pacedConn struct {
	fd      int
	request *request
	due     time.Duration // when the request should have been sent
	unsent  []byte
	answer  []byte
	whole   int // bytes of the answer with its header, 0 until they are known
	reads   int // answers
}

// pacedConnections is how many requests may be under way.
const pacedConnections = 64

func newPacer(k *client, address string, perSecond float64) (*pacer, error) {
	p := &pacer{k: k, gaps: rand.New(rand.NewPCG(ofGaps, 0)), gap: time.Duration(float64(time.Second) / perSecond)}
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	for i := range pacedConnections {
		c := &pacedConn{answer: make([]byte, 0, 64<<10)}
		if c.fd, err = dialRaw(address); err == nil {
			err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET,
				Fd: int32(i)})
		}
		if err != nil {
			p.close()
			return nil, fmt.Errorf("cannot connect: %w", err)
		}
		p.conns = append(p.conns, c)
	}
	p.free = append(p.free, p.conns...)
	return p, nil
}

// dialRaw connects a socket that does not block.
func dialRaw(address string) (fd int, err error) {
	to, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return 0, err
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	peer := &unix.SockaddrInet4{Port: to.Port}
	copy(peer.Addr[:], to.IP.To4())
	err = unix.Connect(fd, peer)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

func (p *pacer) close() {
	unix.Close(p.epoll)
	for _, c := range p.conns {
		unix.Close(c.fd)
	}
}

// run paces requests for a time, and returns once all of them are answered.
func (p *pacer) run(ctx context.Context, length time.Duration, l *harness.Latencies) error {
	start := time.Now()
	p.due = 0
	events := make([]unix.EpollEvent, len(p.conns))
	sinceFree := time.Duration(0) // a connection has been free since then
	for p.due < length || len(p.free) < len(p.conns) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for now := time.Since(start); p.due <= now && p.due < length && len(p.free) > 0; {
			if p.due >= sinceFree {
				p.late.Add(now - p.due)
			}
			c := p.free[len(p.free)-1]
			p.free = p.free[:len(p.free)-1]
			c.request, c.due = &p.k.requests[p.at], p.due
			p.at = (p.at + 1) % len(p.k.requests)
			c.unsent, c.answer, c.whole = c.request.whole, c.answer[:0], 0
			if err := c.writeRequest(); err != nil {
				return err
			}
			p.due += time.Duration(p.gaps.ExpFloat64() * float64(p.gap))
		}
		wait := 10 * time.Millisecond
		if p.due < length && len(p.free) > 0 {
			wait = max(0, p.due-time.Since(start))
		}
		n, err := epollWait(p.epoll, events, wait)
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:n] {
			c := p.conns[e.Fd]
			if e.Events&unix.EPOLLOUT != 0 && len(c.unsent) > 0 {
				if err := c.writeRequest(); err != nil {
					return err
				}
			}
			done, err := c.readAnswer()
			if err != nil {
				return err
			}
			if done {
				answered := time.Since(start)
				l.Add(answered - c.due)
				if len(p.free) == 0 {
					sinceFree = answered
				}
				p.free = append(p.free, c)
				if c.reads++; c.reads%sampled == 1 {
					if err := p.k.checkAnswer(c.request, c.answer[bytes.Index(c.answer, endOfHeader)+len(endOfHeader):]); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// epollWait waits for events at most as long as a time, to the nanosecond.
func epollWait(epoll int, events []unix.EpollEvent, wait time.Duration) (int, error) {
	if wait <= 0 {
		n, err := unix.EpollWait(epoll, events, 0)
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
		return max(n, 0), err
	}
	// EpollWait has milliseconds: of a shorter time the thread sleeps on the descriptor itself.
	timeout := unix.NsecToTimespec(int64(wait))
	fds := []unix.PollFd{{Fd: int32(epoll), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, err
	}
	n, err := unix.EpollWait(epoll, events, 0)
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return max(n, 0), err
}

var endOfHeader = []byte("\r\n\r\n")

// writeRequest sends what the socket takes of the request.
func (c *pacedConn) writeRequest() error {
	for len(c.unsent) > 0 {
		n, err := unix.Write(c.fd, c.unsent)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("cannot send a request: %w", err)
		}
		c.unsent = c.unsent[max(n, 0):]
	}
	return nil
}

// readAnswer reads what there is, and reports whether the answer is complete.
func (c *pacedConn) readAnswer() (done bool, err error) {
	for {
		if len(c.answer) == cap(c.answer) {
			c.answer = append(c.answer, 0)[:len(c.answer)]
		}
		n, err := unix.Read(c.fd, c.answer[len(c.answer):cap(c.answer)])
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("cannot read an answer: %w", err)
		case n == 0:
			return false, errors.New("the server has closed the connection")
		}
		c.answer = c.answer[:len(c.answer)+n]
		if c.whole == 0 {
			if c.whole, err = wholeAnswer(c.answer); err != nil {
				return false, err
			}
		}
		if c.whole > 0 && len(c.answer) >= c.whole {
			return true, nil
		}
	}
}

// wholeAnswer returns how long an answer with its header is, 0 until the header is there.
func wholeAnswer(text []byte) (int, error) {
	end := bytes.Index(text, endOfHeader)
	if end < 0 {
		return 0, nil
	}
	if !bytes.HasPrefix(text, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("the server answers %.300q", text)
	}
	_, after, found := bytes.Cut(text[:end], []byte("Content-Length: "))
	number, _, _ := bytes.Cut(after, []byte("\r"))
	length, err := strconv.Atoi(string(number))
	if !found || err != nil {
		return 0, fmt.Errorf("an answer tells no length: %.300q", text[:end])
	}
	return end + len(endOfHeader) + length, nil
}
