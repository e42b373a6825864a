package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

func benchIngestCommand() *cobra.Command {
	var (
		c       ingest.Config
		profile string
	)
	cmd := &cobra.Command{
		Use:   "ingest",
		Short: "Publish events from another process and apply them",
		Long: `Starts a second process that publishes vLLM maps over real sockets, and follows
it with a Conductor in this one. Without --rate the highest rate at which
nothing is lost is found first, then the lag is taken at half of it. With
--rate, batches a second of each source, only the lag is taken.`,
		Example: "  conductor-lab bench ingest\n" +
			"  conductor-lab bench ingest --json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Sources, "sources", 1, "publishers, each with a connection of its own")
	f.IntVar(&c.Blocks, "blocks", 32, "blocks one batch stores, and removes")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Hold, "hold", 65_536, "blocks a source holds")
	f.IntVar(&c.Holders, "holders", 1, "sources that publish the same blocks")
	f.BoolVar(&c.Clear, "clear", false, "clear all blocks when there are as many, instead of removing the oldest")
	f.Float64Var(&c.Rate, "rate", 0, "batches a second of each source, 0 for the highest")
	f.DurationVar(&c.Duration, "duration", 10*time.Second, "of each phase")
	f.IntVar(&c.Procs, "procs", 1, "processors of this process, 0 for all; the publishing process has one")
	f.StringVar(&profile, "profile", "", "write a CPU profile of the first phase to this `file`")
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		c.Publisher = func() *exec.Cmd {
			p := child("publisher", c.Load)
			p.Env = append(os.Environ(), "GOMAXPROCS=1")
			return p
		}
		if profile != "" {
			file, err := os.Create(profile)
			if err != nil {
				return nil, fmt.Errorf("cannot write a profile: %w", err)
			}
			defer file.Close()
			c.Profile = file
		}
		return ingest.Run(c)
	})
	return cmd
}

// publisherCommand is the publishing process of bench ingest and bench memory.
func publisherCommand() *cobra.Command {
	var l ingest.Load
	return childCommand("publisher", &l, func(cmd *cobra.Command) error {
		return ingest.Publish(l, cmd.InOrStdin(), cmd.OutOrStdout())
	})
}
