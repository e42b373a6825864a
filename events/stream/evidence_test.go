package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
)

// crossed is a registration whose endpoint is one publisher's and whose replay endpoint is another's.
type crossed struct{ live, replays *streamtest.Publisher }

func (c crossed) Subscribe(ctx context.Context, endpoint string) (Subscription, error) {
	return c.live.Subscribe(ctx, endpoint)
}

func (c crossed) Replay(ctx context.Context, endpoint string, from uint64) (Subscription, error) {
	return c.replays.Replay(ctx, endpoint, from)
}

// texts returns the payloads that were applied since the last reset.
func (c *consumer) texts() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.steps {
		if s.Kind == DropBlocks {
			all = nil
			continue
		}
		all = append(all, s.Batch.Events[0].ObjectKey)
	}
	return all
}

// decodeKey makes the payload the object key of one event, and a payload with "clear" a clear.
func decodeKey(p []byte) (events.Batch, error) {
	e := events.Event{Kind: events.Stored, ObjectKey: string(p)}
	if strings.Contains(string(p), "clear") {
		e.Kind = events.Cleared
	}
	return events.Batch{Events: []events.Event{e}, Rank: -1}, nil
}

// foreignReplay is a source whose replay service is another engine's.
type foreignReplay struct {
	before, behind int  // batches that the engine, and the other one, have at first
	idle           bool // the engine publishes only after some seconds
	busy           bool // the other engine publishes too, meanwhile
	gap            bool // live batches are lost on their way
	resume         int  // the stream resumes behind a mark at this batch; 0: no mark
	ofOther        bool // the mark is the other engine's
	ids            bool // both publishers name their lifetimes
	layoutB        bool
	full           bool   // everything that the engine publishes comes live
	lost           string // why history is not whole at the end
}

// TestForeignReplay follows engine a with the replay service of engine b. In the end it has nothing that only b told, all that a has
// published since, and says why the rest is missing. The service is asked a few times only, also after reconnects. A clear counts.
func TestForeignReplay(t *testing.T) {
	for name, f := range map[string]foreignReplay{
		"b is ahead":                     {before: 50, behind: 200, lost: ReasonForeign},
		"b is ahead, a idle":             {before: 50, behind: 200, idle: true, lost: ReasonForeign},
		"b is behind":                    {before: 50, behind: 30, lost: ReasonForeign},
		"b is behind, a idle":            {before: 50, behind: 30, idle: true, lost: ReasonForeign},
		"b has as many":                  {before: 50, behind: 50, lost: ReasonForeign},
		"b has as many, a idle":          {before: 50, behind: 50, idle: true, lost: ReasonForeign},
		"b has as many, both busy":       {before: 50, behind: 50, busy: true, lost: ReasonForeign},
		"b has one less, both busy":      {before: 50, behind: 49, busy: true, lost: ReasonForeign},
		"a has nothing":                  {behind: 50},
		"a has nothing, idle":            {behind: 50, idle: true},
		"both begin":                     {busy: true, full: true},
		"both begin, a loses batches":    {busy: true, gap: true, lost: ReasonForeign},
		"b is far ahead":                 {before: 50, behind: 3 * maxPrints, idle: true, lost: ReasonForeign},
		"a loses batches":                {before: 50, behind: 30, gap: true, lost: ReasonForeign},
		"topic in replies":               {before: 50, behind: 200, idle: true, layoutB: true, lost: ReasonForeign},
		"publisher ids":                  {before: 50, behind: 200, ids: true, lost: ReasonForeign},
		"publisher ids, a idle":          {before: 50, behind: 50, ids: true, idle: true, lost: ReasonForeign},
		"a resumes":                      {before: 50, behind: 200, resume: 49, lost: ReasonForeign},
		"a resumes, idle":                {before: 50, behind: 200, resume: 49, idle: true, lost: ReasonForeign},
		"a resumes behind b, idle":       {before: 50, behind: 200, resume: 199, ofOther: true, idle: true, lost: ReasonForeign},
		"a resumes behind b at one":      {before: 200, behind: 200, resume: 199, ofOther: true, idle: true, lost: ReasonForeign},
		"a resumes behind b that is few": {before: 200, behind: 20, resume: 19, ofOther: true, lost: ReasonForeign},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f.run) })
	}
}

