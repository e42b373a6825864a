package main

import (
	"context"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/history/peer"
)

// replicas is what this server shares with others: by a store, and what routers report also with peers.
type replicas struct {
	members  *membership.Group    // nil without a store, as are registry and shelved
	registry *membership.Registry // sources
	shelved  *shelving            // blocks
	shards   *cluster.Cluster     // nil if every replica follows every source
	sender   *cluster.Forwarder   // likewise
	mirror   *cluster.Mirror      // tells the others what routers report here
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// newReplicas connects this server with the others. Close what it returns, even with an error.
func newReplicas(s *serving) (r *replicas, err error) {
	r = &replicas{stop: func() {}, members: newGroup(s, s.asking.Transport.(*access.Transport))}
	if r.members != nil {
		trustReplicas(s.asking.Transport.(*access.Transport), s.loaded, r.members)
		r.registry = membership.NewRegistry(membership.RegistryConfig{
			Group: r.members, Conductor: s.conductor, Targets: s.targets, Log: s.log,
		})
		if r.shelved, err = newShelving(s.loaded, r.members, s.conductor, s.asking, r.keepsDeployment, s.log); err != nil {
			return r, err
		}
		if s.cfg.Cluster.Mode == config.Shards {
			if err := r.followShards(s); err != nil {
				return r, err
			}
		}
	}

	// Those that hear what routers report here: the replicas of the store, else the peers.
	to := cluster.MirrorConfig{Me: s.peers.Me(), To: s.asking.Transport, Timeout: forwardTimeout, MaxTokens: s.cfg.Limits.MaxTokens,
		Log: s.log}
	to.All = func() (all []conductor.ReplicaAddress) {
		for _, url := range s.peers.Peers() {
			all = append(all, conductor.ReplicaAddress{ID: url, URL: url})
		}
		return all
	}
	if r.members != nil {
		to.Me, to.All = r.members.ID(), func() []conductor.ReplicaAddress { return cluster.Others(r.members) }
	}
	to.Serving = func(scope.Shard) []conductor.ReplicaAddress { return to.All() }
	if r.shards != nil {
		to.Serving = r.shards.Others
	}
	r.mirror = cluster.NewMirror(to)
	s.conductor.MirrorBy(r.mirror)
	return r, nil
}

// collectors returns the metrics of all that is shared.
func (r *replicas) collectors() []prometheus.Collector {
	all := []prometheus.Collector{r.mirror}
	if r.members != nil {
		all = append(all, r.members, r.registry, r.shelved.kept)
	}
	if r.shards != nil {
		all = append(all, r.sender, r.shards)
	}
	return all
}

// refuseOwn refuses requests that this server has sent itself, because it was given itself as a peer.
func refuseOwn(me string) gin.HandlerFunc {
	return func(g *gin.Context) {
		if g.GetHeader(peer.Header) == me {
			g.Header(peer.Header, me)
			server.SendError(g, body.JSON, http.StatusLoopDetected, "self", "this server has asked itself: it is one of its own peers")
			g.Abort()
		}
	}
}

// joinGroup begins to share. It waits for the first answer of the store, so that the server knows the
// sources of the others before it listens, but not for a store that is down.
func (r *replicas) joinGroup() {
	if r.members == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.members.Beat(ctx)
	r.registry.Sync(ctx)
	if r.shards != nil {
		r.shards.Step(ctx)
		r.tasks.Go(func() { r.shards.Run(ctx) })
	}
	r.tasks.Go(func() { r.members.Run(ctx) })
	r.tasks.Go(func() { r.registry.Run(ctx) })
}

// leaveGroup gives the lease back.
func (r *replicas) leaveGroup() {
	r.stop()
	r.tasks.Wait()
	if r.mirror != nil {
		r.mirror.Close()
	}
	if r.members != nil {
		r.members.Store().Close()
	}
}
