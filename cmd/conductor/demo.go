package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/cmd/internal/harness"
)

func demoCommand() *cobra.Command {
	var (
		trace, duration string
		faults          bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a server and a simulated fleet, and compare every answer with the truth",
		Long: "Starts a server of its own in another process, lets a simulated fleet of twelve ranks and the master of a\n" +
			"pool publish into it over real sockets, compares every answer with what they hold, and stops everything.\n" +
			"Half of the ranks hash blocks with a look-ahead, the others share the pool. With --faults there is no pool:\n" +
			"events that name its blocks may be lost for good.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&trace, "trace", "", "Mooncake trace `file` to replay instead of generated requests")
	cmd.Flags().StringVar(&duration, "duration", "40s", "stop sending requests after this long")
	cmd.Flags().BoolVar(&faults, "faults", false, "let the fleet lose batches, cut and stall connections, restart and spoil replays")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd)
		defer stop()
		server, err := startServer(ctx, faults, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "server: %s (process %d)\n", server.url, server.process.Process.Pid)

		args := []string{"--server", server.url, "--duration", duration, "--curl"}
		if faults {
			args = append(args, "--faults")
		} else {
			args = append(args, "--pool")
		}
		if trace != "" {
			// Trace prompts are long: with blocks of 128 an engine's default capacity
			// is a million tokens, about what a large node keeps on its devices.
			args = append(args, "--trace", trace, "--block-size", "128")
		}
		simulate := simulateCommand()
		simulate.SetArgs(args)
		simulate.SetOut(cmd.OutOrStdout())
		simulate.SetErr(cmd.ErrOrStderr())
		simulate.SilenceUsage, simulate.SilenceErrors = true, true
		if err := simulate.ExecuteContext(ctx); err != nil {
			server.stop()
			return err
		}
		return server.stop()
	}
	return cmd
}

// demoServer is a server in a process of its own.
type demoServer struct {
	url     string
	process *exec.Cmd
	dir     string
}

// startServer runs this program's serve command on a free loopback port, with
// warnings on errs, and waits until it answers.
func startServer(ctx context.Context, faults bool, errs io.Writer) (*demoServer, error) {
	address, err := freeAddress()
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
	if faults {                               // replays without an answer are given up sooner than in production
		text += "stream: {replay_timeout: 1s}\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &demoServer{url: "http://" + address, process: self("serve", "--config", file), dir: dir}
	s.process.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONDUCTOR_") })
	s.process.Stderr = errs
	// The demo stops the server itself, after the fleet has unregistered.
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	if err := s.awaitHealth(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *demoServer) awaitHealth(ctx context.Context) error {
	for range 100 {
		resp, err := http.Get(s.url + "/health")
		if err == nil {
			resp.Body.Close()
			return nil
		}
		if !harness.Wait(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("the server at %s does not answer", s.url)
}

// stop ends the server and reports whether it stopped cleanly.
func (s *demoServer) stop() error {
	defer os.RemoveAll(s.dir)
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.process.Wait(); err != nil {
		return fmt.Errorf("the server did not stop cleanly: %w", err)
	}
	return nil
}
