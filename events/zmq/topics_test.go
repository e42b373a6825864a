package zmq

import (
	"fmt"
	"io"
	"log"
	"testing"
	"testing/synctest"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/internal/must"
)

// TestTopics follows what subscribers of both implementations subscribe to.
func TestTopics(t *testing.T) {
	endpoint, peer := accepted(t, Transport{}.GreetAsPublisher)
	for name, subscribe := range map[string]func() (io.Closer, error){
		"Transport": func() (io.Closer, error) { return Transport{}.Subscribe(t.Context(), endpoint) },
		"zmq4": func() (io.Closer, error) {
			s := zmq4.NewSub(t.Context(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
			must.Succeed(t, s.Dial(endpoint))
			return s, s.SetOption(zmq4.OptionSubscribe, "")
		},
	} {
		topics, done := NewTopics(), make(chan struct{})
		go func() {
			defer close(done)
			topics.Follow(peer())
		}()
		s, err := subscribe()
		must.Succeed(t, err)
		<-topics.First
		s.Close()
		<-done
		if !topics.Match("any") || !topics.Match("") {
			t.Errorf("a subscriber by %s does not want everything", name)
		}
	}
}

// TestTopicsMatch subscribes to topics, also twice, and ends subscriptions.
func TestTopicsMatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := NewTopics()
		f := func(what byte, topic string, want map[string]bool) {
			t.Helper()
			topics.update(what, topic)
			for one, wanted := range want {
				if topics.Match(one) != wanted {
					t.Errorf("after %d %q %q is wanted: %t", what, topic, one, !wanted)
				}
			}
		}
		f(0, "kv", map[string]bool{"": false, "kv": false})
		f(2, "kv", map[string]bool{"kv": false})
		select {
		case <-topics.First:
			t.Error("something is subscribed to")
		default:
		}
		f(1, "kv", map[string]bool{"": false, "k": false, "kv": true, "kv@pod": true, "other": false})
		<-topics.First
		f(1, "kv", nil)
		f(0, "kv", map[string]bool{"kv": true})
		f(0, "kv", map[string]bool{"kv": false})
		f(1, "", map[string]bool{"": true, "kv": true})
		for i := range 2 * maxSubscriptions {
			topics.update(1, fmt.Sprint(i))
		}
		if len(topics.all) != maxSubscriptions {
			t.Errorf("%d topics are kept", len(topics.all))
		}
	})
}
