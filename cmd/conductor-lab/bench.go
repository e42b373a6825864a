package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/lab/bench/index"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/soak"
)

// benchCommand measures the product on this machine.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the product on this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchIndexCommand(), benchPeersCommand(), benchIngestCommand(), benchQueryCommand(), benchMemoryCommand(),
		benchRecoveryCommand(), benchClusterCommand(), benchSoakCommand(), publisherCommand(), playerCommand(), comparedCommand(),
		churnCommand(), fleetCommand())
	return cmd
}

func benchIndexCommand() *cobra.Command {
	var (
		c      index.Config
		report *index.Report
		export string
		plots  string
		sweep  []int
		sizes  []int
	)
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Replay a load into the index",
		Long: `Replays what a fleet of prefix caches asks and announces into the index, in this
process: a recorded trace in the format of Mooncake's FAST'25 traces, a built-in shape
of one, families of blocks, smg's pinned benchmark, an ops file, or a stream recorded from
engines' own cache managers. Prompts of a trace run through LRU caches first, outside of
the timing.

A block operation is one block of a query, of a store or of a removal. Rates are by CPU
time, latencies by the wall clock. By default events are those of engines: each block
comes with the engine's hash and its local hash, and queries start from local hashes as
those of the server do.`,
		Example: "  conductor-lab bench index\n" +
			"  conductor-lab bench index --json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&c.Trace, "trace", "", "trace `file` to replay instead of the built-in shape")
	f.IntVar(&c.Requests, "requests", 12000, "prompts of the built-in shape, that of Mooncake's conversation trace")
	f.IntVar(&c.Workers, "workers", 128, "workers")
	f.IntVar(&c.Copies, "copies", 1, "copies of the trace, each with prompts of its own")
	f.IntVar(&c.BlockSize, "block-size", 128, "tokens per block")
	f.IntVar(&c.Capacity, "capacity", 16384, "blocks that a worker holds on each tier")
	f.IntVar(&c.Choices, "choices", 2, "workers the router looks at for a request, at random; it takes the one that holds most")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of the router's choices")
	f.IntVar(&c.Synthetic, "synthetic", 0, "instead of a trace: unique blocks, in families of 128")
	f.IntVar(&c.Holders, "holders", 1, "with --synthetic: workers that hold each block")
	f.IntVar(&c.Churn, "churn", 0, "with --synthetic: blocks that then replace the oldest ones; latencies of writes are theirs")
	f.StringVar(&c.SMG, "smg", "", "instead of a trace: a profile of smg's pinned benchmark, one of "+
		strings.Join(index.SMGProfiles(), ", "))
	f.IntVar(&c.Target, "target", 10_000_000, "with --smg: shared blocks times holders")
	f.StringVar(&c.Ops, "ops", "", "instead of a trace: ops `file` of an earlier --export")
	f.StringVar(&c.Stream, "stream", "", "instead of a trace: recorded stream, a `file` in the format of lab/bench/streams")
	f.BoolVar(&c.Apart, "apart", false,
		"with --stream: replay each event by itself, as the engine made it, instead of joining those of a batch as the server does")
	f.StringVar(&export, "export", "", "write the operations to this ops `file` and replay nothing")
	f.IntVar(&c.Tiers, "tiers", 1, "1 is the device; 3 adds host and disk, which take blocks evicted above")
	f.IntVar(&c.Pools, "pools", 0, "pools that take evicted blocks, announced by their hashes alone")
	f.BoolVar(&c.HashOnly, "hash-only", false, "with --tiers 3: announce blocks of host and disk by their hashes alone")
	f.StringVar(&c.Events, "events", index.Engine, "events of the index: engine hashes, canonical hashes, or wire payloads")
	f.IntVar(&c.HashSeeds, "hash-seeds", 1, "families of engine hashes: groups of workers that hash alike")
	f.IntVar(&c.EventBlock, "event-blocks", 0, "most blocks of one event, 0 for no limit (64 with wire events)")
	f.StringVar(&c.Case, "case", "", "hard case of one-block events: "+strings.Join(index.Cases, ", "))
	f.IntVar(&c.Repeat, "repeat", 0, "percent of stores that come twice, as counted copies")
	f.IntVar(&c.Writers, "writers", 1, "goroutines that write")
	f.IntVar(&c.Readers, "readers", 1, "goroutines that query")
	f.DurationVar(&c.Duration, "duration", 0, "how long readers alone run, 0 for a second")
	f.IntSliceVar(&c.Scale, "scale", nil,
		"numbers of cores to keep this process on, as in 1,2,4,8,16: half as many writers and half as many readers each, at least one, "+
			"for --duration")
	f.StringVar(&c.Rival, "rival", "", "with --scale: program of lab/bench/peers/dynamo, which gets as many threads on the same cores")
	f.BoolVar(&c.Together, "together", false, "measure writers and readers side by side too; so do --writers and --readers")
	f.DurationVar(&c.Idle, "idle", 2*time.Second, "how long to watch the collector of the idle process")
	f.BoolVar(&c.Verify, "verify", false, "compare each answer with an oracle's, in a replay of its own")
	f.StringVar(&c.Answers, "answers", "", "with --verify: write a hash of each answer to this `file`")
	f.StringVar(&plots, "plots", "", "write plots as CSV files to this `directory`, from runs of their own")
	f.IntSliceVar(&sweep, "plot-workers", []int{16, 64, 256, 1000}, "with --plots: numbers of workers, of a trace")
	f.IntSliceVar(&sizes, "plot-blocks", []int{10_000, 100_000, 1_000_000}, "with --plots: numbers of synthetic blocks")

	measures(cmd, &c.Progress, func() (_ harness.Report, err error) {
		c.Together = c.Together || f.Changed("writers") || f.Changed("readers")
		report, err = index.Run(c)
		return report, err
	})
	measure := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if export != "" {
			return asUsage(index.ExportOps(c, export))
		}
		if err := measure(cmd, args); err != nil || plots == "" {
			return err
		}
		curves, err := index.Plots(c, report, sweep, sizes)
		if err != nil {
			return err
		}
		return writePlots(plots, curves)
	}
	return cmd
}

