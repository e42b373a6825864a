package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// echo listens and sends back what it gets, in capitals.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 1024)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					io.WriteString(c, strings.ToUpper(string(buf[:n])))
				}
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, r *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr())
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// say sends a word and returns what comes back.
func say(c net.Conn, word string) string {
	io.WriteString(c, word)
	buf := make([]byte, len(word))
	n, _ := io.ReadFull(c, buf)
	return string(buf[:n])
}

func TestBarNamesReaders(t *testing.T) {
	r, err := Open(echo(t))
	must.Succeed(t, err)
	defer r.Close()
	one, other := dial(t, r), dial(t, r)
	for _, c := range []net.Conn{one, other} {
		if got := say(c, "hello"); got != "HELLO" {
			t.Fatalf("got %q", got)
		}
	}
	r.Bar(func(reader net.Conn) bool { return reader.RemoteAddr().String() == one.LocalAddr().String() })
	if got := say(one, "barred"); got != "" {
		t.Errorf("a barred reader is answered %q", got)
	}
	if got := say(other, "other"); got != "OTHER" {
		t.Errorf("another reader is answered %q", got)
	}
	r.Bar(func(net.Conn) bool { return true })
	if got := say(dial(t, r), "new"); got != "" {
		t.Errorf("a new reader is answered %q, all are barred", got)
	}
	r.Bar(nil)
	if got := say(dial(t, r), "free"); got != "FREE" {
		t.Errorf("got %q, no reader is barred", got)
	}
}

func TestProxyForwards(t *testing.T) {
	r, err := Open(echo(t))
	must.Succeed(t, err)
	defer r.Close()
	c := dial(t, r)
	if got := say(c, "hello"); got != "HELLO" {
		t.Errorf("got %q", got)
	}
	began := time.Now()
	r.Hold(100 * time.Millisecond)
	if got := say(c, "late"); got != "LATE" || time.Since(began) < 100*time.Millisecond {
		t.Errorf("held up, got %q after %v", got, time.Since(began))
	}
	r.Cut()
	if got := say(c, "gone"); got != "" {
		t.Errorf("a cut connection says %q", got)
	}
	r.Turn(echo(t))
	if got := say(dial(t, r), "moved"); got != "MOVED" {
		t.Errorf("got %q", got)
	}
	r.Spoil(func() Spoil { return Spoil{After: 3} })
	if got := say(dial(t, r), "spoiled"); got != "SPO" {
		t.Errorf("cut after three bytes, got %q", got)
	}
	r.Spoil(func() Spoil { return Spoil{Swallow: true} })
	c = dial(t, r)
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	io.WriteString(c, "nothing")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("swallowed, got %v", err)
	}
}
