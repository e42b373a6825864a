package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	kv "kvconductor/client"
	"kvconductor/examples/router"
	"kvconductor/lab/harness"
	"kvconductor/lab/sim"
)

// demoRouter is a comparison of the example router with policies that know no cache.
type demoRouter struct {
	trace    string
	requests int // 0 for all of the trace, or generatedRequests
	seed     uint64
	asJSON   bool
}

// demonstrate runs the comparison against a server of its own.
func (d demoRouter) demonstrate(ctx context.Context, trace string, cmd *cobra.Command) error {
	d.trace = trace
	server, err := startServer(ctx, false, 0, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := d.run(ctx, server.url, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
		server.stop()
		return err
	}
	return server.stop()
}

// run compares the policies over fleets like those of the demo, and prints the comparison.
func (d demoRouter) run(ctx context.Context, server string, out, progress io.Writer) error {
	for d.seed == 0 {
		d.seed = rand.Uint64()
	}
	source, err := openSource(d.trace, "mixed", d.seed)
	if err != nil {
		return err
	}
	c := sim.Config{
		Server: server, Tenant: "default", Model: "simulated",
		Instances: len(sim.Families), Ranks: demoSources / len(sim.Families), Families: sim.Families,
		BlockSize: 16, Device: 8192, Host: 4096, Disk: 16384, Chunk: 2048, Running: 1,
		Source: source, Requests: d.requests, QPS: demoRate, Clients: 1, Seed: d.seed,
		SettleTimeout: 30 * time.Second, Ring: 10000, Queue: 100000,
	}
	if d.trace != "" {
		c.BlockSize = traceBlock
	} else if c.Requests == 0 {
		c.Requests = generatedRequests
	}
	c.Chunk = max(c.Chunk, c.BlockSize)
	conductor, err := kv.New(server, kv.WithMsgpack(), kv.WithRetries(0))
	if err != nil {
		return err
	}
	policies := []sim.Policy{
		sim.RoundRobin(c.Instances * c.Ranks),
		routing("least loaded", newExample(c, nil)),
		routing("cache aware", newExample(c, conductor)),
	}
	report, err := sim.Compare(ctx, c, policies, func(text string) { fmt.Fprintln(progress, text) })
	if err != nil {
		return err
	}
	return harness.Print(out, report, d.asJSON)
}

// demoRate is how many requests a second a generator makes: two thirds of what the ranks compute
// if they find nothing cached.
const demoRate = 12

// newExample returns the example router over the ranks of a fleet.
func newExample(c sim.Config, conductor *kv.Client) *router.Router {
	r := &router.Router{
		Conductor: conductor,
		Query:     kv.Query{Model: c.Model, BlockSize: c.BlockSize, Tenant: c.Tenant},
		Patience:  5 * time.Second, // a busy machine must not change the outcome
	}
	for _, t := range c.Targets() {
		r.Workers = append(r.Workers, router.Worker{Instance: t.Instance, Rank: t.Rank})
	}
	return r
}

// routing returns the policy of an example router.
func routing(name string, r *router.Router) sim.Policy {
	return sim.Policy{Name: name, Asks: r.Conductor != nil, Choose: r.Choose, Alone: r.Alone}
}