func (f *foreignReplay) run(t *testing.T) {
	a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
	b.TopicInReplies = f.layoutB
	if f.ids {
		a.ID, b.ID = events.PublisherID{1}, events.PublisherID{2}
	}
	publish := func(p *streamtest.Publisher, name string) { p.Publish(fmt.Sprintf("%s%d", name, p.NextSequence())) }
	for range f.before {
		publish(a, "a")
	}
	for range f.behind {
		publish(b, "b")
	}
	s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: crossed{a, b}, Decode: decodeKey})
	follow := newFollower(0)
	if f.resume > 0 {
		name := "a"
		if f.ofOther {
			name = "b"
		}
		synctest.Wait()
		mark := Mark{Seq: uint64(f.resume), Print: newFingerprint(uint64(f.resume), fmt.Appendf(nil, "%s%d", name, f.resume)).hash}
		s.ResumeBehind(mark)
		follow.resume(mark)
	}
	c := consumeAs(t, s, follow)
	defer func() {
		s.Close()
		<-c.done
	}()
	if synctest.Wait(); f.idle {
		time.Sleep(5 * time.Second)
	}
	var want []string
	round := func() {
		for i := range 60 {
			if f.gap && i%20 == 10 {
				a.PublishToRing(fmt.Sprintf("a%d", a.NextSequence()))
			} else {
				want = append(want, fmt.Sprintf("a%d", a.NextSequence()))
				publish(a, "a")
			}
			if f.busy {
				publish(b, "b")
			}
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
	}
	check := func(when string) {
		t.Helper()
		got := c.texts()
		for _, text := range got {
			if text[0] == 'b' {
				t.Errorf("%s: %s is there, which only the other engine told", when, text)
				break
			}
		}
		// What came before a contradiction was found goes with the replay if it was applied on top of a gap.
		if n := len(want) - len(got); n > 12 || n > 0 && !f.gap || n <= 0 && !slices.Equal(got[-n:], want) {
			t.Errorf("%s: %d batches, want the %d that came live\n%s", when, len(got), len(want), got)
		}
	}
	round()
	check("after a while")
	st := s.Status()
	if !st.ForeignReplay || st.History != f.lost || (st.State == Synced) != (f.lost == "") || st.Reason != f.lost {
		t.Errorf("status is %+v", st)
	}
	asked := len(b.Requests())
	round()
	check("later")
	if n := len(b.Requests()); n != asked || n > 8 {
		t.Errorf("the service was asked %d times, then %d times", asked, n-asked)
	}
	time.Sleep(time.Minute)
	a.CutConnections()
	time.Sleep(time.Minute)
	round()
	check("after a reconnect")
	if n := len(b.Requests()); n > asked+1 {
		t.Errorf("the service was asked %d times after a reconnect", n-asked)
	}
	a.Publish("a-clear")
	if want = nil; s.Status().ForeignReplay == false {
		t.Error("the reconnect has cleared the service")
	}
	wantState(t, s, Synced, "")
}

// TestForeignReplayIsCorrected sends the replays to the right engine after the wrong one: the history comes back.
func TestForeignReplayIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
		for i := range 20 {
			a.Publish(fmt.Sprint("a", i))
			b.Publish(fmt.Sprint("b", i))
		}
		cross := &crossed{a, b}
		s, c := open(t, a, func(cfg *Config) { cfg.Transport, cfg.Decode = cross, decodeKey })
		for i := range 20 {
			a.Publish(fmt.Sprint("a", 20+i))
			time.Sleep(100 * time.Millisecond)
		}
		if st := wantState(t, s, Partial, ReasonForeign); !st.ForeignReplay {
			t.Errorf("status is %+v", st)
		}
		time.Sleep(time.Minute)
		cross.replays = a
		a.CutConnections()
		time.Sleep(10 * time.Second)
		a.Publish("a40")
		time.Sleep(time.Second)
		if st := wantState(t, s, Synced, ""); st.ForeignReplay {
			t.Errorf("status is %+v", st)
		}
		if got := c.texts(); len(got) != 41 || got[0] != "a0" || got[40] != "a40" {
			t.Errorf("applied %s", got)
		}
	})
}

