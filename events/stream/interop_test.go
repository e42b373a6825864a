package stream_test

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
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

// publisher is testdata/peer.py in another process.
type publisher struct {
	t            *testing.T
	cmd          *exec.Cmd
	in           io.WriteCloser
	out          *bufio.Reader
	live, replay string // ports
	snapshot     string // likewise, of recorder.py
}

func startPublisher(t *testing.T, python string, args ...string) *publisher {
	t.Helper()
	p := launchPublisher(t, python, args...)
	p.await()
	return p
}

// startRecorder starts testdata/recorder.py.
func startRecorder(t *testing.T, python string, args ...string) *publisher {
	t.Helper()
	p := launch(t, python, "testdata/recorder.py", withPorts(t, args, "--port", "--replay-port", "--snapshot-port")...)
	if _, err := fmt.Sscanf(p.line(), "ready %s %s %s", &p.live, &p.replay, &p.snapshot); err != nil {
		t.Fatalf("the publisher did not start: %v", err)
	}
	return p
}

// launchPublisher starts a process without waiting for it, as await does.
func launchPublisher(t *testing.T, python string, args ...string) *publisher {
	t.Helper()
	return launch(t, python, "testdata/peer.py", withPorts(t, args, "--port", "--replay-port")...)
}

// withPorts returns arguments with a port for each flag that they lack. The ports stay reserved, so a
// publisher that is killed can come back on them.
func withPorts(t *testing.T, args []string, flags ...string) []string {
	t.Helper()
	for _, flag := range flags {
		if !slices.Contains(args, flag) {
			args = append(slices.Clone(args), flag, freePort(t))
		}
	}
	return args
}

func launch(t *testing.T, python, script string, args ...string) *publisher {
	t.Helper()
	p := &publisher{t: t, cmd: exec.Command(python, append([]string{script}, args...)...)}
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	must.Succeed(t, err)
	p.out = bufio.NewReader(out)
	must.Succeed(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

func (p *publisher) await() {
	p.t.Helper()
	if _, err := fmt.Sscanf(p.line(), "ready %s %s", &p.live, &p.replay); err != nil {
		p.t.Fatalf("the publisher did not start: %v", err)
	}
}

// again starts the next life of the publisher on the ports of the last.
func (p *publisher) again(python string, args ...string) *publisher {
	p.t.Helper()
	return startPublisher(p.t, python, append(args, "--port", p.live, "--replay-port", p.replay)...)
}

func (p *publisher) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the publisher is gone: %v", err)
	}
	return strings.TrimSpace(s)
}

// do runs commands and returns the last sequence.
func (p *publisher) do(commands ...string) (last uint64) {
	p.t.Helper()
	for _, c := range commands {
		p.send(c)
		last = p.last()
	}
	return last
}

// send begins a command whose outcome last returns.
func (p *publisher) send(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// last returns the last sequence once a command is done, 2^64-1 before the first.
func (p *publisher) last() uint64 {
	p.t.Helper()
	line, last := p.line(), int64(0)
	if _, err := fmt.Sscanf(line, "ok %d", &last); err != nil {
		p.t.Fatalf("the publisher answers %q: %v", line, err)
	}
	return uint64(last)
}

// kill ends the process without giving it a word.
func (p *publisher) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// subscriber follows a publisher and keeps its blocks.
type subscriber struct {
	t    *testing.T
	s    *stream.Stream
	done chan struct{}

	mu     sync.Mutex
	blocks map[uint64]int // copies
	resets []string
	rank   int
}

func subscribe(t *testing.T, cfg stream.Config) *subscriber {
	if cfg.Transport == nil {
		cfg.Transport = zmq.Transport{}
	}
	cfg.BackoffMax = 200 * time.Millisecond
	c := &subscriber{t: t, s: stream.Open(cfg), done: make(chan struct{}), blocks: make(map[uint64]int), rank: -1}
	go c.run()
	t.Cleanup(c.close)
	return c
}

func (c *subscriber) run() {
	defer close(c.done)
	for {
		step, ok := c.s.Next()
		if !ok {
			return
		}
		c.mu.Lock()
		if step.Kind == stream.DropBlocks {
			clear(c.blocks)
			c.resets = append(c.resets, step.Reason)
		}
		for _, e := range step.Batch.Events {
			switch e.Kind {
			case events.Cleared:
				clear(c.blocks)
			default:
				for _, h := range e.Hashes {
					copies := 1
					if e.Kind == events.Removed {
						copies = -1
					}
					if c.blocks[h] += copies; c.blocks[h] <= 0 {
						delete(c.blocks, h)
					}
				}
			}
			c.rank = step.Batch.Rank
		}
		c.mu.Unlock()
	}
}

func (c *subscriber) close() {
	began := time.Now()
	c.s.Close()
	<-c.done
	// Without Close a connection whose peer hangs is given up after 30 s.
	if d := time.Since(began); d > 20*time.Second {
		c.t.Errorf("closing took %v", d)
	}
}

// until waits for a status.
func (c *subscriber) until(what string, ok func(stream.Status) bool) stream.Status {
	c.t.Helper()
	// The publisher is another process: nothing here can signal.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); ; <-tick.C {
		st := c.s.Status()
		if ok(st) {
			return st
		}
		if time.Now().After(end) {
			c.t.Fatalf("timed out: %s: %+v", what, st)
		}
	}
}

