package stream

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestHooks holds what OnState and OnUndecodable hear, between the steps.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePublisher()
		p.lose("0", "1")
		var mu sync.Mutex
		var heard []string
		hear := func(format string, args ...any) {
			mu.Lock()
			heard = append(heard, fmt.Sprintf(format, args...))
			mu.Unlock()
		}
		s := Open(Config{
			Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText,
			OnState:       func(state State, reason string) { hear("%s %s", state, reason) },
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
		want("connecting ", "replaying ", "apply 1/0 0", "apply 1/1 1", "synced ")
		p.publish("2")
		want("apply 1/2 2")
		p.publish("3!")
		want("bad 1/3 3!", "replaying ", "partial undecodable")
		p.publish("4c")
		want("synced ", "apply 1/4 4c")
		p.cut()
		want("connecting ")
		s.Resync("asked")
		want("reset 2/0 ")
		s.Close()
		<-done
	})
}
