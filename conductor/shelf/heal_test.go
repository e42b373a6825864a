package shelf

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/fleet"
	conductorhttp "kvconductor/conductor/http"
	"kvconductor/conductor/replica"
	"kvconductor/conductor/snapshot"
	"kvconductor/events/log"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/store"
)

// logged is a replica that follows logs, and heals sources.
type logged struct {
	*member
	log    *log.Log
	healer *Healer
	url    string

	mu    sync.Mutex
	peers []string // guarded by mu
}

// engines are what the replicas of a test follow.
type engines struct {
	t       *testing.T
	server  *redistest.Server
	network *streamtest.Network
	n       int // blocks published
}

// begin starts a replica.
func (e *engines) begin(id string, peers ...string) *logged {
	e.t.Helper()
	shared, err := store.Open(store.Config{URL: e.server.URL(), Name: "test", Timeout: 2 * time.Second})
	must.Succeed(e.t, err)
	e.t.Cleanup(func() { shared.Close() })
	m := &logged{peers: peers}
	m.log = log.New(log.Config{
		Store: shared, ID: id, Bytes: 16 << 10, Age: time.Hour, Buffer: 1 << 20, Again: 2 * time.Second,
		Replicas: func() []log.Replica { return []log.Replica{{ID: "a", Weight: 1e9}, {ID: "b", Weight: 1}} },
	})
	c := conductor.New(conductor.Options{
		HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{BackoffMin: 5 * time.Millisecond},
		Transport: func(r conductor.Registration, _ bool) stream.Transport {
			return m.log.Source(log.SourceConfig{
				Key: r.Key().String(), Engine: e.network, Replays: r.ReplayEndpoint != "", Heal: func(g *log.Gap) { m.healer.Ask(r, g) },
			})
		},
	})
	m.member = &member{t: e.t, c: c, Shelf: New(Config{
		Fleet:     fleet.New(fleet.Config{Store: shared, Replica: fleet.Replica{ID: id, Weight: 1}, Log: zerolog.Nop()}),
		Conductor: c, Key: snapshot.NoKey, MaxBytes: 1 << 30, Interval: time.Minute, TTL: time.Hour, Log: zerolog.Nop(), Chunk: 1000,
	})}
	m.cfg.Fleet.Beat(e.t.Context())
	m.healer = NewHealer(&Takeover{Conductor: c, Client: replica.PlainClient(), Shelf: m.Shelf, Log: zerolog.Nop()}, func(string) []string {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.peers
	})
	m.healer.calm = 10 * time.Millisecond
	e.t.Cleanup(func() {
		m.healer.Close()
		c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		m.log.Close(ctx)
	})
	web := httptest.NewServer(conductorhttp.New(c, conductorhttp.Options{MaxBody: 1 << 20, Snapshots: new(snapshot.Spool), Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop()}))
	e.t.Cleanup(web.Close)
	m.url = web.URL
	return m
}

// ask changes who is asked for snapshots.
func (m *logged) ask(peers ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = peers
}

// engine is the registration of an engine of model m.
func (e *engines) engine(name string, replays bool) conductor.Registration {
	r := conductor.Registration{Endpoint: "tcp://" + name + ":1", Instance: name, Model: "m", BlockSize: 16, Type: conductor.TypeVLLM, Tenant: "default"}
	if replays {
		r.ReplayEndpoint = r.Endpoint
	}
	return r
}

// publish lets an engine store blocks, a batch each. Every other batch removes one instead, while evicts.
func (e *engines) publish(r conductor.Registration, n int, evicts bool) {
	for range n {
		e.n++
		tokens := make([]int, 16)
		for i := range tokens {
			tokens[i] = e.n
		}
		event := map[string]any{"type": "BlockStored", "block_hashes": []int{e.n}, "token_ids": tokens, "block_size": 16, "medium": "GPU"}
		if evicts && e.n%2 == 0 {
			event = map[string]any{"type": "BlockRemoved", "block_hashes": []int{e.n - 21}, "medium": "GPU"}
		}
		e.network.At(r.Endpoint).Publish(streamtest.Batch(1, nil, event))
	}
}

// connected waits until a tail is connected with an engine.
func (e *engines) connected(r conductor.Registration) {
	e.t.Helper()
	p := e.network.At(r.Endpoint)
	eventually(e.t, "the engine has no tail", func() (string, bool) {
		p.Lock()
		defer p.Unlock()
		for c := range p.Live {
			if !c.Closed() {
				return "", true
			}
		}
		return "", false
	})
}

// trim publishes so much that no log has what was published before.
func (e *engines) trim(r conductor.Registration, tail *logged) {
	e.t.Helper()
	for range 10 {
		e.publish(r, 60, true)
		e.follows(tail, r, stream.Synced)
		eventually(e.t, "all is appended", func() (string, bool) { st := tail.log.Stats(); return fmt.Sprint(st), st.Buffered == 0 })
	}
}

