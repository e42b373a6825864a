package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// churn publishes n batches: chains of blocks, and removals of the oldest above a number that
// the engine holds.
func (e *engine) churn(n, holds int) {
	var queue []uint64
	for h := range e.holds {
		queue = append(queue, h)
	}
	for i := range n {
		if i%2 == 0 || len(queue) <= holds {
			before := len(e.order)
			e.store(1+rand.IntN(8), 0)
			queue = append(queue, e.order[before:]...)
			continue
		}
		k := min(len(queue)-holds, 16)
		e.remove(queue[:k]...)
		queue = queue[k:]
	}
}

func TestFollowersOfARelay(t *testing.T) {
	for _, way := range []struct {
		name   string
		change func(*testing.T, *engine, *Config)
	}{
		{"everything in memory", func(_ *testing.T, _ *engine, c *Config) { c.Memory = 64 << 20 }},
		{"most of it in the past", func(_ *testing.T, _ *engine, c *Config) { c.Memory = 1 }},
		{"some of it on the disk", func(t *testing.T, e *engine, c *Config) {
			c.Memory, c.Disk, c.Dir = 1, tape.MinBytes, t.TempDir()
			e.change(func() { e.padding = 8 << 10 })
		}},
		{"all of it on the disk", func(t *testing.T, _ *engine, c *Config) { c.Memory, c.Disk, c.Dir = 1, 64<<20, t.TempDir() }},
		{"replies with topics", func(_ *testing.T, e *engine, c *Config) {
			c.Memory = 1
			e.change(func() { e.topics = true })
		}},
		{"lifetimes with ids", func(_ *testing.T, e *engine, c *Config) {
			c.Memory = 1
			e.change(func() { e.ids = true })
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, 100_000)
			var r *relayed
			e.store(3, 0)
			r = relayOf(t, e, func(c *Config) { way.change(t, e, c) })
			early := newFollower(t, r.live, r.replay)
			r.caughtUp(t, e)
			until(t, "the relay has a follower", func() bool { return r.Stats().Live == 1 })
			for range 80 { // the early follower stays within the tape
				e.churn(50, 2000)
				until(t, "the early follower has all", func() bool { return early.has(e) })
			}
			e.change(func() { e.ring, e.old = 10, e.old[len(e.old)-10:] })
			late := newFollower(t, r.live, r.replay)
			e.churn(50, 2000)
			r.caughtUp(t, e)
			until(t, "the early follower has all", func() bool { return early.has(e) })
			until(t, "the late follower has all", func() bool { return late.has(e) })
			if early.resets+late.resets > 0 {
				t.Errorf("the followers began anew %d and %d times: %+v", early.resets, late.resets, early.s.Status())
			}
			s := r.Stats()
			if (s.Tape.First > 0) != (s.Dumps > 0) {
				t.Errorf("the tape begins with %d after %d dumps", s.Tape.First, s.Dumps)
			}
			// A follower hangs up before the end marker if the live batches go on where its reply is by then.
			if s.Unfinished > 2 || s.DumpsLeftOut+s.BadRequests > 0 {
				t.Errorf("the relay says %+v", s)
			}
		})
	}
}

// TestFramesOfARelay compares what a relay sends with what the engine sends, byte by byte.
func TestFramesOfARelay(t *testing.T) {
	for _, e := range []*engine{newEngine(t, 100), newEngine(t, 100)} {
		e.change(func() { e.topics, e.ids = !e.topics, !e.ids })
		e.store(2, 0)
		r := relayOf(t, e, nil)
		r.caughtUp(t, e)
		until(t, "the relay is connected", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.Relay.live.Err() == nil })
		ofEngine, err := zmq.Transport{}.Subscribe(t.Context(), r.cfg.Endpoint)
		must.Succeed(t, err)
		ofRelay, err := zmq.Transport{}.Subscribe(t.Context(), "tcp://"+r.live.Addr().String())
		must.Succeed(t, err)
		until(t, "both are subscribed", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.peers) == 2 && r.Stats().Live == 1
		})
		e.store(5, 0)
		compare(t, ofEngine, ofRelay, 1)
		ofEngine, err = zmq.Transport{}.Replay(t.Context(), r.cfg.ReplayEndpoint, 0)
		must.Succeed(t, err)
		ofRelay, err = zmq.Transport{}.Replay(t.Context(), "tcp://"+r.replay.Addr().String(), 0)
		must.Succeed(t, err)
		compare(t, ofEngine, ofRelay, 3)
	}
}

