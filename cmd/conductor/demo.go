package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/conductor/ui"
	"kvconductor/internal/freeport"
	"kvconductor/lab/sim"
)

func demoCommand() *cobra.Command {
	var (
		trace, duration string
		faults, page    bool
		restarts        int
		route           bool
		routed          demoRouter
		spread          demoShards
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a server and a simulated fleet, and compare every answer with the truth",
		Long: "Starts a server of its own in another process, lets a simulated fleet of twelve ranks and the master of a\n" +
			"pool publish into it over real sockets, compares every answer with what they hold, and stops everything.\n" +
			"Half of the ranks hash blocks with a look-ahead, the others share the pool. With --faults there is no pool:\n" +
			"events that name its blocks may be lost for good. With --restarts the server is killed and started again that often,\n" +
			"from its snapshots, and there is no pool either: no snapshot has its objects. With --ui the fleet works at an easy\n" +
			"pace, for the operator's page, until Ctrl-C.\n" +
			"With --router nothing is compared with the truth. The router of examples/router, round robin and the least loaded\n" +
			"rank each route the same requests over a fleet of their own, and the demo shows what their choices cost.\n" +
			"With --shards a fleet of six models is spread over that many servers, which share a store: redis-server or\n" +
			"valkey-server, which the demo starts unless --store names one. Queries go to the servers in turn. One server is\n" +
			"killed, and later another one is added, while every answer is compared with the truth.",
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print the report as one JSON object")
	cmd.Flags().StringVar(&trace, "trace", "", "Mooncake trace `file` to replay instead of generated requests")
	cmd.Flags().StringVar(&duration, "duration", "40s", "stop sending requests after this long")
	cmd.Flags().BoolVar(&faults, "faults", false, "let the fleet lose batches, cut and stall connections, restart and spoil replays")
	cmd.Flags().IntVar(&restarts, "restarts", 0, "kill and restart the server this often, in equal pauses")
	cmd.Flags().BoolVar(&page, "ui", false, "print the address of the operator's page, and go on until Ctrl-C")
	cmd.Flags().BoolVar(&route, "router", false, "compare the example router with policies that know no cache")
	cmd.Flags().IntVar(&routed.requests, "requests", 0, fmt.Sprintf("with --router, requests to route; 0 for the whole trace, or %d generated ones", generatedRequests))
	cmd.Flags().Uint64Var(&routed.seed, "seed", 0, "with --router, seed of everything random, 0 for a new one each time")
	cmd.Flags().IntVar(&spread.servers, "shards", 0, "spread models over this many servers, at least two, and kill one of them")
	cmd.Flags().StringVar(&spread.store, "store", "", "with --shards, `URL` of a store that runs, such as redis://127.0.0.1:6379; some keys stay in it")
	cmd.Flags().IntVar(&spread.owners, "owners", 2, "with --shards, servers that follow each model; with one, no server answers for a model from when its server dies until another one has taken over")
	for _, other := range []string{"trace", "faults", "restarts", "ui", "router"} {
		cmd.MarkFlagsMutuallyExclusive("shards", other)
	}
	for _, other := range []string{"duration", "faults", "restarts", "ui"} {
		cmd.MarkFlagsMutuallyExclusive("router", other)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"requests", "seed"} {
			if cmd.Flags().Changed(name) && !route {
				return fmt.Errorf("--%s needs --router", name)
			}
		}
		ctx, stop := untilSignal(cmd)
		defer stop()
		if cmd.Flags().Changed("shards") {
			return spread.demonstrate(ctx, duration, *asJSON, cmd)
		}
		for _, name := range []string{"store", "owners"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s needs --shards", name)
			}
		}
		if routed.asJSON = *asJSON; route {
			return routed.demonstrate(ctx, trace, cmd)
		}
		snapshots := time.Duration(0)
		if restarts > 0 {
			snapshots = 2 * time.Second
		}
		server, err := startServer(ctx, faults, snapshots, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		args, about := []string{"--server", server.url, "--curl"}, cmd.OutOrStdout()
		if *asJSON {
			args, about = append(args, "--json"), cmd.ErrOrStderr()
		}
		fmt.Fprintf(about, "server: %s (process %d)\n", server.url, server.process.Process.Pid)
		if page {
			fmt.Fprintf(about, "page:   %s%s (Ctrl-C ends it)\n", server.url, ui.Root)
			args = append(args, "--qps", pagePace, "--keep")
		}
		if page && !cmd.Flags().Changed("duration") {
			args = append(args, "--duration", untilStopped)
		} else {
			args = append(args, "--duration", duration)
		}
		if faults {
			args = append(args, "--faults")
		}
		if !faults && restarts == 0 {
			args = append(args, "--pool")
		}
		if trace != "" {
			args = append(args, "--trace", trace, "--block-size", strconv.Itoa(traceBlock))
		}
		again, err := server.restarts(restarts, duration)
		if err != nil {
			server.stop()
			return err
		}
		simulate := simulateCommandWith(again)
		simulate.SetArgs(args)
		simulate.SetOut(cmd.OutOrStdout())
		simulate.SetErr(cmd.ErrOrStderr())
		simulate.SilenceUsage, simulate.SilenceErrors = true, true
		if err := simulate.ExecuteContext(ctx); err != nil {
			server.stop()
			return err
		}
		if page && ctx.Err() == nil {
			fmt.Fprintf(about, "\nThe fleet has stopped. The page stays until Ctrl-C: %s%s\n", server.url, ui.Root)
			<-ctx.Done()
		}
		return server.stop()
	}
	return cmd
}

