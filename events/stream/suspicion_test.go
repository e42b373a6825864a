package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream/streamtest"
)

// publishSlowly publishes batches that are named after their numbers, 100 ms apart.
func publishSlowly(p *streamtest.Publisher, name string, n int) {
	for range n {
		p.Publish(fmt.Sprintf("%s%d", name, p.NextSequence()))
		time.Sleep(100 * time.Millisecond)
	}
}

// late delays what comes live.
type late struct {
	*streamtest.Publisher
	by time.Duration
}

type lateSubscription struct {
	Subscription
	by time.Duration
}

func (l late) Subscribe(ctx context.Context, endpoint string) (Subscription, error) {
	sub, err := l.Publisher.Subscribe(ctx, endpoint)
	return lateSubscription{sub, l.by}, err
}

func (s lateSubscription) Recv() (payload.Message, error) {
	m, err := s.Subscription.Recv()
	time.Sleep(s.by)
	return m, err
}

// TestOwnServiceIsNotForeign follows publishers whose replay services are their own, and are slow, short or unusual.
func TestOwnServiceIsNotForeign(t *testing.T) {
	type answer func(p *streamtest.Publisher, from uint64, replies [][][]byte) [][][]byte
	for name, own := range map[string]struct {
		ring   int
		lag    time.Duration // of the live connection
		answer answer
		reason string
	}{
		// A relay that has batches only in a digest sends that under their numbers, and then the batches that it has.
		"other batches under the first numbers": {answer: func(_ *streamtest.Publisher, from uint64, replies [][][]byte) [][][]byte {
			replies = slices.Clone(replies)
			for i := range min(3, len(replies)-1) {
				replies[i] = oddMessage(from+uint64(i), "digest")
			}
			return replies
		}},
		"empty": {reason: ReasonUnknown, answer: func(_ *streamtest.Publisher, _ uint64, replies [][][]byte) [][][]byte {
			return replies[len(replies)-1:]
		}},
		"lags": {answer: func(_ *streamtest.Publisher, from uint64, replies [][][]byte) [][][]byte {
			kept := max(0, len(replies)-1-8) // the batches of the last 0.8 s are not there yet
			if from == 0 {
				return replies
			}
			return slices.Concat(replies[:kept], replies[len(replies)-1:])
		}},
		"ring of one":             {ring: 1, lag: 20 * time.Millisecond, reason: ReasonOverrun},
		"ring of one, far behind": {ring: 1, lag: 90 * time.Millisecond, reason: ReasonOverrun},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
				publishSlowly(p, "", 50)
				if own.ring > 0 {
					p.Ring = own.ring
				}
				if own.answer != nil {
					p.OnReplay = func(from uint64, r [][][]byte) [][][]byte { return own.answer(p, from, r) }
				}
				s, c := open(t, p, func(cfg *Config) { cfg.Transport, cfg.Decode = late{p, own.lag}, decodeKey })
				synctest.Wait()
				publishSlowly(p, "", 80)
				time.Sleep(3 * time.Second)
				st := s.Status()
				if st.ForeignReplay || st.Reason != own.reason || st.Dropped[events.ForeignReplay] > 1 || st.Epoch > 1 {
					t.Errorf("status is %+v", st)
				}
				if got := c.texts(); len(got) < 80 || got[len(got)-1] != "129" || got[len(got)-80] != "50" {
					t.Errorf("applied %s", got)
				}
			})
		})
	}
}

// TestRingBeyondLiveIsForeign has another engine's service whose ring is short and has no number that comes live.
func TestRingBeyondLiveIsForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
		b.Ring = 20
		for i := range 300 {
			b.Publish(fmt.Sprint("b", i))
		}
		publishSlowly(a, "a", 50)
		s, c := open(t, a, func(cfg *Config) { cfg.Transport, cfg.Decode = crossed{a, b}, decodeKey })
		synctest.Wait()
		publishSlowly(a, "a", 40)
		if st := s.Status(); !st.ForeignReplay || st.Reason != ReasonForeign {
			t.Errorf("status is %+v", st)
		}
		if got := c.texts(); len(got) != 40 || got[0] != "a50" {
			t.Errorf("applied %s", got)
		}
	})
}

// TestShortAnswerWithoutEnd has a ring that begins beyond the number asked for, and answers that do not end.
func TestShortAnswerWithoutEnd(t *testing.T) {
	for name, end := range map[string][][][]byte{"silent": {}, "hangs up": {nil}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
				publishSlowly(p, "", 50)
				p.Ring = 10
				p.OnReplay = func(_ uint64, r [][][]byte) [][][]byte { return slices.Concat(r[:len(r)-1], end) }
				s, c := open(t, p, func(cfg *Config) { cfg.Decode = decodeKey })
				time.Sleep(time.Minute)
				if got := c.texts(); len(got) != 10 || got[0] != "40" {
					t.Errorf("applied %s, status is %+v", got, s.Status())
				}
				publishSlowly(p, "", 20)
				if got := c.texts(); len(got) != 30 || got[29] != "69" {
					t.Errorf("applied %s, status is %+v", got, s.Status())
				}
			})
		})
	}
}

