package log

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"kvconductor/events"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/store"
)

// watcher is a stream with the batches that it handed out in its epoch.
type watcher struct {
	stream *stream.Stream
	log    *Log // nil: the stream follows the engine
	source *Source

	mu   sync.Mutex
	have map[uint64]string
}

func watch(t *testing.T, transport stream.Transport, sc *scene) *watcher {
	w := &watcher{have: make(map[uint64]string)}
	replay := ""
	if sc.replays {
		replay = "engine/replay"
	}
	w.stream = stream.Open(stream.Config{
		Endpoint: "engine", ReplayEndpoint: replay, FirstSeq: sc.first, Topic: sc.topic, Transport: transport, OnUnrecoverableGap: sc.policy,
		ReplayTimeout: 2 * time.Second, BackoffMin: 5 * time.Millisecond,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			step, ok := w.stream.Next()
			if !ok {
				return
			}
			w.mu.Lock()
			switch step.Kind {
			case stream.Reset:
				clear(w.have)
			case stream.Apply:
				body := string(step.Payload)
				if step.Aside {
					body = "aside"
				}
				w.have[step.Seq] = fmt.Sprintf("%x %s", step.ID, body)
			}
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() { w.stream.Close(); <-done })
	return w
}

func (w *watcher) isTail() bool { return w.stream.Status().Follows == stream.FollowsEngine }

func (w *watcher) held() map[uint64]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.have)
}

// scene is an engine, two replicas that share its log, and a stream that follows the engine.
type scene struct {
	t       *testing.T
	first   uint64
	topic   string
	policy  string
	replays bool
	buffer  int64
	bytes   int64
	cluster bool
	alone   time.Duration
	age     time.Duration // 0 is an hour
	heal    func(*Gap)
	weights atomic.Pointer[[]Replica]

	server  *redistest.Server
	network *streamtest.Network
	engine  *streamtest.Publisher
	all     []*watcher // the last one follows the engine
	n       int
}

func (sc *scene) begin(t *testing.T) {
	sc.t, sc.server, sc.network = t, sc.store(t), new(streamtest.Network)
	sc.engine = sc.network.At("engine")
	sc.engine.First, sc.engine.Topic, sc.engine.TopicInReplies = sc.first, sc.topic, sc.topic != ""
	for i := range 2 {
		sc.all = append(sc.all, sc.replica(fmt.Sprintf("r%d", i)))
	}
	sc.all = append(sc.all, watch(t, sc.network, sc))
	eventually(t, "one replica and the direct stream follow the engine", func() (string, bool) {
		n := sc.tails()
		return fmt.Sprint(n), n == 2
	})
}

// store starts a server, or a cluster that has one node.
func (sc *scene) store(t *testing.T) *redistest.Server {
	if !sc.cluster {
		return redistest.Start(t)
	}
	server := redistest.Start(t, "--cluster-enabled", "yes")
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	must.Succeed(t, client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	eventually(t, "the cluster is not up", func() (string, bool) {
		info, err := client.ClusterInfo(t.Context()).Result()
		return info, err == nil && strings.Contains(info, "cluster_state:ok")
	})
	return server
}

// replica begins one that follows the log.
func (sc *scene) replica(id string) *watcher {
	shared, err := store.Open(store.Config{URL: sc.server.URL(), Name: "test", Cluster: sc.cluster, Timeout: time.Second})
	must.Succeed(sc.t, err)
	sc.weights.CompareAndSwap(nil, &[]Replica{{"r0", 1}, {"r1", 1}})
	if sc.bytes == 0 {
		sc.bytes = 1 << 20
	}
	if sc.buffer == 0 {
		sc.buffer = 1 << 20
	}
	l := New(Config{Store: shared, ID: id, Bytes: sc.bytes, Age: cmp.Or(sc.age, time.Hour), Buffer: sc.buffer, Alone: sc.alone, Again: time.Millisecond, Replicas: func() []Replica { return *sc.weights.Load() }})
	s := l.Source(SourceConfig{Key: "s", Engine: sc.network, Replays: sc.replays, First: sc.first, Topic: sc.topic, Heal: sc.heal})
	w := watch(sc.t, s, sc)
	w.log, w.source = l, s
	sc.t.Cleanup(func() { sc.stop(w); shared.Close() })
	return w
}

// stop ends the stream and the log of a replica, as a server that stops does.
func (sc *scene) stop(w *watcher) {
	w.stream.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	w.log.Close(ctx)
}

// tails is how many live connections the engine has.
func (sc *scene) tails() (n int) {
	sc.engine.Lock()
	defer sc.engine.Unlock()
	for c := range sc.engine.Live {
		if !c.Closed() {
			n++
		}
	}
	return n
}

// next is another batch.
func (sc *scene) next() string {
	sc.n++
	return streamtest.Batch(float64(sc.n), nil, map[string]any{"type": "BlockRemoved", "block_hashes": []int{sc.n}})
}

func (sc *scene) publish(n int) {
	for range n {
		sc.engine.Publish(sc.next())
	}
}

// tail is the replica that follows the engine, other is the other one.
func (sc *scene) tail() (tail, other *watcher) {
	sc.t.Helper()
	eventually(sc.t, "no tail", func() (string, bool) {
		for i, w := range sc.all[:2] {
			if w.isTail() {
				tail, other = w, sc.all[1-i]
			}
		}
		return "", tail != nil
	})
	return tail, other
}

// same holds that all streams end with the same batches, at the engine's last, in a state.
func (sc *scene) same(when string, state stream.State) {
	sc.t.Helper()
	last := sc.engine.Next() - 1
	for i, w := range sc.all {
		eventually(sc.t, fmt.Sprintf("%s: stream %d", when, i), func() (string, bool) {
			st := w.stream.Status()
			return fmt.Sprintf("%+v, last is %d", st, last), st.State == state && st.HasSeq && st.LastSeq == last
		})
	}
	want := sc.all[len(sc.all)-1].held()
	for i, w := range sc.all {
		if got := w.held(); !maps.Equal(got, want) {
			sc.t.Errorf("%s: stream %d has %d batches, the direct one %d", when, i, len(got), len(want))
		}
	}
}

func eventually(t testing.TB, what string, right func() (string, bool)) {
	t.Helper()
	deadline := time.After(time.Minute)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		got, ok := right()
		if ok {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: %s", what, got)
		}
	}
}

