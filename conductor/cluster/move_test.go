package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// member is a replica that beats and steps when the test says so.
type member struct {
	conductor *conductor.Conductor
	group     *membership.Group
	registry  *membership.Registry
	shards    *Cluster
}

// sharing is a group whose replicas share a store and its shards. Their clock for shards stands
// still until the test moves it.
type sharing struct {
	t       *testing.T
	engines streamtest.Network
	clock   atomic.Int64 // ns
	members []*member
}

// newSharing starts replicas of equal weight. No stream of theirs is ever stale, and no lease ends by itself.
func newSharing(t *testing.T, replicas, owners int) *sharing {
	s := &sharing{t: t}
	url := redistest.Start(t).URL()
	now := func() time.Time { return time.Unix(1_800_000_000, s.clock.Load()) }
	for i := range replicas {
		opened, err := store.Open(store.Config{URL: url, Name: "test", Timeout: time.Minute})
		must.Succeed(t, err)
		t.Cleanup(func() { opened.Close() })
		id := fmt.Sprintf("r%d", i)
		m := &member{group: membership.New(membership.Config{
			Store: opened, Replica: membership.Replica{ID: id, URL: "http://" + id, Weight: 1}, Lease: time.Hour, Log: zerolog.Nop(),
		})}
		m.conductor = conductor.New(conductor.Options{
			Log:       zerolog.Nop(),
			Transport: func(registration.Registration, bool) stream.Transport { return &s.engines },
			Stream: stream.Config{StaleAfter: time.Hour, ReplayTimeout: time.Hour,
				Decode: func(batch []byte) (events.Batch, error) { return wire.Decode(batch, wire.DefaultLimits) }},
		})
		t.Cleanup(m.conductor.Close)
		sources := m.conductor.Sources()
		targets := discovery.New(discovery.Options{
			Registry: sources, Bounds: sources.Places.Bounds, TooMany: sources.Places.TooMany, Log: zerolog.Nop(),
		})
		t.Cleanup(targets.Close)
		m.registry = membership.NewRegistry(membership.RegistryConfig{
			Group: m.group, Conductor: m.conductor, Targets: targets, Log: zerolog.Nop(),
		})
		m.shards = New(Config{Conductor: m.conductor, Group: m.group, Registry: m.registry, Owners: owners, Log: zerolog.Nop(), Now: now})
		t.Cleanup(m.shards.endTakeovers)
		m.conductor.ServeBy(m.shards)
		m.registry.SetWanted(m.shards.Wanted)
		s.members = append(s.members, m)
	}
	return s
}

// pass moves the clock on.
func (s *sharing) pass(d time.Duration) { s.clock.Add(int64(d)) }

// round lets each replica beat and step once.
func (s *sharing) round() {
	for _, m := range s.members {
		m.group.Beat(s.t.Context())
		m.registry.Sync(s.t.Context())
		m.shards.Step(s.t.Context())
	}
}

// until takes rounds until something is so, which right describes.
func (s *sharing) until(what string, right func() (string, bool)) {
	s.t.Helper()
	tick, deadline := time.NewTicker(5*time.Millisecond), time.After(5*time.Minute)
	defer tick.Stop()
	for {
		s.round()
		got, is := right()
		if is {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s: %s", what, got)
		}
	}
}

// register registers the engine of an instance at the first replica, and lets it announce a block.
func (s *sharing) register(instance, model string) {
	s.t.Helper()
	endpoint := "tcp://" + instance + ":1"
	stored := streamtest.Scope{Medium: "GPU"}.StoredEvent(0, []uint64{7}, prompt, len(prompt))
	s.engines.PublisherAt(endpoint).Publish(streamtest.EncodeBatch(1.5, 0, stored))
	r := registration.Registration{
		Instance: instance, Endpoint: endpoint, ReplayEndpoint: endpoint + "/replay", Type: registration.TypeVLLM, Model: model,
		BlockSize: len(prompt),
	}
	must.Succeed(s.t, s.members[0].conductor.For(conductor.Reader{}).Register(r,
		ingest.RegisterOptions{Replace: true, AnyEndpoint: true}))
}

// prompt is the one block that every engine holds.
var prompt = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// phases returns the phases of a shard at all replicas.
func (s *sharing) phases(shard scope.Shard) (all []string) {
	for _, m := range s.members {
		phase := Absent
		if row := m.shards.chart.Load().rows[shard]; row != nil {
			phase = row.Phase
		}
		all = append(all, phase.String())
	}
	return all
}

