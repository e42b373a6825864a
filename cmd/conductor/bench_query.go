package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"kvconductor/conductor"
	"kvconductor/conductor/server"
	"kvconductor/config"
	"kvconductor/lab/bench/query"
)

// serverCommand is the serving process of bench query: "serve", whose Conductor is passed
// to the part that loads it.
func serverCommand() *cobra.Command {
	var s query.Serving
	return &cobra.Command{Use: "bench-query-server LOAD", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
			return fmt.Errorf("cannot read the load: %w", err)
		}
		loaded := &config.Loaded{Config: config.Default()}
		loaded.Config.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: config.Conductor}, {Address: "127.0.0.1:0", Dialect: config.GRPC}}
		loaded.Config.Log.Level = "error"
		loaded.Config.Log.SlowQuery = s.Slow
		loaded.Config.Tracing = config.Tracing{Endpoint: s.Collector, Sample: s.Traces}
		loaded.Config.Limits.MaxSources = max(loaded.Config.Limits.MaxSources, s.Workers)
		s.MaxBody = loaded.Config.Limits.MaxBody

		ctx, stop := context.WithCancel(cmd.Context())
		defer stop()
		ended := make(chan error, 1)
		err := serve(ctx, loaded, nil, newLogger(loaded.Config.Log, cmd.ErrOrStderr()), func(c *conductor.Conductor, web *server.Servers, _ *prometheus.Registry) {
			s.Conductor, s.Address, s.GRPC = c, web.Address(0), web.Address(1)
			go func() {
				ended <- s.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
				stop()
			}()
		})
		if err != nil {
			return err
		}
		return <-ended
	}}
}
