package shelf

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/fleet"
	"kvconductor/conductor/replica"
	"kvconductor/conductor/scope"
	"kvconductor/conductor/snapshot"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/keyfile"
	"kvconductor/store"
)

// member is a replica of a test, which looks at the shelf when the test says so.
type member struct {
	*Shelf
	t *testing.T
	c *conductor.Conductor
}

// newMember returns a replica without blocks.
func newMember(t *testing.T, server *redistest.Server, id string, change func(*Config)) *member {
	t.Helper()
	connected, err := store.Open(store.Config{URL: server.URL(), Name: "test", Timeout: 2 * time.Second})
	must.Succeed(t, err)
	t.Cleanup(func() { connected.Close() })
	c := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	t.Cleanup(c.Close)
	cfg := Config{
		Fleet:     fleet.New(fleet.Config{Store: connected, Replica: fleet.Replica{ID: id, Weight: 1}, Log: zerolog.Nop()}),
		Conductor: c, Key: snapshot.NoKey, MaxBytes: 1 << 30, Interval: time.Minute, TTL: time.Hour, Log: zerolog.Nop(), Chunk: 1000,
	}
	if change != nil {
		change(&cfg)
	}
	m := &member{Shelf: New(cfg), t: t, c: c}
	cfg.Fleet.Beat(t.Context())
	return m
}

// model is the deployment of a model in these tests.
func model(name string) scope.Deployment {
	return scope.Deployment{Tenant: "default", Model: name, BlockSize: 16}
}

// hold registers an engine of a model with blocks, and a context of it with a salt.
func (m *member) hold(of string, blocks int) {
	m.t.Helper()
	reg := conductor.Registration{Endpoint: "inproc://engine", Instance: "engine of " + of, Model: of, BlockSize: 16, Type: conductor.TypeVLLM, Tenant: "default"}
	r := m.c.Recover(0)
	must.Succeed(m.t, r.Source(conductor.SourceMark{Registration: reg, Mark: &conductor.Mark{Seq: 41, Print: 7}}))
	for _, salt := range []string{"", "pepper"} {
		words := make([]uint64, blocks)
		for i := range words {
			words[i] = uint64(len(salt)*blocks+i+1) * 0x9e3779b97f4a7c15
		}
		must.Succeed(m.t, r.Stored(&conductor.Stored{
			Source: reg, Partition: conductor.Partition{Tenant: "default", Model: of}, BlockSize: 16, Salt: salt,
			Stretch: &conductor.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words,
		}))
	}
	r.Done()
	must.Succeed(m.t, m.c.Register(reg, conductor.RegisterOptions{AnyEndpoint: true}))
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
	m.Restore(t.Context(), 0)
	return m
}

// keysOf returns the names of the keys that have a text.
func (m *member) keysOf(text string) []string {
	m.t.Helper()
	all, err := m.store().Client().Keys(m.t.Context(), "*"+text+"*").Result()
	must.Succeed(m.t, err)
	return all
}

// now looks at the shelf.
func (m *member) now() Status { m.look(m.t.Context(), false); return m.Status() }

func TestShelfRoundTrip(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	a.hold("n", 10)
	if st := a.now(); st.Written != 2 || st.Error != "" || st.Oldest != 0 {
		t.Fatalf("%+v", st)
	}
	all, _, err := a.list(t.Context())
	must.Succeed(t, err)
	if len(all) != 2 || of(all, model("m")).Chunks < 8 || of(all, model("m")).Replica != "a" || of(all, model("m")).Blocks != 1000 {
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
	a.look(t.Context(), true)
	if st := a.Status(); st.Written != 4 || len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v, keys %q", st, a.keysOf("shelf"))
	}
	restored(t, server, nil).expect("after the second", "engine of m 1000 41 shelf\nengine of n 10 41 shelf\n")
}