// serving returns how many replicas serve a shard, -1 while one of them is on its way.
func (s *sharing) serving(shard scope.Shard) (text string, n int) {
	all := s.phases(shard)
	for _, phase := range all {
		switch phase {
		case Serving.String():
			n++
		case Absent.String():
		default:
			return strings.Join(all, " "), -1
		}
	}
	return strings.Join(all, " "), n
}

// answer returns the rows of an answer about the prompt, with the state of their source.
func (m *member) answer(shard scope.Shard) string {
	if err := m.shards.Serves(shard); err != nil {
		return err.Error()
	}
	var all []string
	for _, row := range m.conductor.Query(match.Query{Model: shard.Model, BlockSize: len(prompt), Tokens: prompt, Detail: true}).Rows {
		all = append(all, fmt.Sprintf("%s %d %s", row.Instance, row.Longest, row.Detail[0].State))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestServesWithoutAnEngineThatIsDown begins a shard while one of its engines refuses connections. No
// replica serves the shard, so the owners wait a while and then answer for the other engine. Of the
// one that is down they say that they are connecting, and have its blocks once it is up.
func TestServesWithoutAnEngineThatIsDown(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 2)
	var up atomic.Bool
	s.engines.PublisherAt("tcp://down:1").OnSubscribe = func(context.Context) error {
		if up.Load() {
			return nil
		}
		return errors.New("the engine is down")
	}
	shard := scope.Shard{Tenant: scope.DefaultTenant, Model: "m"}
	s.register("up", shard.Model)
	s.register("down", shard.Model)
	s.until("the owners never follow the engines", func() (string, bool) {
		states := fmt.Sprint(s.members[0].conductor.States(), s.members[1].conductor.States())
		return states, strings.Count(states, "synced:") == 2 && strings.Count(states, "connecting:") == 2
	})
	for range 3 {
		s.round()
		if phases := strings.Join(s.phases(shard), " "); phases != "bringing bringing" {
			t.Fatalf("before the owners have waited they are %s", phases)
		}
	}
	s.pass(reaching)
	s.until("no replica answers without an engine that is down", func() (string, bool) {
		text := s.members[0].answer(shard)
		return text, text == "down 0 connecting, up 1 synced"
	})
	up.Store(true)
	s.until("an engine that is up again is not followed, or an owner does not serve", func() (string, bool) {
		text, n := s.serving(shard)
		for _, m := range s.members {
			text += "; " + m.answer(shard)
		}
		return text, n == 2 && strings.Count(text, "; down 1 synced, up 1 synced") == 2
	})
}

// TestServesAnEngineThatPublishesNothing begins a shard whose only engine publishes no events. Both owners serve
// without waiting for it.
func TestServesAnEngineThatPublishesNothing(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 2)
	shard := scope.Shard{Tenant: scope.DefaultTenant, Model: "m"}
	must.Succeed(t, s.members[0].conductor.For(conductor.Reader{}).Register(registration.Registration{
		Instance: "llama", Type: registration.TypeStandard, Model: shard.Model, BlockSize: len(prompt), Events: registration.EventsNone,
		CapacityBlocks: 8,
	}, ingest.RegisterOptions{}))
	s.until("an owner does not serve", func() (string, bool) {
		text, n := s.serving(shard)
		for _, m := range s.members {
			text += "; " + m.answer(shard)
		}
		return text, n == 2 && strings.Count(text, "; llama 0 approximate") == 2
	})
}

// TestReplicaWaitsForAnEngineThatAnotherReaches begins an owner that cannot reach an engine, next to
// one that serves. However long it waits, it does not answer: the other one knows more.
func TestReplicaWaitsForAnEngineThatAnotherReaches(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 2)
	late := s.members[1]
	s.members = s.members[:1]
	shard := scope.Shard{Tenant: scope.DefaultTenant, Model: "m"}
	s.register("e", shard.Model)
	s.until("the first replica never serves", func() (string, bool) {
		text := s.members[0].answer(shard)
		return text, text == "e 1 synced"
	})
	p := s.engines.PublisherAt("tcp://e:1")
	p.Mu.Lock()
	p.OnSubscribe = func(context.Context) error { return errors.New("no way to the engine") }
	p.Mu.Unlock()
	s.members = append(s.members, late)
	s.until("the second replica never follows the engine", func() (string, bool) {
		states := fmt.Sprint(late.conductor.States())
		return states, strings.Contains(states, "connecting:")
	})
	s.pass(time.Hour)
	for range 5 {
		s.round()
		if text := strings.Join(s.phases(shard), " "); text != "serving bringing" {
			t.Fatalf("the replicas are %s", text)
		}
	}
}

