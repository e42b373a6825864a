package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream/streamtest"
)

// open starts a stream and a consumer in a bubble and ends both with the test.
func open(t *testing.T, p *streamtest.Publisher, change func(*Config)) (*Stream, *consumer) {
	cfg := Config{
		Endpoint: "live", ReplayEndpoint: "replay", FirstSeq: p.First,
		Transport: p, Decode: decodeText,
	}
	if change != nil {
		change(&cfg)
	}
	s := Open(cfg)
	c := consume(t, s, cfg.FirstSeq)
	t.Cleanup(func() {
		s.Close()
		<-c.done
	})
	return s, c
}

// inBubble runs f with a publisher and synthetic time.
func inBubble(t *testing.T, f func(t *testing.T, p *streamtest.Publisher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, streamtest.NewPublisher()) })
}

func wantSeqs(t *testing.T, c *consumer, want ...uint64) {
	t.Helper()
	synctest.Wait()
	if got := c.seqs(); !slices.Equal(got, want) {
		t.Errorf("applied %d, want %d", got, want)
	}
}

func wantState(t *testing.T, s *Stream, want State, reason string) Status {
	t.Helper()
	synctest.Wait()
	st := s.Status()
	if st.State != want || st.Reason != reason {
		t.Errorf("state is %s %q, want %s %q (%+v)", st.State, st.Reason, want, reason, st)
	}
	return st
}

func TestReplayLayouts(t *testing.T) {
	f := func(layoutB, bare bool, topic string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.TopicInReplies, p.Bare, p.Topic = layoutB, bare, topic
			p.PublishToRing("0", "1", "2")
			s, c := open(t, p, nil)
			wantSeqs(t, c, 0, 1, 2)
			p.Publish("3")
			p.PublishToRing("4", "5")
			p.Publish("6")
			wantSeqs(t, c, 0, 1, 2, 3, 4, 5, 6)
			st := wantState(t, s, Synced, "")
			if got, want := p.Requests(), []uint64{0, 4}; !slices.Equal(got, want) {
				t.Errorf("asked from %d, want %d", got, want)
			}
			if st.Gaps != 1 || st.Replayed != 5 || !st.HasSeq || st.LastSeq != 6 || st.Epoch != 1 || st.Dropped[events.BadFrames] != 0 {
				t.Errorf("status is %+v", st)
			}
		})
	}
	f(false, false, "")
	f(false, true, "")
	f(true, false, "")
	f(true, false, "kv-events")
	f(true, true, "")
	f(true, true, "kv-events")
	f(false, false, "kv@pod@model\x00sgl-kv-epoch=ab12")
}

func TestReplyFrames(t *testing.T) {
	var id events.PublisherID
	f := func(kind replyKind, seq uint64, frames ...string) {
		t.Helper()
		var in [][]byte
		for _, s := range frames {
			in = append(in, []byte(s))
		}
		m, got := parseReply(payload.Of(in...), events.PublisherID{}, "")
		if got != kind || kind == replyData && (m.seq != seq || string(m.payload) != "data" || m.id != id) {
			t.Errorf("%q: got %d %+v, want %d %d", frames, got, m, kind, seq)
		}
	}
	three, end := string(streamtest.EncodeSequence(3)), string(streamtest.EncodeSequence(endSeq))
	f(replyData, 3, "", three, "data")
	f(replyData, 3, three, "data")
	f(replyData, 3, "", "kv-events", three, "data")
	f(replyData, 3, "", "", three, "data")
	f(replyData, 3, "kv-events", three, "data")
	f(replyEnd, 0, "", end, "")
	f(replyEnd, 0, "", "", end, "")
	f(replyEnd, 0, end, "")
	f(replyEnd, 0, "", end, "data")
	f(replyEnd, 0, "", three, "")
	f(replyEnd, 0, "")
	f(replyEnd, 0, "", "")
	f(replyEnd, 0)
	f(replyBad, 0, "", "three", "data")
	f(replyBad, 0, "", "topic", "three", "data")
	f(replyBad, 0, "data")
	f(replyBad, 0, "", "data")
	f(replyBad, 0, "", "kv-events", three, "data", "more")
	f(replyBad, 0, "kv", "events", three, "data")
	copy(id[:], "sixteen bytes...")
	long := three + string(id[:])
	f(replyData, 3, "", long, "data")
	f(replyData, 3, long, "data")
	f(replyData, 3, "", "kv-events", long, "data")
	f(replyEnd, 0, "", end+string(id[:]), "data")
	f(replyBad, 0, "", long[1:], "data")
	f(replyBad, 0, "", long+"x", "data")
}