// follows waits until a source is at the engine's last batch.
func (e *engines) follows(m *logged, r conductor.Registration, state stream.State) (row conductor.Service) {
	e.t.Helper()
	last := e.network.At(r.Endpoint).Next() - 1
	eventually(e.t, "the source does not follow", func() (string, bool) {
		for _, row = range m.c.Services() {
			if row.Instance == r.Instance {
				return fmt.Sprintf("%+v %+v, last is %d", row, m.log.Stats(), last), row.State == state && row.LastSeq != nil && *row.LastSeq == last
			}
		}
		return "not registered", false
	})
	return row
}

// same holds that a source has the blocks that it has at another replica.
func (e *engines) same(when string, a, b *logged, r conductor.Registration, from string) {
	e.t.Helper()
	e.follows(a, r, stream.Synced)
	row := e.follows(b, r, stream.Synced)
	if row.HistoryFrom != from {
		e.t.Errorf("%s: its blocks are from %s, want %s", when, row.HistoryFrom, from)
	}
	digest := func(m *logged) string {
		d := m.c.Digests(r.Key().String())[0]
		return fmt.Sprintf("%+v %+v", *d.Mark, d.Contexts)
	}
	if got, want := digest(b), digest(a); got != want || row.Blocks == 0 {
		e.t.Errorf("%s: it has\n%s, the tail\n%s", when, got, want)
	}
	for _, err := range slices.Concat(a.c.Check(), b.c.Check()) {
		e.t.Error(err)
	}
}

func eventually(t testing.TB, what string, right func() (string, bool)) {
	t.Helper()
	deadline, again := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
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

// TestHealFollower (STREAM-9) lets a follower fall behind the trim of its logs, and another one begin there. A
// snapshot heals both: the tail's, or one on the shelf; without any the engine's replay does, and
// without that the source is partial until there is a snapshot.
func TestHealFollower(t *testing.T) {
	t.Parallel()
	const dead = "http://127.0.0.1:1"
	e := &engines{t: t, server: redistest.Start(t), network: new(streamtest.Network)}
	a, b := e.begin("a"), e.begin("b", dead)
	b.ask(dead, a.url)
	mute, replays, busy := e.engine("mute", false), e.engine("replays", true), e.engine("busy", false)
	all := []conductor.Registration{mute, replays, busy}
	for _, r := range all {
		must.Succeed(t, a.c.Register(r, conductor.RegisterOptions{AnyEndpoint: true}))
		e.connected(r)
		e.publish(r, 40, false)
		e.follows(a, r, stream.Synced)
		must.Succeed(t, b.c.Register(r, conductor.RegisterOptions{AnyEndpoint: true}))
		e.same("begun", a, b, r, map[bool]string{false: conductor.FromLive, true: conductor.FromReplay}[r.ReplayEndpoint != ""])
	}
	fallBehind := func(of ...conductor.Registration) {
		for _, r := range of {
			must.Succeed(t, b.c.Pause(r.Key()))
			e.trim(r, a)
			must.Succeed(t, b.c.Unpause(r.Key()))
		}
	}
	fallBehind(mute, replays)
	e.publish(busy, 20, true)
	e.same("fell behind", a, b, mute, conductor.FromPeer)
	e.same("fell behind, with replays", a, b, replays, conductor.FromPeer)
	e.same("a source without a gap", a, b, busy, conductor.FromLive)
	_, err := b.c.Unregister(mute.Key())
	must.Succeed(t, err)
	must.Succeed(t, b.c.Register(mute, conductor.RegisterOptions{AnyEndpoint: true}))
	e.same("began late", a, b, mute, conductor.FromPeer)
	if st := b.log.Stats(); st.Asked != 0 || st.Healed != 3 {
		t.Errorf("engines were asked %d times, %d sources healed", st.Asked, st.Healed)
	}

	b.ask(dead)
	must.Succeed(t, b.c.Pause(mute.Key()))
	e.trim(mute, a)
	a.now()
	e.publish(mute, 20, true)
	must.Succeed(t, b.c.Unpause(mute.Key()))
	e.same("the shelf", a, b, mute, conductor.FromShelf)

	fallBehind(mute, replays)                                // the shelf is older than the logs
	e.same("no snapshot", a, b, replays, conductor.FromPeer) // and from the engine what came later
	if st := b.log.Stats(); st.Asked == 0 {
		t.Error("the engine was not asked")
	}
	if row := e.follows(b, mute, stream.Partial); row.Reason == "" {
		t.Errorf("%+v", row)
	}
	e.publish(mute, 20, true)
	e.follows(b, mute, stream.Partial)
	b.ask(a.url)
	e.same("a snapshot later", a, b, mute, conductor.FromPeer)

	// The engine begins another life while the follower misses a part of the one before.
	b.ask(dead)
	fallBehind(mute)
	e.follows(b, mute, stream.Partial)
	e.network.At(mute.Endpoint).Restart()
	e.connected(mute)
	e.publish(mute, 10, false)
	b.ask(a.url)
	e.same("another life", a, b, mute, conductor.FromLive)
	for _, m := range []*logged{a, b} {
		if left := m.Status().LeftOut; left[LeftDamaged] != 0 {
			t.Errorf("%v", left)
		}
	}
}