// TestShardIsTakenOverAgain begins an owner while its first takeover fails, and the engine replays less
// than the other owner has. It takes the shard over again, and serves.
func TestShardIsTakenOverAgain(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 2)
	late := s.members[1]
	s.members = s.members[:1]
	shard := scope.Shard{Tenant: scope.DefaultTenant, Model: "m"}
	s.register("e", shard.Model)
	p := s.engines.PublisherAt("tcp://e:1")
	p.Publish(streamtest.EncodeBatch(2.5, 0, streamtest.Scope{Medium: "GPU"}.StoredEvent(7, []uint64{8}, prompt, len(prompt))))
	p.Publish(streamtest.EncodeBatch(2.5, 0, streamtest.Scope{Medium: "GPU"}.StoredEvent(8, []uint64{9}, prompt, len(prompt))))
	s.until("the first replica never serves", func() (string, bool) {
		text := s.members[0].answer(shard)
		return text, text == "e 1 synced"
	})
	p.Mu.Lock()
	p.OnReplay = func(from uint64, replies [][][]byte) [][][]byte {
		if from == 0 {
			return replies[2:]
		}
		return replies
	}
	p.Mu.Unlock()
	var calls atomic.Int64
	late.shards.cfg.Bring = func(context.Context, scope.Deployment, []string) error {
		if calls.Add(1) == 1 {
			return errors.New("the replica is busy")
		}
		p.Mu.Lock()
		defer p.Mu.Unlock()
		p.OnReplay = nil
		return nil
	}
	s.members = append(s.members, late)
	s.until("the second replica never misses something", func() (string, bool) {
		states := fmt.Sprint(late.conductor.States())
		return states, strings.Contains(states, "partial:")
	})
	for range 5 {
		s.round()
		if text := strings.Join(s.phases(shard), " "); text != "serving bringing" || calls.Load() != 1 {
			t.Fatalf("the replicas are %s after %d takeovers", text, calls.Load())
		}
	}
	s.pass(minAgain)
	s.until("the second replica never serves", func() (string, bool) {
		text, n := s.serving(shard)
		return text + "; " + late.answer(shard), n == 2
	})
	if got := late.answer(shard); got != "e 1 synced" || calls.Load() != 2 {
		t.Errorf("%s after %d takeovers", got, calls.Load())
	}
}

// TestServingReplicaTakesOverFromOneThatHasMore takes the only replica of a shard from the store until its
// lease has ended. Another one serves what the engine replays, and has to go on so while it is alone. Once
// the first one is back, with more, the other one takes that over.
func TestServingReplicaTakesOverFromOneThatHasMore(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 2)
	first, other := s.members[0], s.members[1]
	s.members = []*member{first}
	shard := scope.Shard{Tenant: scope.DefaultTenant, Model: "m"}
	s.register("e", shard.Model)
	p := s.engines.PublisherAt("tcp://e:1")
	p.Publish(streamtest.EncodeBatch(2.5, 0, streamtest.Scope{Medium: "GPU"}.StoredEvent(7, []uint64{8}, prompt, len(prompt))))
	p.Publish(streamtest.EncodeBatch(2.5, 0, streamtest.Scope{Medium: "GPU"}.StoredEvent(8, []uint64{9}, prompt, len(prompt))))
	s.until("the first replica never serves", func() (string, bool) {
		text := first.answer(shard)
		return text, text == "e 1 synced"
	})
	p.Mu.Lock()
	p.OnReplay = func(from uint64, replies [][][]byte) [][][]byte {
		if from == 0 {
			return replies[2:]
		}
		return replies
	}
	p.Mu.Unlock()
	other.shards.cfg.Bring = func(_ context.Context, _ scope.Deployment, from []string) error {
		if len(from) == 0 {
			return errors.New("no replica serves")
		}
		p.Mu.Lock()
		defer p.Mu.Unlock()
		p.OnReplay = nil
		return nil
	}
	s.members = []*member{other}
	shared := first.group.Store()
	// its lease has ended
	must.Succeed(t, shared.Client().ZAdd(t.Context(), shared.Key("replicas"), redis.Z{Score: 1, Member: first.group.ID()}).Err())
	s.until("the other replica never serves alone", func() (string, bool) {
		text, n := s.serving(shard)
		return text + "; " + other.answer(shard), n == 1 && strings.Contains(other.answer(shard), "partial")
	})
	s.members = []*member{first, other}
	for range 5 {
		s.round()
		if text := strings.Join(s.phases(shard), " "); text != "serving serving" {
			t.Fatalf("at once the replicas are %s", text)
		}
	}
	s.pass(catching)
	s.until("the other replica never has what the first one has", func() (string, bool) {
		text, n := s.serving(shard)
		return text + "; " + other.answer(shard), n == 2 && other.answer(shard) == "e 1 synced"
	})
}

