package main

import (
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/cmd/internal/bench/forward"
	"kvconductor/cmd/internal/harness"
)

func benchForwardCommand() *cobra.Command {
	var c forward.Config
	cmd := &cobra.Command{
		Use:   "forward",
		Short: "Measure queries that arrive at a replica which does not serve them",
		Long: `Starts a Valkey or Redis and three replicas that share the models, one owner each. One client
asks for each model at its owner and at another replica, in turns. Then several clients ask
the first, the first two and all replicas by chance.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Models, "models", 6, "models, at most ten")
	f.IntVar(&c.Tokens, "tokens", 2048, "tokens of a prompt")
	f.IntVar(&c.Clients, "clients", 8, "clients at once, for rates")
	f.DurationVar(&c.Duration, "duration", 2*time.Second, "time of each phase")
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		c.Serve = func(flags ...string) *exec.Cmd { return self(append([]string{"serve"}, flags...)...) }
		return forward.Run(c)
	})
	return cmd
}
