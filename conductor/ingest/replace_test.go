package ingest

import (
	"testing"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// TestReplacedSourceStaysARow has a source replaced by one with another endpoint. Queries find the instance all the time,
// also while the new stream is opened.
func TestReplacedSourceStaysARow(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	key := scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 4}
	opened := 0
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
		if opened++; opened > 1 {
			d := c.catalog.Deployment(key)
			if d == nil {
				t.Error("the deployment is gone while its only source is replaced")
			} else if n := len(d.Instances().All); n != 1 {
				t.Errorf("%d rows while the source is replaced", n)
			}
		}
		return idle{make(chan struct{})}
	})
	for _, endpoint := range []string{"tcp://a:1", "tcp://b:1"} {
		must.Succeed(t, c.Register(registration.Registration{Endpoint: endpoint, Type: registration.TypeVLLM, Model: "m", Instance: "i",
			BlockSize: 4}, RegisterOptions{Replace: true}))
		if n := len(c.catalog.Deployment(key).Instances().All[0].Members); n != 1 {
			t.Errorf("the instance has %d members", n)
		}
	}
}

// TestClearOfPoolEndsNoReport holds that what a pool loses is not taken for a loss of the first instance.
func TestClearOfPoolEndsNoReport(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
		return idle{make(chan struct{})}
	})
	for instance, kind := range map[string]string{"i": registration.TypeVLLM, "pool": registration.TypeMooncake} {
		must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://" + instance + ":1", Type: kind, Model: "m",
			Instance: instance, BlockSize: 4}, RegisterOptions{}))
	}
	q := match.Query{Model: "m", BlockSize: 4, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, Expected: true}
	_, err := c.matcher.Report(&match.Routed{Query: q, Target: "i", Rank: 0})
	must.Succeed(t, err)
	pool := c.sources.Find(registration.Key{Instance: "pool", Tenant: scope.DefaultTenant})
	pool.guard(func() {
		pool.holdings.namespaceIn(pool.holdings.deploymentKey())
		pool.applier.clear(&normalize.Change{Kind: normalize.Cleared, Event: &events.Event{Kind: events.Cleared, Group: -1}})
		pool.dropExpected()
	})
	if got := c.Query(q).Rows[0].Expected; got != 2 {
		t.Errorf("after a clear of the pool %d blocks are expected of the instance, want 2", got)
	}
}
