// Command conductor is the KV-cache indexer: it follows the cache events of a
// fleet of inference engines and answers a router which instance holds how long
// a prefix of a prompt.
//
// Every command is one file here and a thin one: it reads its flags, builds what
// it needs from the other rooms, and prints.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "dev"

// errReported ends a command whose errors are on standard error already.
var errReported = errors.New("reported")

func main() {
	if calledAsIndexer(os.Args[0]) {
		os.Exit(indexerMain(os.Stderr))
	}
	os.Exit(execute(rootCommand(), os.Stderr))
}

// untilSignal returns the context of a command, which SIGINT and SIGTERM end until stop
// is called.
func untilSignal(cmd *cobra.Command) (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "conductor",
		Short:         "A KV-cache indexer for fleets of inference engines",
		Long:          "A KV-cache indexer for fleets of inference engines." + exitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		serveCommand(),
		queryCommand(),
		explainCommand(),
		servicesCommand(), clusterCommand(),
		topCommand(),
		doctorCommand(),
		dumpCommand(),
		diffCommand(),
		replayCommand(),
		relayCommand(),
		simulateCommand(),
		demoCommand(),
		benchCommand(),
		configCommand(),
		tokenCommand(),
		healthCommand(),
		versionCommand(),
	)
	return root
}
