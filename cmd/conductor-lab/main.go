// Command conductor-lab simulates, measures and compares: fleets of engines without models against a
// server, whose answers are compared with the truth, and benches of the parts of the product.
//
// Every command is one file here and a thin one: it reads its flags, runs what it needs
// from the rooms under lab/, and prints. The server that most commands ask or start is the
// program conductor.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// Set by the linker; see the Makefile.
var (
	version = "dev"
	commit  string
)

func main() {
	os.Exit(cli.Execute(rootCommand(), os.Stderr))
}

func rootCommand() *cobra.Command {
	const about = "Simulate fleets of inference engines, and measure Conductor"
	root := &cobra.Command{
		Use:   "conductor-lab",
		Short: about,
		Long: about + `.

Exit status: 0 if all is well, 1 after an error or if an answer was wrong, 2 if the command line cannot be understood.

Environment: CONDUCTOR_SERVER is the server that simulate asks, CONDUCTOR_TOKEN_FILE the file of the token that it
sends, CONDUCTOR_WAIT how long it waits for a server that does not listen yet (10s; 0s is not at all). Commands that
print for people print JSON with --json.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(demoCommand(), simulateCommand(), benchCommand())
	cli.AddVersion(root, cli.Build{Version: version, Commit: commit})
	return root
}
