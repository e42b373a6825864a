package stream

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
)

// topics is a publisher that numbers the batches of all its topics together.
type topics struct {
	*streamtest.Publisher
	names []string // by sequence
}

// newTopics makes a publisher of one sequence. Its replies name the topic of each batch.
func newTopics(p *streamtest.Publisher) *topics {
	n := &topics{Publisher: p}
	p.TopicInReplies = true
	p.OnReplay = func(_ uint64, replies [][][]byte) [][][]byte {
		for _, frames := range replies {
			for seq, name := range n.names {
				if len(frames) == 4 && string(frames[2]) == string(streamtest.EncodeSequence(uint64(seq))) {
					frames[1] = []byte(name)
				}
			}
		}
		return replies
	}
	return n
}

// publish sends a batch of a topic, unless it is lost on the way.
func (n *topics) publish(topic, payload string, lost bool) {
	n.Mu.Lock()
	seq := n.RecordBatch(payload)
	n.names = append(n.names, topic)
	n.Mu.Unlock()
	if !lost {
		n.SendFrames(topic, string(streamtest.EncodeSequence(seq)), payload)
	}
}

// decoded opens a stream of one topic and collects the payloads that are decoded.
func decoded(t *testing.T, p *streamtest.Publisher, topic string) (*Stream, *consumer, func() []string) {
	var mu sync.Mutex
	var all []string
	s, c := open(t, p, func(cfg *Config) {
		cfg.Topic = topic
		cfg.Decode = func(payload []byte) (events.Batch, error) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, string(payload))
			return decodeText(payload)
		}
	})
	synctest.Wait()
	return s, c, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// Batches of other topics move the watermark, so that a subscriber of one topic sees gaps
// where there are some, and there alone (LMCACHE-1).
func TestTopicOfASharedSequence(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		n := newTopics(p)
		s, c, got := decoded(t, p, "kv@a@m")
		n.publish("kv@a@m", "0", false)
		n.publish("kv@b@m", "1", false)
		n.publish("kv@a@m2", "2", false)
		n.publish("kv@a@m\x00more", "3", false)
		wantSeqs(t, c, 0, 1, 2, 3)
		if st := wantState(t, s, Synced, ""); st.Gaps != 0 {
			t.Errorf("%d gaps, want none", st.Gaps)
		}
		n.publish("kv@b@m", "4", true)
		n.publish("kv@a@m", "5", true)
		n.publish("kv@b@m", "6", false)
		wantSeqs(t, c, 0, 1, 2, 3, 4, 5, 6)
		if st := wantState(t, s, Synced, ""); st.Gaps != 1 || st.Replayed != 2 {
			t.Errorf("%d gaps and %d batches replayed, want 1 and 2", st.Gaps, st.Replayed)
		}
		if want := []string{"0", "3", "5"}; !slices.Equal(got(), want) {
			t.Errorf("decoded %q, want %q", got(), want)
		}
	})
}

// A batch of another topic with other bytes shows a restart like any other.
func TestRestartBetweenTopics(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		n := newTopics(p)
		s, _, _ := decoded(t, p, "kv@a@m")
		n.publish("kv@a@m", "0", false)
		n.publish("kv@b@m", "1", false)
		synctest.Wait()
		n.Restart()
		n.names = nil
		n.publish("kv@a@m", "0", true)
		n.publish("kv@b@m", "7", true)
		time.Sleep(time.Minute) // synthetic: until it has connected again
		if st := wantState(t, s, Synced, ""); st.Restarts != 1 {
			t.Errorf("%d restarts, want 1", st.Restarts)
		}
	})
}

// A reply without a topic may be of any emitter, so it fills no hole.
func TestRepliesWithoutTopics(t *testing.T) {
	inBubble(t, func(t *testing.T, p *streamtest.Publisher) {
		n := newTopics(p)
		p.TopicInReplies, p.OnReplay = false, nil
		s, c, _ := decoded(t, p, "kv@a@m")
		n.publish("kv@a@m", "0", false)
		n.publish("kv@a@m", "1", true)
		n.publish("kv@a@m", "2", false)
		wantSeqs(t, c, 0, 2)
		wantState(t, s, Partial, ReasonGap)
	})
}
