package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	kv "kvconductor/client"
	"kvconductor/examples/router"
	"kvconductor/lab/sim"
	"kvconductor/lab/sim/workload"
)

// Router is a comparison of the example router with policies that know no cache.
type Router struct {
	Trace    string // file, "" for generated requests
	Requests int    // 0 for all of the trace, or Generated
	Seed     uint64
}

// Run routes the same requests by each policy, over fleets like those of the demo, and compares the outcomes.
// The policies ask the server at a URL.
func (d Router) Run(ctx context.Context, server string, progress io.Writer) (*sim.Comparison, error) {
	source, err := workload.Open(d.Trace, "mixed", d.Seed)
	if err != nil {
		return nil, err
	}
	c := sim.Config{
		Server: server, Tenant: "default", Model: "simulated",
		Instances: len(sim.Families), Ranks: sources / len(sim.Families), Families: sim.Families,
		BlockSize: 16, Device: 8192, Host: 4096, Disk: 16384, Chunk: 2048, Running: 1,
		Source: source, Requests: d.Requests, QPS: demoRate, Clients: 1, Seed: d.Seed,
		SettleTimeout: 30 * time.Second, Ring: 10000, Queue: 100000,
	}
	if d.Trace != "" {
		c.BlockSize = TraceBlock
	} else if c.Requests == 0 {
		c.Requests = workload.Generated
	}
	c.Chunk = max(c.Chunk, c.BlockSize)
	conductor, err := kv.New(server, kv.WithMsgpack(), kv.WithRetries(0))
	if err != nil {
		return nil, err
	}
	policies := []sim.Policy{
		sim.RoundRobin(c.Instances * c.Ranks),
		routing("least loaded", newExample(c, nil)),
		routing("cache aware", newExample(c, conductor)),
	}
	return sim.Compare(ctx, c, policies, func(text string) { fmt.Fprintln(progress, text) })
}

// demoRate is how many requests a second a generator makes: two thirds of what the ranks compute
// if they find nothing cached.
const demoRate = 12

// newExample returns the example router over the ranks of a fleet.
func newExample(c sim.Config, conductor router.Conductor) *router.Router {
	r := &router.Router{
		Conductor: conductor,
		Query:     kv.Query{Model: c.Model, BlockSize: c.BlockSize, Tenant: c.Tenant},
		Patience:  5 * time.Second, // a busy machine must not change the outcome

		EventsOnly: true,
	}
	for _, t := range c.Targets() {
		r.Workers = append(r.Workers, router.Worker{Instance: t.Instance, Rank: t.Rank})
	}
	return r
}

// routing returns the policy of an example router.
func routing(name string, r *router.Router) sim.Policy {
	choose := func(ctx context.Context, prompt []uint32) (rank int, computed func()) {
		rank, end := r.Choose(ctx, prompt)
		return rank, func() { end(true) }
	}
	return sim.Policy{Name: name, Asks: r.Conductor != nil, Choose: choose, Alone: r.Alone}
}