// TestFollowerEqualsDirect compares streams that follow a log with one that follows the engine.
func TestFollowerEqualsDirect(t *testing.T) {
	t.Parallel()
	id := func(b byte) (id events.PublisherID) { id[0] = b; return id }
	f := func(name string, sc *scene, play func()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc.begin(t)
			sc.publish(300) // more than a page
			sc.same("begun", stream.Synced)
			play()
		})
	}
	restarts := func(sc *scene) func() {
		return func() {
			sc.engine.Restart(sc.next(), sc.next())
			sc.publish(5)
			sc.same("restarted", stream.Synced)
			sc.engine.RestartAs(id(1))
			sc.publish(20)
			sc.same("restarted with an id", stream.Synced)
			sc.engine.RestartAs(id(2), sc.next())
			sc.engine.Lock()
			sc.engine.Anonymous = 3
			sc.engine.Unlock()
			sc.publish(20)
			sc.same("restarted with another id", stream.Synced)
		}
	}
	clustered := &scene{replays: true, cluster: true}
	f("cluster", clustered, restarts(clustered))
	one := &scene{replays: true}
	f("restarts", one, restarts(one))
	master := &scene{replays: true, first: 1}
	f("first is 1", master, restarts(master))

	gap := &scene{replays: true}
	f("gap", gap, func() {
		gap.engine.Lose(gap.next(), gap.next())
		gap.publish(3)
		gap.same("batches came by a replay alone", stream.Synced)
		gap.engine.Forget()
		gap.publish(3)
		gap.same("a batch is lost for good", stream.Partial)
		gap.engine.Publish(streamtest.Batch(1, nil, map[string]any{"type": "AllBlocksCleared"}))
		gap.publish(3)
		gap.same("cleared", stream.Synced)
	})
	dropping := &scene{replays: true, policy: stream.Drop}
	f("gap drops", dropping, func() {
		dropping.engine.Forget()
		dropping.publish(3)
		dropping.same("a batch is lost for good", stream.Partial)
	})
	mute := &scene{}
	f("no replays", mute, func() {
		mute.engine.Lose(mute.next())
		mute.publish(3)
		mute.same("a batch is lost", stream.Partial)
		mute.engine.Publish(streamtest.Batch(1, nil, map[string]any{"type": "AllBlocksCleared"}))
		mute.publish(3)
		mute.same("cleared", stream.Synced)
		tail, other := mute.tail()
		mute.stop(tail)
		mute.all = []*watcher{other, mute.all[2]}
		eventually(t, "the other replica is not the tail", func() (string, bool) { return "", mute.tails() == 2 })
		mute.publish(3)
		mute.same("the tail has stopped", stream.Synced)
	})
	shared := &scene{replays: true, topic: "kv@a@m"}
	f("shared sequence", shared, func() {
		topic := func(seq uint64) string {
			if seq%3 == 1 {
				return "kv@b@m"
			}
			return "kv@a@m"
		}
		shared.engine.Lock()
		shared.engine.OnReplay = func(from uint64, replies [][][]byte) [][][]byte {
			for i := range replies[:len(replies)-1] {
				if seq := from + uint64(i); seq > 301 {
					replies[i][1] = []byte(topic(seq))
				}
			}
			return replies
		}
		shared.engine.Unlock()
		for range 20 {
			seq := shared.engine.Next()
			shared.engine.Lock()
			shared.engine.Topic = topic(seq)
			shared.engine.Unlock()
			shared.publish(1)
		}
		shared.same("two topics", stream.Synced)
		aside := 0
		for _, body := range shared.all[0].held() {
			if strings.HasSuffix(body, "aside") {
				aside++
			}
		}
		if aside == 0 {
			t.Error("no batch is of the other topic")
		}
	})
}

