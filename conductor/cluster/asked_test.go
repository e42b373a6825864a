package cluster

import (
	"context"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestAskedFollowsSourcesOfItsShards: a source that an engine told is followed while its shard is held.
func TestAskedFollowsSourcesOfItsShards(t *testing.T) {
	t.Parallel()
	network := streamtest.NewPublisher()
	c := conductor.New(conductor.Options{
		Log: zerolog.Nop(), Transport: func(registration.Registration, bool) stream.Transport { return network },
	})
	defer c.Close()
	shards := New(Config{Conductor: c, Group: membership.New(membership.Config{Log: zerolog.Nop()}), Log: zerolog.Nop()})
	a := NewAsked(c)
	a.Share(shards)
	shard := scope.Shard{Tenant: "default", Model: "m"}
	publish := func(p Phase) {
		shards.chart.Store(&chart{rows: map[scope.Shard]*Row{shard: {Shard: shard, Phase: p}}, known: true})
	}
	publish(Absent)
	r := registration.Registration{
		Endpoint: "tcp://a:1", Type: registration.TypeVLLM, Model: "m", Tenant: "default", Instance: "e", BlockSize: 16,
	}
	must.Succeed(t, a.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
	a.ReportLearned(r.Key(), "it told its model")
	if state, _, ok := a.Health(r.Key()); c.Sources().Follows(r.Key()) || state != stream.Synced || !ok || len(a.Sources()) != 1 {
		t.Errorf("a source of another replica: followed %v, %s %v, %v", c.Sources().Follows(r.Key()), state, ok, a.Sources())
	}
	shards.held[shard] = &heldShard{brought: true, stop: context.CancelFunc(func() {})}
	a.Again()
	if !c.Sources().Follows(r.Key()) {
		t.Error("a source of a shard that is held is not followed")
	}
	publish(Leaving)
	delete(shards.held, shard)
	a.Again()
	if !c.Sources().Follows(r.Key()) {
		t.Error("a source of a shard that queries still find here is not followed")
	}
	publish(Absent)
	a.Again()
	if c.Sources().Follows(r.Key()) {
		t.Error("a source of a shard that was let go is followed")
	}
	if _, err := a.Unregister(r.Key()); err != nil || len(a.Sources()) != 0 {
		t.Errorf("%v, %v", err, a.Sources())
	}
}

// TestAskedTellsWhatIsUnregistered: no snapshot brings back a source of another replica's shard that its engine no longer names.
func TestAskedTellsWhatIsUnregistered(t *testing.T) {
	t.Parallel()
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	shards := New(Config{Conductor: c, Group: membership.New(membership.Config{Log: zerolog.Nop()}), Log: zerolog.Nop()})
	a := NewAsked(c)
	a.Share(shards)
	r := registration.Registration{
		Endpoint: "tcp://a:1", Type: registration.TypeVLLM, Model: "m", Tenant: "default", Instance: "e", BlockSize: 16,
	}
	shards.chart.Store(&chart{rows: map[scope.Shard]*Row{{Tenant: "default", Model: "m"}: {Phase: Absent}}, known: true})
	must.Succeed(t, a.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
	_, err := a.Unregister(r.Key())
	must.Succeed(t, err)
	must.Succeed(t, c.Sources().Snapshots().Recover(0).Source(image.Source{Registration: r}))
	if all := c.Services(); len(all) != 0 {
		t.Errorf("a snapshot brings %s", all[0].Key())
	}
}

// TestKeysOfShards: texts of shards are read back, whatever the names have in them.
func TestKeysOfShards(t *testing.T) {
	for _, s := range []scope.Shard{{Tenant: "a", Model: "m"}, {Tenant: "a/b", Model: "c"}, {Tenant: "a", Model: "b/c"},
		{Tenant: "a%2Fb", Model: "/"}, {}} {
		if got, ok := shardOf(Key(s)); got != s || !ok {
			t.Errorf("%+v has the text %q, which is %+v", s, Key(s), got)
		}
	}
	for _, text := range []string{"", "m", "%zz/m"} {
		if _, ok := shardOf(text); ok {
			t.Errorf("%q is a shard", text)
		}
	}
}

// TestWantedKeepsWhatIsThere: before the registry was read a replica keeps its sources and takes no
// others.
func TestWantedKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	network := streamtest.NewPublisher()
	c := conductor.New(conductor.Options{
		Log: zerolog.Nop(), Transport: func(registration.Registration, bool) stream.Transport { return network },
	})
	defer c.Close()
	shards := New(Config{Conductor: c, Group: membership.New(membership.Config{Log: zerolog.Nop()}), Log: zerolog.Nop()})
	r := registration.Registration{
		Endpoint: "tcp://a:1", Type: registration.TypeVLLM, Model: "m", Tenant: "default", Instance: "e", BlockSize: 16,
	}
	if shards.Wanted(r) {
		t.Error("a source of others is wanted before the registry was read")
	}
	must.Succeed(t, c.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
	if !shards.Wanted(r) {
		t.Error("a source of the configuration is not wanted")
	}
	pool := registration.Registration{Type: registration.TypeMooncake, Model: "m"}
	if !shards.Wanted(pool) {
		t.Error("a pool is not wanted")
	}
	if err := shards.Serves(scope.Shard{Model: "m"}); err == nil {
		t.Error("a replica answers before it knows its group")
	}
}
