package main

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/cluster"
	"kvconductor/conductor/discovery"
	"kvconductor/conductor/fleet"
)

// replicas is what this server shares with others by a store. Without a store it does nothing.
type replicas struct {
	members  *fleet.Fleet
	registry *fleet.Registry
	shards   *cluster.Cluster   // nil if every replica follows every source
	sender   *cluster.Forwarder // likewise
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// newReplicas returns what this server shares; members is nil without a store.
func newReplicas(members *fleet.Fleet, c *conductor.Conductor, targets *discovery.Manager, metrics *prometheus.Registry, log zerolog.Logger) *replicas {
	r := &replicas{members: members, stop: func() {}}
	if members != nil {
		r.registry = fleet.NewRegistry(fleet.RegistryConfig{Fleet: members, Conductor: c, Targets: targets, Log: log})
		metrics.MustRegister(members, r.registry)
	}
	return r
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
	if r.members != nil {
		r.members.Store().Close()
	}
}
