package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/history"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/keyfile"
	"example.com/conductor/store"
)

// member is a replica of a test, which looks at the shelf when the test says so.
type member struct {
	*Keeper
	t *testing.T
	c *conductor.Conductor
}

// newMember returns a replica without blocks.
func newMember(t *testing.T, server *redistest.Server, id string, change func(*Config)) *member {
	t.Helper()
	return memberOf(t, store.Config{URL: server.URL()}, id, change)
}

// memberOf is newMember with a store of any kind.
func memberOf(t *testing.T, at store.Config, id string, change func(*Config)) *member {
	t.Helper()
	at.Name, at.Timeout = "test", time.Minute
	connected, err := store.Open(at)
	must.Succeed(t, err)
	t.Cleanup(func() { connected.Close() })
	c := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	t.Cleanup(c.Close)
	cfg := Config{
		Group:     membership.New(membership.Config{Store: connected, Replica: membership.Replica{ID: id, Weight: 1}, Log: zerolog.Nop()}),
		Conductor: c, Key: history.NoKey, MaxBytes: 1 << 30, Interval: time.Minute, TTL: time.Hour, Log: zerolog.Nop(), Chunk: 1000,
	}
	if change != nil {
		change(&cfg)
	}
	m := &member{Keeper: New(cfg), t: t, c: c}
	cfg.Group.Beat(t.Context())
	return m
}

// loader loads snapshots into the replica, those of a takeover if refill is set.
func (m *member) loader(refill bool) *history.Loader {
	return &history.Loader{Conductor: m.c, Refill: refill, Log: zerolog.Nop()}
}

// model is the deployment of a model in these tests.
func model(name string) scope.Deployment {
	return scope.Deployment{Tenant: "default", Model: name, BlockSize: 16}
}

// hold registers an engine of a model with blocks, and a context of it with a salt.
func (m *member) hold(of string, blocks int) {
	m.t.Helper()
	reg := registration.Registration{Endpoint: "inproc://engine", Instance: "engine of " + of, Model: of, BlockSize: 16,
		Type: registration.TypeVLLM, Tenant: "default"}
	r := m.c.Sources().Snapshots().Recover(0)
	must.Succeed(m.t, r.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: 41, Print: 7}}))
	for _, salt := range []string{"", "pepper"} {
		words := make([]uint64, blocks)
		for i := range words {
			words[i] = uint64(len(salt)*blocks+i+1) * 0x9e3779b97f4a7c15
		}
		must.Succeed(m.t, r.Stored(&ingest.Stored{
			Source: reg, Shard: scope.Shard{Tenant: "default", Model: of}, BlockSize: 16, Salt: salt,
			Stretch: &ingest.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words,
		}))
	}
	r.Done()
	must.Succeed(m.t, m.c.Register(reg, ingest.RegisterOptions{AnyEndpoint: true}))
}

// held says what a replica holds: each source with blocks, mark and origin.
func (m *member) held() string {
	var b strings.Builder
	for _, s := range m.c.Services() {
		seq := "-"
		if s.LastSeq != nil {
			seq = fmt.Sprint(*s.LastSeq)
		}
		fmt.Fprintf(&b, "%s %d %s %s\n", s.Instance, s.Blocks, seq, s.HistoryFrom)
	}
	return b.String()
}

// expect compares what a replica holds.
func (m *member) expect(when, want string) {
	m.t.Helper()
	if got := m.held(); got != want {
		m.t.Errorf("%s: it holds\n%swant\n%s", when, got, want)
	}
	for _, err := range m.c.Check() {
		m.t.Error(err)
	}
}

// restored returns what a fresh replica gets from the shelf.
func restored(t *testing.T, server *redistest.Server, change func(*Config)) (m *member) {
	t.Helper()
	m = newMember(t, server, "fresh", change)
	m.Restore(t.Context(), m.loader(false))
	return m
}

// keysOf returns the names of the keys that have a text.
func (m *member) keysOf(text string) []string {
	m.t.Helper()
	all, err := m.store().Client().Keys(m.t.Context(), "*"+text+"*").Result()
	must.Succeed(m.t, err)
	return all
}

// written looks at the shelf, as if the store had lost something, until the replica has written so often.
func (m *member) written(times int) {
	m.t.Helper()
	deadline, again := time.After(2*time.Minute), time.NewTicker(time.Millisecond)
	defer again.Stop()
	for m.Status().Written < times {
		select {
		case <-again.C:
			m.writeDue(m.t.Context(), true)
		case <-deadline:
			m.t.Fatalf("%+v", m.Status())
		}
	}
}

