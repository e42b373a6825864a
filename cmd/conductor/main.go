// Command conductor is the KV-cache indexer: it follows the cache events of a
// fleet of inference engines and answers a router which instance holds how long
// a prefix of a prompt.
//
// Every command is one file here and a thin one: it reads its flags, builds what
// it needs from the other rooms, and prints.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// Set by the linker; see the Makefile. commit and date are those of the source, "" if the build did not stamp them.
var (
	version      = "dev"
	commit, date string
)

func main() {
	if calledAsIndexer(os.Args[0]) {
		os.Exit(indexerMain(os.Stderr))
	}
	os.Exit(cli.Execute(rootCommand(), os.Stderr))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "conductor",
		Short:         "A KV-cache indexer for fleets of inference engines",
		Long:          "A KV-cache indexer for fleets of inference engines." + cli.ExitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		serveCommand(),
		queryCommand(),
		explainCommand(),
		registerCommand(), unregisterCommand(),
		servicesCommand(), clusterCommand(),
		topCommand(),
		doctorCommand(),
		dumpCommand(),
		diffCommand(),
		replayCommand(),
		relayCommand(),
		configCommand(),
		tokenCommand(),
		healthCommand(),
	)
	cli.AddVersion(root, cli.Build{Version: version, Commit: commit, Date: date})
	return root
}