// With --ui a request starts each twentieth of a second, so that a person can follow them, and the
// fleet works until a signal: a duration that no demo reaches.
const pagePace, untilStopped = "20", "8760h"

// traceBlock is the block size for traces, whose prompts are long: with it an engine's default
// capacity is a million tokens, about what a large node keeps on its devices.
const traceBlock = 128

// demoServer is a server in a process of its own.
type demoServer struct {
	url       string
	process   *exec.Cmd
	ended     chan struct{} // closed when the process has ended
	end       error         // of the process, after that
	file, dir string        // configuration, and where it lies
	errs      io.Writer
}

// demoSources is how many ranks the fleet has. A server with snapshots is ready once all are
// synced.
const demoSources = 12

// startServer runs this program's serve command on a free loopback port, with
// warnings on errs, and waits until it answers. It writes snapshots at an interval, if that is
// not 0.
func startServer(ctx context.Context, faults bool, snapshots time.Duration, errs io.Writer) (*demoServer, error) {
	text, synced := "", demoSources
	if faults { // replays without an answer are given up sooner than in production
		text += "stream: {replay_timeout: 1s}\n"
		synced = 1 // a disturbed engine may have dropped what a source needs, until it clears its cache
	}
	return launchServer(ctx, errs, func(dir, _ string) string {
		if snapshots > 0 {
			text += fmt.Sprintf("snapshot: {dir: %q, interval: %s}\nready: {min_sources: %d}\n", filepath.Join(dir, "snapshots"), snapshots, synced)
		}
		return text
	})
}

// launchServer starts a server whose further settings are made of its folder and its address.
func launchServer(ctx context.Context, errs io.Writer, further func(dir, address string) string) (*demoServer, error) {
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conductor-demo")
	if err != nil {
		return nil, err
	}
	// A file of its own keeps the demo apart from the user's settings.
	file := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("listeners: [{address: %q, dialect: conductor}]\nlog: {level: warn, format: console}\n", address)
	text += "index: {recall_bytes: 512MiB}\n" // the demo evicts in seconds what a fleet evicts in minutes
	text += "shutdown: {drain: 0s}\n" + further(dir, address)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &demoServer{url: "http://" + address, file: file, dir: dir, errs: errs}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// apart keeps a signal of the terminal from a process: the demo stops its processes itself, after the
// fleet has unregistered.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// start starts the process, and waits until it answers.
func (s *demoServer) start(ctx context.Context) error {
	s.process = self("serve", "--config", s.file)
	s.process.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONDUCTOR_") })
	s.process.Stderr = s.errs
	s.process.SysProcAttr = apart()
	if err := s.process.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		s.end = s.process.Wait()
		close(ended)
	}()
	if err := s.awaitHealth(ctx); err != nil {
		s.stop()
		return err
	}
	return nil
}

// restarts returns how the server is killed and started again some times within a duration.
func (s *demoServer) restarts(times int, within string) (sim.Restarts, error) {
	d, err := time.ParseDuration(within)
	return sim.Restarts{Times: times, Every: d / time.Duration(times+1), Restart: s.restart}, err
}

// restart kills the process and starts it again.
func (s *demoServer) restart(ctx context.Context) (down sim.Downtime, err error) {
	began := time.Now()
	if err := s.process.Process.Kill(); err != nil {
		return down, err
	}
	<-s.ended
	if err := s.start(ctx); err != nil {
		return down, err
	}
	down.Answers = time.Since(began)
	err = s.await(ctx, "/ready")
	down.Ready = time.Since(began)
	down.Blocks = s.loadedBlocks()
	return down, err
}

// loadedBlocks returns the blocks of the snapshot that the server began with.
func (s *demoServer) loadedBlocks() int {
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "conductor_snapshot_loaded_blocks "); ok {
			blocks, _ := strconv.ParseFloat(text, 64)
			return int(blocks)
		}
	}
	return 0
}

func (s *demoServer) awaitHealth(ctx context.Context) error { return s.await(ctx, "/health") }

// patience is how long the demo waits for its server. A source pauses up to 30 s between
// attempts to replay.
const patience = time.Minute

// await waits until a path is answered with 200.
func (s *demoServer) await(ctx context.Context, path string) error {
	last := errors.New("no attempt was made")
	for end := time.Now().Add(patience); time.Now().Before(end); {
		resp, err := http.Get(s.url + path)
		if last = err; err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			last = fmt.Errorf("it answers %s: %s", resp.Status, body)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return errors.Join(fmt.Errorf("the server at %s has ended", s.url), s.end)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("the server is not well at %s%s: %w", s.url, path, last)
}

// stop ends the server and reports whether it stopped cleanly.
func (s *demoServer) stop() error {
	defer os.RemoveAll(s.dir)
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if <-s.ended; s.end != nil {
		return fmt.Errorf("the server did not stop cleanly: %w", s.end)
	}
	return nil
}