func benchPeersCommand() *cobra.Command {
	var (
		p index.Peers
		c index.Config
	)
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Replay the same operations into the index and into Dynamo's CRTC",
		Long: `Replays ops files into the index and into the compressed concurrent radix tree of
Dynamo's crate ("make bench-peers" builds it), each in a process of its own, in turns
and on one core where the system has taskset. Prints one table with medians, ratios and
targets. smg's published figures stand next to ours; their hardware is not known.`,
		Example: "  conductor-lab bench peers",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&c.Trace, "trace", "", "trace `file` instead of the built-in shape")
	f.IntVar(&c.Requests, "requests", 12000, "prompts of the built-in shape")
	f.StringVar(&p.Streams, "streams", "lab/bench/streams", "`directory` of the recorded streams")
	f.StringVar(&p.Rival, "rival", "", "program of lab/bench/peers/dynamo; without it the table has our figures alone")
	f.StringVar(&p.Dir, "dir", "", "`directory` of ops files, some GB, which stay; empty is a temporary one")
	f.IntVar(&p.Rounds, "rounds", 3, "runs of each load, in turns")
	f.IntVar(&p.Shrink, "shrink", 1, "divide the sizes of loads by this, for a try")
	f.IntVar(&p.Target, "smg-target", 10_000_000, "blocks times holders of smg's loads; 100000000 needs some 20 GB")
	f.StringVar(&p.Only, "rows", "", "regular expression of the loads to run")
	f.BoolVar(&p.Verify, "verify", true, "compare answers with the oracle's")
	quiet := f.Bool("quiet", false, "show no progress")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		p.Self = func(args ...string) *exec.Cmd {
			return self(append([]string{"bench", "index"}, args...)...)
		}
		p.Load = []string{"--requests", strconv.Itoa(c.Requests)}
		if c.Trace != "" {
			p.Load = []string{"--trace", c.Trace}
		}
		p.Progress = progressOf(cmd, *quiet)
		if p.Dir == "" {
			if p.Dir, err = os.MkdirTemp("", "conductor-peers-"); err != nil {
				return fmt.Errorf("cannot keep ops files: %w", err)
			}
			defer os.RemoveAll(p.Dir)
		}
		return asUsage(p.Run(cmd.OutOrStdout()))
	}
	return cmd
}

