package stream

import (
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
)

// A publisher may count from 1. One that counts from 0 and has forgotten batch 0 alone looks the same, so
// it is asked twice. Other numbers are those of a ring that has forgotten the first.
func TestPublisherCountsFromOne(t *testing.T) {
	f := cases(t, replaying)
	f("up r1", "?0 ?0 =replaying")
	f("up r1 r1 r2 end 3", "?0 ?0 1r 2r 3 =synced")
	f("up 1 end r1 r1 end 2", "?0 ?0 ?0 1 2 =synced")
	f("up end 1 2 r1 r1", "?0 ?0 ?0 1 2 =synced") // its first batch came live
	f("up 3 r1 r1 r2", "?0 ?0 1r 2r 3 =synced")
	f("up r1 r1 r2 cut r3 end", "?0 ?0 1r 2r ?3 3r =synced")
	f("up r1 cut 0.1s r1 end", "?0 ?0 ?0 1r =synced")
	f("up r1 r2 r3 end", "?0 ?0 2r 3r =partial:replay_overrun") // its ring moves on
	f("up r1 r0 r1 end", "?0 ?0 0r 1r =synced")                 // the first was lost on the way
	f("up r2 r3 end", "?0 2r 3r =partial:replay_overrun")
	f("up r1 5s", "?0 ?0 =partial:replay_timeout")
	f("up 4 5s 10s r1 r2 r3", "?0 4 ?0 drop:history_recovered ?0 =replaying")
	// After a restart it begins with 1 again.
	start := "up r1 r1 r2 end 3 "
	f(start+"1x r1x r1x", "?0 ?0 1r 2r 3 drop:publisher_restarted ?0 ?0 1 =synced")
	f(start+"down up end r1x r1x end", "?0 ?0 1r 2r 3 ?3 drop:last_batch_gone ?0 ?0 1r =synced")
	f(start+"down up 1x r1x r1x", "?0 ?0 1r 2r 3 ?3 drop:publisher_restarted ?0 ?0 1 =synced")
	f(start+"down up end end 1x r1x r1x", "?0 ?0 1r 2r 3 ?3 drop:last_batch_gone ?0 ?0 ?0 1 =synced")
	// Another one that begins with 0 may follow.
	f(start+"down up end r0 r1 end", "?0 ?0 1r 2r 3 ?3 drop:last_batch_gone ?0 0r 1r =synced")
}

// TestPublisherFromOne follows a publisher that counts from 1 over connections, through a restart.
func TestPublisherFromOne(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		p.First = 1
		p.PublishToRing("1", "2")
		s, c := open(t, p, func(c *Config) { c.FirstSeq = 0 })
		wantSeqs(t, c, 1, 2)
		p.Publish("3")
		wantSeqs(t, c, 1, 2, 3)
		st := wantState(t, s, Synced, "")
		if st.Overruns != 0 || st.History != "" {
			t.Errorf("status is %+v", st)
		}
		p.Restart()
		time.Sleep(time.Second)
		p.Publish("1")
		synctest.Wait()
		time.Sleep(time.Minute)
		wantSeqs(t, c, 1)
		if st := wantState(t, s, Synced, ""); st.Restarts != 1 {
			t.Errorf("status is %+v", st)
		}
	})
}
