package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/cmd/internal/footprint"
)

func benchMemoryCommand() *cobra.Command {
	var (
		c      footprint.Config
		cgroup string
		asJSON bool
		quiet  bool
	)
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Compare a server's resident memory with its account of it",
		Long: `Starts "serve" with its default settings in a second process and publishers in a
third. They fill its index over real sockets, then store and remove at full speed,
then stop. Meanwhile resident memory is compared with conductor_memory_bytes. The
table shows each phase at the moment that was nearest to the target, and at its end.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Blocks, "blocks", 1_000_000, "unique blocks that are held")
	f.IntVar(&c.Holders, "holders", 4, "sources that hold each block")
	f.IntVar(&c.Sources, "sources", 64, "publishers, each with a connection of its own")
	f.IntVar(&c.EventBlocks, "event-blocks", 64, "blocks one event stores")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Ahead, "ahead", 0, "batches that a source may be ahead of the slowest, 0 for a sixteenth of what it holds; many are a flood")
	f.DurationVar(&c.Churn, "churn", 20*time.Second, "how long blocks are stored and removed")
	f.DurationVar(&c.Idle, "idle", 20*time.Second, "how long nothing comes")
	f.StringVar(&cgroup, "cgroup", "", "directory of a memory control group to start the server in, as one with a limit")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of a table")
	f.BoolVar(&quiet, "quiet", false, "show no progress")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("cannot start another process: %w", err)
		}
		c.Server = func() *exec.Cmd {
			serve := []string{self, "serve", "--listen", "127.0.0.1:0=conductor"}
			if cgroup != "" { // it finds the limit at its start, so it has to be there before
				serve = append([]string{"sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, cgroup}, serve...)
			}
			return exec.Command(serve[0], serve[1:]...)
		}
		c.Publisher = func(hold int) *exec.Cmd {
			return exec.Command(self, "bench", "publisher", "--sources", strconv.Itoa(c.Sources), "--blocks", strconv.Itoa(c.EventBlocks),
				"--block-size", strconv.Itoa(c.BlockSize), "--hold", strconv.Itoa(hold), "--holders", strconv.Itoa(c.Holders))
		}
		if !quiet {
			c.Progress = func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
		}
		report, err := footprint.Run(c)
		if err != nil {
			return err
		}
		if asJSON {
			return report.JSON(cmd.OutOrStdout())
		}
		return report.Table(cmd.OutOrStdout())
	}
	return cmd
}
