package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/lab/demo"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/workload"
)

func demoCommand() *cobra.Command {
	var (
		trace, duration string
		faults, page    bool
		restarts        int
		route           bool
		routed          demo.Router
		spread          demo.Shards
		program         serverFlag
		seed            uint64
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a server and a simulated fleet, and compare every answer with the truth",
		Long: "Starts a server of its own in another process, lets a simulated fleet of twelve ranks and the master of a\n" +
			"pool publish into it over real sockets, compares every answer with what they hold, and stops everything.\n" +
			"Half of the ranks hash blocks with a look-ahead, the others share the pool. With --faults there is no pool:\n" +
			"events that name its blocks may be lost for good. With --restarts the server is killed and started again that often,\n" +
			"from its snapshots, and there is no pool either: no snapshot has its objects. With --ui the fleet works at an easy\n" +
			"pace, for the operator's page, until Ctrl-C.\n" +
			"With --router nothing is compared with the truth. The router of examples/router, with and without expectations, alone\n" +
			"and three of them at a time, round robin, the least loaded rank and an oracle each route the same requests over a fleet\n" +
			"of their own, then bursts of equal prompts, and the demo shows what their choices cost.\n" +
			"With --shards a fleet of six models is spread over that many servers, which share a store: redis-server or\n" +
			"valkey-server, which the demo starts unless --store names one. Queries go to the servers in turn. One server is\n" +
			"killed, and later another one is added, while every answer is compared with the truth.",
		Example: "  conductor-lab demo\n" +
			"  conductor-lab demo --ui\n" +
			"  conductor-lab demo --router",
		Args: cobra.NoArgs,
	}
	program.add(cmd)
	asJSON := cli.JSONFlag(cmd, "print the report as one JSON object")
	cmd.Flags().StringVar(&trace, "trace", "", "Mooncake trace `file` to replay instead of generated requests")
	cmd.Flags().StringVar(&duration, "duration", "40s", "stop sending requests after this long")
	cmd.Flags().BoolVar(&faults, "faults", false, "let the fleet lose batches, cut and stall connections, restart and spoil replays")
	cmd.Flags().IntVar(&restarts, "restarts", 0, "kill and restart the server this often, in equal pauses")
	cmd.Flags().BoolVar(&page, "ui", false, "print the address of the operator's page, and go on until Ctrl-C")
	cmd.Flags().BoolVar(&route, "router", false, "compare the example router with policies that know no cache, and with an oracle")
	cmd.Flags().IntVar(&routed.Requests, "requests", 0,
		fmt.Sprintf("with --router, requests to route, and as many in bursts; 0 for the whole trace, or %d generated ones, and %d "+
			"in bursts", workload.Generated, demo.InBursts))
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of everything random, 0 for a new one each time")
	cmd.Flags().IntVar(&spread.Servers, "shards", 0, "spread models over this many servers, at least two, and kill one of them")
	cmd.Flags().StringVar(&spread.Store, "store", "",
		"with --shards, `URL` of a store that runs, such as redis://127.0.0.1:6379; some keys stay in it")
	cmd.Flags().IntVar(&spread.Owners, "owners", 2,
		"with --shards, servers that follow each model; with one, no server answers for a model from when its server dies until another "+
			"one has taken over")
	for _, other := range []string{"trace", "faults", "restarts", "ui", "router"} {
		cmd.MarkFlagsMutuallyExclusive("shards", other)
	}
	for _, other := range []string{"duration", "faults", "restarts", "ui"} {
		cmd.MarkFlagsMutuallyExclusive("router", other)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("requests") && !route {
			return cli.Usagef("--requests needs --router")
		}
		if restarts < 0 {
			return cli.Usagef("--restarts: %d is less than 0", restarts)
		}
		for seed == 0 {
			seed = rand.Uint64()
		}
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		within, err := time.ParseDuration(duration)
		if err != nil {
			return cli.Usagef("--duration: %q is not a duration, such as 30s or 5m", duration)
		}
		if cmd.Flags().Changed("shards") {
			spread.Within, spread.Seed = within, seed
			return demoShards(ctx, cmd, &program, spread, *asJSON)
		}
		for _, name := range []string{"store", "owners"} {
			if cmd.Flags().Changed(name) {
				return cli.Usagef("--%s needs --shards", name)
			}
		}
		conductor, err := program.find()
		if err != nil {
			return err
		}
		if route {
			routed.Trace, routed.Seed = trace, seed
			return demoRouter(ctx, cmd, conductor, routed, *asJSON)
		}
		snapshots := time.Duration(0)
		if restarts > 0 {
			snapshots = 2 * time.Second
		}
		server, err := demo.Start(ctx, conductor, faults, snapshots, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		args, about := []string{"--server", server.URL, "--curl", "--seed", strconv.FormatUint(seed, 10)}, cmd.OutOrStdout()
		if *asJSON {
			args, about = append(args, "--json"), cmd.ErrOrStderr()
		}
		fmt.Fprintf(about, "server: %s (process %d)\n", server.URL, server.PID())
		if page {
			fmt.Fprintf(about, "page:   %s%s (Ctrl-C ends it)\n", server.URL, ui.Root)
			args = append(args, "--qps", pagePace, "--keep")
		}
		if page && !cmd.Flags().Changed("duration") {
			args = append(args, "--duration", untilStopped)
		} else {
			args = append(args, "--duration", duration)
		}
		if faults {
			args = append(args, "--faults")
		}
		if !faults && restarts == 0 {
			args = append(args, "--pool")
		}
		if trace != "" {
			args = append(args, "--trace", trace, "--block-size", strconv.Itoa(demo.TraceBlock))
		}
		simulate := simulateCommandWith(server.Restarts(restarts, within))
		simulate.SetArgs(args)
		simulate.SetOut(cmd.OutOrStdout())
		simulate.SetErr(cmd.ErrOrStderr())
		simulate.SilenceUsage, simulate.SilenceErrors = true, true
		if err := simulate.ExecuteContext(ctx); err != nil {
			server.Stop()
			return err
		}
		fmt.Fprintln(about, server.Ghosts())
		if page && ctx.Err() == nil {
			fmt.Fprintf(about, "\nThe fleet has stopped. The page stays until Ctrl-C: %s%s\n", server.URL, ui.Root)
			<-ctx.Done()
		}
		return server.Stop()
	}
	return cmd
}

// With --ui a request starts each twentieth of a second, so that a person can follow them, and the
// fleet works until a signal: a duration that no demo reaches.
const pagePace, untilStopped = "20", "8760h"

// demoShards runs the demo of servers that share a store, and prints its report.
func demoShards(ctx context.Context, cmd *cobra.Command, program *serverFlag, o demo.Shards, asJSON bool) (err error) {
	switch {
	case o.Servers < 2:
		return cli.Usagef("--shards %d is less than 2: one server is killed", o.Servers)
	case o.Owners < 1:
		return cli.Usagef("--owners %d is less than 1", o.Owners)
	}
	cmd.SilenceUsage = true
	if o.Server, err = program.find(); err != nil {
		return err
	}
	about := cmd.OutOrStdout()
	if asJSON {
		about = cmd.ErrOrStderr()
	}
	printSeed(about, o.Seed)
	report, err := o.Run(ctx, about, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := harness.Print(cmd.OutOrStdout(), report, asJSON); err != nil {
		return fmt.Errorf("cannot print the report: %w", err)
	}
	return report.Err()
}

// demoRouter compares policies of routers against a server of its own, and prints the comparison.
func demoRouter(ctx context.Context, cmd *cobra.Command, conductor demo.Program, o demo.Router, asJSON bool) error {
	about := cmd.OutOrStdout()
	if asJSON {
		about = cmd.ErrOrStderr()
	}
	printSeed(about, o.Seed)
	server, err := demo.Start(ctx, conductor, false, 0, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	report, err := o.Run(ctx, server.URL, cmd.ErrOrStderr())
	if err == nil {
		err = harness.Print(cmd.OutOrStdout(), report, asJSON)
	}
	if err != nil {
		server.Stop()
		return err
	}
	return server.Stop()
}