// measures completes a command that measures: it adds the flags --json and --quiet, sets
// progress, and prints the report.
func measures(cmd *cobra.Command, progress *harness.Progress, run func() (harness.Report, error)) {
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object instead of a table")
	quiet := cmd.Flags().Bool("quiet", false, "show no progress")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		*progress = progressOf(cmd, *quiet)
		report, err := run()
		if err != nil {
			return asUsage(err)
		}
		return harness.Print(cmd.OutOrStdout(), report, *asJSON)
	}
}

// asUsage makes a mistake of the command line of what a bench calls a mistake.
func asUsage(err error) error {
	if harness.IsMistake(err) {
		return cli.Usagef("%w", err)
	}
	return err
}

// progressOf returns a Progress that writes lines on standard error, nil if quiet.
func progressOf(cmd *cobra.Command, quiet bool) harness.Progress {
	if quiet {
		return nil
	}
	return func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
}

// self returns a command of this program.
func self(args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return exec.Command(program, args...) // #nosec G702 -- this program itself
}

// child returns a command of this program that runs a childCommand with a load.
func child(use string, load any) *exec.Cmd {
	text, err := json.Marshal(load)
	if err != nil {
		panic("BUG: a checked load has no JSON form: " + err.Error())
	}
	return self("bench", use, string(text))
}

// childCommand is the hidden command of a bench's other process. It reads its argument, in
// JSON, into load before it runs.
func childCommand(use string, load any, run func(*cobra.Command) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " LOAD", Short: "A process of a bench", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := json.Unmarshal([]byte(args[0]), load); err != nil {
				return fmt.Errorf("cannot read the load: %w", err)
			}
			return run(cmd)
		},
	}
}

// writePlots writes one file for each plot.
func writePlots(dir string, plots []index.Plot) error {
	err := os.MkdirAll(dir, 0o755) // #nosec G301 -- figures for everybody to read
	for i := range plots {
		// #nosec G306 -- figures for everybody to read
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, plots[i].Name+".csv"), plots[i].CSV(), 0o644))
	}
	if err != nil {
		return fmt.Errorf("cannot write plots: %w", err)
	}
	return nil
}

func benchSoakCommand() *cobra.Command {
	var (
		c     soak.Soak
		quiet bool
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Check answers for a long time while a fleet publishes",
		Long: `Engines and pools publish real batches to a Conductor in this process: stores with and
without tokens on three tiers, copies, orphans, removals in any order, objects of two
backends, clears, and sources that leave and register again. Readers ask meanwhile. Each
number of an answer has to lie between the least and the most that was true while it was
made. Between rounds nothing changes, and answers have to be exact. At the end all sources
leave, and the memory in use has to be back where it was.`,
		Example: "  conductor-lab bench soak",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", 10*time.Minute, "how long; 0 plays --rounds alone")
	f.IntVar(&c.Rounds, "rounds", 1, "rounds at least")
	f.Uint64Var(&c.Seed, "seed", 0, "seed of all histories, 0 for a new one")
	f.IntVar(&c.Readers, "readers", 2, "goroutines that query while the sources publish")
	f.IntVar(&c.Prompts, "prompts", 200, "prompts to choose from")
	f.Int64Var(&c.Margin, "margin", 16<<20, "bytes in use the end may have more than the start")
	f.BoolVar(&quiet, "quiet", false, "show no progress")
	asJSON := cli.JSONFlag(cmd, "print one JSON object instead of a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Progress = io.Discard
		if !quiet {
			c.Progress = cmd.ErrOrStderr()
		}
		result, err := c.Run()
		if err != nil {
			return err
		}
		if *asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), result)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), result)
		return err
	}
	return cmd
}