// TestRestartIsNoForeignReplay restarts an engine whose connections of before and after overlap: the service of the next process answers
// while the live connection is the last one's.
func TestRestartIsNoForeignReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
		cross := &crossed{a, b}
		for i := range 20 {
			a.Publish(fmt.Sprint("a", i))
			b.Publish(fmt.Sprint("b", i))
		}
		s, c := open(t, a, func(cfg *Config) { cfg.Transport, cfg.Decode = cross, decodeKey })
		for i := range 20 {
			a.Publish(fmt.Sprint("a", 20+i))
			time.Sleep(100 * time.Millisecond)
		}
		wantState(t, s, Partial, ReasonForeign)
		cross.live = b
		a.CutConnections()
		time.Sleep(5 * time.Second)
		if st := wantState(t, s, Synced, ""); st.ForeignReplay {
			t.Errorf("status is %+v", st)
		}
		if got := c.texts(); len(got) != 20 || got[19] != "b19" {
			t.Errorf("applied %s", got)
		}
	})
}

// oddReply puts messages with odd numbers into replies.
type oddReply func(p *streamtest.Publisher, replies [][][]byte) [][][]byte

func oddMessage(seq uint64, payload string) [][]byte {
	return [][]byte{{}, streamtest.EncodeSequence(seq), []byte(payload)}
}

// TestOddNumberInReply has a replay service that puts messages with odd numbers into each answer. No live batch counts as a duplicate of
// them, and the rest of the answer is used.
func TestOddNumberInReply(t *testing.T) {
	const far = 1_000_000_000_000
	first := func(odd ...[][]byte) oddReply {
		return func(_ *streamtest.Publisher, r [][][]byte) [][][]byte { return append(slices.Clone(odd), r...) }
	}
	middle := func(odd ...[][]byte) oddReply {
		return func(_ *streamtest.Publisher, r [][][]byte) [][][]byte {
			return slices.Insert(slices.Clone(r), len(r)/2, odd...)
		}
	}
	last := func(odd ...[][]byte) oddReply {
		return func(_ *streamtest.Publisher, r [][][]byte) [][][]byte {
			return slices.Insert(slices.Clone(r), len(r)-1, odd...)
		}
	}
	header := oddMessage(^uint64(1), "\x00\x00\x00\x00\x00\x00\x00\x07")
	for name, odd := range map[string]oddReply{
		"first, -2":           first(header),
		"first, far":          first(oddMessage(far, "x")),
		"first, twice":        first(oddMessage(far, "x"), oddMessage(far, "x")),
		"first, twice, other": first(oddMessage(far, "x"), oddMessage(far, "y")),
		"first, two":          first(oddMessage(far, "x"), oddMessage(far+1, "x")),
		"first, two far":      first(oddMessage(far, "x"), oddMessage(2*far, "x")),
		"first, falling":      first(oddMessage(2*far, "x"), oddMessage(far, "x")),
		"middle":              middle(oddMessage(far, "x")),
		"middle, -2":          middle(header),
		"middle, two":         middle(oddMessage(far, "x"), oddMessage(far+1, "x")),
		"last":                last(oddMessage(far, "x")),
		"last, near":          last(oddMessage(60, "x")),
		"last, -2":            last(header),
		"last, twice":         last(oddMessage(far, "x"), oddMessage(far, "x")),
		"last, two":           last(oddMessage(far, "x"), oddMessage(far+1, "x")),
		"first and last": func(p *streamtest.Publisher, r [][][]byte) [][][]byte {
			return first(header)(p, last(oddMessage(far, "x"))(p, r))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
				publish := func(n int) {
					for range n {
						p.Publish(fmt.Sprintf("%d", p.NextSequence()))
						time.Sleep(50 * time.Millisecond)
					}
				}
				publish(20)
				p.OnReplay = func(_ uint64, r [][][]byte) [][][]byte { return odd(p, r) }
				s, c := open(t, p, func(cfg *Config) { cfg.Decode = decodeKey })
				check := func(when string) {
					t.Helper()
					synctest.Wait()
					var want []string
					for seq := range p.NextSequence() {
						want = append(want, fmt.Sprint(seq))
					}
					if got := c.texts(); !slices.Equal(got, want) {
						t.Errorf("%s: applied %s, want all up to %d", when, got, len(want)-1)
					}
					if st := s.Status(); st.State != Synced || st.ForeignReplay || st.Dropped[events.OddNumber] == 0 {
						t.Errorf("%s: status is %+v", when, st)
					}
				}
				time.Sleep(3 * time.Second)
				publish(30)
				check("idle at first")
				p.PublishToRing("50", "51")
				publish(10)
				check("behind a gap")
				p.CutConnections()
				time.Sleep(3 * time.Second)
				publish(10)
				check("after a reconnect")
				p.CutConnections()
				p.PublishToRing("72", "73")
				time.Sleep(time.Second)
				publish(10)
				check("after a reconnect behind a gap")
				if st := s.Status(); st.Epoch > 3 {
					t.Errorf("status is %+v", st)
				}
				s.Resync("asked")
				publish(10)
				check("after a resync")
			})
		})
	}
}

