package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// healthCommand is for orchestrators whose containers have no curl.
func healthCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON *bool
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a server whether it is alive; the exit status says so",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := asks.Client()
			if err != nil {
				return err
			}
			path := "/conductor/v1/health"
			if ready {
				path = "/ready"
			}
			var answer any
			if err := server.Get(cmd.Context(), path, &answer); err != nil {
				return err
			}
			if *asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), answer)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	asks.Add(cmd, true)
	asJSON = cli.JSONFlag(cmd, "print the answer of the server")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether routers may rely on its answers")
	return cmd
}