func (c *subscriber) untilAt(state stream.State, epoch, seq uint64) stream.Status {
	c.t.Helper()
	return c.until(fmt.Sprintf("%s at %d of epoch %d", state, seq, epoch), func(st stream.Status) bool {
		return st.State == state && st.Epoch == epoch && st.HasSeq && st.LastSeq == seq
	})
}

func (c *subscriber) wantBlocks(want map[uint64]bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := make(map[uint64]bool)
	for h := range c.blocks {
		got[h] = true
	}
	if !maps.Equal(got, want) {
		c.t.Errorf("has %d blocks, want %d: %s", len(got), len(want), sample(got, want))
	}
}

func sample(got, want map[uint64]bool) string {
	for h := range got {
		if !want[h] {
			return fmt.Sprintf("%#x is too many", h)
		}
	}
	for h := range want {
		if !got[h] {
			return fmt.Sprintf("%#x is missing", h)
		}
	}
	return ""
}

// blocks are the hashes of a life's batches from..to, to included.
func blocks(encoding string, life, from, to uint64) map[uint64]bool {
	m := make(map[uint64]bool)
	for seq := from; seq <= to; seq++ {
		h := life<<40 + seq + 1
		if strings.HasPrefix(encoding, "sglang") {
			h = -h
		}
		m[h] = true
	}
	return m
}

// A libzmq publisher in another process, in every encoding and both replay
// layouts, through history, loss, two crashes and a hole that stays.
func TestInterop(t *testing.T) {
	python := python(t)
	for _, c := range []struct{ encoding, layout, topic, id string }{
		{"vllm-map", "B", "kv-events", ""},
		{"vllm-bytes", "B", "", "payload"},
		{"vllm-array", "A", "kv@pod@model", "frame"},
		{"sglang-map", "A", "", ""},
		{"sglang-array", "A", "kv-events", ""},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			t.Parallel()
			args := []string{"--encoding", c.encoding, "--layout", c.layout, "--topic", c.topic, "--publisher-id", c.id, "--life"}
			p := startPublisher(t, python, append(args, "1")...)
			p.do("publish 20")
			sub := subscribe(t, stream.Config{
				Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
			})
			st := sub.untilAt(stream.Synced, 1, 19)
			if st.Replayed != 20 || st.Gaps != 0 || len(st.Dropped) != 0 {
				t.Errorf("history: %+v", st)
			}
			sub.wantBlocks(blocks(c.encoding, 1, 0, 19))

			sub.untilAt(stream.Synced, 1, p.do("publish 5", "empty", "publish 4"))
			sub.untilAt(stream.Synced, 1, p.do("lose 3", "remove 0", "publish 1"))
			want := blocks(c.encoding, 1, 1, 34)
			maps.DeleteFunc(want, func(h uint64, _ bool) bool {
				return blocks(c.encoding, 1, 25, 25)[h] || blocks(c.encoding, 1, 33, 33)[h]
			})
			sub.wantBlocks(want)
			if sub.rank != 0 {
				t.Errorf("rank is %d, want 0", sub.rank)
			}

			// Killed, and back with more batches than before.
			p.kill()
			sub.until("the connection is lost", func(st stream.Status) bool { return !st.Connected })
			p = p.again(python, append(args, "2")...)
			sub.untilAt(stream.Synced, 2, p.do("publish 50"))
			sub.wantBlocks(blocks(c.encoding, 2, 0, 49))

			// Killed, and back with fewer.
			p.kill()
			p = p.again(python, append(args, "3")...)
			sub.untilAt(stream.Synced, 3, p.do("publish 3"))
			sub.wantBlocks(blocks(c.encoding, 3, 0, 2))

			sub.untilAt(stream.Partial, 3, p.do("burn 2", "publish 1"))
			st = sub.untilAt(stream.Synced, 3, p.do("clear"))
			sub.wantBlocks(nil)
			delete(st.Dropped, events.ForeignReplay) // what contradicted the old publisher before its restart was known
			if st.Restarts != 2 || st.Reconnects < 2 || len(st.Dropped) != 0 {
				t.Errorf("the end: %+v", st)
			}
		})
	}
}