// now looks at the shelf.
func (m *member) now() Status { m.writeDue(m.t.Context(), false); return m.Status() }

func TestShelfRoundTrip(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	a.hold("n", 10)
	if st := a.now(); st.Written != 2 || st.Error != "" || time.Since(st.Oldest) > time.Minute {
		t.Fatalf("%+v", st)
	}
	all, _, err := a.readManifests(t.Context())
	must.Succeed(t, err)
	if len(all) != 2 || manifestOf(all, model("m")).Chunks < 8 || manifestOf(all, model("m")).Replica != "a" ||
		manifestOf(all, model("m")).Blocks != 1000 {
		t.Errorf("%+v", all)
	}
	for _, key := range a.keysOf("shelf") {
		if left := a.store().Client().PTTL(t.Context(), key).Val(); left <= 0 || left > time.Hour {
			t.Errorf("%s ends in %s", key, left)
		}
	}
	b := restored(t, server, nil)
	b.expect("without a key, salts are not on the shelf", "engine of m 1000 41 shelf\nengine of n 10 41 shelf\n")
	if st := b.Status(); st.Loaded != 1010 || len(st.LeftOut) != 0 || st.Snapshots != 2 {
		t.Errorf("%+v", st)
	}
	if st := a.now(); st.Written != 2 {
		t.Errorf("written again before the interval: %+v", st)
	}
	a.writeDue(t.Context(), true)
	if st := a.Status(); st.Written != 4 || len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v, keys %q", st, a.keysOf("shelf"))
	}
	restored(t, server, nil).expect("after the second", "engine of m 1000 41 shelf\nengine of n 10 41 shelf\n")
}

// sum returns how many chunks are on the shelf.
func sum(t *testing.T, m *member) (n int) {
	t.Helper()
	all, _, err := m.readManifests(t.Context())
	must.Succeed(t, err)
	for i := range all {
		n += all[i].Chunks
	}
	return n
}

func TestShelfSealsSalts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	key, err := history.NewSealingKey(&keyfile.Key{1})
	must.Succeed(t, err)
	sealed := func(c *Config) { c.Key = key }
	a := newMember(t, server, "a", sealed)
	a.hold("m", 100)
	a.now()
	for _, k := range a.keysOf("shelf") {
		if text, _ := a.store().Client().Get(t.Context(), k).Bytes(); bytes.Contains(text, []byte("pepper")) {
			t.Errorf("%s has the salt", k)
		}
	}
	restored(t, server, sealed).expect("with the key", "engine of m 200 41 shelf\n")
	restored(t, server, nil).expect("without the key", "engine of m 100 41 shelf\n")
}

// TestShelfDamaged spoils a snapshot on the shelf. Nothing of it is used, and it is taken down.
func TestShelfDamaged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	client, ctx := a.store().Client(), t.Context()
	f := func(reason string, spoil func(m *manifest, chunk func(n int) string)) {
		t.Helper()
		a.writeDue(ctx, true)
		all, _, err := a.readManifests(ctx)
		must.Succeed(t, err)
		spoil(&all[0], func(n int) string { return a.chunkKey(keyName(model("m")), all[0].ID, n) })
		b := restored(t, server, nil)
		b.expect(reason, "")
		if st := b.Status(); st.LeftOut[reason] != 1 || st.Loaded != 0 {
			t.Errorf("%s: %+v", reason, st)
		}
		all, _, err = a.readManifests(ctx)
		if gone := len(all) == 0; err != nil || gone != (reason == leftMissing || reason == leftDigest) {
			t.Errorf("%s: %d manifests, %v", reason, len(all), err)
		}
	}
	f(leftMissing, func(_ *manifest, chunk func(int) string) { must.Succeed(t, client.Del(ctx, chunk(3)).Err()) })
	f(leftMissing, func(m *manifest, chunk func(int) string) { must.Succeed(t, client.Del(ctx, chunk(m.Chunks-1)).Err()) })
	f(leftDigest, func(_ *manifest, chunk func(int) string) { // one byte more
		must.Succeed(t, client.Append(ctx, chunk(0), "x").Err())
	})
	edit := func(m *manifest, old, new string) {
		t.Helper()
		text := strings.Replace(m.text, old, new, 1)
		if text == m.text {
			t.Fatalf("%s has no %s", text, old)
		}
		must.Succeed(t, client.HSet(ctx, a.keys()[0], keyName(model("m")), text).Err())
	}
	f(leftDigest, func(m *manifest, _ func(int) string) { edit(m, m.Digest, strings.Repeat("0", 64)) })
	f(leftDigest, func(m *manifest, _ func(int) string) {
		edit(m, fmt.Sprintf(`"chunks":%d`, m.Chunks), fmt.Sprintf(`"chunks":%d`, m.Chunks-1))
	})
	f(leftDamaged, func(_ *manifest, chunk func(int) string) {
		must.Succeed(t, client.SetRange(ctx, chunk(2), 500, "damage").Err())
	})
	f(leftStore, func(_ *manifest, chunk func(int) string) {
		must.Succeed(t, client.Del(ctx, chunk(0)).Err())
		must.Succeed(t, client.LPush(ctx, chunk(0), "a list").Err())
	})
}