// sum returns how many chunks are on the shelf.
func sum(t *testing.T, m *member) (n int) {
	t.Helper()
	all, _, err := m.list(t.Context())
	must.Succeed(t, err)
	for i := range all {
		n += all[i].Chunks
	}
	return n
}

func TestShelfSealsSalts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	key, err := snapshot.NewKey(&keyfile.Key{1})
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
		a.look(ctx, true)
		all, _, err := a.list(ctx)
		must.Succeed(t, err)
		spoil(&all[0], func(n int) string { return a.chunkKey(name(model("m")), all[0].ID, n) })
		b := restored(t, server, nil)
		b.expect(reason, "")
		if st := b.Status(); st.LeftOut[reason] != 1 || st.Loaded != 0 {
			t.Errorf("%s: %+v", reason, st)
		}
		all, _, err = a.list(ctx)
		if gone := len(all) == 0; err != nil || gone != (reason == LeftMissing || reason == LeftDigest) {
			t.Errorf("%s: %d manifests, %v", reason, len(all), err)
		}
	}
	f(LeftMissing, func(_ *manifest, chunk func(int) string) { must.Succeed(t, client.Del(ctx, chunk(3)).Err()) })
	f(LeftMissing, func(m *manifest, chunk func(int) string) { must.Succeed(t, client.Del(ctx, chunk(m.Chunks-1)).Err()) })
	f(LeftDigest, func(_ *manifest, chunk func(int) string) { // one byte more
		must.Succeed(t, client.Append(ctx, chunk(0), "x").Err())
	})
	edit := func(m *manifest, old, new string) {
		t.Helper()
		text := strings.Replace(m.text, old, new, 1)
		if text == m.text {
			t.Fatalf("%s has no %s", text, old)
		}
		must.Succeed(t, client.HSet(ctx, a.keys()[0], name(model("m")), text).Err())
	}
	f(LeftDigest, func(m *manifest, _ func(int) string) { edit(m, m.Digest, strings.Repeat("0", 64)) })
	f(LeftDigest, func(m *manifest, _ func(int) string) {
		edit(m, fmt.Sprintf(`"chunks":%d`, m.Chunks), fmt.Sprintf(`"chunks":%d`, m.Chunks-1))
	})
	f(LeftDamaged, func(_ *manifest, chunk func(int) string) {
		must.Succeed(t, client.SetRange(ctx, chunk(2), 500, "damage").Err())
	})
	f(LeftStore, func(_ *manifest, chunk func(int) string) {
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
	all, _, err := a.list(t.Context())
	must.Succeed(t, err)

	held := a.c.HeldDeployments()[0]
	dying, kill := context.WithCancel(t.Context()) // the process ends behind the third chunk
	a.cfg.Key = snapshot.NoKey
	w := &writing{s: a.Shelf, ctx: dying, deployment: name(held.Deployment), token: "dead", m: manifest{ID: "dead"}, sum: newSum(), renewed: time.Now()}
	if at, err := w.run(taking, all[0].text, w.token, 1).Int64(); at == 0 || err != nil {
		t.Fatal(at, err)
	}
	for range 3 {
		_, err := w.Write(make([]byte, 1000))
		must.Succeed(t, err)
	}
	kill()
	if _, err := w.Write(make([]byte, 1000)); err == nil {
		t.Error("a dead writer writes")
	}
	if got := a.keysOf("dead"); len(got) != 3 {
		t.Errorf("%q", got)
	}
	restored(t, server, nil).expect("torn", "engine of m 1000 41 shelf\n")
	time.Sleep(2 * time.Millisecond) // its lease ends by the store's clock
	if a.look(t.Context(), true); a.Status().Written != 2 {
		t.Errorf("%+v", a.Status())
	}
}

func TestShelfEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	short := func(c *Config) { c.TTL = 50 * time.Millisecond }
	a := newMember(t, server, "a", short)
	a.hold("m", 10)
	if st := a.now(); st.Written != 1 {
		t.Fatalf("%+v", st)
	}
	deadline := time.After(20 * time.Second)
	for len(a.keysOf("shelf")) > 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%q stay", a.keysOf("shelf"))
		}
	}
	restored(t, server, short).expect("ended", "")
	if st := a.now(); st.Written != 2 {
		t.Errorf("%+v", st)
	}
}

