package membership

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// grouped returns a replica whose store is a cluster, or is found by Sentinels.
func grouped(t *testing.T, cfg store.Config) *Group {
	t.Helper()
	cfg.Name, cfg.Timeout = "test", time.Minute
	s, err := store.Open(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return New(Config{Store: s, Replica: Replica{ID: "a"}, Lease: lease, Log: zerolog.Nop()})
}

// beatUntil beats until the state is right.
func (g *Group) beatUntil(t *testing.T, what string, right func(*Status) bool) {
	t.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		g.Beat(t.Context())
		st := g.Status()
		if right(&st) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%s: %+v", what, st)
		}
	}
}

// TestGroupInACluster beats through each node in turn: it need not have the slot of the deployment.
func TestGroupInACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, nil)
	for _, n := range nodes {
		g := grouped(t, store.Config{URL: n.URL(), Cluster: true})
		g.beatUntil(t, "the node does not lead to the others", func(st *Status) bool { return st.Up && st.ids() == "a" })
	}
}

// TestGroupFollowsSentinels kills the master: the next beats are heard by what was its replica.
func TestGroupFollowsSentinels(t *testing.T) {
	t.Parallel()
	master, replica, sentinels := redistest.StartSentinels(t, nil)
	g := grouped(t, store.Config{URL: sentinels[0].URL(), Addresses: []string{sentinels[1].Addr, sentinels[2].Addr},
		Master: redistest.Master})
	g.beatUntil(t, "the Sentinels name no master", func(st *Status) bool { return st.Up })
	run := g.Status().Run
	behind := redis.NewClient(&redis.Options{Addr: replica.Addr})
	defer behind.Close()
	g.beatUntil(t, "the replica never gets the beats", func(*Status) bool {
		return behind.Get(t.Context(), g.Store().Key("run")).Val() == run
	})
	master.Kill()
	g.beatUntil(t, "the loss of the master is not noticed", func(st *Status) bool { return !st.Up || replica.Role() == "master" })
	g.beatUntil(t, "no other master is found", func(st *Status) bool { return st.Up })
	if st := g.Status(); st.Run != run {
		t.Errorf("the replica had other contents: %+v", st)
	}
}