func compare(t *testing.T, a, b zmq.Subscription, n int) {
	t.Helper()
	defer a.Close()
	defer b.Close()
	for range n {
		x, err := a.Recv()
		must.Succeed(t, err)
		y, err := b.Recv()
		must.Succeed(t, err)
		if got, want := frames(y), frames(x); got != want {
			t.Errorf("the relay sends %q where the engine sends %q", got, want)
		}
	}
}

func frames(m payload.Message) string {
	var all []string
	for _, f := range m.Frames {
		all = append(all, string(f))
	}
	return strings.Join(all, "|")
}

// TestEngineRestarts has followers see every lifetime's blocks and no other's.
func TestEngineRestarts(t *testing.T) {
	for _, way := range []struct {
		name   string
		first  uint64 // number of the new lifetime's first batch
		before int    // batches of it that the relay cannot have
		replay bool
		synced bool // the followers know all afterwards
	}{
		{"from 0", 0, 0, true, true},
		{"behind the number seen last, with replay", 0, 90, true, true},
		{"behind the number seen last, without replay but with ids", 500, 0, false, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			e := newEngine(t, 1000)
			e.change(func() { e.ids = !way.replay })
			r := relayOf(t, e, func(c *Config) {
				if !way.replay {
					c.ReplayEndpoint = ""
				}
			})
			until(t, "the relay is connected", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.peers) == 1 })
			f := newFollower(t, r.live, r.replay)
			until(t, "the relay has a follower", func() bool { return r.Stats().Live == 1 })
			e.churn(50, 20)
			r.caughtUp(t, e)
			e.restart(way.first)
			e.churn(way.before, 20)
			until(t, "the relay is back", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.peers) == 1 })
			e.store(3, 0)
			r.caughtUp(t, e)
			if way.synced {
				until(t, "the follower has the new lifetime", func() bool { return f.has(e) })
				return
			}
			until(t, "the follower knows that something is missing", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.s.Status().State == stream.Partial && len(f.holds) == 3
			})
		})
	}
}

// TestEngineGone ends live connections, and has new ones refused, while replays are answered.
func TestEngineGone(t *testing.T) {
	e := newEngine(t, 1000)
	r := relayOf(t, e, nil)
	f := newFollower(t, r.live, r.replay)
	e.store(3, 0)
	until(t, "the follower has all", func() bool { return f.has(e) })
	e.live.Close()
	e.restart(0)
	until(t, "the follower has no connection", func() bool { return !f.s.Status().Connected && r.Stats().Live == 0 })
	until(t, "the relay refuses", func() bool { return r.Stats().Refused > 0 })
	s, err := zmq.Transport{}.Replay(t.Context(), "tcp://"+r.replay.Addr().String(), 0)
	must.Succeed(t, err)
	defer s.Close()
	if m, err := s.Recv(); err != nil || len(m.Frames) != 3 {
		t.Errorf("a replay without the engine: %v", err)
	}
}

// TestHoleOfTheEngine: what the engine itself has lost, a relay does not hide, neither in its
// tape nor behind it.
func TestHoleOfTheEngine(t *testing.T) {
	for name, memory := range map[string]int64{"in the tape": 1 << 20, "behind the tape": 1} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, 100_000)
			r := relayOf(t, e, func(c *Config) { c.Memory = memory })
			until(t, "the relay is connected", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.peers) == 1 })
			e.churn(100, 50)
			e.change(func() { e.next += 3 })
			e.churn(3000, 50)
			r.caughtUp(t, e)
			f := newFollower(t, r.live, r.replay)
			until(t, "the follower has what there is, and knows that something is missing", func() bool {
				st := f.s.Status()
				return st.LastSeq+1 == e.next && st.State == stream.Partial && st.History != ""
			})
			if s := r.Stats(); memory == 1 && (s.Past.Doubt == "" || s.Dumps+s.DumpsLeftOut == 0) {
				t.Errorf("the past is taken for whole: %+v", s)
			}
			e.send(map[string]any{"type": "AllBlocksCleared"})
			e.restartTruth()
			e.churn(3000, 50)
			r.caughtUp(t, e)
			late := newFollower(t, r.live, r.replay)
			until(t, "a clear ends the doubt", func() bool { return late.has(e) && f.has(e) })
		})
	}
}

// restartTruth empties the truth after a clear.
func (e *engine) restartTruth() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.holds)
}

