package zmq

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// socketPair returns both ends of a connection.
func socketPair(t *testing.T, network, addr string) (ours, theirs net.Conn) {
	t.Helper()
	ln, err := net.Listen(network, addr)
	must.Succeed(t, err)
	defer ln.Close()
	theirs, err = net.Dial(network, ln.Addr().String())
	must.Succeed(t, err)
	ours, err = ln.Accept()
	must.Succeed(t, err)
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// Reads of a quiet connection return what those of the connection itself would: bytes in any portions,
// the end, and the errors that callers tell apart.
func TestQuietReads(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		raw, theirs := socketPair(t, network, addr)
		ours := quietReads(raw)
		sent := make([]byte, 300_000)
		for i := range sent {
			sent[i] = byte(i * i >> 7)
		}
		go func() {
			for at := 0; at < len(sent); {
				n := min(1+at%5000, len(sent)-at)
				theirs.Write(sent[at : at+n])
				at += n
			}
		}()
		var got []byte
		for buf := make([]byte, 4096); len(got) < len(sent); {
			n, err := ours.Read(buf[:1+len(got)%len(buf)])
			must.Succeed(t, err)
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%s: other bytes arrive than were sent", network)
		}

		buf := make([]byte, 10)
		for range 2 * announceEvery { // some of them ordinary reads
			must.Succeed(t, ours.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if n, err := ours.Read(buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("%s: at the deadline: %d bytes, %v", network, n, err)
			}
		}
		must.Succeed(t, ours.SetReadDeadline(time.Time{}))
		if n, err := ours.Read(nil); n != 0 || err != nil {
			t.Errorf("%s: a read of nothing: %d bytes, %v", network, n, err)
		}
		theirs.Close()
		for range 2 * announceEvery {
			if n, err := ours.Read(buf); n != 0 || err != io.EOF {
				t.Fatalf("%s: at the end: %d bytes, %v", network, n, err)
			}
		}
		ours.Close()
		for range 2 * announceEvery {
			if n, err := ours.Read(buf); n != 0 || !errors.Is(err, net.ErrClosed) {
				t.Fatalf("%s: closed: %d bytes, %v", network, n, err)
			}
		}
	}

	raw, theirs := socketPair(t, "tcp", "127.0.0.1:0")
	must.Succeed(t, theirs.(*net.TCPConn).SetLinger(0))
	theirs.Close() // resets
	if _, err := quietReads(raw).Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v", err)
	}
}

// A read that waits ends with the connection.
func TestQuietReadCloses(t *testing.T) {
	raw, _ := socketPair(t, "tcp", "127.0.0.1:0")
	ours := quietReads(raw)
	ended := make(chan error, 1)
	go func() {
		_, err := ours.Read(make([]byte, 10))
		ended <- err
	}()
	ours.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// A quiet read allocates nothing.
func TestQuietAllocatesNothing(t *testing.T) {
	raw, theirs := socketPair(t, "tcp", "127.0.0.1:0")
	ours := quietReads(raw)
	buf, out := make([]byte, 10), []byte("a")
	if n := alloctest.PerRun(200, func() {
		theirs.Write(out)
		ours.Read(buf)
	}); n != 0 {
		t.Errorf("%v allocations a read", n)
	}
}
