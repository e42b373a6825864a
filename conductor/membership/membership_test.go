package membership

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// lease is that of replicas in tests: none ends by itself, however busy the machine is.
const lease = time.Hour

// connected returns a store of a test.
func connected(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{URL: url, Name: "test", Timeout: time.Minute})
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// member returns a replica that beats when the test says so.
func member(t *testing.T, url, id string) *Group {
	t.Helper()
	g := New(Config{Store: connected(t, url), Replica: Replica{ID: id, URL: "http://" + id, Weight: 1}, Lease: lease, Log: zerolog.Nop()})
	g.AddFacts("shards", func() json.RawMessage { return json.RawMessage(`["` + id + `"]`) })
	return g
}

// ids returns who is alive.
func (s Status) ids() (all string) {
	for _, r := range s.Replicas {
		all += r.ID
	}
	return all
}

func TestGroupKnowsReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := member(t, server.URL(), "a"), member(t, server.URL(), "b")
	ctx := t.Context()
	a.Beat(ctx)
	b.Beat(ctx)
	a.Beat(ctx)
	if st := a.Status(); !st.Up || st.Error != "" || st.ids() != "ab" || st.Lost != 0 || st.Run == "" ||
		string(st.Replicas[1].Facts["shards"]) != `["b"]` {
		t.Errorf("%+v", st)
	}
	for _, r := range a.Status().Replicas {
		if left := time.Until(r.Expires); left <= 0 || left > lease {
			t.Errorf("the lease of %s lasts %s", r.ID, left)
		}
	}
	client := a.Store().Client()
	must.Succeed(t, client.ZAdd(ctx, a.Store().Key("replicas"), redis.Z{Score: 1, Member: "b"}).Err()) // b's lease has ended
	a.Beat(ctx)
	if st := a.Status(); st.ids() != "a" {
		t.Errorf("a replica without a lease: %+v", st.Replicas)
	}
	b.Beat(ctx)
	if st := b.Status(); st.ids() != "ab" || st.Lost != 0 {
		t.Errorf("a replica whose lease had ended comes back: %+v", st)
	}
	b.giveBackLease(ctx)
	a.Beat(ctx)
	if st := a.Status(); st.ids() != "a" {
		t.Errorf("a replica that left: %+v", st.Replicas)
	}
}

// TestGroupBeatsSoon holds that a beat which is asked for does not wait until the next one is due.
func TestGroupBeatsSoon(t *testing.T) {
	t.Parallel()
	a := member(t, redistest.Start(t).URL(), "a")
	a.pause = time.Hour
	var run sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	run.Go(func() { a.Run(ctx) })
	for want := range uint64(4) {
		for {
			changed := a.Changed()
			if a.Status().Beats > want {
				break
			}
			<-changed
		}
		a.BeatSoon()
		a.BeatSoon()
	}
	end()
	run.Wait()
}

func TestGroupNoticesLosses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := member(t, server.URL(), "a")
	ctx, client := t.Context(), a.Store().Client()
	a.Beat(ctx)
	a.Beat(ctx)
	run := a.Status().Run

	must.Succeed(t, client.HSet(ctx, a.Store().Key("beats"), "a", 1).Err()) // a store that heard one beat less
	a.Beat(ctx)
	if st := a.Status(); st.Lost != 1 || st.Run != run {
		t.Errorf("a store that took over with less: %+v", st)
	}
	must.Succeed(t, client.Incr(ctx, a.Store().Key("revision")).Err())
	a.Beat(ctx)
	must.Succeed(t, client.Del(ctx, a.Store().Key("revision")).Err())
	a.Beat(ctx)
	if st := a.Status(); st.Lost != 2 {
		t.Errorf("a store with an older registry: %+v", st)
	}
	server.Kill()
	a.Beat(ctx)
	if st := a.Status(); st.Up || st.Error == "" || st.Run != run || st.ids() != "a" {
		t.Errorf("a store that is down: %+v", st)
	}
	server.Run()
	a.Beat(ctx)
	if st := a.Status(); !st.Up || st.Lost != 3 || st.Run == run {
		t.Errorf("an empty store: %+v", st)
	}
}

func TestGroupLeavesNewerLayoutsAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := member(t, server.URL(), "a")
	ctx, client := t.Context(), a.Store().Client()
	must.Succeed(t, client.Set(ctx, a.Store().Key("version"), store.Layout+1, 0).Err())
	a.Beat(ctx)
	if st := a.Status(); st.Up || !st.Refused {
		t.Errorf("%+v", st)
	}
	if n, err := client.Exists(ctx, a.Store().Key("replicas"), a.Store().Key("run")).Result(); n != 0 || err != nil {
		t.Errorf("%d keys were written, %v", n, err)
	}
}

// TestGroupNamesADamagedVersion holds that a layout which is none leaves the store alone, and that the error names the key.
func TestGroupNamesADamagedVersion(t *testing.T) {
	t.Parallel()
	a := member(t, redistest.Start(t).URL(), "a")
	ctx, client, key := t.Context(), a.Store().Client(), a.Store().Key("version")
	for _, damaged := range []string{"abc", "", "-1", "0", "nan", "1.5", "1" + strings.Repeat("0", 1<<20)} {
		must.Succeed(t, client.Set(ctx, key, damaged, 0).Err())
		a.Beat(ctx)
		if st := a.Status(); st.Up || !st.Refused || !strings.Contains(st.Error, key) || len(st.Error) > 1000 {
			t.Errorf("%.20q: %+v", damaged, st)
		}
	}
	must.Succeed(t, client.Set(ctx, key, store.Layout, 0).Err())
	a.Beat(ctx)
	if st := a.Status(); !st.Up {
		t.Errorf("mended: %+v", st)
	}
}

// TestGroupIgnoresOtherReplicasGarbage: what a replica of another version says costs that one alone.
func TestGroupIgnoresOtherReplicasGarbage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := member(t, server.URL(), "a")
	ctx, client := t.Context(), a.Store().Client()
	must.Succeed(t, client.HSet(ctx, a.Store().Key("says"), "x", `{"id": 7}`, "y", "nonsense", "z", `{}`).Err())
	a.Beat(ctx)
	if st := a.Status(); !st.Up || st.ids() != "a" {
		t.Errorf("%+v", st)
	}
}

// TestGroupRuns beats by the clock, and leaves at its end.
func TestGroupRuns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := member(t, server.URL(), "a"), member(t, server.URL(), "b")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.Run(ctx); close(ended) }()
	for a.Status().Beats < 2 {
		<-a.Changed()
	}
	stop()
	<-ended
	b.Beat(t.Context())
	if st := b.Status(); st.ids() != "b" {
		t.Errorf("%+v", st.Replicas)
	}
}

// TestGroupWaitsForReplicasAfterALoss holds that the first replica which beats after the store was emptied,
// or away for longer than a lease, does not take the others for gone: each has a lease to beat in.
func TestGroupWaitsForReplicasAfterALoss(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *redistest.Server, *Group){
		"emptied": func(t *testing.T, _ *redistest.Server, a *Group) {
			must.Succeed(t, a.Store().Client().FlushAll(t.Context()).Err())
		},
		"away": func(t *testing.T, server *redistest.Server, a *Group) {
			server.Kill()
			a.Beat(t.Context())
			a.Beat(t.Context())
			server.Run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b, c := member(t, server.URL(), "a"), member(t, server.URL(), "b"), member(t, server.URL(), "c")
			ctx, now := t.Context(), time.Now()
			a.cfg.Now = func() time.Time { return now }
			for _, r := range []*Group{b, c, a} {
				r.Beat(ctx)
			}
			lose(t, server, a)
			now = now.Add(2 * lease)
			a.Beat(ctx)
			if st := a.Status(); st.ids() != "abc" || st.Lost != 1 || string(st.Replicas[1].Facts["shards"]) != `["b"]` ||
				!st.Replicas[1].Expires.Equal(now.Add(lease)) {
				t.Errorf("after the first beat: %+v", st)
			}
			b.Beat(ctx)
			now = now.Add(lease - 1)
			a.Beat(ctx)
			if st := a.Status(); st.ids() != "abc" || st.Lost != 1 {
				t.Errorf("before the end of the lease: %+v", st)
			}
			now = now.Add(1)
			a.Beat(ctx)
			if st := a.Status(); st.ids() != "ab" {
				t.Errorf("c has not beaten for a lease: %+v", st)
			}
			b.giveBackLease(ctx)
			a.Beat(ctx)
			if st := a.Status(); st.ids() != "a" {
				t.Errorf("b has left: %+v", st)
			}
		})
	}
}
