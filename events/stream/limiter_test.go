package stream

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
)

// trickling is a publisher whose replay sends a batch every few seconds and does not end.
type trickling struct {
	*streamtest.Publisher
	t *testing.T
}

func (p trickling) Replay(ctx context.Context, _ string, from uint64) (Subscription, error) {
	c := streamtest.NewConn()
	go func() {
		for seq := from; ; seq++ {
			select {
			case <-time.After(4 * time.Second):
				c.Send(p.ReplyFrames(seq)...)
			case <-c.Closing():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return c, nil
}

// TestTricklingReplaysStarveNoOther opens more trickling publishers than there are slots. An honest
// one is synced within a turn, also if the others are a hundred of one tenant.
func TestTricklingReplaysStarveNoOther(t *testing.T) {
	for _, tricklers := range []int{8, 100} {
		synctest.Test(t, func(t *testing.T) {
			replays := NewLimiter(8)
			for range tricklers {
				p := trickling{streamtest.NewPublisher(), t}
				for i := range 1000 {
					p.PublishToRing(fmt.Sprint(i))
				}
				s := Open(Config{Endpoint: "live", ReplayEndpoint: "replay", Transport: p, Decode: decodeText, Replays: replays,
					ReplayFlow: "hostile"})
				consume(t, s, 0)
				defer s.Close()
			}
			time.Sleep(time.Minute)
			honest := streamtest.NewPublisher()
			honest.PublishToRing("0", "1", "2")
			s, c := open(t, honest, func(c *Config) { c.Replays, c.ReplayFlow = replays, "honest" })
			time.Sleep(replayTurn + time.Millisecond)
			wantSeqs(t, c, 0, 1, 2)
			wantState(t, s, Synced, "")
		})
	}
}
