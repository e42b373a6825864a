package stream

import (
	"context"
	"errors"
	"example.com/conductor/events/stream/streamtest"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPauseCutsConnections(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0", "1")
		s, c := open(t, p, nil)
		wantSeqs(t, c, 0, 1)
		p.Publish("2")
		wantSeqs(t, c, 0, 1, 2)
		paused, tried := time.Now(), p.CountAttempts()
		s.Pause()
		s.Pause()
		if st := s.Status(); st.State != Paused || st.Connected {
			t.Errorf("at once: status is %+v", st)
		}
		p.Publish("3")
		p.Publish("4")
		time.Sleep(time.Hour)
		wantSeqs(t, c, 0, 1, 2)
		st := wantState(t, s, Paused, "")
		if st.Connected || !st.HasSeq || st.LastSeq != 2 || st.Epoch != 1 || st.LastError != "" || st.History != "" ||
			!st.LastLifeAt.Equal(paused) {
			t.Errorf("status is %+v", st)
		}
		if n := p.CountAttempts(); n != tried {
			t.Errorf("%d attempts to connect while paused", n-tried)
		}
		s.Unpause()
		s.Unpause()
		if st := s.Status(); st.State != Connecting {
			t.Errorf("state is %s, want connecting: it was not sought for an hour", st.State)
		}
		wantSeqs(t, c, 0, 1, 2, 3, 4)
		st = wantState(t, s, Synced, "")
		if st.Epoch != 1 || st.Reconnects != 1 {
			t.Errorf("status is %+v", st)
		}
		if n := p.CountAttempts(); n != tried+1 {
			t.Errorf("%d attempts to connect again", n-tried)
		}
		if got := p.Requests(); !slices.Equal(got, []uint64{0, 2}) {
			t.Errorf("asked from %d", got)
		}
		s.Unpause() // is not paused
		time.Sleep(time.Minute)
		if st := wantState(t, s, Synced, ""); st.Reconnects != 1 {
			t.Errorf("a stream that is not paused reconnects: %+v", st)
		}
		// Another lifetime is found out as after any reconnect.
		s.Pause()
		p.Restart("0x", "1x", "2x")
		time.Sleep(time.Minute)
		s.Unpause()
		wantSeqs(t, c, 0, 1, 2)
		if st := wantState(t, s, Synced, ""); st.Epoch != 2 {
			t.Errorf("status is %+v", st)
		}
	})
}

func TestPauseWithoutReplay(t *testing.T) {
	f := func(missed int, state State, reason string) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			s, c := open(t, p, func(c *Config) { c.ReplayEndpoint = "" })
			synctest.Wait()
			p.Publish("0")
			wantSeqs(t, c, 0)
			s.Pause()
			for i := range missed {
				p.Publish(fmt.Sprint(1 + i))
			}
			s.Unpause()
			wantSeqs(t, c, 0)
			wantState(t, s, Partial, ReasonUnknown)
			p.Publish(fmt.Sprint(1 + missed))
			wantSeqs(t, c, 0, uint64(1+missed))
			wantState(t, s, state, reason)
		})
	}
	f(0, Synced, "")
	f(2, Partial, ReasonGap)
}

// What waits in the queue is applied all the same.
func TestPauseKeepsTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s := Open(Config{Endpoint: "live", Transport: p, Decode: decodeText})
		defer s.Close()
		synctest.Wait()
		p.Publish("0")
		p.Publish("1")
		synctest.Wait()
		s.Pause()
		p.Publish("2")
		c := consume(t, s, 0)
		wantSeqs(t, c, 0, 1)
		wantState(t, s, Paused, "")
		s.Unpause()
		synctest.Wait()
		p.Publish("3")
		wantSeqs(t, c, 0, 1, 3)
		wantState(t, s, Partial, ReasonGap)
	})
}

// A replay ends with the pause, also if the caller is busy with a batch.
func TestPauseEndsTheReplay(t *testing.T) {
	f := func(busy bool) {
		t.Helper()
		inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
			p.PublishToRing("0", "1", "2")
			p.OnReplay = func(_ uint64, r [][][]byte) [][][]byte { return r[:min(len(r), 1)] } // and no end
			s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText, ReplayTimeout: time.Hour})
			defer s.Close()
			s.Next()
			var c *consumer
			if !busy {
				c = consume(t, s, 1)
				synctest.Wait()
			}
			s.Pause()
			synctest.Wait()
			p.Mu.Lock()
			for r := range p.Replays {
				if !r.IsClosed() {
					t.Error("a replay is still open")
				}
			}
			for l := range p.Live {
				if !l.IsClosed() {
					t.Error("a live connection is still open")
				}
			}
			p.OnReplay = nil
			p.Mu.Unlock()
			if st := s.Status(); st.State != Paused {
				t.Errorf("status is %+v", st)
			}
			s.Unpause()
			if busy {
				c = consume(t, s, 1)
			}
			wantSeqs(t, c, 1, 2)
			wantState(t, s, Synced, "")
		})
	}
	f(false)
	f(true)
}