// TestShelfBound takes the oldest down for a new one, and writes none that is too big alone.
func TestShelfBound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", func(c *Config) { c.MaxBytes = 55_000 })
	a.hold("first", 1000)
	a.now()
	a.hold("second", 1000)
	a.now()
	if st := a.now(); st.Snapshots != 2 || st.Evicted != 0 || st.Bytes > 55_000 {
		t.Fatalf("%+v", st)
	}
	a.hold("third", 1500)
	a.look(t.Context(), false)
	all, _, err := a.list(t.Context())
	must.Succeed(t, err)
	if st := a.Status(); st.Evicted != 1 || st.Bytes > 55_000 || len(all) != 2 || of(all, model("first")) != nil || len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v %+v", st, all)
	}
	b := newMember(t, server, "b", func(c *Config) { c.MaxBytes = 55_000 })
	b.hold("huge", 5000)
	if st := b.now(); st.Failed[FailedRoom] != 1 || st.Written != 0 || st.Snapshots != 2 || len(b.keysOf("shelf:*:")) != sum(t, b) {
		t.Errorf("%+v, keys %q", st, b.keysOf("shelf"))
	}
	if st := b.now(); st.Oldest <= 0 {
		t.Errorf("a deployment that never had one is %s old", st.Oldest)
	}
}

// TestShelfOneWriter: a deployment has one writer at a time, and a writer whose lease another one
// has taken writes no manifest.
func TestShelfOneWriter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newMember(t, server, "a", nil), newMember(t, server, "b", nil)
	a.hold("m", 1000)
	b.hold("m", 1000)
	held := a.c.HeldDeployments()[0]
	w := &writing{s: a.Shelf, ctx: t.Context(), deployment: name(held.Deployment), token: "a", m: manifest{ID: "a", Model: "m", BlockSize: 16}, sum: newSum(), renewed: time.Now()}
	if at, err := w.run(taking, "", "a", 60_000).Int64(); at == 0 || err != nil {
		t.Fatal(at, err)
	}
	if st := b.now(); st.Written != 0 || len(st.Failed) != 0 {
		t.Errorf("two write: %+v", st)
	}
	if ok, err := w.run(holding, "a", 1).Int64(); ok != 1 || err != nil { // a sleeps for longer than its lease
		t.Fatal(ok, err)
	}
	time.Sleep(3 * time.Millisecond)
	if st := b.now(); st.Written != 1 {
		t.Errorf("%+v", st)
	}
	if err := w.all(held); err != errLease {
		t.Errorf("a writer without its lease: %v", err)
	}
	w.giveBack()
	restored(t, server, nil).expect("two writers", "engine of m 1000 41 shelf\n")
	if got := b.keysOf("shelf:*:"); len(got) != sum(t, b) {
		t.Errorf("%q", got)
	}
	// What was written since the manifest was read is not written once more.
	if err := a.write(t.Context(), held, nil); err != errTaken {
		t.Error(err)
	}
}

// TestShelfDue: replicas with synced sources go first, and what was not synced is replaced.
func TestShelfDue(t *testing.T) {
	s := New(Config{Interval: time.Minute})
	f := func(mine, theirs bool, age time.Duration, want bool) {
		t.Helper()
		m := &manifest{At: 1_000_000, Synced: theirs}
		if got := s.due(m, conductor.HeldDeployment{Synced: mine}, 1_000_000+age.Milliseconds()); got != want {
			t.Errorf("synced %t, on the shelf %t, %s old: %t", mine, theirs, age, got)
		}
	}
	f(true, true, 59*time.Second, false)
	f(true, true, 60*time.Second, true)
	f(true, false, 0, true)
	f(false, true, 89*time.Second, false)
	f(false, false, 89*time.Second, false)
	f(false, false, 90*time.Second, true)
	f(true, true, -2*time.Minute, true) // the clock of the store was put back
	if !s.due(nil, conductor.HeldDeployment{}, 0) {
		t.Error("one that is not there is not due")
	}
}

