package main

import (
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/config"
)

// forwardTimeout is how long another replica may take to begin its answer to a query that is sent
// on. Then the next one is asked: a replica that was stopped costs a query as much, once.
const forwardTimeout = 2 * time.Second

// followShards lets this server follow the sources of its shards alone.
func (r *replicas) followShards(s *serving) error {
	to, err := peerTransport(s.loaded, cluster.NewTransport())
	if err != nil {
		return err
	}
	trustReplicas(to, s.loaded, r.members)
	r.sender = cluster.NewForwarder(cluster.ForwarderConfig{Me: r.members.ID(), To: to, Timeout: forwardTimeout, Failed: r.members.BeatSoon,
		Log: s.log})
	r.shards = cluster.New(cluster.Config{
		Conductor: s.conductor, Group: r.members, Registry: cluster.Sources{Registry: r.registry, Asked: s.asked},
		Owners: int(s.cfg.Cluster.Owners), Log: s.log,
		Bring: r.shelved.bring,
	})
	s.asked.Share(r.shards)
	s.conductor.ServeBy(r.shards)
	r.registry.SetWanted(r.shards.Wanted)
	return nil
}

// keepsDeployment reports whether this server writes a deployment to the shelf.
func (r *replicas) keepsDeployment(d scope.Deployment) bool {
	return r.shards == nil || r.shards.Keeps(scope.Shard{Tenant: d.Tenant, Model: d.Model})
}

// forwardQueries returns the middleware that lets queries of a listener be sent on, none without shards.
func (r *replicas) forwardQueries(root string) []gin.HandlerFunc {
	if r.sender == nil {
		return nil
	}
	at := cluster.Mounted{Prefix: "/conductor/v1"}
	switch root {
	case config.Dynamo:
		at.Prefix = "/dynamo/v1"
	case config.ConductorJSONV2:
		at.Query, at.Type = "dialect=v2", "application/json"
	}
	return []gin.HandlerFunc{r.sender.At(at)}
}

// forwardCalls lets calls of a listener of gRPC be sent on, with shards.
func (r *replicas) forwardCalls(opts rpc.Options) rpc.Options {
	if r.sender != nil {
		opts.Forward = r.sender
	}
	return opts
}