// A pause at any moment, of a stream that gets nowhere, and its end.
func TestPauseAndClose(t *testing.T) {
	f := func(tr Transport, wait time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: tr, Decode: decodeText})
			c := consume(t, s, 0)
			time.Sleep(wait)
			s.Pause()
			wantState(t, s, Paused, "")
			time.Sleep(time.Hour)
			wantState(t, s, Paused, "")
			s.Unpause()
			time.Sleep(wait)
			s.Pause()
			began := time.Now()
			s.Close()
			<-c.done
			if d := time.Since(began); d != 0 {
				t.Errorf("closing took %v", d)
			}
			s.Pause()
			s.Unpause()
			s.Close()
		})
	}
	refusing := streamtest.NewPublisher()
	refusing.OnSubscribe = func(context.Context) error { return errors.New("refused") }
	for _, wait := range []time.Duration{0, time.Second, time.Minute} {
		f(stuck{subscribe: true}, wait)
		f(stuck{replay: true}, wait)
		f(stuck{}, wait)
		f(refusing, wait)
	}
}

// Any goroutine may pause and go on at any time.
func TestPauseFromManyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		s, c := open(t, p, nil)
		var all []uint64
		var group sync.WaitGroup
		for i := range uint64(200) {
			if all = append(all, i); i%5 == 0 {
				group.Go(s.Pause)
				group.Go(s.Unpause)
				group.Go(func() { s.Status() })
			}
			p.Publish(fmt.Sprint(i))
			if i%7 == 0 {
				time.Sleep(40 * time.Millisecond)
			}
		}
		group.Wait()
		s.Unpause()
		time.Sleep(time.Minute)
		wantSeqs(t, c, all...)
		if st := wantState(t, s, Synced, ""); st.Epoch != 1 {
			t.Errorf("status is %+v", st)
		}
	})
}

func TestUnpauseTriesAFailedEndpointAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0")
		p.OnSubscribe = func(context.Context) error { return malformed{errors.New("no port")} }
		s, c := open(t, p, nil)
		wantState(t, s, Failed, reasonEndpoint)
		s.Pause()
		wantState(t, s, Failed, reasonEndpoint)
		s.Unpause()
		wantState(t, s, Failed, reasonEndpoint) // again
		if n := p.CountAttempts(); n != 2 {
			t.Errorf("%d attempts", n)
		}
		p.Mu.Lock()
		p.OnSubscribe = nil
		p.Mu.Unlock()
		time.Sleep(time.Minute)
		wantState(t, s, Failed, reasonEndpoint) // without a call nothing happens
		s.Unpause()
		s.Unpause()
		wantSeqs(t, c, 0)
		wantState(t, s, Synced, "")
		if n := p.CountAttempts(); n != 3 {
			t.Errorf("%d attempts", n)
		}
		s.Pause()
		wantState(t, s, Paused, "")
	})
}

// badReplay is a publisher whose replay endpoint can never work while bad is set.
type badReplay struct {
	*streamtest.Publisher
	bad atomic.Bool
}

func (b *badReplay) Replay(ctx context.Context, ep string, from uint64) (Subscription, error) {
	if b.bad.Load() {
		return nil, malformed{errors.New("no port")}
	}
	return b.Publisher.Replay(ctx, ep, from)
}

func TestUnpauseTriesAFailedReplayAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &badReplay{Publisher: streamtest.NewPublisher()}
		p.bad.Store(true)
		p.PublishToRing("0", "1")
		s, c := open(t, p.Publisher, func(c *Config) { c.Transport = p })
		synctest.Wait()
		p.Publish("2")
		wantSeqs(t, c, 2) // the live connection stands
		wantState(t, s, Failed, reasonEndpoint)
		s.Pause()
		if st := wantState(t, s, Failed, reasonEndpoint); !st.Connected {
			t.Errorf("status is %+v", st)
		}
		p.bad.Store(false)
		s.Unpause()
		time.Sleep(time.Minute)
		p.Publish("3")
		wantSeqs(t, c, 0, 1, 2, 3) // history is asked for again
		wantState(t, s, Synced, "")
	})
}