// TestShelfIgnoresGarbage: an entry that no replica wrote costs itself alone.
func TestShelfIgnoresGarbage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 10)
	a.now()
	ctx, client := t.Context(), a.store().Client()
	must.Succeed(t, client.HSet(ctx, a.keys()[0], "x", "nonsense", "y", `{"id":"z","model":"m","block_size":-1}`, "z", `{"id":7}`, "v", `{"id":"v","model":"late","block_size":16,"at":9000000000000000}`,
		"w", fmt.Sprintf(`{"id":"w","model":"gone","block_size":16,"at":%d,"bytes":9,"chunks":99999999999}`, time.Now().UnixMilli())).Err())
	must.Succeed(t, client.HSet(ctx, a.keys()[2], "x", "many").Err())
	a.look(ctx, true)
	b := restored(t, server, nil)
	b.expect("garbage", "engine of m 10 41 shelf\n")
	if st := b.Status(); st.Malformed != 3 || st.LeftOut[LeftMissing] != 1 {
		t.Errorf("%+v", st)
	}
}

// TestTakeoverFromShelf brings single deployments to a replica that runs, without a peer alive.
func TestTakeoverFromShelf(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	a.hold("n", 10)
	a.now()
	b := newMember(t, server, "b", nil)
	b.hold("own", 7)
	take := &Takeover{Conductor: b.c, Client: replica.PlainClient(), Shelf: b.Shelf, Log: zerolog.Nop()}
	f := func(of string, from []string, blocks int, origin, mistake string) {
		t.Helper()
		n, got, err := take.Bring(t.Context(), model(of), from)
		if n != blocks || got != origin || (err == nil) != (mistake == "") || err != nil && !strings.Contains(err.Error(), mistake) {
			t.Errorf("%s: %d blocks, %q, %v", of, n, got, err)
		}
	}
	dead := "http://127.0.0.1:1"
	own := "engine of own 14 41 peer\n"
	f("none", nil, 0, "", "")
	f("none", []string{dead}, 0, "", "connection refused")
	b.expect("nothing", own)
	f("m", []string{dead}, 1000, conductor.FromShelf, "")
	b.expect("one deployment", "engine of m 1000 41 shelf\n"+own)
	f("m", nil, 1000, conductor.FromShelf, "") // again, the old ones go
	b.expect("again", "engine of m 1000 41 shelf\n"+own)
	must.Succeed(t, a.store().Client().Del(t.Context(), a.chunkKey(name(model("n")), of(list(t, a), model("n")).ID, 0)).Err())
	f("n", nil, 0, "", "a chunk is gone")
	b.expect("a snapshot that is not whole", "engine of m 1000 41 shelf\n"+own)
	server.Kill()
	b.cfg.Fleet.Beat(t.Context())
	f("n", nil, 0, "", "the store is not there")
	if st := b.Status(); b.now().Written != st.Written || len(st.Failed) != 0 {
		t.Errorf("without the store: %+v", b.Status())
	}
	server.Run()
	b.cfg.Fleet.Beat(t.Context())
	if st := b.now(); st.Written != 1 { // what is not registered is not this replica's to write
		t.Errorf("%+v", st)
	}
	restored(t, server, nil).expect("an emptied store", "engine of own 7 41 shelf\n")
}

// list returns the manifests.
func list(t *testing.T, m *member) []manifest {
	t.Helper()
	all, _, err := m.list(t.Context())
	must.Succeed(t, err)
	return all
}