// TestUnreadablePayload goes on to followers as it is, and no dump claims to be whole behind it.
func TestUnreadablePayload(t *testing.T) {
	e := newEngine(t, 100_000)
	r := relayOf(t, e, func(c *Config) { c.Memory = 1 })
	e.churn(10, 50)
	e.raw([]byte("\x93no batch"))
	e.churn(3000, 50)
	r.caughtUp(t, e)
	if s := r.Stats(); s.Past.Doubt != "unread_events" {
		t.Errorf("the past behind a payload that is no batch: %q", s.Past.Doubt)
	}
	direct, relayed := newFollower(t, e.live, e.replay), newFollower(t, r.live, r.replay)
	until(t, "both followers are partial", func() bool {
		a, b := direct.s.Status(), relayed.s.Status()
		return a.State == stream.Partial && b.State == stream.Partial && a.LastSeq == b.LastSeq
	})
}

// TestDiskFails costs history, not batches.
func TestDiskFails(t *testing.T) {
	dir := t.TempDir() + "/history"
	var mu sync.Mutex
	var said []error
	e := newEngine(t, 100_000)
	e.change(func() { e.padding = 4 << 10 }) // and so the tape needs a new file for every 500 batches
	r := relayOf(t, e, func(c *Config) {
		c.Memory, c.Disk, c.Dir = 1, 16<<20, dir
		c.Report = func(err error) { mu.Lock(); said = append(said, err); mu.Unlock() }
	})
	heard := func(ok func(error) bool) bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(said, ok)
	}
	e.churn(2000, 500)
	r.caughtUp(t, e)
	must.Succeed(t, os.Rename(dir, t.TempDir()+"/gone")) // at once, the relay may be writing
	e.churn(2000, 500)
	r.caughtUp(t, e)
	until(t, "the relay says so", func() bool { return heard(func(err error) bool { return errors.Is(err, os.ErrNotExist) }) })
	must.Succeed(t, os.MkdirAll(dir, 0o700))
	until(t, "the disk is used again", func() bool {
		e.churn(100, 500)
		return heard(func(err error) bool { return err == nil })
	})
	r.caughtUp(t, e)
	f := newFollower(t, r.live, r.replay)
	until(t, "the follower has what the relay has", func() bool { return f.has(e) })
}

func TestBadRequests(t *testing.T) {
	e := newEngine(t, 100)
	r := relayOf(t, e, nil)
	e.store(1, 0)
	r.caughtUp(t, e)
	raw, err := zmq.Transport{}.Replay(t.Context(), "tcp://"+r.replay.Addr().String(), 7)
	must.Succeed(t, err)
	defer raw.Close()
	m, err := raw.Recv()
	must.Succeed(t, err)
	if len(m.Frames) != 3 || string(m.Frames[1]) != string(endNumber) || len(m.Frames[2]) != 0 {
		t.Errorf("a request for a number to come is answered by %q", frames(m))
	}
	if s := r.Stats(); s.Requests != 1 || s.BadRequests != 0 {
		t.Errorf("the relay counts %+v", s)
	}
}

func TestConfig(t *testing.T) {
	file := t.TempDir() + "/file"
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	for want, c := range map[string]Config{
		"scheme":            {Endpoint: "udp://engine:5557"},
		"port 0":            {Endpoint: "tcp://engine:5557", ReplayEndpoint: "tcp://engine:0"},
		"needs a directory": {Endpoint: "tcp://engine:5557", Disk: 1},
		"number of bytes":   {Endpoint: "tcp://engine:5557", Dir: t.TempDir()},
		"not a directory":   {Endpoint: "tcp://engine:5557", Dir: file, Disk: 1},
	} {
		if r, err := Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, not %q", c, err, want)
			if err == nil {
				r.Close()
			}
		}
	}
}

// TestFollowerBehindTheTape publishes faster than a follower reads, with a tape of some hundred
// batches. The follower meets holes, and numbers that it knows otherwise, and ends right.
func TestFollowerBehindTheTape(t *testing.T) {
	for name, ids := range map[string]bool{"without ids": false, "with ids": true} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, 100_000)
			e.change(func() { e.ids = ids })
			e.store(3, 0)
			r := relayOf(t, e, func(c *Config) { c.Memory = 1 })
			f := newFollower(t, r.live, r.replay)
			r.caughtUp(t, e)
			until(t, "the relay has a follower", func() bool { return r.Stats().Live == 1 })
			e.churn(6000, 2000)
			r.caughtUp(t, e)
			// A follower waits between attempts that contradict what it has.
			if !within(3*testPatience, func() bool { return f.has(e) }) {
				t.Errorf("the follower does not come to an end: %+v, %+v", f.s.Status(), r.Stats())
			}
		})
	}
}

