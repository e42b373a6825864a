package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

func benchIngestCommand() *cobra.Command {
	var (
		c        ingest.Config
		recorded ingest.Compared
		program  serverFlag
		dynamo   string
		profile  string
	)
	cmd := &cobra.Command{
		Use:   "ingest",
		Short: "Publish events from another process and apply them",
		Long: `Starts a second process that publishes vLLM maps over real sockets, and follows
it with a Conductor in this one. Without --rate the highest rate at which
nothing is lost is found first, then the lag is taken at half of it. With
--rate, batches a second of each source, only the lag is taken.

With --stream the events are those of a recorded stream, as vLLM's cache managers
made them. Publishers in processes of their own send them to "conductor serve", and with
--dynamo to Dynamo's indexer in turns, each in its own process and on processors of
its own. --rate is then that of all publishers, 0 for as fast as a server reads.`,
		Example: "  conductor-lab bench ingest\n" +
			"  conductor-lab bench ingest --json\n" +
			"  conductor-lab bench ingest --stream recording --publishers 64 --rate 1500",
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
	f.StringVar(&recorded.Stream, "stream", "", "publish this recorded stream, a `file`")
	f.IntVar(&recorded.Publishers, "publishers", 8,
		"with --stream: publishers; more than the recording has engines send them again, with other prompts")
	f.IntVar(&recorded.Processes, "processes", 1, "with --stream: processes of the publishers")
	f.IntVar(&recorded.Batches, "batches", 0, "with --stream: batches of the recording to send, 0 for all")
	f.IntVar(&recorded.Cores, "cores", 1, "with --stream: processors of a server; the publishers have the others")
	f.IntVar(&recorded.Rounds, "rounds", 3, "with --stream: rounds of all servers, in turns")
	f.StringVar(&dynamo, "dynamo", "",
		"with --stream: `command` of Dynamo's indexer to compare with, which \"make dynamo-indexer\" installs: 'bin/dynamo/bin/python -m "+
			"dynamo.indexer'")
	program.add(cmd)
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		if recorded.Stream != "" {
			recorded.Rate, recorded.Progress = c.Rate, c.Progress
			return runRecorded(&recorded, &program, dynamo, profile)
		}
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

// runRecorded compares servers on a recorded stream.
func runRecorded(c *ingest.Compared, program *serverFlag, dynamo, profile string) (harness.Report, error) {
	conductor, err := program.find()
	if err != nil {
		return nil, err
	}
	c.Servers = []ingest.Contender{{Name: "conductor", Command: func(port, profiles string) []string {
		return conductor("serve", "--listen", "127.0.0.1:"+port+"=dynamo", "--listen", "127.0.0.1:"+profiles+"=conductor", "--log-level",
			"warn").Args
	}}}
	if words := strings.Fields(dynamo); len(words) > 0 {
		if _, err := exec.LookPath(words[0]); err != nil {
			return nil, fmt.Errorf("--dynamo names no program: %w", err)
		}
		c.Servers = append(c.Servers, ingest.Contender{Name: "dynamo.indexer", Command: func(port, _ string) []string {
			return append(slices.Clone(words), "--port", port, "--threads", "4")
		}})
	}
	c.Play = func(load ingest.Recorded) *exec.Cmd {
		p := child("player", load)
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
	return c.Run()
}

// playerCommand is a process of publishers of bench ingest --stream.
func playerCommand() *cobra.Command { return publishingCommand("player", ingest.RunPlayer) }

// publisherCommand is the publishing process of bench ingest and bench memory.
func publisherCommand() *cobra.Command { return publishingCommand("publisher", ingest.RunPublisher) }

// publishingCommand is a process that publishes the load it is given, as its parent says over its input and output.
func publishingCommand[Load any](use string, publish func(Load, io.Reader, io.Writer) error) *cobra.Command {
	var load Load
	return childCommand(use, &load, func(cmd *cobra.Command) error {
		return publish(load, cmd.InOrStdin(), cmd.OutOrStdout())
	})
}
