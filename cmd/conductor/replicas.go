package main

import (
	"context"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/fleet"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/history/peer"
)

// replicas is what this server shares with others by a store. Without a store it does nothing.
type replicas struct {
	members  *fleet.Fleet
	registry *fleet.Registry
	shards   *cluster.Cluster   // nil if every replica follows every source
	sender   *cluster.Forwarder // likewise
	mirror   *cluster.Mirror    // tells the others what routers report here; nil before mirrorTo
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// newReplicas returns what this server shares; members is nil without a store.
func newReplicas(members *fleet.Fleet, c *conductor.Conductor, targets *discovery.Manager, metrics *prometheus.Registry,
	log zerolog.Logger) *replicas {
	r := &replicas{members: members, stop: func() {}}
	if members != nil {
		r.registry = fleet.NewRegistry(fleet.RegistryConfig{Fleet: members, Conductor: c, Targets: targets, Log: log})
		metrics.MustRegister(members, r.registry)
	}
	return r
}

// mirrorTo lets other replicas hear what routers report here: those that share the store, else peers.
func (r *replicas) mirrorTo(peers *peer.Peers, c *conductor.Conductor, cfg *config.Config, asking *http.Client,
	metrics *prometheus.Registry, log zerolog.Logger) {
	to := cluster.MirrorConfig{Me: peers.Me(), To: asking.Transport, Timeout: forwardTimeout, MaxTokens: cfg.Limits.MaxTokens, Log: log}
	to.All = func() (all []conductor.ReplicaAddress) {
		for _, url := range peers.Peers() {
			all = append(all, conductor.ReplicaAddress{ID: url, URL: url})
		}
		return all
	}
	if r.members != nil {
		to.Me, to.All = r.members.ID(), func() []conductor.ReplicaAddress { return cluster.Others(r.members) }
	}
	to.Serving = func(conductor.Shard) []conductor.ReplicaAddress { return to.All() }
	if r.shards != nil {
		to.Serving = r.shards.Others
	}
	r.mirror = cluster.NewMirror(to)
	c.MirrorBy(r.mirror)
	metrics.MustRegister(r.mirror)
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

// start begins to share. It waits for the first answer of the store, so that the server knows the
// sources of the others before it listens, but not for a store that is down.
func (r *replicas) start() {
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

// close gives the lease back.
func (r *replicas) close() {
	r.stop()
	r.tasks.Wait()
	if r.mirror != nil {
		r.mirror.Close()
	}
	if r.members != nil {
		r.members.Store().Close()
	}
}