// TestBatchLargerThanTheMemory: a batch that leaves the memory at once is a hole for live connections, which wait for the
// next batch then.
func TestBatchLargerThanTheMemory(t *testing.T) {
	e := newEngine(t, 100_000)
	e.store(1, 0)
	r := relayOf(t, e, func(c *Config) { c.Memory = 1 })
	r.caughtUp(t, e)
	live, err := zmq.Transport{}.Subscribe(t.Context(), "tcp://"+r.live.Addr().String())
	must.Succeed(t, err)
	defer live.Close()
	until(t, "the relay has a follower", func() bool { return r.Stats().Live == 1 })
	for i := range 3 {
		e.change(func() { e.padding = 2 * minMemory })
		e.store(1, 0)
		r.caughtUp(t, e)
		e.change(func() { e.padding = 0 })
		e.store(1, 0)
		m, err := live.Recv()
		must.Succeed(t, err)
		if n := binary.BigEndian.Uint64(m.Frames[1]); n != uint64(2*i+2) {
			t.Fatalf("batch %d comes, want %d", n, 2*i+2)
		}
		if n := int(r.Stats().Skipped); n > 2*(i+1) {
			t.Fatalf("%d holes after %d batches", n, i+1)
		}
	}
}

// TestLifetimeThatBeginsLate: a request for numbers before a lifetime needs no dump while the memory has all of it, so
// other followers that are sent dumps do not hold it up.
func TestLifetimeThatBeginsLate(t *testing.T) {
	e := newEngine(t, 100_000)
	e.restart(50)
	e.store(1, 0)
	r := relayOf(t, e, nil)
	r.caughtUp(t, e)
	for range maxDumps {
		r.dumps <- struct{}{}
	}
	f := newFollower(t, r.live, r.replay)
	until(t, "the follower has all", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.holds) == 1 })
}

// TestCloseRemovesFiles: the files of a relay have users' tokens, and no later one reads them.
func TestCloseRemovesFiles(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, 100_000)
	e.store(3, 0)
	r := relayOf(t, e, func(c *Config) { c.Disk, c.Dir = tape.MinBytes, dir })
	r.caughtUp(t, e)
	if files, err := tape.Files(dir); len(files) == 0 || err != nil {
		t.Fatalf("the relay has no files: %v", err)
	}
	r.Close()
	if files, err := tape.Files(dir); len(files) != 0 || err != nil {
		t.Errorf("left: %q, %v", files, err)
	}
}

// swallowed is a connection from which nothing arrives any more, once hole was set while it was read.
type swallowed struct {
	net.Conn
	hole   *atomic.Bool
	broken bool
}

func (s *swallowed) Read(b []byte) (int, error) {
	for {
		n, err := s.Conn.Read(b)
		if s.broken = s.broken || s.hole.Load(); !s.broken || err != nil {
			return n, err
		}
	}
}

// TestBusyEngineHangs: an engine that hangs in the middle of its work, with its connections open, is
// noticed, and so its followers lose the relay. When it goes on, all of them recover.
func TestBusyEngineHangs(t *testing.T) {
	const beat = 200 * time.Millisecond
	var hole atomic.Bool
	e := newEngine(t, 1<<20)
	r := relayOf(t, e, func(c *Config) {
		c.Memory = 64 << 20
		c.Transport = zmq.Transport{Heartbeat: beat, HandshakeTimeout: time.Second}
		c.Transport.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &swallowed{Conn: raw, hole: &hole}, err
		}
	})
	f := newFollower(t, r.live, r.replay)
	e.store(1, 0)
	until(t, "the follower is there", func() bool { return f.has(e) })
	began := time.Now()
	until(t, "busy for longer than a heartbeat", func() bool { e.store(1, 0); return time.Since(began) > 2*beat })
	hole.Store(true)
	until(t, "the relay notices", func() bool { e.store(1, 0); return !r.Stats().Stream.Connected })
	until(t, "the follower notices", func() bool { return !f.s.Status().Connected })
	hole.Store(false)
	until(t, "the follower has all of it", func() bool { return f.has(e) })
}
