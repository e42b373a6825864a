package stream

import (
	"context"
	"example.com/conductor/events/stream/streamtest"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestHooksHearStates holds what OnState and OnUndecodable hear, between the steps.
func TestHooksHearStates(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.PublishToRing("0", "1")
		p.OnSubscribe = func(context.Context) error { time.Sleep(time.Second); return nil }
		var mu sync.Mutex
		var heard []string
		hear := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			line := fmt.Sprintf(format, args...)
			// How many states are seen on the way to one depends on who runs first.
			if n := len(heard); n > 0 && strings.HasPrefix(line, "is ") && strings.HasPrefix(heard[n-1], "is ") {
				heard = heard[:n-1]
			}
			heard = append(heard, line)
		}
		s := Open(Config{
			Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText,
			OnState:       func(state State, reason string) { hear("is %s %s", state, reason) },
			OnUndecodable: func(epoch, seq uint64, payload []byte) { hear("bad %d/%d %s", epoch, seq, payload) },
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				step, ok := s.Next()
				if !ok {
					return
				}
				hear("%s %d/%d %s", step.Kind, step.Epoch, step.Seq, step.Payload)
			}
		}()
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(heard, "\n"); got != strings.Join(lines, "\n") {
				t.Errorf("heard\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
			}
			heard = nil
		}
		want("is connecting ")
		time.Sleep(time.Second)
		want("is replaying ", "apply 1/0 0", "apply 1/1 1", "is synced ")
		p.Publish("2")
		want("apply 1/2 2")
		p.Publish("3!")
		want("bad 1/3 3!", "is partial undecodable")
		p.Publish("4c")
		want("is synced ", "apply 1/4 4c")
		s.Pause()
		want("is paused ")
		s.Unpause()
		want("is connecting ")
		time.Sleep(time.Second)
		want("is synced ")
		p.CutConnections()
		want("is connecting ")
		s.Resync("asked")
		want("reset 2/0 ")
		s.Close()
		<-done
	})
}
