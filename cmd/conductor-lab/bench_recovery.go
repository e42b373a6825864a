package main

import (
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/bench/recovery"
	"example.com/conductor/lab/harness"
)

func benchRecoveryCommand() *cobra.Command {
	var (
		c       recovery.Config
		program serverFlag
	)
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure snapshots, restarts and bootstraps of servers",
		Long: `Starts "serve" in a second process and engines in a third, which fill its index over
real sockets. Then the server writes snapshots, is killed and started again, and fills
further servers from its own, while the engines go on. At the end the digests of two
servers are compared.

With --busy it measures a large fleet instead: what the server takes while none and while
some of the engines publish, a scrape of its metrics, and how long a killed one takes
until it is ready. The server needs a file descriptor or two for each engine, each process
of 2,000 engines 8,000 ("ulimit -n").`,
		Example: "  conductor-lab bench recovery\n" +
			"  conductor-lab bench recovery --instances 10000 --busy 1000 --blocks 640000 --rounds 3",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Blocks, "blocks", 1_000_000, "unique blocks that are held")
	f.IntVar(&c.Instances, "instances", 128, "engines")
	f.IntVar(&c.Holders, "holders", 2, "engines that hold each block")
	f.IntVar(&c.EventBlocks, "event-blocks", 128, "blocks one event stores")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.DurationVar(&c.Interval, "interval", 2*time.Second, "pause between snapshots")
	f.Float64Var(&c.Rate, "rate", 500, "batches/s of all engines while servers are killed and started; each stores and removes")
	f.IntVar(&c.Busy, "busy", 0, "engines that publish at --rate while the server of a large fleet is watched")
	f.DurationVar(&c.Watch, "watch", 20*time.Second, "with --busy: how long the server is watched at a time")
	f.IntVar(&c.Rounds, "rounds", 5, "rounds of each figure")
	program.add(cmd)
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		conductor, err := program.find()
		if err != nil {
			return nil, err
		}
		c.Server = func(file string) *exec.Cmd { return conductor("serve", "--config", file) }
		c.Fleet = func(l ingest.Load) *exec.Cmd { return child("fleet", l) }
		return recovery.Run(c)
	})
	return cmd
}

// fleetCommand is the engines' process of bench recovery.
func fleetCommand() *cobra.Command {
	var load ingest.Load
	return childCommand("fleet", &load, func(cmd *cobra.Command) error {
		return recovery.RunFleet(load, cmd.InOrStdin(), cmd.OutOrStdout())
	})
}