// TestHandOver lets replicas stop and start while the engine publishes.
func TestHandOver(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true}
	sc.begin(t)
	for round := range 4 {
		tail, other := sc.tail()
		sc.publish(50)
		sc.stop(tail)
		sc.publish(50)
		eventually(t, "the other replica is not the tail", func() (string, bool) { return "", other.isTail() })
		sc.publish(50)
		sc.all[0], sc.all[1] = other, sc.replica(fmt.Sprintf("r%d", round+2))
		sc.publish(50)
		sc.same(fmt.Sprintf("round %d", round), stream.Synced)
		if n := other.log.Stats().Generations; round > 0 && n != 0 {
			t.Errorf("round %d: the new tail began %d generations", round, n)
		}
		if st := sc.all[1].stream.Status(); st.Restarts != 0 {
			t.Errorf("round %d: the follower saw %d restarts", round, st.Restarts)
		}
	}
	if n := sc.tails(); n != 2 {
		t.Errorf("the engine has %d live connections", n)
	}
}

// TestEntries holds the form of entries, byte for byte.
func TestEntries(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true, topic: "kv@a@m", first: 1}
	sc.t, sc.server, sc.network = t, redistest.Start(t), new(streamtest.Network)
	sc.engine = sc.network.At("engine")
	sc.engine.First, sc.engine.Topic, sc.engine.TopicInReplies, sc.engine.ID = 1, "kv@b@m", true, events.PublisherID{7: 9}
	w := sc.replica("r0")
	eventually(t, "not followed", func() (string, bool) { return "", w.isTail() && w.stream.Status().Connected })
	body := streamtest.Batch(1.5, nil)
	sc.engine.Publish(body)
	eventually(t, "the first batch does not come", func() (string, bool) { return "", w.stream.Status().HasSeq })
	sc.engine.Lock()
	sc.engine.Topic, sc.engine.ID = "kv@a@m", events.PublisherID{}
	sc.engine.Unlock()
	sc.engine.Publish("\xc1\x00 no batch")
	sc.engine.Publish(body)
	client := w.log.cfg.Store.Client()
	eventually(t, "no entries", func() (string, bool) {
		all, err := client.XRange(t.Context(), w.source.keys[2], "-", "+").Result()
		must.Succeed(t, err)
		if len(all) != 2 {
			return fmt.Sprint(all), false
		}
		gen := client.HGet(t.Context(), w.source.keys[1], "gen").Val()
		want := fmt.Sprintf("[{%s-1 map[a:1 i:%s p:%s] 0 0} {%s-3 map[i:%[2]s p:%[3]s] 0 0}]", gen, "\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00", body, gen)
		if got := fmt.Sprint(all); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		return "", true
	})
}

// TestTailsMove lets a replica that is preferred ask for the lease of another one, which hands it over.
func TestTailsMove(t *testing.T) {
	t.Parallel()
	sc := &scene{replays: true}
	sc.begin(t)
	tail, _ := sc.tail()
	preferred, weights := "", []Replica{{"r0", 1}, {"r1", 1e9}}
	if tail.log.cfg.ID == "r1" {
		weights = []Replica{{"r0", 1e9}, {"r1", 1}}
	}
	for _, r := range weights {
		if r.Weight > 1 {
			preferred = r.ID
		}
	}
	sc.weights.Store(&weights)
	sc.publish(100)
	eventually(t, "the preferred replica is not the tail", func() (string, bool) {
		sc.publish(1)
		now, _ := sc.tail()
		return now.log.cfg.ID, now.log.cfg.ID == preferred
	})
	sc.publish(100)
	sc.same("handed over", stream.Synced)
	for i, w := range sc.all {
		if st := w.stream.Status(); st.Restarts != 0 {
			t.Errorf("stream %d saw %d restarts", i, st.Restarts)
		}
	}
}
