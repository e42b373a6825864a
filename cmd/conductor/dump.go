package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

func dumpCommand() *cobra.Command {
	var asks cli.ClientFlags
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the blocks that Dynamo's indexers can read from a running server, one event a line",
		Long: `Prints the blocks as the events that lead to them, in the form of Dynamo's /dump with one
JSON object a line. Blocks of instances whose names are no numbers are left out, as are those of
pools: see GET /admin/digest for what each source holds. It holds the hashes of prompts.`,
		Example: "  conductor dump >blocks.ndjson",
		Args:    cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cli.JSONFlag(cmd, "print JSON, one object a line, as without it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		base, err := asks.Base()
		if err != nil {
			return err
		}
		server, err := asks.ClientOf(base, 0)
		if err != nil {
			return err
		}
		events, err := server.Stream(ctx, "/dynamo/v1/dump", "application/x-ndjson")
		if err != nil {
			return err
		}
		defer events.Close()
		if _, err := io.Copy(cmd.OutOrStdout(), events); err != nil {
			return fmt.Errorf("the dump is cut off: %w", err)
		}
		return nil
	}
	return cmd
}
