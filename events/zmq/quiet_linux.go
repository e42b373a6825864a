package zmq

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// announceEvery is how many reads of a connection there are for one that tells the scheduler.
// With 16 the monitor still takes a third of what it takes without quiet reads.
const announceEvery = 64

// quietConn is a connection whose reads mostly do not tell Go's scheduler that a system call begins.
//
// The scheduler wants to know because a call may block its thread. A read of a socket that is set to
// non-blocking returns at once, but net.Conn announces it all the same, and the first
// announcement after an idle moment wakes the runtime's monitor thread, which then sleeps and looks by turns
// until the process is idle again. A server to which a batch comes every millisecond is idle in between, so that
// each batch costs three switches of threads more than it has to: a sixth of the processor time.
//
// The monitor is what stops goroutines that run for long, and looks after the network when all processors
// are busy. So every 64th read does tell: a busy process has its monitor after some ten milliseconds.
type quietConn struct {
	net.Conn
	raw   syscall.RawConn
	reads int // since one told the scheduler

	// try is readOnce as a value, made once. It takes its argument and leaves its result here, so that a
	// read allocates nothing.
	try   func(fd uintptr) bool
	buf   []byte
	n     int
	errno syscall.Errno
}

// quietReads returns c with quiet reads, or c itself if it is not a socket of the system. One goroutine may read
// at a time.
func quietReads(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return c
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return c
	}
	q := &quietConn{Conn: c, raw: raw}
	q.try = q.readOnce
	return q
}

// Read implements net.Conn.
func (q *quietConn) Read(b []byte) (n int, err error) {
	if q.reads++; q.reads >= announceEvery || len(b) == 0 {
		q.reads = 0
		return q.Conn.Read(b)
	}
	q.buf = b
	err = q.raw.Read(q.try)
	q.buf = nil
	switch {
	case err != nil:
		return 0, err
	case q.errno != 0:
		return 0, &net.OpError{
			Op: "read", Net: q.LocalAddr().Network(), Source: q.LocalAddr(), Addr: q.RemoteAddr(),
			Err: os.NewSyscallError("read", q.errno),
		}
	case q.n == 0:
		return 0, io.EOF
	}
	return q.n, nil
}

// readOnce reads into buf. It reports false if nothing is there yet.
func (q *quietConn) readOnce(fd uintptr) bool {
	for {
		// #nosec G103 -- the kernel fills buf
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&q.buf[0])), uintptr(len(q.buf)))
		switch errno {
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
			continue
		case 0:
			q.n, q.errno = int(n), 0
		default:
			q.n, q.errno = 0, errno
		}
		return true
	}
}