func TestLiveFrames(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s, c := open(t, p, nil)
		synctest.Wait()
		p.Publish("0")
		p.SendFrames("", string(streamtest.EncodeSequence(1)))
		p.SendFrames("", string(streamtest.EncodeSequence(1)), "1", "more")
		p.SendFrames("", string(streamtest.EncodeSequence(1))[1:], "1")
		p.SendFrames("1")
		p.SendFrames("", string(streamtest.EncodeSequence(endSeq)), "1")
		for i := range 5 {
			p.Publish(fmt.Sprint(i + 1))
		}
		wantSeqs(t, c, 0, 1, 2, 3, 4, 5)
		st := wantState(t, s, Synced, "")
		if st.Dropped[events.BadFrames] != 5 || st.Reconnects != 0 {
			t.Errorf("status is %+v", st)
		}
	})
}

func TestWatermarkFollowsTheCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText})
		defer s.Close()
		synctest.Wait()
		p.Publish("0")
		p.Publish("1")
		if _, ok := s.Next(); !ok {
			t.Fatal("closed")
		}
		if st := s.Status(); st.HasSeq {
			t.Errorf("watermark %d before anything was applied", st.LastSeq)
		}
		s.MarkApplied()
		if st := s.Status(); !st.HasSeq || st.LastSeq != 0 {
			t.Errorf("watermark %d %v after batch 0 was applied", st.LastSeq, st.HasSeq)
		}
		s.Next()
		if st := s.Status(); st.LastSeq != 0 {
			t.Errorf("watermark %d while batch 1 is in hand", st.LastSeq)
		}
		go s.Next()
		synctest.Wait()
		if st := s.Status(); st.LastSeq != 1 || st.State != Synced {
			t.Errorf("watermark %d, state %s after batch 1", st.LastSeq, st.State)
		}
		// The watermark of an epoch ends with the reset's application.
		s.Resync("over_budget")
		synctest.Wait()
		if st := s.Status(); st.Epoch != 1 || st.LastSeq != 1 {
			t.Errorf("epoch %d, watermark %d while the reset is in hand", st.Epoch, st.LastSeq)
		}
		s.MarkApplied()
		if st := s.Status(); st.Epoch != 2 || st.HasSeq {
			t.Errorf("epoch %d, watermark %v after the reset", st.Epoch, st.HasSeq)
		}
	})
}

// History is that of the watermark, whatever is in hand.
func TestHistoryFollowsTheWatermark(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText})
		defer s.Close()
		synctest.Wait()
		want := func(seq uint64, has bool, history string) {
			t.Helper()
			if st := s.Status(); st.LastSeq != seq || st.HasSeq != has || st.History != history {
				t.Errorf("at %d %v the history is %q, want %d %v %q", st.LastSeq, st.HasSeq, st.History, seq, has, history)
			}
		}
		want(0, false, ReasonUnknown)
		p.Publish("0")
		p.PublishToRing("1")
		p.Publish("2")
		p.Publish("3c")
		s.Next()
		want(0, false, ReasonUnknown) // 0 is in hand
		s.Next()
		want(0, true, "") // 2 is
		s.Next()
		want(2, true, ReasonGap) // the clear is
		s.MarkApplied()
		want(3, true, "")
		p.CutConnections()
		go s.Next()
		synctest.Wait()
		want(3, true, "")
		wantState(t, s, Connecting, "")
	})
}

func TestResyncStartsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0", "1")
		s, c := open(t, p, nil)
		wantSeqs(t, c, 0, 1)
		s.Resync("over_budget")
		wantSeqs(t, c, 0, 1)
		st := wantState(t, s, Synced, "")
		if st.Epoch != 2 || st.Restarts != 0 {
			t.Errorf("status is %+v", st)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if r := c.steps[2]; r.Kind != DropBlocks || r.Reason != "over_budget" || r.Epoch != 2 {
			t.Errorf("step is %+v", r)
		}
	})
}

func TestDeadEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.OnSubscribe = func(context.Context) error { return errors.New("refused") }
		s, c := open(t, p, nil)
		time.Sleep(time.Minute)
		st := wantState(t, s, Stale, "")
		if st.LastError != "refused" || st.Connected || !st.LastLifeAt.IsZero() {
			t.Errorf("status is %+v", st)
		}
		// Pauses of 0.1, 0.2, 0.4 ... 5 s, each shortened by up to a half.
		if n := p.CountAttempts(); n < 15 || n > 35 {
			t.Errorf("%d attempts in a minute", n)
		}
		time.Sleep(time.Hour)
		p.Mu.Lock()
		p.OnSubscribe = nil
		p.Mu.Unlock()
		p.PublishToRing("0")
		time.Sleep(5 * time.Second)
		wantSeqs(t, c, 0)
		wantState(t, s, Synced, "")
	})
}

type malformed struct{ error }

func (malformed) Permanent() bool { return true }

func TestMalformedEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.OnSubscribe = func(context.Context) error { return fmt.Errorf("open: %w", malformed{errors.New("no port")}) }
		s, _ := open(t, p, nil)
		time.Sleep(time.Minute)
		st := wantState(t, s, Failed, reasonEndpoint)
		if n := p.CountAttempts(); n != 1 || st.LastError != "open: no port" {
			t.Errorf("%d attempts, status is %+v", n, st)
		}
	})
}

func TestLostConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0", "1", "2")
		s, c := open(t, p, nil)
		wantSeqs(t, c, 0, 1, 2)
		down := time.Now()
		p.Mu.Lock()
		p.OnSubscribe = func(context.Context) error { return errors.New("refused") }
		p.Mu.Unlock()
		p.CutConnections()
		st := wantState(t, s, Connecting, "")
		if st.LastError != "connection cut" && st.LastError != "refused" {
			t.Errorf("last error is %q", st.LastError)
		}
		time.Sleep(30 * time.Second)
		st = wantState(t, s, Connecting, "")
		if !st.LastLifeAt.Equal(down) {
			t.Errorf("last life at %v, want %v", st.LastLifeAt, down)
		}
		time.Sleep(time.Millisecond)
		wantState(t, s, Stale, "")
		p.PublishToRing("3")
		p.Mu.Lock()
		p.OnSubscribe = nil
		p.Mu.Unlock()
		time.Sleep(6 * time.Second)
		wantSeqs(t, c, 0, 1, 2, 3)
		st = wantState(t, s, Synced, "")
		if st.Reconnects != 1 || st.Restarts != 0 || st.Epoch != 1 {
			t.Errorf("status is %+v", st)
		}
		// A connection that is up is life, however long nothing is published.
		time.Sleep(24 * time.Hour)
		st = wantState(t, s, Synced, "")
		if !st.LastLifeAt.Equal(time.Now()) || !st.LastBatchAt.Before(st.LastLifeAt) {
			t.Errorf("status is %+v", st)
		}
	})
}

// A publisher that was restarted without a connection is noticed whether it is
// behind, level with, or ahead of the watermark.
func TestHiddenRestart(t *testing.T) {
	f := func(after ...string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.PublishToRing("0", "1", "2")
			s, c := open(t, p, nil)
			wantSeqs(t, c, 0, 1, 2)
			p.Restart(after...)
			time.Sleep(10 * time.Second)
			var want []uint64
			for i := range after {
				want = append(want, uint64(i))
			}
			wantSeqs(t, c, want...)
			st := wantState(t, s, Synced, "")
			if st.Restarts != 1 || st.Epoch != 2 {
				t.Errorf("status is %+v", st)
			}
		})
	}
	f()
	f("0x")
	f("0x", "1x", "2x")
	f("0x", "1x", "2x", "3x", "4x")
}

// A full queue stops reading. What the publisher queues meanwhile arrives later; what
// its high-water mark drops is a gap.
func TestFullQueueStopsReading(t *testing.T) {
	f := func(replay string, hwm, published int, want State, reason string, missing ...uint64) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.HWM = hwm
			s := Open(Config{Endpoint: "live", ReplayEndpoint: replay, Transport: p, Decode: decodeText, Queue: 4})
			defer s.Close()
			synctest.Wait()
			var all []uint64
			for i := range uint64(published) {
				p.Publish(fmt.Sprint(i))
				synctest.Wait()
				if !slices.Contains(missing, i) {
					all = append(all, i)
				}
			}
			if st := s.Status(); st.Queued != 4 || st.QueuedBytes != 4 || len(st.Dropped) != 0 || st.State != Connecting {
				t.Errorf("while nothing is taken: %+v", st)
			}
			time.Sleep(24 * time.Hour) // that is no silence of the publisher
			if st := s.Status(); !st.Connected || st.LastLifeAt != time.Now() {
				t.Errorf("after a day: %+v", st)
			}
			c := consume(t, s, 0)
			wantSeqs(t, c, all...)
			p.Publish(fmt.Sprint(published))
			all = append(all, uint64(published))
			wantSeqs(t, c, all...)
			st := wantState(t, s, want, reason)
			if gaps := min(len(missing), 1); st.Queued != 0 || st.QueuedBytes != 0 || len(st.Dropped) != 0 || replay == "" &&
				int(st.Gaps) != gaps {
				t.Errorf("status is %+v", st)
			}
		})
	}
	f("", 100, 10, Synced, "")
	f("replay", 100, 10, Synced, "")
	// Of ten batches the queue takes four, the reader has one in hand, three fit.
	f("", 3, 8, Synced, "")
	f("", 3, 10, Partial, ReasonGap, 8, 9)
}

