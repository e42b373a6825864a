package main

import (
	"fmt"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/config"
)

// forwardTimeout is how long another replica may take to begin its answer to a query that is sent
// on. Then the next one is asked: a replica that was stopped costs a query as much, once.
const forwardTimeout = 2 * time.Second

// share lets this server follow the sources of its shards alone, if cluster.mode says so.
func (r *replicas) share(loaded *config.Loaded, c *conductor.Conductor, asked *cluster.Asked, shelved *shelving,
	metrics *prometheus.Registry, log zerolog.Logger) error {
	cfg := &loaded.Config
	if r.members == nil || cfg.Cluster.Mode != config.Shards {
		return nil
	}
	p := cfg.Peer
	to, err := access.NewTransport(access.ClientFiles{CACert: p.CACert, Cert: p.Cert, Key: p.Key, TokenFile: p.TokenFile},
		cluster.NewTransport())
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	r.sender = cluster.NewForwarder(cluster.ForwarderConfig{Me: r.members.ID(), To: to, Timeout: forwardTimeout, Failed: r.members.Hasten,
		Log: log})
	r.shards = cluster.New(cluster.Config{
		Conductor: c, Fleet: r.members, Registry: cluster.Sources{Registry: r.registry, Asked: asked}, Owners: int(cfg.Cluster.Owners),
		Log:   log,
		Bring: shelved.bring,
	})
	asked.Share(r.shards)
	c.ServeBy(r.shards)
	r.registry.SetWanted(r.shards.Wanted)
	metrics.MustRegister(r.sender, r.shards)
	return nil
}

// keeps reports whether this server writes a deployment to the shelf.
func (r *replicas) keeps(d scope.Deployment) bool {
	return r.shards == nil || r.shards.Keeps(conductor.Shard{Tenant: d.Tenant, Model: d.Model})
}

// forwards returns the middleware that lets queries of a listener be sent on, none without shards.
func (r *replicas) forwards(root string) []gin.HandlerFunc {
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

// carries lets calls of a listener of gRPC be sent on, with shards.
func (r *replicas) carries(opts rpc.Options) rpc.Options {
	if r.sender != nil {
		opts.Forward = r.sender
	}
	return opts
}