// TestShelfTorn: a snapshot without its manifest is none, and the one before stays.
func TestShelfTorn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	a.now()
	all, _, err := a.readManifests(t.Context())
	must.Succeed(t, err)

	held := a.c.Sources().Snapshots().HeldDeployments()[0]
	dying, kill := context.WithCancel(t.Context()) // the process ends behind the third chunk
	a.cfg.Key = history.NoKey
	u := &upload{k: a.Keeper, ctx: dying, deployment: keyName(held.Deployment), token: "dead", m: manifest{ID: "dead"}, sum: sha256.New()}
	if at, err := u.run(locking, 1, all[0].text).Int64(); at == 0 || err != nil {
		t.Fatal(at, err)
	}
	for range 3 {
		_, err := u.Write(make([]byte, 1000))
		must.Succeed(t, err)
	}
	kill()
	if _, err := u.Write(make([]byte, 1000)); err == nil {
		t.Error("a dead writer writes")
	}
	if got := a.keysOf("dead"); len(got) != 3 {
		t.Errorf("%q", got)
	}
	restored(t, server, nil).expect("torn", "engine of m 1000 41 shelf\n")
	a.written(2) // its lock ends by the store's clock
}

// TestShelfIgnoresGarbage: an entry that no replica wrote costs itself alone.
func TestShelfIgnoresGarbage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 10)
	a.now()
	ctx, client := t.Context(), a.store().Client()
	must.Succeed(t, client.HSet(ctx, a.keys()[0], "x", "nonsense", "y", `{"id":"z","model":"m","block_size":-1}`, "z", `{"id":7}`, "v",
		`{"id":"v","model":"late","block_size":16,"at":9000000000000000}`,
		"w", fmt.Sprintf(`{"id":"w","model":"gone","block_size":16,"at":%d,"bytes":9,"chunks":99999999999}`, time.Now().UnixMilli())).Err())
	must.Succeed(t, client.HSet(ctx, a.keys()[2], "x", "many").Err())
	a.writeDue(ctx, true)
	b := restored(t, server, nil)
	b.expect("garbage", "engine of m 10 41 shelf\n")
	if st := b.Status(); st.Malformed != 3 || st.LeftOut[leftMissing] != 1 {
		t.Errorf("%+v", st)
	}
}

// list returns the manifests.
func list(t *testing.T, m *member) []manifest {
	t.Helper()
	all, _, err := m.readManifests(t.Context())
	must.Succeed(t, err)
	return all
}

// TestShelfInACluster: a cluster refuses commands about keys of several slots.
func TestShelfInACluster(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	plain := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer plain.Close()
	slots := make([]int, 1<<14)
	for i := range slots {
		slots[i] = i
	}
	must.Succeed(t, plain.ClusterAddSlots(t.Context(), slots...).Err())
	at := store.Config{URL: server.URL(), Cluster: true}
	deadline := time.After(2 * time.Minute)
	for plain.Set(t.Context(), "x", 1, 0).Err() != nil { // it takes a moment to know its slots
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal(plain.Set(t.Context(), "x", 1, 0).Err())
		}
	}
	a := memberOf(t, at, "a", nil)
	a.hold("m", 1000)
	a.hold("n", 10)
	for range 2 {
		a.writeDue(t.Context(), true)
	}
	if st := a.Status(); st.Written != 4 || st.Error != "" || len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v", st)
	}
	b := memberOf(t, at, "b", nil)
	b.Restore(t.Context(), b.loader(false))
	b.expect("a cluster", "engine of m 1000 41 shelf\nengine of n 10 41 shelf\n")
}
