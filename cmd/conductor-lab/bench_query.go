package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/lab/bench/query"
	"example.com/conductor/lab/harness"
)

func benchQueryCommand() *cobra.Command {
	var (
		c       query.Config
		program serverFlag
	)
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Ask a server in another process over real sockets",
		Long: `Starts "serve" with its default settings in a second process, fills its index
through real publishers, and asks it for prompts on several connections, each as
soon as it has its answer. Server and client have a processor each, or --cores, by affinity
where the system allows it. With --baseline the same prompts are asked in turns of
a handler that reads and writes by encoding/json, in a third process, of an index with
the same blocks; with --reading they are sent to one that does nothing but read.

Allocations and processor time are the server's, over the measured window.`,
		Example: "  conductor-lab bench query\n" +
			"  conductor-lab bench query --json",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&c.Tokens, "tokens", 8192, "tokens of a prompt")
	f.IntVar(&c.BlockSize, "block-size", 16, "tokens per block")
	f.IntVar(&c.Workers, "workers", 128, "instances")
	f.IntVar(&c.Holders, "holders", 8, "instances that hold the cached part of a prompt")
	f.IntVar(&c.Blocks, "blocks", 1_000_000, "blocks in the index, each counted once")
	f.Float64Var(&c.Hit, "hit", 0.5, "part of a prompt that is held")
	f.IntVar(&c.Window, "window", 0, "tokens of a sliding window that each instance has next to full attention, 0 for none")
	f.StringVar(&c.Codec, "codec", query.JSON, "what prompts are sent in: "+strings.Join(query.AllCodecs, ", "))
	f.StringVar(&c.Other, "other", "", "measure this codec too, in turns")
	f.IntVar(&c.Reports, "reports", 0, "report this many prompts to the server before, 10,000 a second")
	f.IntVar(&c.NewTokens, "new-tokens", 768, "tokens that each of those prompts has for itself")
	f.IntVar(&c.Connections, "connections", 8, "connections, each with one request at a time")
	f.IntVar(&c.Cores, "cores", 1, "processors of the server; the client has as many of the others, or shares these where there are none")
	f.DurationVar(&c.Duration, "duration", 10*time.Second, "of the measurement, after a warm-up")
	f.BoolVar(&c.Baseline, "baseline", false, "measure a handler over encoding/json too")
	f.BoolVar(&c.Reading, "reading", false, "measure a handler that does nothing but read the bytes too")
	f.BoolVar(&c.HTTP2, "http2", false, "ask by HTTP/2 without TLS")
	f.StringVar(&c.Profile, "profile", "", "write a CPU profile of the server, warm-up included, to this `file`")
	f.Float64Var(&c.Share, "load", 0,
		"ask again at this part of the rate that was reached, each request at its time, and count latencies from then on")
	f.IntVar(&c.Batches, "batches", 0, "batches that other processes publish a second while it is measured")
	f.IntVar(&c.Changes, "changes", 0, "registrations and unregistrations a second while it is measured, with snapshot.dir")
	f.BoolVar(&c.Snapshot, "snapshot", false, "with --load: let the server write snapshots meanwhile")
	f.StringVar(&c.Trace, "trace", "", "with --load: write an execution trace of the server, of some seconds, to this `file`")
	f.Float64Var(&c.Traces, "traces", 0, "part of the queries that are traced; this process is the collector")
	f.DurationVar(&c.Slow, "slow", 0, "log.slow_query of the server, such as 1h for one that measures all queries and logs none")
	program.add(cmd)
	measures(cmd, &c.Progress, func() (harness.Report, error) {
		conductor, err := program.find()
		if err != nil {
			return nil, err
		}
		if c.Traces > 0 {
			sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
			defer sink.Close()
			c.Collector = sink.URL
		}
		c.Server = func(file string) *exec.Cmd { return conductor("serve", "--config", file) }
		c.Compared = func() *exec.Cmd { return child("compared", query.Compared{Load: c.Load}) }
		c.Publishers = func(p query.Churn) *exec.Cmd { return child("churn", p) }
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		return query.Run(ctx, c)
	})
	return cmd
}

// churnCommand is the process that publishes while bench query asks.
func churnCommand() *cobra.Command {
	var c query.Churn
	return childCommand("churn", &c, func(cmd *cobra.Command) error {
		return c.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
	})
}

// comparedCommand is the process that bench query compares the server with.
func comparedCommand() *cobra.Command {
	var c query.Compared
	return childCommand("compared", &c, func(cmd *cobra.Command) error {
		return c.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
	})
}