// TestHotShardGetsAnotherOwner asks for one of six models far more often than for the others. It gets
// a third owner, which follows its engines and answers, and gives it back once it is asked no more.
func TestHotShardGetsAnotherOwner(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 4, 2)
	const models = 6
	shardOf := func(i int) scope.Shard {
		return scope.Shard{Tenant: scope.DefaultTenant, Model: fmt.Sprintf("m%d", i)}
	}
	for i := range models {
		for n := range 2 {
			s.register(fmt.Sprintf("e%d-%d", i, n), shardOf(i).Model)
		}
	}
	owners := func(hot int) func() (string, bool) {
		return func() (string, bool) {
			all, right := "", true
			for i := range models {
				want := 2
				if i == 0 {
					want = hot
				}
				text, n := s.serving(shardOf(i))
				all, right = all+"m"+fmt.Sprint(i)+": "+text+"\n", right && n == want
			}
			return all, right
		}
	}
	s.until("the shards never have two owners each", owners(2))
	hot := shardOf(0)
	want := "e0-0 1 synced, e0-1 1 synced"

	// Each of two owners is asked at a rate, over a time in which rates take nearly all of a change.
	// The models cost as much as 480 queries a second, so that the mean of the four replicas is 184:
	// half of it is less than what two owners have, and more than what three have.
	const rate, seconds = 128, 120
	asked := 0
	for _, m := range s.members {
		if m.shards.Serves(hot) != nil {
			continue
		}
		for range rate * seconds {
			if asked++; m.answer(hot) != want {
				t.Fatalf("the hot model is answered with %s", m.answer(hot))
			}
		}
	}
	s.pass(seconds * time.Second)
	s.until("a hot shard never has a third owner", owners(3))
	answering := 0
	for _, m := range s.members {
		if m.answer(hot) == want {
			answering++
		}
	}
	if answering != 3 || asked != 2*rate*seconds {
		t.Errorf("%d replicas answer for the hot model, after %d queries", answering, asked)
	}

	s.pass(20 * smoothing)
	s.until("a shard that is quiet again keeps its third owner", func() (string, bool) {
		text, right := owners(2)()
		for _, m := range s.members {
			serves, follows := m.shards.Serves(hot) == nil,
				m.conductor.Sources().Follows(registration.Key{Instance: "e0-0", Tenant: scope.DefaultTenant})
			text, right = text+fmt.Sprintf("%s serves %v, follows %v\n", m.group.ID(), serves, follows), right && serves == follows
		}
		return text, right
	})
}

// TestNewModelIsAnsweredWhereItIsRegistered holds that the replica at which a model's first engine was
// registered goes on with it until the shard has its owners.
func TestNewModelIsAnsweredWhereItIsRegistered(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 1)
	s.round()
	s.round()
	for i := range 6 {
		model := fmt.Sprintf("m%d", i)
		shard := scope.Shard{Tenant: scope.DefaultTenant, Model: model}
		s.register("e-"+model, model)
		must.Succeed(t, s.members[0].registry.Sync(t.Context()))
		if got := s.members[0].answer(shard); !strings.Contains(got, "e-"+model) {
			t.Errorf("before the next beat %s is answered with %q", model, got)
		}
		s.until(model+" never has an owner", func() (string, bool) {
			text, n := s.serving(shard)
			return text, n == 1
		})
	}
}

// TestNewModelIsLeftWhereItHasNoOwner holds that the replica at which a model was registered follows
// its engines no more once others serve the model.
func TestNewModelIsLeftWhereItHasNoOwner(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 2, 1)
	s.round()
	s.round()
	for i := range 6 {
		model := fmt.Sprintf("m%d", i)
		shard := scope.Shard{Tenant: scope.DefaultTenant, Model: model}
		s.register("e-"+model, model)
		s.until(model+" is followed where it is not served", func() (string, bool) {
			text, n := s.serving(shard)
			right := n == 1
			for _, m := range s.members {
				serves, follows := m.shards.Serves(shard) == nil, m.conductor.Sources().Follows(registration.Key{
					Instance: "e-" + model, Tenant: scope.DefaultTenant,
				})
				text, right = text+fmt.Sprintf("; %s serves %v, follows %v", m.group.ID(), serves, follows), right && serves == follows
			}
			return text, right
		})
	}
}
