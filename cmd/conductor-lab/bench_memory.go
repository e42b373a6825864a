package main

import (
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/lab/bench/footprint"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

func benchMemoryCommand() *cobra.Command {
	var (
		c       footprint.Config
		cgroup  string
		program serverFlag
	)
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Compare a server's resident memory with its account of it",
		Long: `Starts "serve" with its default settings in a second process and publishers in a
third. They fill its index over real sockets, then store and remove at full speed,
then stop. Meanwhile resident memory is compared with conductor_memory_bytes. The
table shows each phase at the moment that was nearest to the target, and at its end.`,
		Example: "  conductor-lab bench memory\n" +
			"  conductor-lab bench memory --json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Blocks, "blocks", 1_000_000, "unique blocks that are held")
	f.IntVar(&c.Holders, "holders", 4, "sources that hold each block")
	f.IntVar(&c.Sources, "sources", 64, "publishers, each with a connection of its own")
	f.IntVar(&c.EventBlocks, "event-blocks", 64, "blocks one event stores")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Ahead, "ahead", 0,
		"batches that a source may be ahead of the slowest, 0 for a sixteenth of what it holds; many are a flood")
	f.DurationVar(&c.Churn, "churn", 20*time.Second, "how long blocks are stored and removed")
	f.DurationVar(&c.Idle, "idle", 20*time.Second, "how long nothing comes")
	f.StringVar(&cgroup, "cgroup", "", "directory of a memory control group to start the server in, as one with a limit")
	program.add(cmd)
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		conductor, err := program.find()
		if err != nil {
			return nil, err
		}
		c.Server = func() *exec.Cmd {
			serve := conductor("serve", "--listen", "127.0.0.1:0=conductor", "--shutdown-drain", "0s")
			if cgroup == "" {
				return serve
			}
			// The server finds the limit at its start, so it has to be there before.
			return exec.Command("sh", append([]string{"-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, cgroup}, serve.Args...)...)
		}
		c.Publisher = func(hold int) *exec.Cmd {
			return child("publisher", ingest.Load{Sources: c.Sources, Blocks: c.EventBlocks, BlockSize: c.BlockSize, Hold: hold,
				Holders: c.Holders})
		}
		return footprint.Run(c)
	})
	return cmd
}