// What the publisher's high-water mark drops is replayed.
func TestDroppedByPublisherIsReplayed(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.HWM = 3
		proceed := make(chan bool, 1000)
		s, c := open(t, p, func(c *Config) {
			c.Queue = 4
			c.Decode = func(b []byte) (events.Batch, error) {
				<-proceed
				return decodeText(b)
			}
		})
		var all []uint64
		for i := range uint64(30) {
			p.Publish(fmt.Sprint(i))
			synctest.Wait()
			all = append(all, i)
		}
		if st := s.Status(); st.Queued > 2*4 {
			t.Errorf("status is %+v", st)
		}
		close(proceed)
		synctest.Wait()
		p.Publish("30")
		wantSeqs(t, c, append(all, 30)...)
		if st := wantState(t, s, Synced, ""); st.Gaps == 0 || st.Replayed == 0 || st.Restarts != 0 {
			t.Errorf("status is %+v", st)
		}
	})
}

// A replay goes on while the live reader waits for it to end.
func TestReplayGoesOnWhileLiveWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		var all []uint64
		for i := range uint64(100) {
			p.PublishToRing(fmt.Sprint(i))
			all = append(all, i)
		}
		p.OnReplay = func(uint64, [][][]byte) [][][]byte { return nil }
		s, c := open(t, p, func(c *Config) { c.Queue = 8 })
		synctest.Wait()
		for i := range uint64(50) {
			p.Publish(fmt.Sprint(100 + i))
			all = append(all, 100+i)
		}
		if st := wantState(t, s, Replaying, ""); st.Queued != 8 {
			t.Errorf("status is %+v", st)
		}
		p.Mu.Lock()
		replays := slices.Collect(maps.Keys(p.Replays))
		p.Mu.Unlock()
		for _, c := range replays {
			for i := range uint64(100) {
				time.Sleep(time.Second) // each is progress
				c.Send(p.ReplyFrames(i)...)
			}
		}
		wantSeqs(t, c, all...)
		if st := wantState(t, s, Synced, ""); st.Restarts != 0 || st.Gaps != 0 {
			t.Errorf("status is %+v", st)
		}
	})
}

// A reader that waits for room ends with its connection.
func TestThrottledReaderEnds(t *testing.T) {
	f := func(end func(*Stream, *streamtest.Publisher), want State) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText, Queue: 1})
			defer s.Close()
			synctest.Wait()
			for i := range 5 {
				p.Publish(fmt.Sprint(i))
			}
			synctest.Wait()
			end(s, p)
			synctest.Wait()
			if st := s.Status(); st.State != want || st.Queued != 1 {
				t.Errorf("status is %+v", st)
			}
		})
	}
	f(func(s *Stream, _ *streamtest.Publisher) { s.Pause() }, Paused)
	f(func(s *Stream, _ *streamtest.Publisher) { s.Pause(); s.Unpause(); time.Sleep(time.Second) }, Connecting)
	f(func(s *Stream, _ *streamtest.Publisher) { s.Close() }, Connecting)
	// The reader takes what a lost connection has delivered before it notices the loss.
	f(func(_ *Stream, p *streamtest.Publisher) { p.CutConnections(); time.Sleep(time.Hour) }, Connecting)
}