// TestSuspicionKeepsLive has a history that is whole from live batches alone when the first reply contradicts.
func TestSuspicionKeepsLive(t *testing.T) {
	for name, ofOther := range map[string]bool{"another engine's": true, "its own": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
				cross := &crossed{a, b}
				a.ID, b.ID = events.PublisherID{1}, events.PublisherID{2}
				s, c := open(t, a, func(cfg *Config) { cfg.Transport, cfg.Decode = cross, decodeKey })
				synctest.Wait()
				publishSlowly(a, "a", 30)
				for i := range 60 {
					b.Publish(fmt.Sprint("b", i))
				}
				a.PublishToRing("a30")
				b.OnReplay = func(_ uint64, r [][][]byte) [][][]byte {
					if !ofOther { // from now on it is the engine's
						cross.replays = a
					}
					return r
				}
				a.Publish("a31")
				synctest.Wait()
				if got := c.texts(); len(got) < 31 || got[0] != "a0" || got[len(got)-1] != "a31" {
					t.Errorf("applied %s, status is %+v", got, s.Status())
				}
				publishSlowly(a, "a", 20)
				st, got := s.Status(), c.texts()
				if ofOther && (!st.ForeignReplay || st.Reason != ReasonForeign || len(got) != 51) ||
					!ofOther && (st.ForeignReplay || st.Reason != "" || len(got) != 52) {
					t.Errorf("applied %s, status is %+v", got, st)
				}
			})
		})
	}
}

// TestReplacedBehindOneAddress replaces an engine behind one address. The service is the next process's while the live connection is
// the last one's, for long. Then the live connection is the next one's too, which is silent.
func TestReplacedBehindOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
		a.ID, b.ID = events.PublisherID{1}, events.PublisherID{2}
		cross := &crossed{a, a}
		publishSlowly(a, "a", 20)
		s, c := open(t, a, func(cfg *Config) { cfg.Transport, cfg.Decode = cross, decodeKey })
		synctest.Wait()
		publishSlowly(a, "a", 20)
		wantState(t, s, Synced, "")
		publishSlowly(b, "b", 60)
		cross.replays = b
		a.PublishToRing("a40")
		publishSlowly(a, "a", 40)
		if st := s.Status(); !st.ForeignReplay {
			t.Fatalf("status is %+v", st)
		}
		time.Sleep(time.Minute)
		cross.live = b
		a.CutConnections()
		time.Sleep(5 * time.Second)
		if got := c.texts(); len(got) != 60 || got[59] != "b59" {
			t.Errorf("applied %s, status is %+v", got, s.Status())
		}
	})
}

// lateReply delays requests for a replay. One of them fails.
type lateReply struct {
	*streamtest.Publisher
	requests *atomic.Int32
	fails    int32 // the number of that request, from 1
}

func (l lateReply) Replay(ctx context.Context, endpoint string, from uint64) (Subscription, error) {
	time.Sleep(time.Second)
	if l.requests.Add(1) == l.fails {
		return nil, errors.New("refused")
	}
	return l.Publisher.Replay(ctx, endpoint, from)
}

// TestLateDigestIsNotForeign has a relay that answers late. Then what came live from its first batch on meets a digest under the same
// numbers in its answers, each time.
func TestLateDigestIsNotForeign(t *testing.T) {
	type relay struct {
		id    events.PublisherID
		fails int32
	}
	all := make(map[string]relay)
	for fails := range int32(7) {
		all[fmt.Sprintf("without ids, request %d fails", fails)] = relay{fails: fails}
		all[fmt.Sprintf("with ids, request %d fails", fails)] = relay{events.PublisherID{1}, fails}
	}
	for name, r := range all {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
				p.ID = r.id
				p.OnReplay = func(from uint64, r [][][]byte) [][][]byte {
					r = slices.Clone(r)
					for i := range len(r) - 1 - 5 {
						r[i] = oddMessage(from+uint64(i), "digest")
					}
					return r
				}
				p.Publish("0")
				s, c := open(t, p, func(cfg *Config) { cfg.Transport, cfg.Decode = lateReply{p, new(atomic.Int32), r.fails}, decodeKey })
				time.Sleep(2 * time.Second)
				for range 2 { // holes, as the relay leaves for a follower that is behind its memory
					publishSlowly(p, "", 2)
					p.PublishToRing("hole")
				}
				publishSlowly(p, "", 100)
				time.Sleep(time.Minute)
				publishSlowly(p, "", 10)
				st, got, last := s.Status(), c.texts(), fmt.Sprint(p.NextSequence()-1)
				if st.ForeignReplay || st.State != Synced || len(got) < 10 || got[0] != "digest" || got[len(got)-1] != last {
					t.Errorf("applied %s, status is %+v", got, st)
				}
			})
		})
	}
}
