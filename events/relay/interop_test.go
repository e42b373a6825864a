package relay

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"example.com/conductor/internal/must"
)

// python returns an interpreter with pyzmq and msgpack.
func python(t *testing.T) string {
	for _, name := range []string{os.Getenv("CONDUCTOR_PYTHON"), "/usr/bin/python3", "python3"} {
		if name != "" && exec.Command(name, "-c", "import zmq, msgpack").Run() == nil {
			return name
		}
	}
	must.Skip(t, "no python3 with zmq and msgpack (Debian: python3-zmq python3-msgpack; or set CONDUCTOR_PYTHON)")
	return ""
}

// libzmq is testdata/follower.py in another process.
type libzmq struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startLibzmq(t *testing.T, python string, r *relayed, from int, flags ...string) *libzmq {
	t.Helper()
	args := append([]string{"testdata/follower.py", "tcp://" + r.live.Addr().String(), "tcp://" + r.replay.Addr().String(),
		fmt.Sprint(from)},
		flags...)
	l := &libzmq{t: t, cmd: exec.Command(python, args...)}
	l.cmd.Stderr = os.Stderr
	out, err := l.cmd.StdoutPipe()
	must.Succeed(t, err)
	l.out = bufio.NewScanner(out)
	must.Succeed(t, l.cmd.Start())
	t.Cleanup(func() { l.cmd.Process.Kill(); l.cmd.Wait() })
	return l
}

func (l *libzmq) line() string {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the follower ended: %v", l.cmd.Wait())
	}
	return l.out.Text()
}

// got is what a follower says at its end.
type got struct{ replayed, first, last, holes, empty, live, liveHoles int }

func (l *libzmq) result() (g got) {
	l.t.Helper()
	line := l.line()
	_, err := fmt.Sscanf(line, "replayed %d %d %d %d %d live %d %d",
		&g.replayed, &g.first, &g.last, &g.holes, &g.empty, &g.live, &g.liveHoles)
	if err != nil {
		l.t.Fatalf("the follower says %q: %v", line, err)
	}
	return g
}

// TestInteropHistory has followers on libzmq read 100,000 batches: one in a hurry, one that
// stops in between for longer than buffers last, and one that vanishes. Another reads the past.
func TestInteropHistory(t *testing.T) {
	py := python(t)
	const n = 100_000
	e := newEngine(t, n)
	r := relayOf(t, e, func(c *Config) { c.Memory, c.Disk, c.Dir = 4<<20, 256<<20, t.TempDir() })
	until(t, "the relay is connected", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.peers) == 1 })
	for range n {
		e.store(1, 0)
	}
	r.caughtUp(t, e)
	if s := r.Stats(); s.Tape.First != 0 || s.Tape.Disk == 0 {
		t.Fatalf("the tape begins with %d and has %d bytes on the disk", s.Tape.First, s.Tape.Disk)
	}
	hurry := startLibzmq(t, py, r, 0, "--wait", "100")
	until(t, "it has subscribed", func() bool { return r.Stats().Live == 1 })
	pauses := startLibzmq(t, py, r, 0, "--pause", "1000", "2")
	leaves := startLibzmq(t, py, r, 0, "--leave", "500")
	for _, l := range []*libzmq{hurry, pauses} {
		if line := l.line(); line != "ended" {
			t.Fatalf("the follower says %q", line)
		}
	}
	for range 100 {
		e.store(1, 0)
	}
	if g, want := hurry.result(), (got{replayed: n, last: n - 1, live: 100}); g != want {
		t.Errorf("the follower in a hurry got %+v, not %+v", g, want)
	}
	if g, want := pauses.result(), (got{replayed: n, last: n - 1}); g != want {
		t.Errorf("the follower that pauses got %+v, not %+v", g, want)
	}
	must.Succeed(t, leaves.cmd.Wait())
	until(t, "the relay has no connections", func() bool { s := r.Stats(); return s.Live+s.Replays == 0 })
	if s := r.Stats(); s.Unfinished > 1 || s.Dumps > 0 {
		t.Errorf("the relay says %+v", s)
	}
}

// TestInteropDump has a follower on libzmq read a history that is mostly behind the tape.
func TestInteropDump(t *testing.T) {
	py := python(t)
	e := newEngine(t, 100_000)
	r := relayOf(t, e, func(c *Config) { c.Memory = 1 })
	e.churn(20_000, 5000)
	r.caughtUp(t, e)
	l := startLibzmq(t, py, r, 0)
	if line := l.line(); line != "ended" {
		t.Fatalf("the follower says %q", line)
	}
	if g := l.result(); g.first != 0 || g.last != 19_999 || g.replayed != 20_000 || g.holes != 0 || g.empty < 10_000 {
		t.Errorf("the follower got %+v", g)
	}
	if s := r.Stats(); s.Dumps != 1 {
		t.Errorf("the relay says %+v", s)
	}
}