// An answer that has nothing but a header and batches that all have one number is no history.
func TestSnapshotInReplay(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		for i := range 30 {
			p.Publish(fmt.Sprint(i))
		}
		p.OnReplay = func(from uint64, r [][][]byte) [][][]byte {
			if from >= 20 {
				return r
			}
			seq := uint64(len(p.History) - 1)
			odd := [][][]byte{oddMessage(^uint64(1), string(streamtest.EncodeSequence(seq)))}
			for i := range 5 {
				odd = append(odd, oddMessage(seq, fmt.Sprint("part ", i)))
			}
			return append(odd, r[len(r)-1])
		}
		s, c := open(t, p, func(cfg *Config) { cfg.Decode = decodeKey })
		wantState(t, s, Partial, ReasonOverrun)
		for i := range 30 {
			p.Publish(fmt.Sprint(30 + i))
			time.Sleep(100 * time.Millisecond)
		}
		if st := wantState(t, s, Partial, ReasonOverrun); st.ForeignReplay || st.Dropped[events.OddNumber] == 0 {
			t.Errorf("status is %+v", st)
		}
		if got := c.texts(); len(got) != 30 || got[0] != "30" {
			t.Errorf("applied %s", got)
		}
	})
}

// TestForeignReplayFaults does random things to a stream that has the replay service of another engine.
func TestForeignReplayFaults(t *testing.T) {
	for seed := range uint64(*faultRuns) {
		synctest.Test(t, func(t *testing.T) { runForeignReplay(t, seed+1) })
		if t.Failed() {
			t.Fatalf("seed %d", seed+1)
		}
	}
}

func runForeignReplay(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	a, b := streamtest.NewPublisher(), streamtest.NewPublisher()
	live := make(map[string]bool) // that came over the connection
	life := 0
	publish := func(p *streamtest.Publisher, name string) {
		text := fmt.Sprintf("%s%d/%d", name, life, p.NextSequence())
		if name == "b" || rnd.IntN(20) > 0 {
			live[text] = p.Publish(text) > 0 && name == "a"
		} else {
			p.PublishToRing(text)
		}
	}
	for range rnd.IntN(60) {
		publish(a, "a")
	}
	for range rnd.IntN(60) {
		publish(b, "b")
	}
	s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: crossed{a, b}, Decode: decodeKey, Queue: 50})
	c := consume(t, s, 0)
	defer func() {
		s.Close()
		<-c.done
	}()
	for range 60 {
		switch n := rnd.IntN(100); {
		case n < 60:
			for range 1 + rnd.IntN(4) {
				publish(a, "a")
			}
		case n < 75:
			for range 1 + rnd.IntN(4) {
				publish(b, "b")
			}
		case n < 80:
			a.CutConnections()
		case n < 83:
			life++
			a.Restart()
		case n < 85:
			life++
			b.Restart()
		default:
			time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
		}
		synctest.Wait()
	}
	time.Sleep(10 * time.Second)
	for range 40 {
		publish(a, "a")
		time.Sleep(200 * time.Millisecond)
	}
	synctest.Wait()
	for _, text := range c.texts() {
		if !live[text] {
			t.Errorf("%s is there, which did not come live\n%+v", text, s.Status())
			break
		}
	}
	// A service that has not come to the numbers that are live now may say nothing, as an empty one does.
	if st := s.Status(); !st.ForeignReplay && b.NextSequence()+40 > a.NextSequence() {
		t.Errorf("the service is not found out: %+v", st)
	}
	a.Publish("a-clear")
	synctest.Wait()
	if st := s.Status(); st.State != Synced || st.LastSeq != a.NextSequence()-1 {
		t.Errorf("after a clear: %+v", st)
	}
	if n := len(b.Requests()); n > 120 {
		t.Errorf("the service was asked %d times", n)
	}
}
