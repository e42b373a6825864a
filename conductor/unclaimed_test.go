package conductor

import (
	"testing"
	"time"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/zmq"
)

// TestUnclaimedTopics holds which clients see topics that no source claims, and the addresses of who sends them.
func TestUnclaimedTopics(t *testing.T) {
	c := New(Options{Strays: func() []zmq.Stray {
		return []zmq.Stray{{Endpoint: "bind:tcp://*:5557", Topic: "kv", From: "10.0.0.1:41234", At: time.Now()}}
	}})
	defer c.Close()
	all := c.For(Reader{Secrets: true}).Inspect().UnclaimedTopics()
	if len(all) != 1 || all[0].From != "10.0.0.1:41234" || all[0].Endpoint != "bind:tcp://*:5557" {
		t.Errorf("%+v", all)
	}
	if all = c.For(Reader{}).Inspect().UnclaimedTopics(); len(all) != 1 || all[0].From != "" || all[0].Endpoint != "" {
		t.Errorf("without the right to see endpoints: %+v", all)
	}
	if all = c.For(Reader{Tenants: scope.Tenants{"blue"}, Secrets: true}).Inspect().UnclaimedTopics(); len(all) > 0 {
		t.Errorf("a tenant sees %+v", all)
	}
}
