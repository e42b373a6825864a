package main

import (
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/lab/bench/cluster"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

func benchClusterCommand() *cobra.Command {
	var (
		c       cluster.Config
		program serverFlag
	)
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Measure what replicas share over a store",
		Long: `Starts a Valkey or Redis, unless one is named, and measures what replicas share over it.

Part forward: three servers share models, one owner each. One client asks for each model at its
owner and at another server, in turns. Then several clients ask one, two and three servers
at random.

Part takeover: three servers, and one shard of many blocks. An owner is killed, and the others are
asked until all answers are right again.

Part reseed: two servers that follow all sources, and a store that is emptied under them. It is
one of the bench's own, whatever --store says.`,
		Example: "  conductor-lab bench cluster\n" +
			"  conductor-lab bench cluster --json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.Parts, "part", cluster.Parts, "what to measure: "+strings.Join(cluster.Parts, ", "))
	f.StringVar(&c.Store, "store", "", "`URL` of a store; empty starts one")
	f.IntVar(&c.Load.Sources, "sources", 16, "engines")
	f.IntVar(&c.Load.Blocks, "blocks", 64, "blocks of each stored event")
	f.IntVar(&c.Load.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Load.Hold, "hold", 4096, "blocks that an engine holds")
	f.IntVar(&c.Models, "models", 6, "models of part forward")
	f.IntVar(&c.Tokens, "tokens", 2048, "tokens of a prompt of part forward")
	f.IntVar(&c.Clients, "clients", 8, "clients at once of part forward")
	f.IntVar(&c.ShardBlocks, "shard-blocks", 1_000_000, "blocks that engines share in parts takeover and reseed")
	f.IntSliceVar(&c.Owners, "owners", []int{1, 2}, "owners of the shard of part takeover, a run each")
	f.IntVar(&c.Registrations, "registrations", 1000, "registrations without an engine in part reseed")
	f.DurationVar(&c.Duration, "duration", 2*time.Second, "time of each phase")
	program.add(cmd)
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		conductor, err := program.find()
		if err != nil {
			return nil, err
		}
		c.Fleet = func(l ingest.Load) *exec.Cmd { return child("fleet", l) }
		c.Serve = func(flags ...string) *exec.Cmd { return conductor(append([]string{"serve"}, flags...)...) }
		return cluster.Run(c)
	})
	return cmd
}