// A stream may be left alone for a while after it was opened. It connects and
// queues, and nothing more; the first Next takes it from there.
func TestOpenedAndLeft(t *testing.T) {
	f := func(replay string, published int, cut bool, want []uint64, state State, reason string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.PublishToRing("0")
			s := Open(Config{Endpoint: "live", ReplayEndpoint: replay, Transport: p, Decode: decodeText, Queue: 4})
			defer s.Close()
			synctest.Wait()
			for i := range published {
				p.Publish(fmt.Sprint(1 + i))
				time.Sleep(10 * time.Second)
				if cut && i == 1 {
					p.CutConnections()
					time.Sleep(time.Second)
				}
				if st := s.Status(); st.State != Connecting || st.Reason != "" || !st.Connected || st.HasSeq ||
					st.History != map[bool]string{true: ReasonUnknown}[replay == ""] {
					t.Errorf("before the first step: %+v", st)
				}
			}
			if got := p.Requests(); len(got) > 0 {
				t.Errorf("asked from %d before the first step", got)
			}
			c := consume(t, s, 0)
			wantSeqs(t, c, want...)
			wantState(t, s, state, reason)
			p.Publish(fmt.Sprint(1 + published))
			wantSeqs(t, c, append(want, uint64(1+published))...)
		})
	}
	f("replay", 3, false, []uint64{0, 1, 2, 3}, Synced, "")
	f("replay", 9, false, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Synced, "")
	f("replay", 3, true, []uint64{0, 1, 2, 3}, Synced, "")
	f("", 3, false, []uint64{1, 2, 3}, Partial, ReasonUnknown)
	f("", 9, false, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, Partial, ReasonUnknown)
}

func TestQueueBoundsBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText, QueueBytes: 10})
		defer s.Close()
		synctest.Wait()
		p.Publish("0xxxxxxxxxxxxxxxxx") // larger than all, but alone
		p.Publish("1")
		synctest.Wait() // both have arrived, the second is in the reader's hand
		if st := s.Status(); st.Queued != 1 || st.QueuedBytes != 18 {
			t.Errorf("status is %+v", st)
		}
		c := consume(t, s, 0)
		wantSeqs(t, c, 0, 1)
		wantState(t, s, Synced, "")
	})
}

// A replay larger than the queue is fetched in parts.
func TestReplayLargerThanTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		var all []uint64
		for i := range uint64(100) {
			p.PublishToRing(fmt.Sprint(i))
			all = append(all, i)
		}
		s, c := open(t, p, func(c *Config) { c.Queue = 8 })
		wantSeqs(t, c, all...)
		st := wantState(t, s, Synced, "")
		if st.Replayed != 100 || st.Gaps != 0 {
			t.Errorf("status is %+v", st)
		}
	})
}

// The publisher's socket drops replies beyond its high-water mark, the end
// marker among them.
func TestRepliesCutByHighWaterMark(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		var all []uint64
		for i := range uint64(2500) {
			p.PublishToRing(fmt.Sprint(i))
			all = append(all, i)
		}
		p.OnReplay = func(_ uint64, replies [][][]byte) [][][]byte {
			return replies[:min(len(replies), 1000)]
		}
		s, c := open(t, p, nil)
		time.Sleep(time.Minute)
		wantSeqs(t, c, all...)
		wantState(t, s, Synced, "")
		if got := p.Requests(); !slices.Equal(got[:3], []uint64{0, 1000, 2000}) {
			t.Errorf("asked from %d", got)
		}
	})
}

func TestSilentReplayService(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0", "1")
		p.OnReplay = func(uint64, [][][]byte) [][][]byte { return nil }
		s, c := open(t, p, nil)
		synctest.Wait()
		p.Publish("2")
		time.Sleep(4 * time.Second)
		wantState(t, s, Replaying, "")
		time.Sleep(time.Second)
		wantSeqs(t, c, 2)
		st := wantState(t, s, Partial, ReasonTimeout)
		if st.LastError != "no reply to a replay from 0 for 5s" {
			t.Errorf("last error is %q", st.LastError)
		}
		p.Mu.Lock()
		p.OnReplay = nil
		p.Mu.Unlock()
		time.Sleep(time.Minute)
		wantSeqs(t, c, 0, 1, 2)
		wantState(t, s, Synced, "")
	})
}

// Streams that wait for their turn to replay lose neither patience nor batches. A publisher that
// answers nothing has its slot for one turn.
func TestLimiterDelaysReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := streamtest.NewPublisher()
		slow.OnReplay = func(uint64, [][][]byte) [][][]byte { return nil }
		quick := streamtest.NewPublisher()
		quick.PublishToRing("0")
		replays := NewLimiter(1)
		a, _ := open(t, slow, func(c *Config) { c.Replays = replays; c.ReplayTimeout = time.Hour })
		synctest.Wait()
		b, c := open(t, quick, func(c *Config) { c.Replays = replays })
		time.Sleep(replayTurn / 2)
		wantState(t, b, Replaying, "")
		quick.Publish("1")
		time.Sleep(replayTurn)
		wantSeqs(t, c, 0, 1)
		wantState(t, b, Synced, "")
		a.Close()
	})
}

