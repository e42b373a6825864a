package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim"
	"example.com/conductor/lab/sim/workload"
)

// progressEvery is the pace of progress lines where there is no terminal.
const progressEvery = 5 * time.Second

// simulateCommand runs a fleet of publishers against a running server and
// compares its answers with the truth.
func simulateCommand() *cobra.Command { return simulateCommandWith(sim.Restarts{}) }

// simulateCommandWith restarts the server meanwhile.
func simulateCommandWith(restarts sim.Restarts) *cobra.Command {
	var (
		c        = sim.Config{Restarts: restarts}
		asks     cli.ClientFlags
		trace    string
		kind     string
		asJSON   bool
		quiet    bool
		families string
		placed   shardFlags
	)
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a fleet of publishers against a server and check its answers",
		Long: `simulate starts a fleet of inference engines without models: prefix caches with
device, host and disk tiers that publish their events over ZMQ like vLLM and
SGLang. It registers them with a running server, asks POST /query before each
request, runs the request where the answer says it is cheapest, and compares
every answer with what the engines really hold.

The families vllm-eagle, vllm-mtp and sglang-eagle have a drafter. They hash each
block with the next 1, 4 and 1 tokens, its look-ahead: a block counts for a prompt
if the tokens behind it agree, and the last block of a prompt does not count
without them. As in vLLM 0.33, the first two have no tier below the device.

With --pool the ranks without a look-ahead also share a Mooncake Store: a quarter of
the requests save there what they compute, any rank loads from it what engines that
hash alike saved, and its master publishes the objects by key, without tokens. What
the pool holds counts for every instance without a look-ahead, so the server has to
remember what engines called those blocks long after they evicted them. Engines then
hash with one seed, and without a pool each instance with its own.

An answer is settled when the server had applied every published batch before it
matched, and does not say that it may be too short (truncated); a settled answer that
differs is wrong, any other that differs is only behind. The exit status is 1 when an answer is wrong or none was settled.

Requests come from a trace in the format of Mooncake's FAST'25 traces (--trace)
or from a generator (--workload): shared system prompts, chats of many turns,
tool loops, or all of them.

--server may name several servers that share a store, with commas. They are asked in
turn, and a query that none of them answers while a model moves counts as unserved.

With --shards nothing runs and no server is asked. simulate then computes which
replicas of Conductor own the deployments of a large fleet, what they need, and what
moves when replicas die and join. The exit status is 1 when a replica needs more than
it has, or when a deployment has too few owners. Costs are those of docs/scale.md.`,
		Example: "  conductor-lab simulate\n" +
			"  conductor-lab simulate --server conductor.example:13333 --instances 32 --duration 1m",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	asks.Add(cmd, true)
	f.StringVar(&c.Tenant, "tenant", "default", "tenant of the fleet")
	f.StringVar(&c.Model, "model", "simulated", "model of the fleet")
	f.IntVar(&c.Instances, "instances", len(sim.Families), "instances")
	f.IntVar(&c.Ranks, "ranks", 2, "data-parallel ranks of each instance")
	f.StringVar(&families, "families", strings.Join(sim.Families, ","), "kinds of publisher, dealt over the instances in turn")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Device, "device-blocks", 8192, "blocks in the device memory of a rank")
	f.IntVar(&c.Host, "host-blocks", 4096, "blocks in the host memory of a rank, 0 for none; vllm-eagle and vllm-mtp have none")
	f.IntVar(&c.Disk, "disk-blocks", 16384, "blocks on the disk of a rank, 0 for none; vllm-eagle and vllm-mtp have none")
	f.BoolVar(&c.Pool, "pool", false,
		"let all ranks without a look-ahead share a pool, announced by a simulated Mooncake master; not with --faults")
	f.IntVar(&c.PoolHost, "pool-host-blocks", 16384, "blocks in the host memory of the pool")
	f.IntVar(&c.PoolDisk, "pool-disk-blocks", 32768, "blocks on the disks of the pool, 0 for none")
	f.IntVar(&c.Chunk, "chunk", 2048, "prompt tokens computed in one step")
	f.IntVar(&c.Running, "running", 3, "requests that share the steps of a rank")
	f.IntVar(&c.ClearEvery, "clear-every", 400, "requests of a rank between two cache resets, 0 for none")
	f.StringVar(&trace, "trace", "", "file with a trace, one JSON object a line")
	f.StringVar(&kind, "workload", "mixed", "generator without a trace: "+strings.Join(workload.Kinds, ", "))
	f.IntVar(&c.Requests, "requests", 0,
		fmt.Sprintf("requests to run; 0 for the whole trace, or %d generated ones if there is no --duration either", workload.Generated))
	f.DurationVar(&c.Duration, "duration", 0, "longest time to run, 0 for no limit")
	f.Float64Var(&c.QPS, "qps", 0, "requests per second, 0 for as many as possible")
	f.IntVar(&c.Clients, "clients", 2, "requests in flight")
	f.IntVar(&c.Warm, "warm", 16, "requests that run before the ranks register, which the server learns by replay")
	f.IntVar(&c.SettleEvery, "settle-every", 8, "every n-th query waits until the server has caught up, 0 for none")
	f.DurationVar(&c.SettleTimeout, "settle-timeout", 5*time.Second, "longest time such a query waits")
	f.IntVar(&c.Audit, "audit", 200, "earlier prompts to ask again at the end")
	f.IntVar(&c.Ring, "ring", 10000, "batches a publisher can replay")
	f.IntVar(&c.Queue, "queue", 100000, "batches a publisher keeps for slow readers before it discards, 0 for no limit")
	f.Uint64Var(&c.Seed, "seed", 0, "seed of everything random, 0 for a new one each time")
	f.BoolVar(&c.Faults, "faults", false, "lose batches, cut and stall connections, restart engines and spoil replays at random")
	f.BoolVar(&c.Keep, "keep", false, "leave the ranks and the pool registered")
	f.BoolVar(&c.Samples, "curl", false, "show three requests with their answers at the end")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of tables")
	f.BoolVar(&quiet, "quiet", false, "show no progress")

	placed.add(cmd)

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := placed.check(cmd); err != nil {
			return err
		}
		cmd.SilenceUsage = true
		if placed.on {
			return placed.run(cmd, c.Seed, asJSON)
		}
		var bases []string
		for _, name := range strings.Split(asks.Server, ",") {
			base, err := asks.BaseOf(name)
			if err != nil {
				return cli.Usagef("--server: %w", err)
			}
			bases = append(bases, base)
		}
		if c.Server = bases[0]; len(bases) > 1 {
			servers, err := sim.NewServers(bases...)
			if err != nil {
				return fmt.Errorf("--server: %w", err)
			}
			c.Servers = servers
		}
		c.Wrap = asks.Transport
		for c.Seed == 0 {
			c.Seed = rand.Uint64()
		}
		c.Families = strings.Split(families, ",")
		if err := c.Check(); err != nil {
			return cli.Usagef("%w", err)
		}
		if !slices.Contains(workload.Kinds, kind) {
			return cli.Usagef("--workload: %q is none of %s", kind, strings.Join(workload.Kinds, ", "))
		}
		source, err := workload.Open(trace, kind, c.Seed)
		if err != nil {
			return err
		}
		c.Source = source
		if source.Len() < 0 && c.Requests == 0 && c.Duration == 0 {
			c.Requests = c.Warm + workload.Generated
		}
		about := cmd.OutOrStdout()
		if asJSON {
			about = cmd.ErrOrStderr()
		}
		if !quiet || !asJSON {
			printSeed(about, c.Seed)
		}
		if !quiet {
			c.Progress = progressOn(cmd.ErrOrStderr())
		}
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		report, err := sim.Run(ctx, c)
		if err != nil {
			return err
		}
		if err := harness.Print(cmd.OutOrStdout(), report, asJSON); err != nil {
			return fmt.Errorf("cannot print the report: %w", err)
		}
		return report.Err()
	}
	return cmd
}

// printSeed prints the seed of a run at its start, so that one that does not end can be repeated too.
func printSeed(w io.Writer, seed uint64) {
	fmt.Fprintf(w, "seed:   %d (--seed %d repeats the requests and the caches of this run; the timing is the machine's)\n", seed, seed)
}

// progressOn returns a bar on a terminal and lines anywhere else.
func progressOn(w io.Writer) *sim.Progress {
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return sim.BarProgress(w)
		}
	}
	return sim.LineProgress(w, progressEvery)
}
