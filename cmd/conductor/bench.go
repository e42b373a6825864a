package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/cmd/internal/bench"
)

// benchCommand measures the product on this machine.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the product on this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchIndexCommand(), benchIngestCommand(), benchQueryCommand(), benchSoakCommand(), publisherCommand(), serverCommand())
	return cmd
}

func benchIndexCommand() *cobra.Command {
	var (
		c      bench.Config
		asJSON bool
		quiet  bool
		plots  string
		sweep  []int
		sizes  []int
	)
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Replay a load into the index and into three simpler structures",
		Long: `Replays what a fleet of prefix caches asks and announces into the index and into
three baselines, in this process and one after the other: a sharded Go map, a
radix tree, and a positional jump index. The load is a recorded trace in the
format of Mooncake's FAST'25 traces that runs through LRU caches first, outside
of the timing, or made up of families of blocks.

A block operation is one block of a query, of a store or of a removal. With
several structures all of them have to give the same answers.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&c.Trace, "trace", "", "trace `file` to replay")
	f.IntVar(&c.Synthetic, "synthetic", 0, "instead of a trace: unique blocks, in families of 128")
	f.IntVar(&c.Holders, "holders", 1, "with --synthetic: workers that hold each block")
	f.IntVar(&c.Workers, "workers", 128, "workers")
	f.IntVar(&c.Copies, "copies", 1, "copies of the trace, each with prompts of its own")
	f.IntVar(&c.BlockSize, "block-size", 128, "tokens per block")
	f.IntVar(&c.Capacity, "capacity", 16384, "blocks a worker holds on each tier")
	f.IntVar(&c.Tiers, "tiers", 1, "1 is the device; 3 adds host and disk, which take what is evicted above")
	f.IntVar(&c.Choices, "choices", 2, "workers the router looks at for a request, at random; it takes the one that holds most")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of the router's choices")
	f.StringVar(&c.Events, "events", bench.Canonical, "what the index gets: canonical hashes, engine hashes, or wire payloads")
	f.IntVar(&c.HashSeeds, "hash-seeds", 1, "with engine and wire events: groups of workers that hash alike")
	f.IntVar(&c.EventBlock, "event-blocks", 64, "with wire events: most blocks of one event")
	f.StringSliceVar(&c.Structures, "structure", bench.Structures, "structures to measure")
	f.IntVar(&c.Writers, "writers", 1, "goroutines that write")
	f.IntVar(&c.Readers, "readers", 1, "goroutines that query")
	f.DurationVar(&c.Duration, "duration", 0, "repeat the replay for so long, and let readers alone run for so long; 0 is one replay, and a second")
	f.IntSliceVar(&c.Scale, "scale", nil, "numbers of writers and readers to measure a curve over, as in 1,2,4,8,16")
	f.BoolVar(&c.Together, "together", false, "measure writers and readers side by side too; so do --writers and --readers")
	f.DurationVar(&c.Idle, "idle", 2*time.Second, "how long to watch the collector of the idle process")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of a table")
	f.BoolVar(&quiet, "quiet", false, "show no progress")
	f.StringVar(&plots, "plots", "", "write SVG plots to this `directory`, from runs of their own")
	f.IntSliceVar(&sweep, "plot-workers", []int{16, 64, 256, 1000}, "with --plots: numbers of workers, needs a trace")
	f.IntSliceVar(&sizes, "plot-blocks", []int{10_000, 100_000, 1_000_000}, "with --plots: numbers of synthetic blocks")

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Together = c.Together || f.Changed("writers") || f.Changed("readers")
		if !quiet {
			c.Progress = func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
		}
		report, err := bench.Run(c)
		if err != nil {
			return err
		}
		show := report.Table
		if asJSON {
			show = report.JSON
		}
		if err := show(cmd.OutOrStdout()); err != nil {
			return fmt.Errorf("cannot print the report: %w", err)
		}
		if plots == "" {
			return nil
		}
		drawn, err := bench.Plots(c, report, sweep, sizes)
		if err != nil {
			return err
		}
		return writePlots(plots, drawn)
	}
	return cmd
}

// writePlots writes one file for each drawing.
func writePlots(dir string, drawn []bench.Plot) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot write plots: %w", err)
	}
	for i := range drawn {
		var text strings.Builder
		if err := drawn[i].SVG(&text); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, drawn[i].Name+".svg"), []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("cannot write plots: %w", err)
		}
	}
	return nil
}

func benchSoakCommand() *cobra.Command {
	var (
		c     bench.Soak
		quiet bool
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Compare the index with an oracle for a long time",
		Long: `Random stores, removals, clears and queries run against the index, writers and
readers side by side. Between rounds every answer is compared with an oracle of
plain sets. At the end the index checks itself, everything is cleared, and the
memory in use has to be back where it was.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", 10*time.Minute, "how long")
	f.Uint64Var(&c.Seed, "seed", 0, "seed of everything random, 0 for a new one")
	f.IntVar(&c.Workers, "workers", 48, "workers, each with two owners")
	f.IntVar(&c.Writers, "writers", 2, "goroutines that write")
	f.IntVar(&c.Readers, "readers", 2, "goroutines that query beside them")
	f.IntVar(&c.Prompts, "prompts", 3000, "prompts to choose from")
	f.Int64Var(&c.Margin, "margin", 16<<20, "bytes in use the end may have more than the start")
	f.BoolVar(&quiet, "quiet", false, "show no progress")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Progress = io.Discard
		if !quiet {
			c.Progress = cmd.ErrOrStderr()
		}
		result, err := c.Run()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), result)
		return err
	}
	return cmd
}
