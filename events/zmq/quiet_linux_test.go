//go:build !386 && !s390x

package zmq

import (
	"net"
	"syscall"
	"testing"

	"example.com/conductor/internal/must"
)

// TestDelaysAcknowledgements holds that a TCP connection that is read has delayed acknowledgements, also after the
// kernel went back to immediate ones.
func TestDelaysAcknowledgements(t *testing.T) {
	raw, theirs := socketPair(t, "tcp", "127.0.0.1:0")
	conn, err := raw.(*net.TCPConn).SyscallConn()
	must.Succeed(t, err)
	immediate := func() (on int) {
		t.Helper()
		var failed error
		must.Succeed(t, conn.Control(func(fd uintptr) {
			on, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK)
		}))
		must.Succeed(t, failed)
		return on
	}
	ours, buf := quiet(raw), make([]byte, 10)
	for range 3 {
		must.Succeed(t, conn.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) }))
		if immediate() == 0 {
			t.Fatal("the test cannot ask for immediate acknowledgements")
		}
		for range delayEvery {
			theirs.Write(buf)
			_, err := ours.Read(buf)
			must.Succeed(t, err)
		}
		if immediate() != 0 {
			t.Error("acknowledgements are immediate after reads")
		}
	}
}