// stuck is a transport whose peer never answers.
type stuck struct{ subscribe, replay bool }

func (s stuck) Subscribe(ctx context.Context, _ string) (Subscription, error) {
	if s.subscribe {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return streamtest.NewConn(), nil
}

func (s stuck) Replay(ctx context.Context, _ string, _ uint64) (Subscription, error) {
	if s.replay {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return streamtest.NewConn(), nil
}

// Close ends everything at once: synctest fails if a goroutine is left, and
// its clock shows any wait.
func TestCloseEndsAtOnce(t *testing.T) {
	f := func(tr Transport, wait time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: tr, Decode: decodeText})
			c := consume(t, s, 0)
			time.Sleep(wait)
			synctest.Wait()
			began := time.Now()
			s.Close()
			<-c.done
			if d := time.Since(began); d != 0 {
				t.Errorf("closing took %v", d)
			}
			s.Close()
			if _, ok := s.Next(); ok {
				t.Error("a step after Close")
			}
			s.Resync("late")
			s.MarkApplied()
			s.Status()
		})
	}
	refusing := streamtest.NewPublisher()
	refusing.OnSubscribe = func(context.Context) error { return errors.New("refused") }
	f(stuck{subscribe: true}, time.Minute)
	f(stuck{replay: true}, time.Second)
	f(stuck{}, time.Second)
	f(stuck{}, time.Minute)
	f(refusing, 50*time.Millisecond)
	f(refusing, time.Minute)
}

// Status does not wait for a batch that is being decoded.
func TestStatusDuringDecode(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		decoding, proceed := make(chan bool), make(chan bool)
		s, c := open(t, p, func(c *Config) {
			c.Decode = func(b []byte) (events.Batch, error) {
				decoding <- true
				<-proceed
				return decodeText(b)
			}
		})
		synctest.Wait()
		p.Publish("0")
		<-decoding
		if st := s.Status(); st.HasSeq || !st.Connected {
			t.Errorf("status is %+v", st)
		}
		close(proceed)
		wantSeqs(t, c, 0)
	})
}

// What an event's decoder dropped is in the stream's counts.
func TestDroppedEventsAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s, c := open(t, p, func(c *Config) {
			c.Decode = func([]byte) (events.Batch, error) {
				var b events.Batch
				b.CountDropped(events.UnknownType, 2)
				return b, nil
			}
		})
		synctest.Wait()
		p.Publish("0")
		p.Publish("1")
		wantSeqs(t, c, 0, 1)
		if st := wantState(t, s, Synced, ""); st.Dropped[events.UnknownType] != 4 {
			t.Errorf("status is %+v", st)
		}
	})
}

// A caller that takes longer for a batch than the publisher may for an answer
// does not make the publisher silent.
func TestSlowCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		var all []uint64
		for i := range uint64(20) {
			p.PublishToRing(fmt.Sprint(i))
			all = append(all, i)
		}
		s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText})
		var got []uint64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				step, ok := s.Next()
				if !ok {
					return
				}
				got = append(got, step.Seq)
				time.Sleep(10 * time.Second)
			}
		}()
		time.Sleep(10 * time.Minute)
		wantState(t, s, Synced, "")
		s.Close()
		<-done
		if !slices.Equal(got, all) {
			t.Errorf("applied %d", got)
		}
		if asked := p.Requests(); !slices.Equal(asked, []uint64{0, 19}) { // the second is the check
			t.Errorf("asked from %d", asked)
		}
	})
}

// A broken decoder costs a batch, not the process.
func TestDecoderPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s, c := open(t, p, func(c *Config) {
			c.ReplayEndpoint = ""
			c.Decode = func(b []byte) (events.Batch, error) {
				if string(b) == "1" {
					panic("index out of range")
				}
				return decodeText(b)
			}
		})
		synctest.Wait()
		p.Publish("0")
		p.Publish("1")
		p.Publish("2")
		wantSeqs(t, c, 0, 2)
		st := wantState(t, s, Partial, ReasonUndecodable)
		if st.Dropped[events.BadPayload] != 1 || st.LastError != "cannot decode batch 1: BUG: the decoder panics: index out of range" {
			t.Errorf("status is %+v", st)
		}
	})
}
