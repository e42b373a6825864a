package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/shards"
)

// shardFlags are the flags of `simulate --shards`, which runs no engine and asks no server.
type shardFlags struct {
	shards.Config
	on  bool
	own *pflag.FlagSet
}

func (s *shardFlags) add(cmd *cobra.Command) {
	s.Config = shards.Default()
	s.own = pflag.NewFlagSet("shards", pflag.ContinueOnError)
	f := s.own
	f.BoolVar(&s.on, "shards", false,
		"instead, simulate which replicas own the deployments of a large fleet, and what moves when replicas die and join")
	count := func(p *int, name, usage string) { f.IntVar(p, name, *p, "with --shards: "+usage) }
	number := func(p *float64, name, usage string) { f.Float64Var(p, name, *p, "with --shards: "+usage) }
	count(&s.Workers, "workers", "engine ranks of the fleet")
	count(&s.Models, "models", "models of the fleet, each one deployment")
	number(&s.Zipf, "zipf", "exponent of the law by which models have workers, 0 for equal parts")
	count(&s.Replicas, "replicas", "replicas of Conductor")
	count(&s.Owners, "owners", "replicas that follow each deployment")
	count(&s.MaxOwners, "max-owners", "the most owners of a deployment with many queries, 0 for all replicas")
	number(&s.Slack, "slack", "part of its share that a replica may carry beyond it")
	number(&s.Blocks, "rank-blocks", "blocks that a rank holds")
	number(&s.Stored, "rank-stored", "blocks that a rank stores a second; it removes as many")
	number(&s.Config.Queries, "rank-queries", "queries a second for each rank of the fleet")
	number(&s.BlockBytes, "block-bytes", "memory of a block in the index")
	number(&s.SourceBytes, "source-bytes", "memory of a source next to its blocks")
	number(&s.BaseBytes, "base-bytes", "memory of a replica without sources")
	number(&s.Garbage, "garbage", "resident memory to the account")
	number(&s.StoredMicros, "stored-cpu", "microseconds of a core to store one block and remove one")
	number(&s.QueryMicros, "query-cpu", "microseconds of a core for a query")
	number(&s.WireBytes, "wire-bytes", "bytes on the wire to store one block and remove one")
	number(&s.SnapshotBytes, "snapshot-bytes", "bytes of a block that moves in a snapshot")
	number(&s.Memory, "replica-memory", "GiB of memory of a replica")
	number(&s.Cores, "replica-cores", "cores of a replica")
	count(&s.HotModel, "hot-model", "number of the model that becomes hot; model 0 has the most workers")
	number(&s.HotQueries, "hot-queries", "queries a second that it gets in addition")
	cmd.Flags().AddFlagSet(f)
}

// check returns an error of usage if a flag of the other mode is set.
func (s *shardFlags) check(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		both := f.Name == "json" || f.Name == "seed" || f.Name == "quiet"
		if mine := s.own.Lookup(f.Name) != nil; err != nil || both || mine == s.on {
			return
		} else if mine {
			err = cli.Usagef("--%s needs --shards", f.Name)
		} else {
			err = cli.Usagef("--%s has no meaning with --shards", f.Name)
		}
	})
	return err
}

func (s *shardFlags) run(cmd *cobra.Command, seed uint64, asJSON bool) error {
	s.Seed = seed
	report, err := shards.Run(s.Config)
	if err != nil {
		return cli.Usagef("--%w", err)
	}
	if err := harness.Print(cmd.OutOrStdout(), report, asJSON); err != nil {
		return fmt.Errorf("cannot print the report: %w", err)
	}
	return report.Err()
}