// More history than a socket takes at once, whole and with replies dropped at
// the ROUTER's high-water mark, the end marker among them.
func TestInteropLongHistory(t *testing.T) {
	python := python(t)
	f := func(batches, hwm int) stream.Status {
		t.Helper()
		p := startPublisher(t, python, "--tokens", "1024", "--layout", "B", "--replay-hwm", fmt.Sprint(hwm))
		last := p.do(fmt.Sprintf("lose %d", batches))
		sub := subscribe(t, stream.Config{
			Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
			ReplayTimeout: 500 * time.Millisecond,
		})
		// A replay that a busy machine begins too late is asked for again, in a new epoch.
		st := sub.until("synced", func(st stream.Status) bool {
			return st.State == stream.Synced && st.HasSeq && st.LastSeq == last
		})
		sub.wantBlocks(blocks("", 1, 0, last))
		return st
	}
	f(5000, 0)
	f(2000, 50)
}

func TestInteropShortRing(t *testing.T) {
	p := startPublisher(t, python(t), "--ring", "10")
	last := p.do("lose 100")
	sub := subscribe(t, stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
	})
	st := sub.untilAt(stream.Partial, 1, last)
	if st.Reason != stream.ReasonOverrun || st.Overruns != 1 {
		t.Errorf("status is %+v", st)
	}
	sub.wantBlocks(blocks("", 1, 90, 99))
}

// Without replay, a publisher that numbers from 1 and burns numbers.
func TestInteropWithoutReplay(t *testing.T) {
	python := python(t)
	p := startPublisher(t, python, "--first-seq", "1", "--xpub")
	sub := subscribe(t, stream.Config{Endpoint: "tcp://127.0.0.1:" + p.live, FirstSeq: 1})
	p.do("subscriber")
	sub.untilAt(stream.Synced, 1, p.do("publish 3"))
	st := sub.untilAt(stream.Partial, 1, p.do("burn 2", "publish 1"))
	if st.Reason != stream.ReasonGap || st.Gaps != 1 {
		t.Errorf("status is %+v", st)
	}
	sub.untilAt(stream.Synced, 1, p.do("clear", "publish 2"))
	p.kill()
	p = p.again(python, "--first-seq", "1", "--xpub", "--life", "2")
	p.do("subscriber")
	sub.untilAt(stream.Synced, 2, p.do("publish 4"))
	sub.wantBlocks(blocks("", 2, 1, 4))
}

// A publisher without replay is restarted and goes on with the next number: its id
// tells, in the payload or behind the sequence.
func TestInteropPublisherID(t *testing.T) {
	python := python(t)
	f := func(where string, restarted bool) {
		t.Helper()
		p := startPublisher(t, python, "--publisher-id", where, "--xpub")
		sub := subscribe(t, stream.Config{Endpoint: "tcp://127.0.0.1:" + p.live})
		p.do("subscriber")
		sub.untilAt(stream.Synced, 1, p.do("publish 2", "empty"))
		p.kill()
		p = p.again(python, "--publisher-id", where, "--xpub", "--life", "2", "--first-seq", "3")
		p.do("subscriber")
		if !restarted { // nothing but the id can tell
			sub.untilAt(stream.Synced, 1, p.do("publish 2"))
			return
		}
		st := sub.untilAt(stream.Partial, 2, p.do("publish 2", "empty"))
		sub.wantBlocks(blocks("", 2, 3, 4))
		if st.Restarts != 1 || st.Reason != stream.ReasonUnknown || len(st.Dropped) != 0 {
			t.Errorf("status is %+v", st)
		}
	}
	f("", false)
	f("payload", true)
	f("frame", true)
}

// A publisher that hangs with its sockets open: replays time out, closing does
// not.
func TestInteropHangingPublisher(t *testing.T) {
	python := python(t)
	p := startPublisher(t, python)
	p.do("publish 3", "ignore 1")
	sub := subscribe(t, stream.Config{
		Endpoint: "tcp://127.0.0.1:" + p.live, ReplayEndpoint: "tcp://127.0.0.1:" + p.replay,
		ReplayTimeout: 200 * time.Millisecond,
	})
	st := sub.until("partial", func(st stream.Status) bool { return st.State == stream.Partial })
	if st.Reason != stream.ReasonTimeout || !st.Connected {
		t.Errorf("status is %+v", st)
	}
	p.do("ignore 0")
	sub.s.Resync("test")
	// Epoch 2, or a later one if a busy machine answers too late.
	sub.until("synced", func(st stream.Status) bool {
		return st.State == stream.Synced && st.Epoch >= 2 && st.HasSeq && st.LastSeq == 2
	})
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	sub.s.Resync("test")
	sub.until("partial", func(st stream.Status) bool { return st.State == stream.Partial })
	sub.close()
}
