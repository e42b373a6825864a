package membership

import (
	"testing"
	"time"

	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// TestRegistryInACluster shares sources through two nodes of a cluster.
func TestRegistryInACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, nil)
	var peers []*peer
	for i, id := range []string{"a", "b"} {
		members := grouped(t, store.Config{URL: nodes[i].URL(), Cluster: true})
		members.cfg.Replica.ID = id
		members.beatUntil(t, "the node does not lead to the others", func(st *Status) bool { return st.Up })
		peers = append(peers, peerOf(t, members))
	}
	peers[0].register(source("x", "m"))
	peers[0].configure(source("y", "m"))
	beat(peers...)
	holds(t, "x:m y:m", peers...)
	peers[1].unregister("x")
	beat(peers[1], peers[0])
	holds(t, "y:m", peers...)
	if rows, complete := peers[0].registry.List(t.Context()); !complete || len(rows) != 1 || len(rows[0].Followers) != 2 {
		t.Errorf("%v %+v", complete, rows)
	}
}

// TestRegistrySurvivesAFailover kills the master: what its replica has not heard is written again.
func TestRegistrySurvivesAFailover(t *testing.T) {
	t.Parallel()
	master, replica, sentinels := redistest.StartSentinels(t, nil)
	cfg := store.Config{URL: sentinels[0].URL(), Addresses: []string{sentinels[1].Addr, sentinels[2].Addr}, Master: redistest.Master}
	members := grouped(t, cfg)
	members.beatUntil(t, "the Sentinels name no master", func(st *Status) bool { return st.Up })
	a := peerOf(t, members)
	a.members.cfg.Now = time.Now
	a.register(source("x", "m"))
	beat(a)
	master.Kill() // it may not have told its replica
	members.beatUntil(t, "the loss of the master is not noticed", func(st *Status) bool { return !st.Up || replica.Role() == "master" })
	a.register(source("y", "m"))
	members.beatUntil(t, "no other master is found", func(st *Status) bool { return st.Up })
	a.registry.confirmed = time.Time{} // within a minute in any case
	beat(a)
	fresh := grouped(t, cfg)
	fresh.cfg.Replica.ID = "b"
	fresh.beatUntil(t, "the store is away again", func(st *Status) bool { return st.Up })
	b := peerOf(t, fresh)
	beat(b)
	holds(t, "x:m y:m", a, b)
}
