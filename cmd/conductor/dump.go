package main

import (
	"fmt"
	"io"
	"net/http"
	"os"

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
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cli.JSONFlag(cmd, "print JSON, one object a line, as without it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		web, err := asks.HTTP(0)
		if err != nil {
			return err
		}
		path := asks.Server + "/dynamo/v1/dump"
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		if err != nil {
			return fmt.Errorf("--server: %w", err)
		}
		req.Header.Set("Accept", "application/x-ndjson")
		resp, err := web.Do(req)
		if err != nil {
			return fmt.Errorf("no answer from %s: %w", asks.Server, err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			io.Copy(os.Stderr, io.LimitReader(resp.Body, 1<<10))
			return fmt.Errorf("%s answers %s", path, resp.Status)
		}
		if _, err := io.Copy(cmd.OutOrStdout(), resp.Body); err != nil {
			return fmt.Errorf("the dump is cut off: %w", err)
		}
		return nil
	}
	return cmd
}
